"""BERT and RoBERTa of transformers <-> bert, class by class.

MiniLM, and whatever else has the shape of one of the two, comes and goes with them.
"""

from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from ..models import modeling_bert
from ..models.configuration_bert import BERTConfig
from .checkpoints import Checkpoint, Weights, build_model

_STEMS = {"bert": "Bert", "roberta": "Roberta"}

# Names of the classes without their stem -> what of the model there is besides embeddings and layers. A base model may
# have a pooler or not.
_PARTS: dict[str, tuple[str, ...]] = {
    "Model": (),
    "ForMaskedLM": ("transform.dense", "transform.norm", "lm_head"),
    "ForPreTraining": ("pooler.dense", "transform.dense", "transform.norm", "lm_head", "next_sentence"),
    "ForNextSentencePrediction": ("pooler.dense", "next_sentence"),
    "ForSequenceClassification": ("pooler.dense", "classifier"),
    "ForTokenClassification": ("classifier",),
    "ForQuestionAnswering": ("span",),
    "ForMultipleChoice": ("pooler.dense", "choice"),
}
_HEADS = {
    "bert": {
        "transform.dense": "cls.predictions.transform.dense",
        "transform.norm": "cls.predictions.transform.LayerNorm",
        "lm_head": "cls.predictions.decoder",
        "next_sentence": "cls.seq_relationship",
        "classifier": "classifier",
        "choice": "classifier",
        "span": "qa_outputs",
    },
    "roberta": {
        "transform.dense": "lm_head.dense",
        "transform.norm": "lm_head.layer_norm",
        "lm_head": "lm_head.decoder",
        "classifier": "classifier",
        "choice": "classifier",
        "span": "qa_outputs",
    },
}
# The bias of the output layer lies beside it too, as the same parameter.
_HEAD_BIAS = {"bert": "cls.predictions.bias", "roberta": "lm_head.bias"}

# Settings of the same name in both configurations, and ours for theirs.
_SAME = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "hidden_act",
    "layer_norm_eps",
    "type_vocab_size",
    "classifier_dropout",
    "initializer_range",
    "tie_word_embeddings",
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
    "id2label",
    "label2id",
    "problem_type",
)
_RENAMED = {"dropout": "hidden_dropout_prob", "attention_dropout": "attention_probs_dropout_prob"}


def from_bert(checkpoint: Checkpoint) -> PreTrainedModel:
    """BERT, RoBERTa or MiniLM made ours: the class is the one that the checkpoint names, head included.

    Args:
        checkpoint: of any class in `transformers` that is called `Bert...` or `Roberta...`, the causal ones aside.

    Raises:
        ValueError: naming a class, a setting or a parameter that has no place.
    """
    kind, weights = checkpoint.kind, checkpoint.weights
    config = _our_config(getattr(transformers, f"{_STEMS[kind]}Config").from_dict(checkpoint.config))
    _drop_what_is_known(weights)
    head = _head_of(checkpoint, _STEMS[kind])
    if head == "ForMaskedLM" and "cls.seq_relationship.weight" in weights:
        # Pre-trained checkpoints name the one class and hold the other.
        head = "ForPreTraining"
    _check_activation(kind, head, config)
    pooled = head != "Model" or any(name.endswith("pooler.dense.weight") for name in weights)
    prefixed = any(name.startswith(f"{kind}.") for name in weights)

    ours = {}
    for name, others in _names(kind, head, config, pooled, prefixed).items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            _take_copy(weights, others[0], ours["model.embed_tokens.weight"])
        elif name == "lm_head.bias":
            ours[name] = _take_head_bias(weights, others[0], _HEAD_BIAS[kind])
        else:
            ours[name] = torch.cat([weights.take(other) for other in others])
    options = {"add_pooling_layer": pooled} if head == "Model" else {}
    return build_model(getattr(modeling_bert, f"BERT{head}"), config, ours, **options)


def to_bert(checkpoint: Checkpoint) -> PreTrainedModel:
    """bert made transformers' own: a RoBERTa if positions have its offset, else a BERT.

    Args:
        checkpoint: of any class of the family.

    Raises:
        ValueError: naming a class, a setting or a parameter that has no place.
    """
    weights, head = checkpoint.weights, _head_of(checkpoint, "BERT")
    config = BERTConfig.from_dict(checkpoint.config)
    other_config = _their_config(config)
    kind = other_config.model_type
    _check_activation(kind, head, config)
    model_class = getattr(transformers, f"{_STEMS[kind]}{head}", None)
    if model_class is None:
        raise ValueError(f"BERT{head} has no place in transformers, whose RoBERTa has no such class")
    pooled = head != "Model" or "pooler.dense.weight" in weights

    theirs: dict[str, Tensor] = {}
    for name, others in _names(kind, head, config, pooled, prefixed=head != "Model").items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            _take_copy(weights, name, theirs[f"{kind}.embeddings.word_embeddings.weight"])
            continue
        tensor = weights.take(name)
        if name == "lm_head.bias":
            # Two parameters that shared memory would be saved as one.
            theirs[_HEAD_BIAS[kind]] = tensor.clone()
            if config.tie_word_embeddings:
                continue
        theirs |= zip(others, tensor.chunk(len(others)), strict=True)
    if not config.type_vocab_size:
        # One segment whose vector is 0 is no segment.
        prefix = "" if head == "Model" else f"{kind}."
        words = theirs[f"{prefix}embeddings.word_embeddings.weight"]
        theirs[f"{prefix}embeddings.token_type_embeddings.weight"] = torch.zeros_like(words[:1])
    options = {"add_pooling_layer": pooled} if head == "Model" else {}
    return build_model(model_class, other_config, theirs, **options)


def _our_config(config: PreTrainedConfig) -> BERTConfig:
    for name, only in (("is_decoder", False), ("add_cross_attention", False), ("position_embedding_type", "absolute")):
        if getattr(config, name, only) != only:
            raise ValueError(f"{name}={getattr(config, name)!r} has no place in bert, which has {only!r} alone")
    offset = config.pad_token_id + 1 if config.model_type == "roberta" else 0
    fields = {name: getattr(config, name) for name in _SAME}
    fields |= {ours: getattr(config, theirs) for ours, theirs in _RENAMED.items()}
    return BERTConfig(
        max_position_embeddings=config.max_position_embeddings - offset, position_offset=offset, **fields
    )


def _their_config(config: BERTConfig) -> PreTrainedConfig:
    for name, only in (("norm_first", False), ("use_bias", True), ("activation_dropout", 0)):
        if getattr(config, name) != only:
            raise ValueError(f"{name}={getattr(config, name)!r} has no place in transformers, whose BERT has {only!r}")
    fields: dict[str, Any] = {name: getattr(config, name) for name in _SAME}
    fields |= {theirs: getattr(config, ours) for ours, theirs in _RENAMED.items()}
    fields["type_vocab_size"] = max(config.type_vocab_size, 1)
    fields["max_position_embeddings"] = config.max_position_embeddings + config.position_offset
    if config.position_offset == 0:
        return transformers.BertConfig(**fields)
    if config.pad_token_id is None or config.position_offset != config.pad_token_id + 1:
        raise ValueError(
            f"position_offset={config.position_offset} has no place in transformers: BERT has 0, RoBERTa has "
            f"pad_token_id + 1, and pad_token_id is {config.pad_token_id}"
        )
    return transformers.RobertaConfig(**fields)


def _head_of(checkpoint: Checkpoint, stem: str) -> str:
    names = checkpoint.config.get("architectures") or [f"{stem}Model"]
    head = names[0].removeprefix(stem)
    if not names[0].startswith(stem) or head not in _PARTS:
        known = ", ".join(stem + part for part in _PARTS)
        raise ValueError(f"architectures={names!r}: {names[0]} has no place among {known}")
    return head


def _check_activation(kind: str, head: str, config: BERTConfig) -> None:
    if kind == "roberta" and head == "ForMaskedLM" and config.hidden_act != "gelu":
        raise ValueError(
            f"hidden_act={config.hidden_act!r}: whatever it is, the head of transformers' RobertaForMaskedLM has "
            "'gelu', and ours has what the layers have"
        )


def _names(kind: str, head: str, config: BERTConfig, pooled: bool, prefixed: bool) -> dict[str, list[str]]:
    """Our parameters, each with theirs that stand in its rows, one after the other."""
    base = {
        "embed_tokens": ["embeddings.word_embeddings"],
        "inputs.positions.table": ["embeddings.position_embeddings"],
        "inputs.norm": ["embeddings.LayerNorm"],
    }
    if config.type_vocab_size:
        base["inputs.segments"] = ["embeddings.token_type_embeddings"]
    for index in range(config.num_hidden_layers):
        mine, other = f"stack.layers.{index}", f"encoder.layer.{index}"
        base |= {
            f"{mine}.self_attn.qkv_proj": [f"{other}.attention.self.{part}" for part in ("query", "key", "value")],
            f"{mine}.self_attn.out_proj": [f"{other}.attention.output.dense"],
            f"{mine}.self_attn_norm": [f"{other}.attention.output.LayerNorm"],
            f"{mine}.feed_forward.up_proj": [f"{other}.intermediate.dense"],
            f"{mine}.feed_forward.down_proj": [f"{other}.output.dense"],
            f"{mine}.feed_forward_norm": [f"{other}.output.LayerNorm"],
        }
    parts = _PARTS[head]
    if "pooler.dense" in parts or (head == "Model" and pooled):
        base["pooler.dense"] = ["pooler.dense"]
    ours_prefix, theirs_prefix = "" if head == "Model" else "model.", f"{kind}." if prefixed else ""
    modules = {ours_prefix + mine: [theirs_prefix + other for other in others] for mine, others in base.items()}
    modules |= {part: [_HEADS[kind][part]] for part in parts if part != "pooler.dense"}
    if kind == "roberta" and head == "ForSequenceClassification":
        # What is BERT's pooler is the beginning of RoBERTa's head.
        modules |= {"model.pooler.dense": ["classifier.dense"], "classifier": ["classifier.out_proj"]}
    names = {}
    for mine, others in modules.items():
        embedding = mine.endswith(("embed_tokens", "positions.table", "segments"))
        for parameter in ("weight",) if embedding else ("weight", "bias"):
            names[f"{mine}.{parameter}"] = [f"{other}.{parameter}" for other in others]
    return names


def _drop_what_is_known(weights: Weights) -> None:
    for name in list(weights):
        if name.endswith("embeddings.position_ids"):
            # A constant buffer, which older versions saved.
            weights.take(name)
        for old, new in ((".gamma", ".weight"), (".beta", ".bias")):
            if name.endswith(f"LayerNorm{old}"):
                weights[name.removesuffix(old) + new] = weights.take(name)


def _take_copy(weights: Weights, name: str, original: Tensor) -> None:
    """Take what is said to be the same as another parameter, if it is there at all."""
    if name in weights and not torch.equal(weights.take(name), original):
        raise ValueError(f"{name} is not the embedding, but tie_word_embeddings=True: it has no place")


def _take_head_bias(weights: Weights, name: str, other: str) -> Tensor:
    if name not in weights:
        return weights.take(other)
    bias = weights.take(name)
    if other in weights and not torch.equal(weights.take(other), bias):
        raise ValueError(f"{other} is not {name}, which is what the head adds: it has no place")
    return bias
