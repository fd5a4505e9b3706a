"""The families learn: strings of letters come out as they went in, and in reverse."""

import pytest
import torch

from hf_attnzoo import (
    LuongConfig,
    LuongForConditionalGeneration,
    RNNSearchConfig,
    RNNSearchForConditionalGeneration,
    TransformerConfig,
    TransformerForConditionalGeneration,
)

FIRST, LETTERS, PAD, END = 4, 8, 1, 3

MODELS = {
    "rnnsearch": lambda **sizes: RNNSearchForConditionalGeneration(
        RNNSearchConfig(maxout_size=32, initializer_range=0.1, **sizes)
    ),
    "luong": lambda **sizes: LuongForConditionalGeneration(
        LuongConfig(input_feeding=True, bidirectional=True, **sizes)
    ),
    "transformer": lambda embedding_size, **sizes: TransformerForConditionalGeneration(
        TransformerConfig(intermediate_size=96, num_encoder_layers=1, num_decoder_layers=1, dropout=0.0, **sizes)
    ),
    "transformer-pre-norm": lambda embedding_size, **sizes: TransformerForConditionalGeneration(
        TransformerConfig(
            intermediate_size=96,
            num_encoder_layers=1,
            num_decoder_layers=1,
            dropout=0.0,
            norm_first=True,
            position_embeddings="learned",
            **sizes,
        )
    ),
}


def batch(rows, reverse, generator):
    """Strings of 3 to 5 letters and an end, as padded sources and labels."""
    lengths = torch.randint(3, 6, (rows,), generator=generator)
    letters = torch.randint(FIRST, FIRST + LETTERS, (rows, 6), generator=generator)
    positions = torch.arange(6)
    order = (lengths[:, None] - 1 - positions).clamp(min=0) if reverse else positions.expand(rows, -1)
    source, target = letters.clone(), letters.gather(1, order)
    for tensor in (source, target):
        tensor[positions == lengths[:, None]] = END
        tensor[positions > lengths[:, None]] = PAD
    return source, target.masked_fill(target == PAD, -100)


@pytest.mark.parametrize("reverse", [False, True], ids=["copy", "reverse"])
@pytest.mark.parametrize("family", MODELS)
def test_a_family_learns(family, reverse):
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    model = MODELS[family](vocab_size=FIRST + LETTERS, embedding_size=32, hidden_size=48)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    steps = 300
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, total_iters=steps)
    model.train()
    for _ in range(steps):
        source, labels = batch(64, reverse, generator)
        optimizer.zero_grad()
        model(input_ids=source, labels=labels).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    model.eval()
    source, labels = batch(200, reverse, generator)
    written = model.generate(source, max_new_tokens=6)[:, 1:]
    written = torch.nn.functional.pad(written, (0, 6 - written.shape[1]), value=PAD)
    scored = labels != -100
    assert (written == labels)[scored].float().mean() >= 0.99
