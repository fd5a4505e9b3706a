"""YAML as recipes and command lines mean it: YAML 1.2's plain scalars, and no key twice."""

import re
from typing import Any

import yaml

# PyYAML follows YAML 1.1, where `1e-3` is a text, `no` (Norwegian) is false and 2:30 is 150. Numbers may have `_`.
_SCALARS = (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?(?:0|[1-9][0-9_]*)", list("-+0123456789")),
    (
        "float",
        r"[-+]?(?:(?:(?:0|[1-9][0-9_]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|\.(?:inf|Inf|INF))|\.(?:nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
)


class _Loader(yaml.SafeLoader):
    """Builds plain Python values and nothing else."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in seen:
                problem = f"the key {key.value!r} stands twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Quotes what `_Loader` would take for something else than a text."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012


for _name, _pattern, _first in _SCALARS:
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(f"tag:yaml.org,2002:{_name}", re.compile(f"^(?:{_pattern})$"), _first)


def read_yaml(text: str, where: str) -> Any:
    """The value that a YAML document holds.

    Args:
        text: the document.
        where: what errors name.

    Returns:
        Mappings, lists, texts, numbers, booleans or None.

    Raises:
        ValueError: if it isn't valid YAML, asks for an object of Python, or says a key twice.
    """
    try:
        return _Loader(text).get_single_data()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{where}:{mark.line + 1}" if mark else where
        raise ValueError(f"{place}: not valid YAML: {getattr(error, 'problem', None) or error}") from error


def write_yaml(value: Any) -> str:
    """A document that `read_yaml` reads as an equal value, keys in their order."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
