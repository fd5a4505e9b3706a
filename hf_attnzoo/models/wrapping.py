"""When a module's weight may be used without calling the module."""

from torch import nn
from torch.nn.modules import module as of_all_modules
from torch.utils.module_tracker import ModuleTracker

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def is_plain(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether calling `module` is nothing but its class's own `forward`: no subclass, no hook, no other `forward`.

    A hook may be its own, or one that all modules have (`register_module_forward_hook`). Those of torch's
    `ModuleTracker` don't count: `FlopCounterMode` has them to know where it is, and is to count what is always done.
    """
    changed = "forward" in vars(module) or hasattr(module, "_hf_hook") or module._compiled_call_impl is not None
    hooked = any(getattr(module, hook) or _is_watched(f"_global{hook}") for hook in _HOOKS)
    return type(module) is kind and not changed and not hooked


def _is_watched(hooks: str) -> bool:
    return any(
        not isinstance(getattr(hook, "__self__", None), ModuleTracker)
        for hook in getattr(of_all_modules, hooks).values()
    )


def is_plain_linear(module: nn.Module) -> bool:
    """Whether calling `module` is nothing but a product with its weight and its bias.

    Fused kernels take weights, and would silently pass by an adapter (PEFT), a quantised or parametrised layer, an
    offloading hook, or any other hook that somebody has put on the module.
    """
    # A quantised weight can be a tensor of its own kind, which knows what a product with it is.
    return is_plain(module, nn.Linear) and type(module.weight) is nn.Parameter
