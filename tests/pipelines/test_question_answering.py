"""Answers are found in texts of any length, with their places and probabilities, by any model for the task."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from torch import nn
from transformers import BertConfig, BertForQuestionAnswering, pipeline

import hf_attnzoo
from hf_attnzoo import BERTConfig, BERTForQuestionAnswering, QuestionAnsweringPipeline, train_tokenizer

TASK = "attnzoo-question-answering"
QUESTION = "where is ann?"
CONTEXT = "Ann is in Oslo now. Bo, her brother, has never been there; he lives in Malmo, by the sea."
WORDS = [QUESTION, CONTEXT, "unplayable"] * 2


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer("wordpiece", WORDS, vocab_size=200)


class Scored(nn.Module):
    """Stands for an encoder and its head: logits by the id of a token alone."""

    def __init__(self, starts: dict[int, float], ends: dict[int, float], size: int):
        super().__init__()
        self.starts = nn.Parameter(torch.zeros(size))
        self.ends = nn.Parameter(torch.zeros(size))
        with torch.no_grad():
            for table, values in ((self.starts, starts), (self.ends, ends)):
                for index, value in values.items():
                    table[index] = value


def scored_pipe(tokenizer, starts, ends, **options) -> QuestionAnsweringPipeline:
    """A pipeline whose model gives every token its own logits, 0 if nothing is said of it."""
    model = BERTForQuestionAnswering(BERTConfig(vocab_size=len(tokenizer), hidden_size=4, num_attention_heads=1))
    ids = tokenizer.convert_tokens_to_ids
    table = Scored({ids(t): v for t, v in starts.items()}, {ids(t): v for t, v in ends.items()}, len(tokenizer))

    def forward(input_ids, attention_mask=None, token_type_ids=None):
        assert (input_ids[:, 0] == 2).all()
        assert token_type_ids is not None
        return type("Output", (), {"start_logits": table.starts[input_ids], "end_logits": table.ends[input_ids]})()

    model.forward = forward
    return QuestionAnsweringPipeline(model, tokenizer, task=TASK, device="cpu", **options)


def test_the_best_span_its_place_and_its_probability(tokenizer):
    pipe = scored_pipe(tokenizer, {"Oslo": 3.0, "Malmo": 2.0}, {"Oslo": 3.0, "Malmo": 2.0}, max_answer_len=1)
    answer = pipe(question=QUESTION, context=CONTEXT)
    assert answer["answer"] == CONTEXT[answer["start"] : answer["end"]] == "Oslo"
    tokens = len(tokenizer.tokenize(CONTEXT))
    total = math.exp(6) + math.exp(4) + tokens - 2
    assert answer["score"] == pytest.approx(math.exp(6) / total)
    both = pipe(question=QUESTION, context=CONTEXT, top_k=2)
    assert [one["answer"] for one in both] == ["Oslo", "Malmo"]
    assert both[1]["score"] == pytest.approx(math.exp(4) / total)
    everything = pipe(question=QUESTION, context=CONTEXT, top_k=1000)
    assert len(everything) == tokens
    assert sum(one["score"] for one in everything) == pytest.approx(1)


def test_spans_are_no_longer_than_asked_for_and_never_in_the_question(tokenizer):
    pipe = scored_pipe(tokenizer, {"Malmo": 9.0, "ann": 20.0, "he": 5.0}, {"sea": 9.0, "ann": 20.0, "Malmo": 5.0})
    assert pipe(question=QUESTION, context=CONTEXT)["answer"] == "Malmo, by the sea"
    assert pipe(question=QUESTION, context=CONTEXT, max_answer_len=4)["answer"] == "Malmo"
    for answer in pipe(question=QUESTION, context=CONTEXT, max_answer_len=3, top_k=500):
        assert len(tokenizer.tokenize(answer["answer"])) <= 3


def test_windows_share_a_softmax_and_every_place_is_seen(tokenizer):
    # Far beyond one window, and the better of two candidates in the last.
    context = " ".join([CONTEXT] * 30) + " Oslo sea"
    starts = {"Oslo": 3.0}
    whole = scored_pipe(tokenizer, starts, {"sea": 4.0}, max_answer_len=2, max_seq_len=10_000)
    expected = whole(question=QUESTION, context=context, top_k=3)
    assert expected[0]["answer"] == "Oslo sea"
    assert expected[0]["end"] == len(context)
    for length, stride in ((20, 5), (24, 8), (60, 30)):
        pipe = scored_pipe(tokenizer, starts, {"sea": 4.0}, max_answer_len=2, max_seq_len=length, doc_stride=stride)
        for batch_size in (1, 4):
            answers = pipe(question=QUESTION, context=context, top_k=3, batch_size=batch_size)
            assert [(one["start"], one["end"]) for one in answers] == [(one["start"], one["end"]) for one in expected]
            assert [one["score"] for one in answers] == pytest.approx([one["score"] for one in expected])


def test_no_answer_is_one_of_the_answers(tokenizer):
    pipe = scored_pipe(tokenizer, {"<s>": 2.0, "Oslo": 1.0}, {"<s>": 2.0, "Oslo": 1.0}, max_answer_len=1)
    context = "Ann is in Oslo"
    assert pipe(question=QUESTION, context=context)["answer"] == "Oslo"
    none = pipe(question=QUESTION, context=context, handle_impossible_answer=True)
    tokens = len(tokenizer.tokenize(context))
    score = math.exp(4) / (math.exp(4) + math.exp(2) + tokens - 1)
    assert none == {"score": pytest.approx(score), "start": 0, "end": 0, "answer": ""}


def test_answers_are_widened_to_words(tokenizer):
    pieces = tokenizer.tokenize("seanow")
    assert len(pieces) > 1
    context = "Ann is in seanow."
    pipe = scored_pipe(tokenizer, {pieces[-1]: 5.0}, {pieces[-1]: 5.0})
    assert pipe(question=QUESTION, context=context)["answer"] == "seanow"
    inner = pipe(question=QUESTION, context=context, align_to_words=False)
    assert inner["answer"] == pieces[-1].removeprefix("##")
    assert context[inner["start"] : inner["end"]] == inner["answer"]


def make(tokenizer, stock: bool):
    torch.manual_seed(0)
    sizes = {"vocab_size": len(tokenizer), "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 20, "max_position_embeddings": 64, "pad_token_id": 1}
    model = BertForQuestionAnswering(BertConfig(**sizes)) if stock else BERTForQuestionAnswering(BERTConfig(**sizes))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return model.train()


EXAMPLES = [
    {"question": QUESTION, "context": CONTEXT},
    {"question": "who lives by the sea?", "context": " ".join([CONTEXT] * 8)},
    {"question": "where?", "context": "in Oslo"},
]


@pytest.mark.parametrize("stock", [False, True])
def test_every_way_to_ask_and_any_batch_size(tokenizer, stock):
    pipe = pipeline(TASK, model=make(tokenizer, stock), tokenizer=tokenizer, device="cpu")
    assert type(pipe) is QuestionAnsweringPipeline
    alone = [pipe(example) for example in EXAMPLES]
    questions, contexts = ([example[name] for example in EXAMPLES] for name in ("question", "context"))
    for answers in (
        pipe(EXAMPLES),
        pipe(EXAMPLES, batch_size=3),
        list(pipe(example for example in EXAMPLES)),
        list(pipe(iter(EXAMPLES), batch_size=2)),
        list(pipe(Dataset.from_list([{"id": 1, **example} for example in EXAMPLES]), batch_size=2)),
        pipe(question=questions, context=contexts, batch_size=2),
    ):
        for one, other in zip(answers, alone, strict=True):
            assert (one["start"], one["end"], one["answer"]) == (other["start"], other["end"], other["answer"])
            assert one["score"] == pytest.approx(other["score"], rel=1e-4)
    assert [a["answer"] for a in pipe(question=["where?", "who?"], context=CONTEXT)] == [
        pipe(question=question, context=CONTEXT)["answer"] for question in ("where?", "who?")
    ]
    assert pipe([]) == []


def test_the_score_is_a_product_of_the_model_s_probabilities(tokenizer):
    """One window: what a softmax over pairs of ends says, with the model called by hand."""
    model = make(tokenizer, stock=True).eval()
    pipe = QuestionAnsweringPipeline(model, tokenizer, device="cpu", align_to_words=False, max_answer_len=3)
    batch = tokenizer(QUESTION, "in Oslo now", return_tensors="pt")
    with torch.no_grad():
        output = model(**batch)
    inside = [i for i, sequence in enumerate(batch.sequence_ids(0)) if sequence == 1]
    scores = {
        (i, j): math.exp(output.start_logits[0, i] + output.end_logits[0, j]) for i in inside for j in inside if i <= j
    }
    (first, last), best = max(scores.items(), key=lambda item: item[1])
    answer = pipe(question=QUESTION, context="in Oslo now")
    assert answer["score"] == pytest.approx(best / sum(scores.values()), rel=1e-5)
    assert answer["start"] == batch.token_to_chars(0, first).start
    assert answer["end"] == batch.token_to_chars(0, last).end


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"question": QUESTION}, "context=None"),
        ({"inputs": "where?"}, "a dict with question and context, got str"),
        ({"inputs": {"question": " ", "context": "a"}}, "question must be a text"),
        ({"inputs": {"question": "a", "context": ""}}, "context must be a text"),
        ({"inputs": {"question": "a", "context": "b"}, "question": "a"}, "not both"),
        ({"question": ["a", "b"], "context": ["c"]}, "2 questions and 1 contexts"),
        ({"inputs": EXAMPLES[0], "top_k": 0}, "top_k=0"),
        ({"inputs": EXAMPLES[0], "max_answer_len": 0}, "max_answer_len=0"),
        ({"inputs": EXAMPLES[0], "doc_stride": -1}, "doc_stride=-1"),
        ({"inputs": EXAMPLES[0], "max_seq_len": 12, "doc_stride": 9}, "max_seq_len=12 leaves 6 .*doc_stride=9"),
        ({"inputs": EXAMPLES[0], "max_seq_len": 5}, "max_seq_len=5 leaves .*doc_stride=0"),
        ({"inputs": 3}, "a dict with question and context, got int"),
        ({"inputs": [EXAMPLES[0], None]}, "a dict with question and context, got NoneType"),
    ],
)
def test_what_makes_no_question_is_refused(tokenizer, call, message):
    pipe = QuestionAnsweringPipeline(make(tokenizer, False), tokenizer, device="cpu")
    with pytest.raises(ValueError, match=message):
        pipe(**call)


def test_a_long_question_is_cut_with_a_warning(tokenizer, caplog):
    pipe = QuestionAnsweringPipeline(make(tokenizer, False), tokenizer, device="cpu")
    with caplog.at_level("WARNING"):
        short = pipe(question=" ".join(["ann"] * 5), context=CONTEXT, max_question_len=5)
        assert caplog.text == ""
        assert pipe(question=" ".join(["ann"] * 200), context=CONTEXT, max_question_len=5) == short
    assert "has 200 tokens and is cut at max_question_len=5" in caplog.text


def test_saved_with_its_code(tokenizer, tmp_path):
    pipe = QuestionAnsweringPipeline(make(tokenizer, False), tokenizer, device="cpu", task=TASK)
    pipe.save_pretrained(tmp_path / "pipe")
    expected = pipe(EXAMPLES)
    assert pipeline(TASK, model=str(tmp_path / "pipe"), device="cpu")(EXAMPLES) == expected
    script = f"""
import json, sys
sys.modules["hf_attnzoo"] = None
from transformers import pipeline
pipe = pipeline(model={str(tmp_path / "pipe")!r}, trust_remote_code=True, device="cpu")
print(json.dumps(pipe({EXAMPLES!r})))
"""
    environment = {**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(Path.cwd())}
    run = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    answers = json.loads(run.stdout.splitlines()[-1])
    assert [answer["answer"] for answer in answers] == [answer["answer"] for answer in expected]


def test_it_is_a_name_of_the_package():
    assert hf_attnzoo.QuestionAnsweringPipeline is QuestionAnsweringPipeline
