"""Attention over images against forward passes, and pictures against grids worked out by hand."""

import numpy as np
import pytest
import torch
from matplotlib.image import imread
from PIL import Image
from transformers import Dinov2Config, ResNetConfig

import hf_attnzoo
from hf_attnzoo import ImageAttentionMap, ShowAttendTellConfig, ShowAttendTellForConditionalGeneration, attention_map
from hf_attnzoo.attention_maps import attention_rows, find_peak, plot_overlay, upsample
from hf_attnzoo.models.image_processing_show_attend_tell import ShowAttendTellImageProcessor
from hf_attnzoo.models.processing_show_attend_tell import ShowAttendTellProcessor
from hf_attnzoo.pipelines import CaptioningPipeline
from hf_attnzoo.testing import scattered

WORDS = "uno due tre quattro cinque sei"


@pytest.fixture(scope="module")
def processor():
    return ShowAttendTellProcessor(ShowAttendTellImageProcessor(size=16), hf_attnzoo.train_tokenizer("word", [WORDS]))


@pytest.fixture(scope="module")
def model():
    config = ShowAttendTellConfig.from_preset("tiny", vocab_size=10, image_size=16, encoder_channels=[4, 8])
    model = scattered(ShowAttendTellForConditionalGeneration(config), seed=1, std=0.6)
    model.generation_config.suppress_tokens = [0, 1]
    return model


@pytest.fixture(scope="module")
def image():
    pixels = np.random.default_rng(1).integers(0, 256, (4, 3, 3), dtype=np.uint8)
    return Image.fromarray(pixels).resize((30, 40), Image.Resampling.NEAREST)


def forward_grids(model, processor, image, ids):
    """Attention of a forward pass that predicts `ids`, T x 4 x 4."""
    pixel_values = processor.image_processor(image, return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        output = model(
            pixel_values=pixel_values, decoder_input_ids=torch.tensor([[2, *ids[:-1]]]), output_attentions=True
        )
    return output.cross_attentions[0][0, 0].reshape(len(ids), 4, 4).numpy()


def test_a_given_caption(model, processor, image, tmp_path):
    image.save(tmp_path / "image.png")
    ids = [*processor.tokenizer.convert_tokens_to_ids(["tre", "uno"]), 3]
    for source in (image, str(tmp_path / "image.png"), np.asarray(image)):
        result = attention_map(model, processor, source, "tre uno")
        assert type(result) is ImageAttentionMap
        assert result.words == ["tre", "uno", "</s>"]
        assert (result.text, result.grid, result.image.size) == ("tre uno", (4, 4), (30, 40))
        np.testing.assert_allclose(result.weights, forward_grids(model, processor, image, ids), atol=1e-6)
        np.testing.assert_array_equal(np.asarray(result.image), np.asarray(image))
    named = attention_map(model, processor, image, caption="tre uno")
    np.testing.assert_array_equal(named.weights, result.weights)


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"do_sample": True}])
def test_a_caption_of_its_own(model, processor, image, options):
    torch.manual_seed(0)
    model.train()
    result = attention_map(model, processor, image, max_new_tokens=6, **options)
    assert model.training
    model.eval()
    torch.manual_seed(0)
    pixel_values = processor.image_processor(image, return_tensors="pt")["pixel_values"]
    ids = model.generate(pixel_values=pixel_values, max_new_tokens=6, **options)[0, 1:].tolist()
    assert result.words == processor.tokenizer.convert_ids_to_tokens(ids)
    assert result.text == processor.decode(ids, skip_special_tokens=True)
    np.testing.assert_allclose(result.weights, forward_grids(model, processor, image, ids), atol=1e-6)
    np.testing.assert_allclose(result.weights.sum((1, 2)), 1, atol=1e-5)


def test_many_at_a_time(model, processor, image):
    images, captions = [image, Image.new("RGBA", (9, 9))], ["uno due tre quattro", "sei"]
    rows = attention_rows(model, processor, images, captions)
    assert [row.shape for row in rows] == [(5, 4, 4), (2, 4, 4)]
    for picture, caption, row in zip(images, captions, rows, strict=True):
        np.testing.assert_allclose(row, attention_map(model, processor, picture, caption).weights, atol=1e-6)


BACKBONES = {
    "convolutions": ResNetConfig(
        embedding_size=4, hidden_sizes=[4, 8], depths=[1, 1], layer_type="basic", out_features=["stage1"]
    ),
    "attention": Dinov2Config(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, image_size=16, patch_size=4, out_features=["stage1"]
    ),
}


@pytest.mark.parametrize("backbone", BACKBONES.values(), ids=BACKBONES)
def test_a_backbone_is_left_as_it_is(processor, image, backbone):
    config = ShowAttendTellConfig(
        vocab_size=10, embedding_size=8, hidden_size=8, image_size=16, backbone_config=backbone
    )
    model = scattered(ShowAttendTellForConditionalGeneration(config), seed=1).eval()
    before = model.model.encoder.backbone.config._attn_implementation
    result = attention_map(model, processor, image, "tre uno")
    ids = [*processor.tokenizer.convert_tokens_to_ids(["tre", "uno"]), 3]
    np.testing.assert_allclose(result.weights, forward_grids(model, processor, image, ids), atol=1e-6)
    pipe = CaptioningPipeline(
        model=model, tokenizer=processor.tokenizer, image_processor=processor.image_processor, max_new_tokens=3
    )
    [record] = pipe(image, return_alignments=True)
    np.testing.assert_allclose(np.sum(record["alignment"], (1, 2)), 1, atol=1e-5)
    assert model.model.encoder.backbone.config._attn_implementation == before


def test_refuses_clearly(model, processor, image):
    with pytest.raises(ValueError, match=r"text='nowhere\.png': there is no such file"):
        attention_map(model, processor, "nowhere.png")
    with pytest.raises(ValueError, match="text_target is a int"):
        attention_map(model, processor, image, 3)
    with pytest.raises(ValueError, match="caption is another name for text_target"):
        attention_map(model, processor, image, "uno", caption="due")
    with pytest.raises(ValueError, match="caption is another name for text_target, for images"):
        attention_map(model, processor.tokenizer, "uno", caption="due")
    with pytest.raises(ValueError, match=r"remove \['num_beams'\]"):
        attention_map(model, processor, image, "uno", num_beams=2)
    with pytest.raises(ValueError, match="num_return_sequences is 2"):
        attention_map(model, processor, image, num_beams=2, num_return_sequences=2, max_new_tokens=3)


def one_hot(*cells, grid=(4, 4)):
    weights = np.zeros((len(cells), *grid))
    for word, cell in enumerate(cells):
        weights[word][cell] = 1
    return weights


@pytest.mark.parametrize("cell", [(1, 3), (0, 0), (3, 1), (2, 2)])
def test_the_grid_lies_on_the_whole_image(cell):
    drawn = ImageAttentionMap(["a"], one_hot(cell), Image.new("RGB", (41, 81)))
    assert drawn.grid == (4, 4)
    # The middle of a cell, at the border too; 41 and 81 have a pixel there or half a pixel beside it
    x, y = drawn.peak(0)
    assert abs(x - (cell[1] + 0.5) * 41 / 4) <= 0.5
    assert abs(y - (cell[0] + 0.5) * 81 / 4) <= 0.5


def test_a_peak_between_cells():
    weights = np.zeros((4, 4))
    weights[1, 1] = weights[1, 2] = 0.5
    assert find_peak(weights, (41, 41)) == (20.5, pytest.approx(1.5 * 41 / 4, abs=0.5))


def test_upsampled():
    drawn = ImageAttentionMap(["a"], one_hot((1, 2)), Image.new("RGB", (80, 40)))
    smooth = drawn.upsampled(0)
    assert smooth.shape == (40, 80)
    assert smooth.min() == 0
    # Cells are 20 wide and 10 high: the middle is between pixels 49 and 50, 14 and 15
    assert smooth[14:16, 49:51].min() > 0.95
    # At its edges, half a cell away, a bump has 9/16 of its height
    np.testing.assert_allclose([smooth[14, [39, 40]].mean(), smooth[[19, 20], 49].mean()], 9 / 16, atol=0.03)
    # and nothing from two cells on
    assert not smooth[:, :9].any()
    assert not smooth[36:].any()
    assert drawn.upsampled(0, (8, 6)).shape == (6, 8)


def test_even_attention_stays_even():
    np.testing.assert_allclose(upsample(np.full((3, 5), 0.2), (50, 40)), np.full((40, 50), 0.2), atol=1e-6)


@pytest.mark.parametrize("shape", [(2, 4, 4), (3, 4), (3, 0, 4)])
def test_weights_that_do_not_fit(shape):
    with pytest.raises(ValueError, match=r"3 words ask for \(3, rows, columns\)"):
        ImageAttentionMap(["a", "b", "c"], np.zeros(shape), Image.new("RGB", (4, 4)))
    with pytest.raises(ValueError, match="0 words"):
        ImageAttentionMap([], np.zeros((0, 4, 4)), Image.new("RGB", (4, 4)))


def panels(figure):
    return [axes for axes in figure.axes if axes.images]


def test_overlay(tmp_path):
    white = Image.new("RGB", (64, 64), "white")
    drawn = ImageAttentionMap(["one", "two", "</s>"], one_hot((0, 0), (3, 3), (0, 3)), white, "one two")
    figure = drawn.overlay(tmp_path / "deep" / "map.png", title="one two")
    np.testing.assert_allclose(
        imread(tmp_path / "deep" / "map.png").shape[:2], figure.get_size_inches()[::-1] * figure.dpi, atol=1
    )
    first, *words = panels(figure)
    assert [axes.get_title() for axes in words] == ["one", "two", "</s>"]
    # The image as it is, then lit where the word looked and dark elsewhere
    np.testing.assert_array_equal(first.images[0].get_array(), 1)
    for axes, (row, column) in zip(words, [(5, 5), (58, 58), (5, 58)], strict=True):
        levels = np.asarray(axes.images[0].get_array())
        assert levels.shape == (64, 64, 3)
        assert levels[row, column, 0] > 0.9
        np.testing.assert_allclose(levels[63 - row, 32], 0.2, atol=1e-6)
    assert drawn._repr_png_().startswith(b"\x89PNG")
    for suffix in (".svg", ".pdf"):
        drawn.plot(tmp_path / f"map{suffix}")
        assert (tmp_path / f"map{suffix}").stat().st_size > 1000


def test_one_scale_for_all_words():
    weights = np.stack([np.full((2, 2), 0.25), np.array([[0.5, 0.5], [0, 0]])])
    drawn = ImageAttentionMap(["a", "b"], weights, Image.new("RGB", (8, 8), "white"))
    even, half = (np.asarray(axes.images[0].get_array())[0, 4, 0] for axes in panels(drawn.overlay(vmax=1.0))[1:])
    # 0.2 + 0.8 * weight
    assert even == pytest.approx(0.4)
    assert half == pytest.approx(0.6, abs=0.06)


@pytest.mark.parametrize("size", [(64, 64), (30, 400), (400, 30), (1200, 900)])
@pytest.mark.parametrize("columns", [None, 1, 4])
def test_nothing_overlaps(size, columns):
    words = ["a", "Donaudampfschifffahrtsgesellschaftskapitän", "W" * 24, "mmmmmmmmmmmmmmm", "␣", "$x_1$", "</s>"]
    drawn = ImageAttentionMap(words, np.full((7, 2, 2), 0.25), Image.new("RGB", size))
    figure = plot_overlay(drawn, columns=columns, title="A title that is much longer than all there is to see " * 3)
    renderer = figure.canvas.get_renderer()
    boxes = [axes.get_window_extent(renderer) for axes in panels(figure)]
    boxes += [axes.title.get_window_extent(renderer) for axes in panels(figure) if axes.get_title()]
    boxes += [text.get_window_extent(renderer) for text in figure.texts]
    assert len(boxes) == 8 + 7 + 1
    page = figure.bbox
    for i, box in enumerate(boxes):
        assert page.x0 <= box.x0 < box.x1 <= page.x1
        assert page.y0 <= box.y0 < box.y1 <= page.y1
        for other in boxes[:i]:
            wide = min(box.x1, other.x1) - max(box.x0, other.x0)
            high = min(box.y1, other.y1) - max(box.y0, other.y0)
            assert min(wide, high) < 1, "two of them meet"
    if columns is not None:
        assert len({round(axes.get_position().x0, 6) for axes in panels(figure)}) == columns


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": 0}, "columns is 0"),
        ({"vmax": 0}, "vmax is 0"),
        ({"path": "map.bmp"}, "its suffix must be one of"),
    ],
)
def test_overlay_refuses(options, message):
    drawn = ImageAttentionMap(["a"], np.ones((1, 1, 1)), Image.new("RGB", (4, 4)))
    with pytest.raises(ValueError, match=message):
        drawn.overlay(**options)
