"""`attnzoo evaluate` of models that say something of a text: against their pipelines, and counted by hand."""

import json
import random

import numpy as np
import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer, pipeline
from typer.testing import CliRunner

import hf_attnzoo
from hf_attnzoo import train_tokenizer
from hf_attnzoo.cli import app
from hf_attnzoo.data import MaskingCollator
from hf_attnzoo.evaluation import plot_confusion, squad_metrics, tagging_metrics

WORDS = ["red", "green", "blue", "house", "tree", "walked"]
SIZES = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
LABELS = {
    "SequenceClassification": ["bad", "fair", "good"],
    "TokenClassification": ["O", "B-X", "I-X"],
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Models with random weights, two of each kind, and data for them."""
    folder, draw = tmp_path_factory.mktemp("encoders"), random.Random(0)
    texts = [" ".join(draw.choice(WORDS) for _ in range(3 + number % 4)) for number in range(24)]
    tokenizer = train_tokenizer("wordpiece", texts, vocab_size=35)
    tokenizer.model_max_length = 40
    for seed, name in enumerate(["one", "other"]):
        for head in ("SequenceClassification", "TokenClassification", "QuestionAnswering", "MaskedLM"):
            labels = {"id2label": dict(enumerate(LABELS[head]))} if head in LABELS else {}
            config = hf_attnzoo.BERTConfig(
                vocab_size=len(tokenizer), max_position_embeddings=40, initializer_range=1.0, **SIZES, **labels
            )
            torch.manual_seed(seed)
            model = getattr(hf_attnzoo, f"BERTFor{head}")(config)
            model.save_pretrained(folder / name / head)
            tokenizer.save_pretrained(folder / name / head)
    classes = [{"text": text, "label": number % 3} for number, text in enumerate(texts)]
    tagged = [{"tokens": text.split(), "tags": [draw.choice(["O", "B-X"]) for _ in text.split()]} for text in texts]
    asked = [
        {
            "question": "red",
            "context": text,
            "answers": {"text": [text.split()[1]], "answer_start": [text.index(" ") + 1]},
        }
        for text in texts
    ]
    for name, rows in (("classes", classes), ("tagged", tagged), ("asked", asked)):
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "text.txt").write_text(" ".join(texts))
    return folder


@pytest.fixture
def call(place, monkeypatch):
    monkeypatch.chdir(place)

    def call(*arguments, fails=False):
        result = CliRunner().invoke(app, ["evaluate", *map(str, arguments)])
        assert result.exit_code == (2 if fails else 0), result.output
        return result.stderr if fails else result.stdout

    return call


def rows_of(place, name):
    return [json.loads(line) for line in (place / f"{name}.jsonl").read_text().splitlines()]


def answers_of(place, head, task, inputs, **options):
    return [pipeline(task, model=str(place / name / head))(inputs, **options) for name in ("one", "other")]


def test_classes(place, call, tmp_path):
    models = [f"{name}/SequenceClassification" for name in ("one", "other")]
    options = ["--against", models[1], "--worst", 2, "-o", tmp_path / "out.txt", "--picture", tmp_path / "map.svg"]
    report = json.loads(call(models[0], "classes.jsonl", *options, "--json"))
    rows = rows_of(place, "classes")
    # Numbers in the data are those of the model's classes.
    wanted = [LABELS["SequenceClassification"][row["label"]] for row in rows]
    texts = [row["text"] for row in rows]
    shares = answers_of(place, "SequenceClassification", "text-classification", texts, top_k=None)
    given = [[max(scores, key=lambda item: item["score"])["label"] for scores in one] for one in shares]
    right = [sum(a == b for a, b in zip(one, wanted, strict=True)) / 24 for one in given]
    assert report["texts"] == 24
    assert (report["accuracy"], report["against"]["accuracy"]) == tuple(right)
    assert report["against"]["comparison"]["accuracy"]["difference"] == pytest.approx(right[0] - right[1])
    scores = []
    for name in LABELS["SequenceClassification"]:
        hits = sum(a == b == name for a, b in zip(given[0], wanted, strict=True))
        scores += [2 * hits / (given[0].count(name) + wanted.count(name))]
    assert report["f1"] == pytest.approx(np.mean(scores))
    low, high = report["intervals"]["f1"]
    assert low <= report["f1"] <= high
    assert low < high
    assert (tmp_path / "out.txt").read_text().splitlines() == given[0]
    assert "<svg" in (tmp_path / "map.svg").read_text()
    goodness = [
        {item["label"]: item["score"] for item in row}[label] for row, label in zip(shares[0], wanted, strict=True)
    ]
    worst = int(np.argmin(goodness))
    assert report["worst"][0] == {
        "row": worst,
        "probability of the right class": pytest.approx(goodness[worst]),
        "text": texts[worst],
        "class": wanted[worst],
        "output": given[0][worst],
    }
    assert sum(map(sum, report["confusion"]["counts"])) == 24
    # A file of answers is as good as the model that gave them.
    names = ["label_names=[bad,fair,good]", "--metrics", "accuracy", "--json"]
    again = json.loads(call(tmp_path / "out.txt", "classes.jsonl", *names, "--against", models[0]))
    assert again["accuracy"] == again["against"]["accuracy"] == right[0]
    assert again["against"]["comparison"]["accuracy"]["p_randomization"] == 1
    assert "probability of the right class" in call(models[0], "classes.jsonl", "--worst", 1)


def test_tags(place, call, tmp_path):
    model = "one/TokenClassification"
    report = json.loads(call(model, "tagged.jsonl", "--worst", 1, "-o", tmp_path / "out.txt", "--json"))
    rows, given = rows_of(place, "tagged"), []
    tokenizer = AutoTokenizer.from_pretrained(place / model)
    tag = pipeline("token-classification", model=str(place / model))
    for row in rows:
        found, tags, letter = tag(" ".join(row["tokens"]), ignore_labels=[]), [], 0
        for word in row["tokens"]:
            tags += [item["entity"] for item in found if item["start"] == letter]
            letter += len(word) + 1
        given.append(tags)
    # The tag of a word in pieces is that of the first.
    assert len(tokenizer.tokenize("walked")) > 1
    wanted = [row["tags"] for row in rows]
    scores = tagging_metrics(given, wanted)
    assert {name: report[name] for name in scores} == scores
    assert [line.split() for line in (tmp_path / "out.txt").read_text().splitlines()] == given
    assert set(report["intervals"]) == {"accuracy", "entity_f1", "entity_precision", "entity_recall"}
    assert report["worst"][0]["sentence"] == " ".join(rows[report["worst"][0]["row"]]["tokens"])
    against = json.loads(call(model, "tagged.jsonl", "--against", tmp_path / "out.txt", "--json"))
    assert against["against"]["comparison"]["entity_f1"]["difference"] == 0


def test_answers(place, call):
    models = [f"{name}/QuestionAnswering" for name in ("one", "other")]
    report = json.loads(call(models[0], "asked.jsonl", "--against", models[1], "--worst", 24, "--json"))
    rows = rows_of(place, "asked")
    inputs = [{"question": row["question"], "context": row["context"]} for row in rows]
    accepted = [row["answers"]["text"] for row in rows]
    given = [
        [answer["answer"] for answer in answers]
        for answers in answers_of(place, "QuestionAnswering", "attnzoo-question-answering", inputs)
    ]
    for one, scores in zip(given, (report, report["against"]), strict=True):
        expected = squad_metrics(one, accepted)
        assert {name: scores[name] for name in expected} == expected
    assert sorted(item["f1"] for item in report["worst"]) == [item["f1"] for item in report["worst"]]
    assert np.mean([item["f1"] for item in report["worst"]]) == pytest.approx(report["f1"])


def test_files_of_classes_tags_and_answers(call, tmp_path):
    def score(outputs, right, metrics, *options):
        (tmp_path / "out.txt").write_text(outputs)
        (tmp_path / "right.txt").write_text(right)
        arguments = [tmp_path / "out.txt", tmp_path / "right.txt", "--metrics", metrics, "--json", *options]
        return json.loads(call(*arguments))

    report = score("a\nb\na\nc\n", "a\nb\nb\nc\n", "accuracy,f1,mcc", "--worst", 1)
    # F1 of a and of b is 2/3, of c 1. MCC: (3 * 4 - 2 * 1 - 1 * 2 - 1 * 1) / sqrt((16 - 6) * (16 - 6))
    assert (report["texts"], report["accuracy"]) == (4, 0.75)
    assert (report["f1"], report["mcc"]) == (pytest.approx(7 / 9), pytest.approx(0.7))
    assert report["confusion"] == {"classes": ["a", "b", "c"], "counts": [[1, 0, 0], [1, 1, 0], [0, 0, 1]]}
    assert report["worst"] == [
        {"row": 2, "probability of the right class": 0, "text": "", "class": "b", "output": "a"}
    ]
    (tmp_path / "rows.tsv").write_text("text\tlabel\nx\ta\ny\tb\nz\tb\nw\tc\n")
    table = json.loads(call(tmp_path / "out.txt", tmp_path / "rows.tsv", "--metrics", "mcc", "--json"))
    assert table["mcc"] == report["mcc"]
    # Of three entities that are wanted one is found, and another one is none
    report = score("B-X I-X O\nO B-Y\n", "B-X I-X B-X\nB-Y O\n", "accuracy,entity_f1")
    assert (report["accuracy"], report["entity_f1"]) == (2 / 5, pytest.approx(2 / 5))
    report = score("the red house\n\ntree\n", "red house\n\ngreen tree\n", "exact_match,f1")
    # Of what, if it isn't said
    arguments = (tmp_path / "out.txt", tmp_path / "right.txt", "--metrics")
    assert "f1 fits files for text-classification and for question-answering" in call(*arguments, "f1", fails=True)
    # SQuAD's scores leave articles out; no answer is right where there is none
    assert (report["exact_match"], report["f1"]) == (pytest.approx(2 / 3), pytest.approx((1 + 1 + 2 / 3) / 3))


def test_masked_words(place, call):
    models = [f"{name}/MaskedLM" for name in ("one", "other")]
    options = ["split=null", "--block-size", 12, "--masking", "unit=word", "--masking", "probability=0.3", "--json"]
    report = json.loads(call(models[0], "text.txt", *options, "--against", models[1]))
    tokenizer = AutoTokenizer.from_pretrained(place / models[0])
    collator = MaskingCollator(tokenizer, unit="word", probability=0.3, seed=0)
    ids = tokenizer((place / "text.txt").read_text(), add_special_tokens=False)
    words = ids.word_ids(0)
    for name, scores in zip(models, (report, report["against"]), strict=True):
        model, losses, right = AutoModelForMaskedLM.from_pretrained(place / name).eval(), [], []
        for start in range(0, len(words), 10):
            part = slice(start, start + 10)
            row = {
                "input_ids": [tokenizer.cls_token_id, *ids["input_ids"][part], tokenizer.sep_token_id],
                "word_ids": [-1, *words[part], -1],
            }
            batch = collator([row])
            with torch.no_grad():
                log_probs = model(input_ids=batch["input_ids"]).logits[0].log_softmax(-1)
            for place_, word in enumerate(batch["labels"][0].tolist()):
                if word != -100:
                    losses.append(-log_probs[place_, word].item())
                    right.append(int(log_probs[place_].argmax() == word))
        assert report["tokens"] == len(losses)
        assert scores["cross_entropy"] == pytest.approx(np.mean(losses), rel=1e-4)
        assert scores["perplexity"] == pytest.approx(np.exp(np.mean(losses)), rel=1e-3)
        assert scores["masked_accuracy"] == pytest.approx(np.mean(right))
    assert report["masked_accuracy_signature"] == f"unit:word|share:0.3|masks:seed 0|block:12|tokens:{len(losses)}"
    assert set(report["against"]["comparison"]) == {"cross_entropy", "perplexity", "masked_accuracy"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["one/SequenceClassification", "classes.jsonl", "--beams", "2"], "--beams is for models that write a text"),
        (["one/SequenceClassification", "classes.jsonl", "--metrics", "bleu"], "the scores of texts are accuracy, f1"),
        (
            ["one/SequenceClassification", "classes.jsonl", "label_names=[a,b,c]"],
            "row 0 of the data has the label 'a'",
        ),
        (["one/SequenceClassification", "classes.jsonl", "colum=a"], "has no option 'colum'"),
        (["one/SequenceClassification", "classes.jsonl", "--masking", "unit=word"], "is for masked language models"),
        (["one/SequenceClassification", "classes.jsonl", "--against", "text.txt"], "found 1 line and 24 rows of data"),
        (["one/SequenceClassification", "classes.jsonl", "--against", "one/MaskedLM"], "for different things"),
        (["one/TokenClassification", "tagged.jsonl", "--picture", "a.png"], "--picture is for models that write"),
        (["one/TokenClassification", "tagged.jsonl", "--block-size", "9"], "--block-size 9 is for language models"),
        (["one/MaskedLM", "text.txt", "--worst", "2"], "--worst is for models that write a text"),
        (["one/MaskedLM", "text.txt", "--masking", "units=word"], "--masking units=word: there are unit"),
        (["one/MaskedLM", "text.txt", "--metrics", "f1"], "those of masked words are cross_entropy"),
        (["one/MaskedLM", "text.txt", "--against", "text.txt"], "text.txt is a file, and masked words are guessed"),
    ],
)
def test_what_makes_no_sense_is_refused(call, arguments, message):
    assert message in call(*arguments, fails=True)


def test_a_picture_needs_a_row_for_each_class():
    with pytest.raises(ValueError, match=r"counts has the shape \(1, 2\), and there are 2 classes"):
        plot_confusion(["a", "b"], [[1, 2]])
    axes = plot_confusion(["a", "b"], [[3, 1], [0, 0]]).axes[0]
    assert [text.get_text() for text in axes.texts] == ["3", "1", "0", "0"]
    assert axes.images[0].get_array().tolist() == [[0.75, 0.25], [0, 0]]
