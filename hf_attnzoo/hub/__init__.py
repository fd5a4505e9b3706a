"""What makes a trained model fit to be shared."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .averaging import average_checkpoints, average_weights, load_average
    from .card import model_card
    from .checking import card_links, check_card, export_card
    from .curve import plot_curve
    from .facts import CardTexts, Ending, EnergyEstimate, RunFacts
    from .pushing import Push, push_checkpoint, read_checkpoint
    from .starters import STARTERS, Starter, find_model, pretrained

__all__ = [
    "CardTexts",
    "RunFacts",
    "EnergyEstimate",
    "Ending",
    "model_card",
    "check_card",
    "export_card",
    "card_links",
    "plot_curve",
    "average_checkpoints",
    "average_weights",
    "load_average",
    "push_checkpoint",
    "read_checkpoint",
    "Push",
    "STARTERS",
    "Starter",
    "pretrained",
    "find_model",
]

# Seconds to import, for matplotlib or torch: only for those who need them. A Space finds models by `starters`, and has
# neither datasets nor sacrebleu, which cards take.
_LAZY = {"check_card": "checking", "export_card": "checking", "card_links": "checking", "plot_curve": "curve"}
_LAZY |= {"model_card": "card"} | dict.fromkeys(("CardTexts", "RunFacts", "EnergyEstimate", "Ending"), "facts")
_LAZY |= dict.fromkeys(("average_checkpoints", "average_weights", "load_average"), "averaging")
_LAZY |= dict.fromkeys(("push_checkpoint", "read_checkpoint", "Push"), "pushing")
_LAZY |= dict.fromkeys(("STARTERS", "Starter", "pretrained", "find_model"), "starters")


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
