"""The packed output layer of generation against the layer itself."""

import pytest
import torch
from torch import nn

from hf_attnzoo.models.configuration_rnnsearch import RNNSearchConfig
from hf_attnzoo.models.modeling_rnnsearch import RNNSearchForConditionalGeneration
from hf_attnzoo.models.packed_linear import PackedLinear

needs_onednn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch is built without oneDNN")


@needs_onednn
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(7,), (1, 7), (3, 1, 7), (5, 2, 7)])
@torch.no_grad()
def test_it_computes_what_the_layer_computes(bias, shape):
    torch.manual_seed(0)
    linear, inputs = nn.Linear(7, 33, bias=bias), torch.randn(shape)
    # made for one number of rows, it is right for any
    packed = PackedLinear.of(linear, 3)
    exact = inputs.double() @ linear.weight.double().T + (linear.bias.double() if bias else 0)
    torch.testing.assert_close(packed(inputs).double(), exact, rtol=0, atol=1e-6)


def test_what_is_not_packed():
    class Subclass(nn.Linear):
        pass

    linear = nn.Linear(7, 33)
    assert PackedLinear.of(linear, 1) is None, "a gradient would get lost"
    with torch.no_grad():
        for other in (Subclass(7, 33), nn.Identity(), linear.to(torch.bfloat16), nn.Linear(7, 33).double()):
            assert PackedLinear.of(other, 1) is None
        hooked = nn.Linear(7, 33)
        hooked.register_forward_hook(lambda *args: None)
        assert PackedLinear.of(hooked, 1) is None
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert PackedLinear.of(nn.Linear(7, 33), 1) is None


@pytest.fixture
def model():
    torch.manual_seed(2)
    config = RNNSearchConfig(vocab_size=30, embedding_size=8, hidden_size=10, maxout_size=6, initializer_range=0.5)
    return RNNSearchForConditionalGeneration(config).eval()


SOURCE = torch.tensor([[5, 8, 4, 3], [6, 3, 1, 1]])


@needs_onednn
@pytest.mark.parametrize("beams", [1, 3])
def test_generation_packs_the_head_once_and_writes_the_same(monkeypatch, model, beams):
    made = []
    make = PackedLinear.of.__func__
    monkeypatch.setattr(PackedLinear, "of", lambda *args: made.append(args) or make(PackedLinear, *args))
    written = model.generate(SOURCE, num_beams=beams, max_new_tokens=6, suppress_tokens=[3])
    assert [args[1] for args in made] == [2 * beams]
    monkeypatch.setattr(PackedLinear, "of", lambda *args: None)
    assert torch.equal(model.generate(SOURCE, num_beams=beams, max_new_tokens=6, suppress_tokens=[3]), written)


def test_a_head_that_has_changed_since_is_the_one_that_writes(model):
    model.generate(SOURCE, max_new_tokens=4)
    with torch.no_grad():
        model.lm_head.weight.zero_()
        model.lm_head.weight[9] = 1
        model.lm_head.weight[8] = -1
    written = model.generate(SOURCE, max_new_tokens=4)[:, 1:]
    assert ((written == 8) | (written == 9)).any()
    outputs = model(input_ids=SOURCE, decoder_input_ids=torch.full((2, 1), 2))
    assert torch.equal(outputs.logits[:, 0].argmax(dim=-1), written[:, 0])


def test_a_hook_on_the_head_fires_at_every_step(model):
    fired = []
    model.lm_head.register_forward_hook(lambda *args: fired.append(1))
    model.generate(SOURCE, max_new_tokens=4, suppress_tokens=[3])
    assert len(fired) == 4


def test_autocast_may_begin_inside_the_forward_pass(model):
    # Accelerate wraps `forward`, and generate() packs before it.
    forward = model.forward
    model.forward = torch.autocast("cpu", dtype=torch.bfloat16)(forward)
    written = model.generate(SOURCE, max_new_tokens=4, suppress_tokens=[3])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(model.generate(SOURCE, max_new_tokens=4, suppress_tokens=[3]), written)
