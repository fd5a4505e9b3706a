"""Language models: documents, cut into blocks, whose every token is predicted from those before it."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from transformers import AutoTokenizer, EvalPrediction, PreTrainedModel, PreTrainedTokenizerBase

from ...data import Seq2SeqCollator, cut_blocks, in_context_episodes, join_parts
from ...evaluation import (
    LIKELIHOOD_METRICS,
    SHOTS,
    ShotScore,
    TextLikelihood,
    in_context_accuracy,
    longest_prompt,
    row_losses,
)
from ...evaluation.likelihood import reading_signature
from ...hub import CardTexts
from ...models.tokenization_attnzoo import train_tokenizer
from ..schema import DataSection, EvaluationSection
from ..trainer import IGNORE_INDEX, ZooTrainer
from .base import Outcome, Task, one_vocabulary
from .texts import OfTexts

# Of a sample: tokens of its prompt, and most samples.
_PROMPT, _SAMPLES = 16, 100


class LanguageModelingTask(OfTexts, Task):
    """Rows have the column `text`. Scores are of the texts under the model, not of what it writes."""

    card = CardTexts(
        pipeline_tag="text-generation",
        task_name="Text generation",
        tags=("language-model",),
        pipeline="text-generation",
        verb="write",
        unit="blocks",
        sample_columns=("prompt", "the text goes on", "output"),
    )
    writes = False
    own_data = "attnzoo train shakespeare data.source=YOUR_TEXT.txt"
    head = "AutoModelForCausalLM"
    processor_class = AutoTokenizer

    def check(self) -> None:
        data, evaluation = self.recipe.data, self.recipe.evaluation
        for name, value, default in (
            ("data.max_source_length", data.max_source_length, None),
            ("data.max_target_length", data.max_target_length, None),
            ("data.on_too_long", data.on_too_long, DataSection.on_too_long),
            ("evaluation.tokenize", evaluation.tokenize, EvaluationSection.tokenize),
            ("evaluation.lowercase", evaluation.lowercase, EvaluationSection.lowercase),
        ):
            if value != default:
                raise ValueError(f"{name}={value} means nothing to a language model: leave it out")
        if data.block_size is None:
            raise ValueError("data.block_size is missing: set it to the tokens that the model reads at a time")
        if data.answers_after is not None:
            for name in evaluation.metrics:
                if name.startswith("bits_per_"):
                    raise ValueError(
                        f"evaluation.metrics has {name!r}, which is of all tokens: leave out data.answers_after"
                    )

    def build_processor(self, rows: Dataset) -> PreTrainedTokenizerBase:
        return train_tokenizer(source_texts=rows["text"], causal=True, **one_vocabulary(self.recipe))

    def adopt(self, processor: PreTrainedTokenizerBase, config: dict[str, Any]) -> None:
        if processor.pad_token_id is None:
            # GPT-2 has no token for padding; what stands there is masked, and never predicted.
            processor.pad_token = processor.eos_token
        # A prompt goes on where it ends.
        processor.padding_side = "left"

    def vocabulary(self, processor: PreTrainedTokenizerBase) -> dict[str, int]:
        return {"text": len(processor)}

    def model_fields(self, processor: PreTrainedTokenizerBase) -> dict[str, Any]:
        return {"vocab_size": len(processor)}

    def prepare(self, rows: Dataset, processor: PreTrainedTokenizerBase) -> tuple[Dataset, Dataset]:
        rows = join_parts(rows)
        blocks = self._cut(rows, processor)
        # Samples come from all over the text.
        step = max(1, len(blocks) // _SAMPLES)
        some = [ids for ids in blocks[::step]["input_ids"] if len(ids) > _PROMPT][:_SAMPLES]
        some = some or blocks[:1]["input_ids"]
        halves = {
            "prompt": [processor.decode(ids[:_PROMPT], skip_special_tokens=True) for ids in some],
            "continuation": [processor.decode(ids[_PROMPT : 3 * _PROMPT], skip_special_tokens=True) for ids in some],
        }
        samples = Dataset.from_dict(halves).add_column("characters", [sum(map(len, rows["text"]))] * len(some))
        return blocks, samples.add_column("bytes", [sum(len(text.encode()) for text in rows["text"])] * len(some))

    def prepare_buffer(self, rows: Dataset, processor: PreTrainedTokenizerBase) -> Dataset:
        return self._cut(join_parts(rows), processor)

    def _cut(self, rows: Dataset, processor: PreTrainedTokenizerBase) -> Dataset:
        data = self.recipe.data
        return cut_blocks(rows, processor, data.block_size, data.join_texts, data.answers_after)

    def reading(self) -> dict[str, Any]:
        data = self.recipe.data
        settings = {
            "join_texts": None if data.join_texts else False,
            "answers_after": data.answers_after,
            "block_size": data.block_size,
        }
        return {name: value for name, value in settings.items() if value is not None}

    def check_stream(self) -> None:
        block, budget = self.recipe.data.block_size, self.recipe.training.batch_tokens
        if block is not None and block > budget:
            raise ValueError(f"training.batch_tokens={budget} must be at least data.block_size={block}")

    def collator(self, processor: PreTrainedTokenizerBase) -> Seq2SeqCollator:
        return _BlockCollator(processor)

    def source_lengths(self, prepared: Dataset, model: PreTrainedModel) -> np.ndarray:
        # What is read is what is predicted: it fills a batch once.
        return np.zeros(len(prepared), dtype=np.int64)

    def trainer_options(self, processor: PreTrainedTokenizerBase, validation: Dataset) -> dict[str, Any]:
        def compute(prediction: EvalPrediction) -> dict[str, float]:
            likelihood = _likelihood(prediction.predictions, validation)
            return {name: likelihood.score(name) for name in self.recipe.evaluation.metrics}

        return {"compute_metrics": compute, "preprocess_logits_for_metrics": row_losses}

    def rehearse(self, trainer: ZooTrainer) -> None:
        for name in self.recipe.evaluation.metrics:
            if name not in LIKELIHOOD_METRICS:
                raise ValueError(
                    f"evaluation.metrics has {name!r}; those of a language model are {', '.join(LIKELIHOOD_METRICS)}"
                )
        model = trainer.model.eval()
        block = torch.tensor([trainer.eval_dataset[0]["input_ids"]], device=model.device)
        try:
            model(input_ids=block)
        except ValueError as error:
            raise ValueError(f"data.block_size={self.recipe.data.block_size}: {error}") from error
        prompt = block[:, :_PROMPT]
        try:
            model.generate(prompt, attention_mask=torch.ones_like(prompt))
        except (ValueError, TypeError, ArithmeticError) as error:
            raise ValueError(f"generation: {error}") from error

    def measure(
        self, trainer: ZooTrainer, processor: PreTrainedTokenizerBase, prepared: Dataset, rows: Dataset
    ) -> Outcome | None:
        trainer.compute_metrics = None
        losses = trainer.predict(prepared).predictions
        if not trainer.is_world_process_zero():
            return None
        likelihood, data = _likelihood(losses, rows), self.recipe.data
        signature = reading_signature(data.block_size, data.join_texts, data.answers_after, int(losses[:, 1].sum()))
        parts = {name: likelihood.statistics(name, signature) for name in self.recipe.evaluation.metrics}
        shown = rows.select(range(min(self.recipe.evaluation.samples, len(rows))))
        model = trainer.whole_model.eval()
        outputs = []
        if len(shown):
            inputs = {name: value.to(model.device) for name, value in self.inputs(processor, shown).items()}
            outputs = self.read(processor, model.generate(**inputs), shown)
        return self.outcome(parts, outputs, self._shots(model, processor))

    def _shots(self, model: PreTrainedModel, processor: PreTrainedTokenizerBase) -> list[ShotScore]:
        """What the model makes of new tasks after as many examples as it can read, where its data are about that."""
        data = self.recipe.data
        options = {"source": data.source, "split": "test", **data.options, **data.test}
        if options.pop("source") not in ("in_context", ["in_context"]):
            return []
        # See `load_splits`.
        skip, take = (options.pop(name, None) for name in ("skip", "take"))
        episodes = in_context_episodes(**options)[skip:][:take]
        most = min(len(episode.pairs) for episode in episodes) - 1
        limit = getattr(model.config, "max_position_embeddings", None) or math.inf
        # A run has ended by now: what the model can't read must not bring it down.
        shots = [each for each in SHOTS if each <= most and longest_prompt(processor, episodes, each) <= limit]
        return in_context_accuracy(model, processor, episodes, shots=shots) if shots else []

    def sample(self, row: dict[str, Any], number: int, output: str) -> tuple[str, ...]:
        return row["prompt"], row["continuation"], output

    def example(self, rows: Dataset) -> str:
        return json.dumps(rows[0]["prompt"] if len(rows) else "", ensure_ascii=False)

    def next_command(self, folder: Path, rows: Dataset) -> list[str]:
        prompt = rows[0]["prompt"] if len(rows) else ""
        return ["attnzoo", "write", str(folder), *(["--"] if prompt.startswith("-") else []), prompt]

    def write_extras(self, rows: Dataset, folder: Path) -> None:
        # A prompt needs no file.
        return

    def has_map(self, model: PreTrainedModel) -> bool:
        """Attention maps are of one text over another, or over a picture; not of a text over itself."""
        return False

    def draw(self, model: PreTrainedModel, processor: PreTrainedTokenizerBase, rows: Dataset, path: Path) -> None:
        raise NotImplementedError("a language model has no attention map")

    def parts(self, processor: PreTrainedTokenizerBase) -> dict[str, Any]:
        return {"tokenizer": processor}

    def inputs(self, processor: PreTrainedTokenizerBase, rows: Dataset) -> dict[str, Tensor]:
        return dict(processor(list(rows["prompt"]), padding=True, return_tensors="pt", return_token_type_ids=False))

    def read(self, processor: PreTrainedTokenizerBase, ids: Tensor, rows: Dataset) -> list[str]:
        longest = self.inputs(processor, rows)["input_ids"].shape[1]
        return processor.batch_decode(ids[:, longest:], skip_special_tokens=True)

    def ask(self, pipe: Any, rows: Dataset) -> list[str]:
        # The pipeline samples unless it is told not to, whatever the model's own settings leave open.
        sample = bool(self.recipe.generation.get("do_sample", False))
        written = pipe(list(rows["prompt"]), return_full_text=False, do_sample=sample)
        return [item[0]["generated_text"] for item in written]


class _BlockCollator(Seq2SeqCollator):
    """Blocks as a causal model takes them: labels beside the ids, padded like them, and shifted by the model."""

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Tensor]:
        batch = super().__call__([{"input_ids": row["input_ids"]} for row in rows])
        batch["labels"] = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, IGNORE_INDEX)
        if any(IGNORE_INDEX in row.get("labels", ()) for row in rows):
            labels = [torch.tensor(row["labels"]) for row in rows]
            batch["labels"] = self._pad(labels, IGNORE_INDEX, self.tokenizer.padding_side)
        # The first token of a block is predicted from nothing, and none from padding before it
        batch["labels"][:, 1:].masked_fill_(batch["attention_mask"][:, :-1] == 0, IGNORE_INDEX)
        return batch


def _likelihood(losses: np.ndarray, rows: Dataset) -> TextLikelihood:
    first = rows[0] if len(rows) else {"characters": 0, "bytes": 0}
    return TextLikelihood(losses, first["characters"], first["bytes"])
