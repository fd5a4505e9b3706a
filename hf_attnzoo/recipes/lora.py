"""LoRA: what is trained are small factors beside the weights of a checkpoint, which stay as they are until the end."""

from __future__ import annotations

import importlib.util
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from torch import nn
from transformers import PreTrainedModel

from ..wording import counted
from .disk import discard, scratch_folder, tidy, writing
from .reporting import say
from .schema import LoRASection, Recipe, nearest, without_folders
from .tasks.base import Task

if TYPE_CHECKING:
    from peft import PeftModel

ADAPTER = "adapter"

# Auto class of a task's models -> what peft calls the task, where it has a name for it.
_TASK_TYPES = {
    "AutoModelForSeq2SeqLM": "SEQ_2_SEQ_LM",
    "AutoModelForCausalLM": "CAUSAL_LM",
    "AutoModelForSequenceClassification": "SEQ_CLS",
    "AutoModelForTokenClassification": "TOKEN_CLS",
    "AutoModelForQuestionAnswering": "QUESTION_ANS",
}


# How the card of an adapter goes on after its metadata; by it a folder of a run is told from one of somebody's own.
_TITLE = "# LoRA adapter\n\nOf a model in the format of hf-attnzoo"


def is_adapter(folder: Path) -> bool:
    """Whether a folder is one that `Adapter.save` has written.

    Args:
        folder: which need not be there.
    """
    card = folder / "README.md"
    return (folder / "adapter_config.json").is_file() and card.is_file() and _TITLE in card.read_text(encoding="utf-8")


@dataclass(frozen=True)
class LoRAPlan:
    """What LoRA trains of a model.

    Args:
        rank: of the factors.
        targets: names of the linear layers that get them.
        whole: names of the modules that are trained in full, in a copy beside the checkpoint's.
        factors: numbers in all factors, `rank * (in + out)` of each layer.
        full: numbers in the modules that are trained in full.
    """

    rank: int
    targets: tuple[str, ...]
    whole: tuple[str, ...]
    factors: int
    full: int

    @property
    def trained(self) -> int:
        """Numbers that are trained."""
        return self.factors + self.full


def plan_lora(model: PreTrainedModel, new: set[str], section: LoRASection) -> LoRAPlan:
    """What LoRA will train of a model, of which nothing is changed.

    Args:
        model: on any device, the meta device too.
        new: names of its tensors that the checkpoint lacks.
        section: `training.lora` of a recipe, with a rank.

    Returns:
        Layers and numbers.

    Raises:
        ValueError: a module is named that isn't there or isn't a linear layer, or what would have to be trained in
            full shares its weights with the embeddings.
    """
    rank = section.rank or 0
    whole = _whole_modules(model, new)
    targets = _targets(model, section, whole)
    layers = [model.get_submodule(name) for name in targets]
    factors = sum(rank * (layer.in_features + layer.out_features) for layer in layers)
    full = {id(one): one.numel() for name in whole for one in model.get_submodule(name).parameters()}
    return LoRAPlan(rank, tuple(targets), tuple(whole), factors, sum(full.values()))


class Adapter:
    """Factors of low rank beside some linear layers of a model, `W + alpha / rank B A` (Hu et al. 2022, section 4.1).

    The model stays the object that it is, of its own class, and trains the factors alone, and in full what the
    checkpoint had no weights for, such as a head for other classes.

    Args:
        model: with the weights of a checkpoint. It is changed.
        new: names of its tensors that the checkpoint lacks.
        recipe: whose `training.lora` section counts.
        task: of the recipe.
        console: where to report to.

    Raises:
        ValueError: if peft isn't installed, a module is named that isn't there or isn't a linear layer, or what would
            have to be trained in full shares its weights with the embeddings.
    """

    def __init__(self, model: PreTrainedModel, new: set[str], recipe: Recipe, task: Task, console: Console):
        if importlib.util.find_spec("peft") is None:
            raise ValueError(
                f"training.lora.rank={recipe.training.lora.rank} takes the package peft: "
                "pip install 'hf-attnzoo[lora]'"
            )
        folder = Path(recipe.output) / ADAPTER
        if folder.exists() and not is_adapter(folder):
            raise ValueError(f"output={recipe.output}: {folder} holds something that no run has written")
        from peft import LoraConfig, get_peft_model

        section = recipe.training.lora
        plan = plan_lora(model, new, section)
        targets, whole = list(plan.targets), list(plan.whole)
        config = LoraConfig(
            r=section.rank,
            lora_alpha=2 * section.rank if section.alpha is None else section.alpha,
            lora_dropout=section.dropout,
            target_modules=targets,
            modules_to_save=whole or None,
            task_type=_TASK_TYPES.get(task.head),
        )
        self.base, self.head = without_folders(recipe.pretrained.model), task.head
        self.peft_model: PeftModel = get_peft_model(model, config)
        # Where a converted checkpoint lay for a moment is of no use to anybody.
        config.base_model_name_or_path = self.base
        self.trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
        layers = counted(len(targets), "linear layer")
        say(
            console,
            f"LoRA of rank {section.rank} on {layers}: {self.trained:,} parameters are trained"
            + (f", those of {', '.join(whole)} in full" if whole else ""),
        )

    def save(self, folder: Path) -> None:
        """Write the adapter as peft reads it; the folder appears whole or not at all.

        Args:
            folder: to write.
        """
        tidy(folder)
        scratch = scratch_folder(folder)
        with writing(folder):
            # The embeddings are the checkpoint's.
            self.peft_model.save_pretrained(scratch, save_embedding_layers=False)
            (scratch / "README.md").write_text(self._card(), encoding="utf-8")
            discard(folder)
            scratch.rename(folder)

    def merge(self) -> None:
        """Add the factors to the weights: the model is an ordinary one again, without a trace of them.

        Raises:
            ValueError: if a weight isn't finite afterwards.
        """
        model = self.peft_model.merge_and_unload(safe_merge=True)
        model.requires_grad_(True)

    def _card(self) -> str:
        return f"""---
library_name: peft
---

{_TITLE} that has the weights of `{self.base}`; the folder `model` beside this one has
both in one.

```python
import hf_attnzoo  # makes the family known to transformers
from peft import PeftModel
from transformers import {self.head}

model = PeftModel.from_pretrained({self.head}.from_pretrained("path/to/that/checkpoint"), "path/to/this/folder")
```
"""


def _whole_modules(model: PreTrainedModel, new: set[str]) -> list[str]:
    """Modules that are trained in full: with weights that are new, and a head of classes or places in any case."""
    prefix = f"{model.base_model_prefix}."
    names = dict(model.named_parameters(remove_duplicate=False))
    found = new & names.keys()
    if model.get_output_embeddings() is None:
        found |= {name for name in names if not name.startswith(prefix)}
    modules = sorted({name.rpartition(".")[0] for name in found})
    # One inside another is trained with it.
    modules = [name for name in modules if not any(name.startswith(f"{other}.") for other in modules)]
    for name in modules:
        if name == "" or _shared(model, model.get_submodule(name)):
            raise ValueError(
                f"training.lora: the checkpoint lacks weights of {name or 'the model itself'}, which has others in "
                "common with the embeddings, and these stay as they are: leave training.lora out"
            )
    return modules


def _targets(model: PreTrainedModel, section: LoRASection, whole: list[str]) -> list[str]:
    """Names of the linear layers that get factors."""
    output = model.get_output_embeddings()
    linear = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
        and module is not output
        and not any(name == other or name.startswith(f"{other}.") for other in whole)
    ]
    if section.target_modules is None:
        return linear
    chosen: list[str] = []
    for wanted in section.target_modules:
        found = [name for name in linear if name == wanted or name.endswith(f".{wanted}")]
        if not found:
            names = sorted({name.rpartition(".")[2] for name in linear})
            raise ValueError(
                f"training.lora.target_modules has {wanted!r}, which is the name or the end of the name of no linear "
                f"layer inside {type(model).__name__}; did you mean {nearest(wanted, names)!r}?"
            )
        chosen += found
    return list(dict.fromkeys(chosen))


def _shared(model: PreTrainedModel, module: nn.Module) -> bool:
    """Whether a module has a parameter in common with another."""
    places = Counter(id(parameter) for _, parameter in model.named_parameters(remove_duplicate=False))
    inside = Counter(id(parameter) for _, parameter in module.named_parameters(remove_duplicate=False))
    return any(places[key] > count for key, count in inside.items())
