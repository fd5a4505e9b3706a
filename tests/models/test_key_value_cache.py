"""A cache that has room for what is to come against one that puts everything together anew."""

import copy
import itertools

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, StaticCache
from transformers.cache_utils import DynamicLayer, EncoderDecoderCache

from hf_attnzoo.models import key_value_cache
from hf_attnzoo.models.configuration_gpt import GPTConfig
from hf_attnzoo.models.configuration_transformer import TransformerConfig
from hf_attnzoo.models.key_value_cache import RoomyLayer, give_room, take_room
from hf_attnzoo.models.modeling_gpt import GPTForCausalLM
from hf_attnzoo.models.modeling_transformer import TransformerForConditionalGeneration


@pytest.fixture(autouse=True)
def _room_for_small_ones_too(monkeypatch):
    monkeypatch.setattr(key_value_cache, "_FEW", 0)


def states(length: int, rows: int = 3) -> Tensor:
    return torch.randn(rows, 2, length, 4)


def filled(*lengths: int) -> tuple[RoomyLayer, Tensor, Tensor]:
    """A layer after some updates, and all that it was given."""
    layer, keys, values = RoomyLayer(), [], []
    for length in lengths:
        keys.append(states(length))
        values.append(states(length))
        layer.update(keys[-1], values[-1])
    return layer, torch.cat(keys, dim=2), torch.cat(values, dim=2)


@torch.no_grad()
def test_it_holds_all_and_moves_it_only_where_there_is_no_room_left():
    torch.manual_seed(0)
    layer, given, places = RoomyLayer(), [], []
    for length in [5, *[1] * 150, 90, 1]:
        given.append((states(length), states(length)))
        returned = layer.update(*given[-1])
        for found, held, parts in zip(returned, (layer.keys, layer.values), zip(*given, strict=True), strict=True):
            assert torch.equal(found, torch.cat(parts, dim=2))
            assert found is held
        places.append(layer.keys.data_ptr())
    assert layer.get_seq_length() == 5 + 150 + 90 + 1
    # From the prompt's place to one with room for 6 + 64, then 71 + 64 and 136 + 64, then 245 + 64 positions.
    assert sum(one != other for one, other in itertools.pairwise(places)) == 4
    assert layer.keys.untyped_storage().nbytes() == layer.keys.nbytes // 246 * (245 + 64)


@torch.no_grad()
def test_small_ones_are_copied(monkeypatch):
    monkeypatch.setattr(key_value_cache, "_FEW", 3 * 2 * 4 * 7)
    layer, keys, values = filled(5, 1)
    assert layer.keys.is_contiguous()
    layer.update(states(1), states(1))
    assert layer.keys.is_contiguous()
    layer.update(states(1), states(1))
    assert not layer.keys.is_contiguous()
    assert torch.equal(layer.keys[:, :, :6], keys)
    assert torch.equal(layer.values[:, :, :6], values)


def change(layer: DynamicLayer, how: str) -> None:
    if how == "crop":
        layer.crop(-2)
    elif how == "reorder":
        layer.reorder_cache(torch.tensor([2, 0, 0]))
    elif how == "select":
        layer.batch_select_indices(torch.tensor([1, 2, 1]))
    elif how == "repeat":
        layer.batch_select_indices(torch.tensor([1]))
        layer.batch_repeat_interleave(3)
    elif how == "first row":
        layer.keys, layer.values = layer.keys[:1], layer.values[:1]
    else:
        layer.reset()


@pytest.mark.parametrize("how", ["crop", "reorder", "select", "repeat", "first row", "reset"])
@torch.no_grad()
def test_what_is_done_to_it_is_kept(how):
    torch.manual_seed(0)
    layer, keys, values = filled(4, 1, 1)
    usual = DynamicLayer()
    usual.update(keys, values)
    for held in (layer, usual):
        change(held, how)
    for length in (1, 1, 2):
        rows = 1 if how == "first row" else 3
        new = states(length, rows), states(length, rows)
        for found, expected in zip(layer.update(*new), usual.update(*new), strict=True):
            assert torch.equal(found, expected)


def test_a_gradient_goes_through():
    layer, keys, values = RoomyLayer(), [states(2).requires_grad_() for _ in range(3)], states(2)
    for key in keys:
        found = layer.update(key, values)[0]
    (found * torch.arange(6.0)[:, None]).sum().backward()
    for index, key in enumerate(keys):
        assert torch.equal(key.grad, torch.tensor([2.0 * index, 2.0 * index + 1])[:, None].expand_as(key))


SIZES = {"vocab_size": 20, "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 16}
CONFIG = GPTConfig(num_hidden_layers=2, **SIZES)


def kinds(cache: DynamicCache) -> list[type]:
    return [type(layer) for layer in cache.layers]


def test_which_caches_are_given_room():
    dynamic, static, lazy = DynamicCache(config=CONFIG), StaticCache(config=CONFIG, max_cache_len=8), DynamicCache()
    pair = EncoderDecoderCache(DynamicCache(config=CONFIG), DynamicCache(config=CONFIG))
    before = kinds(static)
    for cache in (dynamic, static, lazy, pair, None):
        give_room(cache)
    assert kinds(dynamic) == kinds(pair.self_attention_cache) == [RoomyLayer] * 2
    assert kinds(pair.cross_attention_cache) == [DynamicLayer] * 2
    assert kinds(static) == before
    assert kinds(lazy) == []


@torch.no_grad()
def test_what_room_is_taken_from_is_a_cache_like_any_other():
    cache, (full, keys, values) = DynamicCache(config=CONFIG), filled(3, 1, 1)
    cache.layers = [full, RoomyLayer()]
    take_room(cache)
    assert kinds(cache) == [DynamicLayer] * 2
    assert torch.equal(cache.layers[0].keys, keys)
    assert torch.equal(cache.layers[0].values, values)
    assert cache.layers[0].keys.untyped_storage().nbytes() == keys.nbytes
    assert not cache.layers[1].is_initialized


IDS = torch.tensor([[5, 8, 4, 7]])


def build(family: str) -> GPTForCausalLM | TransformerForConditionalGeneration:
    torch.manual_seed(0)
    if family == "gpt":
        model = GPTForCausalLM(CONFIG)
    else:
        model = TransformerForConditionalGeneration(
            TransformerConfig(num_encoder_layers=1, num_decoder_layers=2, **SIZES)
        )
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model.eval()


@pytest.mark.parametrize("options", [{}, {"num_beams": 2}, {"prompt_lookup_num_tokens": 2}, {"early": 1}], ids=str)
@pytest.mark.parametrize("family", ["gpt", "transformer"])
def test_generation_writes_the_same_in_it(monkeypatch, family, options):
    model = build(family)
    options = {"max_new_tokens": 12, "suppress_tokens": [3]} | options
    if "early" in options:
        options["assistant_early_exit"] = options.pop("early")
    made, new_empty = [], Tensor.new_empty
    monkeypatch.setattr(Tensor, "new_empty", lambda *args: made.append(args) or new_empty(*args))
    written = model.generate(IDS, return_dict_in_generate=True, output_logits=True, **options)
    assert bool(made) == ("num_beams" not in options)
    monkeypatch.setattr(key_value_cache, "_FEW", float("inf"))
    usual = model.generate(IDS, return_dict_in_generate=True, output_logits=True, **options)
    assert torch.equal(written.sequences, usual.sequences)
    for one, other in zip(written.logits, usual.logits, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("family", ["gpt", "transformer"])
def test_generation_returns_a_cache_that_anybody_can_keep(family):
    model, options = build(family), {"suppress_tokens": [3], "return_dict_in_generate": True}
    text = "input_ids" if family == "gpt" else "decoder_input_ids"
    source = {} if family == "gpt" else {"input_ids": IDS}
    whole = model.generate(IDS, max_new_tokens=10, **options).sequences
    begun = model.generate(IDS, max_new_tokens=5, **options)
    own = getattr(begun.cache, "self_attention_cache", begun.cache)
    assert kinds(own) == [DynamicLayer] * 2
    for cache in (copy.deepcopy(begun.cache), begun.cache):
        written = model.generate(**source, **{text: begun.sequences}, cache=cache, max_new_tokens=5, **options)
        assert torch.equal(written.sequences, whole)
