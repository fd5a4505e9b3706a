"""The recipes that ship with the package, and how one is found."""

from pathlib import Path

from .reading import read_yaml
from .schema import nearest

_HERE = Path(__file__).parent
_PAPERS = "papers"


def recipe_folder() -> Path:
    """Folder of the shipped recipes: inside an installed package, or `training/recipes` of a checkout."""
    installed = _HERE / "library"
    return installed if installed.is_dir() else _HERE.parents[1] / "training" / "recipes"


def shipped_recipes() -> dict[str, Path]:
    """Names and files of the shipped recipes; those with the settings of a paper come last, as `papers/...`."""
    folder = recipe_folder()
    own, papers = (sorted(place.glob("*.yaml"), key=lambda path: path.stem) for place in (folder, folder / _PAPERS))
    return {path.stem: path for path in own} | {f"{_PAPERS}/{path.stem}": path for path in papers}


def recipes_of(family: str) -> list[str]:
    """Names of the shipped recipes of a family, those of papers left out."""
    own = {name: path for name, path in shipped_recipes().items() if not name.startswith(_PAPERS)}
    return [
        name
        for name, path in own.items()
        if read_yaml(path.read_text(encoding="utf-8"), str(path)).get("family") == family
    ]


def find_recipe(name_or_path: str) -> Path:
    """A recipe by its file or by its shipped name.

    Args:
        name_or_path: path of a YAML file, or a name such as `quickstart` or `papers/transformer-base`.

    Returns:
        The file.

    Raises:
        ValueError: if there is neither such a file nor such a name.
    """
    path = Path(name_or_path)
    if path.suffix in (".yaml", ".yml") and path.is_file():
        return path
    shipped = shipped_recipes()
    if name_or_path in shipped:
        return shipped[name_or_path]
    stems = {name.rpartition("/")[2]: name for name in shipped}
    raise ValueError(
        f"no recipe {name_or_path!r}: neither a .yaml file nor one of {', '.join(shipped)}; "
        f"did you mean {stems[nearest(path.stem, stems)]!r}?"
    )
