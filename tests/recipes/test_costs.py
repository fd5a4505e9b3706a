"""Parameters, operations, memory and hours against numbers worked out by hand, and totals that are known."""

import pytest
import torch

from hf_attnzoo.recipes.costs import (
    DEVICES,
    BatchShape,
    memory_per_device,
    parameter_count,
    training_flops,
    training_hours,
)
from hf_attnzoo.registry import FAMILIES


def model(name, **fields):
    family = FAMILIES[name]
    with torch.device("meta"):
        return family.model_class(family.head)(family.config_class(**fields))


def preset(name, preset_name, **fields):
    family = FAMILIES[name]
    with torch.device("meta"):
        return family.model_class(family.head)(family.config_class.from_preset(preset_name, **fields))


# Forward, for each: weights that a token of the source meets, of the target, of a row; the head; attention.
@pytest.mark.parametrize(
    ("name", "fields", "shape", "forward"),
    [
        (
            "transformer",
            {
                "vocab_size": 10,
                "hidden_size": 4,
                "num_attention_heads": 2,
                "intermediate_size": 8,
                "num_encoder_layers": 1,
                "num_decoder_layers": 1,
            },
            BatchShape(2, 3, 5),
            # Keys and values of the cross-attention are made of the source.
            2 * (128 + 32) * 6 + 2 * 160 * 10 + 2 * 40 * 10 + 4 * 4 * 2 * (9 + 25 + 15),
        ),
        (
            "gpt",
            {"vocab_size": 10, "hidden_size": 4, "num_attention_heads": 2, "num_hidden_layers": 1},
            BatchShape(1, 0, 3, predicted=2),
            2 * 192 * 3 + 2 * 40 * 2 + 4 * 4 * 9,
        ),
        (
            "bert",
            {
                "vocab_size": 10,
                "hidden_size": 4,
                "num_attention_heads": 2,
                "num_hidden_layers": 1,
                "intermediate_size": 8,
            },
            BatchShape(1, 0, 3, predicted=1),
            2 * 128 * 3 + 2 * (16 + 40) * 1 + 4 * 4 * 9,
        ),
        (
            "rnnsearch",
            {
                "vocab_size": 10,
                "source_vocab_size": 12,
                "embedding_size": 2,
                "hidden_size": 3,
                "attention_size": 4,
                "maxout_size": 2,
            },
            BatchShape(1, 5, 7),
            # Gates of two directions, U_a; gates of word, context and state, W_a, U_o, V_o, C_o; W_s; head; v and c
            2 * (2 * 45 + 24) * 5 + 2 * (18 + 54 + 27 + 12 + 44) * 7 + 2 * 9 + 2 * 20 * 7 + 2 * 35 * (4 + 6),
        ),
        (
            "rnnsearch",
            {
                "vocab_size": 10,
                "embedding_size": 2,
                "hidden_size": 3,
                "maxout_size": 2,
                "attention": "none",
                "bidirectional": False,
            },
            BatchShape(2, 5, 7),
            # Gates; gates of word and state, U_o, V_o; W_s, and gates and C_o of the one vector; head
            2 * 45 * 10 + 2 * (18 + 27 + 12 + 8) * 14 + 2 * (9 + 27 + 12) * 2 + 2 * 20 * 14,
        ),
        (
            "luong",
            {
                "vocab_size": 10,
                "source_vocab_size": 9,
                "embedding_size": 2,
                "hidden_size": 4,
                "attention": "local-p",
                "input_feeding": True,
            },
            BatchShape(2, 5, 3),
            # Gates, and W_a; gates of word, state and feeding, W_p, v_p, W_c; head; scores and contexts
            2 * (96 + 16) * 10 + 2 * (32 + 64 + 64 + 16 + 4 + 32) * 6 + 2 * 40 * 6 + 2 * 30 * (4 + 4),
        ),
        (
            "rnnlm",
            {"vocab_size": 10, "embedding_size": 2, "hidden_size": 3, "num_layers": 2},
            BatchShape(1, 0, 4, predicted=3),
            2 * (24 + 36 + 36 + 36) * 4 + 2 * 30 * 3,
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_operations_by_hand(name, fields, shape, forward):
    assert training_flops(model(name, **fields), shape) == 3 * forward


def test_six_operations_a_parameter_and_token_but_for_attention_and_embeddings():
    gpt = preset("gpt", "gpt2")
    flops = training_flops(gpt, BatchShape(1, 0, 1024, predicted=1024)) / 1024
    # Chowdhery et al. (2022), appendix B: 6 N + 12 L H Q T, where positions and vectors aren't multiplied by anything.
    assert flops == pytest.approx(6 * 124_439_808 + 12 * 12 * 768 * 1024, rel=0.01)


def test_a_convolution_is_not_counted_by_its_weights():
    with pytest.raises(ValueError, match=r"model.encoder.* is a convolution"):
        training_flops(model("show_attend_tell"), BatchShape(1, 16, 5))


@pytest.mark.parametrize(
    ("name", "preset_name", "fields", "count"),
    [
        # As released: GPT-2 small, and BERT base with its head for masked words
        ("gpt", "gpt2", {}, 124_439_808),
        ("bert", "base", {}, 109_514_298),
        # Table 3 has 65 million. Words; 6 layers of 4 d^2 + 2 d f and 6 of 8 d^2 + 2 d f; biases and norms.
        ("transformer", "base", {}, 37_000 * 512 + 6 * (12 * 512**2 + 4 * 512 * 2048 + 24 * 512 + 2 * 2048)),
    ],
)
def test_known_numbers_of_parameters(name, preset_name, fields, count):
    assert parameter_count(preset(name, preset_name, **fields)) == count


def memory(**changes):
    options = {"precision": "fp32", "strategy": "ddp", "devices": 1, "largest_layer": 10} | changes
    return memory_per_device(100, 8.0, 5000, 7, **options)


def test_memory_by_hand():
    alone = memory()
    assert (alone.weights, alone.gradients, alone.optimizer, alone.activations) == (400, 400, 800, 5000)
    # Chunks of 256 positions: logits, and their softmax and gradient
    assert alone.logits == 256 * 7 * 12
    assert alone.total == 400 + 400 + 800 + 5000 + 256 * 7 * 12
    # With others, gradients are exchanged in buffers as large.
    assert memory(devices=4).gradients == 800
    assert memory(precision="bf16").weights == 400 + 200
    assert memory(precision="bf16").logits == 256 * 7 * 10
    for strategy, sizes in {
        "zero1": (400, 400, 200),
        "zero2": (400, 100, 200),
        "zero3": (100 + 40, 100, 200),
        "fsdp": (100 + 40, 100, 200),
    }.items():
        shared = memory(strategy=strategy, devices=4)
        assert (shared.weights, shared.gradients, shared.optimizer) == sizes
        assert shared.activations == 5000


def test_hours_by_hand():
    assert training_hours(3.6e15, 2, 1e12, 0.5) == 1.0
    for share in (0.0, 1.5):
        with pytest.raises(ValueError, match=f"utilization={share} must be above 0 and up to 1"):
            training_hours(1.0, 1, 1.0, share)


def test_devices():
    assert DEVICES["a100-80gb"].peak("bf16") == 312e12
    with pytest.raises(ValueError, match=r"training\.precision=bf16: v100 has no hardware for it"):
        DEVICES["v100"].peak("bf16")
    with pytest.raises(ValueError, match="strategy='zero9' is none of ddp, zero1"):
        memory(strategy="zero9")
    with pytest.raises(ValueError, match="devices=0 must be at least 1"):
        memory(devices=0)
