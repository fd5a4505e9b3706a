"""When a module's weight may be used without calling the module."""

from torch import nn


def is_plain_linear(module: nn.Module) -> bool:
    """Whether calling `module` is nothing but a product with its weight and its bias.

    Fused kernels take weights, and would silently pass by an adapter (PEFT), a quantised or parametrised layer, an
    offloading hook, or any other hook that somebody has put on the module.
    """
    return (
        type(module) is nn.Linear
        and not hasattr(module, "_hf_hook")
        and not module._forward_hooks
        and not module._forward_pre_hooks
    )
