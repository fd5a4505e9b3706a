"""Back-translation: the pairs it writes, the lines it leaves out, and a run on what it has written."""

import pytest
from transformers import pipeline
from typer.testing import CliRunner

from hf_attnzoo.cli import app
from hf_attnzoo.data import back_translate, load_pairs
from hf_attnzoo.recipes import build_recipe
from hf_attnzoo.recipes.run import data_name, load_splits
from hf_attnzoo.recipes.tasks import make_task


def upper(texts, batch_size):
    """A translator that shouts, two texts at a time, and says nothing about an `x`."""
    texts = iter(texts)
    while pair := [text for _, text in zip(range(batch_size), texts, strict=False)]:
        yield from ([{"translation_text": text.upper().replace("X", "")}] for text in pair)


def test_pairs_are_of_a_translation_and_a_true_text(tmp_path):
    lines = iter(["ein haus", "", "x", "a\tb", "  ", 'ein "baum"', "drei"])
    path = tmp_path / "pairs.tsv"
    assert back_translate(upper, lines, path, tag="<bt>", batch_size=2) == (3, 4)
    rows = load_pairs(path)
    assert rows["source"] == ["<bt> EIN HAUS", '<bt> EIN "BAUM"', "<bt> DREI"]
    assert rows["target"] == ["ein haus", 'ein "baum"', "drei"]


def test_nothing_is_left_of_a_file_that_was_not_written(tmp_path):
    path = tmp_path / "pairs.tsv"
    with pytest.raises(ValueError, match="no pair is left for"):
        back_translate(upper, ["x", ""], path, batch_size=2)
    with pytest.raises(ValueError, match=r"tag='<bt> ' must be one word"):
        back_translate(upper, ["a"], path, tag="<bt> ", batch_size=2)

    def breaks():
        yield "a"
        raise RuntimeError

    with pytest.raises(RuntimeError):
        back_translate(upper, breaks(), path, batch_size=1)
    with pytest.raises(ValueError, match=f"path={tmp_path} is a folder: name a file in it"):
        back_translate(upper, ["a"], tmp_path, batch_size=1)
    assert list(tmp_path.iterdir()) == []
    assert back_translate(upper, ["a"], tmp_path / "new" / "pairs.tsv", batch_size=1) == (1, 0)
    assert load_pairs(tmp_path / "new" / "pairs.tsv")["source"] == ["A"]


def test_the_command_writes_what_a_recipe_mixes_in(tiny_run, recipe_content, tmp_path):
    texts = ["a b c", "d c", "b a e d"]
    (tmp_path / "mono.txt").write_text("\n".join(["a b c", "", "d c", "b a e d", ""]))
    made = tmp_path / "made.tsv"
    command = ["backtranslate", str(tiny_run.model), str(tmp_path / "mono.txt"), str(made), "--tag", "<bt>"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert done.output.endswith("made.tsv: 3 pairs; 1 line left out\n")
    outputs = pipeline("attnzoo-translation", model=str(tiny_run.model))(texts)
    sources = [f"<bt> {output['translation_text']}" for output in outputs]
    assert load_pairs(made).to_dict() == {"source": sources, "target": texts}

    corpus = tmp_path / "corpus.tsv"
    corpus.write_text("".join(f"{number}\t-{number}\n" for number in range(200)))
    recipe = build_recipe(
        recipe_content(tmp_path, data={"source": str(corpus), "train": {"source": [str(corpus), str(made)]}})
    )
    rows = load_splits(recipe, make_task("seq2seq", recipe))
    assert rows["train"]["source"][-3:] == sources
    assert rows["train"]["target"][-3:] == texts
    # The corpus is dealt out as ever: nothing that is tested is trained on.
    parts = [rows["train"]["source"][:-3], rows["validation"]["source"], rows["test"]["source"]]
    assert all(len(part) > 1 for part in parts)
    assert sorted(int(text) for part in parts for text in part) == list(range(200))
    assert data_name(recipe) == f"{corpus.name}, {made.name}"


def test_a_drawn_text_follows_the_seed(tiny_run, tmp_path):
    (tmp_path / "mono.txt").write_text("a b c d\n" * 20)

    def made(*options):
        path = tmp_path / "made.tsv"
        command = ["backtranslate", str(tiny_run.model), str(tmp_path / "mono.txt"), str(path), *options]
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, done.output
        return load_pairs(path)["source"]

    assert len(set(made())) == 1
    drawn = made("--sample")
    assert len(set(drawn)) > 5
    assert made("--sample", "--seed", "0") == drawn
    assert made("--sample", "--seed", "1") != drawn


@pytest.mark.parametrize("source", [[], [3], ["reverse", None]])
def test_a_list_of_sources_is_one_of_names(recipe_content, tmp_path, source):
    recipe = build_recipe(recipe_content(tmp_path, data__train={"source": source}))
    with pytest.raises(ValueError, match=r"data\.train\.source=\[.*\] must be a name, or a list of names"):
        load_splits(recipe, make_task("seq2seq", recipe))
