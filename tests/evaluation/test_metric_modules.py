"""`evaluate` modules: the same values as the plain functions, no network, nothing left on disk."""

import os
import subprocess
import sys

import evaluate
import pytest

from hf_attnzoo.evaluation import load_metric

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
for name in ("exact_match", "token_error_rate", "bleu", "chrf"):
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
    }
