"""Masked language models: texts with words masked, which are guessed from what stands around them."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset
from torch import Tensor
from transformers import EvalPrediction, PreTrainedModel, PreTrainedTokenizerBase

from ...attention_maps import attention_map, plot_grid
from ...data import MaskingCollator, join_parts, load_texts, masked_once, masking_blocks, tokenize_texts
from ...evaluation import bootstrap_interval
from ...evaluation.likelihood import exponential
from ...evaluation.masked import MASKED_METRICS, masked_scores, masked_statistics
from ...hub import CardTexts
from ..trainer import ZooTrainer
from .base import Outcome
from .encoding import EncoderTask

# The masks that models are scored on are the same for every run.
_SEED = 0

# Of a sample: its longest text in tokens, how much stands before the mask, and most samples.
_LENGTH, _BEFORE, _SAMPLES = 28, 6, 100


class MaskedLanguageModelingTask(EncoderTask):
    """Rows have the column `text`. Scores are of masked tokens, on masks that never change."""

    card = CardTexts(
        pipeline_tag="fill-mask",
        task_name="Masked language modeling",
        tags=("masked-lm",),
        pipeline="fill-mask",
        verb="fill",
        unit="texts",
        sample_columns=("text", "the word", "output"),
    )
    head = "AutoModelForMaskedLM"
    metrics = MASKED_METRICS
    unused = ("data.max_target_length", "data.on_too_long", "data.stride")
    own_data = "attnzoo train bert-mlm data.source=YOUR_TEXT.txt"

    def check(self) -> None:
        super().check()
        data = self.recipe.data
        if (data.block_size is None) == (data.max_source_length is None):
            raise ValueError(
                f"data.block_size={data.block_size} and data.max_source_length={data.max_source_length}: set the one, "
                "for blocks of so many tokens, or the other, for lines of at most so many"
            )

    @property
    def longest(self) -> int | None:
        return self.recipe.data.block_size or self.recipe.data.max_source_length

    def load(self, source: str, training: bool, **options: Any) -> Dataset:
        return load_texts(source, **options)

    def show(self, row: dict[str, Any]) -> str:
        return f"{len(row['text']):,} characters that begin {row['text'][:40]!r}"

    def digest(self, rows: Dataset) -> str:
        digest = hashlib.blake2b(digest_size=16)
        for text in rows["text"]:
            digest.update(f"{text}\0".encode())
        return digest.hexdigest()

    def inputs_of(self, rows: Dataset) -> Iterable[str]:
        return rows["text"]

    def texts(self, rows: Dataset) -> tuple[list[str], ...]:
        return (list(rows["text"]),)

    def prepare(self, rows: Dataset, processor: PreTrainedTokenizerBase) -> tuple[Dataset, Dataset]:
        prepared = self.prepare_buffer(rows, processor)
        return prepared, self._samples(prepared, processor)

    def prepare_buffer(self, rows: Dataset, processor: PreTrainedTokenizerBase) -> Dataset:
        data = self.recipe.data
        if data.block_size is not None:
            return masking_blocks(join_parts(rows), processor, data.block_size)
        lines = [line for text in rows["text"] for line in text.splitlines() if line.strip()]
        if not lines:
            raise ValueError("data: there is no line with a text in it")
        prepared = tokenize_texts(Dataset.from_dict({"text": lines}), processor, max_length=data.max_source_length)
        # What a tokenizer tells of segments is that there is one.
        return prepared.select_columns(["input_ids", "word_ids"])

    def check_stream(self) -> None:
        if self.longest > self.recipe.training.batch_tokens:
            raise ValueError(
                f"training.batch_tokens={self.recipe.training.batch_tokens} must be at least the tokens of a text, "
                f"{self.longest}"
            )

    def _samples(self, prepared: Dataset, processor: PreTrainedTokenizerBase) -> Dataset:
        """Texts with a single word masked, from all over the data."""
        step = max(1, len(prepared) // (2 * _SAMPLES))
        texts, words = [], []
        for row in prepared.select(range(0, len(prepared), step)):
            # The last token may be the middle of a word.
            ids, numbers = row["input_ids"][:_LENGTH], row["word_ids"]
            if len(row["input_ids"]) > _LENGTH:
                while len(ids) > 1 and numbers[len(ids)] == numbers[len(ids) - 1]:
                    ids = ids[:-1]
            alone = [
                place
                for place in range(_BEFORE, len(ids) - 1)
                if numbers[place] >= 0 and numbers[place - 1] != numbers[place] != numbers[place + 1]
            ]
            found = [(place, processor.decode([ids[place]]).strip()) for place in alone]
            found = [(place, word) for place, word in found if word.isalpha() and len(word) > 2]
            if not found or len(texts) == _SAMPLES:
                continue
            place, word = found[len(found) // 2]
            ids[place] = processor.mask_token_id
            shown = [token for token in ids if token not in (processor.cls_token_id, processor.sep_token_id)]
            # A block may begin in the middle of a word.
            while processor.convert_ids_to_tokens(shown[0]).startswith("##"):
                del shown[0]
            texts.append(processor.decode(shown))
            words.append(word)
        return Dataset.from_dict({"text": texts, "word": words})

    def _masking(self, processor: PreTrainedTokenizerBase, seed: int) -> "_MaskedRows":
        section = self.recipe.masking
        return _MaskedRows(
            processor,
            unit=section.unit,
            probability=section.probability,
            mask_share=section.mask_share,
            random_share=section.random_share,
            seed=seed,
        )

    def for_evaluation(self, prepared: Dataset, processor: PreTrainedTokenizerBase) -> Dataset:
        return masked_once(prepared, self._masking(processor, _SEED))

    def collator(self, processor: PreTrainedTokenizerBase) -> MaskingCollator:
        return self._masking(processor, self.recipe.seed)

    def trainer_options(self, processor: PreTrainedTokenizerBase, validation: Dataset) -> dict[str, Any]:
        def compute(prediction: EvalPrediction) -> dict[str, float]:
            sums = prediction.predictions
            return {name: masked_statistics(name, sums).value for name in self.recipe.evaluation.metrics}

        return {"compute_metrics": compute, "preprocess_logits_for_metrics": masked_scores}

    def measure(
        self, trainer: ZooTrainer, processor: PreTrainedTokenizerBase, prepared: Dataset, rows: Dataset
    ) -> Outcome | None:
        trainer.compute_metrics = None
        sums = trainer.predict(prepared).predictions
        if not trainer.is_world_process_zero():
            return None
        masking = self.recipe.masking
        signature = (
            f"unit:{masking.unit}|share:{masking.probability}|masks:seed {_SEED}|tokens:{int(sums[:, 2].sum())}"
        )
        metrics: dict[str, float | str] = {}
        for name in self.recipe.evaluation.metrics:
            metrics[name], metrics[f"{name}_signature"] = masked_statistics(name, sums).value, signature
        losses = bootstrap_interval(sums[:, 0], sums[:, 2])
        intervals = {
            "cross_entropy": losses,
            "perplexity": tuple(map(exponential, losses)),
            "masked_accuracy": bootstrap_interval(sums[:, 1], sums[:, 2]),
        }
        intervals = {name: between for name, between in intervals.items() if name in metrics}
        return Outcome(metrics, intervals, self.shown_outputs(trainer, processor, rows))

    def sample(self, row: dict[str, Any], number: int, output: str) -> tuple[str, ...]:
        return row["text"], row["word"], output

    def example(self, rows: Dataset) -> str:
        return json.dumps(rows[0]["text"] if len(rows) else "", ensure_ascii=False)

    def draw(self, model: PreTrainedModel, processor: PreTrainedTokenizerBase, rows: Dataset, path: Path) -> None:
        maps = [attention_map(model, processor, text) for text in rows["text"]]
        plot_grid(maps, path, titles=[item.source_text for item in maps], columns=2, vmax=0.5)

    def inputs(self, processor: PreTrainedTokenizerBase, rows: Dataset) -> dict[str, Tensor]:
        return dict(processor(list(rows["text"]), padding=True, return_tensors="pt"))

    def judged(
        self, outputs: Any, processor: PreTrainedTokenizerBase, inputs: Mapping[str, Tensor], rows: Dataset
    ) -> list[str]:
        best = outputs.logits.argmax(dim=-1).cpu()
        masked = inputs["input_ids"].cpu() == processor.mask_token_id
        return [processor.decode(ids[places][:1]) for ids, places in zip(best, masked, strict=True)]

    def ask(self, pipe: Any, rows: Dataset) -> list[str]:
        return [pipe(text, top_k=1)[0]["token_str"] for text in rows["text"]]


class _MaskedRows(MaskingCollator):
    """Masks rows anew in every epoch, and takes rows as they are that have been masked already."""

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        return self.pad(rows, rows) if len(rows) and "labels" in rows[0] else super().__call__(rows)
