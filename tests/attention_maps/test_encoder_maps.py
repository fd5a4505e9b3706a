"""Maps of self-attention: the weights are the model's own, and stand where the tokens do."""

import numpy as np
import pytest
import torch

from hf_attnzoo import (
    BERTConfig,
    BERTForQuestionAnswering,
    BERTForSequenceClassification,
    GPTConfig,
    GPTForSequenceClassification,
    train_tokenizer,
)
from hf_attnzoo.attention_maps import question_attention_map, summary_attention_map

TEXTS = ["the cat sat on the mat", "who sat on a mat", "cats and mats and hats"] * 2
SIZES = {"hidden_size": 8, "num_hidden_layers": 3, "num_attention_heads": 2, "initializer_range": 0.5}


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer("wordpiece", TEXTS, vocab_size=60)


def bert(model_class, tokenizer):
    torch.manual_seed(0)
    return model_class(BERTConfig(vocab_size=len(tokenizer), intermediate_size=8, **SIZES))


def own_weights(model, inputs):
    model.set_attn_implementation("eager")
    with torch.no_grad():
        layers = model.eval()(**inputs, output_attentions=True).attentions
    return torch.stack(layers)[:, 0].double().numpy()


def test_what_a_classifier_reads(tokenizer):
    model = bert(BERTForSequenceClassification, tokenizer)
    looked = summary_attention_map(model, tokenizer, "the cat sat")
    assert looked.target == ["layer-0", "layer-1", "layer-2"]
    weights = own_weights(model, tokenizer("the cat sat", return_tensors="pt"))
    np.testing.assert_allclose(looked.weights, weights.mean(1)[:, 0], atol=1e-6)
    causal = train_tokenizer("word", TEXTS, causal=True)
    gpt = GPTForSequenceClassification(GPTConfig(vocab_size=len(causal), **SIZES))
    looked = summary_attention_map(gpt, causal, "the cat sat")
    weights = own_weights(gpt, causal("the cat sat", return_tensors="pt"))
    # A causal model reads the last token.
    np.testing.assert_allclose(looked.weights, weights.mean(1)[:, -1], atol=1e-6)
    assert looked.source == ["<s>", "the", "cat", "sat"]


def test_a_question_over_the_text_around_an_answer(tokenizer):
    model = bert(BERTForQuestionAnswering, tokenizer)
    context = " ".join(["the cat sat on a mat"] * 10)
    start = context.rindex("cat")
    looked = question_attention_map(model, tokenizer, "who sat", context, start)
    assert looked.target == ["who", "sat"]
    # Twelve tokens before it, and what there is behind it
    words = context.split()
    assert (len(words), words[55]) == (60, "cat")
    assert looked.source == words[55 - 12 :]
    weights = own_weights(model, tokenizer("who sat", context, return_tensors="pt"))
    # <s> who sat </s>, then the text
    np.testing.assert_allclose(looked.weights, weights[-1].mean(0)[1:3, 4 + 43 : 4 + 60], atol=1e-6)
    window = question_attention_map(model, tokenizer, "who sat", context, start, max_length=25)
    assert window.source[-5:] == ["cat", "sat", "on", "a", "mat"]
