"""The translation pipeline against plain `generate()` on each text alone, and forward passes over what it wrote."""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset
from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    GenerationConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LogitsProcessor,
    PreTrainedTokenizerFast,
    TextStreamer,
    pipeline,
)
from transformers.pipelines.pt_utils import KeyDataset

from hf_attnzoo import (
    RNNSearchConfig,
    RNNSearchForConditionalGeneration,
    RNNSearchModel,
    TranslationPipeline,
    train_tokenizer,
)
from hf_attnzoo.testing import scattered

TASK = "attnzoo-translation"
TEXTS = ["ab c", "f", "", "fedcba abc", "   ", "cab fade"]
POSITIONS = 16
SPECIAL = ("<unk>", "<pad>", "<s>", "</s>")


def randomize(model, scale):
    """Weights large enough for outputs that differ from text to text, and that end at different lengths."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * scale)


def make_rnnsearch(attention="additive"):
    tokenizer = train_tokenizer("character", ["abcdef "], ["uvwxyz -"])
    sizes = {"vocab_size": tokenizer.target_vocab_size, "source_vocab_size": tokenizer.source_vocab_size}
    model = RNNSearchForConditionalGeneration(RNNSearchConfig.from_preset("tiny", attention=attention, **sizes))
    torch.manual_seed(11)
    randomize(model, 0.4)
    # A trained model never writes padding: no label ever is one.
    model.generation_config.suppress_tokens = [tokenizer.pad_token_id]
    return model, tokenizer


def make_bart():
    tokenizer = train_tokenizer("character", ["abcdef "])
    torch.manual_seed(3)
    config = BartConfig(
        vocab_size=len(tokenizer),
        d_model=16,
        encoder_layers=1,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        max_position_embeddings=POSITIONS,
        init_std=0.6,
        pad_token_id=1,
        bos_token_id=2,
        eos_token_id=3,
        decoder_start_token_id=2,
        forced_eos_token_id=None,
    )
    model = BartForConditionalGeneration(config)
    model.generation_config.forced_eos_token_id = None
    return model, tokenizer


@pytest.fixture(scope="module", params=[make_rnnsearch, make_bart], ids=["rnnsearch", "bart"])
def folder(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("checkpoint")
    for part in request.param():
        part.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def pipe(folder):
    return pipeline(TASK, model=str(folder), max_new_tokens=10, device="cpu")


def source_ids(pipe, text):
    """Ids by hand: the characters `abcdef ` in the tokenizer's order, then `</s>`."""
    vocabulary = getattr(pipe.tokenizer, "source_tokenizer", pipe.tokenizer).get_vocab()
    return [*(vocabulary[character] for character in text), 3]


def generate_alone(pipe, text, **options):
    """Ids of every sequence returned for one unpadded text, without padding, the start token included."""
    rows = pipe.model.generate(
        torch.tensor([source_ids(pipe, text)]), **{"max_new_tokens": 10, "pad_token_id": 1, **options}
    )
    return [[token for token in row if token != 1] for row in rows.tolist()]


def decode(pipe, ids):
    vocabulary = {index: token for token, index in pipe.tokenizer.get_vocab().items()}
    return "".join(vocabulary[index] for index in ids if index > 3)


def force(pipe, text, ids, **options):
    """A forward pass that reads `ids`, start token first, up to the last but one."""
    with torch.no_grad():
        return pipe.model(
            input_ids=torch.tensor([source_ids(pipe, text)]), decoder_input_ids=torch.tensor([ids[:-1]]), **options
        )


DECODING = {
    "greedy": {},
    "beams": {"num_beams": 3},
    "length penalty": {"num_beams": 3, "length_penalty": 0.5},
    "processors": {"num_beams": 2, "no_repeat_ngram_size": 2, "min_new_tokens": 3},
}


@pytest.mark.parametrize("options", DECODING.values(), ids=DECODING)
def test_every_text_gets_what_it_gets_alone(pipe, options):
    expected = [{"translation_text": decode(pipe, generate_alone(pipe, text, **options)[0])} for text in TEXTS]
    assert len({record["translation_text"] for record in expected}) > 2
    assert pipe(TEXTS[0], **options) == expected[:1]
    for batch_size in (1, 4):
        assert pipe(TEXTS, batch_size=batch_size, **options) == expected


@pytest.mark.parametrize("make", [make_rnnsearch, make_bart])
def test_tokenizer_that_pads_on_the_left(make):
    model, tokenizer = make()
    tokenizer.padding_side = "left"
    pipe = TranslationPipeline(model, tokenizer, device="cpu", max_new_tokens=10)
    assert pipe(TEXTS, batch_size=6) == [pipe(text)[0] for text in TEXTS]


def test_kinds_of_input(pipe):
    expected = pipe(TEXTS)
    dataset = Dataset.from_dict({"source": TEXTS})
    assert pipe(tuple(TEXTS)) == expected
    assert pipe(dataset["source"], batch_size=4) == expected
    # What comes one by one goes out one by one, as each text alone would
    streams = [(text for text in TEXTS), map(str, TEXTS), iter(TEXTS), KeyDataset(dataset, "source")]
    for stream in streams:
        results = pipe(stream, batch_size=4)
        assert not isinstance(results, list)
        assert list(results) == [[record] for record in expected]
    assert pipe([]) == []
    assert list(pipe(iter([]))) == []
    assert list(pipe(KeyDataset(dataset.select([]), "source"))) == []


def test_arguments_at_construction_yield_to_the_call(pipe):
    beams = TranslationPipeline(pipe.model, pipe.tokenizer, task=TASK, num_beams=3, max_new_tokens=10, device="cpu")
    assert beams(TEXTS) == pipe(TEXTS, num_beams=3)
    assert beams(TEXTS, num_beams=1) == pipe(TEXTS)
    config = GenerationConfig(num_beams=2, num_return_sequences=2, max_new_tokens=5, eos_token_id=3)
    config.decoder_start_token_id = 2
    rows = generate_alone(pipe, "ab c", num_beams=2, num_return_sequences=2, max_new_tokens=5)
    records = beams("ab c", generation_config=config)
    assert [record["translation_text"] for record in records] == [decode(pipe, row) for row in rows]


SCORED = {
    "beams": {"num_beams": 4, "num_return_sequences": 3},
    "length penalty": {"num_beams": 4, "num_return_sequences": 3, "length_penalty": 0.3},
    "greedy": {"return_scores": True},
    "greedy, length penalty": {"return_scores": True, "length_penalty": 2.0},
    "sampling": {"do_sample": True, "num_return_sequences": 3, "temperature": 0.5, "top_k": 6},
    "prefix": {"return_scores": True, "decoder_input_ids": torch.tensor([[2, 5, 6]])},
    "prefix, beams": {"num_beams": 3, "return_scores": True, "decoder_input_ids": torch.tensor([[2, 5, 6]])},
}


@pytest.mark.parametrize("options", SCORED.values(), ids=SCORED)
def test_scores(pipe, options):
    torch.manual_seed(0)
    results = pipe(TEXTS, batch_size=4, return_tensors=True, **options)
    prefix = options.get("decoder_input_ids", torch.tensor([[2]]))[0].tolist()
    for text, records in zip(TEXTS, results, strict=True):
        records = records if isinstance(records, list) else [records]
        assert len(records) == options.get("num_return_sequences", 1)
        if "num_beams" in options:
            assert [record["score"] for record in records] == sorted(
                (record["score"] for record in records), reverse=True
            )
        for record in records:
            ids = record["translation_token_ids"].tolist()
            assert ids[: len(prefix)] == prefix
            log_probs = force(pipe, text, ids).logits[0].double().log_softmax(-1)
            written = range(len(prefix), len(ids))
            total = sum(log_probs[position - 1, ids[position]].item() for position in written)
            expected = total / len(written) ** options.get("length_penalty", 1.0)
            assert record["score"] == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_n_best_lists(pipe):
    options = {"num_beams": 4, "num_return_sequences": 3}
    results = pipe(TEXTS, batch_size=4, **options)
    for text, records in zip(TEXTS, results, strict=True):
        rows = generate_alone(pipe, text, **options)
        assert [record["translation_text"] for record in records] == [decode(pipe, row) for row in rows]
        assert all(set(record) == {"translation_text", "score"} for record in records)
    assert "score" not in pipe(TEXTS, return_scores=False, **options)[0][0]


def test_return_tensors(pipe):
    for text, record in zip(TEXTS, pipe(TEXTS, batch_size=6, return_tensors=True), strict=True):
        assert set(record) == {"translation_token_ids"}
        assert record["translation_token_ids"].tolist() == generate_alone(pipe, text)[0]


ALIGNED = {
    "greedy": {},
    "beams": {"num_beams": 4, "num_return_sequences": 2},
    "no cache": {"num_beams": 4, "use_cache": False},
    "sampling": {"do_sample": True, "num_return_sequences": 2},
    "prefix": {"num_beams": 3, "decoder_input_ids": torch.tensor([[2, 5, 6]])},
}


@pytest.mark.parametrize("options", ALIGNED.values(), ids=ALIGNED)
def test_alignments(pipe, options):
    before = pipe.model.config._attn_implementation
    torch.manual_seed(1)
    results = pipe(TEXTS, batch_size=4, return_alignments=True, **options)
    torch.manual_seed(1)
    tensors = pipe(TEXTS, batch_size=4, return_tensors=True, **options)
    assert pipe.model.config._attn_implementation == before

    names = {index: token for token, index in pipe.tokenizer.get_vocab().items()}
    pipe.model.set_attn_implementation("eager")
    for text, records, rows in zip(TEXTS, results, tensors, strict=True):
        records, rows = (part if isinstance(part, list) else [part] for part in (records, rows))
        for record, row in zip(records, rows, strict=True):
            ids = row["translation_token_ids"].tolist()
            assert record["source_tokens"] == [*text, "</s>"]
            assert record["target_tokens"] == [names[index] for index in ids[1:]]
            assert record["source_spans"] == [*((start, start + 1) for start in range(len(text))), None]
            for token, span in zip(record["target_tokens"], record["target_spans"], strict=True):
                assert span is None if token in SPECIAL else record["translation_text"][slice(*span)] == token
            expected = force(pipe, text, ids, output_attentions=True).cross_attentions[-1][0].mean(0)
            torch.testing.assert_close(torch.tensor(record["alignment"]), expected, atol=1e-5, rtol=1e-4)
            torch.testing.assert_close(expected.sum(1), torch.ones(len(ids) - 1), atol=1e-5, rtol=0)
    pipe.model.set_attn_implementation(before)


def test_alignments_of_a_model_without_attention():
    pipe = TranslationPipeline(*make_rnnsearch(attention="none"), task=TASK, device="cpu", max_new_tokens=5)
    assert pipe("ab c")
    with pytest.raises(ValueError, match="no cross-attention"):
        pipe("ab c", return_alignments=True)


def test_streaming(pipe):
    class Collector(TextStreamer):
        def __init__(self, tokenizer):
            super().__init__(tokenizer, skip_special_tokens=True)
            self.pieces = []

        def on_finalized_text(self, text, stream_end=False):
            self.pieces.append(text)

    streamer = Collector(pipe.tokenizer)
    [record] = pipe("ab c", streamer=streamer)
    assert "".join(streamer.pieces) == record["translation_text"] != ""
    streamer = Collector(pipe.tokenizer)
    records = pipe(TEXTS, streamer=streamer)
    assert "".join(streamer.pieces) == "".join(record["translation_text"] for record in records)


def test_special_tokens_may_stay(pipe):
    [record] = pipe("ab c", skip_special_tokens=False)
    assert record["translation_text"] == "".join(pipe.tokenizer.convert_ids_to_tokens(generate_alone(pipe, "ab c")[0]))
    assert record["translation_text"].startswith("<s>")


def test_a_model_from_training_drops_nothing():
    model, tokenizer = make_rnnsearch()
    expected = TranslationPipeline(model, tokenizer, device="cpu", max_new_tokens=10)(TEXTS)
    model.config.dropout = 0.9
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.9
    model.train()
    assert TranslationPipeline(model, tokenizer, device="cpu", max_new_tokens=10)(TEXTS) == expected


def test_empty_text_of_a_tokenizer_that_adds_nothing():
    vocabulary = {token: index for index, token in enumerate(["<unk>", "<pad>", "<s>", "</s>", *"abcdef "])}
    names = {"unk_token": "<unk>", "pad_token": "<pad>", "eos_token": "</s>"}
    backend = Tokenizer(WordLevel(vocabulary, unk_token=names["unk_token"]))
    backend.pre_tokenizer = Split(Regex("."), "isolated")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **names)
    assert tokenizer("")["input_ids"] == []
    model, ending = make_bart()
    pipe = TranslationPipeline(model, tokenizer, device="cpu", max_new_tokens=8)
    # The other tokenizer makes `</s>` of an empty text by itself
    expected = TranslationPipeline(model, ending, device="cpu", max_new_tokens=8, return_tensors=True)("")
    [record] = pipe("", return_alignments=True, return_tensors=True)
    assert record["source_tokens"] == ["</s>"]
    assert torch.equal(record["translation_token_ids"], expected[0]["translation_token_ids"])
    assert len(pipe(["", "abc"], batch_size=2)) == 2


@pytest.fixture(scope="module")
def bart():
    return TranslationPipeline(*make_bart(), task=TASK, device="cpu")


def test_source_longer_than_the_position_table(bart):
    fits = "ab" * 7 + "c"
    assert len(bart([fits, "a"], batch_size=2)) == 2
    with pytest.raises(ValueError, match=r"'abababababababcf' has 17 tokens.*positions for 16"):
        bart(["a", fits + "f"])
    # Cut to 15 characters and </s>
    assert bart(fits + "fade", truncation=True) == bart(fits)
    with pytest.raises(ValueError, match="positions for 16"):
        bart(fits + "f", truncation="do_not_truncate")
    with pytest.raises(ValueError, match="longest"):
        bart(fits, truncation="shortest_first")


@pytest.mark.parametrize("make", [make_rnnsearch, make_bart])
def test_truncation_to_the_limit_of_the_tokenizer(make):
    model, tokenizer = make()
    tokenizer.model_max_length = 5
    pipe = TranslationPipeline(model, tokenizer, device="cpu", max_new_tokens=10)
    [record] = pipe("fedcba", truncation=True, return_alignments=True)
    assert record["source_tokens"] == [*"fedc", "</s>"]
    [record] = pipe("fedcba", return_alignments=True)
    assert record["source_tokens"] == [*"fedcba", "</s>"]


def test_length_of_the_output(bart, caplog):
    endless = {"suppress_tokens": [3], "return_tensors": True}
    logging.Logger.warning_once.cache_clear()
    with caplog.at_level("WARNING"):
        [record] = bart("abc", **endless)
    assert len(record["translation_token_ids"]) == 1 + POSITIONS
    assert "default limit of 16 tokens" in caplog.text
    # One token more is never read, and so needs no position
    for name, most in (("max_new_tokens", POSITIONS), ("max_length", POSITIONS + 1)):
        [record] = bart("abc", **endless, **{name: most})
        assert len(record["translation_token_ids"]) == 1 + POSITIONS
        with pytest.raises(ValueError, match=f"{name} is {most + 1}.*at most {most}"):
            bart("abc", **{name: most + 1})
    with pytest.raises(ValueError, match=r"max_new_tokens is 15.*at most 14"):
        bart("abc", decoder_input_ids=torch.tensor([[2, 5, 6]]), max_new_tokens=15)

    pipe = TranslationPipeline(*make_rnnsearch(), device="cpu")
    [record] = pipe("abc", **endless)
    assert len(record["translation_token_ids"]) == 1 + 256
    pipe.model.generation_config.max_length = 30
    [record] = pipe("abc", **endless)
    assert len(record["translation_token_ids"]) == 30


def test_wrong_inputs(pipe):
    dataset = Dataset.from_dict({"source": ["a"]})
    for wrong, name in [(None, "NoneType"), (3, "int"), (b"a", "bytes"), ({"source": "a"}, "dict"), ({"a"}, "set")]:
        with pytest.raises(TypeError, match=f"inputs is of type {name}, expected a string, or a list"):
            pipe(wrong)
    with pytest.raises(TypeError, match=r"inputs\[1\] is of type NoneType"):
        pipe(["a", None])
    with pytest.raises(TypeError, match=r"inputs\[0\] is of type list"):
        pipe([["a"]])
    with pytest.raises(TypeError, match=r'type Dataset, .*KeyDataset\(dataset, "source"\)'):
        pipe(dataset)
    with pytest.raises(TypeError, match="a text is of type int"):
        list(pipe(iter(["a", 3])))
    with pytest.raises(ValueError, match="num_beans"):
        pipe("a", num_beans=3)


def test_wrong_models():
    model, tokenizer = make_rnnsearch()
    with pytest.raises(ValueError, match="model is a GPT2LMHeadModel"):
        TranslationPipeline(GPT2LMHeadModel(GPT2Config(vocab_size=9, n_embd=4, n_layer=1, n_head=1)), tokenizer)
    with pytest.raises(ValueError, match="model is a RNNSearchModel"):
        TranslationPipeline(RNNSearchModel(model.config), tokenizer)
    with pytest.raises(ValueError, match="tokenizer is None"):
        TranslationPipeline(model)


def test_saving_a_model_of_transformers_asks_for_no_trust(bart, tmp_path):
    bart.save_pretrained(tmp_path)
    assert "custom_pipelines" not in json.loads((tmp_path / "config.json").read_text())
    assert not list(tmp_path.glob("*.py"))
    assert pipeline(TASK, model=str(tmp_path), device="cpu")(TEXTS) == bart(TEXTS)


@pytest.fixture(scope="module")
def saved_pipe(tmp_path_factory):
    """An RNNsearch saved by its pipeline, and what that says."""
    path = tmp_path_factory.mktemp("pipe")
    pipe = TranslationPipeline(*make_rnnsearch(), task=TASK, device="cpu", max_new_tokens=10)
    pipe.save_pretrained(path)
    assert "custom_pipelines" not in pipe.model.config.to_dict()
    return path, pipe(TEXTS, num_beams=3)


def test_a_saved_pipeline_asks_for_no_trust(saved_pipe):
    path, expected = saved_pipe
    assert pipeline(TASK, model=str(path), device="cpu", max_new_tokens=10)(TEXTS, num_beams=3) == expected


def run_in_fresh_process(script, home):
    environment = {**os.environ, "HF_HOME": str(home), "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(Path.cwd())}
    result = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, cwd=home)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


def test_fresh_process(tmp_path):
    model, tokenizer = make_rnnsearch()
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path)
    expected = TranslationPipeline(model, tokenizer, device="cpu", max_new_tokens=10)(TEXTS)
    script = f"""
import json, sys
import hf_attnzoo, hf_attnzoo.pipelines
assert "torch" not in sys.modules and "TranslationPipeline" in dir(hf_attnzoo.pipelines)
from transformers import pipeline
pipe = pipeline("{TASK}", model={str(tmp_path)!r}, device="cpu", max_new_tokens=10)
assert type(pipe) is hf_attnzoo.TranslationPipeline is hf_attnzoo.pipelines.TranslationPipeline
print(json.dumps(pipe({TEXTS!r}, batch_size=4)))
"""
    assert run_in_fresh_process(script, tmp_path) == expected


def test_without_the_package(saved_pipe, tmp_path):
    path, expected = saved_pipe
    script = f"""
import json, sys
sys.modules["hf_attnzoo"] = None
from transformers import pipeline
pipe = pipeline(model={str(path)!r}, trust_remote_code=True, device="cpu", max_new_tokens=10)
first = pipe({TEXTS!r}, num_beams=3)
pipe.save_pretrained({str(tmp_path / "again")!r})
again = pipeline(
    "{TASK}", model={str(tmp_path / "again")!r}, trust_remote_code=True, device="cpu", max_new_tokens=10
)
print(json.dumps([first, again({TEXTS!r}, num_beams=3)]))
"""
    assert run_in_fresh_process(script, tmp_path) == [expected, expected]


class _Always(LogitsProcessor):
    """Writes two unknown words and ends."""

    def __call__(self, input_ids, scores):
        scores = torch.full_like(scores, -9.0)
        scores[:, 0 if input_ids.shape[1] < 3 else 3] = 0.0
        return scores


@pytest.mark.parametrize("beams", [1, 2])
def test_unknown_words_are_replaced_by_what_they_are_aligned_with(beams):
    tokenizer = train_tokenizer("word", ["die katze", "das haus"], ["the cat", "the house"])
    config = RNNSearchConfig.from_preset("tiny", vocab_size=8, source_vocab_size=8)
    pipe = TranslationPipeline(model=scattered(RNNSearchForConditionalGeneration(config)), tokenizer=tokenizer)
    options = {"logits_processor": [_Always()], "max_new_tokens": 3, "num_beams": beams, "batch_size": 2}
    texts = ["die katze Xylophon", "Xylophon"]
    words = [["die", "katze", "Xylophon"], ["Xylophon"]]
    plain = pipe(texts, return_alignments=True, **options)
    assert [item["translation_text"] for item in plain] == ["", ""]
    # The closing </s> may be looked at most, and is no word
    chosen = [
        [source[int(np.argmax(weights[: len(source)]))] for weights in item["alignment"][:2]]
        for item, source in zip(plain, words, strict=True)
    ]
    copied = pipe(texts, replace_unknown=True, **options)
    assert copied == [{"translation_text": " ".join(row)} for row in chosen]
    lexicon = {"Xylophon": "xylophone", "die": "the"}
    translated = pipe(texts, replace_unknown=lexicon, **options)
    assert translated == [{"translation_text": " ".join(lexicon.get(word, word) for word in row)} for row in chosen]


def test_unknown_words_are_replaced_where_tokens_are_words_alone():
    tokenizer = train_tokenizer("bpe", ["die katze"], vocab_size=300)
    config = RNNSearchConfig.from_preset("tiny", vocab_size=len(tokenizer))
    pipe = TranslationPipeline(model=RNNSearchForConditionalGeneration(config), tokenizer=tokenizer)
    with pytest.raises(ValueError, match=r"replace_unknown .* BPE"):
        pipe("die katze", replace_unknown=True)
