"""Images of every kind, made into the pixels that Show, Attend and Tell reads."""

import io
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from huggingface_hub.utils import get_session
from PIL import Image, ImageOps
from torch import Tensor
from transformers.image_processing_backends import PilBackend
from transformers.image_utils import (
    IMAGENET_STANDARD_MEAN,
    IMAGENET_STANDARD_STD,
    ChannelDimension,
    PILImageResampling,
    SizeDict,
)

AnyImage = str | os.PathLike | Image.Image | np.ndarray | Tensor
"""A path, a URL, an image of Pillow, or pixels `(rows, columns)`, `(rows, columns, C)` or `(C, rows, columns)`."""

# Channels of an array: grey, grey and opacity, colours, colours and opacity
_CHANNELS = (1, 2, 3, 4)

# Modes of Pillow whose pixels numpy reads as they are
_PLAIN_MODES = ("1", "L", "LA", "RGB", "RGBA", "F")
_PREMULTIPLIED_MODES = {"La": "LA", "RGBa": "RGBA"}

_RESIZED_BY = "do_center_crop", "do_pad"


class ShowAttendTellImageProcessor(PilBackend):
    """Resizes images to a square, rescales and normalizes them; the sides are stretched, so nothing is cut off.

    An image is turned upright by its EXIF orientation and made RGB: what is transparent lies on white, 16-bit grey is
    scaled by its range, grey is repeated, palettes and CMYK are converted. Arrays and tensors have their channels
    first or last; integers go from 0 to 255 (`uint16` to 65535), floats from 0 to 1: all are read as the same picture.

    Args of the constructor and of a call, where those of the call win:
        do_convert_rgb: whether to make images RGB. False takes images with three channels alone.
        do_resize: whether to resize.
        size: `{"height": rows, "width": columns}`, or one number for both: the model's `config.image_size`.
        resample: filter of `PIL.Image.Resampling`.
        do_rescale: whether to multiply levels of 0 to 255 by `rescale_factor`. Without it floats keep their scale,
            whatever it is.
        rescale_factor: 1/255 makes levels of 0 to 1.
        do_normalize: whether to subtract `image_mean` and divide by `image_std`, numbers or one for each channel.

    Further args of a call:
        images: an image, a list of images (or of lists, which are read one after the other), or an array `(B, ...)` of
            them. An image is a path, a URL, an image of Pillow, an array or a tensor.
        input_data_format: `"channels_first"` or `"channels_last"`, for arrays whose shape does not tell.
        return_tensors: `"pt"` or `"np"`.

    Returns of a call:
        `pixel_values`, float32 of shape `(B, 3, height, width)`; a list of arrays without `return_tensors`.

    Raises:
        ValueError: an image of no known kind, empty, damaged, out of range or of ambiguous shape, by its place among
            `images`; or an argument out of range.
    """

    resample = PILImageResampling.BILINEAR
    image_mean = IMAGENET_STANDARD_MEAN
    image_std = IMAGENET_STANDARD_STD
    size = {"height": 64, "width": 64}  # noqa: RUF012 - transformers' own class attribute
    do_convert_rgb = True
    do_resize = True
    do_rescale = True
    do_normalize = True

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        _check_size(self.size)

    def fetch_images(self, image_url_or_urls: Any) -> Any:
        """Images for paths and URLs, in whatever lists they come; images pass."""
        if isinstance(image_url_or_urls, (list, tuple)):
            return [self.fetch_images(image) for image in image_url_or_urls]
        if isinstance(image_url_or_urls, (str, os.PathLike)):
            return open_image(image_url_or_urls, "images")
        return image_url_or_urls

    def process_image(
        self,
        image: AnyImage,
        do_convert_rgb: bool | None = None,
        input_data_format: str | ChannelDimension | None = None,
        do_rescale: bool | None = None,
        name: str = "image",
        **kwargs: Any,
    ) -> np.ndarray:
        """One image as an array `(3, rows, columns)`: `uint8`, or `float32` where levels lie in between."""
        pixels = rgb_pixels(image, name, input_data_format, convert=bool(do_convert_rgb), floats_as_is=not do_rescale)
        return np.moveaxis(pixels, -1, 0)

    def resize(
        self,
        image: np.ndarray,
        size: SizeDict,
        resample: PILImageResampling | int | None = None,
        **kwargs: Any,
    ) -> np.ndarray:
        """An array `(3, height, width)` of one of `(3, rows, columns)`."""
        if image.dtype == np.uint8:
            return super().resize(image, size, resample, **kwargs)
        # Pillow has no floating-point image of three channels
        channels = [
            np.asarray(Image.fromarray(channel).resize((size.width, size.height), resample)).clip(
                channel.min(), channel.max()
            )
            for channel in image
        ]
        return np.stack(channels)

    def _prepare_image_like_inputs(self, images: Any, *args: Any, **kwargs: Any) -> list[np.ndarray]:
        flat = _flat(images, "images")
        if not flat:
            raise ValueError("images is empty: at least 1 image is needed")
        return [self.process_image(image, name=name, **kwargs) for name, image in flat]

    def _validate_preprocess_kwargs(self, **kwargs: Any) -> None:
        for name in _RESIZED_BY:
            if kwargs.get(name):
                raise ValueError(f"{name}={kwargs[name]}: images are resized whole, neither cut nor padded")
        if kwargs.get("data_format") not in (None, ChannelDimension.FIRST, ChannelDimension.FIRST.value):
            raise ValueError(f"data_format={kwargs['data_format']!r}: pixel_values have their channels first")
        if kwargs["do_resize"]:
            _check_size(kwargs["size"])
        deviations = kwargs["image_std"]
        if kwargs["do_normalize"] and not np.all(np.asarray(deviations) > 0):
            raise ValueError(f"image_std={deviations} must be above 0")
        super()._validate_preprocess_kwargs(**kwargs)


def open_image(source: str | os.PathLike | Image.Image, name: str = "image") -> Image.Image:
    """An image of Pillow, decoded and upright, in the mode it is stored in.

    Args:
        source: path of a file, a URL of http or https, or an image.
        name: what to call it in an error.

    Raises:
        ValueError: no such file, or it can't be had or decoded.
    """
    image = source
    if not isinstance(image, Image.Image):
        try:
            image = Image.open(_file(os.fspath(source), name))
        # Decoders raise whatever a damaged file makes them stumble over
        except Exception as error:
            if isinstance(error, FileNotFoundError):
                raise ValueError(f"{name}={os.fspath(source)!r}: there is no such file") from error
            raise ValueError(f"{name}={os.fspath(source)!r} is no image that can be read: {error}") from error
    try:
        image.load()
        return ImageOps.exif_transpose(image)
    except Exception as error:
        raise ValueError(f"{name} is a damaged image: {error}") from error


def rgb_pixels(
    image: AnyImage,
    name: str = "image",
    input_data_format: str | ChannelDimension | None = None,
    *,
    convert: bool = True,
    floats_as_is: bool = False,
) -> np.ndarray:
    """The pixels of an image, upright, without transparency.

    Args:
        image: any image.
        name: what to call it in an error.
        input_data_format: where an array has its channels. Default: `None`, where its shape says.
        convert: whether to make RGB of anything else, which is refused otherwise.
        floats_as_is: whether floats keep their scale.

    Returns:
        Levels from 0 to 255, shape `(rows, columns, 3)`: `uint8`, or `float32` where levels lie in between.

    Raises:
        ValueError: see `ShowAttendTellImageProcessor`.
    """
    if isinstance(image, (str, os.PathLike, Image.Image)):
        image = open_image(image, name)
        if not convert and image.mode != "RGB":
            raise ValueError(f"{name} has the mode {image.mode!r}; do_convert_rgb=False takes RGB alone")
        pixels = _stored_levels(image, name)
        if pixels.ndim == 2:
            pixels = pixels[..., None]
    else:
        if isinstance(image, Tensor):
            image = image.detach().cpu()
            # numpy knows no bfloat16
            image = (image.float() if image.is_floating_point() else image).numpy()
        if not isinstance(image, np.ndarray):
            raise ValueError(
                f"{name} is of type {type(image).__name__}; an image is a path, a URL, a PIL.Image.Image, an array"
                " or a tensor"
            )
        pixels = _channels_last(image, name, input_data_format)
        if not convert and pixels.shape[-1] != 3:
            raise ValueError(f"{name} has {pixels.shape[-1]} channels; do_convert_rgb=False takes 3 alone")
    if 0 in pixels.shape:
        raise ValueError(
            f"{name} has {pixels.shape[0]} rows and {pixels.shape[1]} columns; at least 1 of each is needed"
        )

    pixels, white = _checked_levels(pixels, name, floats_as_is)
    if pixels.shape[-1] in (2, 4):
        colours, opacity = pixels[..., :-1].astype(np.float32), pixels[..., -1:].astype(np.float32) / white
        pixels = colours * opacity + white * (1 - opacity)
    if white != 255 and not (floats_as_is and white == 1):
        pixels = pixels.astype(np.float32) * np.float32(255 / white)
    return np.broadcast_to(pixels, (*pixels.shape[:2], 3))


def _file(source: str, name: str) -> str | io.BytesIO:
    if not source.startswith(("http://", "https://")):
        return source
    response = get_session().get(source, follow_redirects=True)
    response.raise_for_status()
    return io.BytesIO(response.content)


def _stored_levels(image: Image.Image, name: str) -> np.ndarray:
    """Pixels of an image of Pillow in an array, opacity as the last channel where there is any."""
    if image.mode.startswith("I"):
        levels = np.asarray(image)
        # Mode I has 32 bits, but what comes in it are the 16 of PNG and TIFF
        if levels.size and (levels.min() < 0 or levels.max() > 65535):
            raise ValueError(f"{name} has levels from {levels.min()} to {levels.max()}; grey goes from 0 to 65535")
        transparent = image.info.get("transparency")
        if transparent is None:
            return levels.astype(np.uint16)
        return np.stack([levels, np.where(levels == transparent, 0, 65535)], axis=-1).astype(np.uint16)
    if image.mode in _PREMULTIPLIED_MODES:
        image = image.convert(_PREMULTIPLIED_MODES[image.mode])
    elif "transparency" in image.info or image.mode == "PA":
        image = image.convert("RGBA")
    elif image.mode not in _PLAIN_MODES:
        image = image.convert("RGB")
    return np.asarray(image)


def _channels_last(pixels: np.ndarray, name: str, input_data_format: str | ChannelDimension | None) -> np.ndarray:
    if pixels.ndim == 2:
        return pixels[..., None]
    if pixels.ndim != 3:
        raise ValueError(f"{name} has the shape {pixels.shape}; an image has two dimensions, or three with channels")
    first, last = pixels.shape[0] in _CHANNELS, pixels.shape[2] in _CHANNELS
    if input_data_format is not None:
        place = ChannelDimension(input_data_format)
        first, last = first and place == ChannelDimension.FIRST, last and place == ChannelDimension.LAST
    if first == last:
        problem = (
            "could have its channels first or last; say which by input_data_format" if first else "has no channels"
        )
        raise ValueError(f"{name} of shape {pixels.shape} {problem}; there are 1, 2, 3 or 4 channels")
    return np.moveaxis(pixels, 0, -1) if first else pixels


def _checked_levels(pixels: np.ndarray, name: str, floats_as_is: bool) -> tuple[np.ndarray, int]:
    """The array and the level of white in it."""
    kind = pixels.dtype.kind
    if pixels.dtype == np.uint8:
        return pixels, 255
    if pixels.dtype == np.uint16:
        return pixels, 65535
    if kind == "b":
        return pixels.astype(np.uint8) * 255, 255
    if kind not in "iuf":
        raise ValueError(f"{name} is an array of {pixels.dtype}; levels are integers or floats")
    white = 1 if kind == "f" else 255
    low, high = pixels.min(), pixels.max()
    in_range = low >= 0 and high <= white
    if not np.isfinite(low) or not np.isfinite(high) or not (in_range or (floats_as_is and kind == "f")):
        raise ValueError(f"{name} is {pixels.dtype} with levels from {low} to {high}; they must lie in 0 to {white}")
    return (pixels.astype(np.float32) if kind == "f" else pixels.astype(np.uint8)), white


def _flat(images: Any, name: str) -> list[tuple[str, Any]]:
    """Images with their names, out of lists and batches."""
    several = images.ndim == 4 if isinstance(images, (np.ndarray, Tensor)) else isinstance(images, Sequence)
    if not several or isinstance(images, (str, bytes)):
        return [(name, images)]
    return [pair for index, part in enumerate(images) for pair in _flat(part, f"{name}[{index}]")]


def _check_size(size: SizeDict) -> None:
    if not (size.height and size.width and size.height > 0 and size.width > 0):
        given = {key: value for key, value in dict(size).items() if value is not None}
        raise ValueError(f"size={given} must have a height and a width of at least 1, and nothing else")


ShowAttendTellImageProcessor.register_for_auto_class()
