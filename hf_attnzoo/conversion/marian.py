"""Marian and BART of transformers <-> transformer.

The three have the same layers. Marian adds sinusoids, all sines first; BART adds learned positions and normalises the
sum. What both call `final_logits_bias` is the bias of our output layer.
"""

from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import GenerationConfig, PreTrainedConfig, PreTrainedModel

from ..models import modeling_transformer
from ..models.configuration_transformer import TransformerConfig
from ..models.positions import sinusoids
from .checkpoints import Checkpoint, Weights, build_model, take_sinusoids

_STEMS = {"marian": "Marian", "bart": "Bart"}

# Ours -> theirs.
_CLASSES = {
    "marian": {"TransformerModel": "MarianModel", "TransformerForConditionalGeneration": "MarianMTModel"},
    "bart": {"TransformerModel": "BartModel", "TransformerForConditionalGeneration": "BartForConditionalGeneration"},
}
_SETTINGS = {
    "hidden_size": "d_model",
    "num_encoder_layers": "encoder_layers",
    "num_decoder_layers": "decoder_layers",
    "num_attention_heads": "encoder_attention_heads",
    "intermediate_size": "encoder_ffn_dim",
    "hidden_act": "activation_function",
    "max_position_embeddings": "max_position_embeddings",
    "scale_embedding": "scale_embedding",
    "dropout": "dropout",
    "attention_dropout": "attention_dropout",
    "activation_dropout": "activation_dropout",
    "initializer_range": "init_std",
    "tie_word_embeddings": "tie_word_embeddings",
    "use_cache": "use_cache",
    "pad_token_id": "pad_token_id",
    "bos_token_id": "bos_token_id",
    "eos_token_id": "eos_token_id",
    "decoder_start_token_id": "decoder_start_token_id",
}
# Ours has one setting for both sides.
_BOTH_SIDES = {
    "encoder_attention_heads": "decoder_attention_heads",
    "encoder_ffn_dim": "decoder_ffn_dim",
}
# What the other side computes if it is set otherwise, the one named doesn't.
_THEIRS_FIXED = {"encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0, "is_encoder_decoder": True, "is_decoder": False}
_OURS_FIXED = {
    "norm_first": False,
    "layer_norm_eps": 1e-5,
    "position_combination": "add",
    "encoder_residual_scale": 1.0,
    "decoder_residual_scale": 1.0,
}

# BART's tables begin with so many rows that no position has.
_BART_OFFSET = 2


def from_marian(checkpoint: Checkpoint) -> PreTrainedModel:
    """A Transformer with the weights of a Marian or a BART.

    Args:
        checkpoint: of kind `"marian"` or `"bart"`, with the head that writes text or without one.

    Returns:
        Of the class that belongs to `architectures`, or the one that writes text if that says nothing. There is a bias
        on the output layer if `final_logits_bias` is not 0.

    Raises:
        ValueError: naming a class, a setting or a parameter that has no place, or that is missing.
    """
    kind, weights = checkpoint.kind, checkpoint.weights
    stock = getattr(transformers, f"{_STEMS[kind]}Config").from_dict(checkpoint.config)
    _check_fixed(stock, _THEIRS_FIXED, "transformer")
    for encoder, decoder in _BOTH_SIDES.items():
        if getattr(stock, encoder) != getattr(stock, decoder):
            raise ValueError(
                f"{decoder}={getattr(stock, decoder)} has no place in transformer, which has one number for both "
                f"sides: {encoder}={getattr(stock, encoder)}"
            )
    name = _class_of(stock, {theirs: ours for ours, theirs in _CLASSES[kind].items()})
    head = name == "TransformerForConditionalGeneration"
    _strip_prefix(weights)
    _drop_sinusoids(weights, kind, stock)
    source, target, output = _take_words(weights, kind, stock, head)
    bias = weights.take("final_logits_bias") if head and "final_logits_bias" in weights else None
    if bias is not None and bias.shape != (1, target.shape[0]):
        raise ValueError(f"final_logits_bias must have the shape {(1, target.shape[0])}, got {tuple(bias.shape)}")

    settings = {ours: getattr(stock, theirs) for ours, theirs in _SETTINGS.items()}
    config = TransformerConfig(
        vocab_size=stock.decoder_vocab_size if kind == "marian" and source is not target else stock.vocab_size,
        source_vocab_size=None if source is target else stock.vocab_size,
        position_embeddings="sinusoidal" if kind == "marian" else "learned",
        position_layout="halves",
        embedding_norm=kind == "bart",
        head_bias=bias is not None and bool(bias.any()),
        **settings,
    )
    inside = "model." if head else ""
    taken = {f"{inside}encoder.embed_tokens.weight": source}
    if source is not target:
        taken[f"{inside}decoder.embed_tokens.weight"] = target
    for ours, others in layer_names(kind, config).items():
        tensor = torch.cat([weights.take(other) for other in others])
        taken[inside + ours] = tensor[_BART_OFFSET:] if "positions" in ours else tensor
    if head and not config.tie_word_embeddings:
        taken["lm_head.weight"] = output
    if config.head_bias:
        taken["lm_head.bias"] = bias[0].to(output.dtype)
    model = build_model(getattr(modeling_transformer, name), config, taken, checkpoint.folder)
    if not (checkpoint.folder / "generation_config.json").is_file():
        # Older checkpoints say in their configuration how they write.
        model.generation_config = GenerationConfig.from_model_config(dict(checkpoint.config))
    return model


def to_marian(checkpoint: Checkpoint) -> PreTrainedModel:
    """A Marian, or a BART if positions are learned, with the weights of a Transformer.

    Sinusoids of the paper's layout, sine and cosine in turns, become Marian's by another order of the dimensions, in
    all parameters at once. `label_smoothing`, which shapes nothing but training, is left to transformers' trainer.

    Args:
        checkpoint: of kind `"attnzoo_transformer"`.

    Returns:
        Of the class that belongs to `architectures`.

    Raises:
        ValueError: naming a class, a setting or a parameter that has no place, or that is missing.
    """
    weights = checkpoint.weights
    config = TransformerConfig.from_dict(checkpoint.config)
    stock = _their_config(config, checkpoint)
    kind = stock.model_type
    name = _class_of(config, _CLASSES[kind])
    head = name in ("MarianMTModel", "BartForConditionalGeneration")
    inside = "model." if head else ""
    order = _dimensions(config)

    source = weights.take(f"{inside}encoder.embed_tokens.weight")[:, order]
    target = source
    if config.source_vocab_size is not None:
        target = weights.take(f"{inside}decoder.embed_tokens.weight")[:, order]
    taken = _write_words(kind, config, source, target)
    for ours, others in layer_names(kind, config).items():
        if ours.endswith(".bias") and not config.use_bias:
            # Their weights have been taken before them.
            zeros = {other: taken[other.removesuffix("bias") + "weight"] for other in others}
            taken |= {other: weight.new_zeros(weight.shape[0]) for other, weight in zeros.items()}
            continue
        tensor = _reordered(ours, weights.take(inside + ours), order)
        if "positions" in ours:
            tensor = torch.cat([tensor.new_zeros(_BART_OFFSET, tensor.shape[1]), tensor])
        taken |= zip(others, tensor.chunk(len(others)), strict=True)
    if kind == "marian":
        table = sinusoids(config.max_position_embeddings, config.hidden_size, "halves").to(source.dtype)
        taken |= {f"{side}.embed_positions.weight": table.clone() for side in ("encoder", "decoder")}
    taken = {inside + other: tensor for other, tensor in taken.items()}
    if head:
        bias = weights.take("lm_head.bias") if config.head_bias else target.new_zeros(target.shape[0])
        taken["final_logits_bias"] = bias[None]
        if not config.tie_word_embeddings:
            taken["lm_head.weight"] = weights.take("lm_head.weight")[:, order]
        else:
            _take_copy(weights, "lm_head.weight", target[:, order.argsort()])
    return build_model(getattr(transformers, name), stock, taken, checkpoint.folder)


def layer_names(kind: str, config: TransformerConfig) -> dict[str, list[str]]:
    """Our parameters, each with theirs that stand in its rows, one after the other; words and output layer aside.

    Args:
        kind: `"marian"` or `"bart"`.
        config: of ours.

    Returns:
        Names in a `TransformerModel`, and in a `MarianModel` or `BartModel`; biases behind their weights.
    """
    modules = {}
    for side, layers in (("encoder", config.num_encoder_layers), ("decoder", config.num_decoder_layers)):
        if kind == "bart":
            modules[f"{side}.inputs.positions.table"] = [f"{side}.embed_positions"]
            modules[f"{side}.inputs.norm"] = [f"{side}.layernorm_embedding"]
        for index in range(layers):
            mine, other = f"{side}.stack.layers.{index}", f"{side}.layers.{index}"
            attentions = {"self_attn": ("self_attn", ["qkv"])}
            if side == "decoder":
                attentions["cross_attn"] = ("encoder_attn", ["q", "kv"])
            for own, (theirs, projections) in attentions.items():
                for letters in projections:
                    parts = [f"{other}.{theirs}.{letter}_proj" for letter in letters]
                    modules[f"{mine}.{own}.{letters}_proj"] = parts
                modules[f"{mine}.{own}.out_proj"] = [f"{other}.{theirs}.out_proj"]
                modules[f"{mine}.{own}_norm"] = [f"{other}.{theirs}_layer_norm"]
            modules |= {
                f"{mine}.feed_forward.up_proj": [f"{other}.fc1"],
                f"{mine}.feed_forward.down_proj": [f"{other}.fc2"],
                f"{mine}.feed_forward_norm": [f"{other}.final_layer_norm"],
            }
    names = {}
    for mine, others in modules.items():
        for parameter in ("weight",) if mine.endswith("positions.table") else ("weight", "bias"):
            names[f"{mine}.{parameter}"] = [f"{other}.{parameter}" for other in others]
    return names


def _their_config(config: TransformerConfig, checkpoint: Checkpoint) -> PreTrainedConfig:
    kind = "bart" if config.position_embeddings == "learned" else "marian"
    stem = _STEMS[kind]
    _check_fixed(config, _OURS_FIXED | {"embedding_norm": kind == "bart"}, f"transformers' {stem}")
    settings: dict[str, Any] = {theirs: getattr(config, ours) for ours, theirs in _SETTINGS.items()}
    settings |= {decoder: settings[encoder] for encoder, decoder in _BOTH_SIDES.items()}
    if config.initializer_range is None:
        del settings["init_std"]
    apart = config.source_vocab_size is not None
    if kind == "marian":
        settings["vocab_size"] = config.source_vocab_size if apart else config.vocab_size
        settings |= {"decoder_vocab_size": config.vocab_size, "share_encoder_decoder_embeddings": not apart}
    else:
        # Untied, BART has an embedding for each side, of one size.
        if apart and (config.tie_word_embeddings or config.source_vocab_size != config.vocab_size):
            raise ValueError(
                f"source_vocab_size={config.source_vocab_size} has no place in transformers' Bart, which has one "
                f"vocabulary for both sides"
            )
        settings["vocab_size"] = config.vocab_size
    # Theirs would force an end unless told otherwise.
    forced = None
    if (checkpoint.folder / "generation_config.json").is_file():
        forced = GenerationConfig.from_pretrained(checkpoint.folder).forced_eos_token_id
    return getattr(transformers, f"{stem}Config")(**settings, forced_eos_token_id=forced)


def _class_of(config: PreTrainedConfig, classes: dict[str, str]) -> str:
    """What a class is called on the other side."""
    # The last one of them writes text.
    name = (config.architectures or list(classes)[-1:])[0]
    if name not in classes:
        raise ValueError(f"architectures={config.architectures}: these can be converted: {', '.join(classes)}")
    return classes[name]


def _strip_prefix(weights: Weights) -> None:
    for name in list(weights):
        if name.startswith("model."):
            weights[name.removeprefix("model.")] = weights.take(name)


def _drop_sinusoids(weights: Weights, kind: str, stock: PreTrainedConfig) -> None:
    """Leave out the constant tables that Marian's files may hold, if they are what they should be."""
    if kind != "marian":
        return
    for side in ("encoder", "decoder"):
        name = f"{side}.embed_positions.weight"
        if name in weights:
            positions = take_sinusoids(weights, name, stock.d_model, "halves")
            if positions != stock.max_position_embeddings:
                raise ValueError(
                    f"{name} has {positions} positions, but max_position_embeddings={stock.max_position_embeddings}"
                )


def _take_words(
    weights: Weights, kind: str, stock: PreTrainedConfig, head: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Vectors of the source and of the target, the same tensor if both have one; and the output layer's matrix."""
    sides = "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"
    one = kind == "bart" or stock.share_encoder_decoder_embeddings
    tied = stock.tie_word_embeddings
    if one and tied:
        copies = ("shared.weight", *sides, *(("lm_head.weight",) if head else ()))
        original = next((name for name in copies if name in weights), "shared.weight")
        words = weights.take(original)
        for name in copies:
            _take_copy(weights, name, words)
        return words, words, words
    shared = weights.take("shared.weight") if one and "shared.weight" in weights else None
    source, target = (weights.take(name) if name in weights or shared is None else shared for name in sides)
    if shared is not None and not any(_same(shared, words) for words in (source, target)):
        raise ValueError("shared.weight is the embedding of neither side: transformer has no place for it")
    if one and _same(source, target):
        target = source
    if not head:
        return source, target, None
    if tied:
        _take_copy(weights, "lm_head.weight", target)
        return source, target, target
    return source, target, weights.take("lm_head.weight")


def _write_words(kind: str, config: TransformerConfig, source: Tensor, target: Tensor) -> dict[str, Tensor]:
    apart = config.source_vocab_size is not None
    if config.tie_word_embeddings and not apart:
        return {"shared.weight": source}
    # Untied, theirs has all of them; what shares memory could not be saved.
    written = {"encoder.embed_tokens.weight": source.clone(), "decoder.embed_tokens.weight": target.clone()}
    if kind == "bart" or not apart:
        written["shared.weight"] = source.clone()
    return written


def _dimensions(config: TransformerConfig) -> Tensor:
    """Which of our dimensions stands at each place of theirs."""
    places = torch.arange(config.hidden_size)
    if config.position_embeddings == "sinusoidal" and config.position_layout == "interleaved":
        return torch.cat([places[0::2], places[1::2]])
    return places


def _reordered(name: str, tensor: Tensor, order: Tensor) -> Tensor:
    """A parameter that reads, or writes, what passes between layers with its dimensions in another order."""
    module, _, parameter = name.rpartition(".")
    if module.endswith(("qkv_proj", "q_proj", "kv_proj", "up_proj")):
        return tensor[:, order] if parameter == "weight" else tensor
    if module.endswith("positions.table"):
        return tensor[:, order]
    return tensor[order]


def _take_copy(weights: Weights, name: str, original: Tensor) -> None:
    """Take what is said to be the same as another parameter, if it is there at all."""
    if name in weights and not _same(weights.take(name), original):
        raise ValueError(f"{name} is not the embedding, but tie_word_embeddings=True: it has no place")


def _same(tensor: Tensor, other: Tensor) -> bool:
    return tensor is other or (tensor.shape == other.shape and torch.equal(tensor, other))


def _check_fixed(config: PreTrainedConfig, fixed: dict[str, Any], target: str) -> None:
    for name, value in fixed.items():
        if getattr(config, name) != value:
            raise ValueError(
                f"{name}={getattr(config, name)!r} has no place in {target}, which has {name}={value!r} alone"
            )
