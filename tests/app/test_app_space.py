"""The command `attnzoo app`, and the Space that it writes; what is served is left to the tests in a browser."""

import ast
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from typer.testing import CliRunner

import hf_attnzoo
from hf_attnzoo.app import import_gradio, load_demo
from hf_attnzoo.app.space import export_space
from hf_attnzoo.cli import app

# In a process of its own: a Space runs with its own copy of the package, asks nobody, and answers.
RUN = """
import runpy, socket, sys
space = sys.argv[1]
sys.path.insert(0, space)

called = []
connect = socket.socket.connect
def watched(self, address):
    if self.family != socket.AF_UNIX and address[0] not in ("127.0.0.1", "::1", "localhost"):
        called.append(address)
        raise OSError("no network")
    return connect(self, address)
socket.socket.connect = watched

import gradio
launch = gradio.Blocks.launch
def launched(self, **options):
    app, url, _ = launch(self, **options, prevent_thread_lock=True, quiet=True)
    import hf_attnzoo
    assert hf_attnzoo.__file__.startswith(space), hf_attnzoo.__file__
    from gradio_client import Client
    answers = Client(url, verbose=False).predict("c a b", 2, 2, None, False, 1.0, 0, api_name="/ask")
    print("ANSWER", answers)
    print("CALLED", called)
    # Which the Space doesn't ask for
    print("LOADED", sorted({"datasets", "evaluate", "sacrebleu", "babel"} & set(sys.modules)))
    self.close()
    return app, url, None
gradio.Blocks.launch = launched
runpy.run_path(space + "/app.py", run_name="__main__")
"""


@pytest.fixture(scope="module")
def demo(tiny_run):
    return load_demo(tiny_run.model)


@pytest.fixture
def with_gradio(monkeypatch):
    """A version of gradio, installed or not."""
    monkeypatch.setattr("hf_attnzoo.app.space.import_gradio", lambda: SimpleNamespace(__version__="6.31.0"))


def front_matter(space):
    text = (space / "README.md").read_text(encoding="utf-8")
    return yaml.safe_load(re.match(r"---\n(.*?)\n---\n", text, re.DOTALL)[1])


def test_a_space_holds_all_it_takes(demo, tiny_run, tmp_path, with_gradio):
    left = tmp_path / "model"
    left.mkdir()
    for file in tiny_run.model.iterdir():
        (left / file.name).write_bytes(file.read_bytes())
    for name in ("training_args.bin", "optimizer.pt", "trainer_state.json", ".secret.json"):
        (left / name).write_text("{}", encoding="utf-8")
    (left / "checkpoint-3").mkdir()
    space = export_space(demo, left, tmp_path / "new" / "space")
    facts = front_matter(space)
    assert facts["sdk"] == "gradio"
    assert facts["sdk_version"] == "6.31.0"
    assert facts["title"] == "tiny-reversal"
    assert (space / facts["app_file"]).is_file()
    assert facts["license"] == "apache-2.0"
    assert len(facts["short_description"]) <= 60
    assert "models" not in facts
    names = {path.name for path in (space / "model").iterdir()}
    assert names == {file.name for file in tiny_run.model.iterdir() if file.suffix != ".gif"}
    weights = "model.safetensors"
    assert (space / "model" / weights).read_bytes() == (tiny_run.model / weights).read_bytes()
    assert (space / "hf_attnzoo" / "models" / "attention.py").is_file()
    assert (space / "hf_attnzoo" / "attention_maps" / "pages" / "text.html").is_file()
    assert not list(space.rglob("__pycache__"))
    lines = (space / "requirements.txt").read_text(encoding="utf-8").splitlines()
    assert all(re.fullmatch(r"\w+==[\d.]+\w*", line) for line in lines)
    assert {"gradio", "torch", "transformers"} <= {line.partition("==")[0] for line in lines}
    compile((space / "app.py").read_text(encoding="utf-8"), "app.py", "exec")
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["space"]


def test_a_model_on_the_hub_goes_by_name(demo, tmp_path, with_gradio):
    demo.name = 'ann/"dates" 📅'
    space = export_space(demo, "ann/dates", tmp_path / "space")
    demo.name = "tiny-reversal"
    assert front_matter(space)["models"] == ["ann/dates"]
    assert not (space / "model").exists()
    code = (space / "app.py").read_text(encoding="utf-8")
    called = ast.parse(code).body[-1].value.args[0]
    assert called.func.id == "load_demo"
    assert ast.literal_eval(called.args[0]) == "ann/dates"
    assert ast.literal_eval(called.keywords[0].value) == 'ann/"dates" 📅'
    assert "Path" not in code
    compile(code, "app.py", "exec")


def test_a_folder_is_never_half_written_or_written_over(demo, tiny_run, tmp_path, with_gradio, monkeypatch):
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(ValueError, match="full holds something: name a new folder"):
        export_space(demo, tiny_run.model, full)
    with pytest.raises(ValueError, match=r"mine\.txt is a file, or a link: name a new folder"):
        export_space(demo, tiny_run.model, full / "mine.txt")
    with pytest.raises(ValueError, match="lies in the folder of the model"):
        export_space(demo, tiny_run.model, tiny_run.model / "space")
    with monkeypatch.context() as elsewhere:
        elsewhere.chdir(tmp_path)
        for nameless in (".", "..", "/"):
            with pytest.raises(ValueError, match=f"target={nameless} has no name of its own"):
                export_space(demo, tiny_run.model, nameless)
    with pytest.raises(FileNotFoundError, match="no weights in safetensors"):
        export_space(demo, full, tmp_path / "space")
    (tmp_path / "empty").mkdir()

    def fail(*files):
        raise OSError("no space left on device")

    with monkeypatch.context() as broken:
        broken.setattr("shutil.copyfile", fail)
        with pytest.raises(OSError, match="no space left"):
            export_space(demo, tiny_run.model, tmp_path / "empty")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "full"]
    assert list((tmp_path / "empty").iterdir()) == []
    assert (export_space(demo, tiny_run.model, tmp_path / "empty") / "app.py").is_file()


def test_commands_to_copy_are_quoted(tiny_run, tmp_path, with_gradio, monkeypatch):
    monkeypatch.setattr("hf_attnzoo.app.page.import_gradio", lambda: None)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["app", str(tiny_run.model), "--export", "it's my space/"])
    assert done.exit_code == 0, done.output
    first, second = done.stdout.splitlines()
    tried = first.removeprefix("it's my space: a Space. Try it: ").removesuffix("; bring it to the Hub:")
    assert shlex.split(tried) == ["python", "it's my space/app.py"]
    upload = second.partition("; ")[2]
    assert shlex.split(upload) == ["hf", "upload", "USER/NAME", "it's my space", "--type", "space"]
    assert Path("it's my space", "app.py").is_file()


def test_gradio_is_an_extra(monkeypatch, tiny_run, tmp_path):
    monkeypatch.setitem(sys.modules, "gradio", None)
    with pytest.raises(ImportError, match=re.escape("pip install 'hf-attnzoo[app]'")):
        import_gradio()
    for options in ([], ["--export", str(tmp_path / "space")]):
        result = CliRunner().invoke(app, ["app", str(tiny_run.model), *options])
        assert result.exit_code == 2
        assert result.stderr == "attnzoo: the page needs gradio: pip install 'hf-attnzoo[app]'\n"
    assert list(tmp_path.iterdir()) == []


def test_the_command_serves_this_machine_alone(monkeypatch, tiny_run):
    served = []
    monkeypatch.setattr("hf_attnzoo.app.page.import_gradio", lambda: None)
    monkeypatch.setattr("hf_attnzoo.app.page.serve", lambda demo, *where: served.append((demo.name, *where)))
    for options in ([], ["--host", "0.0.0.0", "--port", "8000", "--share"]):  # noqa: S104
        assert CliRunner().invoke(app, ["app", str(tiny_run.model), *options]).exit_code == 0
    assert served == [
        ("tiny-reversal", "127.0.0.1", None, False),
        ("tiny-reversal", "0.0.0.0", 8000, True),  # noqa: S104
    ]
    refused = CliRunner().invoke(app, ["app", str(tiny_run.model), "--export", "x", "--port", "8000"])
    assert refused.exit_code == 2
    missing = CliRunner().invoke(app, ["app", "no/such/folder"])
    assert missing.stderr == "attnzoo: no/such/folder: no such folder\n"


def test_a_page_takes_no_more_than_a_space_asks_for():
    code = """
import sys
sys.modules |= dict.fromkeys(("gradio", "datasets", "evaluate", "sacrebleu", "babel"))
from hf_attnzoo.app import export_space, load_demo, serve
"""
    root = str(Path(hf_attnzoo.__file__).parents[1])
    ran = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


def test_an_exported_space_runs_by_itself(demo, tiny_run, tmp_path):
    pytest.importorskip("gradio", reason="the page needs gradio")
    space = tmp_path / "space"
    done = CliRunner().invoke(app, ["app", str(tiny_run.model), "--export", str(space)])
    assert done.exit_code == 0, done.output
    assert f"python {space / 'app.py'}" in done.stdout
    # Isolated: neither this folder nor PYTHONPATH lends it anything
    ran = subprocess.run(
        [sys.executable, "-I", "-c", RUN, str(space)],
        cwd=tmp_path,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "GRADIO_TEMP_DIR": str(tmp_path / "temporary")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    best = demo.ask({"text": "c a b"}, {"n_best": 2, "beams": 2}).rows[0][0]
    assert f'<span class="az-out">{best}</span>' in ran.stdout
    assert "CALLED []\nLOADED []\n" in ran.stdout
