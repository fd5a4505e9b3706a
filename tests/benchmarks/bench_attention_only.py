"""Speed of Transformer, GPT and BERT beside transformers' own: `python tests/benchmarks/bench_attention_only.py`.

The peers are Marian, GPT-2 and BERT with `attn_implementation="sdpa"`. Both sides have the same weights, converted,
and the same optimizer; that they compute the same is checked first. Figures are the least CPU time of the process over
some rounds, on one thread; each round runs every side once in turn: what else the machine does falls on all of them
alike. `--quick` is a look at small sizes. `--before FOLDER` adds the `hf_attnzoo/models` of another checkout, to see
what a change brings.
"""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from timing import Row, load_models, measure, options_of, report, time_row

# isort: split
import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel, MarianConfig, MarianMTModel

import hf_attnzoo
from hf_attnzoo.conversion import convert

UNK, PAD, START, END = range(4)


@dataclass
class Sizes:
    vocab: int = 10_000
    hidden: int = 256
    inner: int = 1024
    heads: int = 4
    layers: int = 4
    # Of encoder and decoder each.
    side_layers: int = 3
    batch: int = 64
    decode_batch: int = 32
    length: int = 25
    shortest: int = 10
    longest: int = 40
    steps: int = 25
    beams: int = 5
    context: int = 256
    texts: int = 4
    prompt: int = 32
    written: int = 128
    rows: int = 32
    width: int = 128
    narrow: int = 16
    share_masked: float = 0.15


QUICK = Sizes(
    vocab=500,
    hidden=32,
    inner=64,
    batch=16,
    decode_batch=8,
    steps=10,
    context=32,
    prompt=8,
    written=16,
    rows=8,
    width=48,
)


@dataclass
class Side:
    """One model of each family, and an optimizer for each."""

    transformer: nn.Module
    gpt: nn.Module
    bert: nn.Module

    def __post_init__(self):
        self.optimizers = {
            id(model): torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
            for model in (self.transformer, self.gpt, self.bert)
        }

    def train(self, model: nn.Module, batch: dict[str, Tensor]) -> None:
        optimizer = self.optimizers[id(model.train())]
        optimizer.zero_grad()
        model(**batch).loss.backward()
        optimizer.step()


def stock_models(sizes: Sizes) -> dict[str, nn.Module]:
    torch.manual_seed(0)
    ids = {"pad_token_id": PAD, "bos_token_id": START, "eos_token_id": END}
    marian = MarianConfig(
        vocab_size=sizes.vocab,
        d_model=sizes.hidden,
        encoder_layers=sizes.side_layers,
        decoder_layers=sizes.side_layers,
        encoder_ffn_dim=sizes.inner,
        decoder_ffn_dim=sizes.inner,
        encoder_attention_heads=sizes.heads,
        decoder_attention_heads=sizes.heads,
        activation_function="relu",
        scale_embedding=True,
        max_position_embeddings=256,
        decoder_start_token_id=START,
        forced_eos_token_id=None,
        **ids,
    )
    gpt2 = GPT2Config(
        vocab_size=sizes.vocab,
        n_embd=sizes.hidden,
        n_layer=sizes.layers,
        n_head=sizes.heads,
        n_positions=sizes.context,
        attn_pdrop=0.0,
        **ids,
    )
    bert = BertConfig(
        vocab_size=sizes.vocab,
        hidden_size=sizes.hidden,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        intermediate_size=sizes.inner,
        attention_probs_dropout_prob=0.0,
        **ids,
    )
    models = {"transformer": MarianMTModel(marian), "gpt": GPT2LMHeadModel(gpt2), "bert": BertForMaskedLM(bert)}
    with torch.no_grad():
        for model in models.values():
            # Words as unlike each other as after some training, so that what is written is not a matter of ties.
            model.get_input_embeddings().weight.mul_(3)
    return models


def make_sides(names: list[str], sizes: Sizes, before: Path | None) -> dict[str, Side]:
    stock, sides = stock_models(sizes), {}
    heads = {"transformer": "TransformerForConditionalGeneration", "gpt": "GPTForCausalLM", "bert": "BERTForMaskedLM"}
    with tempfile.TemporaryDirectory() as folder:
        for family, model in stock.items():
            model.save_pretrained(f"{folder}/{family}/theirs")
            convert(f"{folder}/{family}/theirs", f"{folder}/{family}/ours")

        def load(models: ModuleType | None) -> Side:
            made = {}
            for family, head in heads.items():
                source = hf_attnzoo if models is None else getattr(models, f"modeling_{family}")
                made[family] = getattr(source, head).from_pretrained(f"{folder}/{family}/ours")
            return Side(**made)

        for name in names:
            sides[name] = Side(**stock) if name == "transformers" else load(None)
        if before is not None:
            sides["before"] = load(load_models(before, *(f"modeling_{family}" for family in heads)))
    return sides


def texts(sizes: Sizes, rows: int, shortest: int, longest: int, seed: int) -> tuple[Tensor, Tensor]:
    """Ids of texts that END stands last in, and their mask; the first is as long as there is room."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(shortest, longest + 1, (rows,), generator=generator)
    lengths[0] = longest
    words = torch.randint(END + 1, sizes.vocab, (rows, longest), generator=generator)
    places = torch.arange(longest)
    ids = words.where(places < lengths[:, None] - 1, END).where(places < lengths[:, None], PAD)
    return ids, (ids != PAD).long()


def pairs(sizes: Sizes, shortest: int, longest: int) -> dict[str, Tensor]:
    ids, mask = texts(sizes, sizes.batch, shortest, longest, 3)
    labels = texts(sizes, sizes.batch, shortest, longest, 4)[0]
    return {"input_ids": ids, "attention_mask": mask, "labels": labels.masked_fill(labels == PAD, -100)}


def prose(sizes: Sizes, shortest: int) -> dict[str, Tensor]:
    ids, mask = texts(sizes, sizes.texts, shortest, sizes.context, 5)
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def masked(sizes: Sizes) -> dict[str, Tensor]:
    ids, mask = texts(sizes, sizes.rows, sizes.narrow, sizes.width, 6)
    chosen = torch.rand(ids.shape, generator=torch.Generator().manual_seed(7)) < sizes.share_masked
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.where(chosen & mask.bool(), -100)}


def write(model: nn.Module, ids: Tensor, steps: int, beams: int = 1) -> Tensor:
    """Ids that a model writes, always so many."""
    options = {"num_beams": beams, "max_new_tokens": steps, "suppress_tokens": [END], "do_sample": False}
    return model.eval().generate(ids, attention_mask=(ids != PAD).long(), **options)[:, -steps:]


@torch.no_grad()
def encode(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    return model.eval().base_model(**inputs).last_hidden_state


def make_rows(sizes: Sizes, rounds: int) -> dict[str, Row]:
    fixed, ragged = pairs(sizes, sizes.length, sizes.length), pairs(sizes, sizes.shortest, sizes.longest)
    whole, cut, words = prose(sizes, sizes.context), prose(sizes, sizes.context // 4), masked(sizes)
    sources = texts(sizes, sizes.decode_batch, sizes.length, sizes.length, 8)[0]
    prompts = texts(sizes, 8, sizes.prompt, sizes.prompt, 9)[0]

    def timed(work: Callable[[Side], object]) -> Row:
        return lambda sides: time_row(sides, work, rounds)

    return {
        f"Transformer train, fixed {sizes.length}": timed(lambda side: side.train(side.transformer, fixed)),
        f"Transformer train, padded {sizes.shortest}..{sizes.longest}": timed(
            lambda side: side.train(side.transformer, ragged)
        ),
        f"Transformer greedy, batch {sizes.decode_batch}": timed(
            lambda side: write(side.transformer, sources, sizes.steps)
        ),
        f"Transformer beam-{sizes.beams}, batch {sizes.decode_batch}": timed(
            lambda side: write(side.transformer, sources, sizes.steps, sizes.beams)
        ),
        f"GPT train, fixed {sizes.context}": timed(lambda side: side.train(side.gpt, whole)),
        f"GPT train, padded {sizes.context // 4}..{sizes.context}": timed(lambda side: side.train(side.gpt, cut)),
        f"GPT write {sizes.prompt}+{sizes.written}, batch 1": timed(
            lambda side: write(side.gpt, prompts[:1], sizes.written)
        ),
        f"GPT write {sizes.prompt}+{sizes.written}, batch 8": timed(
            lambda side: write(side.gpt, prompts, sizes.written)
        ),
        f"BERT train, padded {sizes.narrow}..{sizes.width}": timed(lambda side: side.train(side.bert, words)),
        f"BERT encode, padded {sizes.narrow}..{sizes.width}": timed(lambda side: encode(side.bert, words)),
    }


def check_agreement(sides: dict[str, Side], sizes: Sizes) -> None:
    """All sides have the same weights, so their losses must be the same, and (ties aside) what they write."""
    if not {"ours", "transformers"} <= sides.keys():
        return
    ours, theirs = sides["ours"], sides["transformers"]
    for family, batch in (
        ("transformer", pairs(sizes, sizes.shortest, sizes.longest)),
        ("gpt", prose(sizes, sizes.context // 4)),
        ("bert", masked(sizes)),
    ):
        losses = [getattr(side, family).eval()(**batch).loss.detach() for side in (ours, theirs)]
        torch.testing.assert_close(*losses, rtol=1e-4, atol=1e-4)
    sources, prompts = texts(sizes, 4, 5, 10, 8)[0], texts(sizes, 4, 10, 10, 9)[0]
    for beams in (1, sizes.beams):
        for family, ids in (("transformer", sources), ("gpt", prompts)):
            same = [write(getattr(side, family), ids, sizes.steps, beams) for side in (ours, theirs)]
            share = (same[0] == same[1]).float().mean()
            print(f"{family}, beams {beams}: {share:.0%} of the words that both write are the same")


def main() -> None:
    options = options_of(__doc__, ["ours", "transformers"])
    sizes = QUICK if options.quick else Sizes()
    sides = make_sides(options.sides, sizes, options.before)
    check_agreement(sides, sizes)
    report(measure(make_rows(sizes, options.rounds), sides, options.rows), sizes, options)


if __name__ == "__main__":
    main()
