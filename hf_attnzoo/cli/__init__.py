"""`attnzoo`: thin doors onto the rooms of the package. Nothing heavy is imported before a command needs it."""

from .base import app

# isort: off
# In the order of `attnzoo --help`
from . import training
from . import writing
from . import looking
from . import scoring
from . import sharing
# isort: on

__all__ = ["app", "training", "writing", "looking", "scoring", "sharing"]
