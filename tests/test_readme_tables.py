"""What the tables of the README say of families and files is what the code says."""

import importlib
import re
from pathlib import Path

import pytest

from hf_attnzoo.conversion import CONVERTERS
from hf_attnzoo.registry import FAMILIES
from hf_attnzoo.testing import (
    CAUSAL_CONTRACT,
    CAUSAL_INTEGRATIONS,
    ENCODER_CONTRACT,
    ENCODER_INTEGRATIONS,
    IMAGE_CONTRACT,
    IMAGE_INTEGRATIONS,
    SEQ2SEQ_CONTRACT,
    SEQ2SEQ_INTEGRATIONS,
    ragged_batch,
    scattered,
)

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CHECKS = {
    "seq2seq": (SEQ2SEQ_CONTRACT, SEQ2SEQ_INTEGRATIONS),
    "causal-lm": (CAUSAL_CONTRACT, CAUSAL_INTEGRATIONS),
    "masked-lm": (ENCODER_CONTRACT, ENCODER_INTEGRATIONS),
    "image-to-text": (IMAGE_CONTRACT, IMAGE_INTEGRATIONS),
}
# What a row or a sentence of the README promises -> the checks of `hf_attnzoo.testing` that hold it
WRITING = {"check_generation_batch", "check_beam_scores", "check_cache", "check_streaming"}
FOR_ALL = {
    "check_gradient_checkpointing",
    "check_precision",
    "check_lora",
    "check_compile",
    "check_export",
    "check_int8",
    "check_remote_code",
}
ACCUMULATION = {"check_accumulation", "check_encoder_accumulation"}


def table(first_cell: str) -> list[list[str]]:
    """Cells of the table whose first line begins so, that line first."""
    lines = README[README.index(f"| {first_cell} |") :].split("\n\n")[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [rows[0], *rows[2:]]


def checks_of(family: str) -> set[str]:
    return {check.__name__ for group in CHECKS[FAMILIES[family].task] for check in group}


@pytest.fixture(scope="module")
def models():
    """A small model of every family, with the head that recipes train."""
    return {
        name: scattered(family.model_class(family.head)(family.config_class.from_preset("tiny", vocab_size=20)))
        for name, family in FAMILIES.items()
    }


def answered(model):
    """What a forward pass gives, everything asked for."""
    inputs, labels = ragged_batch(model)
    given = {model.main_input_name: inputs, "output_attentions": True}
    if model.config.is_encoder_decoder:
        given["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(labels)
    if model.can_generate():
        given["use_cache"] = True
    return model(**given)


def remembered(output) -> str:
    cache = output.get("cache")
    if cache is None:
        return ""
    layers = getattr(cache, "layers", None) or cache.self_attention_cache.layers
    kinds = {"RecurrentCacheLayer": "state", "DynamicLayer": "keys and values"}
    [kind] = {kinds[type(layer).__name__] for layer in layers}
    return kind


def test_what_the_families_can_do(models):
    outputs = {name: answered(model) for name, model in models.items()}
    expected = {"writes: greedily, drawn, by beams, streamed": []}
    for name, model in models.items():
        writes = model.can_generate()
        assert not writes or checks_of(name) >= WRITING
        maps = sorted(
            key.removesuffix("attentions").strip("_") or "self"
            for key, value in outputs[name].items()
            if key.endswith("attentions") and value and value[0] is not None
        )
        fused = (model._supports_sdpa, model._supports_flash_attn, model._supports_flex_attn)
        assert len(set(fused)) == 1
        cells = {
            "writes: greedily, drawn, by beams, streamed": "yes" if writes else "",
            "remembers as it writes": remembered(outputs[name]) if writes else "",
            "attention to look at": ", ".join(maps),
            "longest text": "`max_position_embeddings`" if hasattr(model.config, "max_position_embeddings") else "any",
            "SDPA, FlashAttention, flex attention": "yes" if fused[0] else "",
            "copies words of the source, coverage": "yes" if hasattr(model.config, "copy") else "",
            "`attnzoo convert --to transformers`": "yes" if f"attnzoo_{name}" in CONVERTERS else "",
        }
        for row, cell in cells.items():
            expected.setdefault(row, []).append(cell)
    lines = README.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("| | `rnnsearch` |"))
    rows = [[cell.strip() for cell in line[1:-1].split("|")] for line in lines[start : start + 3 + len(expected)]]
    assert rows[0] == ["", *(f"`{name}`" for name in FAMILIES)]
    assert {row[0]: row[1:] for row in rows[2:-1]} == expected
    assert rows[-1] == [""]


@pytest.mark.parametrize("family", FAMILIES)
def test_what_all_families_have(family):
    names = checks_of(family)
    assert names >= FOR_ALL
    assert names & ACCUMULATION


def test_the_classes_and_tasks_of_the_families():
    header, *rows = table("family | paper")
    assert header == ["family", "paper", "classes", "tasks"]
    found = {row[0].strip("`"): [re.findall(r"`([^`]+)`", cell) for cell in row[2:]] for row in rows}
    expected = {
        name: [list(dict.fromkeys(family.config_class.auto_classes.values())), list(family.pipelines)]
        for name, family in FAMILIES.items()
    }
    assert found == expected


def test_the_layers_that_adapters_find(models):
    luong = FAMILIES["luong"]
    choices = ({"score": "concat", "input_feeding": True}, {"bridge": "linear"})
    others = [luong.config_class.from_preset("tiny", vocab_size=20, **choice) for choice in choices]
    built = {name: [model] for name, model in models.items()}
    built["luong"] += [luong.model_class(luong.head)(config) for config in others]
    expected = {
        name: {
            # A layer in a list has a number for a name, and is named with its list
            re.search(r"[a-z_]+(\.\d+)?$", path)[0]
            for model in variants
            for path, module in model.named_modules()
            # By what peft goes by, and without the vocabulary's head, which it leaves out
            if hasattr(module, "in_features") and module is not model.get_output_embeddings()
        }
        for name, variants in built.items()
    }
    _, *rows = table("family | attention | recurrence or feed-forward")
    found = {row[0].strip("`"): set(re.findall(r"`([^`]+)`", "".join(row[1:]))) for row in rows}
    assert found == expected


def test_the_code_of_the_papers_is_there():
    places = re.findall(r"\[`([\w.]+)`\]\((hf_attnzoo/[\w/]+)\.py\)", README)
    named = [(*name.split("."), path) for name, path in places if name.startswith(f"{Path(path).name}.")]
    assert len(named) > 15
    for module, attribute, path in named:
        assert hasattr(importlib.import_module(path.replace("/", ".")), attribute), f"{module}.{attribute}"


def test_the_scores_are_those_of_the_cards():
    cells = re.findall(r"\[([\d.]+)\]\((model_cards/[\w-]+\.md)\) \(([\d.]+) to ([\d.]+)\)", README)
    assert len(cells) == 10
    for score, card, *interval in cells:
        text = (ROOT / card).read_text(encoding="utf-8")
        found = re.search(r"^\| BLEU \| ([\d.]+) \| ([\d.]+) to ([\d.]+) \|", text, re.MULTILINE)
        assert [score, *interval] == [f"{float(figure):.1f}" for figure in found.groups()], card
