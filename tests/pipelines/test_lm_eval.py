"""EleutherAI's harness runs our models as it runs any, and scores labels as the few-shot pipeline does."""

import json

import pytest
import torch
from transformers import pipeline

import hf_attnzoo

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


@pytest.mark.parametrize("family", ["gpt", "rnnlm"])
def test_the_harness_agrees_with_the_pipeline(family, tmp_path):
    from lm_eval.tasks import TaskManager

    tokenizer = hf_attnzoo.train_tokenizer("character", [row["text"] + ": " for row in ROWS], causal=True)
    torch.manual_seed(0)
    if family == "gpt":
        sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "initializer_range": 0.5}
        model = hf_attnzoo.GPTForCausalLM(hf_attnzoo.GPTConfig(vocab_size=len(tokenizer), **sizes))
    else:
        sizes = {"hidden_size": 16, "embedding_size": 16, "initializer_range": 0.5}
        model = hf_attnzoo.RNNLMForCausalLM(hf_attnzoo.RNNLMConfig(vocab_size=len(tokenizer), **sizes))
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    (tmp_path / "tiny.yaml").write_text(TASK.format(file=tmp_path / "rows.jsonl"), encoding="utf-8")
    found = lm_eval.simple_evaluate(
        model="hf",
        model_args=f"pretrained={tmp_path / 'model'},add_bos_token=True,dtype=float32",
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
