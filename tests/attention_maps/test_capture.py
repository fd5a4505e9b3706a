"""Captured maps against attention worked out by hand, and against plain forward passes of a Marian model."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tokenizers import Regex, Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from tokenizers.processors import TemplateProcessing
from transformers import MarianConfig, MarianMTModel, PreTrainedConfig, PreTrainedTokenizerFast

from hf_attnzoo.attention_maps import attention_map, source_tokens
from hf_attnzoo.models.configuration_rnnsearch import RNNSearchConfig
from hf_attnzoo.models.modeling_rnnsearch import RNNSearchForConditionalGeneration
from hf_attnzoo.models.tokenization_attnzoo import train_tokenizer

LETTERS = "abcdef "
SPECIALS = ["<unk>", "<pad>", "<s>", "</s>"]


@pytest.fixture(scope="module")
def tokenizer():
    vocabulary = {token: index for index, token in enumerate([*SPECIALS, *LETTERS])}
    backend = Tokenizer(WordLevel(vocabulary, unk_token=SPECIALS[0]))
    backend.pre_tokenizer = Split(Regex("."), "isolated")
    backend.post_processor = TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 3)])
    backend.decoder = Fuse()
    names = zip(("unk_token", "pad_token", "bos_token", "eos_token"), SPECIALS, strict=True)
    return PreTrainedTokenizerFast(tokenizer_object=backend, **dict(names))


@pytest.fixture(scope="module")
def marian():
    torch.manual_seed(4)
    config = MarianConfig(
        vocab_size=11,
        d_model=16,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        max_position_embeddings=64,
        # With this seed attention is far from uniform, and beam search changes rows
        init_std=0.3,
        pad_token_id=1,
        bos_token_id=2,
        eos_token_id=3,
        decoder_start_token_id=2,
    )
    model = MarianMTModel(config).eval()
    model.generation_config.update(bad_words_ids=None, forced_eos_token_id=None, max_length=None, num_beams=1)
    return model


def forward_map(model, source_ids, target_ids):
    """Attention of an eager forward pass, layers x heads x T x S, over the decoder inputs of `target_ids`."""
    model.set_attn_implementation("eager")
    with torch.no_grad():
        output = model(
            input_ids=torch.tensor([source_ids]),
            decoder_input_ids=torch.tensor([[2, *target_ids[:-1]]]),
            output_attentions=True,
        )
    model.set_attn_implementation("sdpa")
    return torch.stack(output.cross_attentions)[:, 0].double().numpy()


# Ids by hand: a=4 b=5 c=6 d=7 e=8 f=9 space=10
SOURCE, SOURCE_IDS = "ab c", [4, 5, 10, 6, 3]


def ids(tokens):
    return [[*SPECIALS, *LETTERS].index(token) for token in tokens]


def test_forced_target(marian, tokenizer):
    result = attention_map(marian, tokenizer, SOURCE, "fed")
    assert result.source == ["a", "b", " ", "c", "</s>"]
    assert result.target == ["f", "e", "d", "</s>"]
    assert (result.source_text, result.target_text) == (SOURCE, "fed")
    # The last layer, the mean of its two heads
    expected = forward_map(marian, SOURCE_IDS, [9, 8, 7, 3])[1].mean(0)
    np.testing.assert_allclose(result.weights, expected, atol=1e-6)
    np.testing.assert_allclose(result.weights.sum(1), 1, atol=1e-6)


@pytest.mark.parametrize(
    ("layer", "head", "pick"),
    [
        (0, 0, lambda weights: weights[0, 0]),
        (-2, -1, lambda weights: weights[0, 1]),
        (1, None, lambda weights: (weights[1, 0] + weights[1, 1]) / 2),
        (None, 1, lambda weights: (weights[0, 1] + weights[1, 1]) / 2),
        (None, None, lambda weights: weights.sum((0, 1)) / 4),
    ],
)
def test_layer_and_head(marian, tokenizer, layer, head, pick):
    result = attention_map(marian, tokenizer, SOURCE, "fed", layer=layer, head=head)
    np.testing.assert_allclose(result.weights, pick(forward_map(marian, SOURCE_IDS, [9, 8, 7, 3])), atol=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"use_cache": False},
        {"num_beams": 4},
        {"num_beams": 4, "use_cache": False},
        {"do_sample": True},
        {"do_sample": True, "num_beams": 3},
        {"decoder_input_ids": torch.tensor([[2, 9, 8]])},
        {"decoder_input_ids": torch.tensor([[2, 9, 8]]), "num_beams": 4, "use_cache": False},
    ],
    ids=lambda options: "-".join(options) or "greedy",
)
def test_generated_map_is_the_forced_map_of_what_was_written(marian, tokenizer, options):
    torch.manual_seed(3)
    result = attention_map(marian, tokenizer, SOURCE, max_new_tokens=12, head=0, **options)
    target_ids = ids(result.target)
    if "decoder_input_ids" in options:
        assert target_ids[:2] == [9, 8]
    np.testing.assert_allclose(result.weights, forward_map(marian, SOURCE_IDS, target_ids)[1, 0], atol=1e-5)


def test_beams_of_the_model_cross(marian):
    # Otherwise the beam cases above could not tell a beam's row from row 0
    output = marian.generate(
        torch.tensor([SOURCE_IDS]), num_beams=4, max_new_tokens=12, output_scores=True, return_dict_in_generate=True
    )
    assert len(set(output.beam_indices[0].tolist())) > 1


@pytest.mark.parametrize("options", [{}, {"num_beams": 4}])
def test_the_map_ends_with_the_text(marian, tokenizer, options):
    # This model writes some f, then b for ever: here b is the end
    result = attention_map(marian, tokenizer, SOURCE, max_new_tokens=12, eos_token_id=5, **options)
    written = len(result.target) - 1
    assert 1 <= written < 8
    assert result.target == ["f"] * written + ["b"]
    assert result.weights.shape == (written + 1, 5)


def test_model_is_left_as_it_was(marian, tokenizer):
    marian.train()
    marian.model.encoder.layers[0].eval()
    before = [module.training for module in marian.modules()]
    first = attention_map(marian, tokenizer, SOURCE, "fed").weights
    with pytest.raises(ValueError, match="layer is 7"):
        attention_map(marian, tokenizer, SOURCE, "fed", layer=7)
    assert [module.training for module in marian.modules()] == before
    assert marian.config._attn_implementation == "sdpa"
    marian.eval()
    # Dropout was off meanwhile
    np.testing.assert_array_equal(first, attention_map(marian, tokenizer, SOURCE, "fed").weights)


def test_attention_implementation_is_restored_after_a_failure(marian, tokenizer):
    with pytest.raises(TypeError):
        attention_map(marian, tokenizer, SOURCE, num_beams="many")
    assert marian.config._attn_implementation == "sdpa"


class Fake(torch.nn.Module):
    """Writes `d b </s>` over two beams whose rows are known: beam 1 at the first step, beam 0 afterwards."""

    device = torch.device("cpu")

    def __init__(self, attention=True, sequences=1):
        super().__init__()
        self.config = PreTrainedConfig(is_encoder_decoder=True)
        self.attention, self.sequences = attention, sequences

    def set_attn_implementation(self, implementation):
        pass

    def generate(self, input_ids, attention_mask, output_attentions, return_dict_in_generate):
        assert input_ids.tolist() == [[4, 5, 3]]
        first = torch.tensor([[[[0.5, 0.5, 0.0]]], [[[1.0, 0.0, 0.0]]]])
        second = torch.tensor([[[[0.25, 0.5, 0.25]]], [[[0.0, 0.0, 1.0]]]])
        third = torch.tensor([[[[0.0, 0.125, 0.875]]], [[[0.0, 1.0, 0.0]]]])
        # The search went one step further than the hypothesis it chose
        steps = [first, second, third, torch.full((2, 1, 1, 3), 1 / 3)]
        return SimpleNamespace(
            sequences=torch.tensor([[2, 7, 5, 3, 1]] * self.sequences),
            beam_indices=torch.tensor([[1, 0, 0, -1]] * self.sequences),
            cross_attentions=tuple((step if self.attention else None,) for step in steps),
        )


def test_known_beams(tokenizer):
    result = attention_map(Fake(), tokenizer, "ab")
    assert result.source == ["a", "b", "</s>"]
    assert result.target == ["d", "b", "</s>"]
    assert result.target_text == "db"
    assert result.weights.tolist() == [[1, 0, 0], [0.25, 0.5, 0.25], [0, 0.125, 0.875]]


def test_refusals(marian, tokenizer):
    with pytest.raises(ValueError, match="no attention weights of this kind"):
        attention_map(Fake(attention=False), tokenizer, "ab")
    with pytest.raises(ValueError, match="num_return_sequences is 2"):
        attention_map(Fake(sequences=2), tokenizer, "ab")
    with pytest.raises(ValueError, match=r"head is 2; .* 2 heads"):
        attention_map(marian, tokenizer, SOURCE, "fed", head=2)
    with pytest.raises(ValueError, match=r"layer is -3; .* 2 layers"):
        attention_map(marian, tokenizer, SOURCE, "fed", layer=-3)
    with pytest.raises(ValueError, match="text is a list"):
        attention_map(marian, tokenizer, ["ab"])
    with pytest.raises(ValueError, match=r"text_target is given.*num_beams"):
        attention_map(marian, tokenizer, "ab", "fed", num_beams=2)
    with pytest.raises(ValueError, match="kind='self': a MarianMTModel has cross, encoder, decoder attention"):
        attention_map(marian, tokenizer, "ab", kind="self")
    with pytest.raises(ValueError, match="text_pair='b' means nothing"):
        attention_map(marian, tokenizer, "ab", text_pair="b")


def test_half_precision(marian, tokenizer):
    weights = attention_map(marian, tokenizer, SOURCE, "fed").weights
    try:
        half = attention_map(marian.to(torch.bfloat16), tokenizer, SOURCE, "fed").weights
    finally:
        marian.to(torch.float32)
    assert half.dtype == np.float64
    np.testing.assert_allclose(half.sum(1), 1, atol=0.02)
    assert np.abs(half - weights).max() < 0.2


def test_source_tokens(tokenizer):
    assert source_tokens(tokenizer, "a zb") == ["a", " ", "<unk>", "b", "</s>"]
    assert source_tokens(tokenizer, "") == ["</s>"]


def test_source_tokens_of_a_tokenizer_in_python():
    class Encoding(dict):
        is_fast = False

    class Letters:
        def __call__(self, text, padding):
            return Encoding(input_ids=[ord(letter) for letter in text])

        def convert_ids_to_tokens(self, token_ids):
            return [chr(token_id) for token_id in token_ids]

    assert source_tokens(Letters(), "ab c") == ["a", "b", " ", "c"]


def rnnsearch(**options):
    torch.manual_seed(0)
    config = RNNSearchConfig(
        vocab_size=8, source_vocab_size=7, hidden_size=8, embedding_size=8, maxout_size=8, **options
    )
    model = RNNSearchForConditionalGeneration(config)
    for parameter in model.parameters():
        # Attention is uniform at the paper's initialisation
        torch.nn.init.normal_(parameter)
    return model


def test_two_vocabularies():
    tokenizer = train_tokenizer("character", ["abc"], ["zyxw"])
    model = rnnsearch()
    forced = attention_map(model, tokenizer, "cab", "wxyz")
    assert forced.source == ["c", "a", "b", "</s>"]
    assert forced.target == ["w", "x", "y", "z", "</s>"]
    np.testing.assert_allclose(forced.weights.sum(1), 1, atol=1e-6)

    prefix = torch.tensor([[2, *tokenizer.convert_tokens_to_ids([*"wxyz"])]])
    written = attention_map(model, tokenizer, "cab", decoder_input_ids=prefix, num_beams=3, max_new_tokens=4)
    assert written.target[:4] == [*"wxyz"]
    np.testing.assert_allclose(written.weights[:4], forced.weights[:4], atol=1e-5)


@pytest.mark.parametrize("target", ["wxyz", None], ids=["forced", "generated"])
def test_recurrent_model_without_attention(target):
    tokenizer = train_tokenizer("character", ["abc"], ["zyxw"])
    with pytest.raises(ValueError, match="attention='none'"):
        attention_map(rnnsearch(attention="none"), tokenizer, "cab", target)
