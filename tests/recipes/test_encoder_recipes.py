"""Encoders from recipes: masked words, classes, answers; scores worked out by hand, and what is refused."""

import itertools
import json
import math
import random
import re

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoTokenizer, pipeline
from typer.testing import CliRunner

from hf_attnzoo.cli import app
from hf_attnzoo.data import MaskingCollator, load_questions, masking_blocks
from hf_attnzoo.evaluation.masked import masked_scores
from hf_attnzoo.pipelines.question_answering import question_windows
from hf_attnzoo.recipes import build_recipe, run_recipe
from hf_attnzoo.recipes import run as run_module
from hf_attnzoo.recipes.run import find_family
from hf_attnzoo.recipes.tasks.question_answering import answer_tokens

QUIET = Console(quiet=True)
SMALL = {
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 8,
    "max_position_embeddings": 64,
    "initializer_range": 0.5,
}
TRAINING = {
    "max_steps": 4,
    "batch_tokens": 200,
    "warmup_steps": 1,
    "eval_steps": 2,
    "eval_batch_size": 3,
    "logging_steps": 1,
}
WORDS = ["red", "green", "blue", "house", "houses", "tree", "trees", "walked", "walking", "quickly"]


def sentence(draw, length):
    return " ".join(draw.choice(WORDS) for _ in range(length))


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    draw = random.Random(0)
    file = tmp_path_factory.mktemp("text") / "text.txt"
    file.write_text("\n".join(sentence(draw, 9) for _ in range(60)))
    return file


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """A folder of labelled texts; the class is whether `red` stands first."""
    draw, folder = random.Random(0), tmp_path_factory.mktemp("texts")
    for split, count in (("train", 40), ("validation", 8), ("test", 11)):
        rows = [{"text": f"{word} {sentence(draw, 4)}", "label": int(word == "red")} for word in ("red", "blue")]
        rows += [{"text": f"{word} {sentence(draw, 5)}", "label": int(word == "red")} for word in WORDS * count]
        lines = [json.dumps(row) for row in rows[:count]]
        (folder / f"{split}.jsonl").write_text("\n".join(lines))
    return folder


@pytest.fixture(scope="module")
def questions(tmp_path_factory):
    """SQuAD's format: four articles a split, each with a text of 40 words and two questions, one accepted twice."""
    draw, folder = random.Random(0), tmp_path_factory.mktemp("questions")
    for split in ("train", "validation", "test"):
        articles = []
        for number in range(4):
            context = sentence(draw, 40)
            qas = []
            for place in (60, 5):
                start = context.index(" ", place) + 1
                answer = context[start : context.index(" ", start + 1)]
                given = [{"text": answer, "answer_start": start}] * (2 if place == 5 else 1)
                qas.append({"id": f"{split}-{number}-{place}", "question": "which one walked", "answers": given})
            articles.append({"title": f"{split} {number}", "paragraphs": [{"context": context, "qas": qas}]})
        (folder / f"{split}.json").write_text(json.dumps({"version": "1.1", "data": articles}))
    return folder


def recipe(output, task, source, metrics, **changes):
    content = {
        "name": f"tiny-{task}",
        "family": "bert",
        "task": task,
        "output": str(output),
        "data": {"source": str(source)},
        "tokenizer": {"kind": "wordpiece", "vocab_size": 60},
        "model": dict(SMALL),
        "training": dict(TRAINING),
        "evaluation": {"metrics": metrics, "best_metric": metrics[0], "samples": 3, "maps": 2},
    }
    for path, value in changes.items():
        *sections, name = path.split("__")
        place = content
        for section in sections:
            place = place.setdefault(section, {})
        place[name] = value
    return build_recipe(content)


def masked(output, text, **changes):
    changes = {"data__block_size": 12, "data__options": {"shares": [0.8, 0.1, 0.1]}, **changes}
    return recipe(output, "masked-lm", text, ["cross_entropy", "perplexity", "masked_accuracy"], **changes)


def classes(output, texts, **changes):
    changes = {"data__options": {"label_names": ["other", "red"]}, **changes}
    return recipe(output, "text-classification", texts, ["accuracy", "f1", "mcc"], **changes)


def answers(output, questions, **changes):
    changes = {"data__max_source_length": 30, "data__stride": 6, **changes}
    return recipe(output, "question-answering", questions, ["f1", "exact_match"], **changes)


def test_masked_words_are_scored_on_masks_that_stay(text, tmp_path):
    masking = {"unit": "word", "probability": 0.3}
    result = run_recipe(masked(tmp_path / "run", text, seed=3, masking=masking), QUIET)
    model = AutoModelForMaskedLM.from_pretrained(result.model).eval()
    tokenizer = AutoTokenizer.from_pretrained(result.model)
    assert tokenizer.model_max_length == 12
    whole = text.read_text()
    test = whole[int(len(whole) * 0.9) :]
    # The seed of the run moves no mask of the test
    collator = MaskingCollator(tokenizer, **masking, seed=0)
    ids = tokenizer(test, add_special_tokens=False)["input_ids"]
    loss, right, count = 0.0, 0, 0
    blocks = masking_blocks({"text": [test]}, tokenizer, 12)
    assert [token for block in blocks["input_ids"] for token in block[1:-1]] == ids
    for block in blocks:
        batch = collator([block])
        with torch.no_grad():
            log_probs = model(input_ids=batch["input_ids"]).logits[0].log_softmax(-1)
        for place in (batch["labels"][0] != -100).nonzero()[:, 0].tolist():
            word = batch["labels"][0, place]
            loss -= log_probs[place, word].item()
            right += int(log_probs[place].argmax() == word)
            count += 1
    assert result.metrics["cross_entropy"] == pytest.approx(loss / count, rel=1e-4)
    assert result.metrics["perplexity"] == pytest.approx(math.exp(loss / count), rel=1e-3)
    assert result.metrics["masked_accuracy"] == pytest.approx(right / count)
    signature = f"unit:word|share:0.3|masks:seed 0|tokens:{count}"
    assert result.metrics["masked_accuracy_signature"] == signature
    fill = pipeline("fill-mask", model=str(result.model))
    for shown, word, output in result.samples:
        assert shown.count("<mask>") == 1
        assert word in WORDS
        assert fill(shown)[0]["token_str"] == output
    assert (result.model / "attention.png").is_file()
    assert "pipeline_tag: fill-mask" in (result.model / "README.md").read_text()


def test_lines_are_texts_where_there_are_no_blocks(text, tmp_path):
    changes = {"data__block_size": None, "data__max_source_length": 50}
    result = run_recipe(masked(tmp_path / "run", text, **changes, training__max_steps=1), QUIET)
    lines = text.read_text().splitlines()
    # The shares cut lines 49 and 55 in two.
    rows = {"train": 0.8, "validation": 0.1, "test": 0.1}
    whole = text.read_text()
    cuts = [0, int(len(whole) * 0.8), int(len(whole) * 0.9), len(whole)]
    counts = [len(whole[a:b].strip().splitlines()) for a, b in itertools.pairwise(cuts)]
    assert len(lines) == 60
    told = ", ".join(f"{count} {split}" for count, split in zip(counts, rows, strict=True))
    assert f"{told} texts" in (result.model / "README.md").read_text()


class Killed(BaseException):
    """Like a KeyboardInterrupt, but nobody else's."""


def test_a_killed_run_goes_on_with_the_masks_it_would_have_had(text, tmp_path, monkeypatch):
    # Several epochs of a few batches, and dropout, so that a wrong epoch or a wrong generator shows
    changes = {
        "training__max_steps": 9,
        "training__eval_steps": 3,
        "model__dropout": 0.2,
        "training__batch_tokens": 250,
    }
    whole = run_recipe(masked(tmp_path / "whole", text, **changes), QUIET)
    step = run_module.ZooTrainer.training_step
    kill_at = [8]

    def killed(trainer, *args, **kwargs):
        if trainer.state.global_step + 1 == kill_at[0]:
            raise Killed
        return step(trainer, *args, **kwargs)

    monkeypatch.setattr(run_module.ZooTrainer, "training_step", killed)
    with pytest.raises(Killed):
        run_recipe(masked(tmp_path / "run", text, **changes), QUIET)
    kill_at[0] = None
    again = run_recipe(masked(tmp_path / "run", text, **changes), QUIET)
    expected, weights = (load_file(result.model / "model.safetensors") for result in (whole, again))
    assert [name for name in expected if not expected[name].equal(weights[name])] == []


def test_masked_scores_by_hand():
    # Two words, the second e times as likely: ln(1 + e) and ln(1 + e) - 1
    logits = torch.tensor([0.0, 1.0]).expand(2, 3, 2)
    labels = torch.tensor([[0, 1, -100], [-100, -100, 1]])
    low, high = math.log(1 + math.e), math.log(1 + math.e) - 1
    expected = torch.tensor([[low + high, 1.0, 2.0], [high, 1.0, 1.0]])
    torch.testing.assert_close(masked_scores(logits, labels), expected)
    torch.testing.assert_close(masked_scores((logits, None), labels), expected)


@pytest.mark.parametrize("family", ["bert", "gpt"])
def test_classes_are_told_by_the_saved_model(texts, tmp_path, family):
    changes = {} if family == "bert" else {"tokenizer__kind": "word", "model__intermediate_size": 16}
    made = classes(tmp_path / "run", texts, family=family, evaluation__metrics=["accuracy", "f1"], **changes)
    result = run_recipe(made, QUIET)
    model = AutoModelForSequenceClassification.from_pretrained(result.model)
    assert model.config.id2label == {0: "other", 1: "red"}
    rows = [json.loads(line) for line in (texts / "test.jsonl").read_text().splitlines()]
    wanted = ["red" if row["label"] else "other" for row in rows]
    given = [answer["label"] for answer in pipeline("text-classification", model=str(result.model))(
        [row["text"] for row in rows])]  # fmt: skip
    right = sum(ours == theirs for ours, theirs in zip(given, wanted, strict=True))
    assert result.metrics["accuracy"] == right / 11
    assert result.samples == [(row["text"], *pair) for row, *pair in zip(rows, wanted, given, strict=True)][:3]
    saved = json.loads((result.model / "metrics.json").read_text())
    low, high = saved["intervals"]["accuracy"]
    assert low <= right / 11 <= high
    hits = {name: sum(a == b == name for a, b in zip(given, wanted, strict=True)) for name in ("other", "red")}
    halves = [2 * hits[name] / (given.count(name) + wanted.count(name)) for name in hits]
    assert result.metrics["f1"] == pytest.approx(sum(halves) / 2)
    low, high = saved["intervals"]["f1"]
    assert low <= result.metrics["f1"] <= high
    assert (result.model / "attention.png").is_file()
    assert saved["metrics"]["accuracy_signature"] == f"rows:11|classes:{len({*given, *wanted})}"


def test_a_pretrained_encoder_gets_a_head(text, texts, tmp_path, capsys):
    start = run_recipe(masked(tmp_path / "start", text, training__max_steps=1), QUIET).model
    changes = {"pretrained": {"model": str(start)}, "model": {}, "training__learning_rate": 0.0}
    result = run_recipe(classes(tmp_path / "run", texts, **changes), Console(width=300))
    printed = capsys.readouterr().out
    assert "  new: classifier.bias, classifier.weight, model.pooler.dense.bias, model.pooler.dense.weight" in printed
    assert "  left aside: lm_head.bias, transform.dense.bias" in printed
    before, after = (load_file(folder / "model.safetensors") for folder in (start, result.model))
    kept = [name for name in after if name.startswith("model.") and "pooler" not in name]
    assert len(kept) > 20
    assert all(after[name].equal(before[name]) for name in kept)
    # Its classes have the numbers that they had; with others, its head starts anew.
    changes |= {"pretrained": {"model": str(result.model)}, "training__max_steps": 1, "training__eval_steps": 1}
    changes |= {"evaluation__samples": 0}
    names = [["other", "red"], ["red", "other"], ["not", "red"]]
    heads = []
    for order in names:
        changes["data__options"] = {"label_names": order}
        again = run_recipe(classes(tmp_path / "again", texts, **changes), QUIET).model
        heads.append(load_file(again / "model.safetensors")["classifier.weight"].equal(after["classifier.weight"]))
        config = AutoModelForSequenceClassification.from_pretrained(again).config
        assert list(config.id2label.values()) == (order if order == names[2] else names[0])
    assert heads == [True, True, False]


def test_answers_are_found_as_the_pipeline_finds_them(questions, tmp_path):
    result = run_recipe(answers(tmp_path / "run", questions), QUIET)
    rows = load_questions(questions / "test.json")
    assert len(rows) == 8
    ask = pipeline("attnzoo-question-answering", model=str(result.model))
    found = [
        ask(question=row["question"], context=row["context"], max_seq_len=30, doc_stride=6)["answer"] for row in rows
    ]
    right = sum(answer in row["answers"] for answer, row in zip(found, rows, strict=True))
    assert result.metrics["exact_match"] == right / 8
    overlaps = []
    for answer, row in zip(found, rows, strict=True):
        words, (wanted,) = answer.split(), row["answers"][0].split()
        overlaps.append(2 * (wanted in words) / (len(words) + 1))
    assert result.metrics["f1"] == pytest.approx(np.mean(overlaps))
    assert result.metrics["f1_signature"] == "questions:8|nrefs:var|norm:squad"
    assert [sample[2] for sample in result.samples] == found[:3]
    card = (result.model / "README.md").read_text()
    assert "8 train, 8 validation, 8 test questions" in card
    assert "max_seq_len=30, doc_stride=6)" in card
    assert (result.model / "attention.png").is_file()


def test_an_answer_is_found_among_the_tokens_of_every_window(questions, tmp_path):
    row = load_questions(questions / "test.json")[0]
    (tmp_path / "text.txt").write_text(row["context"])
    made = answers(tmp_path / "run", questions)
    from hf_attnzoo.recipes.tasks.question_answering import QuestionAnsweringTask

    tokenizer = QuestionAnsweringTask(made).build_processor(
        {"question": [row["question"]], "context": [row["context"]]}
    )
    start, answer = row["starts"][0], row["answers"][0]
    encoded, windows = question_windows(tokenizer, row["question"], row["context"], 16, 4)
    assert len(windows) > 3
    inside = 0
    for ids, tokens in zip(encoded["input_ids"], windows, strict=True):
        first, last = answer_tokens(tokens, [start], [answer])
        spans = [place for place, _ in tokens if place is not None]
        if spans[0][0] <= start and spans[-1][1] >= start + len(answer):
            inside += 1
            assert tokenizer.decode(ids[first : last + 1]) == answer
        else:
            assert (first, last) == (0, 0)
    assert inside
    assert answer_tokens(windows[0], [], []) == (0, 0)


def test_texts_that_training_skips_are_scored_as_far_as_the_model_reads(texts, tmp_path):
    changes = {"data__max_source_length": 11, "model__max_position_embeddings": 11, "training__max_steps": 1}
    result = run_recipe(classes(tmp_path / "run", texts, **changes), QUIET)
    tokenizer = AutoTokenizer.from_pretrained(result.model)
    counts = {}
    for split in ("train", "validation", "test"):
        rows = [json.loads(line)["text"] for line in (texts / f"{split}.jsonl").read_text().splitlines()]
        counts[split] = sum(len(tokenizer(row).input_ids) > 11 for row in rows)
    assert 0 < counts["test"] < 11
    assert 0 < counts["train"] < 40
    card = (result.model / "README.md").read_text()
    assert f"{counts['test']} of 11 test texts were cut to 11 tokens." in card
    assert f"{40 - counts['train']} train, 8 validation, 11 test texts" in card
    command = ["evaluate", str(result.model), str(texts), "split=test", "--metrics", "accuracy", "--json"]
    again = json.loads(CliRunner().invoke(app, command).stdout)
    assert again["texts"] == 11
    assert again["accuracy"] == result.metrics["accuracy"]
    # A whole text stands in the card's example.
    example = re.search(r'classify\("(.*)"\)', card)[1]
    assert len(tokenizer(example).input_ids) <= 11


def test_questions_without_an_answer_have_none(questions, tmp_path):
    content = json.loads((questions / "train.json").read_text())
    for article in content["data"]:
        article["paragraphs"][0]["qas"][0] |= {"is_impossible": True, "answers": []}
    for split in ("train", "validation", "test"):
        (tmp_path / f"{split}.json").write_text(json.dumps(content))
    result = run_recipe(answers(tmp_path / "run", tmp_path, training__max_steps=2), QUIET)
    assert "handle_impossible_answer=True)" in (result.model / "README.md").read_text()
    assert ("which one walked", "") in {sample[:2] for sample in result.samples}


@pytest.mark.parametrize(
    ("make", "changes", "message"),
    [
        (masked, {"data__block_size": None}, "data.block_size=None and data.max_source_length=None: set the one"),
        (masked, {"data__max_source_length": 9}, "data.block_size=12 and data.max_source_length=9: set the one"),
        (masked, {"generation__num_beams": 2}, "generation.num_beams means nothing to masked language modeling"),
        (masked, {"evaluation__lowercase": True}, "evaluation.lowercase=True means nothing"),
        (masked, {"data__stride": 4}, "data.stride=4 means nothing to masked language modeling"),
        (masked, {"masking": {"unit": "page"}}, "unit='page' is none of"),
        (masked, {"data__block_size": 70}, "64"),
        (masked, {"tokenizer__shared": True}, "tokenizer.shared=True is for pairs of texts"),
        (masked, {"tokenizer__kind": "word"}, "tokenizer has no"),
        (classes, {"masking": {"unit": "word"}}, "masking.unit=word means nothing to text classification"),
        (classes, {"data__block_size": 9}, "data.block_size=9 means nothing to text classification"),
        (classes, {"data__on_too_long": "truncate"}, "data.on_too_long=truncate needs data.max_source_length"),
        (classes, {"data__max_source_length": 3, "data__on_too_long": "raise"}, "data.max_source_length=3"),
        (classes, {"data__options": {"label_names": ["a"]}}, "the label is 1, but label_names has a"),
        (answers, {"data__on_too_long": "raise"}, "data.on_too_long=raise means nothing to question answering"),
        (answers, {"data__stride": 40}, "doc_stride=40 need more than that"),
        (answers, {"data__max_source_length": 90}, "64"),
    ],
)
def test_what_can_not_be_done_is_refused_before_training(request, tmp_path, monkeypatch, make, changes, message):
    data = request.getfixturevalue({masked: "text", classes: "texts", answers: "questions"}[make])
    monkeypatch.setattr(run_module, "train", lambda *args: pytest.fail("it went as far as training"))
    with pytest.raises(ValueError, match=re.escape(message)):
        run_recipe(make(tmp_path / "run", data, **changes), QUIET)


@pytest.mark.parametrize("metric", ["bleu", "bits_per_character"])
def test_scores_of_others_are_refused(text, tmp_path, metric):
    made = masked(tmp_path, text, evaluation__metrics=[metric], evaluation__best_metric=metric)
    with pytest.raises(ValueError, match=f"evaluation.metrics has '{metric}'; those of masked language modeling are"):
        run_recipe(made, QUIET)


def test_a_family_without_the_head_is_refused(tmp_path, text):
    with pytest.raises(ValueError, match="task='masked-lm' needs a head that family='gpt' has not"):
        find_family(masked(tmp_path, text, family="gpt"))
    with pytest.raises(ValueError, match=re.escape("did you mean 'question-answering'?")):
        find_family(recipe(tmp_path, "question-answer", text, ["f1"]))
