"""Self-attention of encoders, decoders and both sides of an encoder-decoder, against plain forward passes."""

import numpy as np
import pytest
import torch
from transformers import AutoModel, BertConfig, BertModel, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from hf_attnzoo import (
    BERTConfig,
    BERTForMaskedLM,
    GPTConfig,
    GPTForCausalLM,
    GPTModel,
    RNNLMConfig,
    RNNLMForCausalLM,
    RNNSearchConfig,
    RNNSearchForConditionalGeneration,
    TransformerConfig,
    TransformerForConditionalGeneration,
)
from hf_attnzoo.attention_maps import attention_map
from hf_attnzoo.models.tokenization_attnzoo import train_tokenizer

TEXTS = ["the cat sat on the mat", "a cat ate the hat", "he sat on a hat"]
SIZES = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16, "max_position_embeddings": 32}


def seeded(model):
    """Weights so large that no row of attention is even."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)
    return model.eval()


@pytest.fixture(scope="module")
def wordpiece() -> PreTrainedTokenizerFast:
    return train_tokenizer("wordpiece", TEXTS, vocab_size=40)


@pytest.fixture(scope="module")
def causal() -> PreTrainedTokenizerFast:
    return train_tokenizer("byte-bpe", TEXTS, vocab_size=270, causal=True)


@pytest.fixture(scope="module")
def bert(wordpiece):
    return seeded(BERTForMaskedLM(BERTConfig(vocab_size=len(wordpiece), num_hidden_layers=3, **SIZES)))


@pytest.fixture(scope="module")
def gpt(causal):
    return seeded(GPTForCausalLM(GPTConfig(vocab_size=len(causal), num_hidden_layers=2, **SIZES)))


def eager_attentions(model, what="attentions", **inputs):
    """Layers x heads x T x S of the first row of an eager forward pass."""
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    with torch.no_grad():
        output = model(**inputs, output_attentions=True)
    model.set_attn_implementation(before)
    return torch.stack(getattr(output, what))[:, 0].double().numpy()


def test_encoder(bert, wordpiece):
    found = attention_map(bert, wordpiece, "the cat sat", layer=1, head=0)
    encoding = wordpiece("the cat sat", return_tensors="pt")
    expected = eager_attentions(bert, **encoding)
    assert found.kind == "encoder"
    assert found.source == found.target == wordpiece.convert_ids_to_tokens(encoding["input_ids"][0])
    np.testing.assert_allclose(found.weights, expected[1, 0], rtol=1e-6)
    np.testing.assert_allclose(np.stack(found.layers), expected, rtol=1e-6)
    np.testing.assert_allclose(found.select(None, 1).weights, expected[:, 1].mean(0), rtol=1e-6)
    assert found.source_spans[0] is None
    texts = ["the cat sat"[start:end] for start, end in filter(None, found.source_spans)]
    assert "".join(texts) == "thecatsat"


def test_pair_of_texts(bert, wordpiece):
    found = attention_map(bert, wordpiece, "the cat", text_pair="a hat")
    encoding = wordpiece("the cat", "a hat", return_tensors="pt")
    assert encoding["token_type_ids"].unique().tolist() == [0, 1]
    np.testing.assert_allclose(found.weights, eager_attentions(bert, **encoding)[-1].mean(0), rtol=1e-6)
    assert found.source_text == "the cat a hat"
    merged = found.by_words()
    words = [word for word, span in zip(merged.source, merged.source_spans, strict=True) if span]
    assert words == ["the", "cat", "a", "hat"]


@pytest.mark.parametrize("model_class", [GPTForCausalLM, GPTModel])
def test_decoder_reads(causal, gpt, model_class):
    model = gpt if model_class is GPTForCausalLM else gpt.base_model
    found = attention_map(model, causal, "the cat sat")
    encoding = causal("the cat sat", return_tensors="pt")
    np.testing.assert_allclose(found.weights, eager_attentions(model, **encoding)[-1].mean(0), rtol=1e-6)
    assert found.kind == "decoder"
    assert np.triu(found.weights, 1).max() == 0


def test_decoder_goes_on_with_a_text(causal, gpt):
    found = attention_map(gpt, causal, "the cat", max_new_tokens=4, do_sample=False, eos_token_id=None)
    encoding = causal("the cat", return_tensors="pt")
    ids = gpt.generate(**encoding, max_new_tokens=4, do_sample=False, eos_token_id=None)
    assert found.source == causal.convert_ids_to_tokens(ids[0])
    assert found.source_text == causal.decode(ids[0], skip_special_tokens=True)
    np.testing.assert_allclose(found.weights, eager_attentions(gpt, input_ids=ids)[-1].mean(0), rtol=1e-6)


@pytest.fixture(scope="module")
def seq2seq():
    tokenizer = train_tokenizer("word", ["a b c d"], ["w x y z"])
    config = TransformerConfig(vocab_size=8, source_vocab_size=8, num_encoder_layers=2, num_decoder_layers=1, **SIZES)
    return seeded(TransformerForConditionalGeneration(config)), tokenizer


def test_both_sides_of_an_encoder_decoder(seq2seq):
    model, tokenizer = seq2seq
    encoding = tokenizer("a b c", text_target="z y", return_tensors="pt")
    read = attention_map(model, tokenizer, "a b c", kind="encoder")
    assert read.source == read.target == ["a", "b", "c", "</s>"]
    expected = eager_attentions(model, "encoder_attentions", **encoding)
    np.testing.assert_allclose(np.stack(read.layers), expected, rtol=1e-6)

    written = attention_map(model, tokenizer, "a b c", "z y", kind="decoder")
    assert written.source == written.target == ["<s>", "z", "y"]
    assert written.source_spans == [None, (0, 1), (1, 3)]
    expected = eager_attentions(model, "decoder_attentions", **encoding)
    np.testing.assert_allclose(np.stack(written.layers), expected, rtol=1e-6)

    across = attention_map(model, tokenizer, "a b c", "z y")
    assert across.kind == "cross"
    np.testing.assert_allclose(np.stack(across.layers), eager_attentions(model, "cross_attentions", **encoding))


def test_what_beams_wrote(seq2seq):
    model, tokenizer = seq2seq
    options = {"num_beams": 3, "max_new_tokens": 5}
    across = attention_map(model, tokenizer, "a b c", **options)
    inside = attention_map(model, tokenizer, "a b c", kind="decoder", **options)
    assert inside.source == ["<s>", *across.target[:-1]]


def test_transformers_own_models(wordpiece, causal):
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    encoder = seeded(BertModel(BertConfig(vocab_size=len(wordpiece), **sizes)))
    assert attention_map(encoder, wordpiece, "a cat").kind == "encoder"
    decoder = seeded(GPT2LMHeadModel(GPT2Config(vocab_size=len(causal), n_embd=16, n_layer=1, n_head=2)))
    assert attention_map(decoder, causal, "a cat").kind == "decoder"
    assert attention_map(AutoModel.from_config(decoder.config), causal, "a cat").kind == "decoder"


def test_refusals(bert, wordpiece, gpt, causal, seq2seq):
    with pytest.raises(ValueError, match="writes nothing"):
        attention_map(bert, wordpiece, "a cat", max_new_tokens=3)
    with pytest.raises(ValueError, match="kind='cross': a BERTForMaskedLM has encoder attention"):
        attention_map(bert, wordpiece, "a cat", kind="cross")
    with pytest.raises(ValueError, match="text_target='hat' means nothing"):
        attention_map(gpt, causal, "a cat", "hat")
    rnnlm = RNNLMForCausalLM(RNNLMConfig(vocab_size=len(causal), embedding_size=8, hidden_size=8))
    with pytest.raises(ValueError, match="such as an RNN"):
        attention_map(rnnlm, causal, "a cat")
    config = RNNSearchConfig(vocab_size=8, source_vocab_size=8, embedding_size=8, hidden_size=8, maxout_size=8)
    with pytest.raises(ValueError, match="such as an RNN"):
        attention_map(RNNSearchForConditionalGeneration(config), seq2seq[1], "a b", kind="encoder")
