"""transformers' Marian and BART to our Transformer and back, by what they compute."""

import json
import shutil

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModel,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    BartConfig,
    BartForConditionalGeneration,
    BartForSequenceClassification,
    BartModel,
    MarianConfig,
    MarianModel,
    MarianMTModel,
)

from hf_attnzoo import TransformerConfig, TransformerForConditionalGeneration, TransformerModel, train_tokenizer
from hf_attnzoo.conversion import convert

SOURCE = torch.tensor([[5, 8, 4, 9, 3], [7, 11, 3, 1, 1]])
TARGET = torch.tensor([[2, 6, 6, 4], [2, 10, 4, 3]])
INPUTS = {"input_ids": SOURCE, "attention_mask": SOURCE.ne(1).long(), "decoder_input_ids": TARGET}
SIZES = {
    "vocab_size": 17,
    "d_model": 8,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 5,
    "decoder_ffn_dim": 5,
    "max_position_embeddings": 12,
    "pad_token_id": 1,
    "bos_token_id": 2,
    "eos_token_id": 3,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
}
OUR_SIZES = {
    "vocab_size": 17,
    "hidden_size": 8,
    "num_attention_heads": 2,
    "intermediate_size": 5,
    "num_encoder_layers": 1,
    "num_decoder_layers": 2,
    "max_position_embeddings": 12,
}
# A text begins with padding, as those of the University of Helsinki do.
OPUS = {"pad_token_id": 16, "decoder_start_token_id": 16, "eos_token_id": 0, "bos_token_id": None}
APART = {"vocab_size": 19, "decoder_vocab_size": 17, "share_encoder_decoder_embeddings": False}


def random(model, seed=0, std=0.4):
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.normal_(std=std)
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.normal_()
    return model.eval()


def marian(model_class=MarianMTModel, **options):
    return random(model_class(MarianConfig(**(SIZES | options))))


def bart(model_class=BartForConditionalGeneration, **options):
    model = random(model_class(BartConfig(**(SIZES | options))))
    if not model.config.tie_word_embeddings:
        # There for nothing then, but for being asked for.
        model.get_input_embeddings().weight.data.copy_(model.get_encoder().embed_tokens.weight)
    return model


def ours(model_class=TransformerForConditionalGeneration, **options):
    return random(model_class(TransformerConfig(**(OUR_SIZES | options))))


def edit(folder, change):
    """Change the weights of a saved model."""
    path = folder / "model.safetensors"
    weights = load_file(path)
    change(weights)
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, path, metadata={"format": "pt"})


def close(actual, expected, tolerance=1e-5):
    torch.testing.assert_close(actual.detach(), expected.detach(), atol=tolerance, rtol=tolerance)


def load(model_class, folder):
    model, info = model_class.from_pretrained(folder, output_loading_info=True)
    assert not any(info.values()), info
    return model


def write_alike(model, other, **options):
    given_source = {"input_ids": SOURCE, "attention_mask": INPUTS["attention_mask"], "max_new_tokens": 7, **options}
    for search in ({}, {"num_beams": 3, "num_return_sequences": 2}):
        assert torch.equal(model.generate(**given_source, **search), other.generate(**given_source, **search))


class TestThere:
    @pytest.mark.parametrize(
        ("model_class", "options"),
        [
            (MarianMTModel, {}),
            (MarianMTModel, OPUS | {"forced_eos_token_id": 0}),
            (MarianMTModel, APART),
            (MarianMTModel, APART | {"tie_word_embeddings": False}),
            (MarianModel, {}),
            (MarianModel, APART),
            (BartForConditionalGeneration, {}),
            (BartForConditionalGeneration, {"tie_word_embeddings": False}),
            (BartModel, {}),
        ],
    )
    def test_and_back(self, model_class, options, tmp_path):
        stock = (marian if model_class.__name__.startswith("Marian") else bart)(model_class, **options)
        stock.save_pretrained(tmp_path / "stock")
        assert convert(tmp_path / "stock", tmp_path / "ours") == tmp_path / "ours"
        head = hasattr(stock, "final_logits_bias")
        mine = load(AutoModelForSeq2SeqLM if head else AutoModel, tmp_path / "ours")
        assert type(mine) is (TransformerForConditionalGeneration if head else TransformerModel)
        close(mine(**INPUTS)[0], stock(**INPUTS)[0])
        if head:
            close(mine(**INPUTS).logits, stock(**INPUTS).logits)
            write_alike(mine, stock)

        convert(tmp_path / "ours", tmp_path / "again", to="transformers")
        again = load(model_class, tmp_path / "again")
        expected = stock.state_dict()
        assert again.state_dict().keys() == expected.keys()
        for name, tensor in again.state_dict().items():
            # Rows that no position of BART's has.
            unused = 2 if "embed_positions" in name and isinstance(stock.config, BartConfig) else 0
            if name.endswith("embed_positions.weight") and not unused:
                close(tensor, expected[name])
            else:
                assert torch.equal(tensor[unused:], expected[name][unused:]), name
        close(again(**INPUTS)[0], stock(**INPUTS)[0])
        first, last = (json.loads((tmp_path / name / "config.json").read_text()) for name in ("stock", "again"))
        assert {name for name in first.keys() | last.keys() if first.get(name) != last.get(name)} == set()

    @given(
        kind=st.sampled_from(["marian", "bart"]),
        heads=st.integers(1, 3),
        layers=st.tuples(st.integers(1, 2), st.integers(1, 3)),
        inner=st.integers(3, 9),
        activation=st.sampled_from(["relu", "gelu", "swish"]),
        scale=st.booleans(),
        forced=st.sampled_from([None, 3]),
        biased=st.booleans(),
        dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    )
    @settings(max_examples=10, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    def test_whatever_its_shape(self, tmp_path, kind, heads, layers, inner, activation, scale, forced, biased, dtype):
        shutil.rmtree(tmp_path)
        stock = {"marian": marian, "bart": bart}[kind](
            d_model=4 * heads,
            encoder_attention_heads=heads,
            decoder_attention_heads=heads,
            encoder_layers=layers[0],
            decoder_layers=layers[1],
            encoder_ffn_dim=inner,
            decoder_ffn_dim=inner,
            activation_function=activation,
            scale_embedding=scale,
            forced_eos_token_id=forced,
            dropout=0.3,
            attention_dropout=0.2,
            activation_dropout=0.1,
        ).to(dtype)
        if not biased:
            stock.final_logits_bias.zero_()
        stock.save_pretrained(tmp_path / "stock")
        convert(tmp_path / "stock", tmp_path / "ours")
        mine = load(AutoModelForSeq2SeqLM, tmp_path / "ours")
        config = mine.config
        assert mine.dtype == dtype
        assert (config.dropout, config.attention_dropout, config.activation_dropout) == (0.3, 0.2, 0.1)
        assert config.head_bias == biased
        assert mine.lm_head.weight is mine.model.encoder.embed_tokens.weight
        convert(tmp_path / "ours", tmp_path / "again", to="transformers")
        again = load(type(stock), tmp_path / "again")
        assert again.dtype == dtype
        mine = TransformerForConditionalGeneration.from_pretrained(tmp_path / "ours", dtype=torch.float32)
        again = type(stock).from_pretrained(tmp_path / "again", dtype=torch.float32)
        stock = type(stock).from_pretrained(tmp_path / "stock", dtype=torch.float32)
        for other in (mine, again):
            close(other(**INPUTS).logits, stock(**INPUTS).logits)
            write_alike(other, stock)

    def test_older_files_say_everything_twice(self, tmp_path):
        for kind, stock in (("marian", marian()), ("bart", bart())):
            folder = tmp_path / kind
            stock.save_pretrained(folder)
            # Tied ones, constant tables; and how to write, in the configuration.
            save_file({name: t.clone() for name, t in stock.state_dict().items()}, folder / "model.safetensors")
            (folder / "generation_config.json").unlink()
            config = json.loads((folder / "config.json").read_text())
            config |= {"forced_eos_token_id": 3, "num_beams": 2, "bad_words_ids": [[1]]}
            (folder / "config.json").write_text(json.dumps(config))
            convert(folder, tmp_path / f"{kind}-ours")
            mine = load(AutoModelForSeq2SeqLM, tmp_path / f"{kind}-ours")
            close(mine(**INPUTS).logits, stock(**INPUTS).logits)
            written = mine.generation_config
            assert (written.forced_eos_token_id, written.num_beams, written.bad_words_ids) == (3, 2, [[1]])
            write_alike(mine, stock, forced_eos_token_id=3, bad_words_ids=[[1]])

    def test_one_embedding_may_be_untied_from_the_output_alone(self, tmp_path):
        stock = bart(tie_word_embeddings=False)
        stock.save_pretrained(tmp_path / "stock")
        with torch.no_grad():
            stock.model.decoder.embed_tokens.weight.copy_(stock.model.shared.weight)

        def drop(weights):
            del weights["model.encoder.embed_tokens.weight"], weights["model.decoder.embed_tokens.weight"]

        edit(tmp_path / "stock", drop)
        convert(tmp_path / "stock", tmp_path / "ours")
        mine = load(AutoModelForSeq2SeqLM, tmp_path / "ours")
        assert (mine.config.source_vocab_size, mine.config.tie_word_embeddings) == (None, False)
        close(mine(**INPUTS).logits, stock(**INPUTS).logits)
        convert(tmp_path / "ours", tmp_path / "again", to="transformers")
        close(load(type(stock), tmp_path / "again")(**INPUTS).logits, stock(**INPUTS).logits)

    @pytest.mark.parametrize(
        ("kind", "change", "words"),
        [
            (marian, lambda w: w.update(extra=torch.ones(2)), "no place for extra"),
            (marian, lambda w: w.pop("model.decoder.layers.1.fc1.bias"), r"lacks .* decoder\.layers\.1\.fc1\.bias"),
            (
                bart,
                lambda w: w.update({"model.encoder.layers.1.fc1.bias": torch.ones(5)}),
                r"no place for encoder\.layers\.1\.fc1\.bias",
            ),
            (marian, lambda w: w.update({"lm_head.weight": torch.ones(17, 8)}), r"lm_head\.weight is not the emb"),
            (
                bart,
                lambda w: w.update({"model.decoder.embed_tokens.weight": torch.ones(17, 8)}),
                r"decoder\.embed_tokens\.weight is not the embedding",
            ),
            (
                marian,
                lambda w: w.update({"model.encoder.embed_positions.weight": torch.ones(12, 8)}),
                r"encoder\.embed_positions\.weight does not hold the sinusoids",
            ),
            (
                marian,
                lambda w: w.update(final_logits_bias=torch.ones(1, 16)),
                r"final_logits_bias must have the shape \(1, 17\), got \(1, 16\)",
            ),
            (bart, lambda w: w.pop("model.shared.weight"), r"lacks the parameter shared\.weight"),
            (
                bart,
                lambda w: w.update({"model.encoder.embed_positions.weight": torch.ones(12, 8)}),
                r"positions\.table\.weight must have the shape \(12, 8\), got \(10, 8\)",
            ),
        ],
    )
    def test_what_has_no_place_is_named(self, kind, change, words, tmp_path):
        kind().save_pretrained(tmp_path / "stock")
        edit(tmp_path / "stock", change)
        with pytest.raises(ValueError, match=words):
            convert(tmp_path / "stock", tmp_path / "ours")
        assert not (tmp_path / "ours").exists()

    @pytest.mark.parametrize("kind", [marian, bart])
    @pytest.mark.parametrize(
        "options",
        [
            {"decoder_attention_heads": 4},
            {"decoder_ffn_dim": 6},
            {"encoder_layerdrop": 0.1},
            {"decoder_layerdrop": 0.2},
        ],
    )
    def test_settings_without_a_place_are_named(self, kind, options, tmp_path):
        kind(**options).save_pretrained(tmp_path / "stock")
        with pytest.raises(ValueError, match=f"{next(iter(options))}={next(iter(options.values()))}"):
            convert(tmp_path / "stock", tmp_path / "ours")

    def test_other_heads_are_named(self, tmp_path):
        bart(BartForSequenceClassification).save_pretrained(tmp_path / "stock")
        with pytest.raises(ValueError, match=r"architectures=\['BartForSequenceClassification'\]"):
            convert(tmp_path / "stock", tmp_path / "ours")

    def test_an_embedding_that_nothing_reads_is_named(self, tmp_path):
        random(BartForConditionalGeneration(BartConfig(**SIZES, tie_word_embeddings=False))).save_pretrained(
            tmp_path / "stock"
        )
        with pytest.raises(ValueError, match=r"shared\.weight is the embedding of neither side"):
            convert(tmp_path / "stock", tmp_path / "ours")


class TestBack:
    @pytest.mark.parametrize("model_class", [TransformerForConditionalGeneration, TransformerModel])
    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"source_vocab_size": 19, "head_bias": True, "label_smoothing": 0.1},
            {"tie_word_embeddings": False, "use_bias": False},
            {"hidden_size": 9, "num_attention_heads": 3, "position_layout": "halves", "scale_embedding": False},
            {"hidden_size": 9, "num_attention_heads": 3, "initializer_range": 0.1, "hidden_act": "gelu"},
            {"position_embeddings": "learned", "embedding_norm": True},
            {"position_embeddings": "learned", "embedding_norm": True, "use_bias": False, "head_bias": True},
            {
                "position_embeddings": "learned",
                "embedding_norm": True,
                "source_vocab_size": 17,
                "tie_word_embeddings": False,
            },
        ],
    )
    def test_it_computes_the_same(self, model_class, options, tmp_path):
        mine = ours(model_class, **options)
        mine.save_pretrained(tmp_path / "ours")
        convert(tmp_path / "ours", tmp_path / "theirs", to="transformers")
        head = model_class is TransformerForConditionalGeneration
        if "embedding_norm" in options:
            stock_class = BartForConditionalGeneration if head else BartModel
        else:
            stock_class = MarianMTModel if head else MarianModel
        theirs = load(stock_class, tmp_path / "theirs")
        if head:
            close(theirs(**INPUTS).logits, mine(**INPUTS).logits)
            write_alike(theirs, mine)
        else:
            order = list(range(mine.config.hidden_size))
            if mine.config.position_layout == "interleaved" and "embedding_norm" not in options:
                order = order[0::2] + order[1::2]
            close(theirs(**INPUTS)[0], mine(**INPUTS)[0][..., order])
        convert(tmp_path / "theirs", tmp_path / "again")
        assert load(model_class, tmp_path / "again").config.source_vocab_size == options.get("source_vocab_size")

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"norm_first": True}, "norm_first=True has no place in transformers' Marian"),
            ({"layer_norm_eps": 1e-6}, "layer_norm_eps=1e-06"),
            ({"decoder_residual_scale": 2}, "decoder_residual_scale=2 has no place in transformers' Marian"),
            ({"position_combination": "concat", "tie_word_embeddings": False}, "position_combination='concat'"),
            ({"embedding_norm": True}, "embedding_norm=True has no place in transformers' Marian"),
            ({"position_embeddings": "learned"}, "embedding_norm=False has no place in transformers' Bart"),
            (
                {"position_embeddings": "learned", "embedding_norm": True, "source_vocab_size": 19},
                "source_vocab_size=19 has no place in transformers' Bart",
            ),
        ],
    )
    def test_settings_without_a_place_are_named(self, options, words, tmp_path):
        ours(**options).save_pretrained(tmp_path / "ours")
        with pytest.raises(ValueError, match=words):
            convert(tmp_path / "ours", tmp_path / "theirs", to="transformers")

    def test_parameters_without_a_place_are_named(self, tmp_path):
        for name, words in (("lm_head.bias", r"no place for lm_head\.bias"), ("lm_head.weight", "not the embedding")):
            ours().save_pretrained(tmp_path / "ours")
            edit(tmp_path / "ours", lambda weights, name=name: weights.update({name: torch.ones(17)}))
            with pytest.raises(ValueError, match=words):
                convert(tmp_path / "ours", tmp_path / "theirs", to="transformers")


class TestTokenizer:
    def test_it_goes_along_both_ways(self, tmp_path):
        tokenizer = train_tokenizer("bpe", ["the cat sat"] * 2)
        ours(vocab_size=len(tokenizer)).save_pretrained(tmp_path / "ours")
        tokenizer.save_pretrained(tmp_path / "ours")
        convert(tmp_path / "ours", tmp_path / "theirs", to="transformers")
        convert(tmp_path / "theirs", tmp_path / "again")
        for folder in ("theirs", "again"):
            loaded = AutoTokenizer.from_pretrained(tmp_path / folder)
            assert loaded("the cat")["input_ids"] == tokenizer("the cat")["input_ids"]
            assert (loaded.pad_token_id, loaded.eos_token_id) == (1, 3)

    def test_marians_own(self, tmp_path):
        sentencepiece = pytest.importorskip("sentencepiece")
        folder = tmp_path / "stock"
        marian(vocab_size=40).save_pretrained(folder)
        (tmp_path / "text").write_text("the cat sat on the mat\na cat sat\n" * 3, encoding="utf-8")
        sentencepiece.SentencePieceTrainer.train(
            input=str(tmp_path / "text"), model_prefix=str(tmp_path / "words"), vocab_size=14, minloglevel=2
        )
        for side in ("source", "target"):
            shutil.copy(tmp_path / "words.model", folder / f"{side}.spm")
        pieces = [line.split("\t")[0] for line in (tmp_path / "words.vocab").read_text(encoding="utf-8").splitlines()]
        vocabulary = ["<unk>", "<pad>", "<s>", "</s>", *(p for p in pieces if not p.startswith("<"))]
        (folder / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(vocabulary)}))
        expected = AutoTokenizer.from_pretrained(folder)("the cat sat")["input_ids"]
        assert expected[-1] == 3
        convert(folder, tmp_path / "ours")
        assert AutoTokenizer.from_pretrained(tmp_path / "ours")("the cat sat")["input_ids"] == expected
