"""`evaluate` modules: the same values as the plain functions, no network, nothing left on disk."""

import os
import subprocess
import sys

import evaluate
import pytest

from hf_attnzoo.evaluation import load_metric
from hf_attnzoo.evaluation.modules import METRICS

# 1 of 2 exact; 1 edit to 9 tokens; unigrams 8/9, bigrams 6/7, trigrams 4/5, 4-grams 2/3
PREDICTIONS, REFERENCES = ["a b c d e", "w x y z"], ["a b c d f", "w x y z"]
EXPECTED = {
    "exact_match": 0.5,
    "token_error_rate": 1 / 9,
    "token_accuracy": 8 / 9,
    "bleu": 100 * (8 / 9 * 6 / 7 * 4 / 5 * 2 / 3) ** 0.25,
}


@pytest.mark.parametrize("name", EXPECTED)
def test_value_and_signature(name):
    metric = load_metric(name)
    assert isinstance(metric, evaluate.Metric)
    assert metric.name == name
    result = metric.compute(predictions=PREDICTIONS, references=REFERENCES)
    assert result[name] == pytest.approx(EXPECTED[name])
    assert list(result) == [name, f"{name}_signature"]
    assert "case:mixed" in result[f"{name}_signature"]
    # The same module again, in parts, with a list of references each
    metric.add(prediction=PREDICTIONS[0], reference=[REFERENCES[0]])
    metric.add_batch(predictions=PREDICTIONS[1:], references=[[REFERENCES[1]]])
    assert metric.compute() == result


def test_options_and_several_references():
    result = load_metric("bleu").compute(
        predictions=["A B C D"], references=[["x", "a b c d"]], lowercase=True, tokenize="none"
    )
    assert result["bleu"] == pytest.approx(100)
    assert result["bleu_signature"].startswith("nrefs:2|case:lc|eff:no|tok:none|")
    assert load_metric("chrf").compute(predictions=["ab"], references=["ac"])["chrf"] == pytest.approx(25)


def test_more_modules_of_texts():
    # Of tercom's words: the last of four moves to the front, one shift; 2 more words are wrong. Of ten letters one
    ter = load_metric("ter").compute(predictions=["d a b c", "x y"], references=["a b c d", "v w"])
    assert ter["ter"] == pytest.approx(100 * 3 / 6)
    for name, rate in (("word_error_rate", 1 / 2), ("phoneme_error_rate", 1 / 2), ("character_error_rate", 1 / 10)):
        result = load_metric(name).compute(predictions=["abcd efghx"], references=["abcd efghi"])
        assert result == {name: rate, f"{name}_signature": result[f"{name}_signature"]}
    with pytest.raises(ValueError, match="sources"):
        load_metric("gleu").compute(predictions=["a"], references=["a"])
    gleu = load_metric("gleu").compute(predictions=["a b c d"], references=[["a b c d"]], sources=["a b c e"])
    assert gleu == {"gleu": pytest.approx(100), "gleu_signature": "nrefs:1|case:mixed|tok:none"}


def test_answers():
    # Articles and case don't count; 2 words of 3 and 2 of 2 are the same; no answer is right where there is none
    answers, accepted = ["The Cat", "big black cat", ""], [["cat"], ["dog", "black cat"], []]
    assert load_metric("squad_exact_match").compute(predictions=answers, references=accepted) == {
        "squad_exact_match": pytest.approx(2 / 3),
        "squad_exact_match_signature": "questions:3|nrefs:var|norm:squad",
    }
    result = load_metric("squad_f1").compute(predictions=answers, references=accepted)
    assert result["squad_f1"] == pytest.approx((1 + 4 / 5 + 1) / 3)


def test_classes():
    # As numbers and as names. 3 of 4 right; F1 of the classes 2/3 and 4/5; (2 - 0) / sqrt(2 * 3 * 1 * 2) is the MCC
    for classes in ((0, 1), ("no", "yes")):
        predictions, references = [[classes[place] for place in row] for row in ((0, 1, 1, 1), (0, 1, 1, 0))]
        expected = {"accuracy": 3 / 4, "f1": (2 / 3 + 4 / 5) / 2, "mcc": 2 / 12**0.5}
        for name, value in expected.items():
            result = load_metric(name).compute(predictions=predictions, references=references)
            assert result[name] == pytest.approx(value)
            assert result[f"{name}_signature"].startswith("rows:4|classes:2")
        binary = {"average": "binary", "positive": classes[1]}
        result = load_metric("f1").compute(predictions=predictions, references=references, **binary)
        assert result["f1"] == pytest.approx(4 / 5)


def test_entities():
    # Wanted are PER, LOC and a MISC of two words; given are the PER, an ORG, and of the MISC the first word alone. An
    # `I-` after `O` begins an entity, as in the script of CoNLL-2000
    predictions = [["B-PER", "I-PER", "O", "B-ORG"], ["I-MISC", "O"], ["O"]]
    references = [["I-PER", "I-PER", "O", "B-LOC"], ["B-MISC", "I-MISC"], ["O"]]
    metric = load_metric("entity_f1")
    result = metric.compute(predictions=predictions, references=references)
    assert {name: value for name, value in result.items() if not name.endswith("_signature")} == {
        "entity_f1": pytest.approx(1 / 3),
        "entity_precision": pytest.approx(1 / 3),
        "entity_recall": pytest.approx(1 / 3),
    }
    assert result["entity_f1_signature"] == "sentences:3|entities:3|predicted:3"
    # A sentence more, with one of two found: 2 of 4 given, and of 5 wanted
    metric.add_batch(predictions=predictions, references=references)
    metric.add(prediction=["B-PER", "O"], reference=["B-PER", "B-LOC"])
    result = metric.compute()
    assert (result["entity_precision"], result["entity_recall"]) == (2 / 4, 2 / 5)
    assert result["entity_f1"] == pytest.approx(4 / 9)
    with pytest.raises(ValueError, match="sentence 0: 1 tag predicted, and 2 wanted"):
        metric.compute(predictions=[["O"]], references=[["O", "O"]])
    with pytest.raises(ValueError, match="the tag 'PER' marks no entity"):
        metric.compute(predictions=[["PER"]], references=[["O"]])


def test_every_module_has_its_name():
    for name in METRICS:
        assert load_metric(name).name == name


def test_combined():
    both = evaluate.combine([load_metric("exact_match"), load_metric("token_error_rate")])
    result = both.compute(predictions=PREDICTIONS, references=REFERENCES)
    assert result["exact_match"] == 0.5
    assert result["token_error_rate"] == pytest.approx(1 / 9)


def test_refusals_leave_the_module_usable():
    metric = load_metric("exact_match")
    for arguments, message in (
        ({"predictions": [], "references": []}, "predictions is empty"),
        ({}, "predictions is empty"),
        ({"predictions": ["a"], "references": ["a", "b"]}, "1 predictions and 2 references"),
        ({"predictions": ["a"], "references": [3]}, r"references\[0\] is 3"),
    ):
        with pytest.raises(ValueError, match=message):
            metric.compute(**arguments)
    assert metric.compute(predictions=["a"], references=["a"])["exact_match"] == 1
    with pytest.raises(ValueError, match="name is 'meteor'; the metrics are exact_match"):
        load_metric("meteor")


def test_nothing_is_written(tmp_path):
    metric = load_metric("exact_match", cache_dir=str(tmp_path / "cache"))
    assert metric.compute(predictions=["a"], references=["a"])["exact_match"] == 1
    assert os.listdir(tmp_path) == []


def test_modules_on_disk_keep_apart(tmp_path):
    one, two = (load_metric("exact_match", keep_in_memory=False, cache_dir=str(tmp_path)) for _ in range(2))
    one.add(prediction="a", reference="a")
    two.add(prediction="a", reference="b")
    assert one.experiment_id != two.experiment_id
    assert one.compute()["exact_match"] == 1
    assert two.compute()["exact_match"] == 0


def test_no_network(tmp_path):
    program = """
import socket, sys

def refuse(*arguments, **options):
    raise AssertionError("the network was asked")

socket.socket.connect = socket.getaddrinfo = refuse
import hf_attnzoo.evaluation as evaluation
# None of the slow ones, until they are asked for
assert not {"evaluate", "matplotlib", "torch"} & set(sys.modules)
for name in ("exact_match", "token_error_rate", "bleu", "chrf", "ter"):
    print(name, evaluation.load_metric(name).compute(predictions=["a b c d"], references=["a b c d"])[name])
"""
    environment = {**os.environ, "HF_HOME": str(tmp_path)}
    # Not the offline switches: it must be quiet by itself
    for name in ("HF_HUB_OFFLINE", "HF_EVALUATE_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"):
        environment.pop(name, None)
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    scores = dict(line.split() for line in done.stdout.splitlines())
    assert {name: round(float(score), 6) for name, score in scores.items()} == {
        "exact_match": 1,
        "token_error_rate": 0,
        "bleu": 100,
        "chrf": 100,
        "ter": 0,
    }
