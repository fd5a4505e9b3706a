"""A small GPT on the characters of tiny Shakespeare, trained by nanoGPT and by the recipe `shakespeare`, side by side.

    git clone https://github.com/karpathy/nanoGPT
    python tests/benchmarks/bench_shakespeare.py nanoGPT input.txt

Both commands run as a person would run them, one after the other on as many threads, with all that they do besides:
nanoGPT's `train.py` with the options that its README gives for a processor, and ours with the recipe as it is. Model,
steps and predicted characters of a step are the same. nanoGPT's checkpoint is converted, which reads tensors and plain
values alone, and both models are measured in one way: the mean loss over the last tenth of the text, cut into windows
of 64 characters that overlap by one, so that everything but its very first character is predicted once, from the 1 to
63 characters before it in its window. What stands first in a window is not predicted, since nanoGPT can't.
"""

import argparse
import gzip
import json
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

import hf_attnzoo  # noqa: F401  registers the families
from hf_attnzoo.conversion import convert
from hf_attnzoo.hub.card import hardware

ROOT = Path(__file__).parents[2]
WINDOW = 64
RUN = Path("runs/shakespeare")

# Of nanoGPT's README, "I only have a macbook"; and the checkpoint is that of the last step, not that of the luckiest
# estimate.
OPTIONS = (
    "config/train_shakespeare_char.py --device=cpu --compile=False --eval_iters=20 --log_interval=1 --block_size=64 "
    "--batch_size=12 --n_layer=4 --n_head=4 --n_embd=128 --dropout=0.0 --always_save_checkpoint=True"
)


def timed(command: list[str], folder: Path, threads: int) -> tuple[str, float, float]:
    """Run a command; returns what it printed, its wall time and the CPU time of all its threads, in seconds."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    wall = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return done.stdout, wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@torch.no_grad()
def mean_loss(model: PreTrainedModel, ids: Tensor, start: list[int], window: int = WINDOW) -> tuple[float, int]:
    """Mean loss in nats over all characters but the first, and how many they are.

    Args:
        model: a causal language model.
        ids: of the text, shape `(N,)`.
        start: ids in front of every window.
        window: characters that are read at a time, the first of which is the last of the window before.
    """
    model.eval()
    front = torch.tensor(start, dtype=torch.long)
    windows = [ids[first : first + window] for first in range(0, len(ids) - 1, window - 1)]
    total = 0.0
    # The last may be shorter than the others, and is read by itself.
    for first in (*range(0, len(windows) - 1, 100), len(windows) - 1):
        rows = torch.stack(windows[first : min(first + 100, max(first + 1, len(windows) - 1))])
        inputs = torch.cat([front.expand(len(rows), -1), rows], dim=1)
        logits = model(input_ids=inputs[:, :-1]).logits[:, len(front) :]
        total += functional.cross_entropy(logits.transpose(1, 2), rows[:, 1:], reduction="sum").item()
    return total / (len(ids) - 1), len(ids) - 1


def nanogpt(checkout: Path, text: str, steps: int, threads: int, folder: Path) -> dict[str, Any]:
    """Train with nanoGPT in a copy of a checkout, and measure."""
    copy = folder / "nanogpt"
    shutil.copytree(checkout, copy, ignore=shutil.ignore_patterns(".git"))
    (copy / "data/shakespeare_char/input.txt").write_text(text, encoding="utf-8", newline="")
    timed([sys.executable, "data/shakespeare_char/prepare.py"], copy, threads)
    length = [f"--max_iters={steps}", f"--lr_decay_iters={steps}", f"--eval_interval={min(250, steps)}"]
    out = ["--out_dir=out"]
    printed, wall, cpu = timed([sys.executable, "train.py", *OPTIONS.split(), *length, *out], copy, threads)
    estimate = re.findall(r"^step \d+: .*val loss ([\d.]+)", printed, re.MULTILINE)[-1]
    model = AutoModelForCausalLM.from_pretrained(convert(copy / "out" / "ckpt.pt", folder / "converted"))
    # Its ids, by the rule of its prepare.py, rather than from the pickle that this has written.
    letters = {letter: index for index, letter in enumerate(sorted(set(text)))}
    loss, count = mean_loss(model, torch.tensor([letters[letter] for letter in last_tenth(text)]), [])
    return row(model, loss, count, wall, cpu) | {"its own estimate": float(estimate)}


def ours(recipe: str, overrides: list[str], text: str, threads: int, folder: Path) -> dict[str, Any]:
    """Train with a recipe in a folder, and measure."""
    (folder / "input.txt").write_text(text, encoding="utf-8", newline="")
    # Relative, for the run's card.
    settings = ["data.source=input.txt", f"output={RUN}", f"training.threads={threads}"]
    command = [sys.executable, str(ROOT / "training/train.py"), recipe, *settings, *overrides]
    _, wall, cpu = timed(command, folder, threads)
    saved = folder / RUN / "model"
    model, tokenizer = AutoModelForCausalLM.from_pretrained(saved), AutoTokenizer.from_pretrained(saved)
    ids = tokenizer(last_tenth(text), add_special_tokens=False, verbose=False)["input_ids"]
    loss, count = mean_loss(model, torch.tensor(ids), tokenizer("")["input_ids"])
    report = json.loads((saved / "metrics.json").read_text(encoding="utf-8"))
    return row(model, loss, count, wall, cpu) | {"its own estimate": round(report["metrics"]["cross_entropy"], 4)}


def last_tenth(text: str) -> str:
    return text[int(len(text) * 0.9) :]


def row(model: PreTrainedModel, loss: float, count: int, wall: float, cpu: float) -> dict[str, Any]:
    return {
        "loss": round(loss, 4),
        "characters": count,
        "parameters": model.num_parameters(),
        "wall seconds": round(wall, 1),
        "CPU seconds": round(cpu, 1),
    }


def read(path: Path) -> str:
    data = path.read_bytes()
    return (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkout", type=Path, help="folder of a clone of nanoGPT, which is not written to")
    parser.add_argument("text", type=Path, help="tiny Shakespeare, plain or .gz")
    parser.add_argument("overrides", nargs="*", help="of the recipe")
    parser.add_argument("--recipe", default="shakespeare", help="of ours")
    parser.add_argument("--steps", type=int, default=2000, help="of nanoGPT; ours are the recipe's")
    parser.add_argument("--threads", type=int, default=1, help="of both")
    parser.add_argument("--keep", type=Path, help="folder to leave our model and its card in")
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    options = parser.parse_args()

    torch.set_num_threads(options.threads)
    text = read(options.text)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = {
            "nanoGPT": nanogpt(options.checkout, text, options.steps, options.threads, folder),
            f"recipe {options.recipe}": ours(options.recipe, options.overrides, text, options.threads, folder),
        }
        if options.keep is not None:
            shutil.copytree(folder / RUN / "model", options.keep, dirs_exist_ok=True)
    columns = list(rows["nanoGPT"])
    print("| | " + " | ".join(columns) + " |")
    print("| --- |" + " --- |" * len(columns))
    for side, figures in rows.items():
        print(f"| {side} | " + " | ".join(f"{figures[column]:,}" for column in columns) + " |")
    if options.json is not None:
        report = {
            "rows": rows,
            "nanoGPT's options": f"{OPTIONS} --max_iters={options.steps} --lr_decay_iters={options.steps}",
            "overrides": options.overrides,
            "window": WINDOW,
            "threads": options.threads,
            "hardware": hardware(),
            "versions": {package: version(package) for package in ("hf-attnzoo", "transformers", "torch")}
            | {"python": platform.python_version()},
        }
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
