"""GPT-2 as transformers has it, and nanoGPT's checkpoints, to our GPT; and back to GPT-2.

The three have the same layers under other names. transformers' GPT-2 keeps the matrices of its layers transposed, as
OpenAI's code did; nanoGPT may have no biases, which are then zeros in a GPT-2.
"""

from collections.abc import Iterator
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import GPT2Config, PreTrainedModel

from ..models import modeling_gpt
from ..models.configuration_gpt import GPTConfig
from .checkpoints import Checkpoint, Weights, build_model

# Ours -> theirs.
_SETTINGS = {
    "vocab_size": "vocab_size",
    "max_position_embeddings": "n_positions",
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "intermediate_size": "n_inner",
    "hidden_act": "activation_function",
    "layer_norm_eps": "layer_norm_epsilon",
    "dropout": "resid_pdrop",
    "embedding_dropout": "embd_pdrop",
    "attention_dropout": "attn_pdrop",
    "initializer_range": "initializer_range",
    "tie_word_embeddings": "tie_word_embeddings",
    "use_cache": "use_cache",
    "pad_token_id": "pad_token_id",
    "bos_token_id": "bos_token_id",
    "eos_token_id": "eos_token_id",
    "id2label": "id2label",
    "label2id": "label2id",
    "problem_type": "problem_type",
}

# What the other side computes if it is set otherwise, ours doesn't.
_GPT2_FIXED = {
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "reorder_and_upcast_attn": False,
    "add_cross_attention": False,
}
_GPT_FIXED = {"norm_first": True, "activation_dropout": 0.0}

_CLASSES = {
    "GPT2Model": "GPTModel",
    "GPT2LMHeadModel": "GPTForCausalLM",
    "GPT2ForSequenceClassification": "GPTForSequenceClassification",
    "GPT2ForTokenClassification": "GPTForTokenClassification",
}

# Of each class, what it has besides the layers; the same names on both sides.
_HEADS = {
    "GPTModel": (),
    "GPTForCausalLM": ("lm_head.weight",),
    "GPTForSequenceClassification": ("score.weight",),
    "GPTForTokenClassification": ("classifier.weight", "classifier.bias"),
}

_NANOGPT_SETTINGS = {
    "vocab_size": "vocab_size",
    "max_position_embeddings": "block_size",
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "use_bias": "bias",
    "dropout": "dropout",
    "attention_dropout": "dropout",
}


def from_gpt2(checkpoint: Checkpoint) -> PreTrainedModel:
    """A GPT with the weights of transformers' GPT-2, or of one of its heads.

    Args:
        checkpoint: of kind `"gpt2"`.

    Returns:
        Of the class that belongs to `architectures`, or a language model if that says nothing.

    Raises:
        ValueError: if a setting or a parameter has no place, or one is missing.
    """
    stock = GPT2Config.from_dict(checkpoint.config)
    _check_fixed(stock, _GPT2_FIXED, "GPT")
    architecture = (stock.architectures or ["GPT2LMHeadModel"])[0]
    if architecture not in _CLASSES:
        raise ValueError(f"architectures={stock.architectures}: these can be converted: {', '.join(_CLASSES)}")
    settings = {ours: getattr(stock, theirs) for ours, theirs in _SETTINGS.items()}
    for token in ("pad_token_id", "bos_token_id", "eos_token_id"):
        # GPT-2's own ids are left standing in models of smaller vocabularies, where they name no word; nor does -1.
        settings[token] = _words(settings[token], stock.vocab_size)
    # A rate that GPT-2 takes from its configuration without declaring it.
    settings["classifier_dropout"] = getattr(stock, "classifier_dropout", None)
    if settings["classifier_dropout"] is None and architecture == "GPT2ForTokenClassification":
        settings["classifier_dropout"] = 0.1
    return _to_ours(checkpoint, _CLASSES[architecture], GPTConfig(**settings), transposed=True)


def from_nanogpt(checkpoint: Checkpoint) -> PreTrainedModel:
    """A GPT with the weights that nanoGPT's `train.py` has saved.

    nanoGPT says nothing about tokens, so the configuration names none to begin, end or pad a text with.

    Args:
        checkpoint: of kind `"nanogpt"`; its `config` is the `model_args`.

    Returns:
        A language model.

    Raises:
        ValueError: if a setting or a parameter has no place, or one is missing.
    """
    given = {"bias": True, "dropout": 0.0} | checkpoint.config
    unknown = given.keys() - set(_NANOGPT_SETTINGS.values())
    if unknown:
        raise ValueError(f"model_args: GPT has no place for {', '.join(sorted(unknown))}")
    missing = set(_NANOGPT_SETTINGS.values()) - given.keys()
    if missing:
        raise ValueError(f"model_args lack {', '.join(sorted(missing))}")
    settings = {ours: given[theirs] for ours, theirs in _NANOGPT_SETTINGS.items()}
    tokens = {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
    # torch.compile puts a name in front of all others.
    checkpoint.weights = Weights({name.removeprefix("_orig_mod."): t for name, t in checkpoint.weights.items()})
    return _to_ours(checkpoint, "GPTForCausalLM", GPTConfig(**settings, **tokens, hidden_act="gelu"), transposed=False)


def to_gpt2(checkpoint: Checkpoint) -> PreTrainedModel:
    """transformers' GPT-2, or one of its heads, with the weights of a GPT.

    Args:
        checkpoint: of kind `"attnzoo_gpt"`.

    Returns:
        Of the class that belongs to `architectures`.

    Raises:
        ValueError: if a setting or a parameter has no place, or one is missing.
    """
    config = GPTConfig.from_dict(checkpoint.config)
    _check_fixed(config, _GPT_FIXED, "GPT-2")
    name = (config.architectures or ["GPTForCausalLM"])[0]
    theirs = {ours: stock for stock, ours in _CLASSES.items()}
    if name not in theirs:
        raise ValueError(f"architectures={config.architectures}: these can be converted: {', '.join(theirs)}")
    settings = {stock: getattr(config, ours) for ours, stock in _SETTINGS.items()}
    if config.embedding_dropout is None:
        settings["embd_pdrop"] = config.dropout
    if name == "GPTForTokenClassification":
        rate = config.classifier_dropout
        settings["classifier_dropout"] = config.dropout if rate is None else rate

    taken, inside = {}, "" if name == "GPTModel" else "model."
    prefix = "" if name == "GPTModel" else "transformer."
    for ours, stock, matrix in _layers(config):
        if ours.endswith(".bias") and not config.use_bias:
            # Its weight has been taken before it, and stands there with the outputs last.
            weight = taken[prefix + stock.removesuffix("bias") + "weight"]
            taken[prefix + stock] = weight.new_zeros(weight.shape[-1])
            continue
        tensor = checkpoint.weights.take(inside + ours)
        taken[prefix + stock] = tensor.T if matrix else tensor
    taken |= _take_head(checkpoint.weights, name, config.tie_word_embeddings, taken[f"{prefix}wte.weight"])
    stock_class = getattr(transformers, theirs[name])
    return build_model(stock_class, GPT2Config(**settings), taken, checkpoint.folder)


def _to_ours(checkpoint: Checkpoint, name: str, config: GPTConfig, transposed: bool) -> PreTrainedModel:
    weights = checkpoint.weights
    # A checkpoint of the layers alone, as the first ones of GPT-2 are, has nothing in front of their names.
    prefix = "transformer." if any(key.startswith("transformer.") for key in weights) else ""
    inside = "" if name == "GPTModel" else "model."
    _drop_masks(weights, prefix, config)
    taken = {}
    for ours, theirs, matrix in _layers(config):
        if ours.endswith(".bias") and not config.use_bias:
            continue
        tensor = weights.take(prefix + theirs)
        taken[inside + ours] = tensor.T if matrix and transposed else tensor
    taken |= _take_head(weights, name, config.tie_word_embeddings, taken[f"{inside}embed_tokens.weight"])
    return build_model(getattr(modeling_gpt, name), config, taken, checkpoint.folder)


def _words(token: int | list[int] | None, vocab_size: int) -> int | list[int] | None:
    """What names a word of a vocabulary, of an id or several."""
    if isinstance(token, list):
        return [one for one in token if 0 <= one < vocab_size] or None
    return token if token is None or 0 <= token < vocab_size else None


def _layers(config: GPTConfig) -> Iterator[tuple[str, str, bool]]:
    """Name of each parameter here and there, and whether it is a matrix that GPT-2 keeps transposed."""
    yield "embed_tokens.weight", "wte.weight", False
    yield "positions.table.weight", "wpe.weight", False
    parts = {
        "self_attn_norm": "ln_1",
        "self_attn.qkv_proj": "attn.c_attn",
        "self_attn.out_proj": "attn.c_proj",
        "feed_forward_norm": "ln_2",
        "feed_forward.up_proj": "mlp.c_fc",
        "feed_forward.down_proj": "mlp.c_proj",
    }
    for index in range(config.num_hidden_layers):
        for ours, theirs in parts.items():
            for kind in ("weight", "bias"):
                matrix = kind == "weight" and ours.endswith("_proj")
                yield f"stack.layers.{index}.{ours}.{kind}", f"h.{index}.{theirs}.{kind}", matrix
    for kind in ("weight", "bias"):
        yield f"stack.norm.{kind}", f"ln_f.{kind}", False


def _take_head(weights: Weights, name: str, tied: bool, embedding: Tensor) -> dict[str, Tensor]:
    taken = {}
    for parameter in _HEADS[name]:
        if parameter == "lm_head.weight" and tied:
            # It may stand in the file a second time.
            if parameter in weights and not torch.equal(weights.take(parameter), embedding):
                raise ValueError(f"{parameter} is not the embedding, but tie_word_embeddings=True says so")
            continue
        taken[parameter] = weights.take(parameter)
    return taken


def _drop_masks(weights: Weights, prefix: str, config: GPTConfig) -> None:
    """Leave out the causal masks that older checkpoints hold; a mask of another form is left, and so refused."""
    for index in range(config.num_hidden_layers):
        name = f"{prefix}h.{index}.attn.bias"
        if name in weights:
            mask = weights[name].squeeze()
            if mask.ndim != 2 or not torch.equal(mask.bool(), torch.ones_like(mask).bool().tril()):
                raise ValueError(f"{name} is no causal mask, and GPT has no place for it")
            del weights[name]
        weights.pop(f"{prefix}h.{index}.attn.masked_bias", None)


def _check_fixed(config: Any, fixed: dict[str, Any], target: str) -> None:
    for name, value in fixed.items():
        if getattr(config, name) != value:
            raise ValueError(f"{name}={getattr(config, name)}: {target} has no place for it, only for {name}={value}")
