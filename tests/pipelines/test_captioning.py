"""The captioning pipeline against plain `generate()` on each image alone, and forward passes over what it wrote."""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset, Features, Value
from datasets import Image as ImageFeature
from PIL import Image
from transformers import (
    AutoImageProcessor,
    AutoModelForImageTextToText,
    AutoProcessor,
    AutoTokenizer,
    BertConfig,
    TextStreamer,
    VisionEncoderDecoderConfig,
    VisionEncoderDecoderModel,
    ViTConfig,
    pipeline,
)
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil
from transformers.pipelines.pt_utils import KeyDataset

from hf_attnzoo import (
    CaptioningPipeline,
    RNNLMConfig,
    RNNLMForCausalLM,
    ShowAttendTellConfig,
    ShowAttendTellForConditionalGeneration,
    ShowAttendTellImageProcessor,
    ShowAttendTellProcessor,
    train_tokenizer,
)
from hf_attnzoo.testing import scattered

TASK = "attnzoo-captioning"
WORDS = ["uno", "due", "tre", "quattro", "cinque", "sei"]
OPTIONS = {"max_new_tokens": 8, "device": "cpu"}


def make_show_attend_tell():
    tokenizer = train_tokenizer("word", [" ".join(WORDS)])
    config = ShowAttendTellConfig.from_preset(
        "tiny", vocab_size=len(tokenizer), image_size=16, encoder_channels=[4, 8]
    )
    model = scattered(ShowAttendTellForConditionalGeneration(config), seed=1, std=0.6)
    # A trained model never writes padding, no label ever is one, and seldom an unknown word
    model.generation_config.suppress_tokens = [tokenizer.pad_token_id, tokenizer.unk_token_id]
    return model, ShowAttendTellProcessor(ShowAttendTellImageProcessor(size=16), tokenizer)


@pytest.fixture(scope="module")
def images():
    """Patches of colour in every mode, 30 pixels wide and 40 high."""
    patches = np.random.default_rng(1).integers(0, 256, (5, 4, 3, 3), dtype=np.uint8)
    modes = ["RGB", "L", "P", "1", "RGB"]
    large = (Image.fromarray(pixels).resize((30, 40), Image.Resampling.NEAREST) for pixels in patches)
    return [image.convert(mode) for image, mode in zip(large, modes, strict=True)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("checkpoint")
    for part in make_show_attend_tell():
        part.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def pipe(folder):
    return pipeline(TASK, model=str(folder), **OPTIONS)


def pixels_of(image):
    """By hand: Pillow's resizing, levels from -1 to 1."""
    levels = np.asarray(image.convert("RGB").resize((16, 16), Image.Resampling.BILINEAR))
    return torch.tensor((levels / 255 - 0.5) / 0.5, dtype=torch.float32).permute(2, 0, 1)[None]


def generate_alone(pipe, image, **options):
    """Ids of every sequence returned for one image, without padding, the start token included."""
    rows = pipe.model.generate(pixel_values=pixels_of(image), **{"max_new_tokens": 8, "pad_token_id": 1, **options})
    return [[token for token in row if token != 1] for row in rows.tolist()]


def decode(pipe, ids):
    vocabulary = {index: token for token, index in pipe.tokenizer.get_vocab().items()}
    return " ".join(vocabulary[index] for index in ids if index > 3)


def test_auto_classes_know_the_parts(folder, pipe):
    assert type(pipe) is CaptioningPipeline
    assert type(AutoProcessor.from_pretrained(folder)) is ShowAttendTellProcessor
    assert type(AutoImageProcessor.from_pretrained(folder)) is ShowAttendTellImageProcessor
    assert AutoTokenizer.from_pretrained(folder)("due sei")["input_ids"] == pipe.tokenizer("due sei")["input_ids"]
    assert type(AutoModelForImageTextToText.from_pretrained(folder)) is ShowAttendTellForConditionalGeneration


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"num_beams": 2, "length_penalty": 0.4}])
def test_every_image_gets_what_it_gets_alone(pipe, images, options):
    expected = [{"caption": decode(pipe, generate_alone(pipe, image, **options)[0])} for image in images]
    assert len({record["caption"] for record in expected}) > 2
    assert pipe(images[0], **options) == expected[:1]
    for batch_size in (1, 3):
        assert pipe(images, batch_size=batch_size, **options) == expected


def test_kinds_of_input(pipe, images, tmp_path):
    expected = pipe(images)
    paths = [str(tmp_path / f"{i}.png") for i in range(5)]
    for image, path in zip(images, paths, strict=True):
        image.save(path)
    arrays = [np.asarray(image.convert("RGB")) for image in images]
    for inputs in (
        tuple(images),
        paths,
        [Path(path) for path in paths],
        arrays,
        [torch.tensor(array) for array in arrays],
    ):
        assert pipe(inputs, batch_size=2) == expected
    for one in (paths[1], Path(paths[1]), arrays[1]):
        assert pipe(one) == expected[1:2]
    dataset = Dataset.from_dict(
        {"image": paths, "caption": paths}, features=Features({"image": ImageFeature(), "caption": Value("string")})
    )
    assert pipe(dataset["image"]) == expected
    # What comes one by one goes out one by one, as each image alone would
    for stream in (dataset, KeyDataset(dataset, "image"), (image for image in images), iter(paths)):
        results = pipe(stream, batch_size=2)
        assert not isinstance(results, list)
        assert list(results) == [[record] for record in expected]
    assert pipe([]) == []
    assert list(pipe(dataset.select([]))) == []


def test_transparency_lies_on_white(pipe, tmp_path):
    clear, white = Image.new("RGBA", (20, 20), (255, 0, 0, 0)), Image.new("RGB", (20, 20), (255, 255, 255))
    clear.save(tmp_path / "clear.png")
    assert pipe([clear, str(tmp_path / "clear.png")], return_scores=True) == pipe([white] * 2, return_scores=True)


SCORED = {
    "beams": {"num_beams": 4, "num_return_sequences": 3},
    "greedy": {"return_scores": True, "length_penalty": 2.0},
    "sampling": {"do_sample": True, "num_return_sequences": 2},
    "prefix": {"num_beams": 2, "return_scores": True, "decoder_input_ids": torch.tensor([[2, 5, 6]])},
}


@pytest.mark.parametrize("options", SCORED.values(), ids=SCORED)
def test_scores_and_attention(pipe, images, options):
    torch.manual_seed(0)
    results = pipe(images, batch_size=2, return_tensors=True, return_alignments=True, **options)
    names = {index: token for token, index in pipe.tokenizer.get_vocab().items()}
    prefix = options.get("decoder_input_ids", torch.tensor([[2]]))[0].tolist()
    for image, records in zip(images, results, strict=True):
        records = records if isinstance(records, list) else [records]
        assert len(records) == options.get("num_return_sequences", 1)
        for record in records:
            ids = record["caption_token_ids"].tolist()
            assert ids[: len(prefix)] == prefix
            with torch.no_grad():
                output = pipe.model(
                    pixel_values=pixels_of(image), decoder_input_ids=torch.tensor([ids[:-1]]), output_attentions=True
                )
            log_probs = output.logits[0].double().log_softmax(-1)
            written = range(len(prefix), len(ids))
            total = sum(log_probs[position - 1, ids[position]].item() for position in written)
            expected = total / len(written) ** options.get("length_penalty", 1.0)
            assert record["score"] == pytest.approx(expected, rel=1e-4, abs=1e-5)

            assert record["target_tokens"] == [names[index] for index in ids[1:]]
            # Two halvings of 16 pixels
            grid = output.cross_attentions[0][0, 0].reshape(len(ids) - 1, 4, 4)
            torch.testing.assert_close(torch.tensor(record["alignment"]), grid, atol=1e-5, rtol=1e-4)


def test_streaming_and_special_tokens(pipe, images):
    class Collector(TextStreamer):
        text = ""

        def on_finalized_text(self, text, stream_end=False):
            self.text += text

    streamer = Collector(pipe.tokenizer, skip_special_tokens=True)
    [record] = pipe(images[0], streamer=streamer)
    assert streamer.text == record["caption"] != ""
    [record] = pipe(images[0], skip_special_tokens=False)
    assert record["caption"].startswith("<s> ")


def test_arguments_of_the_image_processor(pipe):
    # Three rows of three pixels could have their channels on either side
    pixels = np.random.default_rng(0).integers(0, 256, (3, 3, 3), dtype=np.uint8)
    with pytest.raises(ValueError, match="input_data_format"):
        pipe(pixels)
    options = {"image_processor_kwargs": {"input_data_format": "channels_last"}}
    assert pipe(pixels, **options) == pipe(Image.fromarray(pixels))


def test_length_of_the_output(pipe, images, caplog):
    endless = CaptioningPipeline(pipe.model, processor=pipe.processor, device="cpu", suppress_tokens=[3])
    logging.Logger.warning_once.cache_clear()
    with caplog.at_level("WARNING"):
        [record] = endless(images[0], return_tensors=True)
    assert len(record["caption_token_ids"]) == 1 + 256
    assert "A caption reached the default limit of 256 tokens" in caplog.text


def test_parts_may_come_one_by_one(pipe, images):
    expected = pipe(images[:2])
    model, processor = pipe.model, pipe.processor
    parts = {"tokenizer": processor.tokenizer, "image_processor": processor.image_processor}
    for given in ({"processor": processor}, parts):
        assert CaptioningPipeline(model, **given, **OPTIONS)(images[:2]) == expected
        assert pipeline(TASK, model=model, **given, **OPTIONS)(images[:2]) == expected


def test_a_model_from_training_drops_nothing(images):
    model, processor = make_show_attend_tell()
    expected = CaptioningPipeline(model, processor=processor, **OPTIONS)(images)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.9
    model.train()
    assert CaptioningPipeline(model, processor=processor, **OPTIONS)(images) == expected


@pytest.fixture(scope="module")
def of_transformers():
    """A captioner of transformers, which has no processor and attends to patches behind a first token."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    tokenizer = train_tokenizer("word", [" ".join(WORDS)])
    vision = ViTConfig(image_size=16, patch_size=8, **sizes)
    language = BertConfig(vocab_size=len(tokenizer), max_position_embeddings=12, **sizes)
    config = VisionEncoderDecoderConfig.from_encoder_decoder_configs(vision, language)
    config.update({"decoder_start_token_id": 2, "pad_token_id": 1, "eos_token_id": 3, "bos_token_id": 2})
    model = scattered(VisionEncoderDecoderModel(config), std=0.6)
    model.generation_config.update(decoder_start_token_id=2, pad_token_id=1, eos_token_id=3, bos_token_id=2)
    return CaptioningPipeline(
        model,
        tokenizer=tokenizer,
        image_processor=ViTImageProcessorPil(size={"height": 16, "width": 16}),
        device="cpu",
    )


def test_a_captioner_of_transformers(of_transformers, images, tmp_path):
    pipe, images = of_transformers, [images[0], images[4]]
    expected = [{"caption": decode(pipe, generate_alone(pipe, image)[0])} for image in images]
    assert pipe(images, batch_size=2, max_new_tokens=8) == expected
    [record] = pipe(images[0], return_alignments=True, max_new_tokens=8)
    assert np.array(record["alignment"]).shape == (len(record["target_tokens"]), 1 + 4)
    with pytest.raises(ValueError, match=r"max_new_tokens is 13.*table of 12 allows at most 12"):
        pipe(images[0], max_new_tokens=13)
    pipe.save_pretrained(tmp_path)
    assert not list(tmp_path.glob("*.py"))
    assert pipeline(TASK, model=str(tmp_path), **OPTIONS)(images) == expected


def test_wrong_inputs(pipe):
    for wrong, name in [(None, "NoneType"), (3, "int"), (b"a", "bytes"), ({"image": 1}, "dict")]:
        with pytest.raises(TypeError, match=f"inputs is of type {name}, expected a path, a URL, an image"):
            pipe(wrong)
    with pytest.raises(TypeError, match=r"inputs\[1\] is of type NoneType"):
        pipe([np.zeros((5, 5), np.uint8), None])
    with pytest.raises(TypeError, match="inputs is of type Dataset"):
        pipe(Dataset.from_dict({"picture": ["a"]}))
    with pytest.raises(ValueError, match=r"'nowhere\.png': there is no such file"):
        pipe("nowhere.png")
    with pytest.raises(ValueError, match="num_beans"):
        pipe(np.zeros((5, 5), np.uint8), num_beans=3)
    with pytest.raises(ValueError, match="holds 2 images; give a list of them"):
        pipe(np.zeros((2, 5, 6, 3), np.uint8))


def test_wrong_models(pipe):
    with pytest.raises(ValueError, match="model is a RNNLMForCausalLM; attnzoo-captioning takes an encoder-decoder"):
        CaptioningPipeline(RNNLMForCausalLM(RNNLMConfig.from_preset("tiny")), processor=pipe.processor)
    with pytest.raises(ValueError, match="tokenizer is None"):
        CaptioningPipeline(pipe.model, image_processor=pipe.image_processor)
    with pytest.raises(ValueError, match="image_processor is None"):
        CaptioningPipeline(pipe.model, tokenizer=pipe.tokenizer)


def test_without_the_package(pipe, images, tmp_path):
    images[0].save(tmp_path / "image.png")
    expected = pipe(str(tmp_path / "image.png"), num_beams=3, return_alignments=True)
    pipe.save_pretrained(tmp_path / "pipe")
    assert "custom_pipelines" not in pipe.model.config.to_dict()
    # With the package nobody's trust is asked for
    assert type(pipeline(TASK, model=str(tmp_path / "pipe"), **OPTIONS)) is CaptioningPipeline
    script = f"""
import json, sys
sys.modules["hf_attnzoo"] = None
from transformers import AutoImageProcessor, AutoProcessor, pipeline
options = {{"trust_remote_code": True, "device": "cpu", "max_new_tokens": 8}}
folder, again = {str(tmp_path / "pipe")!r}, {str(tmp_path / "again")!r}
first = pipeline(model=folder, **options)
answers = [first("image.png", num_beams=3, return_alignments=True)]
first.save_pretrained(again)
second = pipeline("{TASK}", model=again, **options)
answers.append(second("image.png", num_beams=3, return_alignments=True))
names = [
    type(AutoProcessor.from_pretrained(again, trust_remote_code=True)).__name__,
    type(AutoImageProcessor.from_pretrained(again, trust_remote_code=True)).__name__,
]
print(json.dumps([answers, names]))
"""
    environment = {**os.environ, "HF_HOME": str(tmp_path / "home"), "PYTHONPATH": str(Path.cwd())}
    result = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert result.returncode == 0, result.stderr
    answers, names = json.loads(result.stdout.splitlines()[-1])
    assert names == ["ShowAttendTellProcessor", "ShowAttendTellImageProcessor"]
    for [answer] in answers:
        assert answer["caption"] == expected[0]["caption"]
        np.testing.assert_allclose(answer["alignment"], expected[0]["alignment"], atol=1e-5)
