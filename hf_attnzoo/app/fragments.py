"""Pieces of the page in HTML, in which whatever a person or a model has written is text."""

from __future__ import annotations

from dataclasses import replace
from html import escape
from importlib import resources

from ..attention_maps import AttentionMap, ImageAttentionMap
from ..wording import counted
from .demo import Answer, Demo

# Numbers that the page of a map may hold: about ten megabytes
_MOST_WEIGHTS = 1_500_000

# Said by a map's page to the page around it: how high it is
_HEIGHT = """<script>
const told = () => parent.postMessage({attnzoo: document.documentElement.getBoundingClientRect().height}, "*");
told();
new ResizeObserver(told).observe(document.documentElement);
</script></body>"""


def styles() -> str:
    """The style sheet of the page."""
    return _resource("page.css")


def script() -> str:
    """The page's script, with its tag: it makes the frame of a map as high as the map."""
    return f"<script>{_resource('page.js')}</script>"


def header(demo: Demo) -> str:
    """Name of a model, and what it is."""
    size = counted(demo.model.num_parameters(), "parameter")
    return (
        f'<header class="az-head"><h1>{escape(demo.name)}</h1><p>{escape(demo.summary)}'
        f"<span>{size}</span></p></header>"
    )


def table(answer: Answer) -> str:
    """The rows of an answer, best first."""
    headings = "".join(f"<th>{escape(column)}</th>" for column in answer.columns[:-1])
    meaning = f' title="{escape(answer.meaning)}"' if answer.meaning else ""
    headings += f"<th{meaning}>{escape(answer.columns[-1])}</th>"
    rows = []
    for number, row in enumerate(answer.rows):
        first, *others, score = row
        lead = f'<span class="az-lead">{escape(answer.lead)}</span>' if answer.lead else ""
        cells = f'<td class="az-text">{lead}<span class="az-out">{_visible(str(first))}</span></td>'
        cells += "".join(f'<td class="az-more">{escape(str(cell))}</td>' for cell in others)
        bar = ""
        if answer.shares:
            share = min(1.0, max(0.0, answer.shares[number]))
            bar = f'<i class="az-bar"><i style="width:{100 * share:.1f}%"></i></i>'
        cells += f'<td class="az-score">{bar}<span>{_number(score)}</span></td>'
        rows.append(f"<tr><th>{number + 1}</th>{cells}</tr>")
    body = f'<table class="az-rows"><thead><tr><th></th>{headings}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
    return (body if rows else "") + "".join(note(text) for text in answer.notes)


def note(text: str) -> str:
    """Something to know."""
    return f'<p class="az-note">{escape(text)}</p>'


def error(text: str) -> str:
    """What is wrong, for a person."""
    return f'<p class="az-error" role="alert">{escape(text)}</p>'


def hint(text: str) -> str:
    """What stands where an answer will be."""
    return f'<p class="az-hint">{escape(text)}</p>'


def frame(seen: AttentionMap | ImageAttentionMap) -> str:
    """A map in a frame of its own, to hover over; what is in it can't reach the page around it.

    Where its layers and heads are too many for a page, the map alone is shown, under a note that says so.

    Raises:
        ValueError: the map alone is too large for a page.
    """
    if seen.weights.size > _MOST_WEIGHTS:
        raise ValueError(
            f"it has {seen.weights.size:,} weights, and a page holds at most {_MOST_WEIGHTS:,}: take a shorter text"
        )
    missing = ""
    if isinstance(seen, AttentionMap) and sum(layer.size for layer in seen.layers) > _MOST_WEIGHTS:
        missing = note(_left_out(seen))
        seen = replace(seen, layers=())
    page = seen.to_html().replace("</body>", _HEIGHT)
    shown = f'<iframe class="az-map" title="attention" sandbox="allow-scripts" srcdoc="{escape(page)}"></iframe>'
    return missing + shown


def choices(answer: Answer, longest: int = 36) -> list[tuple[str, int]]:
    """Rows that a map can be chosen of, each with its label."""
    if len(answer.looks) < 2:
        return []
    labels = [" ".join(str(row[0]).split()) or "(nothing)" for row in answer.rows]
    cut = [label if len(label) <= longest else label[: longest - 1] + "…" for label in labels]
    return [(f"{number + 1} · {label}", number) for number, label in enumerate(cut)]


def _left_out(seen: AttentionMap) -> str:
    """What a page shows of a map with too many layers and heads; its own weights are the mean of the last layer."""
    layers, heads = counted(len(seen.layers), "layer"), counted(sum(map(len, seen.layers)), "head")
    size = sum(layer.size for layer in seen.layers)
    return (
        f"Shown is the mean of the last layer's heads. The model has {layers} with {heads} in all: {size:,} weights, "
        f"and a page holds at most {_MOST_WEIGHTS:,}. A shorter text shows them all."
    )


def _number(value: float) -> str:
    return f"{value:.4f}".replace("-", "\u2212")


def _visible(text: str) -> str:
    return escape(text) if text.strip() else f'<span class="az-lead">{"␣" * len(text) or "(nothing)"}</span>'


def _resource(name: str) -> str:
    return (resources.files(__package__) / "static" / name).read_text(encoding="utf-8")
