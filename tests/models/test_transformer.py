"""The Transformer keeps the contract, in every variant of its positions, norms and vocabularies."""

import math

import pytest
import torch
from safetensors.torch import load_file
from transformers import DynamicCache, QuantizedCache, StaticCache
from transformers.cache_utils import EncoderDecoderCache

from hf_attnzoo import TransformerConfig, TransformerForConditionalGeneration
from hf_attnzoo.models.modeling_transformer import SharedSourceCache
from hf_attnzoo.testing import SEQ2SEQ_CONTRACT, SEQ2SEQ_INTEGRATIONS, scattered

VARIANTS = {
    "paper": {"num_decoder_layers": 2},
    "pre-norm": {"norm_first": True, "num_encoder_layers": 2, "dropout": 0.2, "source_vocab_size": 18},
    "learned": {"position_embeddings": "learned", "embedding_norm": True, "head_bias": True, "attention_dropout": 0.1},
    "concat": {"position_combination": "concat", "tie_word_embeddings": False, "source_vocab_size": 18},
    "eager": {"position_layout": "halves", "hidden_act": "silu", "use_bias": False, "scale_embedding": False},
}
# Of these random models, those that write different words and whose beams change places.
SEEDS = {"paper": 34, "pre-norm": 21, "learned": 34, "concat": 6, "eager": 25}


def build(variant: str, **options) -> TransformerForConditionalGeneration:
    sizes = {"vocab_size": 20, "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 12}
    sizes |= {"num_encoder_layers": 1, "num_decoder_layers": 1, "max_position_embeddings": 32}
    model = TransformerForConditionalGeneration(TransformerConfig(**(sizes | VARIANTS[variant] | options)))
    if variant == "eager":
        model.set_attn_implementation("eager")
    scattered(model, SEEDS[variant])
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight"):
                # Where gains are small, biases say everything, and every position the same.
                parameter.add_(1)
    return model


@pytest.mark.parametrize("check", SEQ2SEQ_CONTRACT, ids=lambda check: check.__name__)
@pytest.mark.parametrize("variant", VARIANTS)
def test_contract(check, variant):
    check(build(variant))


@pytest.mark.parametrize("check", SEQ2SEQ_INTEGRATIONS, ids=lambda check: check.__name__)
def test_integrations(check):
    if check.__name__ == "check_lora":
        pytest.importorskip("peft")
    check(build("pre-norm"))


SOURCES = torch.tensor([[5, 8, 4, 9, 3], [6, 7, 3, 1, 1], [9, 3, 1, 1, 1]])


@pytest.mark.parametrize("variant", VARIANTS)
def test_beams_of_the_models_under_test_change_places(variant):
    options = {"num_beams": 3, "max_new_tokens": 8, "return_dict_in_generate": True, "output_scores": True}
    output = build(variant).generate(SOURCES, suppress_tokens=[3], **options)
    assert (output.beam_indices[:, 1:] != output.beam_indices[:, :-1]).sum() >= 5
    assert sum(len(set(row.tolist())) for row in output.sequences[:, 1:]) >= 7


def cache_of_quantised(model):
    return EncoderDecoderCache(QuantizedCache("fp8", model.config), DynamicCache(config=model.config))


class TestCaches:
    @pytest.mark.parametrize("implementation", ["eager", "sdpa"])
    @pytest.mark.parametrize("beams", [1, 3])
    @pytest.mark.parametrize("kind", ["static", "dynamic"])
    def test_every_kind_writes_the_same(self, implementation, beams, kind):
        model = build("paper")
        model.set_attn_implementation(implementation)
        options = {"max_new_tokens": 8, "num_beams": beams, "suppress_tokens": [3]}
        plain = model.generate(SOURCES, use_cache=False, **options)
        assert torch.equal(model.generate(SOURCES, cache_implementation=kind, **options), plain)

    def test_a_forced_beginning_padded_on_the_left_is_the_same_in_a_static_cache(self):
        model = build("learned")
        ids = torch.tensor([[1, 1, 2, 8], [2, 7, 9, 6], [1, 2, 5, 5]])
        options = {"decoder_input_ids": ids, "decoder_attention_mask": (ids != 1).long(), "max_new_tokens": 5}
        plain = model.generate(SOURCES, use_cache=False, **options)
        for kind in ("static", "dynamic"):
            assert torch.equal(model.generate(SOURCES, cache_implementation=kind, **options), plain)
        for row in range(3):
            real = ids[row] != 1
            alone = model.generate(
                SOURCES[row : row + 1], decoder_input_ids=ids[row : row + 1, real], max_new_tokens=5
            )
            written = plain[row, 4:]
            assert torch.equal(written[: alone.shape[1] - real.sum()], alone[0, real.sum() :])

    @pytest.mark.parametrize("beams", [1, 3])
    def test_one_that_the_caller_made(self, beams):
        model = build("paper")
        options = {"max_new_tokens": 6, "num_beams": beams}
        plain = model.generate(SOURCES, use_cache=False, **options)
        for cache in (
            EncoderDecoderCache(DynamicCache(config=model.config), DynamicCache(config=model.config)),
            EncoderDecoderCache(DynamicCache(), DynamicCache()),
            EncoderDecoderCache(
                StaticCache(config=model.config, max_cache_len=12), StaticCache(config=model.config, max_cache_len=5)
            ),
        ):
            assert torch.equal(model.generate(SOURCES, cache=cache, **options), plain)
            assert cache.cross_attention_cache.layers[1].keys.shape[0] == 3, "the source was copied for its beams"

    def test_a_quantised_one(self):
        model = build("paper")
        target = torch.tensor([[2, 5, 9, 7, 4], [2, 6, 4, 4, 8], [2, 7, 5, 8, 8]])
        whole = model(input_ids=SOURCES, decoder_input_ids=target, use_cache=False).logits
        cache = cache_of_quantised(model)
        pieces = []
        for piece in target.split(1, dim=1):
            pieces.append(model(input_ids=SOURCES, decoder_input_ids=piece, cache=cache).logits)
        coarse = torch.cat(pieces, dim=1)
        assert (coarse - whole).abs().mean() < 0.1 * whole.abs().mean()
        assert not torch.allclose(coarse, whole, atol=1e-5), "nothing was quantised"
        written = model.generate(SOURCES, cache=cache_of_quantised(model), num_beams=3, max_new_tokens=4)
        assert written.shape[0] == 3

    def test_one_that_is_kept_elsewhere_is_refused_where_there_is_nothing_else(self):
        with pytest.raises(ValueError, match=r"cache_implementation='offloaded'.*'cpu'"):
            build("paper").generate(SOURCES, cache_implementation="offloaded", max_new_tokens=2)

    def test_beams_share_their_source(self):
        model = build("paper")
        output = model.generate(SOURCES, num_beams=4, max_new_tokens=4, return_dict_in_generate=True)
        assert type(output.cache) is SharedSourceCache
        for own, shared in zip(
            output.cache.self_attention_cache.layers, output.cache.cross_attention_cache.layers, strict=True
        ):
            assert own.keys.shape[0] == 12
            assert shared.keys.shape[:3] == (3, 2, 5)

    def test_hypotheses_repeated_and_selected_keep_their_sources(self):
        model = build("paper")
        target = torch.tensor([[2, 5], [2, 6], [2, 7]])
        cache = model(input_ids=SOURCES, decoder_input_ids=target, use_cache=True).cache
        cache.batch_repeat_interleave(2)
        cache.batch_select_indices(torch.tensor([5, 0, 2]))
        encoded = model.get_encoder()(input_ids=SOURCES[[2, 0, 1]])
        step = torch.tensor([[8], [9], [4]])
        continued = model(encoder_outputs=encoded, decoder_input_ids=step, cache=cache).logits
        whole = torch.cat([target[[2, 0, 1]], step], dim=1)
        expected = model(input_ids=SOURCES[[2, 0, 1]], decoder_input_ids=whole).logits[:, -1:]
        torch.testing.assert_close(continued, expected, atol=1e-5, rtol=1e-5)

    def test_what_is_not_one_of_these_texts_is_refused(self):
        model = build("paper")
        target = torch.tensor([[2, 5], [2, 6], [2, 7]])
        cache = model(input_ids=SOURCES, decoder_input_ids=target, use_cache=True).cache
        with pytest.raises(ValueError, match=r"decoder_input_ids has 2 rows.* 3"):
            model(input_ids=SOURCES[:2], decoder_input_ids=target[:2], cache=cache)
        with pytest.raises(ValueError, match="EncoderDecoderCache, got DynamicCache"):
            model(input_ids=SOURCES, decoder_input_ids=target, cache=DynamicCache())
        with pytest.raises(ValueError, match=r"decoder_attention_mask.*\(3, 4\).*\(3, 2\)"):
            model(input_ids=SOURCES, decoder_input_ids=target, cache=cache, decoder_attention_mask=torch.ones(3, 2))


def test_an_assistant_changes_nothing():
    model, assistant = build("paper"), build("learned")
    for row in SOURCES:
        source = row[row != 1][None]
        plain = model.generate(source, max_new_tokens=10)
        assert torch.equal(model.generate(source, assistant_model=assistant, max_new_tokens=10), plain)


def test_leaving_early_changes_nothing_either():
    model = build("paper", num_decoder_layers=2)
    source = SOURCES[1][SOURCES[1] != 1][None]
    last = []
    model.model.decoder.stack.layers[-1].register_forward_hook(lambda *_: last.append(1))
    first = []
    model.model.decoder.stack.layers[0].register_forward_hook(lambda *_: first.append(1))
    plain = model.generate(source, max_new_tokens=10)
    assert len(first) == len(last)
    assert torch.equal(model.generate(source, assistant_early_exit=1, max_new_tokens=10), plain)
    assert len(first) > len(last), "no layer was left out"


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_packed_pairs_are_as_they_are_alone(implementation):
    model = build("pre-norm")
    model.set_attn_implementation(implementation)
    sources = [[5, 8, 3], [6, 3], [9, 9, 4, 3]]
    targets = [[7, 3], [8, 4, 3], [5, 3]]
    read = [[2, *target[:-1]] for target in targets]

    def packed(rows):
        ids = [word for row in rows for word in row]
        return torch.tensor([ids]), torch.tensor([[place for row in rows for place in range(len(row))]])

    (input_ids, position_ids), (decoder_input_ids, decoder_position_ids) = packed(sources), packed(read)
    output = model(
        input_ids=input_ids,
        position_ids=position_ids,
        decoder_input_ids=decoder_input_ids,
        decoder_position_ids=decoder_position_ids,
        labels=packed(targets)[0],
    )
    start, total = 0, 0
    for source, target in zip(sources, targets, strict=True):
        alone = model(input_ids=torch.tensor([source]), labels=torch.tensor([target]))
        logits = output.logits[:, start : start + len(target)]
        torch.testing.assert_close(logits, alone.logits, atol=1e-5, rtol=1e-5)
        start, total = start + len(target), total + alone.loss * len(target)
    torch.testing.assert_close(output.loss, total / start)
    with pytest.raises(ValueError, match="decoder_position_ids"):
        model(input_ids=input_ids, position_ids=position_ids, decoder_input_ids=decoder_input_ids)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("packed", [False, True])
def test_no_gradient_comes_from_later_or_elsewhere(packed, implementation):
    model = build("pre-norm").double()
    model.set_attn_implementation(implementation)
    read = torch.tensor([[2, 8, 9, 2, 7, 6], [2, 5, 5, 2, 9, 1]])
    sources = torch.tensor([[5, 8, 3, 9, 3], [6, 3, 7, 3, 1]])
    of_targets, of_sources = torch.zeros(2, 6), torch.zeros(2, 5)
    options = {"decoder_attention_mask": (read != 1).long()}
    if packed:
        of_targets[:, 3:], of_sources[0, 3:], of_sources[1, 2:] = 1, 1, 1
        options |= {
            "decoder_position_ids": torch.tensor([[0, 1, 2, 0, 1, 2]] * 2),
            "position_ids": torch.tensor([[0, 1, 2, 0, 1], [0, 1, 0, 1, 0]]),
        }
    source, target = (
        embed(ids).detach().requires_grad_()
        for embed, ids in ((model.get_input_embeddings(), sources), (model.get_decoder_input_embeddings(), read))
    )
    mask = (sources != 1).long()
    logits = model(inputs_embeds=source, attention_mask=mask, decoder_inputs_embeds=target, **options).logits
    # Of the change of a later word, or of another document's, nothing arrives at all: not little, 0.
    for row, length in enumerate((6, 5)):
        for place in range(length):
            of_source, of_target = torch.autograd.grad(
                logits[row, place].square().sum(), (source, target), retain_graph=True
            )
            document = of_targets[row, place]
            earlier = (torch.arange(6) <= place) & (of_targets[row] == document)
            assert torch.equal(of_target[row].ne(0).any(dim=-1), earlier)
            assert torch.equal(of_source[row].ne(0).any(dim=-1), (of_sources[row] == document) & mask[row].bool())
            assert not of_source[1 - row].any()
            assert not of_target[1 - row].any()
    changed = read.clone()
    changed[0, 4] = 11
    before, after = (
        model(input_ids=sources, decoder_input_ids=given, use_cache=False, **options).logits
        for given in (read, changed)
    )
    assert torch.equal(before[0, :4], after[0, :4])
    assert torch.equal(before[1, :5], after[1, :5])
    assert before[0, 4:].ne(after[0, 4:]).any(dim=-1).all()


class TestTooLong:
    """There are 32 positions."""

    def test_a_source(self):
        with pytest.raises(ValueError, match=r"32.*31"):
            build("paper")(input_ids=torch.full((1, 33), 5), decoder_input_ids=torch.tensor([[2]]))

    @pytest.mark.parametrize("variant", ["paper", "learned"])
    def test_a_target(self, variant):
        model = build(variant)
        with pytest.raises(ValueError, match=r"32.*31"):
            model.generate(SOURCES, max_new_tokens=33, suppress_tokens=[3])
        assert model.generate(SOURCES, max_new_tokens=32, suppress_tokens=[3]).shape == (3, 33)

    def test_padding_does_not_count(self):
        model = build("paper")
        source = torch.tensor([[1] * 30 + [5, 7, 3]])
        target = torch.tensor([[2, 5]])
        alone = model(input_ids=source[:, 30:], decoder_input_ids=target).logits
        torch.testing.assert_close(model(input_ids=source, decoder_input_ids=target).logits, alone)


def test_position_vectors_survive_loading(tmp_path):
    for variant in ("paper", "eager", "concat"):
        model = build(variant)
        model.save_pretrained(tmp_path / variant)
        # Memory that is handed out again shall not hold the right values by chance.
        torch.full((1 << 20,), 7.0)
        loaded = TransformerForConditionalGeneration.from_pretrained(tmp_path / variant)
        buffers = dict(model.named_buffers())
        assert len(buffers) == 2
        for name, buffer in loaded.named_buffers():
            assert torch.equal(buffer, buffers[name]), name
        names = load_file(tmp_path / variant / "model.safetensors")
        assert not [name for name in names if "positions" in name]


def test_labels_are_smoothed_in_training_alone():
    smooth, plain = build("paper", label_smoothing=0.2, dropout=0.0), build("paper", dropout=0.0)
    labels = torch.tensor([[5, 6, 3], [7, 3, -100], [3, -100, -100]])
    assert smooth(input_ids=SOURCES, labels=labels).loss == plain(input_ids=SOURCES, labels=labels).loss
    logits = plain(input_ids=SOURCES, labels=labels).logits
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=0.2)
    torch.testing.assert_close(smooth.train()(input_ids=SOURCES, labels=labels).loss, expected)
    unsmoothed = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    torch.testing.assert_close(plain.train()(input_ids=SOURCES, labels=labels).loss, unsmoothed)


def test_a_fresh_model_is_as_the_authors_drew_it():
    config = TransformerConfig(hidden_size=64, intermediate_size=256, num_encoder_layers=1, num_decoder_layers=1)
    torch.manual_seed(0)
    model = TransformerForConditionalGeneration(config)
    words = model.get_input_embeddings().weight
    assert words[config.pad_token_id].eq(0).all()
    assert words[4:].std().item() == pytest.approx(1 / 8, rel=0.02)
    assert model.lm_head.weight is words
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert parameter.eq(0).all(), name
        elif "norm" in name:
            assert parameter.eq(1).all(), name
        elif "embed" not in name:
            bound = math.sqrt(6 / sum(parameter.shape))
            assert parameter.abs().max() <= bound
            assert parameter.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05), name
    config.initializer_range = 0.5
    model = TransformerForConditionalGeneration(config)
    assert model.model.encoder.stack.layers[0].feed_forward.up_proj.weight.std().item() == pytest.approx(0.5, rel=0.03)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"hidden_size": 10, "num_attention_heads": 4}, ("hidden_size=10", "num_attention_heads=4")),
        ({"position_combination": "concat"}, ("tie_word_embeddings",)),
        (
            {"position_combination": "concat", "position_size": 256, "tie_word_embeddings": False},
            ("position_size=256", "hidden_size=256"),
        ),
        ({"position_size": 4}, ("position_size=4",)),
        ({"position_embeddings": "sinusoid"}, ("'sinusoid'", "did you mean 'sinusoidal'")),
        ({"hidden_act": "rely"}, ("'rely'", "'relu'")),
        ({"label_smoothing": 1.0}, ("label_smoothing=1.0",)),
        ({"max_position_embeddings": 0}, ("max_position_embeddings=0",)),
        ({"pad_token_id": 1000}, ("pad_token_id=1000", "999")),
        ({"initializer_range": -0.1}, ("initializer_range=-0.1",)),
    ],
)
def test_a_configuration_that_makes_no_model_is_refused(options, words):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        TransformerConfig(**options)
    assert all(word in str(error.value) for word in words), error.value


@pytest.mark.parametrize(("preset", "millions"), [("base", 63), ("big", 214)])
def test_presets_have_the_size_of_table_3(preset, millions):
    with torch.device("meta"):
        model = TransformerForConditionalGeneration(TransformerConfig.from_preset(preset))
    count = model.num_parameters()
    assert round(count / 1e6) == millions
