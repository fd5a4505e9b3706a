"""Commands that let a model write: translate, backtranslate, caption, write, few-shot."""

import json
from pathlib import Path
from typing import Annotated

import typer

from ..wording import counted
from .base import (
    MOST_SEED,
    BatchOption,
    BeamsOption,
    LengthOption,
    ModelArgument,
    NBestOption,
    ScoresOption,
    TruncateOption,
    app,
    given_options,
    n_best_options,
    plain_errors,
    read_lines,
)
from .loading import load_embedder, load_few_shot_pipeline, load_pipeline


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
    truncate: TruncateOption = False,
    batch_size: BatchOption = 32,
) -> None:
    """Translate a text, a file, or standard input, a line at a time."""
    if text is not None and file is not None:
        raise typer.BadParameter("give a text or --file, not both")
    options = given_options(num_beams=beams, max_new_tokens=max_new_tokens, truncation=truncate or None)
    options |= n_best_options(n_best, beams)
    if lexicon is not None and not replace_unknown:
        raise typer.BadParameter("--lexicon is for --replace-unknown, which is missing")
    with plain_errors():
        if replace_unknown:
            options["replace_unknown"] = True if lexicon is None else _read_lexicon(lexicon)
        lines = iter([text]) if text is not None else read_lines(file)
        for outputs in load_pipeline(model)(lines, batch_size=batch_size, return_scores=scores, **options):
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
    seed: Annotated[int, typer.Option(min=0, max=MOST_SEED, help="Of what is drawn.")] = 0,
    beams: BeamsOption = None,
    max_new_tokens: LengthOption = None,
    truncate: TruncateOption = False,
    batch_size: BatchOption = 32,
) -> None:
    """Make training pairs of texts without a source: MODEL, which translates the other way, writes their sources."""
    from transformers import set_seed

    from ..data import back_translate

    if sample and (beams or 1) > 1:
        raise typer.BadParameter(f"--sample draws one text: leave out --beams {beams}")
    options = given_options(
        num_beams=1 if sample else beams, max_new_tokens=max_new_tokens, truncation=truncate or None
    )
    if sample:
        options |= {"do_sample": True, "top_k": 0}
    set_seed(seed)
    with plain_errors():
        pairs, left_out = back_translate(
            load_pipeline(model), read_lines(file), output, tag=tag, batch_size=batch_size, **options
        )
    typer.echo(f"{output}: {counted(pairs, 'pair')}; {counted(left_out, 'line')} left out")


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
    options = given_options(num_beams=beams, max_new_tokens=max_new_tokens) | n_best_options(n_best, beams)
    with plain_errors():
        results = load_pipeline(model, "image-to-text")(images, batch_size=batch_size, return_scores=scores, **options)
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
        typer.Option(
            min=0.0,
            help="Draw from the model's probabilities, sharpened below 1; 0: the likeliest. Default: the model's own.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=MOST_SEED, help="Of what is drawn.")] = 0,
) -> None:
    """Go on with a text, a token at a time, as a language model would."""
    from transformers import TextStreamer, set_seed

    options = given_options(max_new_tokens=max_new_tokens, temperature=temperature or None)
    set_seed(seed)
    with plain_errors():
        pipe = load_pipeline(model, "causal-lm")
        # Left to itself the pipeline draws, whatever the model's own settings are.
        options["do_sample"] = bool(pipe.model.generation_config.do_sample if temperature is None else temperature)
        if temperature:
            # All tokens count, not the 50 likeliest alone
            options["top_k"] = 0
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
    seed: Annotated[int, typer.Option(min=0, max=MOST_SEED, help="Of what --select random draws.")] = 0,
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
    from ..data import load_examples, load_few_shot_task

    with plain_errors():
        options = load_few_shot_task(task) | given_options(shots=shots, max_new_tokens=max_new_tokens)
        if examples is not None:
            options["examples"] = load_examples(examples)
        if labels is not None:
            options["labels"] = [label.strip() for label in labels.split(",")]
        options |= {"select": select, "seed": seed, "calibrate": calibrate, "return_scores": scores}
        pipe = load_few_shot_pipeline(model)
        options["embed"] = load_embedder(embed)
        texts = iter([query]) if query is not None else read_lines(None)
        for answer in pipe((_fields(text) for text in texts), batch_size=batch_size, **options):
            if "generated_text" in answer:
                score = f"{answer['score']:.4f}\t" if scores else ""
                typer.echo(f"{score}{answer['generated_text']}")
                continue
            for one in answer if scores else [answer]:
                typer.echo(f"{one['score']:.4f}\t{one['label']}" if scores else one["label"])


def _read_lexicon(file: Path) -> dict[str, str]:
    lexicon = {}
    for number, line in enumerate(read_lines(file), start=1):
        source, tab, target = line.partition("\t")
        if not tab or not source or not target:
            raise ValueError(f"{file}:{number}: expected a source word, a tab and a target word, got {line!r}")
        lexicon[source] = target
    return lexicon


def _fields(text: str) -> str | dict[str, str]:
    """A query as it is typed: an object of JSON is its fields."""
    try:
        found = json.loads(text)
    except json.JSONDecodeError:
        return text
    return found if isinstance(found, dict) else text
