"""Commands that show where a model looks: attend, app."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from .base import BeamsOption, LengthOption, ModelArgument, app, given_options, plain_errors
from .loading import load_model, named


@app.command()
def attend(
    model: ModelArgument,
    text: Annotated[str, typer.Argument(metavar="INPUT", help="Text to read, or picture to caption.")],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            help="A .png, .svg or .pdf; an .html to look around in; a .gif that moves.",
        ),
    ],
    target: Annotated[
        str | None, typer.Option("--target", "-t", help="Show the attention while this is written.")
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(help="cross; or encoder or decoder, for self-attention. Default: the first that the model has."),
    ] = None,
    layer: Annotated[
        int | None, typer.Option(help="Layer, from 0, or from -1 backwards. The last one, or all with --heads.")
    ] = None,
    head: Annotated[int | None, typer.Option(help="One head of the layer, from 0, rather than the mean.")] = None,
    heads: Annotated[bool, typer.Option("--heads", help="Every head of every layer, in a picture each.")] = False,
    rollout: Annotated[bool, typer.Option("--rollout", help="Self-attention through all layers.")] = False,
    words: Annotated[bool, typer.Option("--words", help="Words rather than tokens.")] = False,
    beams: BeamsOption = None,
    max_new_tokens: LengthOption = None,
) -> None:
    """Draw where a model looks while it reads a text, translates it, or says what a picture shows."""
    from ..attention_maps import AttentionMap, attention_map
    from ..folders import check_new_file

    with plain_errors():
        check_new_file(output, "output")
        loaded, processor = load_model(model)
        options = given_options(num_beams=beams, max_new_tokens=max_new_tokens)
        where = {"layer": -1 if layer is None else layer, "head": head}
        drawn = attention_map(loaded, processor, text, target, kind=kind, **where, **options)
        if isinstance(drawn, AttentionMap):
            drawn = drawn.by_words() if words else drawn
            drawn = drawn.rollout() if rollout else drawn
        elif words or rollout or heads:
            raise ValueError("--words, --rollout and --heads are for the attention of texts, not of pictures")
        suffix = output.suffix.lower()
        if rollout and (heads or layer is not None or head is not None):
            raise ValueError("--rollout goes through all layers and heads: leave out --layer, --head and --heads")
        if heads and (head is not None or suffix in (".html", ".htm", ".gif", ".webp")):
            raise ValueError(
                f"--heads draws all of them in one picture, a .png, .svg or .pdf: not {output}, nor --head"
            )
        if suffix in (".html", ".htm"):
            drawn.to_html(output)
        elif suffix in (".gif", ".webp"):
            drawn.animate(output)
        elif heads:
            drawn.plot_heads(output, layer)
        else:
            drawn.plot(output)
    written = drawn.target_text if isinstance(drawn, AttentionMap) else drawn.text
    typer.echo(f"{text}: {output}" if written == text else f"{text} → {written}: {output}")


@app.command("app")
def open_page(
    model: ModelArgument,
    export: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Show nothing: write a Space for the Hub there.")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen at. Default: 127.0.0.1, this machine.")] = None,
    port: Annotated[int | None, typer.Option(help="Default: the first free one from 7860.")] = None,
    share: Annotated[bool, typer.Option("--share", help="With a public address too, at gradio's servers.")] = False,
) -> None:
    """Show a model on a local web page: what it makes of a text or a picture, and where it looks.

    It takes gradio, which the extra `app` of the package brings.
    """
    from ..app import export_space, import_gradio, load_demo, serve
    from ..folders import check_new_folder

    if export is not None and (host is not None or port is not None or share):
        raise typer.BadParameter("--export writes a folder and shows no page: leave out --host, --port and --share")
    with plain_errors():
        import_gradio()
        if export is not None:
            check_new_folder(export, "export")
        with named(model) as place:
            demo = load_demo(place)
        if export is None:
            serve(demo, host or "127.0.0.1", port, share)
            return
        export_space(demo, place, export)
    typer.echo(f"{export}: a Space. Try it: {shlex.join(['python', str(export / 'app.py')])}; bring it to the Hub:")
    upload = shlex.join(["hf", "upload", "USER/NAME", str(export), "--type", "space"])
    typer.echo(f"hf repos create USER/NAME --type space --sdk gradio; {upload}")
