"""The recipes that ship: found, valid, and explained line by line."""

import re
from pathlib import Path

import pytest
import torch

from hf_attnzoo.recipes import catalog, find_recipe, load_recipe, recipe_folder, shipped_recipes
from hf_attnzoo.recipes.building import build_model, generation_config
from hf_attnzoo.recipes.run import SPLITS
from hf_attnzoo.recipes.tasks import make_task
from hf_attnzoo.registry import FAMILIES

ROOT = Path(__file__).parents[2]
OWN, PAPERS = (
    sorted((ROOT / "training" / folder).glob("*.yaml"), key=lambda path: path.stem)
    for folder in ("recipes", "recipes/papers")
)
SHIPPED = OWN + PAPERS


def test_a_checkout_ships_its_recipes():
    assert {"quickstart", "parallel-text", "reversal"} <= {path.stem for path in SHIPPED}
    assert list(shipped_recipes().values()) == SHIPPED
    assert list(shipped_recipes()) == [path.stem for path in OWN] + [f"papers/{path.stem}" for path in PAPERS]


def test_a_recipe_is_found_by_name_and_by_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_recipe("quickstart") == ROOT / "training" / "recipes" / "quickstart.yaml"
    own = tmp_path / "own.yml"
    own.write_text("name: own\n")
    assert find_recipe("own.yml") == Path("own.yml")
    assert find_recipe(str(own)) == own
    # A folder that happens to have the name of a recipe is none.
    (tmp_path / "quickstart").mkdir()
    assert find_recipe("quickstart") == ROOT / "training" / "recipes" / "quickstart.yaml"


@pytest.mark.parametrize("name", ["quickstrat", "quickstrat.yaml", "no/such/quickstart.yml"])
def test_an_unknown_recipe_is_refused_with_the_nearest(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=f"no recipe '{name}'.*did you mean 'quickstart'"):
        find_recipe(name)


def test_a_recipe_of_a_paper_is_found_by_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = ROOT / "training" / "recipes" / "papers" / "transformer-base.yaml"
    assert find_recipe("papers/transformer-base") == file
    for name in ("transformer-base", "papers/transfomer-base"):
        with pytest.raises(ValueError, match="did you mean 'papers/transformer-base'"):
            find_recipe(name)


@pytest.mark.parametrize("path", PAPERS, ids=lambda path: path.stem)
def test_recipes_of_papers_stream_and_name_their_source(path):
    recipe = load_recipe(path)
    assert recipe.data.streaming
    assert recipe.name == path.stem
    text = path.read_text(encoding="utf-8")
    # What the paper says, with the place where it says so
    assert len(re.findall(r"# .*\b(?:section|table|appendix|equation|nanoGPT)\b", text)) >= 10
    assert f"attnzoo train papers/{path.stem} --dry-run" in text


def test_an_installed_package_has_the_recipes_inside(tmp_path, monkeypatch):
    home = tmp_path / "site-packages" / "hf_attnzoo" / "recipes"
    (home / "library").mkdir(parents=True)
    (home / "library" / "installed.yaml").write_text("name: x\n")
    monkeypatch.setattr(catalog, "_HERE", home)
    assert recipe_folder() == home / "library"
    assert list(shipped_recipes()) == ["installed"]
    # That is where the wheel puts them.
    assert '"training/recipes" = "hf_attnzoo/recipes/library"' in (ROOT / "pyproject.toml").read_text()


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_recipes_build_what_they_ask_for(path):
    recipe = load_recipe(path)
    texts = {"source": ["ab b c d", "ab f"], "target": ["x y", "z x y"], "caption": ["x y", "z x y"]}
    texts["tokens"] = [["ab", "b"], ["c"]]
    texts["text"] = texts["question"] = texts["context"] = texts["source"]
    family = FAMILIES[recipe.family]
    task = make_task(recipe.task or family.task, recipe)
    # Some are large: nothing is asked of their weights.
    with torch.device("meta"):
        model = build_model(recipe, family, task, task.build_processor(texts))
    for name, value in recipe.model.items():
        assert name == "preset" or getattr(model.config, name) == value
    settings = generation_config(recipe, model, longest=3)
    for name, value in recipe.generation.items():
        assert getattr(settings, name) == value
    assert recipe.output == f"runs/{path.stem}"
    if recipe.data.source is not None:
        assert all(getattr(recipe.data, split).get("size", 1) > 0 for split in SPLITS)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_value_in_a_shipped_recipe_is_explained(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("# ")
    values = [line for line in lines if re.match(r"\s*[\w-]+: *[^#\s]", line)]
    assert len(values) > 15
    assert [line for line in values if not re.search(r"\S  +# \S", line)] == []
    # Nothing else stands there than values, headings of sections, and comments.
    others = [line for line in lines if line.strip() and line not in values and not line.lstrip().startswith("#")]
    assert [line for line in others if not re.fullmatch(r"\s*[\w-]+:(  +# \S.*)?", line)] == []
