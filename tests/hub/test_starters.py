"""The models that come with the package: their folders, what they answer, and every door that takes their names."""

import json
import re
import shlex
from pathlib import Path

import pytest
import torch
import transformers
from huggingface_hub import ModelCard
from PIL import Image, ImageDraw
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM, pipeline
from typer.testing import CliRunner

import hf_attnzoo
from hf_attnzoo.cli import app
from hf_attnzoo.hub import STARTERS, average_checkpoints, check_card, find_model
from hf_attnzoo.recipes import find_recipe, load_recipe
from hf_attnzoo.recipes.starting import starting_point

NAMES = list(STARTERS)

# Read by a person, one for each of some languages
DATES = {
    "12 mars 2019": "2019-03-12",
    "3. Mai 1988": "1988-05-03",
    "14 juillet 1987": "1987-07-14",
    "Tuesday, January 5, 2021": "2021-01-05",
    "24 de dezembro de 1999": "1999-12-24",
    "31 ottobre 2030": "2030-10-31",
}


def call(*arguments, stdin=None):
    """What a command prints."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)
    assert result.exit_code == 0, result.output
    return result.stdout


def load(name, **options):
    head = getattr(transformers, STARTERS[name].family.head)
    return head.from_pretrained(hf_attnzoo.pretrained(name), **options)


@pytest.mark.parametrize("name", NAMES)
def test_what_lies_in_a_folder(name):
    folder = Path(hf_attnzoo.pretrained(name))
    paths = list(folder.iterdir())
    # Weights in safetensors, and nothing that could run
    assert {path.suffix for path in paths} == {".json", ".md", ".png", ".safetensors"}
    assert all(path.is_file() and not path.is_symlink() for path in paths)
    assert sum(path.stat().st_size for path in paths) == STARTERS[name].size <= 2_000_000
    for path in paths:
        if path.suffix in (".json", ".md"):
            text = path.read_text(encoding="utf-8")
            assert "auto_map" not in text
            assert "custom_pipelines" not in text
            # Where somebody trained it is nobody's business
            assert not re.search(r"(?<![\w.:/])/(tmp|home|root|work|Users|mnt)/|[A-Z]:\\\\|_name_or_path", text)


def test_all_of_them_are_small():
    assert sum(starter.size for starter in STARTERS.values()) <= 8_000_000
    # No folder that is in no table, and so in the wheel for nothing
    assert {path.name for path in Path(hf_attnzoo.pretrained("dates-rnnsearch")).parent.iterdir()} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_16_bits_are_loaded_in_32(name):
    stored = load_file(Path(hf_attnzoo.pretrained(name)) / "model.safetensors")
    assert {tensor.dtype for tensor in stored.values()} == {torch.float16}
    model = load(name)
    state = model.state_dict()
    for key, tensor in stored.items():
        assert state[key].dtype == torch.float32
        assert state[key].equal(tensor.to(torch.float32))
    assert state.keys() - stored.keys() <= set(model.all_tied_weights_keys)
    assert model.config.dtype == torch.float32
    assert load(name, dtype=torch.float16).dtype == torch.float16
    assert sum(tensor.numel() for tensor in stored.values()) == STARTERS[name].parameters == model.num_parameters()


@pytest.mark.parametrize("name", NAMES)
def test_a_card_tells_of_its_folder(name):
    folder = Path(hf_attnzoo.pretrained(name))
    card = check_card(folder / "README.md")
    told = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))["metrics"]
    assert card.data.model_name == name
    assert card.data.license == "apache-2.0"
    for result in card.data.eval_results:
        assert result.metric_value == round(told[result.metric_type], 4)
        assert f" {told[result.metric_type]:.4f} |" in card.text
    assert f'`hf_attnzoo.pretrained("{name}")` is its folder' in card.text
    assert f"{STARTERS[name].parameters:,} parameters" in card.text
    assert "trust_remote_code" not in card.text
    assert (
        load_recipe(find_recipe(STARTERS[name].recipe), STARTERS[name].settings).family == STARTERS[name].family.name
    )
    assert ModelCard.load(folder / "README.md").data.library_name == "transformers"


@pytest.mark.parametrize("name", ["dates-rnnsearch", "dates-transformer"])
def test_dates(name):
    translate = pipeline("attnzoo-translation", model=hf_attnzoo.pretrained(name))
    assert [output["translation_text"] for output in translate(list(DATES))] == list(DATES.values())


def test_pictures(tmp_path):
    # A cyan square, large, to the left of a red triangle, small; drawn here by hand
    picture = Image.new("RGB", (64, 64), (225, 225, 225))
    draw = ImageDraw.Draw(picture)
    draw.rectangle((4, 20, 24, 40), fill=(40, 200, 220))
    draw.polygon([(50, 26), (56, 38), (44, 38)], fill=(220, 30, 30))
    picture.save(tmp_path / "picture.png")
    assert call("caption", "shapes-captioner", tmp_path / "picture.png") == "a cyan square left of a red triangle\n"
    printed = call("attend", "shapes-captioner", tmp_path / "picture.png", "-o", tmp_path / "where.png")
    assert "a cyan square left of a red triangle" in printed


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "../starters/dates-rnnsearch",
        "dates-rnnsearch/",
        "dates-rnnsearch/../dates-rnnsearch",
        "./dates-rnnsearch",
        "dates-rnnsearch\x00",
        "Dates-RNNsearch",
        "gpt2",
        str(STARTERS["dates-rnnsearch"].folder),
    ],
)
def test_a_name_is_never_a_path(name):
    with pytest.raises(ValueError, match=r"dates-rnnsearch, .*shapes-captioner") as raised:
        hf_attnzoo.pretrained(name)
    assert repr(name) in str(raised.value)


def test_what_is_here_goes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = hf_attnzoo.pretrained("dates-rnnsearch")
    assert find_model("dates-rnnsearch") == find_model(Path("dates-rnnsearch")) == folder
    assert find_model("gpt2") == "gpt2"
    assert find_model("ann/dates-rnnsearch") == "ann/dates-rnnsearch"
    (tmp_path / "dates-rnnsearch").mkdir()
    assert find_model("dates-rnnsearch") == "dates-rnnsearch"
    result = CliRunner().invoke(app, ["translate", "dates-rnnsearch", "12 mars 2019"])
    assert (result.exit_code, result.stdout) == (2, "")


def test_commands_on_texts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert call("translate", "dates-rnnsearch", stdin="\n".join(DATES)).splitlines() == list(DATES.values())
    assert call("attend", "dates-rnnsearch", "12 mars 2019", "-o", "map.png") == "12 mars 2019 → 2019-03-12: map.png\n"
    assert Path("map.png").read_bytes().startswith(b"\x89PNG")
    Path("texts.txt").write_text("12 mars 2019\n", encoding="utf-8")
    call("backtranslate", "dates-rnnsearch", "texts.txt", "pairs.tsv")
    assert Path("pairs.tsv").read_text(encoding="utf-8").splitlines()[-1] == "2019-03-12\t12 mars 2019"
    Path("dates.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in DATES.items()), "utf-8")
    Path("none.txt").write_text("\n" * len(DATES), encoding="utf-8")
    scored = ["dates.tsv", "--metrics", "exact_match", "--json"]
    report = json.loads(call("evaluate", "none.txt", *scored, "--against", "dates-rnnsearch"))
    assert (report["exact_match"], report["against"]["exact_match"]) == (0, 1)
    assert json.loads(call("evaluate", "dates-rnnsearch", *scored))["exact_match"] == 1


def test_the_other_commands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = Path(hf_attnzoo.pretrained("dates-rnnsearch"))
    call("card", "dates-rnnsearch", "cards/dates")
    assert Path("cards/dates.png").read_bytes() == (folder / "attention.png").read_bytes()
    call("average", "dates-rnnsearch", "dates-rnnsearch", "-o", "mean")
    mean, model = AutoModelForSeq2SeqLM.from_pretrained("mean"), load("dates-rnnsearch")
    assert all(tensor.equal(mean.state_dict()[name]) for name, tensor in model.state_dict().items())
    assert average_checkpoints([folder], tmp_path / "one") == tmp_path / "one"
    recipe = load_recipe(find_recipe("quickstart"), ["pretrained.model=dates-rnnsearch"])
    with starting_point(recipe, hf_attnzoo.FAMILIES["rnnsearch"]) as start:
        assert (start.name, start.folder) == ("dates-rnnsearch", folder)
    recipe = load_recipe(find_recipe("quickstart"), ["pretrained.model=dates-rnnsearch", "pretrained.revision=main"])
    with (
        pytest.raises(ValueError, match=r"pretrained\.revision=main is for the Hub"),
        starting_point(recipe, hf_attnzoo.FAMILIES["rnnsearch"]),
    ):
        pass


def test_they_are_listed_with_a_command_each():
    lines = call("starters").splitlines()
    commands = [shlex.split(line) for line in lines if line.startswith("attnzoo ")]
    assert [words[2] for words in commands] == NAMES
    for name in NAMES:
        row = next(line for line in lines if f"│ {name} " in line)
        assert f"{STARTERS[name].parameters:,}" in row
    # What is said to be typed works
    assert call(*next(words for words in commands if words[2] == "dates-rnnsearch")[1:]) == "2019-03-12\n"
    picture = next(words for words in commands if words[2] == "shapes-captioner")
    assert call(*picture[1:]).startswith("a ")


def test_the_bare_name_is_a_name_on_the_hub_to_transformers():
    with pytest.raises(OSError, match=r"huggingface\.co"):
        pipeline("attnzoo-translation", model="dates-rnnsearch")
