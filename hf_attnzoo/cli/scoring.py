"""`attnzoo evaluate`."""

import json
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from .base import BatchOption, BeamsOption, LengthOption, app, given_options, key_value, plain_errors, read_lines
from .loading import check_task, load_pipeline, named


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
            "language model, of classes, of tags, or of answers."
        ),
    ] = None,
    tokenize: Annotated[str, typer.Option(help="Tokens of BLEU, GLEU and the token scores.")] = "13a",
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Leave case out of account.")] = False,
    bins: Annotated[
        str | None, typer.Option(help="Report by source length: tokens that a bin is wide, or edges such as 1,10,20.")
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(help="Draw it, or which classes are taken for each other: .png, .svg or .pdf.")
    ] = None,
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
    masking: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Of a masked language model: unit=word, ...")
    ] = None,
    batch_size: BatchOption = 32,
    seed: Annotated[int, typer.Option(help="Of what intervals and tests draw.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Score what a model writes for a dataset, translations or captions, or how well it foresees a text.

    Or what it says of texts, of their words, or of questions about them, and how well it guesses masked words.
    """
    from ..recipes.reading import read_yaml
    from ..recipes.reporting import make_console

    names = None if metrics is None else [name.strip() for name in metrics.split(",")]
    with plain_errors():
        arguments = {key: read_yaml(value, key) for key, value in map(key_value, options or [])}
        if "name_or_path" in arguments:
            raise ValueError(f"name_or_path={arguments['name_or_path']}: the data has been named already, {data}")
        systems = [model] if against is None else [model, against]
        task = _evaluated_task(systems, data)
        if masking and task != "masked-lm":
            raise ValueError(f"--masking {masking[0]} is for masked language models")
        if block_size is not None and task not in ("causal-lm", "masked-lm"):
            raise ValueError(f"--block-size {block_size} is for language models")
        if task in _JUDGED or task == "masked-lm":
            guessing = task == "masked-lm"
            _only_for_texts(
                bins=bins,
                picture=picture if task != "text-classification" else None,
                measure=measure,
                worst=worst or None if guessing else None,
                worst_by=worst_by if worst_by != "chrf" else None,
                output=output if guessing else None,
                beams=beams,
                max_new_tokens=max_new_tokens,
                generate=generate,
                lowercase=lowercase or None,
                tokenize=tokenize if tokenize != "13a" else None,
            )
        if task == "masked-lm":
            chosen = {key: read_yaml(value, key) for key, value in map(key_value, masking or [])}
            report, tables = _guessed(systems, data, arguments, names, block_size, chosen, batch_size, seed)
        elif task in _JUDGED:
            report, tables = _judged(systems, task, data, arguments, names, worst, picture, output, batch_size, seed)
        elif task == "causal-lm":
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
            generation = given_options(num_beams=beams, max_new_tokens=max_new_tokens)
            generation |= {key: read_yaml(value, key) for key, value in map(key_value, generate or [])}
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


def _evaluated_task(systems: list[str], data: str) -> str:
    """What systems are for that may be models or files of outputs; of files alone the data tells."""
    from ..data.captions import METADATA
    from ..data.sources import CAPTION_SOURCES

    models = [system for system in systems if not Path(system).is_file()]
    tasks = {_purpose(system) for system in models}
    if not tasks:
        pictures = data in CAPTION_SOURCES or Path(data).name in METADATA
        pictures = pictures or any(any(Path(data).glob(f"{depth}{name}")) for name in METADATA for depth in ("", "*/"))
        return "image-to-text" if pictures else "seq2seq"
    if len(tasks) > 1:
        raise ValueError(f"{' and '.join(systems)} are for different things, {' and '.join(sorted(tasks))}")
    return tasks.pop()


# What the name of a model's class ends with -> what commands other than that of its family evaluate it for
_ENDINGS = {
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
    "ForMaskedLM": "masked-lm",
    "ForPreTraining": "masked-lm",
}


_JUDGED = ("text-classification", "token-classification", "question-answering")


def _purpose(model: str) -> str:
    """What a model is evaluated for: what its head is for, or its family."""
    from transformers import AutoConfig

    with named(model) as place:
        names = AutoConfig.from_pretrained(place).architectures or [""]
    for ending, task in _ENDINGS.items():
        if names[0].endswith(ending):
            return task
    return check_task(model, "seq2seq", "image-to-text", "causal-lm")


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
    from ..attention_maps.plotting import check_format
    from ..data import load_caption_source, load_source, references
    from ..evaluation import by_length, evaluation_report, length_bins, plot_by_length, report_tables

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

    from ..data import load_text_source
    from ..evaluation import LIKELIHOOD_METRICS, report_tables, score_interval, text_likelihood
    from ..evaluation.likelihood import default_block_size

    names = list(LIKELIHOOD_METRICS) if names is None else names
    for name in names:
        if name not in LIKELIHOOD_METRICS:
            raise ValueError(f"--metrics has {name!r}; those of a language model are {', '.join(LIKELIHOOD_METRICS)}")
    texts = load_text_source(data, **arguments)["text"]
    with named(model) as place:
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


def _judged(
    systems: list[str],
    task: str,
    data: str,
    arguments: dict[str, Any],
    names: list[str] | None,
    worst: int,
    picture: Path | None,
    output: Path | None,
    batch_size: int,
    seed: int,
) -> tuple[dict[str, Any], list[Any]]:
    """Report and tables on what systems say of texts."""
    from transformers import pipeline

    from ..attention_maps.plotting import check_format
    from ..data import load_annotated_source
    from ..evaluation import JUDGED_TASKS, judged_report, plot_confusion, report_tables

    if picture is not None:
        check_format(picture)
    judged = JUDGED_TASKS[task]
    rows = load_annotated_source(task, data, **arguments)
    names = names or list(judged.metrics)
    loaded: list[Any] = []
    for system in systems:
        if Path(system).is_file():
            loaded.append(list(read_lines(Path(system))))
        else:
            with named(system) as place:
                loaded.append(pipeline(judged.pipeline, model=place))
    report, answers = judged_report(
        judged,
        loaded,
        rows,
        names,
        worst=worst,
        batch_size=batch_size,
        track=lambda number, given: _tracked(given, systems[number], len(rows)),
        seed=seed,
    )
    report = {judged.unit: len(rows)} | report
    if output is not None:
        _write_lines(answers[0].lines, output)
    if picture is not None:
        plot_confusion(
            report["confusion"]["classes"], report["confusion"]["counts"], picture, title=_labels(systems)[0]
        )
    return report, report_tables(report, names, _labels(systems), f"{len(rows):,} {judged.unit} of {data}")


def _guessed(
    systems: list[str],
    data: str,
    arguments: dict[str, Any],
    names: list[str] | None,
    block_size: int | None,
    masking: dict[str, Any],
    batch_size: int,
    seed: int,
) -> tuple[dict[str, Any], list[Any]]:
    """Report and tables on how well masked language models guess words."""
    import inspect

    from transformers import AutoModelForMaskedLM, AutoTokenizer

    from ..data import MaskingCollator, load_text_source
    from ..evaluation import MASKED_METRICS, masked_likelihood, masked_statistics, parts_report, report_tables
    from ..pipelines.question_answering import most_tokens

    names = names or list(MASKED_METRICS)
    for name in names:
        if name not in MASKED_METRICS:
            raise ValueError(f"--metrics has {name!r}; those of masked words are {', '.join(MASKED_METRICS)}")
    known = [name for name in inspect.signature(MaskingCollator).parameters if name != "tokenizer"]
    for name in masking:
        if name not in known:
            raise ValueError(f"--masking {name}={masking[name]}: there are {', '.join(known)}")
    masking = {"unit": "token", "probability": 0.15, "seed": 0} | masking
    texts = list(load_text_source(data, **arguments)["text"])
    parts, vocabularies = [], []
    for system in systems:
        if Path(system).is_file():
            raise ValueError(f"{system} is a file, and masked words are guessed by models")
        with named(system) as place:
            model, tokenizer = AutoModelForMaskedLM.from_pretrained(place), AutoTokenizer.from_pretrained(place)
        vocabularies.append(tokenizer.get_vocab())
        if vocabularies[0] != vocabularies[-1]:
            raise ValueError(f"{' and '.join(systems)} have different vocabularies, and so different words are masked")
        # Blocks of the first system are those of both: they guess the same words.
        block_size = block_size or most_tokens(model, tokenizer)
        sums = masked_likelihood(model, tokenizer, texts, block_size=block_size, batch_size=batch_size, **masking)
        tokens = int(sums[:, 2].sum())
        settings = f"unit:{masking['unit']}|share:{masking['probability']}|masks:seed {masking['seed']}"
        signature = f"{settings}|block:{block_size}|tokens:{tokens}"
        parts.append({name: masked_statistics(name, sums, signature) for name in names})
    report = {"tokens": tokens} | parts_report(*parts, seed=seed)
    return report, report_tables(report, names, _labels(systems), f"{tokens:,} masked tokens of {data}")


def _outputs(system: str, task: str, rows: Any, generation: dict[str, Any], batch_size: int) -> list[str]:
    """What a model writes for rows, or a file says that it has written."""
    if Path(system).is_file():
        lines = list(read_lines(Path(system)))
        if len(lines) != len(rows):
            raise ValueError(f"{system} has {len(lines)} lines, and the data {len(rows)} rows: an output a line")
        return lines
    column, key = ("image", "caption") if task == "image-to-text" else ("source", "translation_text")
    # One at a time: pictures would fill the memory
    inputs = (row[column] for row in rows.select_columns([column]))
    results = load_pipeline(system, task)(inputs, batch_size=batch_size, **generation)
    try:
        return [outputs[0][key] for outputs in _tracked(results, system, len(rows))]
    except ValueError as error:
        # What the pipeline calls an argument is an option here.
        raise ValueError(str(error).replace("truncation=True", "--generate truncation=true")) from error


def _tracked(results: Any, system: str, total: int) -> Any:
    """Results as they come, with a bar in a terminal."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    return track(results, system, total, console=console, transient=True, disable=not console.is_terminal)


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
