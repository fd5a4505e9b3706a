"""OpenNMT-py, version 3 -> luong and transformer.

Its recurrent models are Luong's, with any of its attentions; its Transformers have the layers of ours, norms first. In
both a source has no end of a sentence.
"""

import logging
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..models.configuration_luong import LuongConfig
from ..models.configuration_transformer import TransformerConfig
from ..models.modeling_luong import LuongForConditionalGeneration
from ..models.modeling_transformer import TransformerForConditionalGeneration
from .checkpoints import Checkpoint, Weights, build_model, take_sinusoids
from .recurrent_layers import take_decoder, take_encoder
from .vocabularies import Vocabulary, make_tokenizer

logger = logging.getLogger(__name__)

_SPECIAL = ("<unk>", "<blank>", "<s>", "</s>")
_VECTORS = "{}.embeddings.make_embedding.emb_luts.0.weight"

# Theirs -> ours.
_CELLS = {"LSTM": "lstm", "GRU": "gru"}
_SCORES = {"dot": "dot", "general": "general", "mlp": "concat", "none": None}
_ACTIVATIONS = {"relu": "relu", "gelu": "gelu"}

# What the other side computes if it is set otherwise, ours doesn't.
_FIXED: dict[str, Any] = {
    "model_type": "text",
    "model_task": "seq2seq",
    "copy_attn": False,
    "n_src_feats": 0,
    "lora_layers": [],
    "lora_embedding": False,
    "quant_layers": [],
}
_RECURRENT_FIXED: dict[str, Any] = {
    "coverage_attn": False,
    "context_gate": None,
    "global_attention_function": "softmax",
    "position_encoding": False,
}
_TRANSFORMER_FIXED: dict[str, Any] = {
    "position_encoding": True,
    "position_encoding_type": "SinusoidalInterleaved",
    "max_relative_positions": 0,
    "num_kv": 0,
    "multiquery": False,
    "parallel_residual": False,
    "layer_norm": "standard",
    "sliding_window": 0,
    "num_experts": 0,
}
# Projections of an attention, by the letters that ours are called after.
_PARTS = {"q": "query", "k": "keys", "v": "values"}


def from_opennmt(checkpoint: Checkpoint) -> PreTrainedModel:
    """A luong or a transformer with the weights of a model of OpenNMT-py, and with its vocabulary.

    A model of ours has fewer rates of dropout than theirs may have had during training: it gets the last one.

    Args:
        checkpoint: of kind `"opennmt"`. Its `tokenizer` is set.

    Returns:
        The model. The special words have our ids, so its words may have other ids than theirs.

    Raises:
        ValueError: naming a setting or a parameter that has no place, or that is missing.
    """
    options, weights = checkpoint.config["opt"], checkpoint.weights
    vocabulary = checkpoint.config["vocab"]
    _check_fixed(options, _FIXED)
    source, target = (_read_vocabulary(vocabulary, side) for side in ("src", "tgt"))
    source.ends = False
    types = options.get("encoder_type", "rnn"), options.get("decoder_type", "rnn")
    build = {("rnn", "rnn"): _luong, ("brnn", "rnn"): _luong, ("transformer", "transformer"): _transformer}.get(types)
    if build is None:
        raise ValueError(
            f"encoder_type={types[0]!r} with decoder_type={types[1]!r} has no place in our models: they have 'rnn' or "
            f"'brnn' with 'rnn', and 'transformer' with 'transformer'"
        )
    words = _take_words(options, weights, source, target)
    start = vocabulary.get("decoder_start_token", "<s>")
    if start not in target.words:
        raise ValueError(f"decoder_start_token={start!r} is no word of the target: our models begin with one")
    config = {
        "vocab_size": len(target.words),
        "source_vocab_size": None if options.get("share_embeddings", False) else len(source.words),
        "tie_word_embeddings": bool(options.get("share_decoder_embeddings", False)),
        "head_bias": True,
        "decoder_start_token_id": target.ordered.index(start),
        "dropout": _last(options.get("dropout", 0.3)),
    }
    model = build(options, weights, words, config)
    checkpoint.tokenizer = make_tokenizer(source, target)
    _tell_what_came_before(options)
    return model


def _luong(
    options: dict[str, Any], weights: Weights, words: dict[str, Tensor], shared: dict[str, Any]
) -> PreTrainedModel:
    _check_fixed(options, _RECURRENT_FIXED)
    size, vector_size = _one_for_both(options, "hidden_size", "enc_hid_size", "dec_hid_size"), _vector_size(options)
    layers = [_number(options, "layers", name) for name in ("enc_layers", "dec_layers")]
    score = _choice(options, "global_attention", "general", _SCORES)
    feeding = bool(options.get("input_feed", 1))
    bidirectional = options.get("encoder_type") == "brnn"
    if score is None and feeding:
        raise ValueError("global_attention='none' with input_feed=1 has no place in luong, which feeds h~ alone")
    attention = {"attention": "none"}
    if score is not None:
        attention = {"attention": "global", "score": score, "attention_bias": score == "concat"}
        attention["attentional_act"] = "linear" if score == "concat" else "tanh"
    config = LuongConfig(
        **shared,
        **attention,
        embedding_size=vector_size,
        hidden_size=size,
        num_encoder_layers=layers[0],
        num_decoder_layers=layers[1],
        cell=_choice(options, "rnn_type", "LSTM", _CELLS),
        input_feeding=feeding,
        bidirectional=bidirectional,
        **({"bridge": "linear", "bridge_act": "relu"} if options.get("bridge") else {"bridge": "copy"}),
    )
    taken = words | take_encoder(weights, layers[0], bidirectional)
    pattern = "decoder.rnn.layers.{1}.{0}" if feeding else "decoder.rnn.{}_l{}"
    taken |= take_decoder(weights, layers[1], vector_size, feeding, pattern)
    if config.bridge == "linear":
        if layers[0] != layers[1]:
            raise ValueError(f"enc_layers={layers[0]} and dec_layers={layers[1]}: a bridge has as many of both")
        for kind in range(config.num_states):
            taken |= _bridge(weights, kind, 2 if bidirectional else 1)
    if score is not None:
        taken |= _attention(weights, score, size)
    return build_model(LuongForConditionalGeneration, config, taken)


def _bridge(weights: Weights, kind: int, directions: int) -> dict[str, Tensor]:
    # Theirs reads the states of all layers and directions in as many halves as there are directions, each by itself.
    matrix, bias = (weights.take(f"encoder.bridge.{kind}.{parameter}") for parameter in ("weight", "bias"))
    ours = f"model.decoder.bridge.{kind}"
    return {
        f"{ours}.weight": torch.block_diag(*[matrix] * directions),
        f"{ours}.bias": torch.cat([bias] * directions),
    }


def _attention(weights: Weights, score: str, size: int) -> dict[str, Tensor]:
    taken, ours = {}, "model.decoder.attention"
    if score == "general":
        # They multiply the decoder's state with it, we the annotations.
        taken[f"{ours}.key_proj.weight"] = weights.take("decoder.attn.linear_in.weight").T
    elif score == "concat":
        taken[f"{ours}.key_proj.weight"] = weights.take("decoder.attn.linear_context.weight")
        taken[f"{ours}.query_proj.weight"] = weights.take("decoder.attn.linear_query.weight")
        taken[f"{ours}.query_proj.bias"] = weights.take("decoder.attn.linear_query.bias")
        taken[f"{ours}.v"] = weights.take("decoder.attn.v.weight")[0]
        taken["model.decoder.state_proj.bias"] = weights.take("decoder.attn.linear_out.bias")
    both = weights.take("decoder.attn.linear_out.weight")
    taken["model.decoder.context_proj.weight"] = both[:, :size]
    taken["model.decoder.state_proj.weight"] = both[:, size:]
    return taken


def _transformer(
    options: dict[str, Any], weights: Weights, words: dict[str, Tensor], shared: dict[str, Any]
) -> PreTrainedModel:
    _check_fixed(options, _TRANSFORMER_FIXED)
    if options.get("self_attn_type", "scaled-dot") not in ("scaled-dot", "scaled-dot-flash"):
        raise ValueError(f"self_attn_type={options['self_attn_type']!r} has no place in transformer")
    size = _one_for_both(options, "hidden_size", "enc_hid_size", "dec_hid_size")
    if _vector_size(options) != size:
        raise ValueError(f"word_vec_size={_vector_size(options)} has no place in transformer: hidden_size={size}")
    tables = [f"{side}.embeddings.make_embedding.pe.pe" for side in ("encoder", "decoder")]
    config = TransformerConfig(
        **shared,
        hidden_size=size,
        num_attention_heads=options.get("heads", 8),
        intermediate_size=options.get("transformer_ff", 2048),
        num_encoder_layers=_number(options, "layers", "enc_layers"),
        num_decoder_layers=_number(options, "layers", "dec_layers"),
        hidden_act=_choice(options, "pos_ffn_activation_fn", "relu", _ACTIVATIONS),
        norm_first=True,
        layer_norm_eps=float(options.get("norm_eps", 1e-6)),
        max_position_embeddings=min(take_sinusoids(weights, table, size) for table in tables),
        attention_dropout=_last(options.get("attention_dropout", shared["dropout"])),
        activation_dropout=shared["dropout"],
    )
    taken = dict(words)
    for mine, others in _layer_names(config).items():
        matrices = [weights.take(f"{other}.weight") for other in others]
        biases = [f"{other}.bias" for other in others]
        taken[f"model.{mine}.weight"] = torch.cat(matrices)
        if any(bias in weights for bias in biases):
            taken[f"model.{mine}.bias"] = torch.cat([weights.take(bias) for bias in biases])
        else:
            # Theirs need not have the biases that ours have.
            taken[f"model.{mine}.bias"] = matrices[0].new_zeros(len(taken[f"model.{mine}.weight"]))
    return build_model(TransformerForConditionalGeneration, config, taken)


def _layer_names(config: TransformerConfig) -> dict[str, list[str]]:
    """Our modules, each with theirs whose parameters stand in its rows, one after the other."""
    names = {"encoder.stack.norm": ["encoder.layer_norm"], "decoder.stack.norm": ["decoder.layer_norm"]}
    for index in range(config.num_encoder_layers):
        mine, other = f"encoder.stack.layers.{index}", f"encoder.transformer.{index}"
        names |= _sublayer(f"{mine}.self_attn", f"{other}.self_attn", f"{other}.layer_norm", ("qkv",))
        names |= _feed_forward(mine, other)
    for index in range(config.num_decoder_layers):
        mine, other = f"decoder.stack.layers.{index}", f"decoder.transformer_layers.{index}"
        names |= _sublayer(f"{mine}.self_attn", f"{other}.self_attn", f"{other}.layer_norm_1", ("qkv",))
        names |= _sublayer(f"{mine}.cross_attn", f"{other}.context_attn", f"{other}.layer_norm_2", ("q", "kv"))
        names |= _feed_forward(mine, other)
    return names


def _sublayer(mine: str, other: str, norm: str, projections: tuple[str, ...]) -> dict[str, list[str]]:
    names = {}
    for letters in projections:
        names[f"{mine}.{letters}_proj"] = [f"{other}.linear_{_PARTS[letter]}" for letter in letters]
    return names | {f"{mine}.out_proj": [f"{other}.final_linear"], f"{mine}_norm": [norm]}


def _feed_forward(mine: str, other: str) -> dict[str, list[str]]:
    return {
        f"{mine}.feed_forward.up_proj": [f"{other}.feed_forward.w_1"],
        f"{mine}.feed_forward.down_proj": [f"{other}.feed_forward.w_2"],
        f"{mine}.feed_forward_norm": [f"{other}.feed_forward.layer_norm"],
    }


def _take_words(
    options: dict[str, Any], weights: Weights, source: Vocabulary, target: Vocabulary
) -> dict[str, Tensor]:
    """Word vectors and output layer, by our names."""
    names = _VECTORS.format("encoder"), _VECTORS.format("decoder")
    taken = {"model.encoder.embed_tokens.weight": source.take_rows(weights, names[0])}
    vectors = taken["model.encoder.embed_tokens.weight"]
    if not options.get("share_embeddings", False):
        vectors = taken["model.decoder.embed_tokens.weight"] = target.take_rows(weights, names[1])
    elif source.words != target.words:
        raise ValueError("share_embeddings=True, but the vocabularies are not the same")
    elif names[1] in weights and not torch.equal(target.take_rows(weights, names[1]), vectors):
        raise ValueError(f"{names[1]} is not {names[0]}, but share_embeddings=True")
    taken["lm_head.bias"] = target.take_rows(weights, "generator.bias")
    if not options.get("share_decoder_embeddings", False):
        taken["lm_head.weight"] = target.take_rows(weights, "generator.weight")
    elif "generator.weight" in weights and not torch.equal(target.take_rows(weights, "generator.weight"), vectors):
        raise ValueError(f"generator.weight is not {names[1]}, but share_decoder_embeddings=True")
    return taken


def _read_vocabulary(vocabulary: dict[str, Any], side: str) -> Vocabulary:
    words = vocabulary.get(side)
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ValueError(f"vocab.{side} must be a list of words, as version 3 has it, got {type(words)}")
    return Vocabulary(words, _SPECIAL)


def _tell_what_came_before(options: dict[str, Any]) -> None:
    corpora = options.get("data")
    given = [corpus.get("transforms") for corpus in corpora.values()] if isinstance(corpora, dict) else []
    steps = {step for steps in [options.get("transforms"), *given] if isinstance(steps, list) for step in steps}
    # It leaves texts out, and as they are.
    steps -= {"filtertoolong"}
    if steps:
        logger.warning(
            "the texts went through %s, which lie outside the checkpoint: the tokenizer takes and gives text as they "
            "leave it, its pieces between spaces.",
            ", ".join(sorted(map(str, steps))),
        )


def _check_fixed(options: dict[str, Any], fixed: dict[str, Any]) -> None:
    for name, value in fixed.items():
        given = options.get(name, value)
        if (given or None) != (value or None):
            raise ValueError(f"{name}={given!r} has no place in our models, which have {name}={value!r} alone")


def _number(options: dict[str, Any], both: str, name: str) -> int:
    # The one for both sides wins, if it is set.
    for number in (options.get(both), options.get(name)):
        if isinstance(number, int) and number > 0:
            return number
    raise ValueError(f"{name}={options.get(name)!r} must be a number of at least 1")


def _one_for_both(options: dict[str, Any], both: str, source: str, target: str) -> int:
    numbers = _number(options, both, source), _number(options, both, target)
    if numbers[0] != numbers[1]:
        raise ValueError(
            f"{target}={numbers[1]} has no place in our models, which have one for both sides: {source}={numbers[0]}"
        )
    return numbers[0]


def _vector_size(options: dict[str, Any]) -> int:
    return _one_for_both(options, "word_vec_size", "src_word_vec_size", "tgt_word_vec_size")


def _choice(options: dict[str, Any], name: str, default: str, choices: dict[str, Any]) -> Any:
    value = options.get(name, default)
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name}={value!r} has no place in our models, which have {', '.join(map(repr, choices))}")
    return choices[value]


def _last(rates: Any) -> Any:
    return rates[-1] if isinstance(rates, list) and rates else rates
