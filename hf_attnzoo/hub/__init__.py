"""What makes a trained model fit to be shared."""

from .card import RunFacts, model_card

__all__ = ["RunFacts", "model_card"]
