"""The energy of a run: added up over what has killed it, without the network, or refused."""

import json
import re
import socket
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from transformers import TrainerControl, TrainerState

from hf_attnzoo.recipes import build_recipe, energy, run_recipe
from hf_attnzoo.recipes import run as run_module
from hf_attnzoo.recipes.building import reporters
from hf_attnzoo.recipes.energy import EnergyMeter, check_energy
from hf_attnzoo.recipes.schema import TrainingSection
from hf_attnzoo.recipes.trainer import ZooTrainer

WORDS = {"cpu": "processor, measured by RAPL", "ram": "memory, an assumed 20 W"}


class Tracker:
    """One kWh of the processor, half a kWh of the memory and ten grams a step, since it was begun."""

    steps, events, fails = 0, "", False

    def __init__(self, country, folder, take):
        self.take, self.first = take, Tracker.steps
        Tracker.events += f"{country} begun, "

    def flush(self):
        steps = Tracker.steps - self.first
        total = {"cpu_energy": steps, "ram_energy": steps / 2, "emissions": steps / 100, "country_name": "France"}
        if not Tracker.fails:
            self.take(SimpleNamespace(codecarbon_version="3.3.2", **total))

    def stop(self):
        Tracker.events += "stopped, "


@pytest.fixture
def tracked(monkeypatch):
    """When to kill a run: at a step, or at its end."""
    monkeypatch.setattr(Tracker, "steps", 0)
    monkeypatch.setattr(Tracker, "events", "")
    monkeypatch.setattr(energy, "open_tracker", lambda *args: (Tracker(*args), WORDS))
    monkeypatch.setattr(run_module, "check_energy", lambda section: None)
    when, step, save = SimpleNamespace(step=None, end=False), ZooTrainer.training_step, run_module.save_run

    def count(trainer, *args, **kwargs):
        if trainer.state.global_step + 1 == when.step:
            raise KeyboardInterrupt
        Tracker.steps += 1
        return step(trainer, *args, **kwargs)

    def end(*args):
        if when.end:
            raise KeyboardInterrupt
        save(*args)

    monkeypatch.setattr(ZooTrainer, "training_step", count)
    monkeypatch.setattr(run_module, "save_run", end)
    return when


def test_what_a_killed_run_has_taken_counts_up_to_its_last_checkpoint(tracked, recipe_content, tmp_path):
    changes = {"max_steps": 7, "eval_steps": 3, "energy": True, "energy_country": "FRA"}
    recipe = build_recipe(recipe_content(tmp_path, **{f"training__{key}": value for key, value in changes.items()}))
    # Its fourth and fifth steps are lost and made again; then all of them are there.
    for tracked.step, tracked.end in ((6, False), (None, True)):
        with pytest.raises(KeyboardInterrupt):
            run_recipe(recipe, Console(quiet=True))
    tracked.end = False
    result = run_recipe(recipe, Console(quiet=True))
    assert Tracker.steps == 9
    assert Tracker.events == "FRA begun, stopped, FRA begun, stopped, "
    told = json.loads((result.model / "metrics.json").read_text())["energy"]
    parts = {WORDS["cpu"]: 7, WORDS["ram"]: 3.5}
    assert told == {"parts": parts, "version": "3.3.2", "country": "France", "grams": pytest.approx(70)}
    assert "Energy of training: 10.5 kWh, estimated by codecarbon 3.3.2" in (result.model / "README.md").read_text()


def begin(meter, device="cpu", first=True, step=0):
    args = SimpleNamespace(device=torch.device(device), output_dir="")
    meter.on_train_begin(args, TrainerState(is_world_process_zero=first, global_step=step), TrainerControl())
    return meter


def told(meter):
    return meter.state()["attributes"]["estimate"]


def test_what_was_not_measured_is_not_told(tracked, monkeypatch):
    assert told(begin(EnergyMeter(), first=False)) is None
    # Gone on with, and what was before isn't known
    assert told(begin(EnergyMeter(), step=2)) is None
    with pytest.raises(ValueError, match="can't read the energy of the device cuda"):
        begin(EnergyMeter(), "cuda")
    assert told(meter := begin(EnergyMeter()))["grams"] is None
    monkeypatch.setattr(Tracker, "fails", True)
    assert told(meter) is None
    with pytest.raises(ValueError, match="codecarbon can't measure on this machine"):
        begin(EnergyMeter())


def test_what_can_not_be_had_is_refused_before_any_work(recipe_content, tmp_path, monkeypatch):
    monkeypatch.setattr(energy, "find_spec", lambda name: None)
    recipe = build_recipe(recipe_content(tmp_path / "run", training__energy=True, data__source="nowhere"))
    with pytest.raises(ValueError, match=re.escape("takes the package codecarbon: pip install 'hf-attnzoo[energy]'")):
        run_recipe(recipe, Console(quiet=True))
    with pytest.raises(ValueError, match=r"training.energy_country='FRA' takes training.energy=true"):
        build_recipe(recipe_content(tmp_path, training__energy_country="FRA"))
    with pytest.raises(ValueError, match=r"report_to=\['codecarbon'\]: .* set training.energy=true"):
        reporters(["codecarbon"], tmp_path)
    monkeypatch.undo()
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setattr(energy, "find_spec", lambda name: SimpleNamespace(name=name))
    with pytest.raises(ValueError, match="this run is on several"):
        check_energy(TrainingSection(energy=True))


def test_the_real_one_has_no_network_and_leaves_no_files(recipe_content, tmp_path, monkeypatch, capfd):
    pytest.importorskip("codecarbon", reason="codecarbon is not installed")
    tried = []

    def refuse(*args, **kwargs):
        tried.append(args)
        raise OSError("no network here")

    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    # What somebody has set for other programs
    home = tmp_path / "home"
    home.mkdir()
    (home / ".codecarbon.config").write_text(
        "[codecarbon]\noutput_methods=csv,api\nemissions_endpoint=http://localhost:9\nco2_signal_api_token=x\n"
        "pue=2\nsave_to_prometheus=true\nforce_ram_power=7\n"
    )
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(home)
    totals, take = [], EnergyMeter._take
    monkeypatch.setattr(EnergyMeter, "_take", lambda meter, total: take(meter, total) or totals.append(total))
    changes = {"training__energy": True, "training__energy_country": "FRA"}
    recipe = build_recipe(recipe_content(tmp_path / "run", **changes))
    result = run_recipe(recipe, Console(quiet=True))
    assert tried == []
    assert [path.name for path in home.iterdir()] == [".codecarbon.config"]
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["model"]
    assert "codecarbon" not in "".join(capfd.readouterr())
    told = json.loads((result.model / "metrics.json").read_text())
    parts = told["energy"]["parts"]
    assert parts["memory, an assumed 7 W"] in [total.ram_energy for total in totals]
    assert {(total.ram_power, total.pue) for total in totals} == {(7, 1)}
    (processor,) = (words for words in parts if words.startswith("processor, "))
    assert re.search("measured by |an assumed ", processor)
    assert parts[processor] > 0
    # Of a kWh in France: nuclear power
    assert 10 < told["energy"]["grams"] / sum(parts.values()) < 100
    assert told["energy"]["country"] == "France"
    with pytest.raises(ValueError, match="energy_country='FR' is no country"):
        check_energy(TrainingSection(energy=True, energy_country="FR"))
