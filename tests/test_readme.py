"""What the README and the contributing guide say is run, block by block, in the order of the page."""

import multiprocessing
import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#\s]+)\)")

# In this order; what a later page says may use what an earlier one has made.
RUN = ("README.md", "training/studies/README.md")
PAGES = (*RUN, "training/accelerate/README.md", "CONTRIBUTING.md")

# These set up a machine; `.ci/run` is what runs them.
SETUP = ("pip install", "python -m pytest", "ruff ")

# This needs a Hub: `tests/hub/test_pushing.py` runs it against one of its own.
HUB = ("attnzoo push",)

# The page promises minutes. Here it is shown that the command works, on a run cut short.
SHORT = {
    "quickstart": ["max_steps=10", "eval_steps=10"],
    "parallel-text": ["max_steps=4", "eval_steps=4"],
    "shapes": ["max_steps=4", "eval_steps=4"],
    "multi30k-rnnsearch": ["max_steps=2", "eval_steps=2", "average_last=null"],
    "image-folder": ["max_steps=4", "eval_steps=4"],
}
SMALL = {
    "parallel-text": ["tokenizer.vocab_size=300", "model.hidden_size=8", "generation.max_new_tokens=5"],
    "multi30k-rnnsearch": ["tokenizer.vocab_size=300", "model.hidden_size=8", "generation.max_new_tokens=5"],
    "image-folder": ["model.image_size=32", "model.encoder_channels=[4, 8]", "generation.max_new_tokens=5"],
}
SHORT_DATA = ["data.train.size=300", "data.validation.size=10", "data.test.size=10"]


# What nearly every command imports first, which takes longer than the command itself
HEAVY = ["matplotlib.figure", "transformers.trainer", "transformers.pipelines", "datasets", "hf_attnzoo.recipes.run"]


def blocks(page: str) -> list[tuple[str, str]]:
    return BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))


def shortened(arguments: list[str]) -> list[str]:
    """The arguments of a command, with overrides that make a training run short."""
    for recipe, settings in SHORT.items():
        if recipe in arguments:
            arguments = [*arguments, *(f"training.{setting}" for setting in settings)]
            arguments += SMALL.get(recipe, SHORT_DATA)
    if arguments[0] == "python" and "/studies/" in arguments[1]:
        small = [*SHORT_DATA, "training.max_steps=1", "training.eval_steps=1", "model.hidden_size=8"]
        if arguments[1].endswith("path_length.py"):
            small = ["--steps", "1", "--longest", "4", "--asked", "1"]
        arguments = [*arguments, *small, "--output", "."]
        arguments += ["--per-length", "2"] if arguments[1].endswith("bottleneck.py") else []
    return arguments


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A place like a clone of the repository, in which the page's commands may write."""
    folder = tmp_path_factory.mktemp("readme")
    (folder / "training").symlink_to(ROOT / "training")
    lines = [f"wort{index} zwei\tword{index} two\n" for index in range(200)]
    (folder / "pictures").mkdir()
    captions = ["file_name,caption"]
    for index in range(80):
        Image.new("RGB", (8, 8), (3 * index, 0, 0)).save(folder / "pictures" / f"{index}.png")
        captions.append(f"{index}.png,red")
    (folder / "pictures" / "metadata.csv").write_text("\n".join(captions), encoding="utf-8")
    (folder / "pairs.tsv").write_text("".join(lines), encoding="utf-8")
    (folder / "multi30k").mkdir()
    for split, rows in (("train", 100), ("val", 4), ("test_2016_flickr", 8)):
        for language, line in (("de", "ein Mann mit einem Hut {}"), ("en", "a man in a hat {}")):
            # Of six to eight words
            text = "".join(line.format("so " * (row % 3)).strip() + "\n" for row in range(rows))
            (folder / "multi30k" / f"{split}.{language}").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def python() -> multiprocessing.context.ForkServerContext:
    """A Python that has imported what is heavy, and forks for every command: each starts as if it were the first."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(HEAVY)
    return context


def run_script(arguments: list[str], folder: Path, log: Path, stdin: Path) -> None:
    """Be `python SCRIPT ARGUMENT...` in a process of its own."""
    os.chdir(folder)
    # Also what the processes that it starts print
    for stream in (1, 2):
        os.dup2(os.open(log, os.O_WRONLY | os.O_APPEND), stream)
    sys.argv = arguments
    with stdin.open(encoding="utf-8") as sys.stdin:
        runpy.run_path(arguments[0], run_name="__main__")


def run(command: list[str], folder: Path, python: multiprocessing.context.ForkServerContext, stdin: str = "") -> str:
    """Run a command of the page, which must end well; what it printed."""
    scripts = Path(sys.executable).parent
    if command[0] == "torchrun":
        done = subprocess.run(
            [scripts / command[0], *command[1:]], cwd=folder, capture_output=True, text=True, check=False
        )
        code, printed = done.returncode, done.stdout + done.stderr
    else:
        arguments = command[1:] if command[0] == "python" else [str(scripts / command[0]), *command[1:]]
        log, read = folder / "printed.txt", folder / "typed.txt"
        log.write_text("", encoding="utf-8")
        read.write_text(stdin, encoding="utf-8")
        process = python.Process(target=run_script, args=(arguments, folder, log, read))
        process.start()
        process.join()
        code, printed = process.exitcode, log.read_text(encoding="utf-8")
    assert code == 0, f"{shlex.join(command)}\n{printed}"
    return printed


def test_readme_runs_from_top_to_bottom(folder, python):
    ran = []
    for language, text in (block for page in RUN for block in blocks(page)):
        if language == "python":
            (folder / "block.py").write_text(text, encoding="utf-8")
            run(["python", "block.py"], folder, python)
            ran.append("python")
            continue
        assert language == "bash", f"a block of {language} is not run by any test"
        for line in text.strip().splitlines():
            for part in line.split(" && "):
                if part.startswith(SETUP + HUB):
                    continue
                stdin = ""
                if part.startswith("echo "):
                    said, part = part.split(" | ")
                    stdin = shlex.split(said)[1] + "\n"
                output = run(shortened(shlex.split(part)), folder, python, stdin)
                ran.append(part.split()[0])
                if "families" in part:
                    assert "rnnsearch" in output
    assert ran.count("python") >= 5
    assert ran.count("attnzoo") >= 7
    assert (folder / "runs/quickstart/model/attention.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "map.png").is_file()
    assert (folder / "map.svg").is_file()
    assert (folder / "where.png").is_file()
    assert (folder / "bottleneck.png").is_file()
    assert (folder / "luong_variants.png").is_file()
    assert (folder / "path_length.png").is_file()
    assert (folder / "by_length.png").is_file()


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    links = [link for link in LINK.findall((ROOT / page).read_text(encoding="utf-8")) if "://" not in link]
    assert [link for link in links if not ((ROOT / page).parent / link).exists()] == []


def test_ci_runs_the_commands_of_the_readme():
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "pip install --quiet -c constraints.txt -e" in script
    assert "python -m pytest" in script
