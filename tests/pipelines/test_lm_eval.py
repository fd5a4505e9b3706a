"""EleutherAI's harness runs our models as it runs any, and scores labels as the few-shot pipeline does."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import pipeline

import hf_attnzoo
from hf_attnzoo.evaluation import text_likelihood

lm_eval = pytest.importorskip("lm_eval", reason="lm-eval is not installed")

ROWS = [
    {"text": "a good film", "label": "good"},
    {"text": "a bad film", "label": "bad"},
    {"text": "o", "label": "bad"},
]
TASK = """
task: attnzoo_tiny
dataset_path: json
dataset_kwargs:
  data_files:
    test: {file}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{text}}}}:"
doc_to_choice: [good, bad]
doc_to_target: label
num_fewshot: 0
metric_list:
- metric: acc
"""


def save(family: str, folder: Path) -> None:
    """A small model with its tokenizer in `model`, and a task of the harness beside them."""
    tokenizer = hf_attnzoo.train_tokenizer("character", [row["text"] + ": " for row in ROWS], causal=True)
    torch.manual_seed(0)
    if family == "gpt":
        sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "initializer_range": 0.5}
        model = hf_attnzoo.GPTForCausalLM(hf_attnzoo.GPTConfig(vocab_size=len(tokenizer), **sizes))
    else:
        sizes = {"hidden_size": 16, "embedding_size": 16, "initializer_range": 0.5}
        model = hf_attnzoo.RNNLMForCausalLM(hf_attnzoo.RNNLMConfig(vocab_size=len(tokenizer), **sizes))
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    (folder / "tiny.yaml").write_text(TASK.format(file=folder / "rows.jsonl"), encoding="utf-8")


@pytest.mark.parametrize("family", ["gpt", "rnnlm"])
def test_the_harness_agrees_with_the_pipeline(family, tmp_path):
    from lm_eval.tasks import TaskManager

    save(family, tmp_path)
    found = lm_eval.simple_evaluate(
        model="hf",
        model_args=f"pretrained={tmp_path / 'model'},dtype=float32",
        tasks=["attnzoo_tiny"],
        task_manager=TaskManager(include_path=str(tmp_path)),
        device="cpu",
        batch_size=2,
        log_samples=True,
        bootstrap_iters=0,
    )
    pipe = pipeline("attnzoo-few-shot", model=str(tmp_path / "model"), device="cpu")
    answers = pipe(
        [row["text"] for row in ROWS],
        template="{text}: {label}",
        labels=["good", "bad"],
        normalize="none",
        return_scores=True,
    )
    for sample in found["samples"]["attnzoo_tiny"]:
        answer = next(
            answer for row, answer in zip(ROWS, answers, strict=True) if row["text"] == sample["doc"]["text"]
        )
        sums = {one["label"]: one["log_prob"] for one in answer}
        assert [float(value[0]) for value in sample["filtered_resps"]] == pytest.approx(
            [sums["good"], sums["bad"]], abs=1e-3
        )
    right = sum(answer[0]["label"] == row["label"] for row, answer in zip(ROWS, answers, strict=True))
    assert found["results"]["attnzoo_tiny"]["acc,none"] == pytest.approx(right / len(ROWS))


@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("family", ["gpt", "rnnlm"])
def test_the_harness_agrees_with_the_evaluation(family, batch_size, tmp_path):
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    save(family, tmp_path)
    options = {"pretrained": str(tmp_path / "model"), "device": "cpu", "dtype": "float32", "batch_size": batch_size}
    # A text alone is read behind <s> anyway: with the tokenizer's own it would have two, and be scored for the second
    harness, of_whole_texts = HFLM(**options), HFLM(add_bos_token=False, **options)
    pipe = pipeline("text-generation", model=str(tmp_path / "model"), device="cpu")

    def asked(kind, pairs, harness=harness):
        return getattr(harness, kind)([Instance(kind, {}, pair, number) for number, pair in enumerate(pairs)])

    def nats(text):
        return text_likelihood(pipe.model, pipe.tokenizer, [text]).losses[:, 0].sum()

    texts = ["a good film", "m", "is it a bad film: o", "film film film"]
    expected = [-nats(text) for text in texts]
    found = asked("loglikelihood_rolling", [(text,) for text in texts], of_whole_texts)
    assert found == pytest.approx(expected, abs=1e-3)
    ends = [" bad", " good film", "o", ":"]
    expected = [nats(text) - nats(text + end) for text, end in zip(texts, ends, strict=True)]
    found = asked("loglikelihood", list(zip(texts, ends, strict=True)))
    assert [value for value, _ in found] == pytest.approx(expected, abs=1e-3)
    written = asked("generate_until", [(text, {"until": ["zz"], "max_gen_toks": 5}) for text in texts])
    alone = [pipe(text, max_new_tokens=5, do_sample=False, return_full_text=False) for text in texts]
    assert [text.strip() for text in written] == [each[0]["generated_text"].strip() for each in alone]
    assert len(set(written)) > 1


def test_the_harness_without_the_package(tmp_path):
    save("rnnlm", tmp_path)
    script = """
import sys
sys.modules["hf_attnzoo"] = None
from lm_eval.__main__ import cli_evaluate
cli_evaluate()
"""
    arguments = ["--model", "hf", "--tasks", "attnzoo_tiny", "--include_path", str(tmp_path), "--device", "cpu"]
    arguments += ["--model_args", f"pretrained={tmp_path / 'model'},trust_remote_code=True"]
    environment = {**os.environ, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments, "--output_path", str(tmp_path / "out"), "--batch_size", "4"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    [report] = (tmp_path / "out").rglob("results_*.json")
    found = json.loads(report.read_text(encoding="utf-8"))["results"]["attnzoo_tiny"]["acc,none"]
    pipe = pipeline("attnzoo-few-shot", model=str(tmp_path / "model"), device="cpu")
    options = {"template": "{text}: {label}", "labels": ["good", "bad"], "normalize": "none"}
    answers = pipe([row["text"] for row in ROWS], **options)
    right = sum(answer["label"] == row["label"] for row, answer in zip(ROWS, answers, strict=True))
    assert found == pytest.approx(right / len(ROWS))
