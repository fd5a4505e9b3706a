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
    str, typer.Argument(metavar="MODEL", help="Folder of a saved model, or its name on the Hub.")
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
) -> None:
    """Train a model from a recipe, score it, draw its attention, save it, load it back."""
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
    layer: Annotated[int, typer.Option(help="Layer, from 0, or from -1 backwards.")] = -1,
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
        drawn = attention_map(loaded, processor, text, target, kind=kind, layer=layer, head=head, **options)
        if isinstance(drawn, AttentionMap):
            drawn = drawn.by_words() if words else drawn
            drawn = drawn.rollout() if rollout else drawn
        elif words or rollout or heads:
            raise ValueError("--words, --rollout and --heads are for the attention of texts, not of pictures")
        suffix = output.suffix.lower()
        if suffix in (".html", ".htm"):
            drawn.to_html(output)
        elif suffix in (".gif", ".webp"):
            drawn.animate(output)
        elif heads:
            drawn.plot_heads(output)
        else:
            drawn.plot(output)
    written = drawn.target_text if isinstance(drawn, AttentionMap) else drawn.text
    typer.echo(f"{text}: {output}" if written == text else f"{text} → {written}: {output}")


@app.command()
def evaluate(
    model: ModelArgument,
    data: Annotated[str, typer.Argument(help="File, folder, dataset on the Hub, or a built-in source such as dates.")],
    options: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Arguments of the data, such as split=test.")
    ] = None,
    metrics: Annotated[
        str, typer.Option(help="Scores, with commas between them.")
    ] = "exact_match,token_error_rate,bleu,chrf",
    tokenize: Annotated[str, typer.Option(help="Tokens of BLEU and of the token scores.")] = "13a",
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Leave case out of account.")] = False,
    beams: BeamsOption = None,
    max_new_tokens: LengthOption = None,
    batch_size: BatchOption = 32,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Score what a model writes for a dataset: translations of texts, or captions of pictures."""
    from .data import load_caption_source, load_source, references
    from .evaluation import generation_metrics
    from .recipes.reading import read_yaml
    from .recipes.reporting import make_console

    settings = {"lowercase": lowercase, "tokenize": tokenize, "names": [name.strip() for name in metrics.split(",")]}
    with _plain_errors():
        # A misspelt score is refused before anything is translated.
        generation_metrics(["a"], ["a"], **settings)
        arguments = {key: read_yaml(value, key) for key, value in map(_key_value, options or [])}
        if "name_or_path" in arguments:
            raise ValueError(f"name_or_path={arguments['name_or_path']}: the data has been named already, {data}")
        task = _check_task(model, "seq2seq", "image-to-text")
        pictures = task == "image-to-text"
        rows = load_caption_source(data, **arguments) if pictures else load_source(data, **arguments)
        sources, key = (rows["image"], "caption") if pictures else (rows["source"], "translation_text")
        generation = _generation_options(num_beams=beams, max_new_tokens=max_new_tokens)
        results = _pipeline(model, task)(list(sources), batch_size=batch_size, **generation)
        outputs = [item[key] for item in results]
        scores = generation_metrics(outputs, references(rows), **settings)
    unit = "pictures" if pictures else "pairs"
    if as_json:
        typer.echo(json.dumps({unit: len(outputs), **scores}, ensure_ascii=False))
        return
    cells = [
        (name, f"{value:.4f}", str(scores[f"{name}_signature"]))
        for name, value in scores.items()
        if not name.endswith("_signature")
    ]
    make_console().print(_table(("score", "value", "settings"), cells, f"{len(outputs):,} {unit} of {data}"))


@app.command()
def convert(
    source: Annotated[
        Path, typer.Argument(help="Folder of a saved model, or a file of a training program, such as ckpt.pt.")
    ],
    target: Annotated[Path, typer.Argument(help="Folder to write.")],
    to: Annotated[str, typer.Option("--to", help="attnzoo, or transformers for the way back.")] = "attnzoo",
) -> None:
    """Turn a checkpoint of another kind into one of the zoo, or one of the zoo into transformers' own."""
    from transformers.utils import logging

    from .conversion import convert as convert_checkpoint

    logging.disable_progress_bar()
    with _plain_errors():
        convert_checkpoint(source, target, to)
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


@contextmanager
def _plain_errors() -> Iterator[None]:
    """What a person has got wrong is told in a line, without a traceback."""
    try:
        yield
    except BrokenPipeError:
        raise
    # The package that an import lacks is an optional one, such as timm for a backbone
    except (ValueError, OSError, ImportError, FloatingPointError) as error:
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
    "seq2seq": ("attnzoo-translation", ("translate", "attend", "evaluate")),
    "image-to-text": ("attnzoo-captioning", ("caption", "attend", "evaluate")),
    "causal-lm": ("text-generation", ("write", "attend")),
}


def _load(model: str) -> tuple[Any, Any]:
    """A model of any family, with the head that writes where it has one, and its tokenizer or processor."""
    import transformers

    with _named(model):
        config = transformers.AutoConfig.from_pretrained(model)
        processor = transformers.AutoTokenizer
        if type(config) in transformers.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING:
            head, processor = transformers.AutoModelForImageTextToText, transformers.AutoProcessor
        elif config.is_encoder_decoder:
            head = transformers.AutoModelForSeq2SeqLM
        elif type(config) in transformers.MODEL_FOR_MASKED_LM_MAPPING:
            head = transformers.AutoModel
        else:
            head = transformers.AutoModelForCausalLM
        return head.from_pretrained(model), processor.from_pretrained(model)


def _pipeline(model: str, task: str = "seq2seq") -> Any:
    from transformers import pipeline

    _check_task(model, task)
    with _named(model):
        return pipeline(_PIPELINES[task][0], model=model)


def _check_task(model: str, *tasks: str) -> str:
    """What a model is for, which must be one of `tasks` if the model is of a family of ours."""
    family = _family(model)
    if family is None:
        return tasks[0]
    if family.task not in tasks:
        commands = ", ".join(f"attnzoo {command}" for command in _PIPELINES[family.task][1])
        raise ValueError(f"{model}: a model of {family.name} is for {commands}")
    return family.task


def _family(model: str) -> Any:
    """The row of the registry that a model's configuration is of, None for a model of others."""
    from transformers import AutoConfig

    from .registry import FAMILIES

    with _named(model):
        config = AutoConfig.from_pretrained(model)
    return next((family for family in FAMILIES.values() if isinstance(config, family.config_class)), None)


@contextmanager
def _named(model: str) -> Iterator[None]:
    """Load quietly; a model that can't be had is named."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    if not Path(model).exists() and not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", model):
        raise FileNotFoundError(f"{model}: no such folder")
    try:
        yield
    except OSError as error:
        if Path(model).is_dir():
            raise
        raise FileNotFoundError(
            f"{model}: no such folder here, and no such model could be had from the Hub ({error})"
        ) from error
