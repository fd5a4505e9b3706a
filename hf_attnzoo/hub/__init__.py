"""What makes a trained model fit to be shared."""

from .averaging import average_checkpoints, average_weights, load_average
from .card import CardTexts, RunFacts, model_card

__all__ = ["CardTexts", "RunFacts", "average_checkpoints", "average_weights", "load_average", "model_card"]
