"""What the benchmarks of this folder share: least CPU time of a round, tables, the machine, another checkout's models.

A benchmark imports this before torch, which takes its number of threads from the environment when it is loaded.
"""

import argparse
import gc
import importlib
import importlib.util
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

os.environ["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", "1")
os.environ["OMP_WAIT_POLICY"] = "PASSIVE"

import torch
import transformers

Side = TypeVar("Side")
# What is measured of all sides, by their names.
Row = Callable[[dict[str, Any]], dict[str, float]]


def time_row(sides: dict[str, Side], work: Callable[[Side], object], rounds: int) -> dict[str, float]:
    """Least CPU milliseconds per call. The first round warms up and does not count."""
    least = dict.fromkeys(sides, float("inf"))
    for turn in range(rounds + 1):
        for name, side in sides.items():
            gc.collect()
            started = time.process_time()
            work(side)
            if turn > 0:
                least[name] = min(least[name], 1000 * (time.process_time() - started))
    return least


def load_models(folder: Path, *modules: str) -> ModuleType:
    """Another checkout's `hf_attnzoo/models` under another name, with these of its modules."""
    path = folder / "hf_attnzoo" / "models" / "__init__.py"
    spec = importlib.util.spec_from_file_location("before", path, submodule_search_locations=[str(path.parent)])
    package = importlib.util.module_from_spec(spec)
    sys.modules["before"] = package
    for module in modules:
        importlib.import_module(f"before.{module}")
    return package


def options_of(description: str, sides: list[str]) -> argparse.Namespace:
    """The command line that every benchmark has, and what all of them set before they begin."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sides", nargs="+", default=sides)
    parser.add_argument("--rows", nargs="+", default=[""], help="rows whose name contains one of these")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--before", type=Path, help="root of another checkout, as one more side")
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--json", type=Path, help="also write the figures, sizes and machine here")
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    # Probabilities too small for a normal number slow a processor down, by chance and on any side.
    torch.set_flush_denormal(True)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return parser.parse_args()


def measure(rows: dict[str, Row], sides: dict[str, Any], wanted: list[str]) -> dict[str, dict[str, float]]:
    """Figures of the rows whose name contains something that is wanted, told as they come."""
    figures = {}
    for row, figure in rows.items():
        if any(part in row for part in wanted):
            figures[row] = figure(sides)
            print(row, {name: round(value, 1) for name, value in figures[row].items()}, flush=True)
    return figures


def report(figures: dict[str, dict[str, float]], sizes: Any, options: argparse.Namespace) -> None:
    """Print the table, and write it where the options say."""
    names = list(next(iter(figures.values()), {}))
    others = [name for name in names if name != "ours" and "ours" in names]
    header = ["", *names, *(f"{name} / ours" for name in others)]
    print("| " + " | ".join(header) + " |")
    print("|---" * len(header) + "|")
    for row, values in figures.items():
        cells = [f"{values[name]:.0f}" for name in names]
        ratios = [f"{values[name] / values['ours']:.2f}" for name in others]
        print("| " + " | ".join([row, *cells, *ratios]) + " |")
    if options.json is not None:
        content = {"machine": describe_machine(), "sizes": vars(sizes), "rounds": options.rounds, "figures": figures}
        options.json.write_text(json.dumps(content, indent=2) + "\n")


def describe_machine() -> dict[str, object]:
    """Processor, threads and versions."""
    model = platform.processor()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.split(": ")[1] for line in lines if line.startswith("model name")), model)
    return {
        "processor": model,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
