"""transformers' own pipelines for encoders work with BERT and a WordPiece tokenizer of the package."""

import pytest
import torch
from transformers import pipeline

import hf_attnzoo
from hf_attnzoo import BERTConfig, train_tokenizer

TEXTS = ["Ann plays the piano.", "Bo is playing, and Ann listens to Bo.", "Ann"]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer("wordpiece", TEXTS * 2, vocab_size=120)


@pytest.fixture(scope="module")
def saved(tokenizer, tmp_path_factory):
    """Folders with a small model of each head, and the tokenizer."""

    def save(head: str, **options):
        folder = tmp_path_factory.mktemp(head)
        torch.manual_seed(1)
        sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
        model = getattr(hf_attnzoo, f"BERT{head}")(BERTConfig(vocab_size=len(tokenizer), **sizes, **options)).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(std=0.4)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return str(folder), model

    return save


def said(model, tokenizer, *texts):
    with torch.no_grad():
        return model(**tokenizer(*texts, return_tensors="pt"))


def test_fill_mask(saved, tokenizer):
    folder, model = saved("ForMaskedLM")
    pipe = pipeline("fill-mask", model=folder, device="cpu")
    texts = ["Ann <mask> the piano.", "<mask> is playing."]
    for text, answers in zip(texts, pipe(texts, batch_size=1, top_k=3), strict=True):
        ids = tokenizer(text)["input_ids"]
        chances = said(model, tokenizer, text).logits[0, ids.index(4)].softmax(-1)
        best = chances.topk(3)
        assert [answer["token"] for answer in answers] == best.indices.tolist()
        assert [answer["score"] for answer in answers] == pytest.approx(best.values.tolist(), rel=1e-4)
        assert all("<mask>" not in answer["sequence"] for answer in answers)
    two = pipe("<mask> plays the <mask>.", targets=["Ann", "piano"])
    assert [{answer["token_str"] for answer in place} for place in two] == [{"Ann", "piano"}] * 2


@pytest.mark.parametrize("problem", ["single_label_classification", "multi_label_classification"])
def test_text_classification(saved, tokenizer, problem):
    labels = {0: "bad", 1: "fair", 2: "good"}
    folder, model = saved("ForSequenceClassification", id2label=labels, problem_type=problem)
    pipe = pipeline("text-classification", model=folder, device="cpu", top_k=None)
    for batch_size in (1, 3):
        for text, answers in zip(TEXTS, pipe(TEXTS, batch_size=batch_size), strict=True):
            logits = said(model, tokenizer, text).logits[0]
            chances = logits.softmax(-1) if problem.startswith("single") else logits.sigmoid()
            found = {answer["label"]: answer["score"] for answer in answers}
            assert found == pytest.approx({labels[i]: chances[i].item() for i in range(3)}, rel=1e-4)
    pair = pipe({"text": "Ann", "text_pair": "Bo"})
    logits = said(model, tokenizer, "Ann", "Bo").logits[0]
    assert {answer["label"]: answer["score"] for answer in pair}["good"] == pytest.approx(
        (logits.softmax(-1) if problem.startswith("single") else logits.sigmoid())[2].item(), rel=1e-4
    )


def test_token_classification(saved, tokenizer):
    folder, model = saved("ForTokenClassification", id2label={0: "O", 1: "B-PER", 2: "I-PER"})
    pipe = pipeline("token-classification", model=folder, device="cpu", ignore_labels=[])
    for batch_size in (1, 3):
        for text, answers in zip(TEXTS, pipe(TEXTS, batch_size=batch_size), strict=True):
            chances = said(model, tokenizer, text).logits[0, 1:-1].softmax(-1)
            assert [answer["entity"] for answer in answers] == [
                model.config.id2label[i] for i in chances.argmax(-1).tolist()
            ]
            assert [answer["score"] for answer in answers] == pytest.approx(chances.amax(-1).tolist(), rel=1e-4)
            pieces = [text[answer["start"] : answer["end"]] for answer in answers]
            assert pieces == [piece.removeprefix("##") for piece in tokenizer.tokenize(text)]
    grouped = pipeline("token-classification", model=folder, device="cpu", aggregation_strategy="first")(TEXTS[1])
    assert all(group["word"] for group in grouped)


def test_zero_shot_classification(saved, tokenizer):
    folder, model = saved("ForSequenceClassification", id2label={0: "contradiction", 1: "neutral", 2: "entailment"})
    pipe = pipeline("zero-shot-classification", model=folder, device="cpu")
    answer = pipe(TEXTS[1], candidate_labels=["piano", "Bo"], hypothesis_template="Ann plays {}.")
    scores = [said(model, tokenizer, TEXTS[1], f"Ann plays {label}.").logits[0, 2] for label in ("piano", "Bo")]
    expected = dict(zip(("piano", "Bo"), torch.stack(scores).softmax(0).tolist(), strict=True))
    assert dict(zip(answer["labels"], answer["scores"], strict=True)) == pytest.approx(expected, rel=1e-4)


def test_feature_extraction(saved, tokenizer):
    folder, model = saved("Model")
    pipe = pipeline("feature-extraction", model=folder, device="cpu", return_tensors=True)
    for text, features in zip(TEXTS, pipe(TEXTS), strict=True):
        torch.testing.assert_close(features, said(model, tokenizer, text).last_hidden_state, atol=1e-5, rtol=1e-5)


def test_question_answering(saved):
    folder, _ = saved("ForQuestionAnswering")
    answer = pipeline("attnzoo-question-answering", model=folder, device="cpu")(question="Ann", context=TEXTS[1])
    assert TEXTS[1][answer["start"] : answer["end"]] == answer["answer"] != ""
