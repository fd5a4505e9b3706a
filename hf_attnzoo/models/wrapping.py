"""When a module's weight may be used without calling the module."""

from torch import nn


def is_plain(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether calling `module` is nothing but its class's own `forward`: no subclass, no hook of any kind."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return type(module) is kind and not hasattr(module, "_hf_hook") and not any(getattr(module, h) for h in hooks)


def is_plain_linear(module: nn.Module) -> bool:
    """Whether calling `module` is nothing but a product with its weight and its bias.

    Fused kernels take weights, and would silently pass by an adapter (PEFT), a quantised or parametrised layer, an
    offloading hook, or any other hook that somebody has put on the module.
    """
    return is_plain(module, nn.Linear)
