"""Images and captions in one call, for Show, Attend and Tell."""

from collections.abc import Sequence
from typing import Any

from transformers.feature_extraction_utils import BatchFeature
from transformers.image_processing_utils import BaseImageProcessor
from transformers.processing_utils import ProcessorMixin
from transformers.tokenization_utils_base import PreTrainedTokenizerBase

_IGNORED = -100


class ShowAttendTellProcessor(ProcessorMixin):
    """What a captioner reads, `pixel_values`, and what it learns to write, `labels`.

    Args:
        image_processor: makes pixels of images.
        tokenizer: makes ids of captions, with `</s>` at the end and nothing in front: one of `train_tokenizer(kind,
            captions)`, say.

    Example:
        >>> processor = ShowAttendTellProcessor(ShowAttendTellImageProcessor(), train_tokenizer("word", captions))
        >>> batch = processor(images=images, text=captions, return_tensors="pt")
        >>> loss = model(**batch).loss
        >>> processor.batch_decode(model.generate(pixel_values=batch["pixel_values"]), skip_special_tokens=True)
    """

    def __init__(
        self, image_processor: BaseImageProcessor | None = None, tokenizer: PreTrainedTokenizerBase | None = None
    ):
        super().__init__(image_processor, tokenizer)

    def __call__(
        self,
        images: Any = None,
        text: str | Sequence[str] | None = None,
        **kwargs: Any,
    ) -> BatchFeature:
        """Make a batch of images, of captions, or of both.

        Args:
            images: see the image processor: an image or a list of them.
            text: a caption or a list of them, one for each image.
            kwargs: arguments of the image processor and of the tokenizer; `return_tensors="pt"` or `"np"` among them.

        Returns:
            `pixel_values` `(B, 3, height, width)`, if there are images, and `labels` `(B, T)`, if there are captions.
            Captions of unequal length are padded at the end with -100 in tensors, or if `padding` asks for it.

        Raises:
            ValueError: if there is neither, captions are no strings, or there are more of one than of the other.
        """
        if images is None and text is None:
            raise ValueError("images and text are both None: give at least one of them")
        options = self._merge_kwargs(tokenizer_init_kwargs=self.tokenizer.init_kwargs, **kwargs)
        data = {}
        if images is not None:
            data.update(self.image_processor(images, **options["images_kwargs"]))
        if text is not None:
            data["labels"] = self._labels([text] if isinstance(text, str) else list(text), **options["text_kwargs"])
        if len(data) == 2 and len(data["pixel_values"]) != len(data["labels"]):
            raise ValueError(f"there are {len(data['pixel_values'])} images and {len(data['labels'])} captions")
        return BatchFeature(data, tensor_type=options["images_kwargs"].get("return_tensors"))

    @property
    def model_input_names(self) -> list[str]:
        """What a call returns."""
        return [*self.image_processor.model_input_names, "labels"]

    def _labels(
        self, captions: list[str], return_tensors: str | None = None, padding: Any = None, **options: Any
    ) -> list[list[int]]:
        for index, caption in enumerate(captions):
            if not isinstance(caption, str):
                raise ValueError(f"text[{index}] is of type {type(caption).__name__}; a caption is a string")
        options |= {
            "padding": return_tensors is not None if padding is None else padding,
            # In front of a caption, padding would train a model to start with nothing
            "padding_side": "right",
            "return_attention_mask": True,
        }
        # As a target: a tokenizer with two vocabularies reads other texts by that of the source
        encoding = self.tokenizer(text_target=captions, **options)
        return [
            [token if real else _IGNORED for token, real in zip(ids, mask, strict=True)]
            for ids, mask in zip(encoding["input_ids"], encoding["attention_mask"], strict=True)
        ]


ShowAttendTellProcessor.register_for_auto_class()
