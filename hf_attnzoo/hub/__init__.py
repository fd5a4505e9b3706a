"""What makes a trained model fit to be shared."""

from .card import CardTexts, RunFacts, model_card

__all__ = ["CardTexts", "RunFacts", "model_card"]
