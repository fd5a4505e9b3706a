"""The page itself, made with gradio, and its server."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from . import fragments
from .demo import Answer, Demo, Field, Setting

if TYPE_CHECKING:
    from types import ModuleType

    from gradio import Blocks
    from gradio.components import Component

# Largest picture that is taken
_LARGEST_FILE = "20mb"

# Seconds after which pictures that were dropped, and answers, are thrown away
_KEPT = 3600

_HINT = "Here you will see what the model makes of it."


def import_gradio() -> ModuleType:
    """gradio, which is told to call nobody.

    Raises:
        ImportError: it is not installed.
    """
    # Read when it is imported
    os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
    try:
        import gradio
    except ImportError as error:
        raise ImportError("the page needs gradio: pip install 'hf-attnzoo[app]'") from error
    return gradio


def build_page(demo: Demo) -> Blocks:
    """The page of a model.

    Args:
        demo: of the model, from `load_demo`.

    Returns:
        The page, for `serve`. Its style sheet, fonts and script are given when it is launched.

    Raises:
        ImportError: gradio is not installed.
    """
    gr = import_gradio()
    first = demo.examples[0] if demo.examples else {}
    with gr.Blocks(title=demo.name, analytics_enabled=False, delete_cache=(_KEPT, _KEPT)) as page:
        gr.HTML(fragments.header(demo))
        state = gr.State(time_to_live=_KEPT)
        with gr.Row():
            with gr.Column(scale=5, min_width=320):
                fields = [_field(gr, field, first.get(field.name)) for field in demo.fields]
                button = gr.Button(demo.verb, variant="primary", elem_id="ask")
                if demo.examples:
                    samples = [[example[field.name] for field in demo.fields] for example in demo.examples]
                    gr.Examples(samples, fields, label="Try one of these", cache_examples=False, elem_id="examples")
                settings = []
                if demo.settings:
                    with gr.Accordion("Settings", open=False):
                        settings = [_setting(gr, setting) for setting in demo.settings]
            with gr.Column(scale=7, min_width=320):
                output = gr.HTML(fragments.hint(_HINT), elem_id="output", elem_classes="az-panel")
        with gr.Column(visible=False, elem_id="look") as place:
            title = "Where it looked" if demo.fields[0].kind == "image" else "What it looked at"
            gr.HTML(f'<h2 class="az-title">{title}</h2>')
            row = gr.Radio([], label="map of", elem_id="row", visible=False)
            seen = gr.HTML(elem_id="seen")

        names = [*(field.name for field in demo.fields), *(setting.name for setting in demo.settings)]
        shown = [state, output, place, row, seen]

        def ask(*values: Any) -> dict[Component, Any]:
            given = dict(zip(names, values, strict=True))
            try:
                answer = demo.ask(given, given)
            except ValueError as error:
                return {state: None, output: fragments.error(str(error)), place: gr.Column(visible=False), seen: ""}
            choices = fragments.choices(answer)
            said, map_page = fragments.table(answer), ""
            if answer.looks:
                map_page = _look(demo, answer, 0)
            return {
                state: answer,
                output: said,
                place: gr.Column(visible=bool(answer.looks)),
                row: gr.Radio(choices, value=0 if choices else None, visible=bool(choices)),
                seen: map_page,
            }

        def look(answer: Answer | None, number: int | None) -> str:
            if answer is None or number is None:
                return fragments.error("The answer is no longer here: ask again")
            return _look(demo, answer, number)

        # The model answers one at a time
        turn = {"concurrency_id": "model", "concurrency_limit": 1}
        asking = {"fn": ask, "inputs": [*fields, *settings], "outputs": shown, **turn}
        button.click(**asking, api_name="ask")
        for component, field in zip(fields, demo.fields, strict=True):
            if field.kind == "image":
                component.upload(**asking, api_visibility="private")
            else:
                component.submit(**asking, api_visibility="private")
        row.input(look, [state, row], seen, **turn, api_visibility="private")
        if demo.examples:
            page.load(**asking, api_visibility="private")
    return page


def serve(demo: Demo, host: str | None = None, port: int | None = None, share: bool = False, **options: Any) -> Any:
    """Show the page of a model until it is interrupted.

    Args:
        demo: of the model, from `load_demo`.
        host: address to listen at. Default: `None`, 127.0.0.1, or what GRADIO_SERVER_NAME says, as on a Space.
        port: to listen at. Default: `None`, the first free one from 7860.
        share: whether to make a public address at gradio's own servers, for a week at most.
        options: of gradio's `launch`.

    Returns:
        What `launch` returns.

    Raises:
        ImportError: gradio is not installed.
        OSError: the port is taken.
    """
    gr = import_gradio()
    page = build_page(demo)
    # Fonts of the person's own system: none is fetched from anywhere
    sans = [gr.themes.Font(name) for name in ("system-ui", "sans-serif")]
    mono = [gr.themes.Font(name) for name in ("ui-monospace", "monospace")]
    theme = gr.themes.Soft(primary_hue="indigo", neutral_hue="slate", font=sans, font_mono=mono)
    try:
        return page.launch(
            server_name=host,
            server_port=port,
            share=share,
            theme=theme,
            css=fragments.styles(),
            head=fragments.script(),
            max_file_size=_LARGEST_FILE,
            ssr_mode=False,
            footer_links=["gradio"],
            **options,
        )
    except OSError as error:
        if port is None:
            raise
        raise OSError(f"port={port} can't be listened at, or is taken: name another") from error


def _look(demo: Demo, answer: Answer, row: int) -> str:
    try:
        return fragments.frame(demo.look(answer, row))
    except ValueError as error:
        return fragments.note(f"No map: {error}.")


def _field(gr: ModuleType, field: Field, value: str | None) -> Component:
    if field.kind == "image":
        # As it is, transparency too
        picture = gr.Image(
            value=value,
            label=field.label,
            type="filepath",
            image_mode=None,
            sources=["upload", "clipboard"],
            height=300,
            elem_id=field.name,
        )
        # gradio would open it first, and of one that can't be opened say no more than "Error"
        decode = picture.preprocess
        picture.preprocess = lambda given: given.path if given is not None and given.path else decode(given)
        return picture
    return gr.Textbox(
        value=value, label=field.label, lines=field.lines, placeholder=field.hint, elem_id=field.name, max_lines=20
    )


def _setting(gr: ModuleType, setting: Setting) -> Component:
    if isinstance(setting.default, bool):
        return gr.Checkbox(setting.default, label=setting.label, elem_id=setting.name)
    if setting.maximum is None or setting.default is None or setting.maximum > 1024:
        return gr.Number(
            setting.default,
            label=setting.label,
            minimum=setting.minimum,
            maximum=setting.maximum,
            precision=0 if setting.step == 1 else None,
            elem_id=setting.name,
        )
    return gr.Slider(
        setting.minimum,
        setting.maximum,
        value=setting.default,
        step=setting.step,
        label=setting.label,
        elem_id=setting.name,
    )
