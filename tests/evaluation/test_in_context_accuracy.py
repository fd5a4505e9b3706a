"""Accuracy by the number of examples: against what greedy search writes, and of a model that can count lines."""

import pytest
import torch
from transformers.modeling_outputs import CausalLMOutputWithPast

from hf_attnzoo import GPTConfig, GPTForCausalLM, train_tokenizer
from hf_attnzoo.data import in_context_episodes
from hf_attnzoo.evaluation import ShotScore, in_context_accuracy, plot_in_context


@pytest.fixture(scope="module")
def episodes():
    return in_context_episodes("test", 12, shots=6)


@pytest.fixture(scope="module")
def tokenizer(episodes):
    letters = "abcdefghijkl"
    return train_tokenizer("character", [letters, letters.upper(), ">\n"], causal=True)


def make(tokenizer) -> GPTForCausalLM:
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "max_position_embeddings": 150}
    return GPTForCausalLM(GPTConfig(vocab_size=len(tokenizer), **sizes))


def test_right_from_so_many_examples_on(tokenizer, episodes, monkeypatch):
    """A stand-in that knows the answer once it has read three examples, but a wrong end of the line in every third."""
    model = make(tokenizer)
    spoilt = {episode.pairs[-1] for episode in episodes[::3]}
    answers = {source: target for episode in episodes for source, target in episode.pairs}
    seen = []

    def forward(input_ids=None, attention_mask=None, **kwargs):
        logits = torch.zeros(*input_ids.shape, len(tokenizer))
        for number, (row, mask) in enumerate(zip(input_ids, attention_mask, strict=True)):
            text = tokenizer.decode(row[: mask.sum()], skip_special_tokens=True)
            *before, last = text.split("\n")
            seen.append(len(before))
            source = last.split(">")[0]
            target = next(episode.pairs[-1][1] for episode in episodes if episode.pairs[-1][0] == source)
            if len(before) < 3:
                continue
            wanted = tokenizer(target + ("a" if (source, target) in spoilt else "\n"), add_special_tokens=False)
            first = len(text) - len(last) + len(source) + 1
            for place, index in enumerate(wanted["input_ids"]):
                logits[number, first + place, index] = 1.0
        return CausalLMOutputWithPast(logits=logits)

    assert len(answers) > 12
    monkeypatch.setattr(model, "forward", forward)
    scores = in_context_accuracy(model, tokenizer, episodes, shots=(0, 2, 3, 5), batch_size=5)
    assert [(score.shots, score.right, score.total) for score in scores] == [
        (0, 0, 12),
        (2, 0, 12),
        (3, 8, 12),
        (5, 8, 12),
    ]
    assert seen == [0] * 12 + [2] * 12 + [3] * 12 + [5] * 12
    assert scores[2].accuracy == pytest.approx(2 / 3)
    assert scores[0].interval[0] == 0


def test_agrees_with_greedy_search(tokenizer):
    torch.manual_seed(4)
    model = make(tokenizer)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
        # Lines end now and then
        model.get_output_embeddings().weight[tokenizer.convert_tokens_to_ids("\n")] *= 3
    # What it writes itself, line end included, is what it is asked for in every other episode
    episodes = in_context_episodes("train", 60, shots=3)
    prompts = [episode.text[: episode.text.rindex(">") + 1] for episode in episodes]
    ids = tokenizer(prompts, return_tensors="pt", return_token_type_ids=False, padding=True)
    with torch.no_grad():
        written = model.eval().generate(**ids, max_new_tokens=20, do_sample=False)[:, ids["input_ids"].shape[1] :]
    right, asked = 0, []
    for number, (episode, text) in enumerate(zip(episodes, tokenizer.batch_decode(written), strict=True)):
        line, end, _ = text.partition("\n")
        own = bool(line and end and "<" not in line)
        right += own and number % 2
        target = line if own and number % 2 else "abca" if line != "abca" else "b"
        asked.append(type(episode)(episode.task, (*episode.pairs[:-1], (episode.pairs[-1][0], target))))
    assert 0 < right < 30
    model.train()
    [score] = in_context_accuracy(model, tokenizer, asked, shots=[2], batch_size=7)
    assert score.right == right
    assert model.training


def test_wilson_by_hand():
    # (p + z2/2n -+ z sqrt(p(1-p)/n + z2/4n2)) / (1 + z2/n), with z = 1.959964
    assert ShotScore(1, 5, 10).interval == pytest.approx((0.236593, 0.763407), abs=1e-6)
    assert ShotScore(1, 10, 10).interval == pytest.approx((0.722467, 1), abs=1e-6)


def test_the_curve_is_drawn(tmp_path):
    lines = {"gpt": [ShotScore(0, 1, 10), ShotScore(1, 4, 10), ShotScore(16, 9, 10)], "rnn": [ShotScore(0, 0, 10)]}
    figure = plot_in_context(lines, tmp_path / "curve.png", title="Shots")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    axes = figure.axes[0]
    assert list(axes.lines[0].get_xdata()) == [0, 1, 16]
    assert list(axes.lines[0].get_ydata()) == [0.1, 0.4, 0.9]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0", "1", "16"]
    assert {text.get_text() for text in axes.texts} == {"gpt", "rnn"}
    with pytest.raises(ValueError, match="scores is"):
        plot_in_context({})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shots": [6]}, r"shots=\[6\] must lie between 0 and 5"),
        ({"shots": [-1]}, "shots="),
        ({"shots": []}, "shots 0"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"template": "{source}" + 30 * "-" + "{target}"}, "and the model can read 150"),
    ],
)
def test_refuses_clearly(tokenizer, episodes, options, message):
    with pytest.raises(ValueError, match=message):
        in_context_accuracy(make(tokenizer), tokenizer, episodes, **{"shots": [5]} | options)
