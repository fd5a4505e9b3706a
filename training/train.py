"""Train any family from a recipe: `python training/train.py RECIPE [key=value ...]`.

The same door as `attnzoo train`, in a file that `accelerate launch` can start. RECIPE is a YAML file, or the name of
one that ships with the package.
"""

import sys

from hf_attnzoo.cli import app

if __name__ == "__main__":
    app(["train", *sys.argv[1:]])
