"""Importing the package gets in the way of no import of transformers, and is seen by it in any order."""

import subprocess
import sys

import pytest

KNOWN = """
import sys
from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM

assert not any(name.startswith("hf_attnzoo.models.modeling_rnnsearch") for name in sys.modules) or {loaded}
config = AutoConfig.for_model("attnzoo_rnnsearch", vocab_size=11)
model = AutoModelForSeq2SeqLM.from_config(config)
assert type(model).__module__ == "hf_attnzoo.models.modeling_rnnsearch"
assert type(AutoModel.from_config(config)).__name__ == "RNNSearchModel"
"""


@pytest.mark.parametrize(
    ("first", "loaded"),
    [
        # A stock model imports modeling_layers, which imports the auto classes before it is complete itself.
        ("import hf_attnzoo; from transformers import BertModel, Trainer, pipeline", False),
        ("from transformers import BertModel; import hf_attnzoo", False),
        ("import hf_attnzoo.models.modeling_rnnsearch", True),
    ],
)
def test_every_order_of_imports_works(first, loaded):
    script = f"{first}\n{KNOWN.format(loaded=loaded)}"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
