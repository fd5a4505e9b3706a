"""To the Hub and back by huggingface_hub's own client: what goes, what loads from there, and what goes wrong."""

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

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
said["ann/starter"] = pipeline(model="ann/starter", **options)("12 mars 2019")
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
    assert "files are in" in push("dates-rnnsearch", "ann/starter")
    expected["ann/starter"] = [{"translation_text": "2019-03-12"}]
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
    # As the README has it: transformers sends the model's code when training has ended
    trained = hub.repositories["ann/trained"]
    commits = dict(zip(trained.messages, trained.commits.values(), strict=True))
    assert "modeling_luong.py" not in commits["Training in progress, step 1"]
    assert "modeling_luong.py" in commits["End of training"]

    expected["ann/words"] = expected["bob/words"] = ids_of(words, tokenizer)
    expected["ann/gpt"] = expected["bob/gpt"] = ids_of(gpt, letters)
    expected["ann/trained"] = ids_of(luong.eval(), tokenizer)
    expected["ann/captions"] = expected["bob/captions"] = pipe(picture, num_beams=2, max_new_tokens=6)
    # No answer comes out right by chance
    assert len({json.dumps(answer) for answer in expected.values()}) == 6

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
    for repo in ("bob/words", "bob/gpt", "bob/captions"):
        files = hub.files(repo)
        configurations = [content.decode() for name, content in files.items() if name.endswith("config.json")]
        modules = set(re.findall(r'"(?:[^"/]+/[^"]+--)?(\w+)\.[A-Z]\w+"', "".join(configurations)))
        assert {f"{module}.py" for module in modules} <= set(files)
        assert len(modules) >= 2
        # Not from where it was had first
        assert "ann/" not in "".join(configurations)
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


def test_what_goes(hub, push, folder):
    printed = push(folder, "kept", "-m", "Once")
    files = hub.files("ann/kept")
    names = {path.name for path in folder.iterdir()}
    stays = {*PICKLES, "trainer_state.json", "notes.txt", "checkpoint-4"}
    assert set(files) == (names - stays) | {".gitattributes"}
    assert {"model.safetensors", "tokenizer.json", "generation_config.json", "attention.png", "curve.png"} <= set(
        files
    )
    assert {"modeling_rnnsearch.py", "recurrence.py", "translation.py", "generating.py"} <= set(files)
    for name in set(files) - {"README.md", ".gitattributes"}:
        assert files[name] == (folder / name).read_bytes()
    listed = printed.splitlines()[0].removeprefix("not sent: ").split(", ")
    assert set(listed) == (stays - {"checkpoint-4"}) | {"checkpoint-4/"}
    # One commit, with a card that names the repository
    assert hub.repositories["ann/kept"].messages == ["initial commit", "Once"]
    card = files["README.md"].decode()
    assert 'model="ann/kept", trust_remote_code=True)' in card
    assert "path/to/this/folder" not in card
    assert (folder / "README.md").read_text(encoding="utf-8").replace("path/to/this/folder", "ann/kept") == card

    assert "were already in" in push(folder, "ann/kept")
    assert len(hub.repositories["ann/kept"].commits) == 2
    assert set(hub.received.values()) <= {1}


def test_without_code(hub, push, folder):
    push(folder, "ann/plain", "--no-code")
    files = hub.files("ann/plain")
    assert not [name for name in files if name.endswith(".py")]
    assert not [name for name, content in files.items() if b"auto_map" in content or b"custom_pipelines" in content]
    assert b"trust_remote_code" not in files["README.md"]
    assert b"It takes hf-attnzoo to load this model" in files["README.md"]
    assert b"auto_map" in (folder / "config.json").read_bytes()
    here, there = (pipeline("attnzoo-translation", model=name) for name in (str(folder), "ann/plain"))
    assert there(["a b c"]) == here(["a b c"])


def test_a_model_of_the_package(hub, push):
    here = Path(hf_attnzoo.pretrained("dates-rnnsearch"))
    printed = push("dates-rnnsearch", "ann/starter")
    assert "not sent" not in printed
    assert printed.startswith("dates-rnnsearch: ")
    assert hub.repositories["ann/starter"].messages[-1] == "Upload dates-rnnsearch"
    files = hub.files("ann/starter")
    # With the code that doesn't lie in the package's folder, and the same weights
    assert {"modeling_rnnsearch.py", "recurrence.py", "tokenization_attnzoo.py", "translation.py"} <= set(files)
    assert files["model.safetensors"] == (here / "model.safetensors").read_bytes()
    config = json.loads(files["config.json"])
    assert config["auto_map"]["AutoModelForSeq2SeqLM"].startswith("modeling_rnnsearch.")
    assert config["dtype"] == "float32"
    assert b'model="ann/starter", trust_remote_code=True)' in files["README.md"]
    assert pipeline("attnzoo-translation", model="ann/starter")("12 mars 2019")[0]["translation_text"] == "2019-03-12"
    assert not list(here.glob("*.py"))

    push("dates-rnnsearch", "ann/starter-alone", "--no-code")
    alone = hub.files("ann/starter-alone")
    assert set(alone) - {".gitattributes"} == {path.name for path in here.iterdir()}
    assert alone["model.safetensors"] == files["model.safetensors"]


def test_shards_take_the_place_of_one_file(hub, push, folder):
    push(folder, "ann/large")
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="3KB")
    assert "removed there: model.safetensors" in push(folder, "ann/large")
    shards = [name for name in hub.files("ann/large") if name.endswith(".safetensors")]
    assert len(shards) > 1
    assert "model.safetensors" not in shards
    loaded = AutoModelForSeq2SeqLM.from_pretrained("ann/large").state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in model.state_dict().items())


def test_tokens(hub, push, folder, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", STRANGER)
    assert "does not take this token (401)" in push(folder, "ann/new", fails=True)
    assert "does not take this token (401)" in push(folder, "new", fails=True)
    monkeypatch.setenv("HF_TOKEN", READER)
    assert "ann/new: this token may not write there (403)" in push(folder, "ann/new", fails=True)
    monkeypatch.setenv("HF_TOKEN", BOB)
    assert "ann/new: this token may not write there (403)" in push(folder, "ann/new", fails=True)
    monkeypatch.delenv("HF_TOKEN")
    asked = len(hub.log)
    assert "there is no token of the Hub" in push(folder, "ann/new", fails=True)
    assert len(hub.log) == asked
    assert "ann/new" not in hub.repositories
    assert not hub.received


def test_branches_and_requests(hub, push, folder, monkeypatch):
    push(folder, "ann/open")
    assert "is there already, and public" in push(folder, "ann/open", "--private", fails=True)
    push(folder, "ann/open", "--no-code", "--revision", "plain")
    assert "modeling_rnnsearch.py" in hub.files("ann/open")
    # On top of main, whose code nobody names there
    assert b"auto_map" not in hub.files("ann/open", "plain")["config.json"]
    before = hub.repositories["ann/open"].heads["main"]
    monkeypatch.setenv("HF_TOKEN", BOB)
    assert "/ann/open/discussions/1" in push(folder, "ann/open", "--create-pr", "--no-code")
    assert hub.repositories["ann/open"].heads["main"] == before
    assert b"auto_map" not in hub.files("ann/open", "refs/pr/1")["config.json"]
    assert "ann/open: has no revision nowhere" in push(
        folder, "ann/open", "--create-pr", "--revision", "nowhere", fails=True
    )
    assert "ann/none: no such repository" in push(folder, "ann/none", "--create-pr", fails=True)


def test_a_push_that_breaks_off(hub, push, folder):
    # Weights that nobody has sent yet
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    torch.nn.init.normal_(next(model.parameters()))
    model.save_pretrained(folder)
    hub.cut_uploads = 1000
    line = push(folder, "ann/broken", fails=True)
    assert "the upload broke off" in line
    assert "push again" in line
    assert set(hub.files("ann/broken")) == {".gitattributes"}
    assert not hub.received
    hub.cut_uploads, hub.failing_commits = 1, 1
    line = push(folder, "ann/broken", fails=True)
    assert "ann/broken: the Hub answered 500" in line
    assert "no luck with *** at ..." in line
    assert set(hub.files("ann/broken")) == {".gitattributes"}
    push(folder, "ann/broken")
    assert hub.files("ann/broken")["model.safetensors"] == (folder / "model.safetensors").read_bytes()
    assert set(hub.received.values()) == {1}


def test_somebody_else_commits_meanwhile(hub, push, folder):
    push(folder, "ann/shared", "--no-code")
    repository = hub.repositories["ann/shared"]

    def elsewhere():
        files = hub.files("ann/shared")
        repository.commit("main", {**files, "notes.md": b"theirs", "tokenizer.json": b"{}"}, "theirs")

    def always():
        elsewhere()
        hub.on_commit = always

    hub.on_commit = elsewhere
    push(folder, "ann/shared", "-m", "ours")
    assert repository.messages[-2:] == ["theirs", "ours"]
    files = hub.files("ann/shared")
    assert files["notes.md"] == b"theirs"
    assert files["tokenizer.json"] == (folder / "tokenizer.json").read_bytes()
    hub.on_commit = always
    (folder / "README.md").write_text((folder / "README.md").read_text() + "\nMore.\n")
    assert "others keep committing to it at the same time (412)" in push(folder, "ann/shared", fails=True)


def test_no_hub(hub, push, folder, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "while HF_HUB_OFFLINE is set" in push(folder, "ann/new", fails=True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{listener.getsockname()[1]}"
        monkeypatch.setattr(constants, "ENDPOINT", nobody)
        assert push(folder, "ann/new", fails=True).startswith(f"{nobody} can't be reached (ConnectError)")
    assert hub.log == []


def rewrite(path, change):
    content = json.loads(path.read_text(encoding="utf-8"))
    change(content)
    path.write_text(json.dumps(content), encoding="utf-8")


def index(folder, places):
    (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}), encoding="utf-8")


SHARD = "model-00001-of-00001.safetensors"
BROKEN = {
    "no folder": (shutil.rmtree, "no such folder"),
    "no config": (lambda f: (f / "config.json").unlink(), "there is no config.json"),
    "config": (lambda f: (f / "config.json").write_text("{"), "config.json: no configuration of a model"),
    "family": (
        lambda f: rewrite(f / "config.json", lambda c: c.update(model_type="attnzoo_none")),
        "config.json: no configuration of a model",
    ),
    "size": (
        lambda f: rewrite(f / "config.json", lambda c: c.update(hidden_size=-1)),
        "config.json: no configuration of a model",
    ),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "no weights in safetensors, and a pickle goes"),
    "cut weights": (
        lambda f: (f / "model.safetensors").write_bytes((f / "model.safetensors").read_bytes()[:-7]),
        "model.safetensors: not a whole file of safetensors",
    ),
    "two models": (
        lambda f: (f / "model.safetensors.index.json").write_text("{}"),
        "has both model.safetensors and model.safetensors.index.json",
    ),
    "outside": (
        lambda f: index(f, {"a": "../a.safetensors"}),
        "a is in '../a.safetensors'; it must be a .safetensors",
    ),
    "no shard": (lambda f: index(f, {"a": "b.safetensors"}), "names b.safetensors, and there is no such file"),
    "no tensor": (lambda f: index(f, {"a": SHARD}), f"{SHARD}: has no a, which"),
    "no card": (lambda f: (f / "README.md").unlink(), "no model card, for there is no README.md"),
    "card": (lambda f: (f / "README.md").write_text("---\ntags: []\n---\n"), "README.md: license is None"),
    "pickle": (
        lambda f: (f / "README.md").write_text((f / "README.md").read_text() + "[all](optimizer.pt)\n"),
        "README.md: links to optimizer.pt; of files the Hub gets those that can be looked at",
    ),
    "picture": (lambda f: (f / "curve.png").unlink(), "README.md: links to curve.png, and there is no such file"),
    "code elsewhere": (
        lambda f: rewrite(f / "config.json", lambda c: c["auto_map"].update(AutoModel="bob/code--modeling.X")),
        "config.json: names 'bob/code--modeling.X'; code must lie in the same folder",
    ),
    "no code": (
        lambda f: rewrite(f / "config.json", lambda c: [c.pop("auto_map"), c.pop("custom_pipelines")]),
        "there is no code beside the weights",
    ),
    "no module": (
        lambda f: (f / "modeling_rnnsearch.py").unlink(),
        "modeling_rnnsearch.py is named as code of the model, and there is no such file",
    ),
    "no import": (lambda f: (f / "recurrence.py").unlink(), "needs recurrence.py, and there is no such file"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_not_fit_stays(hub, push, folder, case):
    harm, expected = BROKEN[case]
    harm(folder)
    line = push(folder, "ann/unfit", fails=True)
    assert expected in line
    assert str(folder) in line
    # It was seen here, before the Hub was asked anything
    assert hub.log == []


def test_a_run_is_no_model(push, tiny_run):
    run = tiny_run.model.parent
    assert push(run, "ann/unfit", fails=True).endswith(f"there is no config.json; the model is in {tiny_run.model}")


def test_the_commands_of_the_readme(hub, push, folder):
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    commands = [shlex.split(line) for line in readme.splitlines() if line.startswith("attnzoo push ")]
    assert len(commands) == 3
    for _, _, model, *arguments in commands:
        assert model == "runs/quickstart/model"
        push(folder, *arguments)
    assert hub.repositories["ann/dates"].private
