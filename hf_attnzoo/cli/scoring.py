"""`attnzoo evaluate`."""

import json
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from ..folders import check_new_file
from ..wording import counted, counted_unit
from .base import (
    MOST_SEED,
    BatchOption,
    BeamsOption,
    LengthOption,
    TruncateOption,
    app,
    given_options,
    key_value,
    plain_errors,
    read_lines,
)
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
            "language model, of classes, of tags, or of answers. They say what files of outputs are: accuracy,f1,mcc, "
            "classes; entity_f1, tags; exact_match,f1, answers; the data may be such a file too."
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
    truncate: TruncateOption = False,
    generate: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Other settings of generate(): length_penalty=0.6.")
    ] = None,
    block_size: Annotated[
        int | None, typer.Option(min=2, help="Tokens that a language model reads at a time. Default: all it can.")
    ] = None,
    join_texts: Annotated[
        bool | None,
        typer.Option(
            help="Whether a language model reads texts as one, or each by itself. Default: as in training, if its "
            "folder says so, or as one."
        ),
    ] = None,
    answers_after: Annotated[
        str | None,
        typer.Option(
            help="What stands in front of answers, which alone count for a language model, such as '>'; '' for all. "
            "Default: as in training, if its folder says so, or all."
        ),
    ] = None,
    masking: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Of a masked language model: unit=word, ...")
    ] = None,
    batch_size: BatchOption = 32,
    seed: Annotated[int, typer.Option(min=0, max=MOST_SEED, help="Of what intervals and tests draw.")] = 0,
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
        task = _evaluated_task(systems, data, names)
        if masking and task != "masked-lm":
            raise ValueError(f"--masking {masking[0]} is for masked language models")
        if block_size is not None and task not in ("causal-lm", "masked-lm"):
            raise ValueError(f"--block-size {block_size} is for language models")
        for option, given in (("--join-texts", join_texts), ("--answers-after", answers_after)):
            if given is not None and task != "causal-lm":
                raise ValueError(f"{option} is for language models that read from left to right")
        if truncate and task != "seq2seq":
            raise ValueError("--truncate is for models that translate")
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
        for option, file in (("output", output), ("picture", picture)):
            if file is not None:
                check_new_file(file, option)
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
            reading = {"join_texts": join_texts, "answers_after": answers_after}
            report, tables = _foreseen(model, data, arguments, names, block_size, reading, batch_size, seed)
        else:
            generation = given_options(num_beams=beams, max_new_tokens=max_new_tokens, truncation=truncate or None)
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


def _evaluated_task(systems: list[str], data: str, names: list[str] | None) -> str:
    """What systems are for that may be models or files of outputs; of files alone the scores and the data tell."""
    from ..data.captions import METADATA
    from ..data.sources import CAPTION_SOURCES
    from ..evaluation import GENERATION_METRICS

    models = [system for system in systems if not Path(system).is_file()]
    tasks = {_purpose(system) for system in models}
    if not tasks:
        if names and not set(names) <= set(GENERATION_METRICS):
            from ..evaluation import JUDGED_TASKS

            fit = [task for task, judged in JUDGED_TASKS.items() if set(names) <= set(judged.metrics)]
            if len(fit) > 1:
                raise ValueError(
                    f"--metrics {','.join(names)} fits files for {' and for '.join(fit)}: name a score too that only "
                    "one of them has, such as mcc of classes, entity_f1 of tags, exact_match of answers"
                )
            if fit:
                return fit[0]
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
    title = f"{counted(len(rows), 'picture' if pictures else 'pair')} of {data}"
    return report, report_tables(report, names, labels, title, measure)


def _foreseen(
    model: str,
    data: str,
    arguments: dict[str, Any],
    names: list[str] | None,
    block_size: int | None,
    reading: dict[str, Any],
    batch_size: int,
    seed: int,
) -> tuple[dict[str, Any], list[Any]]:
    """Report and table on how likely a text is under a language model."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from ..data import load_text_source
    from ..evaluation import LIKELIHOOD_METRICS, parts_report, report_tables, text_likelihood
    from ..evaluation.likelihood import default_block_size, reading_signature

    for name in names or []:
        if name not in LIKELIHOOD_METRICS:
            raise ValueError(f"--metrics has {name!r}; those of a language model are {', '.join(LIKELIHOOD_METRICS)}")
    texts = load_text_source(data, **arguments)["text"]
    with named(model) as place:
        loaded, tokenizer = AutoModelForCausalLM.from_pretrained(place), AutoTokenizer.from_pretrained(place)
        trained = _reading(place)
    reading = trained | {name: value for name, value in reading.items() if value is not None}
    join, answers_after = reading.get("join_texts", True), reading.get("answers_after") or None
    if answers_after is not None:
        of_all = [name for name in LIKELIHOOD_METRICS if name.startswith("bits_per_")]
        for name in names or []:
            if name in of_all:
                raise ValueError(f"--metrics has {name!r}, which is of all tokens: say --answers-after ''")
        names = names or [name for name in LIKELIHOOD_METRICS if name not in of_all]
    names = names or list(LIKELIHOOD_METRICS)
    block_size = block_size or reading.get("block_size") or default_block_size(loaded)
    likelihood = text_likelihood(
        loaded,
        tokenizer,
        list(texts),
        block_size=block_size,
        batch_size=batch_size,
        join=join,
        answers_after=answers_after,
    )
    tokens = int(likelihood.losses[:, 1].sum())
    signature = reading_signature(block_size, join, answers_after, tokens)
    parts = {name: likelihood.statistics(name, signature) for name in names}
    report = {"tokens": tokens} | parts_report(parts, seed=seed)
    return report, report_tables(report, names, [model], f"{counted(tokens, 'token')} of {data}")


def _reading(place: str) -> dict[str, Any]:
    """How a model's folder, or its repository, says that texts were read in training."""
    from transformers.utils import cached_file

    from ..recipes.resume import METRICS

    quiet = {f"_raise_exceptions_for_{what}": False for what in ("missing_entries", "connection_errors")}
    file = cached_file(place, METRICS, **quiet)
    found = None if file is None else json.loads(Path(file).read_text(encoding="utf-8"))
    # Another program's file of that name is none of ours
    reading = found.get("reading") if isinstance(found, dict) else None
    return reading if isinstance(reading, dict) else {}


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
    from ..data.formats import format_of
    from ..evaluation import JUDGED_TASKS, judged_report, plot_confusion, report_tables

    if picture is not None:
        check_format(picture)
    judged = JUDGED_TASKS[task]
    models = [system for system in systems if not Path(system).is_file()]
    if not models and not arguments and Path(data).is_file() and format_of(Path(data)) is None:
        rows = _lines_alone(task, Path(data))
    else:
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
    return report, report_tables(report, names, _labels(systems), f"{counted_unit(len(rows), judged.unit)} of {data}")


def _lines_alone(task: str, file: Path) -> Any:
    """Rows of a file with what is right, one a line, and nothing of what it is said of."""
    from datasets import Dataset

    rows = {
        "text-classification": lambda line: {"text": "", "label": line},
        "token-classification": lambda line: {"tokens": [""] * len(line.split()), "tags": line.split()},
        "question-answering": lambda line: {"question": "", "answers": [line] if line else []},
    }
    return Dataset.from_list([rows[task](line) for line in read_lines(file)])


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
    return report, report_tables(report, names, _labels(systems), f"{counted(tokens, 'masked token')} of {data}")


def _outputs(system: str, task: str, rows: Any, generation: dict[str, Any], batch_size: int) -> list[str]:
    """What a model writes for rows, or a file says that it has written."""
    if Path(system).is_file():
        lines = list(read_lines(Path(system)))
        if len(lines) != len(rows):
            found = f"{counted(len(lines), 'line')}, and the data {counted(len(rows), 'row')}"
            raise ValueError(f"{system} has {found}: an output a line")
        return lines
    column, key = ("image", "caption") if task == "image-to-text" else ("source", "translation_text")
    # One at a time: pictures would fill the memory
    inputs = (row[column] for row in rows.select_columns([column]))
    try:
        results = load_pipeline(system, task)(inputs, batch_size=batch_size, **generation)
        return [outputs[0][key] for outputs in _tracked(results, system, len(rows))]
    except TypeError as error:
        texts = [f"--generate {name}={value!r}" for name, value in generation.items() if isinstance(value, str)]
        if not texts:
            raise
        raise ValueError(f"{' or '.join(texts)} may be of a wrong type: {error}") from error


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
