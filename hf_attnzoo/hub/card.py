"""Model cards written by the run they describe: no figure in them is typed by hand."""

import math
import os
import platform
import re
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar

import numpy as np
from huggingface_hub import EvalResult, ModelCard, ModelCardData

from ..evaluation import ShotScore
from ..evaluation.names import SCORE_NAMES
from ..wording import counted, counted_unit
from .facts import CardTexts, Ending, EnergyEstimate, RunFacts

Row = TypeVar("Row")

_VERSIONS = ("hf-attnzoo", "transformers", "torch", "tokenizers", "datasets", "accelerate", "sacrebleu", "babel")

# Parts of a model that a card counts up.
_MOST_NAMED = 8

# What a card calls the folder that it lies in; where that goes to the Hub, it has a name there.
HERE = "path/to/this/folder"

CODE_NOTE = f"""The code lies beside the weights. Where hf-attnzoo is not installed, and once you trust that code,
`pipeline(model="{HERE}", trust_remote_code=True)` is the same."""

NO_CODE_NOTE = "It takes hf-attnzoo to load this model: its code does not lie beside the weights."


def hardware(processes: int = 1) -> str:
    """Name of the accelerator, or of the processor with its number of cores.

    Args:
        processes: that use a device each; a single one uses all that it sees.
    """
    import torch

    if torch.cuda.is_available():
        devices = processes if processes > 1 else torch.cuda.device_count()
        return f"{devices} x {torch.cuda.get_device_name()}"
    name = platform.processor() or platform.machine()
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            name = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), name)
    cores, threads = counted(os.cpu_count() or 1, "core"), counted(torch.get_num_threads(), "thread")
    return f"{name}, {cores}, {threads}"


def model_card(facts: RunFacts) -> ModelCard:
    """The card of a trained model, with metadata that the Hub understands.

    Args:
        facts: what the run knows.

    Returns:
        The card; `card.save(path)` writes it.
    """
    data = ModelCardData(
        model_name=facts.name,
        base_model=facts.base_model,
        language=list(facts.languages) or None,
        license=facts.license,
        library_name="transformers",
        pipeline_tag=facts.kind.pipeline_tag,
        tags=["hf-attnzoo", *(["attention"] if facts.attends else []), *facts.kind.tags],
        datasets=list(facts.hub_datasets) or None,
        eval_results=evaluation_results(
            facts.kind, facts.data_name, facts.metrics, facts.split, hub_datasets=facts.hub_datasets
        )
        or None,
        co2_eq_emissions=_emissions(facts),
    )
    sections = [
        f"# {facts.name}",
        f"{facts.summary[0].upper()}{facts.summary[1:]}, after {facts.paper}. Trained with "
        "hf-attnzoo; this card was written by the training run.",
        _use(facts),
        "## Results",
        results_table(facts.metrics, facts.intervals, facts.split),
        *([" ".join(facts.cuts)] if facts.cuts else []),
        *(["![Attention maps](attention.png)"] if facts.has_map else []),
        *shots_section(facts.shots),
        "## Samples",
        samples_table(facts.kind, facts.samples),
        "## Data",
        _data(facts),
        "## Training",
        f"{counted(facts.steps, 'step')} in {facts.seconds / 60:.1f} minutes, evaluations included, on "
        f"{_machine(facts)}. {counted(facts.parameters, 'parameter')}; {_vocabularies(facts.vocabulary)}."
        + _ending(facts)
        + (_start(facts) if facts.pretrained else "")
        + (_lora(*facts.lora) if facts.lora else ""),
        *([energy_text(facts.energy)] if facts.energy else []),
        *(["![Loss and score by step](curve.png)"] if facts.evaluations else []),
        _table(("step", "training loss"), [(f"{step:,}", f"{loss:.4f}") for step, loss in _thin(facts.loss_curve)]),
        *_evaluations(facts),
        "All settings, those of the model, the optimiser and the evaluation, are those of the recipe:",
        f"```yaml\n{facts.recipe.strip()}\n```",
        "Versions: "
        + ", ".join(f"{name} {version(name)}" for name in _VERSIONS)
        + f", Python {platform.python_version()}.",
        "## Limits",
        "A small model of one task, as good as its training data: input of another kind than that of the samples "
        "above gives output of no value. Where a wrong output would matter, check it.",
    ]
    return ModelCard(f"---\n{data.to_yaml()}\n---\n\n" + "\n\n".join(sections) + "\n")


def _use(facts: RunFacts) -> str:
    kind = facts.kind
    return f"""## Use

```python
import hf_attnzoo  # makes the family known to transformers
from transformers import pipeline

{kind.verb} = pipeline("{kind.pipeline}", model="{HERE}")
{kind.verb}({facts.example})
```

{CODE_NOTE}"""


def evaluation_results(
    kind: CardTexts,
    data_name: str,
    metrics: Mapping[str, float | str],
    split: str = "test",
    hub_datasets: Sequence[str] = (),
) -> list[EvalResult]:
    """Scores on the test split as the Hub reads them; see `RunFacts` for the arguments."""
    dataset_type = data_name if data_name in hub_datasets else _slug(data_name)
    return [
        EvalResult(
            task_type=kind.pipeline_tag,
            task_name=kind.task_name,
            dataset_type=dataset_type,
            dataset_name=data_name,
            dataset_split=split,
            metric_type=name,
            metric_name=metric_name(name),
            metric_value=round(value, 4),
            metric_args={"signature": metrics[f"{name}_signature"]},
        )
        for name, value in _scores(metrics).items()
        # The Hub has no way to say that a score is no number
        if math.isfinite(value)
    ]


def results_table(
    metrics: Mapping[str, float | str], intervals: Mapping[str, tuple[float, float]], split: str = "test"
) -> str:
    """The same as people read them, with intervals."""
    rows = []
    for name, value in _scores(metrics).items():
        interval = intervals.get(name)
        between = f"{interval[0]:.4f} to {interval[1]:.4f}" if interval else "n/a"
        rows.append((metric_name(name), f"{value:.4f}", between, f"`{metrics[f'{name}_signature']}`"))
    return _table((f"metric on the {split} split", "value", "95 % interval", "settings"), rows)


def samples_table(kind: CardTexts, samples: Sequence[tuple[str, ...]]) -> str:
    """What a model wrote, beside what it should have; see `RunFacts` for the arguments."""
    return _table(kind.sample_columns, [[_verbatim(text) for text in row] for row in samples])


def shots_section(scores: Sequence[ShotScore]) -> list[str]:
    """Right answers by the number of examples, with their picture; nothing, if there are none."""
    if not scores:
        return []
    rows = [
        (
            str(each.shots),
            f"{each.right:,} of {each.total:,}",
            f"{each.accuracy:.4f}",
            "{:.4f} to {:.4f}".format(*each.interval),
        )
        for each in scores
    ]
    return [
        "Right answers to tasks and words that are not in training, by the number of examples in the prompt:",
        "![Right answers by the number of examples](shots.png)",
        _table(("examples", "right", "share", "95 % interval"), rows),
    ]


def _scores(metrics: Mapping[str, float | str]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if not name.endswith("_signature")}


def _evaluations(facts: RunFacts) -> list[str]:
    """The validation split during training: all evaluations if they are few, the chosen one in any case."""
    if not facts.evaluations:
        return []
    names = [name for name in facts.evaluations[0] if name != "step"]
    # In the order in which a loss, and the score that counts, are looked for
    names.sort(key=lambda name: (name != "loss", name != facts.best_metric))
    chosen = None if facts.ending is None else facts.ending.step
    shown = [*(each["step"] for each in _thin(facts.evaluations)), chosen]
    rows = []
    for each in facts.evaluations:
        if each["step"] in shown:
            cells = (f"{each['step']:,.0f}", *(f"{each[name]:.4f}" if name in each else "n/a" for name in names))
            rows.append([f"**{cell}**" for cell in cells] if each["step"] == chosen else cells)
    text = "On the validation split:"
    if chosen is not None:
        text += f" {_score_words(facts.best_metric)} chose the checkpoint in bold, of equal ones the loss."
    headings = ("step", *(metric_name(name) for name in names))
    return [text, _table(headings, rows)]


def metric_name(name: str) -> str:
    """What a score is called in cards."""
    return SCORE_NAMES.get(name, name)


def _score_words(name: str) -> str:
    """The same in a sentence, without the unit."""
    return metric_name(name).partition(",")[0]


def model_words(ending: Ending, metric: str) -> str:
    """What a run and its card say of the weights that a model has.

    Args:
        ending: of its training.
        metric: what the score is called that chose them.
    """
    average = "" if ending.ema_decay is None else f"moving average (decay {ending.ema_decay:g}) of the "
    if ending.averaged:
        *others, last = (f"{step:,}" for step in ending.averaged)
        steps = f"steps {', '.join(others)} and {last}" if others else f"step {last}"
        return f"the mean of the {average}weights of {steps}"
    if ending.step is None:
        return f"the {average}weights of the last step"
    return f"the {average}weights of step {ending.step:,}, chosen by {metric} on the validation split"


def _ending(facts: RunFacts) -> str:
    ending = facts.ending
    if ending is None:
        return ""
    score, text = _score_words(facts.best_metric), ""
    if ending.patience is not None:
        text = (
            f" Training stopped early, at step {facts.steps:,} of {ending.planned:,}: no better {score} for "
            f"{counted(ending.patience, 'evaluation')}."
        )
    return f"{text} The model has {model_words(ending, score)}."


def _data(facts: RunFacts) -> str:
    *others, (last, count) = facts.rows.items()
    rows = "".join(f"{count:,} {split}, " for split, count in others)
    unit = counted_unit(count, facts.kind.unit).partition(" ")[2]
    license = f" Licence of the data: {facts.data_license}." if facts.data_license else ""
    shared = "".join(f" {sentence}" for sentence in facts.shared)
    digests = ", ".join(f"{split} `{digest}`" for split, digest in facts.digests.items())
    digests = f"\n\nDigests of the rows as they were read: {digests}." if digests else ""
    return f"`{facts.data_name}`: {rows}{count:,} {last} {unit}.{license}{shared}{digests}"


def _slug(data_name: str) -> str:
    """Data that is not on the Hub in the way of the Hub's names: `data/Pairs.tsv.gz` is `pairs`."""
    names = (re.sub(r"(\.[A-Za-z]\w*)+$", "", Path(part.strip()).name) for part in data_name.split(","))
    return re.sub(r"[^a-z0-9_]+", "-", "-".join(names).lower()).strip("-") or "data"


def _machine(facts: RunFacts) -> str:
    if facts.processes == 1:
        return hardware()
    batches = facts.processes * facts.accumulation
    return (
        f"{hardware(facts.processes)}, in {facts.processes:,} processes; the recipe's batch is that of one of them: "
        f"a step takes {facts.processes:,} x {facts.accumulation:,} = {batches:,} batches"
    )


def _start(facts: RunFacts) -> str:
    """Where the weights came from at first, and those that came from nowhere."""
    where = "" if facts.base_model else ", a checkpoint that is not from the Hub"
    text = f" Training started from the weights of `{facts.pretrained}`{where}."
    text += {
        "keep": "",
        "extend": " Its tokenizer was extended by what it lacked in this data.",
        "train": " Its tokenizer was left aside for one trained anew on this data, and its embeddings with it.",
    }[facts.pretrained_tokenizer]
    modules = sorted({name.rpartition(".")[0] or name for name in facts.new_weights})
    if modules:
        more = f" and {len(modules) - _MOST_NAMED:,} more" if len(modules) > _MOST_NAMED else ""
        text += f" New, and random at first: {', '.join(f'`{name}`' for name in modules[:_MOST_NAMED])}{more}."
    return text


def _lora(rank: int, trained: int) -> str:
    return (
        f" Trained with LoRA (Hu et al. 2022) of rank {rank}: {trained:,} parameters, those of new layers among them, "
        "were trained beside these weights, and have been added to them."
    )


def energy_text(energy: EnergyEstimate) -> str:
    """What a run and its card say of an estimate: never a figure without where it is from."""
    parts = sorted(energy.parts.items(), key=lambda part: -part[1])
    text = (
        f"Energy of training: {_figure(sum(energy.parts.values()))} kWh, estimated by codecarbon {energy.version} for "
        "the whole machine, with whatever else ran on it: "
        + "; ".join(f"{_figure(kwh)} kWh {words}" for words, kwh in parts)
        + ". Disks, power supplies and cooling are not counted."
    )
    if energy.grams is None:
        return text
    return (
        f"{text} At the carbon intensity that codecarbon has for {energy.country} these are {_figure(energy.grams)} g "
        "of CO2 equivalent."
    )


def _emissions(facts: RunFacts) -> dict[str, float | str] | None:
    """The same as the Hub reads it, which takes emissions alone."""
    if facts.energy is None or facts.energy.grams is None:
        return None
    return {
        # In grams
        "emissions": float(_figure(facts.energy.grams)),
        "source": f"codecarbon {facts.energy.version}",
        "training_type": "fine-tuning" if facts.pretrained else "pre-training",
        "geographical_location": facts.energy.country,
        "hardware_used": hardware(facts.processes),
    }


def _figure(value: float) -> str:
    """Three digits of a number, however small."""
    return np.format_float_positional(value, precision=3, fractional=False, trim="-")


def _vocabularies(sizes: Mapping[str, int]) -> str:
    parts = [f"{size:,} ({side})" for side, size in sizes.items()]
    return f"{'vocabularies' if len(parts) > 1 else 'a vocabulary'} of {' and '.join(parts)} entries"


def _verbatim(text: str) -> str:
    """Markdown that shows a text as it is, tags and dollars too."""
    return re.sub(r"[\\`*_\[\]<>&~$]", r"\\\g<0>", text)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(" ".join(cell.replace("|", "\\|").splitlines()) for cell in cells) + " |"

    return "\n".join([line(header), line(["---"] * len(header)), *map(line, rows)])


def _thin(curve: Sequence[Row], most: int = 12) -> list[Row]:
    step = max(1, -(-len(curve) // most))
    return [*curve[:-1][::step], *curve[-1:]]
