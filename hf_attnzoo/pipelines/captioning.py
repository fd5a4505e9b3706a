"""`"attnzoo-captioning"`: image in, text out, with any encoder-decoder model that looks at images.

`pipe.save_pretrained` copies this file into a checkpoint that carries its model's code, where it works without the
package: so it imports only torch, transformers and its neighbour.
"""

import os
from functools import cached_property
from typing import Any

from torch import Tensor
from transformers.image_utils import is_valid_image
from transformers.pipelines.pt_utils import KeyDataset

from .generating import GeneratingPipeline, given


class CaptioningPipeline(GeneratingPipeline):
    """Says what images show, with an encoder-decoder model of this package, of transformers, or with code of its own.

    ```python
    >>> import hf_attnzoo
    >>> from transformers import pipeline

    >>> pipe = pipeline("attnzoo-captioning", model="my-shapes")
    >>> pipe("picture.png")
    [{'caption': 'a red circle above a blue square'}]
    >>> pipe(["picture.png", image], num_beams=4, batch_size=2)
    [{'caption': 'a red circle above a blue square'}, {'caption': 'a green star'}]
    ```

    An image is a path, a URL, an image of Pillow, or an array or a tensor of pixels. It gets what `generate()` gives
    it alone, whatever the batch size (sampling aside: a batch draws its random numbers in another order). Generation
    follows the model's `generation_config`; if that limits no length, at most 256 tokens are written, or as many as
    the decoder's position table holds, and a warning tells if that cut a caption.

    Arguments of the pipeline, at construction or in a call, where the call's win:

    Args:
        return_tensors:
            Give token ids in place of text. Default: `False`.
        return_scores:
            Give each caption its score. Default: `None`, if there are several of an image.
        return_alignments:
            Give each caption its cross-attention: that of the last layer, averaged over its heads. Default: `False`.
        skip_special_tokens:
            Leave special tokens out of the text. Default: `True`.
        clean_up_tokenization_spaces:
            As in `tokenizer.decode()`. Default: `None`, the tokenizer's own setting.
        image_processor_kwargs:
            Dict of arguments for the image processor, `input_data_format` say.
        batch_size, num_workers:
            As in every pipeline.
        generate_kwargs:
            Anything else is for `model.generate()`: `num_beams`, `num_return_sequences`, `do_sample`,
            `max_new_tokens`, `streamer` (one image at a time, no beams), ... `decoder_input_ids` of shape `(1, P)`
            begin every caption.

    Returns:
        A list of dicts for one image, one per returned sequence, best first under beam search. For a list of images, a
        list with one dict per image, or with one list of dicts per image if `num_return_sequences` is above 1. For a
        dataset or an iterator, an iterator over what each image alone gives, a list. The dicts hold:

        - `caption`: the text; or `caption_token_ids` with `return_tensors`: ids of shape `(T + 1,)`, the decoder's
          start token first, without padding.
        - `score`: log-probability in nats of the T tokens, `</s>` included, divided by `T ** length_penalty`. That is
          the score of beam search. Greedy search and sampling are scored by the same formula, from the model's own
          probabilities, before temperature or any other processing.
        - `target_tokens` (T) and `alignment` (T lists of rows of weights that sum to 1): how much the model looked at
          each cell of its grid over the image when it wrote each token, special tokens included. A model whose
          configuration has no `grid_size` gives one flat list for each token.

    Raises:
        TypeError: if an input is no image.
        ValueError: if an image can't be read, if the output asked for is longer than the position table, if alignments
            are asked of a model without attention, or from `generate()`.
    """

    task_name = "attnzoo-captioning"
    auto_class = "AutoModelForImageTextToText"
    kind = "multimodal"
    output_name = "A caption"

    # A processor holds the other two; a model of transformers may come without one
    _load_tokenizer = None
    _load_processor = None
    _load_image_processor = None

    def __init__(self, *args: Any, **kwargs: Any):
        processor = kwargs.get("processor")
        if processor is not None:
            for part in ("tokenizer", "image_processor"):
                if kwargs.get(part) is None:
                    kwargs[part] = getattr(processor, part, None)
        super().__init__(*args, **kwargs)
        if self.image_processor is None:
            raise ValueError(
                f"image_processor is None; {self.task_name} needs that of the {type(self.model).__name__}"
            )

    @cached_property
    def grid_size(self) -> tuple[int, int] | None:
        """Rows and columns of the model's attention over an image, if its configuration says."""
        return getattr(self.model.config, "grid_size", None)

    def _sanitize_parameters(
        self,
        return_tensors: bool | None = None,
        return_scores: bool | None = None,
        return_alignments: bool | None = None,
        skip_special_tokens: bool | None = None,
        clean_up_tokenization_spaces: bool | None = None,
        image_processor_kwargs: dict[str, Any] | None = None,
        **generate_kwargs: Any,
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        forward = given(return_scores=return_scores, return_alignments=return_alignments)
        postprocess = given(
            return_tensors=return_tensors,
            return_alignments=return_alignments,
            skip_special_tokens=skip_special_tokens,
            clean_up_tokenization_spaces=clean_up_tokenization_spaces,
        )
        return image_processor_kwargs or {}, forward | self._with_assistant(generate_kwargs), postprocess

    def __call__(self, inputs: Any, **kwargs: Any) -> Any:
        """Caption an image, a list of images, or the images of an iterator or of a dataset as they come.

        Args:
            inputs: the images. Of a `datasets.Dataset`, those in its column `image`.
            kwargs: see the class.

        Returns:
            See the class.
        """
        if "image" in (getattr(inputs, "column_names", None) or ()):
            inputs = KeyDataset(inputs, "image")
        return super().__call__(inputs, **kwargs)

    @staticmethod
    def check_input(image: Any, name: str) -> Any:
        """An image, or a `TypeError`."""
        if not (isinstance(image, (str, os.PathLike)) or is_valid_image(image)):
            raise TypeError(
                f"{name} is of type {type(image).__name__}, expected a path, a URL, an image or its pixels, or a list,"
                ' an iterator or a dataset of them, such as dataset["image"] or KeyDataset(dataset, "image")'
            )
        return image

    def preprocess(self, image: Any, **image_processor_kwargs: Any) -> dict[str, Tensor]:
        """Pixels of shape `(1, 3, rows, columns)`."""
        self.check_input(image, "an image")
        images = self.image_processor.fetch_images([os.fspath(image) if isinstance(image, os.PathLike) else image])
        pixels = self.image_processor(images, return_tensors="pt", **image_processor_kwargs)["pixel_values"]
        if len(pixels) != 1:
            raise ValueError(f"an input of shape {tuple(image.shape)} holds {len(pixels)} images; give a list of them")
        return {"pixel_values": pixels.to(self.dtype)}

    def _forward(
        self,
        model_inputs: dict[str, Tensor],
        return_scores: bool | None = None,
        return_alignments: bool = False,
        **generate_kwargs: Any,
    ) -> dict[str, Tensor]:
        return self._write(dict(model_inputs), return_scores, return_alignments, generate_kwargs)

    def postprocess(
        self,
        model_outputs: dict[str, Tensor],
        return_tensors: bool = False,
        return_alignments: bool = False,
        skip_special_tokens: bool = True,
        clean_up_tokenization_spaces: bool | None = None,
    ) -> list[dict[str, Any]]:
        """One dict per returned sequence of one image."""
        records = []
        for index, length in enumerate(model_outputs["lengths"][0].tolist()):
            ids = model_outputs["sequences"][0, index, :length]
            if return_tensors:
                record = {"caption_token_ids": ids}
            else:
                text = self.tokenizer.decode(
                    ids,
                    skip_special_tokens=skip_special_tokens,
                    clean_up_tokenization_spaces=clean_up_tokenization_spaces,
                )
                record = {"caption": text}
            if "scores" in model_outputs:
                record["score"] = model_outputs["scores"][0, index].item()
            if return_alignments:
                weights = model_outputs["alignments"][0, index, : length - 1]
                if self.grid_size is not None:
                    weights = weights.unflatten(1, self.grid_size)
                record["target_tokens"] = self.tokenizer.convert_ids_to_tokens(ids[1:].tolist())
                record["alignment"] = weights.tolist()
            records.append(record)
        return records
