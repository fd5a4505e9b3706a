"""Makes a model that comes with the package: its weights rounded to 16 bits, its card about those.

    python training/starters.py dates-rnnsearch
    python training/starters.py dates-rnnsearch --run runs/quickstart

trains it first, or takes a run that has ended, and writes `hf_attnzoo/starters/dates-rnnsearch`. What is trained is in
`hf_attnzoo.hub.STARTERS`. The rounded weights are scored on the test split, and drawn, as a run would do it.
"""

import dataclasses
import json
import re
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import torch
import transformers
import typer
from huggingface_hub import ModelCard
from rich.console import Console
from safetensors.torch import load_file, save_file

from hf_attnzoo.cli.base import plain_errors
from hf_attnzoo.evaluation import plot_in_context
from hf_attnzoo.folders import check_new_folder
from hf_attnzoo.hub import STARTERS, Starter, check_card, read_checkpoint
from hf_attnzoo.hub.card import (
    CODE_NOTE,
    NO_CODE_NOTE,
    evaluation_results,
    results_table,
    samples_table,
    shots_section,
)
from hf_attnzoo.recipes import Recipe, find_recipe, load_recipe, run_recipe
from hf_attnzoo.recipes.building import build_trainer
from hf_attnzoo.recipes.reading import read_yaml
from hf_attnzoo.recipes.run import data_name, find_family, load_splits, reported_split
from hf_attnzoo.recipes.schema import build_recipe
from hf_attnzoo.recipes.tasks import make_task

# Most bytes of a folder
LIMIT = 2_000_000
CARD, WEIGHTS = "README.md", "model.safetensors"

YAML = re.compile(r"^```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)

# What a run may do otherwise than the recipe without another outcome
FREE = {"name", "output", "training.threads", "evaluation.samples", "evaluation.maps"}


def halve(weights: Path, target: Path) -> None:
    """Write weights with every number that has a fraction in 16 bits.

    Raises:
        ValueError: a number that is too large for them.
    """
    halved = {}
    for name, tensor in load_file(weights).items():
        halved[name] = tensor.half() if tensor.is_floating_point() else tensor
        if not halved[name].isfinite().all():
            raise ValueError(f"{weights}: {name} has numbers beyond 65504, the most that 16 bits hold")
    save_file(halved, target, metadata={"format": "pt"})


def recipe_of(card: Path) -> Recipe:
    """The recipe that a card ends with.

    Raises:
        FileNotFoundError: there is no card, so no run has ended there.
        ValueError: a card without a recipe.
    """
    found = YAML.search(card.read_text(encoding="utf-8"))
    if found is None:
        raise ValueError(f"{card}: no recipe in it")
    return build_recipe(read_yaml(found[1], str(card)))


def check_recipe(recipe: Recipe, starter: Starter) -> Recipe:
    """See that a run did what the table says.

    Returns:
        The recipe of the table.

    Raises:
        ValueError: it did something else, which is named.
    """
    told = load_recipe(find_recipe(starter.recipe), starter.settings)
    was, should = (flat(dataclasses.asdict(one)) for one in (recipe, told))
    for key in sorted((was.keys() | should.keys()) - FREE):
        if was.get(key) != should.get(key):
            raise ValueError(f"{key} was {was.get(key)} in the run, and is {should.get(key)} for {starter.name}")
    return told


def flat(content: dict[str, Any], where: str = "") -> dict[str, Any]:
    """Nested mappings as one, with dots in its keys."""
    found = {}
    for key, value in content.items():
        found |= flat(value, f"{where}{key}.") if isinstance(value, dict) else {f"{where}{key}": value}
    return found


def make_starter(run: Path, starter: Starter, target: Path, console: Console) -> None:
    """Write the folder of a starter; it appears whole or not at all.

    Args:
        run: folder that a run has saved its model in.
        starter: row of the table.
        target: folder to write. What lies there is thrown away if it is the package's own.
        console: where to report to.

    Raises:
        ValueError: `target` is another folder and holds something; or the model is none that can be a starter.
    """
    if target != starter.folder:
        check_new_folder(target, "output", run)
    recipe = check_recipe(recipe_of(run / CARD), starter)
    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".starter", dir=target.parent) as scratch:
        written = Path(scratch) / starter.name
        write_starter(run, recipe, starter, written, console)
        shutil.rmtree(target, ignore_errors=True)
        written.rename(target)


def write_starter(run: Path, recipe: Recipe, starter: Starter, target: Path, console: Console) -> None:
    """Write a starter's files into a folder that isn't there."""
    target.mkdir()
    for name, content in read_checkpoint(run, with_code=False).items():
        if name == WEIGHTS:
            halve(run / name, target / name)
        elif isinstance(content, bytes):
            (target / name).write_bytes(content)
        else:
            shutil.copyfile(content, target / name)
    config = json.loads((target / "config.json").read_text(encoding="utf-8"))
    if config["dtype"] != "float32":
        raise ValueError(f"{run}: a model in {config['dtype']}; it must be one in float32")
    rewrite(recipe, starter, target, console)
    for path in target.iterdir():
        # Weights are written for their owner alone, and a wheel would keep that
        path.chmod(0o644)
    size = sum(path.stat().st_size for path in target.iterdir())
    if size > LIMIT:
        raise ValueError(f"{starter.name}: {size:,} bytes, and a starter has {LIMIT:,} at most")
    console.print(f"{starter.name}: {size:,} bytes")


def rewrite(recipe: Recipe, starter: Starter, target: Path, console: Console) -> None:
    """Score the weights as they lie in a folder, and have its card, scores and picture tell of them."""
    family = find_family(recipe)
    task = make_task(recipe.task or family.task, recipe)
    model = getattr(transformers, task.head).from_pretrained(target)
    processor = task.processor_class.from_pretrained(target)
    task.adopt(processor, model.config.to_dict())
    told = recipe
    with TemporaryDirectory() as scratch:
        # Nothing is trained here, but a trainer wants rows
        data = dataclasses.replace(recipe.data, train={**recipe.data.train, "size": 100})
        recipe = dataclasses.replace(recipe, data=data, output=scratch)
        rows, datasets = load_splits(recipe, task), {}
        for split, some in rows.items():
            if split == "train":
                datasets[split], rows[split] = task.prepare(some, processor)
                continue
            evaluated = task.prepare_evaluation(some, processor, model, split)
            datasets[split], rows[split] = task.for_evaluation(evaluated.prepared, processor), evaluated.rows
        trainer = build_trainer(recipe, task, model, processor, datasets, rows["validation"], console)
        outcome = task.measure(trainer, processor, datasets["test"], rows["test"])
    model.eval()

    shown = rows["test"].select(range(min(recipe.evaluation.samples, len(outcome.outputs))))
    samples = [task.sample(row, number, outcome.outputs[number]) for number, row in enumerate(shown)]
    card = ModelCard.load(target / CARD)
    card.data.model_name = starter.name
    card.data.eval_results = evaluation_results(task.card, data_name(recipe), outcome.metrics, reported_split(recipe))
    text = YAML.sub(lambda _: f"```yaml\n{told.to_yaml(public=True)}```", card.text)
    parts = text.replace(CODE_NOTE, NO_CODE_NOTE).strip().split("\n\n")
    parts[0] = f"# {starter.name}"
    parts[parts.index("## Results") + 1] = results_table(outcome.metrics, outcome.intervals, reported_split(recipe))
    parts[parts.index("## Samples") + 1] = samples_table(task.card, samples)
    if outcome.shots:
        section = shots_section(outcome.shots)
        first = parts.index(section[0])
        parts[first : first + len(section)] = section
        plot_in_context({starter.name: outcome.shots}, target / "shots.png")
    parts.insert(parts.index("## Results"), note(starter))
    card.text = "\n\n".join(parts) + "\n"
    card.save(target / CARD)
    check_card(target / CARD)
    scores = json.loads((target / "metrics.json").read_text(encoding="utf-8"))
    scores |= {"metrics": outcome.metrics, "intervals": outcome.intervals}
    if outcome.shots:
        scores["shots"] = [dataclasses.asdict(each) for each in outcome.shots]
    (target / "metrics.json").write_text(json.dumps(scores, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    if (target / "attention.png").is_file():
        task.draw(model, processor, shown.select(range(recipe.evaluation.maps)), target / "attention.png")
    console.print(outcome.metrics)


def note(starter: Starter) -> str:
    """What the card of a starter has to say beyond that of its run."""
    return (
        f"hf-attnzoo brings this model along: its commands take the name `{starter.name}`, and "
        f'`hf_attnzoo.pretrained("{starter.name}")` is its folder. '
        "After training the weights were rounded to 16 bits; they are loaded in 32. Results, samples and maps are of "
        "the rounded weights, loss and validation scores of the training."
    )


def main(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(STARTERS)}.")],
    run: Annotated[Path | None, typer.Option(help="Output of a run that has ended. Default: train one.")] = None,
    output: Annotated[Path | None, typer.Option(help="New folder to write. Default: the package's own.")] = None,
) -> None:
    """Train a model that comes with the package, if need be, and write its folder.

    The weights are rounded to 16 bits, and its card and scores are of these.
    """
    if name not in STARTERS:
        raise typer.BadParameter(f"{name!r} is none of {', '.join(STARTERS)}")
    starter, console = STARTERS[name], Console()
    with plain_errors("starters.py"):
        if output is not None:
            # Before anything is trained
            check_new_folder(output, "output", None if run is None else run / "model")
        if run is None:
            recipe = load_recipe(find_recipe(starter.recipe), starter.settings)
            run_recipe(recipe, console)
            run = Path(recipe.output)
        torch.manual_seed(0)
        make_starter(run / "model", starter, output or starter.folder, console)


if __name__ == "__main__":
    typer.run(main)
