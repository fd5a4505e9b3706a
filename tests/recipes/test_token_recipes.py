"""Tags of words from recipes: scores worked out by hand from the saved model, cut sentences, and what is refused."""

import json
import random
import re

import pytest
import torch
from rich.console import Console
from transformers import AutoModelForTokenClassification, AutoTokenizer, pipeline
from typer.testing import CliRunner

from hf_attnzoo.cli import app
from hf_attnzoo.evaluation import tagging_metrics
from hf_attnzoo.recipes import build_recipe, run_recipe
from hf_attnzoo.recipes import run as run_module

QUIET = Console(quiet=True)
NAMES = {"Marie": "PER", "Curie": "PER", "Paris": "LOC", "Loire": "LOC"}
KINDS = {"bert": ("wordpiece", 45), "gpt": ("bpe", 275)}
WORDS = ["walked", "walking", "quickly", "to", "and", "rivers"]


def sentence(draw):
    tokens, tags = [], []
    while len(tokens) < 6:
        name = draw.choice([None, *NAMES])
        tokens.append(name or draw.choice(WORDS))
        tags.append(f"B-{NAMES[name]}" if name else "O")
    return {"tokens": tokens, "tags": tags}


@pytest.fixture(scope="module")
def sentences(tmp_path_factory):
    draw, folder = random.Random(0), tmp_path_factory.mktemp("sentences")
    for split, count in (("train", 30), ("validation", 7), ("test", 8)):
        rows = [sentence(draw) for _ in range(count)]
        lines = ["\n".join(map(" ".join, zip(row["tokens"], row["tags"], strict=True))) for row in rows]
        (folder / f"{split}.conll").write_text("\n\n".join(lines))
        (folder / f"{split}.rows").write_text(json.dumps(rows))
    return folder


def recipe(output, source, family="bert", **changes):
    content = {
        "name": "tiny-tags",
        "family": family,
        "task": "token-classification",
        "output": str(output),
        "data": {"source": str(source)},
        "tokenizer": dict(zip(("kind", "vocab_size"), KINDS[family], strict=True)),
        "model": {
            "hidden_size": 8,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "intermediate_size": 8,
            "max_position_embeddings": 64,
            "initializer_range": 0.5,
        },
        "training": {"max_steps": 12, "batch_tokens": 200, "learning_rate": 0.02, "warmup_steps": 1, "eval_steps": 6,
                     "eval_batch_size": 3, "logging_steps": 1},
        "evaluation": {"metrics": ["entity_f1", "accuracy"], "best_metric": "entity_f1", "samples": 3, "maps": 1},
    }  # fmt: skip
    for path, value in changes.items():
        section, _, name = path.partition("__")
        content[section][name] = value
    return build_recipe(content)


def by_hand(model, tokenizer, words, limit=None):
    """The tag at the token that holds the first letter of every word, of those that are read."""
    text, tags = " ".join(words), []
    encoded = tokenizer(text, return_offsets_mapping=True)
    spans = encoded["offset_mapping"][: limit and limit - 1]
    with torch.no_grad():
        ids = torch.tensor([encoded["input_ids"] if limit is None else tokenizer(text, truncation=True).input_ids])
        best = model(input_ids=ids).logits[0].argmax(-1).tolist()
    for number in range(len(words)):
        letter = len(" ".join(words[:number])) + (number > 0)
        places = [place for place, (start, end) in enumerate(spans) if start <= letter < end]
        tags.append(model.config.id2label[best[places[-1]]] if places else "O")
    return tags


@pytest.mark.parametrize("family", ["bert", "gpt"])
def test_words_are_tagged_by_the_saved_model(sentences, tmp_path, family):
    result = run_recipe(recipe(tmp_path / "run", sentences, family), QUIET)
    model = AutoModelForTokenClassification.from_pretrained(result.model).eval()
    tokenizer = AutoTokenizer.from_pretrained(result.model)
    assert list(model.config.id2label.values()) == ["O", "B-LOC", "B-PER"]
    rows = json.loads((sentences / "test.rows").read_text())
    # Words are in pieces, of which the first one counts.
    assert any(len(tokenizer(word, add_special_tokens=False).input_ids) > 1 for word in rows[0]["tokens"])
    given = [by_hand(model, tokenizer, row["tokens"]) for row in rows]
    wanted = [row["tags"] for row in rows]
    right = sum(a == b for ours, theirs in zip(given, wanted, strict=True) for a, b in zip(ours, theirs, strict=True))
    assert result.metrics["accuracy"] == right / 48
    assert result.metrics["accuracy_signature"] == "sentences:8|words:48"
    assert result.metrics["entity_f1"] == tagging_metrics(given, wanted)["entity_f1"]
    assert len({tag for tags in given for tag in tags}) > 1
    cells = [
        (" ".join(row["tokens"]), " ".join(row["tags"]), " ".join(tags)) for row, tags in zip(rows, given, strict=True)
    ]
    assert result.samples == cells[:3]
    saved = json.loads((result.model / "metrics.json").read_text())
    assert saved["intervals"]["accuracy"][0] < right / 48 < saved["intervals"]["accuracy"][1]
    card = (result.model / "README.md").read_text()
    assert "pipeline_tag: token-classification" in card
    assert 'aggregation_strategy="first")' in card
    assert (result.model / "attention.png").is_file()
    if family == "bert":
        # As the card has it: a word is what its first token says.
        found = pipeline("token-classification", model=str(result.model))(cells[0][0], aggregation_strategy="first")
        named = [word for word, tag in zip(rows[0]["tokens"], given[0], strict=True) if tag != "O"]
        assert [word for item in found for word in item["word"].split()] == named


def test_words_that_were_cut_off_are_none(sentences, tmp_path):
    changes = {"data__max_source_length": 8, "data__on_too_long": "truncate", "training__max_steps": 2}
    changes |= {"evaluation__samples": 8, "training__eval_steps": 1}
    result = run_recipe(recipe(tmp_path / "run", sentences, **changes), QUIET)
    model = AutoModelForTokenClassification.from_pretrained(result.model).eval()
    tokenizer = AutoTokenizer.from_pretrained(result.model)
    rows = json.loads((sentences / "test.rows").read_text())
    given = [by_hand(model, tokenizer, row["tokens"], limit=8) for row in rows]
    assert [sample[2] for sample in result.samples] == [" ".join(tags) for tags in given]
    # All words are counted, those too that were cut off.
    assert result.metrics["accuracy_signature"] == "sentences:8|words:48"
    assert any(len(tokenizer(" ".join(row["tokens"])).input_ids) > 8 for row in rows)


def test_sentences_that_training_skips_are_scored_as_far_as_the_model_reads(sentences, tmp_path, caplog):
    changes = {"data__max_source_length": 24, "training__max_steps": 2, "training__eval_steps": 1}
    changes |= {"model__max_position_embeddings": 24, "evaluation__samples": 8}
    result = run_recipe(recipe(tmp_path / "run", sentences, **changes), QUIET)
    model = AutoModelForTokenClassification.from_pretrained(result.model).eval()
    tokenizer = AutoTokenizer.from_pretrained(result.model)
    rows, training = (json.loads((sentences / f"{split}.rows").read_text()) for split in ("test", "train"))
    longer, skipped = (
        sum(len(tokenizer(" ".join(row["tokens"])).input_ids) > 24 for row in some) for some in (rows, training)
    )
    assert 0 < longer < 8
    assert 0 < skipped < 30
    assert f": such rows are skipped, {skipped} of 30, of which it is the first" in caplog.text
    card = (result.model / "README.md").read_text()
    assert f"{longer} of 8 test sentences {'was' if longer == 1 else 'were'} cut to 24 tokens." in card
    assert f"{30 - skipped} train, 7 validation, 8 test sentences" in card
    given = [by_hand(model, tokenizer, row["tokens"], limit=24) for row in rows]
    assert result.metrics["accuracy_signature"] == "sentences:8|words:48"
    pairs = [pair for row, tags in zip(rows, given, strict=True) for pair in zip(row["tags"], tags, strict=True)]
    assert result.metrics["accuracy"] == sum(wanted == tag for wanted, tag in pairs) / 48
    command = ["evaluate", str(result.model), str(sentences), "split=test", "--metrics", "accuracy", "--json"]
    assert json.loads(CliRunner().invoke(app, command).stdout)["accuracy"] == result.metrics["accuracy"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"evaluation__metrics": ["f1"], "evaluation__best_metric": "f1"},
            "evaluation.metrics has 'f1'; those of token",
        ),
        ({"data__on_too_long": "truncate"}, "data.on_too_long=truncate needs data.max_source_length"),
        ({"data__on_too_long": "raise", "data__max_source_length": 4}, "row 0 has "),
        ({"data__stride": 3}, "data.stride=3 means nothing to token classification"),
        (
            {"data__test": {"source": "test.conll"}},
            "the tag 'B-ORG' is none of the training split's, O, B-LOC, B-PER; data.options.tag_names can",
        ),
        ({"data__source": "train.conll"}, "train.conll:2: 1 columns, expected 2 as before"),
        (
            {"data__source": "pos.conll", "data__options": {"shares": [0.8, 0.1, 0.1]}},
            "the tag 'NOUN' marks no entity",
        ),
    ],
)
def test_what_can_not_be_done_is_refused_before_training(sentences, tmp_path, monkeypatch, changes, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "test.conll").write_text("a B-ORG\n")
    (tmp_path / "train.conll").write_text("a O\nb\n")
    (tmp_path / "pos.conll").write_text("".join(f"w{number} NOUN\nis VERB\n\n" for number in range(99)))
    monkeypatch.setattr(run_module, "train", lambda *args: pytest.fail("it went as far as training"))
    with pytest.raises(ValueError, match=re.escape(message)):
        run_recipe(recipe(tmp_path / "run", sentences, **changes), QUIET)


def test_parts_of_speech_have_an_accuracy(tmp_path):
    (tmp_path / "pos.conll").write_text("".join(f"w{number} NOUN\nis VERB\n\n" for number in range(60)))
    changes = {"evaluation__metrics": ["accuracy"], "evaluation__best_metric": "accuracy", "training__max_steps": 1}
    changes |= {"data__options": {"shares": [0.6, 0.2, 0.2]}, "training__eval_steps": 1, "evaluation__maps": 0}
    result = run_recipe(recipe(tmp_path / "run", tmp_path / "pos.conll", **changes), QUIET)
    assert result.samples[0][1] == "NOUN VERB"
