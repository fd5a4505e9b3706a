"""The functions of a stack against its modules."""

import copy

import pytest
import torch
from torch import nn
from transformers import DynamicCache
from transformers.cache_utils import EncoderDecoderCache

from hf_attnzoo.models import plain_stack
from hf_attnzoo.models.configuration_gpt import GPTConfig
from hf_attnzoo.models.configuration_transformer import TransformerConfig
from hf_attnzoo.models.modeling_gpt import GPTForCausalLM
from hf_attnzoo.models.modeling_transformer import TransformerForConditionalGeneration
from hf_attnzoo.models.multi_head import MultiHeadAttention
from hf_attnzoo.models.plain_stack import PlainStack
from hf_attnzoo.models.transformer_layer import TransformerLayer, TransformerStack

SIZES = {"vocab_size": 20, "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 16}


def build(family: str, seed: int = 0, **changes):
    torch.manual_seed(seed)
    if family == "gpt":
        model = GPTForCausalLM(GPTConfig(num_hidden_layers=2, **SIZES, **changes))
    else:
        model = TransformerForConditionalGeneration(
            TransformerConfig(num_encoder_layers=1, num_decoder_layers=2, **SIZES, **changes)
        )
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    return model.eval()


def stack_of(model: nn.Module) -> TransformerStack:
    return model.model.stack if hasattr(model.model, "stack") else model.model.decoder.stack


@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize(
    "changes", [{}, {"norm_first": True}, {"norm_first": False, "use_bias": False}, {"hidden_act": "silu"}], ids=str
)
@torch.no_grad()
def test_it_computes_what_the_modules_compute(changes, cross):
    torch.manual_seed(0)
    config = TransformerConfig(**SIZES, **changes)
    stack = TransformerStack(config, 3, causal=True, cross_attention=cross, residual_scale=0.7).eval()
    for parameter in stack.parameters():
        nn.init.normal_(parameter, std=0.5)
    plain = PlainStack.of(stack)
    mask = torch.tensor([[1, 1, 1, 1], [0, 1, 1, 1]]).bool()[:, None, None]
    source = torch.randn(1, 5, 8) if cross else None
    caches = [EncoderDecoderCache(DynamicCache(), DynamicCache()) for _ in range(2)]
    for step in range(4):
        hidden = torch.randn(2, 1, 8)
        depth = 2 if step == 3 else None
        outputs = [
            run(hidden, mask[..., : step + 1], source, None, cache=cache, depth=depth)
            for run, cache in zip((stack, plain), caches, strict=True)
        ]
        assert torch.equal(outputs[0].hidden, outputs[1].hidden)
    assert outputs[1].attentions is None


@torch.no_grad()
def test_more_than_a_step_is_left_to_the_modules():
    model = build("gpt")
    stack, calls = stack_of(model), []
    plain = PlainStack.of(stack)
    stack.register_forward_hook(lambda *_: calls.append(1))
    plain(torch.randn(2, 1, 8))
    assert not calls
    assert torch.equal(plain(torch.ones(2, 3, 8)).hidden, stack(torch.ones(2, 3, 8)).hidden)
    assert len(calls) == 2
    assert plain(torch.randn(2, 1, 8), output_attentions=True).attentions[1].shape == (2, 2, 1, 1)
    assert len(plain(torch.randn(2, 1, 8), output_hidden_states=True).hidden_states) == 3


def test_packed_texts_are_left_to_the_modules():
    model, options = build("gpt"), {"use_cache": False, "max_new_tokens": 4, "suppress_tokens": [3]}
    packed = model.generate(torch.tensor([[5, 8, 4, 7, 9]]), position_ids=torch.tensor([[0, 1, 2, 0, 1]]), **options)
    assert torch.equal(packed[:, 5:], model.generate(torch.tensor([[7, 9]]), **options)[:, 2:])


def test_what_is_not_plain():
    class Subclass(nn.Linear):
        pass

    def changed(how) -> nn.Module:
        stack = stack_of(build("gpt"))
        how(stack)
        return stack

    attention = lambda stack: stack.layers[1].self_attn  # noqa: E731
    assert PlainStack.of(changed(lambda stack: None)) is not None
    for how in (
        lambda stack: stack.train(),
        lambda stack: stack.layers[0].dropout.train(),
        lambda stack: attention(stack).register_forward_hook(lambda *_: None),
        lambda stack: stack.layers[1].feed_forward.activation.register_forward_pre_hook(lambda *_: None),
        lambda stack: setattr(attention(stack), "out_proj", Subclass(8, 8)),
        lambda stack: setattr(attention(stack), "forward", attention(stack).forward),
        lambda stack: setattr(stack, "norm", nn.Sequential(stack.norm)),
        lambda stack: stack.layers[0].compile(backend="eager"),
    ):
        assert PlainStack.of(changed(how)) is None


@pytest.mark.parametrize("kind", [MultiHeadAttention, TransformerLayer, nn.Linear])
def test_a_class_that_was_given_another_forward_is_not_plain(monkeypatch, kind):
    stack = stack_of(build("gpt"))
    monkeypatch.setattr(kind, "forward", lambda self, *args, **kwargs: None)
    assert PlainStack.of(stack) is None


def test_the_weights_are_those_of_now():
    model = build("gpt")
    model.generate(IDS, max_new_tokens=2)
    other = build("gpt", seed=1)
    model.load_state_dict(other.state_dict())
    options = {"max_new_tokens": 8, "suppress_tokens": [3]}
    assert torch.equal(model.generate(IDS, **options), other.generate(IDS, **options))


IDS = torch.tensor([[5, 8, 4, 7], [1, 1, 6, 9]])


@pytest.mark.parametrize("family", ["gpt", "transformer"])
@pytest.mark.parametrize(
    "options",
    [{}, {"num_beams": 3}, {"cache_implementation": "static"}, {"prompt_lookup_num_tokens": 2}, {"early": 1}],
    ids=str,
)
def test_generation_writes_the_same_with_it(monkeypatch, family, options):
    model, ids = build(family), IDS
    options = {"max_new_tokens": 8, "suppress_tokens": [3]} | options
    if "early" in options:
        options["assistant_early_exit"] = options.pop("early")
    if "assistant_early_exit" in options or "prompt_lookup_num_tokens" in options:
        ids = IDS[:1]
    calls, call = [], plain_stack.PlainLayer.__call__
    monkeypatch.setattr(plain_stack.PlainLayer, "__call__", lambda *args: calls.append(1) or call(*args))
    written = model.generate(ids, **options)
    assert calls
    if options.keys() == {"max_new_tokens", "suppress_tokens"}:
        # Two layers, in all steps but the first: a prompt is more than a step, and a source that is padded is, too.
        assert len(calls) == 2 * 7
    monkeypatch.setattr(PlainStack, "of", lambda stack: None)
    calls.clear()
    assert torch.equal(model.generate(ids, **options), written)
    assert not calls


@pytest.mark.parametrize("family", ["gpt", "transformer"])
def test_a_hook_on_a_layer_fires_at_every_step(family):
    model, fired = build(family), []
    stack_of(model).layers[1].feed_forward.register_forward_hook(lambda *_: fired.append(1))
    model.generate(IDS, max_new_tokens=4, suppress_tokens=[3])
    assert len(fired) == 4


def test_a_hook_on_all_modules_fires_at_every_step():
    fired = []
    handle = nn.modules.module.register_module_forward_hook(lambda module, *_: fired.append(type(module)))
    try:
        build("gpt").generate(IDS, max_new_tokens=4, suppress_tokens=[3])
    finally:
        handle.remove()
    assert fired.count(TransformerLayer) == 2 * 4


@pytest.mark.parametrize("family", ["gpt", "transformer"])
def test_a_model_in_training_drops_out_at_every_step(family):
    model = build(family, dropout=0.5).train()
    stack_of(model).layers[1].feed_forward.down_proj.register_forward_hook(lambda *_: None)
    torch.manual_seed(0)
    hooked = model.generate(IDS, max_new_tokens=8, suppress_tokens=[3], use_cache=True)
    model = build(family, dropout=0.5).train()
    torch.manual_seed(0)
    assert torch.equal(model.generate(IDS, max_new_tokens=8, suppress_tokens=[3], use_cache=True), hooked)


def test_a_copy_of_it_is_none():
    assert copy.deepcopy({"plain_stack": PlainStack.of(stack_of(build("gpt")))}) == {"plain_stack": None}
