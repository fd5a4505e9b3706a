"""Runs that start from a checkpoint: of every family, of other code, with a vocabulary kept, extended or made anew."""

import json
import random
import re

import pytest
import torch
import transformers
from rich.console import Console
from safetensors.torch import load_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerFast

from hf_attnzoo import train_tokenizer
from hf_attnzoo.recipes import build_recipe, run_recipe
from hf_attnzoo.recipes import run as run_module
from hf_attnzoo.recipes import starting as starting_module
from hf_attnzoo.recipes.building import build_model
from hf_attnzoo.recipes.run import find_family
from hf_attnzoo.recipes.starting import extend_vocabulary, starting_model, starting_point, starting_processor
from hf_attnzoo.recipes.tasks import make_task

QUIET = Console(quiet=True)
PAIRS = {"source": ["a b c", "c b"], "target": ["x y", "y x x"]}
TEXTS = {"text": ["a b c", "c b a d"]}
SMALL = {
    "rnnsearch": {"embedding_size": 8, "hidden_size": 8, "maxout_size": 4},
    "luong": {"embedding_size": 8, "hidden_size": 8, "num_encoder_layers": 1, "num_decoder_layers": 1},
    "transformer": {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8, "num_encoder_layers": 1},
    "gpt": {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "max_position_embeddings": 16},
    "rnnlm": {"embedding_size": 8, "hidden_size": 8, "num_layers": 1},
    "show_attend_tell": {"preset": "tiny", "image_size": 16, "encoder_channels": [4, 8], "hidden_size": 8},
}


def rows_for(family):
    if family in ("gpt", "rnnlm"):
        return TEXTS
    return {"caption": PAIRS["target"]} if family == "show_attend_tell" else PAIRS


def recipe_for(family, **content):
    base: dict = {"name": "n", "family": family, "output": "o", "tokenizer": {"kind": "word"}}
    return build_recipe(base | content)


def saved(family, folder, **content):
    """A small model of a family with its tokenizer, in a folder."""
    recipe = recipe_for(family, model=SMALL[family], **content)
    row = find_family(recipe)
    task = make_task(row.task, recipe)
    processor = task.build_processor(rows_for(family))
    torch.manual_seed(1)
    model = build_model(recipe, row, task, processor)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return model, processor


def started(family, rows, console=QUIET, **content):
    recipe = recipe_for(family, **content)
    row = find_family(recipe)
    task = make_task(row.task, recipe)
    with starting_point(recipe, row) as start:
        processor = starting_processor(start, recipe, task, rows, console)
        return starting_model(start, recipe, row, task, processor, console)[0], processor


def tokens_of(processor):
    tokenizer = getattr(processor, "tokenizer", processor)
    return [side.get_vocab() for side in starting_module.tokenizer_sides(tokenizer)]


@pytest.mark.parametrize("family", SMALL)
def test_every_family_starts_from_its_checkpoint(family, tmp_path):
    model, processor = saved(family, tmp_path)
    # Another kind of tokenizer in the recipe is not looked at
    loaded, kept = started(family, rows_for(family), pretrained={"model": str(tmp_path)}, tokenizer={"kind": "bpe"})
    assert loaded.training
    assert tokens_of(kept) == tokens_of(processor)
    weights = model.state_dict()
    assert [name for name, tensor in loaded.state_dict().items() if not tensor.equal(weights[name])] == []
    # What is no size can be otherwise
    dropped, _ = started(family, rows_for(family), pretrained={"model": str(tmp_path)}, model={"dropout": 0.25})
    assert dropped.config.dropout == 0.25


@pytest.mark.parametrize("family", SMALL)
def test_a_vocabulary_grows_by_what_it_lacks(family, tmp_path):
    model, processor = saved(family, tmp_path)
    rows = {name: [f"{text} new {'more' if name in ('source', 'text') else 'mehr'} new" for text in texts]
            for name, texts in rows_for(family).items()}  # fmt: skip
    pretrained = {"model": str(tmp_path), "tokenizer": "extend"}
    grown, extended = started(family, rows, pretrained=pretrained)
    before, after = tokens_of(processor), tokens_of(extended)
    last = {"source": "more", "text": "more", "caption": "mehr", "target": "mehr"}
    for name, old, new in zip(rows, before, after, strict=False):
        # The more frequent one first
        assert new == old | {"new": len(old), last[name]: len(old) + 1}
    config = grown.config
    assert config.vocab_size == len(after[1])
    for name, tensor in model.state_dict().items():
        assert grown.state_dict()[name][: len(tensor)].equal(tensor), name
    if getattr(config, "source_vocab_size", None):
        assert config.source_vocab_size == len(after[0])
        assert grown.get_input_embeddings().weight.shape[0] == len(after[0])
    assert grown.get_output_embeddings().weight.shape[0] == config.vocab_size


@pytest.mark.parametrize("family", SMALL)
def test_a_new_vocabulary_has_new_embeddings_and_nothing_else(family, tmp_path):
    model, _ = saved(family, tmp_path)
    rows = {name: ["p q r s t u", "q v"] for name in rows_for(family)}
    pretrained = {"model": str(tmp_path), "tokenizer": "train"}
    anew, processor = started(family, rows, pretrained=pretrained)
    assert anew.config.vocab_size == 4 + 7 == len(tokens_of(processor)[1])
    old, new = model.state_dict(), anew.state_dict()
    words = {name for name in new if "embed" in name or name.startswith("lm_head")}
    assert {name for name in new if not (name in old and new[name].equal(old[name]))} == words


def test_the_new_entries_cut_texts_as_if_they_had_been_there():
    made = train_tokenizer("word", ["the cat sat", "it's"])
    extend_vocabulary(made, (["the catalogue of cats, it of the of"],), most=3)
    of, comma = made.convert_tokens_to_ids(["of", ","])
    # of stands there three times; then by the alphabet
    assert made.get_vocab().keys() >= {"of", ",", "catalogue"}
    assert "cats" not in made.get_vocab()
    assert made("it's the cat of, cats").input_ids[:-1] == made.convert_tokens_to_ids(
        ["it's", "the", "cat", "of", ",", "<unk>"]
    )
    assert (of, comma) == (8, 9)
    pieces = train_tokenizer("wordpiece", ["playing plays played"] * 3, lowercase=True)
    assert extend_vocabulary(pieces, (["PLAYING Ω1 zzz ω1 ω1 zzz"],), most=1, min_frequency=2) == [["ω1"]]
    assert pieces.tokenize("Ω1 zzz") == ["ω1", "<unk>"]
    everything = train_tokenizer("byte-bpe", ["abc"] * 3, vocab_size=300)
    assert extend_vocabulary(everything, (["Ω never seen"],), most=9) == [[]]


def test_slots_stay_the_last():
    made = train_tokenizer("word", ["a b"], ["c d"], copy_slots=2)
    with pytest.raises(ValueError, match="copy_slots=2"):
        extend_vocabulary(made, (["q"], ["q"]), most=1)


def their_gpt2(folder):
    config = transformers.GPT2Config(
        vocab_size=6, n_positions=12, n_embd=8, n_layer=1, n_head=2, bos_token_id=5, eos_token_id=5
    )
    words = {"<unk>": 0, "a": 1, "b": 2, "c": 3, "d": 4, "<end>": 5}
    backend = Tokenizer(WordLevel(words, **{"unk_token": "<unk>"}))
    backend.pre_tokenizer = WhitespaceSplit()
    model = transformers.GPT2LMHeadModel(config)
    model.save_pretrained(folder)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **{"unk_token": "<unk>", "eos_token": "<end>"})
    tokenizer.save_pretrained(folder)
    return model


def test_a_checkpoint_of_transformers_own_is_converted(tmp_path):
    theirs = their_gpt2(tmp_path).eval()
    ours, tokenizer = started("gpt", TEXTS, pretrained={"model": str(tmp_path)})
    ids = torch.tensor([[1, 2, 3, 4]])
    with torch.no_grad():
        torch.testing.assert_close(ours.eval()(input_ids=ids).logits, theirs(input_ids=ids).logits)
    # GPT-2 has no padding of its own
    assert (tokenizer.pad_token, tokenizer.padding_side) == ("<end>", "left")


def test_a_run_from_end_to_end(tmp_path):
    draw = random.Random(0)
    text = tmp_path / "text.txt"
    text.write_text("".join(draw.choice("abcd \n") for _ in range(1500)))
    their_gpt2(tmp_path / "gpt2")
    content = {
        "name": "tuned",
        "family": "gpt",
        "output": str(tmp_path / "run"),
        "data": {"source": str(text), "block_size": 9},
        "pretrained": {"model": str(tmp_path / "gpt2")},
        "training": {"max_steps": 2, "batch_tokens": 60, "eval_steps": 1, "learning_rate": 0.0},
        "generation": {"max_new_tokens": 2},
        "evaluation": {"metrics": ["cross_entropy"], "best_metric": "cross_entropy", "samples": 1, "maps": 0},
    }
    result = run_recipe(build_recipe(content), QUIET)
    assert AutoConfig.from_pretrained(result.model).model_type == "attnzoo_gpt"
    assert len(AutoTokenizer.from_pretrained(result.model)) == 6
    card = (result.model / "README.md").read_text()
    assert "Training started from the weights of `gpt2`, a checkpoint that is not from the Hub." in card
    assert "base_model" not in card
    # Nothing was learnt, so the weights are those of the checkpoint.
    theirs = load_file(tmp_path / "gpt2" / "model.safetensors")["transformer.wte.weight"]
    assert load_file(result.model / "model.safetensors")["model.embed_tokens.weight"].equal(theirs)


def test_a_run_goes_on_with_its_own_checkpoint_alone(tmp_path, monkeypatch, recipe_content):
    saved("rnnsearch", tmp_path / "start")
    content = recipe_content(tmp_path / "run", pretrained={"model": str(tmp_path / "start")}, model={})

    class Killed(BaseException):
        pass

    def die(*args):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(run_module, "save_run", die)
        with pytest.raises(Killed):
            run_recipe(build_recipe(content), QUIET)
    saved("rnnsearch", tmp_path / "start", seed=1)
    config = json.loads((tmp_path / "start" / "config.json").read_text())
    (tmp_path / "start" / "config.json").write_text(json.dumps(config | {"dropout": 0.5}))
    with pytest.raises(ValueError, match="digest of the data="):
        run_recipe(build_recipe(content), QUIET)


def test_what_is_new_and_what_is_left_is_told(tmp_path, capsys):
    saved("gpt", tmp_path)
    started("gpt", TEXTS, Console(width=200), pretrained={"model": str(tmp_path)}, model={"num_hidden_layers": 2})
    printed = capsys.readouterr().out
    assert f"tokenizer: that of {tmp_path}" in printed
    assert re.search(r"weights: \d+ of \d+ tensors are those of ", printed)
    assert "new: model.stack.layers.1." in printed


def test_what_is_on_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "someone" / "here").mkdir(parents=True)
    names = ("someone/a-model", "gpt2", "someone/here", str(tmp_path / "x"), "dates-rnnsearch", "a/b/c", None)
    assert [starting_module.from_hub(name) for name in names] == [True, True, False, False, False, False, False]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"pretrained": {"model": "no/such/place/at all"}}, "no such file or folder"),
        ({"pretrained": {"model": "HERE", "revision": "v1"}}, "pretrained.revision=v1 is for the Hub"),
        ({"pretrained": {"model": "HERE"}, "model": {"preset": "gpt2"}}, "model.preset='gpt2' and pretrained.model="),
        ({"pretrained": {"model": "HERE"}, "model": {"hidden_size": 16}}, "has the shape"),
        ({"pretrained": {"model": "HERE"}, "model": {"hiden_size": 16}}, "did you mean 'hidden_size'?"),
        (
            {"pretrained": {"model": "HERE"}, "model": {"vocab_size": 16}},
            "model.vocab_size follows from the tokenizer",
        ),
        ({"pretrained": {"model": "HERE"}, "model": {"dropout": "much"}}, "model.dropout='much' must be of type"),
    ],
)
def test_what_can_not_be_is_refused(tmp_path, content, message):
    saved("gpt", tmp_path)
    content = json.loads(json.dumps(content).replace("HERE", str(tmp_path)))
    with pytest.raises(ValueError, match=re.escape(message)):
        started("gpt", TEXTS, **content)


@pytest.mark.parametrize("setting", ["tokenizer=train", "revision=v1"])
def test_without_a_checkpoint_there_is_nothing_to_set(setting):
    with pytest.raises(ValueError, match=f"pretrained.{setting} is for a checkpoint"):
        started("gpt", TEXTS, pretrained=dict([setting.split("=")]))


def test_another_family_is_refused(tmp_path):
    saved("gpt", tmp_path / "ours")
    their_gpt2(tmp_path / "theirs")
    for folder in ("ours", "theirs"):
        with pytest.raises(ValueError, match="is of the type attnzoo_gpt, but family=rnnlm has attnzoo_rnnlm"):
            started("rnnlm", TEXTS, pretrained={"model": str(tmp_path / folder)})


def test_a_checkpoint_without_a_tokenizer_says_so(tmp_path):
    saved("rnnsearch", tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json", "target_tokenizer.json"):
        (tmp_path / name).unlink()
    with pytest.raises(ValueError, match=r"pretrained\.tokenizer=train makes one"):
        started("rnnsearch", PAIRS, pretrained={"model": str(tmp_path)})


def test_the_hub_is_asked_for_no_code_and_no_pickle(tmp_path, monkeypatch):
    saved("gpt", tmp_path)
    asked = []

    def download(name, **options):
        asked.append((name, options))
        return str(tmp_path)

    monkeypatch.setattr(starting_module, "snapshot_download", download)
    started("gpt", TEXTS, pretrained={"model": "someone/a-model", "revision": "abc"})
    ((name, options),) = asked
    assert (name, options["revision"]) == ("someone/a-model", "abc")
    assert not [pattern for pattern in options["allow_patterns"] if pattern.endswith((".py", ".bin", "*"))]
