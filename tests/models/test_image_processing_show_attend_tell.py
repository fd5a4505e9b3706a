"""Images of every mode against pixels worked out by hand, and plain photographs against ViT's own processor."""

import io
import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from hf_attnzoo.models.image_processing_show_attend_tell import ShowAttendTellImageProcessor, open_image, rgb_pixels

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)


@pytest.fixture(scope="module")
def raw():
    """Levels from 0 to 255 as floats, of images taken as large as they are."""
    return ShowAttendTellImageProcessor(do_resize=False, do_rescale=False, do_normalize=False)


def levels(processor, image, **options):
    """Rows of columns of channels."""
    return processor(image, return_tensors="np", **options)["pixel_values"][0].transpose(1, 2, 0).tolist()


def as_file(image, format, **options):
    file = io.BytesIO()
    image.save(file, format, **options)
    return Image.open(io.BytesIO(file.getvalue()))


def with_pixels(mode, pixels, **info):
    """A row of pixels."""
    image = Image.new(mode, (len(pixels), 1))
    image.putdata(pixels)
    image.info.update(info)
    return image


def palette(colours, indices, **info):
    image = with_pixels("P", indices, **info)
    image.putpalette([level for colour in colours for level in colour])
    return image


def sixteen_bits(values, transparent=None):
    """A grey PNG of 16 bits, written byte by byte."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", len(values), 1, 16, 0, 0, 0, 0)
    key = b"" if transparent is None else chunk(b"tRNS", struct.pack(">H", transparent))
    pixels = chunk(b"IDAT", zlib.compress(b"\0" + struct.pack(f">{len(values)}H", *values)))
    return io.BytesIO(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + key + pixels + chunk(b"IEND", b""))


# Every image is one row of pixels, and what it looks like on white paper. Opacity 51 is a fifth: 255 - 51 = 204 shines
# through where there is no colour.
BY_HAND = {
    "RGB": (with_pixels("RGB", [(1, 2, 3), (255, 0, 128)]), [(1, 2, 3), (255, 0, 128)]),
    "grey": (with_pixels("L", [0, 7, 255]), [(0,) * 3, (7,) * 3, (255,) * 3]),
    "RGBA": (
        with_pixels("RGBA", [(0, 0, 0, 0), (255, 0, 0, 255), (0, 0, 0, 51), (255, 0, 100, 51)]),
        [(255, 255, 255), RED, (204, 204, 204), (255, 204, 224)],
    ),
    "LA": (with_pixels("LA", [(0, 0), (0, 255), (100, 51)]), [(255,) * 3, (0,) * 3, (224,) * 3]),
    "La, colours multiplied by opacity": (
        with_pixels("La", [(0, 0), (0, 255), (20, 51)]),
        [(255,) * 3, (0,) * 3, (224,) * 3],
    ),
    "palette": (palette([RED, BLUE], [1, 0, 1]), [BLUE, RED, BLUE]),
    "palette with a transparent colour": (palette([RED, BLUE], [0, 1], transparency=1), [RED, (255,) * 3]),
    "palette with opacities": (palette([RED, (0, 0, 0)], [0, 1], transparency=b"\x00\x33"), [(255,) * 3, (204,) * 3]),
    "RGB with a transparent colour": (
        with_pixels("RGB", [(1, 2, 3), (1, 2, 4)], transparency=(1, 2, 3)),
        [(255,) * 3, (1, 2, 4)],
    ),
    "grey with a transparent level": (with_pixels("L", [7, 8], transparency=7), [(255,) * 3, (8,) * 3]),
    # 65535 / 257 = 255
    "16 bits": (Image.open(sixteen_bits([0, 257, 25700, 65535])), [(0,) * 3, (1,) * 3, (100,) * 3, (255,) * 3]),
    "16 bits, between the levels of 8": (Image.open(sixteen_bits([128, 64])), [(128 / 257,) * 3, (64 / 257,) * 3]),
    "16 bits with a transparent level": (
        Image.open(sixteen_bits([257, 514], transparent=257)),
        [(255,) * 3, (2,) * 3],
    ),
    "16 bits in 32": (with_pixels("I", [0, 514, 65535]), [(0,) * 3, (2,) * 3, (255,) * 3]),
    "floats": (with_pixels("F", [0.0, 0.2, 1.0]), [(0,) * 3, (51,) * 3, (255,) * 3]),
    "1 bit": (with_pixels("1", [0, 255]), [(0,) * 3, (255,) * 3]),
    # Ink takes light away
    "CMYK": (
        with_pixels("CMYK", [(0, 0, 0, 0), (0, 255, 255, 0), (0, 0, 0, 255), (255, 0, 0, 0)]),
        [(255,) * 3, RED, (0, 0, 0), (0, 255, 255)],
    ),
    "YCbCr": (with_pixels("YCbCr", [(255, 128, 128), (0, 128, 128)]), [(255,) * 3, (0,) * 3]),
    "HSV": (with_pixels("HSV", [(0, 255, 255), (0, 0, 51)]), [RED, (51,) * 3]),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_every_mode(raw, name):
    image, expected = BY_HAND[name]
    np.testing.assert_allclose(levels(raw, image, do_rescale=True, rescale_factor=1.0), [expected], atol=1e-4)
    assert image.info.get("transparency") == BY_HAND[name][0].info.get("transparency")


@pytest.mark.parametrize("name", BY_HAND)
def test_every_mode_as_the_default_has_it(name):
    # Of a picture without edges resizing makes the same
    image, expected = BY_HAND[name]
    pixel = image.crop((0, 0, 1, 1))
    pixel.info = dict(image.info)
    values = ShowAttendTellImageProcessor()(pixel, return_tensors="pt")["pixel_values"]
    assert values.shape == (1, 3, 64, 64)
    assert values.dtype == torch.float32
    wanted = (torch.tensor(expected[0]) / 255 - 0.5) / 0.5
    torch.testing.assert_close(values[0], wanted[:, None, None].expand(3, 64, 64), atol=1e-6, rtol=1e-5)


ARRAYS = {
    "uint8": (np.array([[[10, 20, 30], [40, 50, 60]]], np.uint8), [(10, 20, 30), (40, 50, 60)]),
    "int64": (np.array([[[10, 20, 30], [40, 50, 255]]]), [(10, 20, 30), (40, 50, 255)]),
    "float64 from 0 to 1": (np.array([[[0.2, 0.4, 1.0], [0.0, 0.0, 0.0]]]), [(51, 102, 255), (0, 0, 0)]),
    "uint16": (np.array([[[257, 514, 65535], [0, 0, 0]]], np.uint16), [(1, 2, 255), (0, 0, 0)]),
    "bool": (np.array([[True, False]]), [(255,) * 3, (0,) * 3]),
    "no channels": (np.array([[9, 200, 5]], np.uint8), [(9,) * 3, (200,) * 3, (5,) * 3]),
    "grey, channels last": (np.full((5, 6, 1), 9, np.uint8), [(9,) * 3] * 6),
    "channels first": (np.array([[[10] * 5], [[20] * 5], [[30] * 5]], np.uint8), [(10, 20, 30)] * 5),
    "RGBA": (np.full((5, 6, 4), [0, 0, 100, 51], np.uint8), [(204, 204, 224)] * 6),
    "RGBA of floats": (np.full((5, 6, 4), [0.0, 0.0, 1.0, 0.2]), [(204, 204, 255)] * 6),
    "grey and opacity": (np.full((2, 5, 6), np.array([0, 51])[:, None, None], np.uint8), [(204,) * 3] * 6),
}


@pytest.mark.parametrize("kind", [np.array, torch.tensor])
@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_and_tensors(raw, name, kind):
    array, expected = ARRAYS[name]
    last = {"input_data_format": "channels_last"} if array.shape[0] == 1 and array.ndim == 3 else {}
    first_row = levels(raw, kind(array), do_rescale=True, rescale_factor=1.0, **last)[0]
    np.testing.assert_allclose(first_row, expected, atol=1e-4)


def test_tensors_that_numpy_does_not_know(raw):
    tensor = torch.tensor([0.5]).expand(3, 6, 7).to(torch.bfloat16).requires_grad_()
    assert levels(raw, tensor, do_rescale=True, rescale_factor=1.0)[0][0] == [127.5] * 3


def test_floats_keep_their_scale_where_nothing_is_rescaled(raw):
    assert levels(raw, np.full((5, 6, 3), -2.5))[0][0] == [-2.5] * 3
    assert levels(raw, np.full((5, 6, 3), 200, np.uint8))[0][0] == [200] * 3


@pytest.mark.parametrize("resample", [0, 2, 3])
@pytest.mark.parametrize("size", [(64, 64), (200, 131), (31, 500), (5, 6)])
def test_photographs_as_vit_reads_them(size, resample):
    pixels = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
    options = {
        "size": {"height": 48, "width": 40},
        "resample": resample,
        "image_mean": [0.5, 0.4, 0.3],
        "image_std": 0.2,
    }
    ours = ShowAttendTellImageProcessor(**options)
    expected = ViTImageProcessorPil(**options)(Image.fromarray(pixels), return_tensors="pt")["pixel_values"]
    for image in (Image.fromarray(pixels), pixels, torch.tensor(pixels).movedim(-1, 0)):
        torch.testing.assert_close(ours(image, return_tensors="pt")["pixel_values"], expected)
    # Whole levels are rounded once for rows and once for columns, floats aren't
    if resample < 3:
        deep = ours(pixels / 255, return_tensors="pt")["pixel_values"]
        torch.testing.assert_close(deep, expected, atol=1.01 / 255 / 0.2, rtol=0)


def test_deep_images_keep_what_lies_between_levels():
    # A ramp of 16 bits that 8 bits would make one level of
    ramp = np.tile(np.arange(0, 256, 2, dtype=np.uint16), (64, 1))
    values = ShowAttendTellImageProcessor(size=64)(ramp, return_tensors="np")["pixel_values"][0, 0, 0]
    assert (np.diff(values) > 0).all()
    np.testing.assert_allclose((values * 0.5 + 0.5) * 65535, np.arange(1, 256, 4), atol=1)


def test_exif_orientation(raw, tmp_path):
    # Stored as red over blue, to be turned by a quarter, clockwise: blue before red
    image = Image.new("RGB", (1, 2))
    image.putdata([RED, BLUE])
    exif = Image.Exif()
    exif[0x0112] = 6
    path = tmp_path / "turned.png"
    image.save(path, exif=exif)
    turned = [[list(BLUE), list(RED)]]
    assert levels(raw, Image.open(path)) == turned
    assert levels(raw, str(path)) == turned
    assert levels(raw, path) == turned
    # What was turned already stays
    assert levels(raw, open_image(path)) == turned


def test_files_keep_their_transparency(raw, tmp_path):
    Image.new("RGBA", (3, 2), (0, 0, 0, 0)).save(tmp_path / "clear.png")
    assert levels(raw, tmp_path / "clear.png") == [[[255.0] * 3] * 3] * 2
    assert levels(raw, raw.fetch_images(str(tmp_path / "clear.png"))) == [[[255.0] * 3] * 3] * 2
    as_file(palette([RED, BLUE], [0, 1]), "GIF", transparency=0).save(tmp_path / "clear.gif")
    assert levels(raw, tmp_path / "clear.gif") == [[[255.0] * 3, list(BLUE)]]
    # One bit, one of its colours transparent
    with_pixels("1", [0, 255]).save(tmp_path / "bit.png", transparency=0)
    assert levels(raw, tmp_path / "bit.png") == [[[255.0] * 3] * 2]


def test_lists_and_batches():
    processor = ShowAttendTellImageProcessor(size=8)
    images = [Image.new("RGB", (5, 9), RED), Image.new("L", (30, 2), 3), np.zeros((7, 6, 3), np.uint8)]
    batch = processor(images, return_tensors="pt")["pixel_values"]
    assert batch.shape == (3, 3, 8, 8)
    for image, row in zip(images, batch, strict=True):
        assert torch.equal(processor(image, return_tensors="pt")["pixel_values"][0], row)
    assert torch.equal(processor([images[:2], images[2:]], return_tensors="pt")["pixel_values"], batch)
    pixels = np.random.default_rng(0).integers(0, 256, (4, 6, 7, 3), dtype=np.uint8)
    stacked = processor(torch.tensor(pixels), return_tensors="np")["pixel_values"]
    assert np.array_equal(stacked, processor(list(pixels), return_tensors="np")["pixel_values"])
    listed = processor(images)["pixel_values"]
    assert [array.dtype for array in listed] == [np.float32] * 3
    assert np.array_equal(np.stack(listed), batch.numpy())


@pytest.mark.parametrize(
    ("images", "message"),
    [
        ([], "images is empty"),
        (None, "images is of type NoneType"),
        ({"path": "x"}, "images is of type dict; an image is a path, a URL"),
        ([np.zeros((5, 6, 3), np.uint8), 7], r"images\[1\] is of type int"),
        ("nowhere.png", "images='nowhere.png': there is no such file"),
        ([["nowhere.png"]], r"images\[0\]\[0\]='nowhere.png'"),
        (__file__, "test_image_processing_show_attend_tell.py' is no image that can be read"),
        (np.zeros((5, 6, 7), np.uint8), r"images of shape \(5, 6, 7\) has no channels"),
        (
            np.zeros((3, 6, 3), np.uint8),
            r"\(3, 6, 3\) could have its channels first or last; say which by input_data_fo",
        ),
        (np.zeros(5, np.uint8), r"shape \(5,\); an image has two dimensions"),
        (np.zeros((0, 5, 3), np.uint8), "images has 0 rows and 5 columns"),
        (np.full((5, 6, 3), 1.5), "images is float64 with levels from 1.5 to 1.5; they must lie in 0 to 1"),
        (np.full((5, 6, 3), np.nan), "levels from nan to nan"),
        (np.full((5, 6, 3), 256), "images is int64 with levels from 256 to 256; they must lie in 0 to 255"),
        (np.full((5, 6, 3), 1j), "array of complex128"),
        (np.full((5, 6, 3), "a"), "array of <U1"),
        (with_pixels("I", [-1, 70000]), "levels from -1 to 70000; grey goes from 0 to 65535"),
        (Image.new("RGB", (0, 4)), "images has 4 rows and 0 columns"),
    ],
)
def test_refuses_bad_images(images, message):
    with pytest.raises(ValueError, match=message):
        ShowAttendTellImageProcessor()(images)


def test_refuses_damaged_files(tmp_path):
    path = tmp_path / "cut.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(path)
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(ValueError, match=r"images\[1\] is a damaged image"):
        ShowAttendTellImageProcessor()([Image.new("L", (3, 3)), str(path)])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": {"shortest_edge": 8}}, r"size=\{'shortest_edge': 8\} must have a height and a width"),
        ({"size": {"height": 0, "width": 8}}, "size=.* of at least 1"),
        ({"do_center_crop": True, "crop_size": 4}, "do_center_crop=True: images are resized whole"),
        ({"do_pad": True}, "do_pad=True"),
        ({"image_std": [0.5, 0.0, 0.5]}, "image_std=.* must be above 0"),
        ({"image_mean": [0.5, 0.5]}, "mean must have 3 elements"),
        ({"data_format": "channels_last"}, "data_format='channels_last'"),
        ({"do_convert_rgb": False}, "mode 'L'; do_convert_rgb=False takes RGB alone"),
    ],
)
def test_refuses_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        ShowAttendTellImageProcessor()(Image.new("L", (5, 5)), **options)


def test_without_conversion_three_channels_are_taken():
    processor = ShowAttendTellImageProcessor(do_convert_rgb=False, size=4)
    assert processor(Image.new("RGB", (2, 2)), return_tensors="pt")["pixel_values"].shape == (1, 3, 4, 4)
    with pytest.raises(ValueError, match="images has 1 channels"):
        processor(np.zeros((5, 6), np.uint8))


def test_round_trip(tmp_path):
    processor = ShowAttendTellImageProcessor(size={"height": 20, "width": 30}, image_mean=0.25, resample=0)
    processor.save_pretrained(tmp_path)
    again = ShowAttendTellImageProcessor.from_pretrained(tmp_path)
    assert again.to_dict() == processor.to_dict()
    assert dict(again.size)["height"] == 20
    image = np.random.default_rng(0).integers(0, 256, (9, 7, 3), dtype=np.uint8)
    assert np.array_equal(again(image)["pixel_values"], processor(image)["pixel_values"])


def test_pixels_for_drawing():
    pixels = rgb_pixels(with_pixels("RGBA", [(0, 0, 0, 0), (9, 8, 7, 255)]))
    assert pixels.shape == (1, 2, 3)
    assert pixels.tolist() == [[[255, 255, 255], [9, 8, 7]]]
