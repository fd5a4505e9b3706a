"""JoeyNMT -> luong and transformer.

JoeyNMT's recurrent models are Luong's, whichever attention they have: the new state of the decoder asks the source,
and h~ predicts the next word. Its Transformers have the layers of ours. In both a source ends with the end of a
sentence.
"""

import logging
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel

from ..models.configuration_luong import LuongConfig
from ..models.configuration_transformer import TransformerConfig
from ..models.modeling_luong import LuongForConditionalGeneration
from ..models.modeling_transformer import TransformerForConditionalGeneration
from .checkpoints import Checkpoint, Weights, build_model, take_sinusoids
from .recurrent_layers import take_decoder, take_encoder
from .vocabularies import Vocabulary, make_tokenizer

logger = logging.getLogger(__name__)

_SPECIAL = {"unk_token": "<unk>", "pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}

# Theirs -> ours.
_CELLS = {"gru": "gru", "lstm": "lstm"}
_SCORES = {"luong": "general", "bahdanau": "concat"}
_BRIDGES = {"bridge": "top", "zero": "zeros", "zeros": "zeros"}
_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "silu"}


def from_joeynmt(checkpoint: Checkpoint) -> PreTrainedModel:
    """A luong or a transformer with the weights of a model of JoeyNMT, and with its vocabulary.

    It writes what JoeyNMT's greedy search writes. A model of ours has fewer rates of dropout than theirs: it gets
    those of their decoder.

    Args:
        checkpoint: of kind `"joeynmt"`. Its `tokenizer` is set.

    Returns:
        The model, of whose words the special ones come first, as they do there.

    Raises:
        ValueError: naming a setting or a parameter that has no place, or that is missing.
    """
    settings, weights = checkpoint.config, checkpoint.weights
    source, target = _read_vocabularies(checkpoint)
    recurrent = any(name.startswith("encoder.rnn.") for name in weights)
    words = _take_words(settings, weights, source, target)
    model = (_luong if recurrent else _transformer)(settings, weights, words, (source, target))
    checkpoint.tokenizer = make_tokenizer(source, target)
    model.generation_config = _generation(settings, model, target, recurrent)
    return model


def _luong(
    settings: dict[str, Any], weights: Weights, words: dict[str, Tensor], sides: tuple[Vocabulary, Vocabulary]
) -> PreTrainedModel:
    encoder, decoder = (_section(settings, "model", side) for side in ("encoder", "decoder"))
    for side in ("encoder", "decoder"):
        scale = _section(settings, "model", side, "embeddings").get("scale", False)
        if scale:
            raise ValueError(f"model.{side}.embeddings.scale={scale} has no place in luong, which never scales words")
    if not encoder.get("bidirectional", True):
        raise ValueError("model.encoder.bidirectional=False: not even JoeyNMT runs such an encoder")
    if decoder.get("activation", "tanh") != "tanh":
        raise ValueError(f"model.decoder.activation={decoder['activation']!r} has no place in luong, which has a tanh")
    cell = _choice("model.encoder.rnn_type", encoder.get("rnn_type", "gru"), _CELLS)
    if _choice("model.decoder.rnn_type", decoder.get("rnn_type", "gru"), _CELLS) != cell:
        raise ValueError(f"model.decoder.rnn_type={decoder.get('rnn_type', 'gru')!r}, but the encoder has {cell!r}")
    size = _need(decoder, "model.decoder", "hidden_size")
    config = LuongConfig(
        **_vocabulary_sizes(settings, *sides),
        embedding_size=_embedding_size(words),
        hidden_size=size,
        encoder_hidden_size=2 * _need(encoder, "model.encoder", "hidden_size"),
        num_encoder_layers=encoder.get("num_layers", 1),
        num_decoder_layers=decoder.get("num_layers", 1),
        cell=cell,
        score=_choice("model.decoder.attention", decoder.get("attention", "bahdanau"), _SCORES),
        input_feeding=decoder.get("input_feeding", True),
        bidirectional=True,
        bridge=_choice("model.decoder.init_hidden", decoder.get("init_hidden", "bridge"), _BRIDGES),
        attention_bias=True,
        dropout=decoder.get("dropout", 0.0),
    )
    taken = words | take_encoder(weights, config.num_encoder_layers, True)
    taken |= take_decoder(weights, config.num_decoder_layers, config.embedding_size, config.input_feeding)
    if config.bridge == "top":
        taken |= _linear(weights, "decoder.bridge_layer", "model.decoder.bridge")
    taken["model.decoder.attention.key_proj.weight"] = weights.take("decoder.attention.key_layer.weight")
    both = weights.take("decoder.att_vector_layer.weight")
    taken["model.decoder.state_proj.weight"] = both[:, :size]
    taken["model.decoder.context_proj.weight"] = both[:, size:]
    taken["model.decoder.state_proj.bias"] = weights.take("decoder.att_vector_layer.bias")
    if config.score == "concat":
        query = weights.take("decoder.attention.query_layer.weight")
        taken["model.decoder.attention.query_proj.weight"] = query
        taken["model.decoder.attention.query_proj.bias"] = query.new_zeros(query.shape[0])
        taken["model.decoder.attention.v"] = weights.take("decoder.attention.energy_layer.weight")[0]
    return build_model(LuongForConditionalGeneration, config, taken)


def _transformer(
    settings: dict[str, Any], weights: Weights, words: dict[str, Tensor], sides: tuple[Vocabulary, Vocabulary]
) -> PreTrainedModel:
    encoder, decoder = (_section(settings, "model", side) for side in ("encoder", "decoder"))
    defaults = {"hidden_size": 512, "ff_size": 2048, "num_heads": None, "activation": "relu"}
    for name, default in defaults.items():
        if encoder.get(name, default) != decoder.get(name, default):
            raise ValueError(
                f"model.decoder.{name}={decoder.get(name, default)!r} has no place in transformer, which has one for "
                f"both sides: model.encoder.{name}={encoder.get(name, default)!r}"
            )
    size = encoder.get("hidden_size", 512)
    alphas = _residual_scales(settings)
    config = TransformerConfig(
        **_vocabulary_sizes(settings, *sides),
        hidden_size=size,
        num_attention_heads=_need(encoder, "model.encoder", "num_heads"),
        intermediate_size=encoder.get("ff_size", 2048),
        num_encoder_layers=_need(encoder, "model.encoder", "num_layers"),
        num_decoder_layers=_need(decoder, "model.decoder", "num_layers"),
        hidden_act=_choice("model.encoder.activation", encoder.get("activation", "relu"), _ACTIVATIONS),
        norm_first=_norm_first(encoder, decoder, weights),
        encoder_residual_scale=alphas[0],
        decoder_residual_scale=alphas[1],
        layer_norm_eps=1e-6,
        max_position_embeddings=min(take_sinusoids(weights, f"{side}.pe.pe", size) for side in ("encoder", "decoder")),
        scale_embedding=_scaled(settings),
        dropout=decoder.get("dropout", 0.1),
        attention_dropout=decoder.get("dropout", 0.1),
        activation_dropout=decoder.get("dropout", 0.1),
    )
    taken = dict(words)
    for mine, others in _layer_names(config).items():
        for parameter in ("weight", "bias"):
            tensors = [weights.take(f"{other}.{parameter}") for other in others]
            taken[f"model.{mine}.{parameter}"] = torch.cat(tensors)
    return build_model(TransformerForConditionalGeneration, config, taken)


def _layer_names(config: TransformerConfig) -> dict[str, list[str]]:
    """Our modules, each with theirs whose parameters stand in its rows, one after the other."""
    names = {}
    for index in range(config.num_encoder_layers):
        mine, other = f"encoder.stack.layers.{index}", f"encoder.layers.{index}"
        names |= _attention(f"{mine}.self_attn", f"{other}.src_src_att", ("qkv",))
        names[f"{mine}.self_attn_norm"] = [f"{other}.layer_norm"]
        names |= _feed_forward(mine, other)
    for index in range(config.num_decoder_layers):
        mine, other = f"decoder.stack.layers.{index}", f"decoder.layers.{index}"
        names |= _attention(f"{mine}.self_attn", f"{other}.trg_trg_att", ("qkv",))
        names[f"{mine}.self_attn_norm"] = [f"{other}.x_layer_norm"]
        names |= _attention(f"{mine}.cross_attn", f"{other}.src_trg_att", ("q", "kv"))
        names[f"{mine}.cross_attn_norm"] = [f"{other}.dec_layer_norm"]
        names |= _feed_forward(mine, other)
    if config.norm_first:
        names |= {f"{side}.stack.norm": [f"{side}.layer_norm"] for side in ("encoder", "decoder")}
    return names


def _attention(mine: str, other: str, projections: tuple[str, ...]) -> dict[str, list[str]]:
    names = {f"{mine}.{letters}_proj": [f"{other}.{letter}_layer" for letter in letters] for letters in projections}
    return names | {f"{mine}.out_proj": [f"{other}.output_layer"]}


def _feed_forward(mine: str, other: str) -> dict[str, list[str]]:
    return {
        f"{mine}.feed_forward.up_proj": [f"{other}.feed_forward.pwff_layer.0"],
        f"{mine}.feed_forward.down_proj": [f"{other}.feed_forward.pwff_layer.3"],
        f"{mine}.feed_forward_norm": [f"{other}.feed_forward.layer_norm"],
    }


def _norm_first(encoder: dict[str, Any], decoder: dict[str, Any], weights: Weights) -> bool:
    places = encoder.get("layer_norm"), decoder.get("layer_norm")
    if places == (None, None) and {"encoder.layer_norm.weight", "decoder.layer_norm.weight"} <= weights.keys():
        # Before the setting there was, every one of JoeyNMT's Transformers was such.
        return True
    if places[0] != places[1] or places[0] not in ("pre", "post"):
        raise ValueError(
            f"model.encoder.layer_norm={places[0]!r} and model.decoder.layer_norm={places[1]!r} have no place in "
            f"transformer: it has 'pre' on both sides, or 'post'"
        )
    return places[0] == "pre"


def _residual_scales(settings: dict[str, Any]) -> tuple[float, float]:
    model = _section(settings, "model")
    encoder, decoder = (_section(settings, "model", side) for side in ("encoder", "decoder"))
    if model.get("initializer") != "xavier_normal":
        return encoder.get("alpha", 1.0), decoder.get("alpha", 1.0)
    # With this initialiser JoeyNMT takes what DeepNet has for N and M layers (Wang et al. 2022, figure 2).
    n = _need(encoder, "model.encoder", "num_layers")
    m = _need(decoder, "model.decoder", "num_layers")
    return 0.81 * (n**4 * m) ** (1 / 16), (3 * m) ** (1 / 4)


def _scaled(settings: dict[str, Any]) -> bool:
    source, target = (
        _section(settings, "model", side, "embeddings").get("scale", False) for side in ("encoder", "decoder")
    )
    if bool(source) != bool(target) and not _section(settings, "model").get("tied_embeddings", False):
        raise ValueError(
            f"model.decoder.embeddings.scale={target} has no place in transformer, which has one for both sides: "
            f"model.encoder.embeddings.scale={source}"
        )
    return bool(source)


def _take_words(
    settings: dict[str, Any], weights: Weights, source: Vocabulary, target: Vocabulary
) -> dict[str, Tensor]:
    """Word vectors and output layer, by our names."""
    shared, tied = (_section(settings, "model").get(name, False) for name in ("tied_embeddings", "tied_softmax"))
    taken = {"model.encoder.embed_tokens.weight": source.take_rows(weights, "src_embed.lut.weight")}
    vectors = target.take_rows(weights, "trg_embed.lut.weight")
    if not shared:
        taken["model.decoder.embed_tokens.weight"] = vectors
    elif source.words != target.words:
        raise ValueError("model.tied_embeddings=True, but the vocabularies are not the same")
    elif not torch.equal(vectors, taken["model.encoder.embed_tokens.weight"]):
        raise ValueError("trg_embed.lut.weight is not src_embed.lut.weight, but model.tied_embeddings=True")
    output = target.take_rows(weights, "decoder.output_layer.weight")
    if not tied:
        taken["lm_head.weight"] = output
    elif not torch.equal(output, vectors):
        raise ValueError("decoder.output_layer.weight is not trg_embed.lut.weight, but model.tied_softmax=True")
    return taken


def _vocabulary_sizes(settings: dict[str, Any], source: Vocabulary, target: Vocabulary) -> dict[str, Any]:
    model = _section(settings, "model")
    return {
        "vocab_size": len(target.words),
        "source_vocab_size": None if model.get("tied_embeddings", False) else len(source.words),
        "tie_word_embeddings": bool(model.get("tied_softmax", False)),
    }


def _embedding_size(words: dict[str, Tensor]) -> int:
    source = words["model.encoder.embed_tokens.weight"].shape[1]
    target = words.get("model.decoder.embed_tokens.weight", words["model.encoder.embed_tokens.weight"]).shape[1]
    if source != target:
        raise ValueError(
            f"model.decoder.embeddings.embedding_dim={target} has no place in luong, which has one for both sides: "
            f"model.encoder.embeddings.embedding_dim={source}"
        )
    return source


def _read_vocabularies(checkpoint: Checkpoint) -> tuple[Vocabulary, Vocabulary]:
    symbols = _section(checkpoint.config, "data", "special_symbols")
    special = tuple(str(symbols.get(name, default)) for name, default in _SPECIAL.items())
    others = [symbols["sep_token"]] if symbols.get("sep_token") else []
    vocabularies = []
    for side in ("src", "trg"):
        path = checkpoint.folder / f"{side}_vocab.txt"
        if not path.is_file():
            raise FileNotFoundError(f"{path} is missing: JoeyNMT writes it beside its checkpoints")
        lines = path.read_text(encoding="utf-8").splitlines()
        # As JoeyNMT reads it: the special words come first, wherever they stand, and nothing comes twice.
        words = list(dict.fromkeys([*special, *others, *_language_tags(symbols), *lines]))
        section = _section(checkpoint.config, "data", side)
        level = _choice(f"data.{side}.level", section.get("level", "word"), {"word": 0, "char": 1, "bpe": 0})
        _tell_what_came_before(side, section)
        vocabularies.append(
            Vocabulary(words, special, lowercase=bool(section.get("lowercase", False)), characters=bool(level))
        )
    return vocabularies[0], vocabularies[1]


def _tell_what_came_before(side: str, section: dict[str, Any]) -> None:
    steps = []
    if section.get("normalize"):
        steps.append("normalize=True")
    pretokenizer = _section(section, "tokenizer_cfg").get("pretokenizer", "none")
    if pretokenizer != "none":
        steps.append(f"pretokenizer={pretokenizer!r}")
    if section.get("level") == "bpe":
        steps.append(f"tokenizer_type={section.get('tokenizer_type', 'sentencepiece')!r}")
    if steps:
        logger.warning(
            "data.%s has %s, which lies outside the checkpoint: the tokenizer takes and gives text as that leaves it, "
            "its pieces between spaces.",
            side,
            " and ".join(steps),
        )


def _language_tags(symbols: dict[str, Any]) -> list[str]:
    return [str(tag) for tag in symbols.get("lang_tags") or []]


def _generation(
    settings: dict[str, Any], model: PreTrainedModel, target: Vocabulary, recurrent: bool
) -> GenerationConfig:
    testing, symbols = _section(settings, "testing"), _section(settings, "data", "special_symbols")
    unknown, padding, beginning, _ = target.special
    # What greedy search never writes; a Transformer's doesn't think of padding.
    never = [beginning, *([padding] if recurrent else []), *_language_tags(symbols)]
    if symbols.get("sep_token"):
        never.append(symbols["sep_token"])
    if not testing.get("generate_unk", True):
        never.append(unknown)
    ids = {word: index for index, word in enumerate(target.ordered)}
    config = GenerationConfig.from_model_config(model.config)
    config.suppress_tokens = sorted(ids[word] for word in never)
    config.min_new_tokens = _need({"min_output_length": 1} | testing, "testing", "min_output_length")
    longest = _need({"max_output_length": -1} | testing, "testing", "max_output_length")
    if longest > 0:
        config.max_new_tokens = longest
    return config


def _section(settings: dict[str, Any], *path: str) -> dict[str, Any]:
    """A part of the settings, empty if it is not there."""
    for index, name in enumerate(path):
        settings = settings.get(name) or {}
        if not isinstance(settings, dict):
            raise ValueError(f"{'.'.join(path[: index + 1])} must be a mapping, got {settings!r:.100}")
    return settings


def _need(section: dict[str, Any], path: str, name: str) -> int:
    if not isinstance(section.get(name), int):
        raise ValueError(f"{path}.{name} must be a number, got {section.get(name)!r}")
    return section[name]


def _choice(path: str, value: Any, choices: dict[str, Any]) -> Any:
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{path}={value!r} has no place in our models, which have {', '.join(map(repr, choices))}")
    return choices[value]


def _linear(weights: Weights, theirs: str, ours: str) -> dict[str, Tensor]:
    return {f"{ours}.{parameter}": weights.take(f"{theirs}.{parameter}") for parameter in ("weight", "bias")}
