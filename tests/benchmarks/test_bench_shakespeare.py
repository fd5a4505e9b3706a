"""The yardstick of the benchmark, against a loop over characters."""

import importlib.util
from pathlib import Path

import pytest
import torch

from hf_attnzoo import GPTConfig, GPTForCausalLM

spec = importlib.util.spec_from_file_location("bench_shakespeare", Path(__file__).with_name("bench_shakespeare.py"))
bench = importlib.util.module_from_spec(spec)
spec.loader.exec_module(bench)


# Windows of 5 overlap by one: 201 ids fill 50 of them, 202 leave one over, 4 are less than one.
@pytest.mark.parametrize("length", [201, 202, 204, 411, 5, 2])
@pytest.mark.parametrize("start", [[], [2]], ids=["bare", "started"])
def test_everything_but_the_first_is_predicted_once_from_what_its_window_has(length, start):
    torch.manual_seed(0)
    config = GPTConfig(
        vocab_size=12, max_position_embeddings=6, hidden_size=8, num_hidden_layers=1, initializer_range=0.5
    )
    model = GPTForCausalLM(config).eval()
    ids = torch.randint(4, 12, (length,))
    losses = []
    for place in range(1, length):
        first = (place - 1) // 4 * 4
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([start + ids[first:place].tolist()])).logits[0, -1]
        losses.append(-logits.log_softmax(dim=0)[ids[place]].item())
    mean, count = bench.mean_loss(model, ids, start, window=5)
    assert count == length - 1
    assert mean == pytest.approx(sum(losses) / len(losses), rel=1e-5)


def test_the_last_tenth():
    assert bench.last_tenth("abcdefghijk") == "jk"
