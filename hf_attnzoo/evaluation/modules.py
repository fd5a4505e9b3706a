"""The scores as `evaluate.Metric` modules, loaded by name and without a network.

They differ from those of `evaluate.load()` in where they come from, not in use: `compute`, `add`, `add_batch` and
`evaluate.combine` work as ever.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import evaluate
from datasets import Features, List, Value

from . import alignments, classification, correction, scores, squad, tagging

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_TEXTS = """
Args:
    predictions: texts.
    references: as many texts, or as many lists of texts.
    lowercase: whether upper and lower case are the same. Default: False.
"""
_TOKENIZE = f"    tokenize: one of {', '.join(map(repr, scores.TOKENIZERS))}. Default: '13a'.\n"


class _QuietMetric(evaluate.Metric):
    """A module that keeps what it is given in memory, and says what is wrong with it."""

    def __init__(self, config_name: str | None = None, *, keep_in_memory: bool | None = None, **kwargs: Any) -> None:
        # In memory nothing can collide with another process, or be left behind; only a distributed run needs files
        alone = kwargs.get("num_process", 1) == 1
        if keep_in_memory is None:
            keep_in_memory = alone
        if alone:
            kwargs.setdefault("experiment_id", uuid.uuid4().hex)
        super().__init__(config_name, keep_in_memory=keep_in_memory, **kwargs)

    def _build_data_dir(self) -> str:
        if self.keep_in_memory:
            # A home that cannot be written must not stop an evaluation that writes nothing
            return os.path.join(self._data_dir_root, self.name, self.config_name)
        return super()._build_data_dir()

    def _finalize(self) -> None:
        if self.writer is None:
            raise ValueError("predictions is empty; add some, or pass them to compute()")
        super()._finalize()


class _TextMetric(_QuietMetric):
    """A score of texts as a module: its value under the score's name, its settings under `<name>_signature`."""

    score: ClassVar[Callable[..., scores.Score]]
    inputs: ClassVar[str] = _TEXTS + _TOKENIZE
    citation: ClassVar[str] = ""

    def _info(self) -> evaluate.MetricInfo:
        text = Value("string")
        return evaluate.MetricInfo(
            description=self.score.__doc__,
            citation=self.citation,
            inputs_description=self.inputs,
            features=[
                Features({"predictions": text, "references": text}),
                Features({"predictions": text, "references": List(text)}),
            ],
        )

    def _infer_feature_from_batch(self, batch: dict[str, list]) -> Features:
        scores.checked(batch["predictions"], batch["references"])
        return super()._infer_feature_from_batch(batch)

    def _compute(self, predictions: list[str], references: list, **options: Any) -> dict[str, float | str]:
        score = self.score(predictions, references, **options)
        return {self.name: score.value, f"{self.name}_signature": score.signature}


class ExactMatch(_TextMetric):
    score = staticmethod(scores.exact_match)
    inputs = _TEXTS


class SequenceErrorRate(_TextMetric):
    score = staticmethod(scores.sequence_error_rate)
    inputs = _TEXTS


class TokenErrorRate(_TextMetric):
    score = staticmethod(scores.token_error_rate)


class TokenAccuracy(_TextMetric):
    score = staticmethod(scores.token_accuracy)


class Bleu(_TextMetric):
    score = staticmethod(scores.bleu)
    citation = "Papineni et al. (2002), Bleu; Post (2018), A Call for Clarity in Reporting BLEU Scores"


class Chrf(_TextMetric):
    score = staticmethod(scores.chrf)
    inputs = _TEXTS
    citation = "Popović (2015), chrF: character n-gram F-score for automatic MT evaluation"


class Ter(_TextMetric):
    score = staticmethod(scores.ter)
    inputs = _TEXTS
    citation = "Snover et al. (2006), A Study of Translation Edit Rate with Targeted Human Annotation"


class WordErrorRate(_TextMetric):
    score = staticmethod(scores.word_error_rate)
    inputs = _TEXTS


class CharacterErrorRate(_TextMetric):
    score = staticmethod(scores.character_error_rate)
    inputs = _TEXTS


class PhonemeErrorRate(_TextMetric):
    score = staticmethod(scores.phoneme_error_rate)
    inputs = _TEXTS


class Gleu(_TextMetric):
    """Takes `sources` too, the texts before correction."""

    score = staticmethod(correction.gleu)
    inputs = (
        _TEXTS.replace("    lowercase:", "    sources: as many texts, before correction.\n    lowercase:")
        + "    tokenize: as in BLEU. Default: 'none'.\n    iterations: drawings of references. Default: 500.\n"
        + "    seed: of the drawings. Default: 0.\n"
    )
    citation = (
        "Napoles et al. (2015), Ground Truth for Grammatical Error Correction Metrics; (2016), GLEU Without Tuning"
    )

    def _info(self) -> evaluate.MetricInfo:
        info = super()._info()
        info.features = [Features({**features, "sources": Value("string")}) for features in info.features]
        return info


class AlignmentErrorRate(_QuietMetric):
    """Takes lines of links in Pharaoh format, and gives `alignment_precision` and `alignment_recall` too."""

    def _info(self) -> evaluate.MetricInfo:
        text = Value("string")
        return evaluate.MetricInfo(
            description=alignments.alignment_error_rate.__doc__,
            citation="Och and Ney (2003), A Systematic Comparison of Various Statistical Alignment Models",
            inputs_description="Args:\n    predictions: lines of links such as '0-0 1-2'.\n"
            "    references: as many lines by hand, sure links as '0-0', possible ones as '0p1' or '0?1'.\n",
            features=Features({"predictions": text, "references": text}),
        )

    def _compute(self, predictions: list[str], references: list[str]) -> dict[str, float | str]:
        result = {}
        for name in (self.name, "alignment_precision", "alignment_recall"):
            score = getattr(alignments, name)(predictions, references)
            result[name], result[f"{name}_signature"] = score
        return result


class _SquadMetric(_QuietMetric):
    """A score of answers, each with the list of those that are accepted; an empty list where there is none."""

    score_name: ClassVar[str]

    def _info(self) -> evaluate.MetricInfo:
        text = Value("string")
        return evaluate.MetricInfo(
            description=squad.squad_metrics.__doc__,
            citation="Rajpurkar et al. (2016), SQuAD: 100,000+ Questions for Machine Comprehension of Text",
            inputs_description="Args:\n    predictions: answers, '' for none.\n"
            "    references: as many lists of accepted answers.\n",
            features=Features({"predictions": text, "references": List(text)}),
        )

    def _compute(self, predictions: list[str], references: list[list[str]]) -> dict[str, float | str]:
        result = squad.squad_metrics(predictions, references, [self.score_name])
        return {self.name: result[self.score_name], f"{self.name}_signature": result[f"{self.score_name}_signature"]}


class _LikelihoodMetric(_QuietMetric):
    """A score of texts under a causal language model, given as such with its tokenizer, or as a folder."""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description="How well a causal language model foresees texts; lower is better.",
            citation="",
            inputs_description="Args:\n    predictions: texts.\n    model: a causal language model, or its folder.\n"
            "    tokenizer: its tokenizer. Default: None, that of the folder.\n"
            "    block_size: tokens that the model reads at a time. Default: None, as many as it can, or 1,024.\n"
            "    batch_size: blocks at a time. Default: 8.\n"
            "    join: whether texts follow each other in a block, or each is read by itself. Default: True.\n"
            "    answers_after: what stands in front of answers, if they alone count. Default: None.\n",
            features=Features({"predictions": Value("string")}),
        )

    def _compute(
        self,
        predictions: list[str],
        model: PreTrainedModel | str | os.PathLike,
        tokenizer: PreTrainedTokenizerBase | None = None,
        block_size: int | None = None,
        batch_size: int = 8,
        join: bool = True,
        answers_after: str | None = None,
    ) -> dict[str, float | str]:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        from .likelihood import default_block_size, reading_signature, text_likelihood

        if isinstance(model, (str, os.PathLike)):
            tokenizer = tokenizer or AutoTokenizer.from_pretrained(model)
            model = AutoModelForCausalLM.from_pretrained(model)
        if tokenizer is None:
            raise ValueError(f"tokenizer is None; a {type(model).__name__} comes with its tokenizer")
        block_size = block_size or default_block_size(model)
        reading = {"join": join, "answers_after": answers_after}
        likelihood = text_likelihood(
            model, tokenizer, predictions, block_size=block_size, batch_size=batch_size, **reading
        )
        signature = reading_signature(block_size, tokens=int(likelihood.losses[:, 1].sum()), **reading)
        return {self.name: likelihood.score(self.name), f"{self.name}_signature": signature}


class CrossEntropy(_LikelihoodMetric):
    pass


class Perplexity(_LikelihoodMetric):
    pass


class BitsPerCharacter(_LikelihoodMetric):
    pass


class BitsPerByte(_LikelihoodMetric):
    pass


class SquadExactMatch(_SquadMetric):
    score_name = "exact_match"


class SquadF1(_SquadMetric):
    score_name = "f1"


class _ClassificationMetric(_QuietMetric):
    """A score of classes, given as numbers or as names."""

    score: ClassVar[Callable[..., scores.Score]]
    options: ClassVar[str] = ""
    citation: ClassVar[str] = ""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=self.score.__doc__,
            citation=self.citation,
            inputs_description=f"Args:\n    predictions: classes.\n    references: as many classes.\n{self.options}",
            features=[
                Features({"predictions": Value(kind), "references": Value(kind)}) for kind in ("int64", "string")
            ],
        )

    def _compute(self, predictions: list, references: list, **options: Any) -> dict[str, float | str]:
        score = self.score(predictions, references, **options)
        return {self.name: score.value, f"{self.name}_signature": score.signature}


class Accuracy(_ClassificationMetric):
    score = staticmethod(classification.accuracy)


class F1(_ClassificationMetric):
    score = staticmethod(classification.f1_score)
    options = (
        "    average: 'macro', 'weighted', 'micro' or 'binary'. Default: 'macro'.\n"
        "    positive: the class that counts, for 'binary'. Default: None.\n"
    )


class Mcc(_ClassificationMetric):
    score = staticmethod(classification.matthews_correlation)
    citation = "Matthews (1975), Comparison of the predicted and observed secondary structure of T4 phage lysozyme"


class EntityF1(_QuietMetric):
    """Takes sentences, each a list of tags such as `B-PER`, and gives `entity_precision` and `entity_recall` too."""

    def _info(self) -> evaluate.MetricInfo:
        tags = List(Value("string"))
        return evaluate.MetricInfo(
            description=tagging.entities.__doc__,
            citation="Tjong Kim Sang and De Meulder (2003), Introduction to the CoNLL-2003 Shared Task",
            inputs_description="Args:\n    predictions: sentences, each a list with a tag for every word.\n"
            "    references: as many such lists.\n",
            features=Features({"predictions": tags, "references": tags}),
        )

    def _compute(self, predictions: list[list[str]], references: list[list[str]]) -> dict[str, float | str]:
        return tagging.tagging_metrics(predictions, references, [self.name, "entity_precision", "entity_recall"])


METRICS = {
    "exact_match": ExactMatch,
    "sequence_error_rate": SequenceErrorRate,
    "token_error_rate": TokenErrorRate,
    "word_error_rate": WordErrorRate,
    "character_error_rate": CharacterErrorRate,
    "phoneme_error_rate": PhonemeErrorRate,
    "token_accuracy": TokenAccuracy,
    "bleu": Bleu,
    "chrf": Chrf,
    "ter": Ter,
    "gleu": Gleu,
    "alignment_error_rate": AlignmentErrorRate,
    "squad_exact_match": SquadExactMatch,
    "squad_f1": SquadF1,
    "accuracy": Accuracy,
    "f1": F1,
    "mcc": Mcc,
    "entity_f1": EntityF1,
    "cross_entropy": CrossEntropy,
    "perplexity": Perplexity,
    "bits_per_character": BitsPerCharacter,
    "bits_per_byte": BitsPerByte,
}


def load_metric(name: str, **kwargs: Any) -> evaluate.Metric:
    """A metric module by name, from this package and never from the network.

    Args:
        name:
            One of `METRICS`: `"exact_match"`, `"sequence_error_rate"`, `"token_error_rate"`, `"word_error_rate"`,
            `"character_error_rate"`, `"phoneme_error_rate"`, `"token_accuracy"`, `"bleu"`, `"chrf"`, `"ter"`, `"gleu"`
            (with `sources`), `"alignment_error_rate"` (of lines in Pharaoh format), `"squad_exact_match"` and
            `"squad_f1"` of answers, `"accuracy"`, `"f1"` and `"mcc"` of classes, `"entity_f1"` of tags, and of texts
            under a language model `"cross_entropy"`, `"perplexity"`, `"bits_per_character"` and `"bits_per_byte"`.
        **kwargs:
            Those of `evaluate.Metric`. Texts are kept in memory, unless `num_process` is above 1: then give each run
            an `experiment_id` of its own.

    Returns:
        The module; `compute(predictions=..., references=...)` gives the score under its name and its settings under
        `<name>_signature`.

    Raises:
        ValueError: an unknown name.
    """
    if name not in METRICS:
        raise ValueError(f"name is {name!r}; the metrics are {', '.join(METRICS)}")
    return METRICS[name](**kwargs)
