"""Likelihood of texts under language models whose probabilities are known."""

import math

import pytest
import torch

from hf_attnzoo import RNNLMConfig, RNNLMForCausalLM, train_tokenizer
from hf_attnzoo.evaluation import load_metric, text_likelihood

TEXTS = ["abcä" * 3, "ba"]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer("character", TEXTS, causal=True)


@pytest.fixture
def model(tokenizer):
    torch.manual_seed(0)
    config = RNNLMConfig(vocab_size=len(tokenizer), embedding_size=4, hidden_size=4, num_layers=1, dropout=0.5)
    return RNNLMForCausalLM(config).train()


def test_all_tokens_alike(model, tokenizer):
    for parameter in model.get_output_embeddings().parameters():
        torch.nn.init.zeros_(parameter)
    likelihood = text_likelihood(model, tokenizer, TEXTS, block_size=6)
    # 14 letters and the end between the texts, each one of 4 special tokens and 4 letters; ä has two bytes
    assert len(tokenizer) == 8
    assert likelihood.losses.shape == (3, 2)
    assert likelihood.losses[:, 1].tolist() == [5, 5, 5]
    assert likelihood.score("cross_entropy") == pytest.approx(math.log(8))
    assert likelihood.score("perplexity") == pytest.approx(8)
    assert likelihood.score("bits_per_character") == pytest.approx(3 * 15 / 14)
    assert likelihood.score("bits_per_byte") == pytest.approx(3 * 15 / 17)
    assert model.training
    with pytest.raises(ValueError, match="name is 'bleu'"):
        likelihood.score("bleu")


def test_batches_and_modules(model, tokenizer, tmp_path):
    alone = text_likelihood(model, tokenizer, TEXTS, block_size=5, batch_size=1)
    together = text_likelihood(model, tokenizer, TEXTS, block_size=5)
    # Three blocks of four, and one of three
    assert together.losses[:, 1].tolist() == [4, 4, 4, 3]
    assert together.losses == pytest.approx(alone.losses, rel=1e-5)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    for name in ("cross_entropy", "perplexity", "bits_per_character", "bits_per_byte"):
        metric = load_metric(name)
        result = metric.compute(predictions=TEXTS, model=model, tokenizer=tokenizer, block_size=5)
        assert result == {
            name: pytest.approx(alone.score(name), rel=1e-5),
            f"{name}_signature": "block:5|tokens:15",
        }
        assert metric.compute(predictions=TEXTS, model=tmp_path, block_size=5) == result


def test_texts_apart_and_answers_alone(model, tokenizer):
    # By hand, from `<s>` (2) to `</s>` (3)
    def losses(text):
        ids = torch.tensor([[2, *tokenizer(text, add_special_tokens=False)["input_ids"], 3]])
        with torch.no_grad():
            logits = model.eval()(input_ids=ids).logits[0, :-1].double()
        return -logits.log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]

    apart = text_likelihood(model, tokenizer, TEXTS, join=False)
    assert apart.losses[:, 1].tolist() == [13, 3]
    assert apart.losses[:, 0] == pytest.approx([float(losses(text).sum()) for text in TEXTS], rel=1e-5)
    # As one, the second text has no end of its own
    assert text_likelihood(model, tokenizer, TEXTS).losses[:, 1].tolist() == [15]
    answers = text_likelihood(model, tokenizer, TEXTS, join=False, answers_after="b")
    # After the first b: 10 letters and the end, and a letter and the end
    assert answers.losses[:, 1].tolist() == [11, 2]
    expected = [float(losses(TEXTS[0])[2:].sum()), float(losses(TEXTS[1])[1:].sum())]
    assert answers.losses[:, 0] == pytest.approx(expected, rel=1e-5)
    with pytest.raises(ValueError, match="name is 'bits_per_byte', which is of all tokens"):
        answers.score("bits_per_byte")
    result = load_metric("perplexity").compute(
        predictions=TEXTS, model=model, tokenizer=tokenizer, block_size=20, join=False, answers_after="b"
    )
    assert result["perplexity"] == pytest.approx(math.exp(sum(expected) / 13), rel=1e-5)
    assert result["perplexity_signature"] == "block:20|texts:apart|after:'b'|tokens:13"


def test_refusals(model, tokenizer):
    for texts, message in (
        ([], "texts is empty"),
        ([""], "texts is empty"),
        ("abc", "texts is one string"),
        (["a", None], r"texts\[1\] is None"),
    ):
        with pytest.raises(ValueError, match=message):
            text_likelihood(model, tokenizer, texts)
    with pytest.raises(ValueError, match="block_size=1"):
        text_likelihood(model, tokenizer, TEXTS, block_size=1)
    with pytest.raises(ValueError, match="batch_size is 0"):
        text_likelihood(model, tokenizer, TEXTS, batch_size=0)
    with pytest.raises(ValueError, match="tokenizer is None"):
        load_metric("perplexity").compute(predictions=TEXTS, model=model)
