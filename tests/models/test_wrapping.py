"""A weight is used without its module only where nothing has been put on the module."""

import math

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from hf_attnzoo.models.losses import token_cross_entropy
from hf_attnzoo.models.recurrence import GRULayer
from hf_attnzoo.models.wrapping import is_plain_linear


@pytest.mark.parametrize("kind", ["register_full_backward_hook", "register_full_backward_pre_hook"])
def test_a_backward_hook_on_the_head_fires(kind):
    head, fired = nn.Linear(4, 7), []
    getattr(head, kind)(lambda *args: fired.append(1))
    token_cross_entropy(torch.randn(2, 3, 4, requires_grad=True), head, torch.ones(2, 3, dtype=torch.long)).backward()
    assert fired


@pytest.mark.parametrize(
    "register", ["forward_hook", "forward_pre_hook", "full_backward_hook", "full_backward_pre_hook"]
)
def test_a_hook_on_all_modules_fires(register):
    head, fired = nn.Linear(4, 7), []
    assert is_plain_linear(head)
    handle = getattr(nn.modules.module, f"register_module_{register}")(lambda module, *_: fired.append(module))
    try:
        assert not is_plain_linear(head)
        hidden = torch.randn(2, 3, 4, requires_grad=True)
        token_cross_entropy(hidden, head, torch.ones(2, 3, dtype=torch.long)).backward()
    finally:
        handle.remove()
    assert head in fired
    assert is_plain_linear(head)


def test_a_counter_of_operations_counts_what_is_always_done():
    head = nn.Linear(4, 7)
    with FlopCounterMode(display=False):
        assert is_plain_linear(head)


@pytest.mark.parametrize("what", ["head", "gru"])
def test_a_forward_replaced_on_the_instance_is_called(what):
    torch.manual_seed(0)
    if what == "head":
        module = nn.Linear(4, 7)
        run = lambda: token_cross_entropy(torch.ones(2, 3, 4), module, torch.ones(2, 3, dtype=torch.long))  # noqa: E731
    else:
        layer = GRULayer(4, 5)
        module = layer.input_proj
        run = lambda: layer(torch.ones(2, 3, 4))[0]  # noqa: E731
    before, original = run(), module.forward
    module.forward = lambda inputs: original(inputs) * 3
    assert not torch.allclose(run(), before)


def test_a_quantised_weight_is_not_looked_into():
    """As torchao does it: the module stays an nn.Linear, its weight becomes a tensor that knows what a product is."""

    class Doubled(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            if func is nn.functional.linear:
                inputs, weight, *bias = args
                return func(inputs, weight.as_subclass(torch.Tensor) * 2, *bias)
            return super().__torch_function__(func, types, args, kwargs or {})

    layer = GRULayer(4, 5)
    plain = layer.input_proj.weight.detach()
    layer.input_proj.weight = nn.Parameter(plain.as_subclass(Doubled))
    assert not is_plain_linear(layer.input_proj)
    states = layer(torch.ones(2, 3, 4))[0]
    layer.input_proj.weight = nn.Parameter(plain * 2)
    torch.testing.assert_close(states, layer(torch.ones(2, 3, 4))[0])


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("nothing", [0, torch.tensor(0)])
def test_no_items_in_the_batch_is_a_loss_of_zero(wrapped, nothing):
    head, hidden = nn.Linear(4, 7), torch.randn(2, 3, 4, requires_grad=True)
    if wrapped:
        head.register_forward_hook(lambda *args: None)
    loss = token_cross_entropy(hidden, head, torch.full((2, 3), -100), nothing)
    loss.backward()
    assert loss.item() == 0
    assert (hidden.grad == 0).all()
    assert not math.isnan(head.weight.grad.sum())
