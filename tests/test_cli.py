"""The command line, in process: what it prints, and how it says no."""

import errno
import json
import os
import runpy
import shlex
import shutil
import sys
import weakref
from pathlib import Path

import pytest
import typer
import yaml
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
from typer.testing import CliRunner

from hf_attnzoo import (
    RNNLMConfig,
    ShowAttendTellConfig,
    TransformerConfig,
    TransformerForConditionalGeneration,
)
from hf_attnzoo.cli import app
from hf_attnzoo.data import load_source

ROOT = Path(__file__).parents[1]
ROWS = ["split=test", "size=5", "min_length=1", "max_length=4", "symbols=5"]


@pytest.fixture
def call(monkeypatch):
    """Runs a command; returns what it printed, or the one line of its error where `fails`."""
    monkeypatch.delenv("COLUMNS", raising=False)

    def call(*arguments, stdin=None, fails=False):
        result = CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)
        if not fails:
            assert result.exit_code == 0, result.output
            return result.stdout
        assert result.exit_code == 2
        assert result.stdout == ""
        lines = result.stderr.splitlines()
        assert len(lines) == 1
        assert lines[0].startswith("attnzoo: ")
        return lines[0].removeprefix("attnzoo: ")

    return call


@pytest.fixture(scope="module")
def folder(tiny_run):
    return tiny_run.model


@pytest.fixture(scope="module")
def expected(folder):
    """What plain `generate()` makes of a text."""
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)

    def expected(text, **options):
        ids = model.generate(**tokenizer(text, return_tensors="pt"), **options)
        return tokenizer.batch_decode(ids, skip_special_tokens=True)

    return expected


def test_translate_an_argument(call, folder, expected):
    assert call("translate", folder, "c a b a") == f"{expected('c a b a')[0]}\n"


def test_translate_standard_input_line_by_line(call, folder, expected):
    texts = ["a a", "", "c a b a", "e d d"]
    lines = call("translate", folder, stdin="a a\n\r\nc a b a\r\ne d d").split("\n")
    assert lines == [*(expected(text)[0] for text in texts), ""]
    assert len(set(lines)) > 2
    assert call("translate", folder, stdin="") == ""


def test_translate_a_file_whose_lines_end_at_newlines_only(call, folder, expected, tmp_path):
    texts = ["a a", "b\u2028e\x0ca\x85b\x1cc", "e d d"]
    (tmp_path / "in.txt").write_bytes("\n".join(texts).encode() + b"\n")
    lines = call("translate", folder, "-f", tmp_path / "in.txt", "--batch-size", 2).split("\n")
    assert lines == [*(expected(text)[0] for text in texts), ""]


def test_translate_n_best_with_scores(call, folder, expected):
    lines = call("translate", folder, "--n-best", 3, "--scores", stdin="c a b a\ne d d\n").splitlines()
    scores, texts = zip(*(line.split("\t") for line in lines), strict=True)
    beams = {"num_beams": 3, "num_return_sequences": 3}
    assert list(texts) == expected("c a b a", **beams) + expected("e d d", **beams)
    scores = list(map(float, scores))
    assert scores[:3] == sorted(scores[:3], reverse=True)
    assert scores[3:] == sorted(scores[3:], reverse=True)
    assert max(scores) < 0


def test_translate_options_reach_generation(call, folder, expected):
    assert (
        call("translate", folder, "c a b a", "--max-new-tokens", 1) == f"{expected('c a b a', max_new_tokens=1)[0]}\n"
    )
    assert call("translate", folder, "c a b a", "-b", 4) == f"{expected('c a b a', num_beams=4)[0]}\n"


def test_translate_replaces_unknown_words(call, folder, monkeypatch, tmp_path):
    asked = []

    def pipe(lines, **options):
        asked.append(options["replace_unknown"])
        return [[{"translation_text": line}] for line in lines]

    monkeypatch.setattr("hf_attnzoo.cli.writing.load_pipeline", lambda model: pipe)
    (tmp_path / "lexicon.tsv").write_text("Haus\thouse\nder Hund\tthe dog\n", encoding="utf-8")
    call("translate", folder, "a", "--replace-unknown")
    call("translate", folder, "a", "--replace-unknown", "--lexicon", tmp_path / "lexicon.tsv")
    assert asked == [True, {"Haus": "house", "der Hund": "the dog"}]
    (tmp_path / "bad.tsv").write_text("Haus\thouse\nHund dog\n", encoding="utf-8")
    message = call("translate", folder, "a", "--replace-unknown", "--lexicon", tmp_path / "bad.tsv", fails=True)
    assert message.startswith(f"{tmp_path}/bad.tsv:2: ")
    assert CliRunner().invoke(app, ["translate", str(folder), "a", "--lexicon", "x.tsv"]).exit_code == 2


def test_attend_draws(call, folder, tmp_path, expected):
    printed = call("attend", folder, "e d d", "-o", tmp_path / "maps" / "map.png")
    assert printed == f"e d d → {expected('e d d')[0]}: {tmp_path}/maps/map.png\n"
    assert (tmp_path / "maps" / "map.png").read_bytes()[:4] == b"\x89PNG"
    printed = call("attend", folder, "e d d", "-t", "d d e", "-o", tmp_path / "map.svg")
    assert printed == f"e d d → d d e: {tmp_path}/map.svg\n"
    assert "<svg" in (tmp_path / "map.svg").read_text()


def test_evaluate_agrees_with_the_run(call, folder, tiny_run):
    names = [name for name in tiny_run.metrics if not name.endswith("_signature")]
    arguments = ["evaluate", folder, "reverse", *ROWS, "--tokenize", "none", "--metrics", ", ".join(names)]
    intervals = json.loads((tiny_run.model / "metrics.json").read_text())["intervals"]
    assert sorted(intervals) == sorted(names)
    assert json.loads(call(*arguments, "--json")) == {"pairs": 5, **tiny_run.metrics, "intervals": intervals}
    lines = call(*arguments).splitlines()
    assert "5 pairs of reverse" in lines[0]
    for name in names:
        row = next(line for line in lines if f"│ {name} " in line)
        assert [cell.strip() for cell in row.split("│")[1:-1]] == [
            name,
            f"{tiny_run.metrics[name]:.4f}",
            "{:.4f} to {:.4f}".format(*intervals[name]),
            tiny_run.metrics[f"{name}_signature"],
        ]


def test_evaluate_a_file_and_fold_case(call, folder, tmp_path, expected):
    right = expected("e d d")[0]
    (tmp_path / "[b]pairs.tsv").write_text(f"e d d\t{right.upper()}\ne d d\tnothing like it\n")
    options = ["--metrics", "exact_match", "--json"]
    assert json.loads(call("evaluate", folder, tmp_path / "[b]pairs.tsv", *options))["exact_match"] == 0
    assert (
        json.loads(call("evaluate", folder, tmp_path / "[b]pairs.tsv", *options, "--lowercase"))["exact_match"] == 0.5
    )
    assert "[b]pairs.tsv" in call("evaluate", folder, tmp_path / "[b]pairs.tsv", "--metrics", "bleu,exact_match")


def test_evaluate_two_systems(call, folder, tmp_path, expected):
    sources = ["a a", "c a b a", "e d d"]
    written = [expected(source)[0] for source in sources]
    pairs = [f"{source}\tx {text}\n" for source, text in zip(sources, written, strict=True)]
    (tmp_path / "pairs.tsv").write_text("".join(pairs))
    (tmp_path / "other.txt").write_text("".join(f"x {text}\n" for text in written[:2]) + "no\n")
    options = [tmp_path / "pairs.tsv", "--metrics", "exact_match,bleu", "--tokenize", "none"]
    picture = ["--picture", tmp_path / "out" / "by_length.png", "--bins", 3, "--measure", "exact_match"]
    arguments = [*options, "--against", tmp_path / "other.txt", "-o", tmp_path / "kept" / "out.txt"]
    report = json.loads(call("evaluate", folder, *arguments, *picture, "--worst", 1, "--json"))
    assert (tmp_path / "kept" / "out.txt").read_text().splitlines() == written
    assert (report["exact_match"], report["against"]["exact_match"]) == (0, pytest.approx(2 / 3))
    comparison = report["against"]["comparison"]["exact_match"]
    assert comparison["difference"] == pytest.approx(-2 / 3)
    # Where two of three differ: both as they are, or both the other way round
    assert comparison["p_randomization"] == pytest.approx(1 / 2, abs=0.02)
    spans = [
        [(span["low"], span["high"], span["count"], span["scores"]) for span in one["by_length"]]
        for one in (report, report["against"])
    ]
    assert spans[0] == [(0, 2, 1, {"exact_match": 0}), (3, 5, 2, {"exact_match": 0})]
    assert spans[1] == [(0, 2, 1, {"exact_match": 1}), (3, 5, 2, {"exact_match": 0.5})]
    (worst,) = report["worst"]
    assert worst["output"] == written[worst["row"]]
    assert worst["references"] == [f"x {worst['output']}"]
    assert (tmp_path / "out" / "by_length.png").read_bytes()[:4] == b"\x89PNG"

    # Outputs that were kept are scored alike, without the model
    kept = [tmp_path / "kept" / "out.txt", *arguments[:-2], *picture, "--worst", 1, "--json"]
    again = json.loads(call("evaluate", *kept))
    assert again == report
    lines = call("evaluate", folder, *arguments, *picture, "--worst", 1)
    for part in ("run less other.txt, paired", "exact_match by source length", "the 1 worst", "3 to 5"):
        assert part in lines


def test_evaluate_generates_as_it_is_told(call, folder, tmp_path, expected):
    (tmp_path / "pairs.tsv").write_text("c a b a\ta\n")
    options = ["--metrics", "exact_match", "--generate", "length_penalty=-3.5", "--beams", 4, "--max-new-tokens", 3]
    call("evaluate", folder, tmp_path / "pairs.tsv", *options, "-o", tmp_path / "out.txt")
    text = expected("c a b a", length_penalty=-3.5, num_beams=4, max_new_tokens=3)[0]
    assert (tmp_path / "out.txt").read_text() == f"{text}\n"


def test_evaluate_looks_at_one_picture_at_a_time(call, monkeypatch, tmp_path):
    alive = []

    def pipe(pictures, batch_size):
        for picture in pictures:
            alive.append(weakref.ref(picture))
            assert sum(one() is not None for one in alive) <= 2
            yield [{"caption": "a red circle"}]

    monkeypatch.setattr("hf_attnzoo.cli.scoring.load_pipeline", lambda model, task: pipe)
    ShowAttendTellConfig().save_pretrained(tmp_path)
    options = ["shapes", "split=test", "size=12", "--metrics", "exact_match", "--json"]
    report = json.loads(call("evaluate", tmp_path, *options, "-o", tmp_path / "out.txt"))
    assert report["pictures"] == len(alive) == 12
    # Captions in a file, of a source of pictures
    assert json.loads(call("evaluate", tmp_path / "out.txt", *options)) == report


def test_families_and_recipes_are_listed_in_whole_lines(call):
    lines = call("families").splitlines()
    row = next(line for line in lines if "│ rnnsearch " in line)
    for cell in ("Bahdanau, Cho and Bengio (2015)", "rnnsearch-50, rnnencdec-50, tiny", "attnzoo-translation"):
        assert cell in row
    recipes = ROOT / "training" / "recipes"
    names = sorted(path.stem for path in recipes.glob("*.yaml"))
    names += sorted(f"papers/{path.stem}" for path in recipes.glob("papers/*.yaml"))
    assert lines[-1] == f"recipes: {', '.join(names)}"


@pytest.mark.parametrize(("given", "expected"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_waiting_threads_sleep_unless_told_otherwise(call, monkeypatch, given, expected):
    monkeypatch.setenv("OMP_WAIT_POLICY", given or "")
    if given is None:
        monkeypatch.delenv("OMP_WAIT_POLICY")
    call("families")
    assert os.environ["OMP_WAIT_POLICY"] == expected


@pytest.mark.parametrize("command", [[], ["train"], ["translate"], ["attend"], ["evaluate"], ["families"]])
def test_help(call, command):
    assert "Usage:" in call(*command, "--help")


def test_train_and_what_it_says_to_type_next(call, recipe_content, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    content = recipe_content(
        "runs/it's mine", data__options={"symbols": ["-1", "-$b", "-it's"], "max_length": 5, "min_length": 1}
    )
    content["data"] |= {"train": {"size": 15}, "validation": {"size": 1}, "test": {"size": 1}}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(content))
    lines = call("train", "mine.yaml", "training.max_steps=1", "training.learning_rate=1e-3").splitlines()
    assert lines[-4:-2] == ["model and card are in runs/it's mine/model. Next:", ""]
    assert lines[-1] == "  attnzoo train parallel-text data.source=YOUR_PAIRS.tsv"
    program, *arguments = shlex.split(lines[-2])
    assert program == "attnzoo"
    assert arguments[-1].startswith("-")
    assert arguments[-1] == next(iter(load_source("reverse", "test", **content["data"]["options"], size=1)))["source"]
    assert call(*arguments).count("\n") == 1
    assert json.loads(Path("runs/it's mine/model/metrics.json").read_text())["steps"] == 1


def test_the_script_is_the_same_door(recipe_content, tmp_path, monkeypatch, capsys):
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(recipe_content(tmp_path / "run", training__max_steps=1)))
    script = ROOT / "training" / "train.py"
    monkeypatch.setattr(sys, "argv", [str(script), str(tmp_path / "tiny.yaml"), "evaluation.samples=1"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script), run_name="__main__")
    assert ended.value.code == 0
    assert "1 of the test pairs" in capsys.readouterr().out
    assert (tmp_path / "run" / "model" / "README.md").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "quickstrat"], "did you mean 'quickstart'?"),
        (["train", "quickstart", "training.max_stepz=3"], "did you mean training.max_steps?"),
        (["train", "quickstart", "training.max_steps"], "is not of the form key=value"),
        (["train", "quickstart", "training.max_steps=many"], "training.max_steps='many' must be of type int"),
        (["train", "parallel-text"], "data.source is missing"),
        (["train", "parallel-text", "data.source=nosuch.tsv"], "nosuch.tsv: no such file or folder"),
        (["translate", "MODEL", "-f", "nosuch.txt"], "nosuch.txt"),
        (["translate", "MODEL", "-f", "."], "Is a directory"),
        (["translate", "no/such/model", "x"], "no/such/model: no such folder"),
        (["translate", "nosuch", "x"], "nosuch: no such folder here, and no such model could be had from the Hub"),
        (["translate", ".", "x"], "Unrecognized model"),
        (["caption", "MODEL", "a.png"], "attnzoo attend, attnzoo evaluate"),
        (["write", "MODEL", "a"], "attnzoo attend, attnzoo evaluate"),
        (["translate", "CAPTIONER", "a"], "for attnzoo caption, attnzoo attend, attnzoo evaluate"),
        (["evaluate", "WRITER", "reverse", *ROWS, "--beams", "2"], "--beams is for models that write a text"),
        (["evaluate", "WRITER", "reverse", *ROWS, "--metrics", "bleu"], "those of a language model are cross_entropy"),
        (["evaluate", "MODEL", "reverse", *ROWS, "--against", "CAPTIONER"], "for different things"),
        (["evaluate", "MODEL", "reverse", *ROWS, "--against", "pyproject"], "pyproject: no such folder here"),
        (["evaluate", "MODEL", "reverse", *ROWS, "--block-size", "9"], "--block-size 9 is for language models"),
        (["evaluate", "WRITER", "reverse", *ROWS, "--truncate"], "--truncate is for models that translate"),
        (["evaluate", "MODEL", "reverse", *ROWS, "--bins", "5,3"], "edges must be at least 2, and rise"),
        (["evaluate", "MODEL", "reverse", *ROWS, "--bins", "1,3"], "bins has room for 1 to 2"),
        (["evaluate", "MODEL", "reverse", *ROWS, "--bins", "many"], "--bins many must be a number of tokens"),
        (["evaluate", "MODEL", "reverse", *ROWS, "--measure", "bleu"], "give --bins or --picture too"),
        (["evaluate", "MODEL", "reverse", *ROWS, "--picture", "map.gif"], ".png, .svg, .pdf"),
        (["evaluate", "MODEL", "reverse", *ROWS, "--worst-by", "bleu"], "worst_by is 'bleu'"),
        (["evaluate", "MODEL", "reverse", *ROWS, "-o", "captioner"], "output=captioner is a folder: name a file in"),
        (["evaluate", "MODEL", "reverse", *ROWS, "-o", "three.txt/a"], "output=three.txt/a can't be made, since"),
        (["evaluate", "MODEL", "reverse", *ROWS, "--picture", "three.txt/a.png"], "three.txt/a.png can't be made,"),
        (["attend", "MODEL", "a", "-o", "captioner"], "output=captioner is a folder: name a file in it"),
        (["attend", "MODEL", "a", "-o", "three.txt/a.png"], "output=three.txt/a.png can't be made, since"),
        (["card", "MODEL", "three.txt/a"], "target=three.txt/a can't be made, since"),
        (["translate", "three.txt", "a"], "three.txt: a file, and a model is a folder"),
        (["translate", "STRANGE", "a"], "strange: Validation error for field 'hidden_size'"),
        (["attend", "BROKEN", "a", "-o", "a.png"], "broken: Error while deserializing header"),
        (["translate", "WORDLESS", "a"], "wordless: "),
        (["average", "BROKEN", "-o", "mean"], "broken/model.safetensors: not a whole file of safetensors"),
        (["average", "STRANGE", "-o", "mean"], "strange: no model.safetensors, so no checkpoint"),
        (["convert", "noise.safetensors", "mine"], "noise.safetensors can't be read as tensors"),
        (["train", "quickstart", "--dry-run", "--accelerate", "noise.yaml"], "noise.yaml:1: not valid UTF-8"),
        (["train", "noise.yaml"], "noise.yaml:1: not valid UTF-8"),
        (["train", "parallel-text", "data.source=odd", "output=run"], "odd: nothing that can be read as data"),
        (["evaluate", "MODEL", "reverse", *ROWS, "--generate", "num_beans=2"], "num_beans"),
        (
            ["evaluate", "MODEL", "reverse", *ROWS, "--generate", "num_beams=a"],
            "--generate num_beams='a' may be of a wrong",
        ),
        (["attend", "MODEL", "a", "-o", "a.png", "--layer", "9"], "layer is 9; the model has 1 layer, 0 to 0"),
        (["train", "quickstart", "seed=-1"], "seed=-1 must be at least 0"),
        (["train", "quickstart", "seed=4294967296", "--dry-run"], "seed=4294967296 must be below 4294967296"),
        (["evaluate", "MODEL", "reverse", *ROWS, "streaming=true"], "streaming"),
        (["evaluate", "CAPTIONER", "shapes", *ROWS, "--bins", "5"], "pictures have no length"),
        (["evaluate", "CAPTIONER", "shapes", *ROWS, "--metrics", "gleu"], "sources is None"),
        (["evaluate", "three.txt", "reverse", *ROWS], "three.txt has 3 lines, and the data 5 rows"),
        (["attend", "MODEL", "a", "-o", "map.bmp"], ".png, .svg, .pdf"),
        (["evaluate", "MODEL", "reverse", "split=test"], "needs the option 'size'"),
        (["evaluate", "MODEL", "reverse", "split=test", "sise=3"], "did you mean 'size'?"),
        (["evaluate", "MODEL", "revers", "split=test"], "did you mean the built-in source 'reverse'?"),
        (["evaluate", "MODEL", "reverse", "test"], "'test' is not of the form key=value"),
        (["evaluate", "MODEL", "reverse", "size=["], "size:1: not valid YAML"),
        (["evaluate", "MODEL", "reverse", "name_or_path=copy", *ROWS], "named already"),
        (["evaluate", "MODEL", "reverse", *ROWS, "--metrics", "blue"], "names has 'blue'"),
        (["evaluate", "MODEL", "reverse", *ROWS, "--tokenize", "words"], "tokenize is 'words'"),
        (["evaluate", "MODEL", "nosuch.tsv"], "nosuch.tsv: no such file or folder"),
    ],
)
def test_what_a_person_got_wrong_is_one_line(call, folder, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    # What kind of model it is stands in the configuration
    ShowAttendTellConfig().save_pretrained("captioner")
    RNNLMConfig().save_pretrained("writer")
    Path("three.txt").write_text("a\nb\nc\n")
    for name in ("noise.safetensors", "noise.yaml"):
        Path(name).write_bytes(b"\xff" * 99)
    for name in ("strange", "broken", "wordless", "odd"):
        shutil.copytree(folder, name)
    Path("strange", "config.json").write_text('{"model_type": "attnzoo_rnnsearch", "hidden_size": "large"}')
    Path("strange", "model.safetensors").unlink()
    Path("broken", "model.safetensors").write_bytes(b"noise" * 20)
    Path("wordless", "tokenizer.json").write_text("{")
    folders = {"MODEL": folder, "CAPTIONER": "captioner", "WRITER": "writer"}
    folders |= {name.upper(): name for name in ("strange", "broken", "wordless")}
    arguments = [folders.get(argument, argument) for argument in arguments]
    assert message in call(*arguments, fails=True)


def test_a_long_text_is_cut_if_that_is_said(call, folder, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "vocab_size": len(tokenizer), "max_position_embeddings": 4}
    short = tmp_path / "short"
    tokenizer.save_pretrained(short)
    TransformerForConditionalGeneration(TransformerConfig.from_preset("tiny", **sizes)).save_pretrained(short)
    (tmp_path / "pairs.tsv").write_text("source\ttarget\na b c d e\ta\n")
    commands = (
        ["translate", short, "a b c d e"],
        ["evaluate", short, tmp_path / "pairs.tsv", "--metrics", "exact_match"],
    )
    for command in commands:
        told = call(*command, "--max-new-tokens", "2", fails=True)
        assert "positions for 4; split the text, or let truncation=True cut it (--truncate on a command line)" in told
    cut = call(*commands[0], "--max-new-tokens", "2", "--truncate")
    # Three symbols, and an end
    assert cut == call("translate", short, "a b c", "--max-new-tokens", "2")
    out = tmp_path / "out.txt"
    call(*commands[1], "--max-new-tokens", "2", "--truncate", "-o", out)
    assert out.read_text() == cut


def test_text_and_file_are_one_too_many(folder):
    result = CliRunner().invoke(app, ["translate", str(folder), "a", "-f", "b"])
    assert result.exit_code == 2
    assert "not both" in result.stderr


def test_bytes_that_are_no_text_are_located(call, folder, tmp_path):
    (tmp_path / "latin.txt").write_bytes(b"a a\nb \xe9\n")
    result = CliRunner().invoke(app, ["translate", str(folder), "-f", str(tmp_path / "latin.txt")])
    assert result.exit_code == 2
    assert result.stderr == f"attnzoo: {tmp_path}/latin.txt:2: not valid UTF-8\n"
    result = CliRunner().invoke(app, ["translate", str(folder)], input=b"\xff\n")
    assert result.exit_code == 2
    assert result.stderr == "attnzoo: standard input:1: not valid UTF-8\n"


def test_a_reader_who_leaves_is_no_mistake_of_the_person(folder, monkeypatch):
    def gone(*args, **kwargs):
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr(typer, "echo", gone)
    result = CliRunner().invoke(app, ["translate", str(folder), "a"])
    assert result.exit_code == 1
    assert result.stderr == ""


def test_a_package_that_is_missing_is_one_line(call, folder, monkeypatch):
    def missing(*args, **kwargs):
        raise ImportError("TimmBackbone requires the timm library")

    monkeypatch.setattr("hf_attnzoo.cli.writing.load_pipeline", missing)
    assert call("translate", folder, "a", fails=True) == "TimmBackbone requires the timm library"


def test_an_error_of_ours_keeps_its_traceback(folder, monkeypatch):
    def wrong(*args, **kwargs):
        raise RuntimeError("a bug")

    monkeypatch.setattr("hf_attnzoo.cli.writing.load_pipeline", wrong)
    result = CliRunner().invoke(app, ["translate", str(folder), "a"])
    assert isinstance(result.exception, RuntimeError)
