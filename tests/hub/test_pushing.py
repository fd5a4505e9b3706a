"""To the Hub and back by huggingface_hub's own client: what goes, what loads from there, and what goes wrong."""

import json
import os
import shutil
import subprocess
import sys

import huggingface_hub
import numpy as np
import pytest
import torch
import transformers
from hub_stand_in import HubStandIn
from huggingface_hub import constants
from huggingface_hub.utils import close_session
from PIL import Image
from safetensors.torch import load
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoProcessor,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    pipeline,
)
from typer.testing import CliRunner

import hf_attnzoo
from hf_attnzoo import (
    GPTConfig,
    GPTForCausalLM,
    LuongConfig,
    LuongForConditionalGeneration,
    RNNSearchConfig,
    RNNSearchForConditionalGeneration,
    ShowAttendTellConfig,
    ShowAttendTellForConditionalGeneration,
    ShowAttendTellImageProcessor,
    ShowAttendTellProcessor,
    train_tokenizer,
)
from hf_attnzoo.cli import app
from hf_attnzoo.testing import scattered

ANN, BOB, READER, STRANGER = "hf_annsTokenThatNobodySees", "hf_bobsToken", "hf_readsAlone", "hf_unknown"
PICKLES = ("optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin", "pytorch_model.bin")
TEXTS = ["ab ba", "fedcba", "c"]


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory):
    """The Hub that this process talks to, whatever its environment was when it began."""
    users = {ANN: ("ann", "write"), BOB: ("bob", "write"), READER: ("ann", "read")}
    home = tmp_path_factory.mktemp("home")
    with HubStandIn(users) as hub, pytest.MonkeyPatch.context() as patch:
        close_session()
        patch.setenv("NO_PROXY", "127.0.0.1,localhost")
        patch.setenv("HF_TOKEN", ANN)
        patch.setattr(constants, "ENDPOINT", hub.endpoint)
        template = hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        patch.setattr(constants, "HF_HUB_OFFLINE", False)
        patch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        patch.setattr(constants, "HF_HUB_CACHE", str(home / "hub"))
        patch.setattr(constants, "HF_TOKEN_PATH", str(home / "token"))
        patch.setattr(huggingface_hub.hf_api.api, "endpoint", hub.endpoint)
        patch.setattr(transformers.utils.hub, "_hf_api", None)
        # Whoever tries again needn't wait
        patch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)
        yield hub
    close_session()


@pytest.fixture
def hub(stand_in):
    """The same, with nothing in its log."""
    for log in (stand_in.log, stand_in.ranges, stand_in.tokens_at_blobs, stand_in.received):
        log.clear()
    yield stand_in
    stand_in.cut_uploads = stand_in.cut_downloads = stand_in.failing_commits = 0
    stand_in.on_commit = None


@pytest.fixture
def push(hub):
    """Runs `attnzoo push`; returns what it printed, or the one line of its error where `fails`."""

    def push(*arguments, fails=False):
        result = CliRunner().invoke(app, ["push", *map(str, arguments)])
        for token in hub.users:
            assert token not in result.output
        assert "Signature" not in result.output
        if not fails:
            assert result.exit_code == 0, result.output
            return result.stdout
        assert (result.exit_code, result.stdout) == (2, "")
        [line] = result.stderr.splitlines()
        return line.removeprefix("attnzoo: ")

    return push


@pytest.fixture
def folder(tiny_run, tmp_path):
    """A model's folder of one's own, with what a training may leave there."""
    folder = tmp_path / "reversal"
    shutil.copytree(tiny_run.model, folder)
    for name in (*PICKLES, "trainer_state.json", "notes.txt"):
        (folder / name).write_bytes(b"\x80\x04.")
    (folder / "checkpoint-4").mkdir()
    (folder / "checkpoint-4" / "optimizer.pt").write_bytes(b"\x80\x04.")
    return folder


def ids_of(model, tokenizer):
    inputs = tokenizer(TEXTS, padding=True, return_tensors="pt")
    inputs.pop("token_type_ids", None)
    return model.generate(**inputs, num_beams=2, max_new_tokens=6).tolist()


# Where hf_attnzoo can't be imported: everything that is on the Hub loads, is pushed again, and loads from there too.
ELSEWHERE = """
import json, sys, urllib.request
sys.modules["hf_attnzoo"] = None
endpoint, token, private, texts, picture, classes = json.loads(sys.argv[1])
import torch, transformers
from huggingface_hub import constants
from transformers import AutoImageProcessor, AutoProcessor, AutoTokenizer, pipeline
import huggingface_hub.utils._http
huggingface_hub.utils._http.time.sleep = lambda seconds: None
# Smaller than a file of weights here, as it is on a Hub of real models
constants.DOWNLOAD_CHUNK_SIZE = 256
trust = {"trust_remote_code": True}
options = {**trust, "device": "cpu"}


def ids_of(repo):
    head = "AutoModelForCausalLM" if "gpt" in repo else "AutoModelForSeq2SeqLM"
    model = getattr(transformers, head).from_pretrained(repo, **trust)
    tokenizer = AutoTokenizer.from_pretrained(repo, **trust)
    inputs = tokenizer(texts, padding=True, return_tensors="pt")
    inputs.pop("token_type_ids", None)
    return model, tokenizer, model.generate(**inputs, num_beams=2, max_new_tokens=6).tolist()


def caption(repo):
    pipe = pipeline("attnzoo-captioning", model=repo, **options)
    return pipe, pipe(picture, num_beams=2, max_new_tokens=6)


said = {}
for repo in ("ann/words", "ann/gpt", "ann/trained"):
    model, tokenizer, said[repo] = ids_of(repo)
    for name in classes[repo]:
        loaded = getattr(transformers, name).from_pretrained(repo, **trust)
        assert torch.equal(next(loaded.parameters()), next(model.base_model.parameters())), name
    if repo != "ann/trained":
        again = repo.replace("ann", "bob")
        model.push_to_hub(again, token=token)
        tokenizer.push_to_hub(again, token=token)
        said[again] = ids_of(again)[2]
pipe, said["ann/captions"] = caption("ann/captions")
pipe.push_to_hub("bob/captions", token=token)
_, said["bob/captions"] = caption("bob/captions")
for auto in (AutoProcessor, AutoImageProcessor, AutoTokenizer):
    said[auto.__name__] = type(auto.from_pretrained("bob/captions", **trust)).__name__
translate = pipeline(model="ann/reversal", **options)
said["ann/reversal"] = translate(["a b c"])
try:
    transformers.AutoConfig.from_pretrained(private, **trust)
except OSError as error:
    said["unseen"] = str(error)
said["seen"] = transformers.AutoConfig.from_pretrained(private, token="hf_annsTokenThatNobodySees", **trust).model_type
urllib.request.build_opener(urllib.request.ProxyHandler({})).open(endpoint + "/api/models/ann/gpt").read()
constants.HF_HUB_OFFLINE = True
said["offline"] = [ids_of("ann/words")[2], ids_of("bob/gpt")[2], caption("ann/captions")[1]]
said["offline"].append(pipeline(model="ann/reversal", **options)(["a b c"]))
print(json.dumps(said))
"""


def test_to_the_hub_and_back(hub, push, folder, tmp_path, monkeypatch):
    expected = {}
    assert "files are in" in push(folder, "ann/reversal")
    expected["ann/reversal"] = pipeline("attnzoo-translation", model=str(folder))(["a b c"])
    assert "files are in" in push(folder, "ann/secret", "--private")

    tokenizer = train_tokenizer("character", ["abcdef "], ["uvwxyz -"])
    sizes = {"vocab_size": tokenizer.target_vocab_size, "source_vocab_size": tokenizer.source_vocab_size}
    words = scattered(RNNSearchForConditionalGeneration(RNNSearchConfig.from_preset("tiny", **sizes)), std=0.4)
    words.push_to_hub("ann/words", max_shard_size="20KB")
    tokenizer.push_to_hub("ann/words")
    assert "model.safetensors.index.json" in hub.files("ann/words")
    assert b"hf-attnzoo" in hub.files("ann/words")["README.md"]

    letters = train_tokenizer("character", ["abcdef "], causal=True)
    gpt = scattered(GPTForCausalLM(GPTConfig.from_preset("tiny", vocab_size=len(letters))), std=0.4)
    gpt.push_to_hub("ann/gpt", private=True)
    letters.push_to_hub("ann/gpt")
    hub.repositories["ann/gpt"].private = False

    speech = train_tokenizer("word", ["uno due tre quattro"])
    config = ShowAttendTellConfig.from_preset("tiny", vocab_size=len(speech), image_size=16, encoder_channels=[4, 8])
    captioner = scattered(ShowAttendTellForConditionalGeneration(config), seed=1, std=0.6)
    captioner.generation_config.suppress_tokens = [speech.pad_token_id, speech.unk_token_id]
    processor = ShowAttendTellProcessor(ShowAttendTellImageProcessor(size=16), speech)
    pipe = pipeline("attnzoo-captioning", model=captioner, processor=processor, device="cpu")
    Image.fromarray(np.arange(768, dtype=np.uint8).reshape(16, 16, 3)).save(tmp_path / "picture.png")
    picture = str(tmp_path / "picture.png")
    pipe.push_to_hub("ann/captions")

    luong = LuongForConditionalGeneration(LuongConfig.from_preset("tiny", **sizes))
    rows = [dict(tokenizer(text, text_target="uvw")) for text in TEXTS]
    arguments = Seq2SeqTrainingArguments(
        str(tmp_path / "trained"),
        max_steps=2,
        save_steps=1,
        push_to_hub=True,
        hub_model_id="ann/trained",
        report_to="none",
        use_cpu=True,
    )
    collator = DataCollatorForSeq2Seq(tokenizer, luong)
    trainer = Seq2SeqTrainer(luong, arguments, collator, rows, processing_class=tokenizer)
    trainer.train()
    trainer.push_to_hub()
    weights = load(hub.files("ann/trained")["model.safetensors"])
    assert all(torch.equal(tensor, weights[name]) for name, tensor in luong.state_dict().items() if name in weights)
    assert b"hf-attnzoo" in hub.files("ann/trained")["README.md"]

    expected["ann/words"] = expected["bob/words"] = ids_of(words, tokenizer)
    expected["ann/gpt"] = expected["bob/gpt"] = ids_of(gpt, letters)
    expected["ann/trained"] = ids_of(luong.eval(), tokenizer)
    expected["ann/captions"] = expected["bob/captions"] = pipe(picture, num_beams=2, max_new_tokens=6)
    # No answer comes out right by chance
    assert len({json.dumps(answer) for answer in expected.values()}) == 5

    # With the package: its own classes, and nobody is asked anything
    monkeypatch.setattr("builtins.input", lambda *args: pytest.fail("a question was asked"))
    assert type(AutoTokenizer.from_pretrained("ann/words")) is hf_attnzoo.AttnZooTokenizer
    for options in ({}, {"trust_remote_code": True}):
        loaded = AutoModelForSeq2SeqLM.from_pretrained("ann/words", **options)
        assert type(loaded) is RNNSearchForConditionalGeneration
    assert type(AutoProcessor.from_pretrained("ann/captions")) is ShowAttendTellProcessor
    translate = pipeline("attnzoo-translation", model="ann/reversal")
    assert type(translate) is hf_attnzoo.TranslationPipeline
    assert translate(["a b c"]) == expected["ann/reversal"]
    assert not any("transformers_modules" in name for name in sys.modules)

    hub.cut_downloads = 1
    hub.ranges.clear()
    models = {"ann/words": words, "ann/gpt": gpt, "ann/trained": luong}
    # Heads with weights of their own are no part of the first two classes
    classes = {repo: ["AutoModel"] for repo in models} | {"ann/gpt": [*gpt.config.auto_classes]}
    environment = {name: value for name, value in os.environ.items() if name != "HF_TOKEN"}
    environment |= {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "0"}
    environment |= {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    handed = json.dumps([hub.endpoint, BOB, "ann/secret", TEXTS, picture, classes])
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, handed],
        env=environment,
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert {repo: said[repo] for repo in expected} == expected
    assert said["AutoProcessor"] == "ShowAttendTellProcessor"
    assert said["AutoImageProcessor"] == "ShowAttendTellImageProcessor"
    assert said["AutoTokenizer"] in ("PreTrainedTokenizerFast", "TokenizersBackend")
    assert "ann/secret is not a local folder" in said["unseen"]
    assert said["seen"] == "attnzoo_rnnsearch"
    assert said["offline"] == [expected[repo] for repo in ("ann/words", "ann/gpt", "ann/captions", "ann/reversal")]
    # The last that was asked before the cable was pulled
    assert hub.log[-1] == ("GET", "/api/models/ann/gpt")
    # The download that broke off went on where it was
    [resumed] = hub.ranges
    assert int(resumed.removeprefix("bytes=").split("-")[0]) > 0
    # Large files lie elsewhere, where no token belongs
    assert hub.count("GET", "/blobs/") > 0
    assert hub.tokens_at_blobs == []
