"""The study of path length: its task, its equal models, and a short run of it."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

FILE = Path(__file__).parents[1] / "training" / "studies" / "path_length.py"
spec = importlib.util.spec_from_file_location("path_length", FILE)
study = importlib.util.module_from_spec(spec)
spec.loader.exec_module(study)


def test_the_symbol_to_recall_stands_a_distance_before_the_query():
    ids = study.sequences(2000, 7, torch.Generator().manual_seed(0))
    assert ids.shape == (2000, 8)
    assert set(ids[:, 0].tolist()) == set(range(5, 15))
    assert set(ids[:, 1:-1].flatten().tolist()) == set(range(15, 25))
    assert set(ids[:, -1].tolist()) == {4}
    # No noise symbol tells the answer: every pair comes about 2000 / 100 times, with a deviation of 4.5.
    pairs = torch.bincount((ids[:, 0] - 5) * 10 + ids[:, 3] - 15, minlength=100)
    assert pairs.min() > 2
    assert pairs.max() < 43


@pytest.mark.parametrize("name", study.MODELS)
def test_models_are_equally_large_and_answer_from_what_stands_first(name):
    build = study.MODELS[name][0]
    model = build(study.fitted_size(build)).eval()
    assert abs(sum(weight.numel() for weight in model.parameters()) - 100_000) <= 1000
    ids = study.sequences(3, 5, torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits = study.answer_logits(model, ids)
        assert logits.shape == (3, 25)
        ids[0, 0] = 5 + (ids[0, 0] - 4) % 10
        changed = study.answer_logits(model, ids)
    assert not torch.allclose(changed[0], logits[0], atol=1e-7)
    torch.testing.assert_close(changed[1:], logits[1:])


class Sized:
    """A model of so many parameters."""

    def __init__(self, count):
        self.count = count

    def num_parameters(self):
        return self.count


def test_what_is_too_coarse_to_fit_is_refused():
    with pytest.raises(ValueError, match=r"90,000 parameters at size 9 are not 100,000 within 1%"):
        study.fitted_size(lambda size: Sized(10_000 * size if size < 10 else 120_000))


def test_a_short_study_goes_on_where_it_was(tmp_path, monkeypatch):
    monkeypatch.setattr(study, "RATES", (0.001,))
    monkeypatch.setattr(study, "SEARCHED", 4)
    arguments = ["--steps", "2", "--longest", "8", "--asked", "5"]
    arguments += ["--output", str(tmp_path), "--notes", str(tmp_path / "notes" / "a.jsonl")]
    app = study.typer.Typer()
    app.command()(study.main)
    first = CliRunner().invoke(app, arguments)
    assert first.exit_code == 0, first.output
    report = json.loads((tmp_path / "path_length.json").read_text())
    assert report["chance"] == 0.1
    assert [(cell["model"], cell["distance"]) for cell in report["cells"]] == [
        (name, distance) for name in study.MODELS for distance in (4, 8)
    ]
    assert all(cell["solved_after"] is None and cell["asked"] == 5 for cell in report["cells"])
    table = (tmp_path / "path_length.md").read_text().splitlines()
    assert table[0] == "| model | parameters | path | d = 4 | d = 8 |"
    assert len(table) == 7
    assert Image.open(tmp_path / "path_length.png").width > 800

    # The last two distances are lost; everything else is remembered.
    notes = tmp_path / "notes" / "a.jsonl"
    lines = notes.read_text().splitlines(keepends=True)
    assert len(lines) == 1 + 5 * 3
    notes.write_text("".join(lines[:-2]))
    trained = []
    train = study.train
    monkeypatch.setattr(study, "train", lambda *args: trained.append(args[1]) or train(*args))
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert trained == [4, 8]
    again = json.loads((tmp_path / "path_length.json").read_text())
    for cell in report["cells"] + again["cells"]:
        del cell["seconds"]
    assert again["cells"] == report["cells"]
    # Other settings are another study.
    trained.clear()
    assert CliRunner().invoke(app, [*arguments, "--seed", "1"]).exit_code == 0
    assert len(trained) == 15
