"""From picture to text: images and their captions."""

import hashlib
import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from datasets import Dataset
from PIL import Image
from transformers import AutoProcessor, PreTrainedModel

from ...attention_maps import attention_map, plot_overlays
from ...data import CaptionCollator, load_caption_source, one_row_per_caption, references
from ...evaluation import pointing_hits, share_of_hits, wilson_interval
from ...hub import CardTexts
from ...models.image_processing_show_attend_tell import ShowAttendTellImageProcessor, rgb_pixels
from ...models.processing_show_attend_tell import ShowAttendTellProcessor
from ...models.tokenization_attnzoo import train_tokenizer
from ...registry import FAMILIES
from .base import Evaluated, one_vocabulary
from .writing import WritingTask

logger = logging.getLogger(__name__)

EXAMPLE = "example.png"


class CaptioningTask(WritingTask):
    """Rows have the columns `image` and `caption`, and `captions` where there are several; see `load_captions`."""

    card = CardTexts(
        pipeline_tag="image-to-text",
        task_name="Image captioning",
        tags=("image-captioning",),
        pipeline="attnzoo-captioning",
        verb="caption",
        unit="pictures",
        sample_columns=("picture", "reference", "output"),
    )
    given = "pictures"
    head = "AutoModelForImageTextToText"
    processor_class = AutoProcessor
    own_data = "attnzoo train image-folder data.source=YOUR_FOLDER"

    def load(self, source: str, training: bool, **options: Any) -> Dataset:
        data = self.recipe.data
        if data.max_source_length is not None:
            raise ValueError(f"data.max_source_length={data.max_source_length} is for texts: leave it out")
        if data.on_too_long == "truncate":
            raise ValueError("data.on_too_long=truncate is for texts: raise or skip captions that are too long")
        rows = load_caption_source(source, **options)
        return one_row_per_caption(rows) if training else rows

    def show(self, row: dict[str, Any]) -> str:
        width, height = row["image"].size
        return f"one of {width} x {height} pixels → {row['caption']!r}"

    def digest(self, rows: Dataset) -> str:
        digest = hashlib.blake2b(digest_size=16)
        columns = [name for name in ("image", "caption", "captions") if name in rows.column_names]
        for row in rows.select_columns(columns).cast_column("image", datasets.Image(decode=False)):
            digest.update(_content(row["image"]))
            digest.update(json.dumps([row[name] for name in columns[1:]]).encode())
        return digest.hexdigest()

    def inputs_of(self, rows: Dataset) -> Iterable[str]:
        for row in rows.select_columns(["image"]).cast_column("image", datasets.Image(decode=False)):
            yield hashlib.blake2b(_content(row["image"]), digest_size=16).hexdigest()

    def targets(self, rows: Dataset) -> list[str] | list[list[str]]:
        return references(rows)

    def source_texts(self, rows: Dataset) -> None:
        return None

    def build_processor(self, rows: Dataset) -> ShowAttendTellProcessor:
        tokenizer = train_tokenizer(source_texts=rows["caption"], **one_vocabulary(self.recipe))
        return ShowAttendTellProcessor(ShowAttendTellImageProcessor(size=self._image_size()), tokenizer)

    def texts(self, rows: Dataset) -> tuple[list[str], ...]:
        return (list(rows["caption"]),)

    def _image_size(self) -> int:
        fields, config_class = self.recipe.model, FAMILIES[self.recipe.family].config_class
        name, presets = fields.get("preset"), config_class.presets
        if name is not None and name not in list(presets):
            raise ValueError(f"model.preset={name!r} is none of {', '.join(presets)}")
        preset = {} if name is None else presets[name]
        size = ({"image_size": config_class.image_size} | preset | fields)["image_size"]
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f"model.image_size={size!r} must be an integer of at least 1")
        channels = fields.get("num_channels", 3)
        if channels != 3:
            raise ValueError(
                f"model.num_channels={channels}: recipes make every picture RGB, 3 channels; leave it out"
            )
        return size

    def vocabulary(self, processor: ShowAttendTellProcessor) -> dict[str, int]:
        return {"captions": len(processor.tokenizer)}

    def model_fields(self, processor: ShowAttendTellProcessor) -> dict[str, Any]:
        return {"vocab_size": len(processor.tokenizer)}

    def prepare(self, rows: Dataset, processor: ShowAttendTellProcessor) -> tuple[Dataset, Dataset]:
        return self._prepare(rows, processor, self.recipe.data.max_target_length, "train")

    def prepare_evaluation(
        self, rows: Dataset, processor: ShowAttendTellProcessor, model: PreTrainedModel, split: str = "test"
    ) -> Evaluated:
        data = self.recipe.data
        # Decoders are recurrent, and have no end to their positions.
        limit = data.max_target_length if data.on_too_long == "raise" else None
        return Evaluated(*self._prepare(rows, processor, limit, split))

    def _prepare(
        self, rows: Dataset, processor: ShowAttendTellProcessor, limit: int | None, split: str
    ) -> tuple[Dataset, Dataset]:
        labels = processor(text=list(rows["caption"]))["labels"]
        kept = [number for number, ids in enumerate(labels) if limit is None or len(ids) <= limit]
        if len(kept) < len(rows):
            first = next(number for number, ids in enumerate(labels) if len(ids) > limit)
            message = (
                f"{split}: row {first} has a caption of {len(labels[first])} tokens, with max_target_length={limit}"
            )
            if self.recipe.data.on_too_long == "raise" or not kept:
                raise ValueError(f"{message} ({len(rows) - len(kept)} of {len(rows)} rows are too long)")
            logger.warning(
                "%s: such rows are skipped, %d of %d, of which it is the first, and says %r",
                message,
                len(rows) - len(kept),
                len(rows),
                rows[first]["caption"],
            )
        rows = rows.select(kept)
        # A file that is damaged later than it was looked at is named by what decodes it for a batch.
        prepared = rows.select_columns(["image", "caption"]).cast_column("image", datasets.Image(decode=False))
        prepared = prepared.add_column("row", kept)
        return prepared.add_column("labels", [labels[number] for number in kept]), rows

    def collator(self, processor: ShowAttendTellProcessor) -> CaptionCollator:
        return CaptionCollator(processor)

    def source_lengths(self, prepared: Dataset, model: PreTrainedModel) -> np.ndarray:
        rows, columns = model.config.grid_size
        return np.full(len(prepared), rows * columns)

    def sample(self, row: dict[str, Any], number: int, output: str) -> tuple[str, ...]:
        return f"{number + 1}", row["caption"], output

    def example(self, rows: Dataset) -> str:
        return f'"{EXAMPLE}"'

    def next_command(self, folder: Path, rows: Dataset) -> list[str]:
        return ["attnzoo", "caption", str(folder), str(folder / EXAMPLE)]

    def write_extras(self, rows: Dataset, folder: Path) -> None:
        # As the model sees it: a plain conversion would forget what is transparent, and cut 16 bits off at 8
        pixels = rgb_pixels(rows[0]["image"]).round().astype(np.uint8)
        Image.fromarray(pixels).save(folder / EXAMPLE)

    def draw(self, model: PreTrainedModel, processor: ShowAttendTellProcessor, rows: Dataset, path: Path) -> None:
        maps = [attention_map(model, processor, row["image"]) for row in rows]
        # The picture itself and all its words in a row, if they are few.
        columns = min(max(len(item.words) for item in maps) + 1, 12)
        plot_overlays(maps, path, titles=[item.text for item in maps], columns=columns)

    def parts(self, processor: ShowAttendTellProcessor) -> dict[str, Any]:
        return {"tokenizer": processor.tokenizer, "image_processor": processor.image_processor, "processor": processor}

    def inputs(self, processor: ShowAttendTellProcessor, rows: Dataset) -> dict[str, torch.Tensor]:
        return dict(processor(images=list(rows["image"]), return_tensors="pt"))

    def ask(self, pipe: Any, rows: Dataset) -> list[str]:
        return [item["caption"] for item in pipe(list(rows["image"]))]

    def more_scores(
        self, model: PreTrainedModel, processor: ShowAttendTellProcessor, rows: Dataset
    ) -> tuple[dict[str, float | str], dict[str, tuple[float, float]]]:
        """The pointing score, where the data says where things are."""
        if "objects" not in rows.column_names:
            return {}, {}
        hits = pointing_hits(model, processor, rows)
        score = share_of_hits(hits, "all")
        return (
            {"pointing": score.value, "pointing_signature": score.signature},
            {"pointing": wilson_interval(int(hits.sum()), len(hits))},
        )


def _content(image: dict[str, Any]) -> bytes:
    """What is in a picture's file: another under the same name is another picture."""
    return image["bytes"] or Path(image["path"]).read_bytes()
