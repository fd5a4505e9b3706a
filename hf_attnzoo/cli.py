"""`attnzoo`: thin doors onto the rooms of the package. Nothing heavy is imported before a command needs it."""

import json
import os
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

ModelArgument = Annotated[
    str,
    typer.Argument(metavar="MODEL", help="Folder of a saved model, one of `attnzoo starters`, or a name on the Hub."),
]
BeamsOption = Annotated[
    int | None, typer.Option("--beams", "-b", min=1, help="Hypotheses of beam search; 1 is greedy.")
]
LengthOption = Annotated[int | None, typer.Option("--max-new-tokens", min=1, help="Longest output, in tokens.")]
NBestOption = Annotated[int, typer.Option("--n-best", "-n", min=1, help="Outputs for each input, best first.")]
ScoresOption = Annotated[bool, typer.Option("--scores", help="Print log-probabilities before the outputs.")]
BatchOption = Annotated[int, typer.Option("--batch-size", min=1, help="Inputs at a time.")]


@app.callback()
def main() -> None:
    """The attention models, from RNNsearch to GPT and BERT: train, translate, look inside."""
    # Read when torch is imported. Threads that spin while they wait take the cores from each other as soon as anything
    # else runs on the machine: training was six times slower then.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


@app.command()
def train(
    recipe: Annotated[str, typer.Argument(help="YAML file, or the name of a shipped recipe, such as quickstart.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Such as training.max_steps=100.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Train nothing but two small steps: say what it would take.")
    ] = False,
    devices: Annotated[int | None, typer.Option(min=1, help="With --dry-run: how many.")] = None,
    device_kind: Annotated[
        str | None, typer.Option(help="With --dry-run: a100-80gb (default), h100, v100, ..., or cpu, this machine.")
    ] = None,
    strategy: Annotated[
        str | None, typer.Option(help="With --dry-run: ddp (default), fsdp, zero1, zero2 or zero3.")
    ] = None,
    accelerate: Annotated[
        Path | None, typer.Option(help="With --dry-run: a configuration of Accelerate, for the three above.")
    ] = None,
    utilization: Annotated[
        float | None, typer.Option(help="With --dry-run: share of a device's peak that training reaches.")
    ] = None,
    source_length: Annotated[int | None, typer.Option(min=1, help="With --dry-run: tokens of a source.")] = None,
    target_length: Annotated[int | None, typer.Option(min=1, help="With --dry-run: tokens of a target.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="With --dry-run: print JSON.")] = False,
) -> None:
    """Train a model from a recipe, score it, draw its attention, save it, load it back."""
    options = _generation_options(
        devices=devices,
        device_kind=device_kind,
        strategy=strategy,
        accelerate=accelerate,
        utilization=utilization,
        source_length=source_length,
        target_length=target_length,
    )
    if dry_run:
        _tell_what_it_takes(recipe, overrides or [], options, as_json)
        return
    if as_json or options:
        name = "json" if as_json else next(iter(options)).replace("_", "-")
        raise typer.BadParameter(f"--{name} is for --dry-run, which is missing")
    from .recipes import find_recipe, load_recipe, run_recipe
    from .recipes.reporting import make_console, say

    console = make_console()
    with _plain_errors():
        result = run_recipe(load_recipe(find_recipe(recipe), overrides or ()), console)
        _end_together()
    if not result.next_command:
        return
    picture = "; attention.png shows where it looked" if (result.model / "attention.png").is_file() else ""
    say(console, f"\nmodel and card are in {result.model}{picture}. Next:\n")
    say(console, f"  {shlex.join(result.next_command)}")
    say(console, f"  {result.own_data}")


@app.command()
def translate(
    model: ModelArgument,
    text: Annotated[str | None, typer.Argument(help="Text to translate. Without it, lines of FILE or stdin.")] = None,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="One text a line.")] = None,
    beams: BeamsOption = None,
    n_best: NBestOption = 1,
    scores: ScoresOption = False,
    replace_unknown: Annotated[
        bool, typer.Option("--replace-unknown", help="Put the aligned source word in the place of an unknown one.")
    ] = False,
    lexicon: Annotated[
        Path | None, typer.Option(help="With --replace-unknown: source and target words, a tab between them.")
    ] = None,
    max_new_tokens: LengthOption = None,
    batch_size: BatchOption = 32,
) -> None:
    """Translate a text, a file, or standard input, a line at a time."""
    if text is not None and file is not None:
        raise typer.BadParameter("give a text or --file, not both")
    options = _generation_options(num_beams=beams, max_new_tokens=max_new_tokens) | _n_best(n_best, beams)
    if lexicon is not None and not replace_unknown:
        raise typer.BadParameter("--lexicon is for --replace-unknown, which is missing")
    with _plain_errors():
        if replace_unknown:
            options["replace_unknown"] = True if lexicon is None else _read_lexicon(lexicon)
        lines = iter([text]) if text is not None else _lines(file)
        for outputs in _pipeline(model)(lines, batch_size=batch_size, return_scores=scores, **options):
            for output in outputs:
                score = f"{output['score']:.4f}\t" if scores else ""
                typer.echo(f"{score}{output['translation_text']}")


@app.command()
def backtranslate(
    model: ModelArgument,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Texts of the language to translate into, one a line.")],
    output: Annotated[Path, typer.Argument(metavar="OUT.tsv", help="Pairs to write.")],
    tag: Annotated[str | None, typer.Option(help="Word in front of every source, such as <bt>.")] = None,
    sample: Annotated[
        bool, typer.Option("--sample", help="Draw from the model's probabilities, for more various sources.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Of what is drawn.")] = 0,
    beams: BeamsOption = None,
    max_new_tokens: LengthOption = None,
    batch_size: BatchOption = 32,
) -> None:
    """Make training pairs of texts without a source: MODEL, which translates the other way, writes their sources."""
    from transformers import set_seed

    from .data import back_translate

    if sample and (beams or 1) > 1:
        raise typer.BadParameter(f"--sample draws one text: leave out --beams {beams}")
    options = _generation_options(num_beams=1 if sample else beams, max_new_tokens=max_new_tokens)
    if sample:
        options |= {"do_sample": True, "top_k": 0}
    set_seed(seed)
    with _plain_errors():
        pairs, left_out = back_translate(
            _pipeline(model), _lines(file), output, tag=tag, batch_size=batch_size, **options
        )
    typer.echo(f"{output}: {pairs:,} pairs; {left_out:,} lines left out")


@app.command()
def caption(
    model: ModelArgument,
    images: Annotated[list[str], typer.Argument(help="Pictures: files or URLs.")],
    beams: BeamsOption = None,
    n_best: NBestOption = 1,
    scores: ScoresOption = False,
    max_new_tokens: LengthOption = None,
    batch_size: BatchOption = 32,
) -> None:
    """Say what pictures show."""
    options = _generation_options(num_beams=beams, max_new_tokens=max_new_tokens) | _n_best(n_best, beams)
    with _plain_errors():
        results = _pipeline(model, "image-to-text")(images, batch_size=batch_size, return_scores=scores, **options)
        for outputs in results:
            for output in [outputs] if isinstance(outputs, dict) else outputs:
                score = f"{output['score']:.4f}\t" if scores else ""
                typer.echo(f"{score}{output['caption']}")


@app.command()
def write(
    model: ModelArgument,
    prompt: Annotated[str, typer.Argument(help="What the text begins with.")] = "",
    max_new_tokens: LengthOption = None,
    temperature: Annotated[
        float | None,
        typer.Option(min=0.0, help="Draw from the model's probabilities, sharpened below 1; 0 takes the likeliest."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of what is drawn.")] = 0,
) -> None:
    """Go on with a text, a token at a time, as a language model would."""
    from transformers import TextStreamer, set_seed

    options = _generation_options(max_new_tokens=max_new_tokens, temperature=temperature or None)
    set_seed(seed)
    with _plain_errors():
        pipe = _pipeline(model, "causal-lm")
        # Left to itself the pipeline draws, whatever the model's own settings are.
        options["do_sample"] = bool(pipe.model.generation_config.do_sample if temperature is None else temperature)
        # The streamer prints the text as it comes, the prompt too.
        pipe(prompt, streamer=TextStreamer(pipe.tokenizer, skip_special_tokens=True), **options)


@app.command("few-shot")
def few_shot(
    model: ModelArgument,
    task: Annotated[
        str,
        typer.Argument(metavar="TASK", help="grammar, article, dates, sentiment, or a YAML file with a template."),
    ],
    query: Annotated[
        str | None,
        typer.Argument(
            help="A text, or a JSON object if the template has several fields. Without it, one a line of stdin."
        ),
    ] = None,
    shots: Annotated[int | None, typer.Option(min=0, help="Examples of a prompt. Default: all.")] = None,
    examples: Annotated[
        Path | None, typer.Option(help="Other examples: .jsonl, or .tsv or .csv with names in the first line.")
    ] = None,
    select: Annotated[str, typer.Option(help="Which: fixed (the first), random, or nearest to the query.")] = "fixed",
    embed: Annotated[
        str | None, typer.Option(help="With --select nearest: tf-idf, word-overlap, or a model that embeds texts.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of what --select random draws.")] = 0,
    labels: Annotated[
        str | None, typer.Option(help="Answers to choose from, with commas between them. Default: the task's, if any.")
    ] = None,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Set labels off against what they get without a query (N/A).")
    ] = False,
    scores: Annotated[
        bool, typer.Option("--scores", help="Print the probabilities of all labels, or the score of a text.")
    ] = False,
    max_new_tokens: LengthOption = None,
    batch_size: BatchOption = 8,
) -> None:
    """Do a task that a prompt shows by example, with any causal language model: a shipped one, or one of yours."""
    from .data import load_examples, load_few_shot_task

    with _plain_errors():
        options = load_few_shot_task(task) | _generation_options(shots=shots, max_new_tokens=max_new_tokens)
        if examples is not None:
            options["examples"] = load_examples(examples)
        if labels is not None:
            options["labels"] = [label.strip() for label in labels.split(",")]
        options |= {"select": select, "seed": seed, "calibrate": calibrate, "return_scores": scores}
        pipe = _few_shot_pipeline(model)
        options["embed"] = _embedder(embed)
        texts = iter([query]) if query is not None else _lines(None)
        for answer in pipe((_fields(text) for text in texts), batch_size=batch_size, **options):
            if "generated_text" in answer:
                score = f"{answer['score']:.4f}\t" if scores else ""
                typer.echo(f"{score}{answer['generated_text']}")
                continue
            for one in answer if scores else [answer]:
                typer.echo(f"{one['score']:.4f}\t{one['label']}" if scores else one["label"])


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
        str | None, typer.Option(help="cross, or the self-attention of the encoder or the decoder.")
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
    from .attention_maps import AttentionMap, attention_map

    with _plain_errors():
        loaded, processor = _load(model)
        options = _generation_options(num_beams=beams, max_new_tokens=max_new_tokens)
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


@app.command()
def evaluate(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="Folder of a saved model, one of `attnzoo starters`, a name on the Hub, or a file of outputs.",
        ),
    ],
    data: Annotated[str, typer.Argument(help="File, folder, dataset on the Hub, or a built-in source such as dates.")],
    options: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Arguments of the data, such as split=test.")
    ] = None,
    against: Annotated[
        str | None, typer.Option(help="Another model, or file of outputs: is the difference more than luck?")
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            help="Scores, with commas between them. Default: exact_match,token_error_rate,bleu,chrf, or those of a "
            "language model."
        ),
    ] = None,
    tokenize: Annotated[str, typer.Option(help="Tokens of BLEU, GLEU and the token scores.")] = "13a",
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Leave case out of account.")] = False,
    bins: Annotated[
        str | None, typer.Option(help="Report by source length: tokens that a bin is wide, or edges such as 1,10,20.")
    ] = None,
    picture: Annotated[Path | None, typer.Option(help="Draw it: .png, .svg or .pdf.")] = None,
    measure: Annotated[
        str | None, typer.Option(help="Score of that report. Default: bleu if it is one of the scores, or the first.")
    ] = None,
    worst: Annotated[int, typer.Option(min=0, help="List so many of the worst sentences.")] = 0,
    worst_by: Annotated[str, typer.Option(help="What is worst: by chrf, or by token_error_rate.")] = "chrf",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the outputs, one a line.")] = None,
    beams: BeamsOption = None,
    max_new_tokens: LengthOption = None,
    generate: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Other settings of generate(): length_penalty=0.6.")
    ] = None,
    block_size: Annotated[
        int | None, typer.Option(min=2, help="Tokens that a language model reads at a time. Default: all it can.")
    ] = None,
    batch_size: BatchOption = 32,
    seed: Annotated[int, typer.Option(help="Of what intervals and tests draw.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Score what a model writes for a dataset, translations or captions, or how well it foresees a text."""
    from .recipes.reading import read_yaml
    from .recipes.reporting import make_console

    names = None if metrics is None else [name.strip() for name in metrics.split(",")]
    with _plain_errors():
        arguments = {key: read_yaml(value, key) for key, value in map(_key_value, options or [])}
        if "name_or_path" in arguments:
            raise ValueError(f"name_or_path={arguments['name_or_path']}: the data has been named already, {data}")
        systems = [model] if against is None else [model, against]
        task = _evaluated_task(systems, data)
        if task == "causal-lm":
            _only_for_texts(
                against=against,
                bins=bins,
                picture=picture,
                measure=measure,
                worst=worst or None,
                output=output,
                beams=beams,
                max_new_tokens=max_new_tokens,
                generate=generate,
                lowercase=lowercase or None,
            )
            report, tables = _foreseen(model, data, arguments, names, block_size, batch_size, seed)
        else:
            if block_size is not None:
                raise ValueError(f"--block-size {block_size} is for language models")
            generation = _generation_options(num_beams=beams, max_new_tokens=max_new_tokens)
            generation |= {key: read_yaml(value, key) for key, value in map(_key_value, generate or [])}
            report, tables = _written(
                systems,
                task,
                data,
                arguments,
                generation,
                names or ["exact_match", "token_error_rate", "bleu", "chrf"],
                {"tokenize": tokenize, "lowercase": lowercase, "seed": seed},
                _read_bins(bins, picture),
                picture,
                measure,
                {"worst": worst, "worst_by": worst_by},
                output,
                batch_size,
            )
    if as_json:
        typer.echo(json.dumps(report, ensure_ascii=False))
        return
    console = make_console()
    for table in tables:
        console.print(table)


@app.command()
def convert(
    source: Annotated[
        Path,
        typer.Argument(
            help="Folder of a saved model (transformers, JoeyNMT), or a file of a training program: nanoGPT's "
            "ckpt.pt, JoeyNMT's best.ckpt, OpenNMT-py's model_step_5000.pt."
        ),
    ],
    target: Annotated[Path, typer.Argument(help="Folder to write.")],
    to: Annotated[str, typer.Option("--to", help="attnzoo, or transformers for the way back.")] = "attnzoo",
) -> None:
    """Turn a checkpoint of another kind into one of the zoo, or one of the zoo into transformers' own.

    GPT-2, BERT, RoBERTa, Marian and BART of transformers, nanoGPT, JoeyNMT 2 and OpenNMT-py 3; what has no place in
    our models is refused by name.
    """
    from transformers.utils import logging

    from .conversion import convert as convert_checkpoint
    from .hub import find_model

    logging.disable_progress_bar()
    with _plain_errors():
        convert_checkpoint(find_model(source), target, to)
    typer.echo(f"{source}: converted to {target}")


@app.command()
def average(
    checkpoints: Annotated[list[Path], typer.Argument(help="Folders of checkpoints of one model.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write.")],
) -> None:
    """Write a model whose weights are the mean of those of several checkpoints."""
    from transformers.utils import logging

    from .hub import average_checkpoints

    logging.disable_progress_bar()
    with _plain_errors():
        folder = average_checkpoints(checkpoints, output)
    typer.echo(f"{folder}: the mean of {len(checkpoints)} checkpoints")


@app.command()
def card(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL", help="Folder that a run has saved its model in, or one of `attnzoo starters`."
        ),
    ],
    target: Annotated[Path, typer.Argument(metavar="NAME", help="Where to, such as model_cards/dates.")],
) -> None:
    """Copy the card of a run and its pictures to where cards are collected, under a name of their own."""
    from .hub import export_card

    with _plain_errors():
        for written in export_card(folder, target):
            typer.echo(written)


@app.command()
def push(
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="Folder that a run has saved its model in, or one of `attnzoo starters`."),
    ],
    repo: Annotated[str, typer.Argument(metavar="REPO", help="USER/NAME on the Hub, or NAME; made if need be.")],
    private: Annotated[bool, typer.Option("--private", help="Make a repository that its owner alone sees.")] = False,
    with_code: Annotated[
        bool,
        typer.Option("--with-code/--no-code", help="With the code that it takes where hf-attnzoo isn't installed."),
    ] = True,
    message: Annotated[str | None, typer.Option("--message", "-m", help="Of the commit.")] = None,
    revision: Annotated[str | None, typer.Option(help="Branch, made if need be. Default: main.")] = None,
    create_pr: Annotated[bool, typer.Option("--create-pr", help="Open a pull request with it.")] = False,
) -> None:
    """Share a model on the Hub: weights, tokenizer or processor, code, card and its pictures, in one commit.

    They are checked first; what a training leaves beside them stays here. The token is that of `hf auth login`, or
    HF_TOKEN.
    """
    from .hub import push_checkpoint

    with _plain_errors():
        pushed = push_checkpoint(
            folder,
            repo,
            private=private,
            with_code=with_code,
            message=message,
            revision=revision,
            create_pr=create_pr,
        )
    if pushed.left_out:
        typer.echo(f"not sent: {', '.join(pushed.left_out)}")
    if pushed.deleted:
        typer.echo(f"removed there: {', '.join(pushed.deleted)}")
    typer.echo(f"{folder}: {len(pushed.files)} files {'are in' if pushed.changed else 'were already in'} {pushed.url}")


@app.command()
def families() -> None:
    """List the families of models, and the recipes that ship."""
    from .recipes import shipped_recipes
    from .recipes.reporting import make_console
    from .registry import FAMILIES

    rows = []
    for family in FAMILIES.values():
        presets, pipelines = ", ".join(family.config_class.presets), ", ".join(family.pipelines)
        rows.append((family.name, family.summary, family.paper, presets, pipelines))
    make_console().print(_table(("family", "what it is", "paper", "presets", "pipelines"), rows))
    typer.echo(f"recipes: {', '.join(shipped_recipes())}")


@app.command()
def starters() -> None:
    """List the trained models that come with the package; wherever a command takes a model, it takes their names."""
    from .hub import STARTERS
    from .recipes.reporting import make_console

    rows = []
    for name, starter in STARTERS.items():
        size = f"{starter.size / 1e6:.1f} MB"
        rows.append((name, starter.summary, starter.family.name, f"{starter.parameters:,}", size, starter.recipe))
    make_console().print(_table(("name", "what it does", "family", "parameters", "size", "recipe"), rows))
    for starter in STARTERS.values():
        typer.echo(shlex.join(starter.example))


def _evaluated_task(systems: list[str], data: str) -> str:
    """What systems are for that may be models or files of outputs; of files alone the data tells."""
    from .data.captions import METADATA
    from .data.sources import CAPTION_SOURCES

    models = [system for system in systems if not Path(system).is_file()]
    tasks = {_check_task(system, "seq2seq", "image-to-text", "causal-lm") for system in models}
    if not tasks:
        pictures = data in CAPTION_SOURCES or Path(data).name in METADATA
        pictures = pictures or any(any(Path(data).glob(f"{depth}{name}")) for name in METADATA for depth in ("", "*/"))
        return "image-to-text" if pictures else "seq2seq"
    if len(tasks) > 1:
        raise ValueError(f"{' and '.join(systems)} are for different things, {' and '.join(sorted(tasks))}")
    return tasks.pop()


def _only_for_texts(**options: Any) -> None:
    for name, value in options.items():
        if value is not None:
            raise ValueError(f"--{name.replace('_', '-')} is for models that write a text for each input")


def _read_bins(bins: str | None, picture: Path | None) -> int | list[int] | None:
    if bins is None:
        return None if picture is None else 5
    if not re.fullmatch(r"\d+(,\d+)*", bins):
        raise ValueError(f"--bins {bins} must be a number of tokens, or edges with commas between them")
    edges = [int(edge) for edge in bins.split(",")]
    return edges if len(edges) > 1 else edges[0]


def _written(
    systems: list[str],
    task: str,
    data: str,
    arguments: dict[str, Any],
    generation: dict[str, Any],
    names: list[str],
    settings: dict[str, Any],
    bins: int | list[int] | None,
    picture: Path | None,
    measure: str | None,
    worst: dict[str, Any],
    output: Path | None,
    batch_size: int,
) -> tuple[dict[str, Any], list[Any]]:
    """Report and tables on what systems write."""
    from .attention_maps.plotting import check_format
    from .data import load_caption_source, load_source, references
    from .evaluation import by_length, evaluation_report, length_bins, plot_by_length, report_tables

    pictures = task == "image-to-text"
    if picture is not None:
        check_format(picture)
    if pictures and bins is not None:
        raise ValueError("--bins and --picture are for texts: pictures have no length in tokens")
    if bins is None and measure is not None:
        raise ValueError(f"--measure {measure} is for a report by length: give --bins or --picture too")
    if "streaming" in arguments:
        raise ValueError(f"streaming={arguments['streaming']}: an evaluation needs all of the data")
    # What would stop the report stops it before anything is translated
    measure = measure or ("bleu" if "bleu" in names else names[0])
    probe = {**settings, **worst, "bins": bins if isinstance(bins, int) else None, "measure": measure}
    evaluation_report(["a"], ["a"], names=names, sources=None if pictures else ["a"], resamples=1, **probe)
    rows = load_caption_source(data, **arguments) if pictures else load_source(data, **arguments)
    sources = None if pictures else list(rows["source"])
    if bins is not None:
        by_length(sources, sources, sources, bins, metrics=[], tokenize=settings["tokenize"])
    written = [_outputs(system, task, rows, generation, batch_size) for system in systems]
    if output is not None:
        _write_lines(written[0], output)
    report = {"pictures" if pictures else "pairs": len(rows)} | evaluation_report(
        written[0],
        references(rows),
        names=names,
        sources=sources,
        against=written[1] if len(written) > 1 else None,
        bins=bins,
        measure=measure,
        **settings,
        **worst,
    )
    labels = _labels(systems)
    if picture is not None:
        reports = [report, report["against"]] if len(systems) > 1 else [report]
        lines = {label: length_bins(one) for label, one in zip(labels, reports, strict=True)}
        plot_by_length(lines, picture, measure=measure, counts=True)
    title = f"{len(rows):,} {'pictures' if pictures else 'pairs'} of {data}"
    return report, report_tables(report, names, labels, title, measure)


def _foreseen(
    model: str,
    data: str,
    arguments: dict[str, Any],
    names: list[str] | None,
    block_size: int | None,
    batch_size: int,
    seed: int,
) -> tuple[dict[str, Any], list[Any]]:
    """Report and table on how likely a text is under a language model."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from .data import load_text_source
    from .evaluation import LIKELIHOOD_METRICS, report_tables, score_interval, text_likelihood
    from .evaluation.likelihood import default_block_size

    names = list(LIKELIHOOD_METRICS) if names is None else names
    for name in names:
        if name not in LIKELIHOOD_METRICS:
            raise ValueError(f"--metrics has {name!r}; those of a language model are {', '.join(LIKELIHOOD_METRICS)}")
    texts = load_text_source(data, **arguments)["text"]
    with _found(model) as place:
        loaded, tokenizer = AutoModelForCausalLM.from_pretrained(place), AutoTokenizer.from_pretrained(place)
    likelihood = text_likelihood(loaded, tokenizer, list(texts), block_size=block_size, batch_size=batch_size)
    tokens = int(likelihood.losses[:, 1].sum())
    report: dict[str, Any] = {"tokens": tokens, "intervals": {}}
    for name in names:
        report[name] = likelihood.score(name)
        report[f"{name}_signature"] = f"block:{block_size or default_block_size(loaded)}|tokens:{tokens}"
        interval = score_interval(likelihood.statistics(name), seed=seed)
        if interval is not None:
            report["intervals"][name] = list(interval)
    return report, report_tables(report, names, [model], f"{tokens:,} tokens of {data}")


def _outputs(system: str, task: str, rows: Any, generation: dict[str, Any], batch_size: int) -> list[str]:
    """What a model writes for rows, or a file says that it has written."""
    from rich.console import Console
    from rich.progress import track

    if Path(system).is_file():
        lines = list(_lines(Path(system)))
        if len(lines) != len(rows):
            raise ValueError(f"{system} has {len(lines)} lines, and the data {len(rows)} rows: an output a line")
        return lines
    column, key = ("image", "caption") if task == "image-to-text" else ("source", "translation_text")
    # One at a time: pictures would fill the memory
    inputs = (row[column] for row in rows.select_columns([column]))
    results = _pipeline(system, task)(inputs, batch_size=batch_size, **generation)
    console = Console(stderr=True)
    counted = track(results, system, len(rows), console=console, transient=True, disable=not console.is_terminal)
    return [outputs[0][key] for outputs in counted]


def _write_lines(lines: list[str], file: Path) -> None:
    for number, line in enumerate(lines):
        if "\n" in line or line.endswith("\r"):
            raise ValueError(f"--output {file}: output {number + 1} is no single line, {line[:40]!r}")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")


def _labels(systems: list[str]) -> list[str]:
    """Short names of systems, as long as they differ."""
    paths = [Path(system) for system in systems]
    # A run leaves its model in a folder of that name
    short = [path.parent.name if path.name == "model" and path.parent.name else path.name for path in paths]
    return short if len(set(short)) == len(short) and all(short) else list(map(str, systems))


def _tell_what_it_takes(recipe: str, overrides: list[str], options: dict[str, Any], as_json: bool) -> None:
    from transformers.utils import logging

    from .recipes import dry_run, find_recipe, load_recipe
    from .recipes.planning import figures, notes
    from .recipes.reporting import make_console, say

    logging.disable_progress_bar()
    with _plain_errors():
        told = dry_run(load_recipe(find_recipe(recipe), overrides), **options)
    if as_json:
        typer.echo(json.dumps(told.to_dict(), ensure_ascii=False))
        return
    console = make_console()
    console.print(_table(("what", "how much", "of which"), figures(told), f"{told.name}: nothing was trained"))
    for note in notes(told):
        say(console, note)


@contextmanager
def _plain_errors() -> Iterator[None]:
    """What a person has got wrong is told in a line, without a traceback."""
    try:
        yield
    except BrokenPipeError:
        raise
    # The package that an import lacks is an optional one, such as timm for a backbone
    except (ValueError, OSError, ImportError) as error:
        typer.echo(f"attnzoo: {' '.join(str(error).split())}", err=True)
        raise typer.Exit(2) from error


def _table(header: tuple[str, ...], rows: list[tuple[str, ...]], title: str | None = None) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(*header, title=Text(title) if title else None)
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _end_together() -> None:
    """Let the processes of a run end at the same time: one that leaves early takes the others down with it."""
    from torch import distributed

    if distributed.is_available() and distributed.is_initialized():
        distributed.barrier()
        distributed.destroy_process_group()


def _n_best(count: int, beams: int | None) -> dict[str, int]:
    if count == 1:
        return {}
    if beams is not None and beams < count:
        raise typer.BadParameter(f"--beams {beams} can't give --n-best {count}: take as many beams, or more")
    return {"num_return_sequences": count, "num_beams": beams or count}


def _generation_options(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _key_value(option: str) -> tuple[str, str]:
    key, equals, value = option.partition("=")
    if not equals:
        raise ValueError(f"{option!r} is not of the form key=value")
    return key, value


def _lines(file: Path | None) -> Iterator[str]:
    """Texts as they come, one a line, where only `\\n` and `\\r\\n` end a line."""
    where = file or "standard input"
    with file.open("rb") if file is not None else typer.get_binary_stream("stdin") as stream:
        for number, line in enumerate(stream, 1):
            try:
                yield line.decode().removesuffix("\n").removesuffix("\r")
            except UnicodeDecodeError as error:
                raise ValueError(f"{where}:{number}: not valid UTF-8") from error


def _read_lexicon(file: Path) -> dict[str, str]:
    lexicon = {}
    for number, line in enumerate(_lines(file), start=1):
        source, tab, target = line.partition("\t")
        if not tab or not source or not target:
            raise ValueError(f"{file}:{number}: expected a source word, a tab and a target word, got {line!r}")
        lexicon[source] = target
    return lexicon


# task of a family -> the pipeline that runs it, and the commands that take its models
_PIPELINES = {
    "seq2seq": ("attnzoo-translation", ("translate", "backtranslate", "attend", "evaluate")),
    "image-to-text": ("attnzoo-captioning", ("caption", "attend", "evaluate")),
    "causal-lm": ("text-generation", ("write", "few-shot", "attend", "evaluate")),
}


def _load(model: str) -> tuple[Any, Any]:
    """A model of any family, with the head that writes where it has one, and its tokenizer or processor."""
    import transformers

    with _found(model) as place:
        config = transformers.AutoConfig.from_pretrained(place)
        processor = transformers.AutoTokenizer
        if type(config) in transformers.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING:
            head, processor = transformers.AutoModelForImageTextToText, transformers.AutoProcessor
        elif config.is_encoder_decoder:
            head = transformers.AutoModelForSeq2SeqLM
        elif type(config) in transformers.MODEL_FOR_MASKED_LM_MAPPING:
            head = transformers.AutoModel
        else:
            head = transformers.AutoModelForCausalLM
        return head.from_pretrained(place), processor.from_pretrained(place)


def _pipeline(model: str, task: str = "seq2seq") -> Any:
    from transformers import pipeline

    _check_task(model, task)
    with _found(model) as place:
        return pipeline(_PIPELINES[task][0], model=place)


def _few_shot_pipeline(model: str) -> Any:
    from transformers import pipeline

    _check_task(model, "causal-lm")
    with _found(model) as place:
        return pipeline("attnzoo-few-shot", model=place)


def _embedder(embed: str | None) -> Any:
    """What nearness is measured by: a name, or a model that gives vectors of tokens."""
    from transformers import pipeline

    from .pipelines.prompting import SIMILARITIES

    if embed is None or embed in SIMILARITIES:
        return embed
    with _found(embed) as place:
        return pipeline("feature-extraction", model=place)


def _fields(text: str) -> str | dict[str, str]:
    """A query as it is typed: an object of JSON is its fields."""
    try:
        found = json.loads(text)
    except json.JSONDecodeError:
        return text
    return found if isinstance(found, dict) else text


def _check_task(model: str, *tasks: str) -> str:
    """What a model is for, which must be one of `tasks` if the model is of a family of ours."""
    family = _family(model)
    if family is None:
        return tasks[0]
    if family.task not in tasks:
        commands = ", ".join(f"attnzoo {command}" for command in _PIPELINES.get(family.task, ("", ("attend",)))[1])
        raise ValueError(f"{model}: a model of {family.name} is for {commands}")
    return family.task


def _family(model: str) -> Any:
    """The row of the registry that a model's configuration is of, None for a model of others."""
    from transformers import AutoConfig

    from .registry import FAMILIES

    with _found(model) as place:
        config = AutoConfig.from_pretrained(place)
    return next((family for family in FAMILIES.values() if isinstance(config, family.config_class)), None)


@contextmanager
def _found(model: str) -> Iterator[str]:
    """What to load quietly, a folder or a name on the Hub; a model that can't be had is named."""
    from transformers.utils import logging

    from .hub import find_model

    logging.disable_progress_bar()
    place = find_model(model)
    if not Path(place).exists() and not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", model):
        raise FileNotFoundError(f"{model}: no such folder")
    try:
        yield place
    except OSError as error:
        if Path(place).is_dir():
            raise
        raise FileNotFoundError(
            f"{model}: no such folder here, and no such model could be had from the Hub; "
            f"`attnzoo starters` has those of the package ({error})"
        ) from error
