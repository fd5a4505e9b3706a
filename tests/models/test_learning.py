"""The families learn: strings of letters come out as they went in, in reverse, and sorted."""

import pytest
import torch

from hf_attnzoo import (
    BERTConfig,
    BERTForTokenClassification,
    GPTConfig,
    GPTForCausalLM,
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


def batch(rows, task, generator):
    """Strings of 3 to 5 letters and an end, as padded sources and labels."""
    lengths = torch.randint(3, 6, (rows,), generator=generator)
    letters = torch.randint(FIRST, FIRST + LETTERS, (rows, 6), generator=generator)
    positions = torch.arange(6)
    order = positions.expand(rows, -1)
    if task == "reverse":
        order = (lengths[:, None] - 1 - positions).clamp(min=0)
    elif task == "sort":
        order = letters.masked_fill(positions >= lengths[:, None], FIRST + LETTERS).argsort(dim=1)
    source, target = letters.clone(), letters.gather(1, order)
    for tensor in (source, target):
        tensor[positions == lengths[:, None]] = END
        tensor[positions > lengths[:, None]] = PAD
    return source, target.masked_fill(target == PAD, -100)


def fit(model, examples, steps=300):
    """Train a model on what a function gives it, anew in each step, and return it in evaluation mode."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, total_iters=steps)
    model.train()
    for _ in range(steps):
        optimizer.zero_grad()
        model(**examples()).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return model.eval()


# To sort is to copy by another order; one family shows it.
TASKS = [(family, task) for family in MODELS for task in ("copy", "reverse")] + [("transformer", "sort")]


@pytest.mark.parametrize(("family", "task"), TASKS)
def test_a_family_learns(family, task):
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)

    def examples():
        return dict(zip(("input_ids", "labels"), batch(64, task, generator), strict=True))

    model = fit(MODELS[family](vocab_size=FIRST + LETTERS, embedding_size=32, hidden_size=48), examples)
    source, labels = batch(200, task, generator)
    written = model.generate(source, max_new_tokens=6)[:, 1:]
    written = torch.nn.functional.pad(written, (0, 6 - written.shape[1]), value=PAD)
    scored = labels != -100
    assert (written == labels)[scored].float().mean() >= 0.99


SIZES = {"vocab_size": FIRST + LETTERS, "hidden_size": 48, "num_attention_heads": 4, "intermediate_size": 96}
SIZES |= {"dropout": 0.0, "attention_dropout": 0.0, "initializer_range": 0.1}


def test_a_language_model_learns_to_sort():
    """It goes on with a string and its end by what stands for it; prompts are padded on the left."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)

    def texts(rows):
        source, labels = batch(rows, "sort", generator)
        # Behind the last letter goes what was padding, to the front.
        source = source.gather(1, (source != PAD).long().argsort(dim=1, stable=True))
        return source, labels

    def examples():
        source, labels = texts(64)
        whole = torch.cat([source, labels.masked_fill(labels == -100, PAD)], dim=1)
        return {"input_ids": whole, "labels": torch.cat([torch.full_like(source, -100), labels], dim=1)}

    model = fit(GPTForCausalLM(GPTConfig(num_hidden_layers=2, max_position_embeddings=12, **SIZES)), examples)
    source, labels = texts(200)
    written = model.generate(source, attention_mask=(source != PAD).long(), max_new_tokens=6)[:, 6:]
    written = torch.nn.functional.pad(written, (0, 6 - written.shape[1]), value=PAD)
    assert (written == labels)[labels != -100].float().mean() >= 0.99


def test_an_encoder_learns_to_sort():
    """It says at every place of a string at once which letter belongs there."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)

    def examples(rows=64):
        source, labels = batch(rows, "sort", generator)
        return {"input_ids": source, "labels": labels}

    config = BERTConfig(num_hidden_layers=2, max_position_embeddings=6, num_labels=FIRST + LETTERS, **SIZES)
    model = fit(BERTForTokenClassification(config), examples, steps=200)
    held_out = examples(200)
    said = model(held_out["input_ids"]).logits.argmax(dim=-1)
    assert (said == held_out["labels"])[held_out["labels"] != -100].float().mean() >= 0.99
