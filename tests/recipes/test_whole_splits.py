"""Every row of the validation and the test split counts, however long: in the card, in the log, for the command."""

import json
import re

import pytest
from rich.console import Console
from typer.testing import CliRunner

from hf_attnzoo.cli import app
from hf_attnzoo.data import load_source
from hf_attnzoo.recipes import build_recipe, run_recipe
from hf_attnzoo.recipes import run as run_module

# A source of n letters has n tokens and an end.
DATA = {
    "source": "reverse",
    "options": {"min_length": 1, "max_length": 8, "symbols": 5},
    "train": {"size": 60},
    "validation": {"size": 6},
    "test": {"size": 25},
}
SCORES = {
    "metrics": ["token_error_rate", "exact_match"],
    "best_metric": "token_error_rate",
    "tokenize": "none",
    "samples": 25,
    "maps": 1,
}
FOUR_POSITIONS = {"preset": "tiny", "hidden_size": 8, "num_attention_heads": 2, "max_position_embeddings": 4}
LOCATION = {"hidden_size": 8, "embedding_size": 8, "score": "location", "max_source_length": 4, "attention": "global"}


def lengths(split):
    rows = load_source("reverse", split, **DATA["options"], **DATA[split])
    return [len(source.split()) + 1 for source in rows["source"]]


@pytest.fixture
def run(recipe_content, tmp_path, capsys):
    def run(**changes):
        changes = {"data": {**DATA, "max_source_length": 4}, "evaluation": SCORES} | changes
        changes = {"training__max_steps": 2, **changes}
        return run_recipe(build_recipe(recipe_content(tmp_path / "run", **changes))), capsys.readouterr().out

    return run


def evaluate(folder, *more):
    options = ["split=test", *(f"{name}={value}" for name, value in (DATA["options"] | DATA["test"]).items())]
    scores = ["--metrics", "token_error_rate,exact_match", "--tokenize", "none"]
    return CliRunner().invoke(app, ["evaluate", str(folder), "reverse", *options, *scores, *more, "--json"])


def test_a_recurrent_model_is_scored_on_all_rows(run, caplog):
    # Untrained at this scale, the model says something else about every source.
    result, printed = run(model__initializer_range=2.0)
    assert [len(source.split()) + 1 for source, _, _ in result.samples] == lengths("test")
    assert max(lengths("test")) > 4
    assert all(target.split() == source.split()[::-1] for source, target, _ in result.samples)
    card = (result.model / "README.md").read_text()
    longer = [length > 4 for length in lengths("train")]
    assert f"{60 - sum(longer)} train, 6 validation, 25 test pairs" in card
    assert "were cut to" not in card + printed
    # What training leaves out is told with its split, its number, and where the first one is.
    (warning,) = [record.getMessage() for record in caplog.records if "such rows are skipped" in record.getMessage()]
    first = longer.index(True)
    source = load_source("reverse", "train", **DATA["options"], **DATA["train"])[first]["source"]
    assert warning.startswith(f"train: row {first} has {lengths('train')[first]} source and ")
    assert f": such rows are skipped, {sum(longer)} of 60, of which it is the first, and begins {source!r}" in warning
    again = json.loads(evaluate(result.model).stdout)
    assert again["pairs"] == 25
    for name in SCORES["metrics"]:
        assert again[name] == result.metrics[name]


@pytest.mark.parametrize(("family", "model"), [("transformer", FOUR_POSITIONS), ("luong", LOCATION)])
def test_what_a_model_has_no_positions_for_is_cut_and_counted(run, family, model):
    bounded = family == "transformer"
    result, printed = run(family=family, model=model | {"initializer_range": 0.5}, generation__max_new_tokens=3)
    sentences = []
    for split in ("validation", "test"):
        of = lengths(split)
        longer = sum(length > 4 for length in of)
        assert 1 < longer < len(of)
        sentences.append(f"{longer} of {len(of)} {split} sources were cut to 4 tokens.")
        if bounded:
            sentences.append(f"{longer} of {len(of)} {split} targets were cut to 4 tokens, for the loss alone.")
    card = (result.model / "README.md").read_text()
    results = card[card.index("## Results") : card.index("## Samples")]
    assert " ".join(sentences) in results
    assert [line for line in printed.splitlines() if "cut to" in line] == [f"warning: {told}" for told in sentences]
    # Samples are what the model has read whole.
    assert [len(source.split()) + 1 for source, _, _ in result.samples] == [n for n in lengths("test") if n <= 4]
    refused = evaluate(result.model)
    assert refused.exit_code == 2
    assert (
        "has positions for 4; split the text, or let truncation=True cut it (--truncate on a command line)"
        in refused.stderr
    )
    again = json.loads(evaluate(result.model, "--truncate").stdout)
    assert again["pairs"] == 25
    for name in SCORES["metrics"]:
        assert again[name] == result.metrics[name]


def test_truncation_that_a_recipe_asks_for_is_of_training(run):
    result, _ = run(data={**DATA, "max_source_length": 3, "max_target_length": 5, "on_too_long": "truncate"})
    card = (result.model / "README.md").read_text()
    assert "were cut" not in card
    assert "60 train, 6 validation, 25 test pairs" in card
    assert json.loads(evaluate(result.model).stdout)["token_error_rate"] == result.metrics["token_error_rate"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data__max_source_length": 4, "data__train": {"size": 9, "max_length": 3}}, "validation: row {} has {} "),
        (
            {
                "family": "transformer",
                "model": FOUR_POSITIONS,
                "data__train": {"size": 9, "max_length": 3},
            },
            "validation: row {} has {} tokens in input_ids, and the model has positions for 4 ({} of 6 rows",
        ),
    ],
)
def test_raise_raises_for_every_split(recipe_content, tmp_path, monkeypatch, changes, message):
    monkeypatch.setattr(run_module, "train", lambda *args: pytest.fail("it went as far as training"))
    content = recipe_content(tmp_path, **({"data": {**DATA, "on_too_long": "raise"}} | changes))
    longer = [length > 4 for length in lengths("validation")]
    first = longer.index(True)
    expected = message.format(first, lengths("validation")[first], sum(longer))
    with pytest.raises(ValueError, match=re.escape(expected)):
        run_recipe(build_recipe(content), Console(quiet=True))
