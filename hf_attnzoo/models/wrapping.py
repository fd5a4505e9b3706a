"""When a module's weight may be used without calling the module."""

from torch import nn


def is_plain(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether calling `module` is nothing but its class's own `forward`: no subclass, no hook, no other `forward`."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    changed = "forward" in vars(module) or hasattr(module, "_hf_hook")
    return type(module) is kind and not changed and not any(getattr(module, hook) for hook in hooks)


def is_plain_linear(module: nn.Module) -> bool:
    """Whether calling `module` is nothing but a product with its weight and its bias.

    Fused kernels take weights, and would silently pass by an adapter (PEFT), a quantised or parametrised layer, an
    offloading hook, or any other hook that somebody has put on the module.
    """
    # A quantised weight can be a tensor of its own kind, which knows what a product with it is.
    return is_plain(module, nn.Linear) and type(module.weight) is nn.Parameter
