"""The card of a run: metadata that the Hub takes, figures that are the run's, texts that are shown as they are."""

import dataclasses
import json

import pytest
import yaml
from huggingface_hub import ModelCard, metadata_load
from huggingface_hub.repocard_data import model_index_to_eval_results

from hf_attnzoo.hub import CardTexts, Ending, EnergyEstimate, RunFacts, model_card
from hf_attnzoo.hub.card import hardware

PAIRS = CardTexts(
    pipeline_tag="translation",
    task_name="Translation",
    tags=("seq2seq",),
    pipeline="attnzoo-translation",
    verb="translate",
    unit="pairs",
    sample_columns=("source", "reference", "output"),
)


def facts(**changes):
    return RunFacts(
        **{
            "kind": PAIRS,
            "name": "dates: small",
            "summary": "a recurrent encoder-decoder",
            "paper": "Bahdanau, Cho and Bengio (2015)",
            "license": "apache-2.0",
            "data_name": "dates",
            "data_license": "Unicode-3.0",
            "rows": {"train": 30000, "validation": 500, "test": 1000},
            "parameters": 345678,
            "vocabulary": {"source": 71, "target": 15},
            "steps": 1800,
            "seconds": 126.0,
            "loss_curve": [(step, 3.0 / step) for step in range(1, 31)],
            "metrics": {
                "exact_match": 0.98765,
                "exact_match_signature": "nrefs:1|case:mixed",
                "bleu": 99.123456,
                "bleu_signature": "nrefs:1|tok:char|version:2.6.0",
            },
            "intervals": {"exact_match": (0.98, 0.995)},
            "samples": [("5 March 2021", "2021-03-05", "2021-03-05"), ("6 mars 2021", "2021-03-06", "2021-03-07")],
            "example": '"5 March 2021"',
            "recipe": "name: dates\nseed: 0\n",
            "has_map": True,
            **changes,
        }
    )


def table(text, first_cell):
    """Rows of the table whose header begins with `first_cell`, as GitHub's Markdown cuts them."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"| {first_cell} |"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        cells = line[2:-2].replace("\\|", "\0").split(" | ")
        rows.append([cell.replace("\0", "|") for cell in cells])
    return rows


@pytest.fixture
def saved(tmp_path):
    def save(**changes):
        model_card(facts(**changes)).save(tmp_path / "README.md")
        return tmp_path / "README.md"

    return save


def test_one_is_one(saved, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    monkeypatch.setattr("torch.get_num_threads", lambda: 1)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    text = saved(steps=1, rows={"train": 2, "validation": 3, "test": 1}, parameters=1).read_text(encoding="utf-8")
    assert "\n1 step in 2.1 minutes, evaluations included, on " in text
    assert ", 1 core, 1 thread. 1 parameter; " in text
    assert "\n`dates`: 2 train, 3 validation, 1 test pair. " in text
    text = saved(steps=2, rows={"test": 1_000}).read_text(encoding="utf-8")
    assert "\n2 steps in 2.1 minutes" in text
    assert "\n`dates`: 1,000 test pairs. " in text


def test_metadata_survives_the_hub_s_own_reading(saved):
    path = saved()
    metadata = metadata_load(path)
    assert metadata["license"] == "apache-2.0"
    assert metadata["library_name"] == "transformers"
    assert metadata["pipeline_tag"] == "translation"
    assert "hf-attnzoo" in metadata["tags"]
    name, results = model_index_to_eval_results(metadata["model-index"])
    assert name == "dates: small"
    assert {result.metric_type: result.metric_value for result in results} == {"exact_match": 0.9877, "bleu": 99.1235}
    for result in results:
        assert result.task_type == "translation"
        assert result.dataset_type == result.dataset_name == "dates"
        assert result.dataset_split == "test"
        assert result.metric_args == {"signature": facts().metrics[f"{result.metric_type}_signature"]}
    assert "datasets" not in metadata
    # The Hub refuses a null anywhere.
    assert "null" not in json.dumps(metadata)
    card = ModelCard.load(path)
    assert card.data.model_name == "dates: small"
    assert card.content == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["yes", "1", "a: b", "- x", "quote ' and \"", "tab\tand #", "Ünï ✓"])
def test_any_name_is_valid_metadata(saved, name):
    path = saved(name=name)
    assert ModelCard.load(path).data.model_name == name
    assert yaml.safe_load(path.read_text(encoding="utf-8").split("---")[1])["model-index"][0]["name"] == name


def test_the_card_tells_what_the_run_knows(saved):
    text = saved().read_text(encoding="utf-8")
    assert "# dates: small\n" in text
    assert "A recurrent encoder-decoder, after Bahdanau, Cho and Bengio (2015)." in text
    assert 'translate("5 March 2021")' in text
    assert table(text, "metric on the test split") == [
        ["exact match", "0.9877", "0.9800 to 0.9950", "`nrefs:1|case:mixed`"],
        ["BLEU", "99.1235", "n/a", "`nrefs:1|tok:char|version:2.6.0`"],
    ]
    assert table(text, "source")[1] == ["6 mars 2021", "2021-03-06", "2021-03-07"]
    assert "`dates`: 30,000 train, 500 validation, 1,000 test pairs. Licence of the data: Unicode-3.0." in text
    assert "1,800 steps in 2.1 minutes" in text
    assert hardware() in text
    assert "345,678 parameters; vocabularies of 71 (source) and 15 (target) entries." in text
    assert "```yaml\nname: dates\nseed: 0\n```" in text
    assert "![Attention maps](attention.png)" in text
    for package in (
        "hf-attnzoo",
        "transformers",
        "torch",
        "tokenizers",
        "datasets",
        "accelerate",
        "sacrebleu",
        "babel",
    ):
        assert f"{package} " in text.split("Versions: ")[1].splitlines()[0]


def test_a_long_curve_is_thinned_and_keeps_its_ends(saved):
    curve = table(saved().read_text(), "step")
    assert len(curve) <= 13
    assert curve[0] == ["1", "3.0000"]
    assert curve[-1] == ["30", "0.1000"]
    assert [float(loss) for _, loss in curve] == sorted((float(loss) for _, loss in curve), reverse=True)
    for length in (0, 1, 2, 13):
        rows = table(saved(loss_curve=[(step, 1.0) for step in range(1, length + 1)]).read_text(), "step")
        assert [row[0] for row in rows][-1:] == [str(length)][: min(length, 1)]


def test_the_validation_split_during_training(saved):
    scores = [{"step": step, "bleu": 2.0 * step, "loss": 1 / step, "exact_match": 0.5} for step in range(10, 310, 10)]
    ending = Ending(step=170, planned=300)
    text = saved(steps=300, evaluations=scores, best_metric="exact_match", ending=ending).read_text()
    assert "![Loss and score by step](curve.png)" in text
    after = text.split("On the validation split: exact match chose the checkpoint in bold, of equal ones the loss.")[1]
    rows = table(after, "step")
    assert after.splitlines()[2] == "| step | loss | exact match | BLEU |"
    assert rows[0] == ["10", "0.1000", "0.5000", "20.0000"]
    assert rows[-1] == ["300", "0.0033", "0.5000", "600.0000"]
    # Every third, the last, and the chosen one in its place among them
    assert [row[0] for row in rows] == [
        *map(str, range(10, 170, 30)),
        "**170**",
        *map(str, range(190, 300, 30)),
        "300",
    ]
    assert rows[6] == ["**170**", "**0.0059**", "**0.5000**", "**340.0000**"]
    # One that is shown anyway is shown once; where the model is no single checkpoint, none is marked.
    for step, marked in ((10, 1), (None, 0)):
        text = saved(evaluations=scores, best_metric="bleu", ending=Ending(step=step, planned=300)).read_text()
        rows = table(text.split("On the validation split:")[1], "step")
        assert (len(rows), sum(row[0].startswith("**") for row in rows)) == (11, marked)
        assert ("chose the checkpoint" in text) == bool(marked)


@pytest.mark.parametrize(
    ("ending", "told"),
    [
        (Ending(1000, 1800), "The model has the weights of step 1,000, chosen by BLEU on the validation split."),
        (
            Ending(1000, 5000, patience=2),
            "Training stopped early, at step 1,800 of 5,000: no better BLEU for 2 evaluations. The model has the "
            "weights of step 1,000, chosen",
        ),
        (Ending(None, 1800), "The model has the weights of the last step."),
        (
            Ending(1000, 1800, ema_decay=0.999),
            "The model has the moving average (decay 0.999) of the weights of step 1,000, chosen by BLEU",
        ),
        (
            Ending(None, 1800, averaged=(1000, 1400, 1800)),
            "The model has the mean of the weights of steps 1,000, 1,400 and 1,800.",
        ),
        (
            Ending(None, 9, averaged=(9,), ema_decay=0.9),
            "mean of the moving average (decay 0.9) of the weights of step 9.",
        ),
    ],
)
def test_which_weights_the_model_has(saved, ending, told):
    text = saved(best_metric="bleu", ending=ending).read_text()
    assert told in text
    assert ("stopped early" in text) == (ending.patience is not None)


def test_what_the_hub_can_not_take_is_no_metadata(saved):
    metadata = metadata_load(saved(metrics={"perplexity": float("inf"), "perplexity_signature": "block:9"}))
    assert "model-index" not in metadata
    assert metadata_load(saved(attends=False))["tags"] == ["hf-attnzoo", "seq2seq"]
    assert metadata_load(saved(hub_datasets=["bentrevett/multi30k"]))["datasets"] == ["bentrevett/multi30k"]


def test_several_processes_and_their_devices(saved, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 8)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "Some GPU")
    # Of eight devices that are seen two are used.
    told = "in 2 processes; the recipe's batch is that of one of them: a step takes"
    text = saved(processes=2, accumulation=3).read_text()
    assert f"included, on 2 x Some GPU, {told} 2 x 3 = 6 batches. 345,678 parameters;" in text
    text = saved(accumulation=3).read_text()
    assert "included, on 8 x Some GPU. 345,678 parameters;" in text
    assert "process" not in text
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert f"on {hardware()}, {told} 2 x 1 = 2 batches." in saved(processes=2).read_text()


def test_where_the_weights_came_from(saved):
    path = saved(pretrained="some/model", base_model="some/model", languages=["no", "en"])
    metadata = metadata_load(path)
    assert metadata["base_model"] == "some/model"
    # Norwegian, which YAML would take for a denial
    assert metadata["language"] == ["no", "en"]
    assert (ModelCard.load(path).data.base_model, ModelCard.load(path).data.language) == ("some/model", ["no", "en"])
    assert "Training started from the weights of `some/model`.\n" in path.read_text()
    new = ["lm_head.weight", "model.embed_tokens.weight", "lm_head.bias"]
    path = saved(pretrained="gpt2", pretrained_tokenizer="train", new_weights=new)
    assert not {"base_model", "language"} & metadata_load(path).keys()
    assert (
        "Training started from the weights of `gpt2`, a checkpoint that is not from the Hub. Its tokenizer was left "
        "aside for one trained anew on this data, and its embeddings with it. New, and random at first: `lm_head`, "
        "`model.embed_tokens`.\n"
    ) in path.read_text()
    many = {f"layers.{number}.weight" for number in range(10)}
    text = saved(pretrained="a/b", pretrained_tokenizer="extend", new_weights=many).read_text()
    assert "Its tokenizer was extended by what it lacked in this data. New, and random at first: `layers.0`, " in text
    assert "`layers.7` and 2 more.\n" in text


@pytest.mark.parametrize(
    ("name", "hub", "dataset"),
    [
        ("pairs.tsv", [], "pairs"),
        ("bentrevett/multi30k", ["bentrevett/multi30k"], "bentrevett/multi30k"),
        ("data/emoji/", [], "emoji"),
        ("My Pairs v1.2.jsonl.gz, in_context", [], "my-pairs-v1-2-in_context"),
        ("文.tsv", [], "data"),
    ],
)
def test_the_type_of_a_dataset_is_like_an_id_of_the_hub(saved, name, hub, dataset):
    metadata = metadata_load(saved(data_name=name, hub_datasets=hub))
    assert [each["dataset"]["type"] for each in metadata["model-index"][0]["results"]] == [dataset]
    assert [each["dataset"]["name"] for each in metadata["model-index"][0]["results"]] == [name]


PARTS = {"memory, an assumed 20 W": 0.00004, "processor, measured by RAPL": 0.0012345}


def test_an_energy_is_told_with_where_it_is_from(saved):
    path = saved(energy=EnergyEstimate(PARTS, "3.3.2"))
    assert (
        "Energy of training: 0.00127 kWh, estimated by codecarbon 3.3.2 for the whole machine, with whatever else ran "
        "on it: 0.00123 kWh processor, measured by RAPL; 0.00004 kWh memory, an assumed 20 W. Disks"
    ) in path.read_text()
    # Nobody has said where that was.
    assert "CO2" not in path.read_text()
    assert "co2_eq_emissions" not in metadata_load(path)
    assert "kWh" not in saved().read_text()


@pytest.mark.parametrize(("pretrained", "kind"), [(None, "pre-training"), ("some/model", "fine-tuning")])
def test_the_hub_reads_emissions_where_the_country_is_known(saved, pretrained, kind):
    path = saved(energy=EnergyEstimate(PARTS, "3.3.2", "France", 0.071234), pretrained=pretrained)
    assert "codecarbon has for France these are 0.0712 g of CO2 equivalent." in path.read_text()
    assert metadata_load(path)["co2_eq_emissions"] == {
        "emissions": 0.0712,
        "source": "codecarbon 3.3.2",
        "training_type": kind,
        "geographical_location": "France",
        "hardware_used": hardware(),
    }
    assert ModelCard.load(path).data.co2_eq_emissions["emissions"] == 0.0712


def test_what_scores_are_of_is_told(saved):
    cut, shared = (
        "3 of 1,000 test sources were cut to 128 tokens.",
        "2 of 1,000 test sources also stand in the training data.",
    )
    path = saved(
        split="test_2016_flickr", cuts=[cut, "1 more."], shared=[shared], digests={"train": "ab", "test": "cd"}
    )
    text = path.read_text()
    assert table(text, "metric on the test_2016_flickr split")[0][0] == "exact match"
    _, results = model_index_to_eval_results(metadata_load(path)["model-index"])
    assert {result.dataset_split for result in results} == {"test_2016_flickr"}
    assert f"{cut} 1 more." in text[text.index("## Results") : text.index("## Samples")]
    data = text[text.index("## Data") : text.index("## Training")]
    assert f"1,000 test pairs. Licence of the data: Unicode-3.0. {shared}\n" in data
    assert "Digests of the rows as they were read: train `ab`, test `cd`." in data


def test_what_a_run_lacks_is_left_out(saved):
    text = saved(has_map=False, data_license=None, samples=[], intervals={}).read_text()
    assert "attention.png" not in text
    assert "curve.png" not in text
    assert "Licence of the data" not in text
    assert "Digests" not in text
    assert "None" not in text


def test_texts_are_shown_as_they_are(saved):
    hard = "<b>|a_b_|*c* `d` $e$ [f](g) \\ &amp; ~h~\nnext"
    text = saved(samples=[(hard, "| x |", "")]).read_text()
    rows = table(text, "source")
    assert len(rows) == 1
    source, reference, output = rows[0]
    assert "<" not in source.replace("\\<", "")
    assert reference == "| x |"
    assert output == ""
    # A backslash before punctuation is how Markdown says: just this character.
    shown, characters = "", iter(source)
    for character in characters:
        shown += next(characters) if character == "\\" else character
    assert shown == hard.replace("\n", " ")


def test_facts_can_not_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        facts().steps = 3


def test_the_hardware_is_named():
    assert any(part in hardware() for part in ("cores", " x "))
