"""Questions, and texts whose parts answer them."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from transformers import EvalPrediction, PreTrainedModel, PreTrainedTokenizerBase

from ...attention_maps import plot_grid, question_attention_map
from ...data import load_annotated_source
from ...evaluation.squad import SQUAD_METRICS, squad_metrics, squad_statistics
from ...hub import CardTexts
from ...pipelines.question_answering import Token, question_windows, ranked_answers
from ..trainer import ZooTrainer
from .base import Outcome
from .encoding import MASKING, EncoderTask

# Of the pipeline, where a recipe doesn't say otherwise.
_WINDOW, _LONGEST_ANSWER = 384, 15


class QuestionAnsweringTask(EncoderTask):
    """Rows have the columns of `load_questions`. A text that is too long is read in windows, as the pipeline does."""

    card = CardTexts(
        pipeline_tag="question-answering",
        task_name="Question answering",
        tags=("question-answering",),
        pipeline="attnzoo-question-answering",
        verb="ask",
        unit="questions",
        sample_columns=("question", "answers", "output"),
    )
    given = "questions"
    head = "AutoModelForQuestionAnswering"
    metrics = SQUAD_METRICS
    unused = ("data.block_size", "data.on_too_long", *MASKING)
    own_data = "attnzoo train question-answering data.source=YOUR_QUESTIONS.json"

    no_answer = False
    """Whether there are questions without an answer in the training split, so that the model may find none."""

    def load(self, source: str, training: bool, **options: Any) -> Dataset:
        rows = load_annotated_source("question-answering", source, **options)
        if training:
            self.no_answer = not all(rows["answers"])
        return rows

    @property
    def longest(self) -> int:
        return self.recipe.data.max_source_length or _WINDOW

    def show(self, row: dict[str, Any]) -> str:
        return f"{row['question']!r} → {' | '.join(row['answers'])!r}"

    def inputs_of(self, rows: Dataset) -> Iterable[str]:
        return (f"{row['question']}\n{row['context']}" for row in rows.select_columns(["question", "context"]))

    def texts(self, rows: Dataset) -> tuple[list[str], ...]:
        # A text counts once, however many questions there are about it.
        return ([*rows["question"], *dict.fromkeys(rows["context"])],)

    def prepare(self, rows: Dataset, processor: PreTrainedTokenizerBase) -> tuple[Dataset, Dataset]:
        columns: dict[str, list[Any]] = {"input_ids": [], "start_positions": [], "end_positions": []}
        for row in rows:
            encoded, windows = self._windows(processor, row)
            for number, tokens in enumerate(windows):
                first, last = answer_tokens(tokens, row["starts"][:1], row["answers"][:1])
                columns["input_ids"].append(encoded["input_ids"][number])
                columns["start_positions"].append(first)
                columns["end_positions"].append(last)
                if "token_type_ids" in encoded:
                    columns.setdefault("token_type_ids", []).append(encoded["token_type_ids"][number])
        return Dataset.from_dict(columns), rows

    def _windows(self, processor: PreTrainedTokenizerBase, row: Mapping[str, Any]) -> tuple[Any, list[list[Token]]]:
        return question_windows(processor, row["question"], row["context"], self.longest, self.recipe.data.stride)

    def size(self, prepared: Dataset, rows: Dataset) -> int:
        return len(rows)

    def _answers(
        self, starts: np.ndarray, ends: np.ndarray, processor: PreTrainedTokenizerBase, rows: Dataset
    ) -> list[str]:
        """The best answer of every row, from logits of all their windows, shape `(W, T)` each."""
        answers, number = [], 0
        for row in rows:
            _, windows = self._windows(processor, row)
            scored = []
            for tokens in windows:
                scored.append((starts[number, : len(tokens)], ends[number, : len(tokens)], tokens))
                number += 1
            longest = self.recipe.data.max_target_length or _LONGEST_ANSWER
            answers.append(ranked_answers(row["context"], scored, longest, self.no_answer)[0]["answer"])
        return answers

    def trainer_options(self, processor: PreTrainedTokenizerBase, validation: Dataset) -> dict[str, Any]:
        def compute(prediction: EvalPrediction) -> dict[str, float]:
            starts, ends = (logits.astype(np.float64) for logits in prediction.predictions)
            answers = self._answers(starts, ends, processor, validation)
            scores = squad_metrics(answers, list(validation["answers"]), self.recipe.evaluation.metrics)
            return {name: value for name, value in scores.items() if not name.endswith("_signature")}

        return {"compute_metrics": compute}

    def measure(
        self, trainer: ZooTrainer, processor: PreTrainedTokenizerBase, prepared: Dataset, rows: Dataset
    ) -> Outcome | None:
        trainer.compute_metrics = None
        starts, ends = (logits.astype(np.float64) for logits in trainer.predict(prepared).predictions)
        if not trainer.is_world_process_zero():
            return None
        outputs, accepted = self._answers(starts, ends, processor, rows), list(rows["answers"])
        parts = {name: squad_statistics(name, outputs, accepted) for name in self.recipe.evaluation.metrics}
        return self.outcome(parts, outputs)

    def sample(self, row: dict[str, Any], number: int, output: str) -> tuple[str, ...]:
        return row["question"], " | ".join(dict.fromkeys(row["answers"])), output

    def _options(self) -> dict[str, Any]:
        """What the pipeline is to be told that it wouldn't do by itself."""
        data = self.recipe.data
        options = {"max_seq_len": data.max_source_length, "doc_stride": data.stride}
        options |= {"max_answer_len": data.max_target_length, "handle_impossible_answer": self.no_answer or None}
        return {name: value for name, value in options.items() if value is not None}

    def example(self, rows: Dataset) -> str:
        row = rows[0]
        given = {"question": row["question"], "context": row["context"]}
        texts = [f"{name}={json.dumps(text, ensure_ascii=False)}" for name, text in given.items()]
        return ", ".join([*texts, *(f"{name}={value}" for name, value in self._options().items())])

    def draw(self, model: PreTrainedModel, processor: PreTrainedTokenizerBase, rows: Dataset, path: Path) -> None:
        maps = []
        for row in rows:
            start = row["starts"][0] if row["starts"] else 0
            maps.append(question_attention_map(model, processor, row["question"], row["context"], start, self.longest))
        titles = [f"{row['question']} {' | '.join(dict.fromkeys(row['answers']))}" for row in rows]
        plot_grid(maps, path, titles=titles, columns=1, vmax=0.25)

    def inputs(self, processor: PreTrainedTokenizerBase, rows: Dataset) -> dict[str, Tensor]:
        encoded = [self._windows(processor, row)[0] for row in rows]
        names = [name for name in ("input_ids", "token_type_ids", "attention_mask") if name in encoded[0]]
        windows = {name: [window for one in encoded for window in one[name]] for name in names}
        return dict(processor.pad(windows, padding=True, return_tensors="pt"))

    def judged(
        self, outputs: Any, processor: PreTrainedTokenizerBase, inputs: Mapping[str, Tensor], rows: Dataset
    ) -> list[str]:
        starts, ends = (
            logits.to(device="cpu", dtype=torch.float64).numpy()
            for logits in (outputs.start_logits, outputs.end_logits)
        )
        return self._answers(starts, ends, processor, rows)

    def ask(self, pipe: Any, rows: Dataset) -> list[str]:
        asked = [{"question": row["question"], "context": row["context"]} for row in rows]
        answers = pipe(asked, **self._options())
        return [answer["answer"] for answer in ([answers] if isinstance(answers, dict) else answers)]


def answer_tokens(tokens: list[Token], starts: list[int], answers: list[str]) -> tuple[int, int]:
    """The first and the last token of an answer in a window; of the window's first token if the answer isn't in it.

    Args:
        tokens: of the window, from `question_windows`.
        starts: where the answer begins in the text; empty if there is no answer.
        answers: its text, likewise.
    """
    placed = [(number, place) for number, (place, _) in enumerate(tokens) if place is not None and place[0] < place[1]]
    if not starts or not placed:
        return 0, 0
    start, end = starts[0], starts[0] + len(answers[0])
    inside = [number for number, (begin, stop) in placed if begin < end and stop > start]
    if not inside or placed[0][1][0] > start or placed[-1][1][1] < end:
        return 0, 0
    return inside[0], inside[-1]
