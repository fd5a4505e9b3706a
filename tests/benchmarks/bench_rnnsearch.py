"""Speed and memory of RNNsearch beside a naive decoder and JoeyNMT: `python tests/benchmarks/bench_rnnsearch.py`.

Figures are the least CPU time of the process over some rounds, on one thread; each round runs every side once
in turn: what else the machine does falls on all of them alike. `--quick` is a look at small sizes. JoeyNMT takes part
if it can be imported. `--before FOLDER` adds the `hf_attnzoo/models` of another checkout, to see what a change brings.
"""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace

from timing import Row, load_models, measure, options_of, report, time_row

# isort: split
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import hf_attnzoo.models
import hf_attnzoo.models.modeling_rnnsearch

UNK, PAD, START, END = range(4)


@dataclass
class Sizes:
    vocab: int = 10_000
    embedding: int = 256
    hidden: int = 512
    maxout: int = 512
    batch: int = 64
    decode_batch: int = 32
    length: int = 25
    shortest: int = 10
    longest: int = 40
    steps: int = 25
    beams: int = 5


QUICK = Sizes(vocab=500, embedding=32, hidden=64, maxout=64, batch=16, decode_batch=8, steps=10)


@dataclass
class Batch:
    """Sentences sorted from the longest source to the shortest, which JoeyNMT asks for; END stands last in each."""

    source: Tensor
    target: Tensor


def make_batch(sizes: Sizes, rows: int, shortest: int, longest: int) -> Batch:
    generator = torch.Generator().manual_seed(3)

    def sentences(lengths: Tensor) -> Tensor:
        words = torch.randint(END + 1, sizes.vocab, (rows, longest), generator=generator)
        places = torch.arange(longest)
        return words.where(places < lengths[:, None] - 1, END).where(places < lengths[:, None], PAD)

    lengths = torch.randint(shortest, longest + 1, (2, rows), generator=generator)
    lengths[:, 0] = longest
    return Batch(sentences(lengths[0].sort(descending=True).values), sentences(lengths[1]))


def ours(sizes: Sizes, models: ModuleType) -> nn.Module:
    torch.manual_seed(0)
    config = models.modeling_rnnsearch.RNNSearchConfig(
        vocab_size=sizes.vocab,
        source_vocab_size=sizes.vocab,
        embedding_size=sizes.embedding,
        hidden_size=sizes.hidden,
        maxout_size=sizes.maxout,
        # Words as unlike each other as after some training: with the paper's 0.01 all would be equally likely.
        initializer_range=0.1,
    )
    return models.modeling_rnnsearch.RNNSearchForConditionalGeneration(config)


class Ours:
    def __init__(self, sizes: Sizes, models: ModuleType = hf_attnzoo.models):
        self.sizes = sizes
        self.model = ours(sizes, models)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-4, fused=True)

    def loss(self, batch: Batch) -> Tensor:
        labels = batch.target.masked_fill(batch.target == PAD, -100)
        return self.model.train()(input_ids=batch.source, labels=labels).loss

    def decode(self, batch: Batch, beams: int) -> Tensor:
        return self.model.eval().generate(
            batch.source,
            attention_mask=(batch.source != PAD).long(),
            num_beams=beams,
            max_new_tokens=self.sizes.steps,
            suppress_tokens=[END],
        )[:, 1:]


class NaiveModel(nn.Module):
    """RNNsearch as tutorials write it: everything inside the loop, every padded position computed."""

    def __init__(self, sizes: Sizes):
        super().__init__()
        size, states = sizes.hidden, 2 * sizes.hidden
        self.source_embedding = nn.Embedding(sizes.vocab, sizes.embedding, PAD)
        self.target_embedding = nn.Embedding(sizes.vocab, sizes.embedding, PAD)
        self.encoder = nn.GRU(sizes.embedding, size, bidirectional=True, batch_first=True)
        self.bridge = nn.Linear(size, size)
        self.query, self.key = nn.Linear(size, size, bias=False), nn.Linear(states, size, bias=False)
        self.energy = nn.Linear(size, 1, bias=False)
        self.cell = nn.GRUCell(sizes.embedding + states, size)
        self.readout = nn.Linear(size + sizes.embedding + states, 2 * sizes.maxout)
        self.head = nn.Linear(sizes.maxout, sizes.vocab, bias=False)

    @torch.no_grad()
    def copy_from(self, model: nn.Module) -> None:
        """Take the parameters of ours, so that equal losses show that both sides compute the same thing."""
        encoder, decoder = model.model.encoder, model.model.decoder
        self.source_embedding.weight.copy_(encoder.embed_tokens.weight)
        self.target_embedding.weight.copy_(decoder.embed_tokens.weight)
        layer = encoder.layers[0]
        for suffix, rnn in (("l0", layer.forward_rnn), ("l0_reverse", layer.backward_rnn)):
            for kind, projection in (("ih", rnn.input_proj), ("hh", rnn.cell.hidden_proj)):
                getattr(self.encoder, f"weight_{kind}_{suffix}").copy_(projection.weight)
                getattr(self.encoder, f"bias_{kind}_{suffix}").copy_(projection.bias)
        self.bridge.load_state_dict(decoder.initial_proj.state_dict())
        self.query.weight.copy_(decoder.step.attention.query_proj.weight)
        self.key.weight.copy_(decoder.step.attention.key_proj.weight)
        self.energy.weight.copy_(decoder.step.attention.v[None])
        self.cell.weight_ih.copy_(torch.cat([decoder.input_proj.weight, decoder.step.context_proj.weight], dim=1))
        self.cell.bias_ih.copy_(decoder.input_proj.bias)
        self.cell.weight_hh.copy_(decoder.step.cells[0].hidden_proj.weight)
        self.cell.bias_hh.copy_(decoder.step.cells[0].hidden_proj.bias)
        readouts = (decoder.state_readout, decoder.word_readout, decoder.context_readout)
        self.readout.weight.copy_(torch.cat([readout.weight for readout in readouts], dim=1))
        self.readout.bias.copy_(decoder.state_readout.bias)
        self.head.load_state_dict(model.lm_head.state_dict())

    def encode(self, source: Tensor) -> tuple[Tensor, Tensor]:
        packed = nn.utils.rnn.pack_padded_sequence(
            self.source_embedding(source), (source != PAD).sum(dim=1), batch_first=True, enforce_sorted=False
        )
        states, last = self.encoder(packed)
        states = nn.utils.rnn.pad_packed_sequence(states, batch_first=True, total_length=source.shape[1])[0]
        return states, torch.tanh(self.bridge(last[1]))

    def step(self, words: Tensor, state: Tensor, annotations: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        embedded = self.target_embedding(words)
        energies = self.energy(torch.tanh(self.query(state)[:, None] + self.key(annotations)))[:, :, 0]
        weights = energies.masked_fill(~mask, -1e9).softmax(dim=1)
        context = torch.bmm(weights[:, None], annotations)[:, 0]
        readout = self.readout(torch.cat([state, embedded, context], dim=1))
        logits = self.head(torch.maximum(*readout.chunk(2, dim=1)))
        return logits, self.cell(torch.cat([embedded, context], dim=1), state)


class Naive:
    def __init__(self, sizes: Sizes):
        self.sizes = sizes
        self.model = NaiveModel(sizes)
        self.model.copy_from(ours(sizes, hf_attnzoo.models))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-4)

    def loss(self, batch: Batch) -> Tensor:
        annotations, state = self.model.encode(batch.source)
        words, mask, logits = torch.full_like(batch.target[:, 0], START), batch.source != PAD, []
        for word in batch.target.unbind(dim=1):
            step, state = self.model.step(words, state, annotations, mask)
            logits.append(step)
            words = word
        return F.cross_entropy(torch.stack(logits, dim=1).flatten(0, 1), batch.target.flatten(), ignore_index=PAD)

    @torch.no_grad()
    def decode(self, batch: Batch, beams: int) -> Tensor:
        rows, vocab = len(batch.source), self.sizes.vocab
        annotations, state = (t.repeat_interleave(beams, dim=0) for t in self.model.encode(batch.source))
        mask = (batch.source != PAD).repeat_interleave(beams, dim=0)
        sequences = torch.full((rows * beams, 1), START)
        scores = torch.full((rows, beams), -torch.inf)
        scores[:, 0] = 0
        for _ in range(self.sizes.steps):
            logits, state = self.model.step(sequences[:, -1], state, annotations, mask)
            logits[:, END] = -torch.inf
            totals = scores[:, :, None] + logits.log_softmax(dim=1).view(rows, beams, vocab)
            scores, best = totals.flatten(1).topk(beams, dim=1)
            origin = (best // vocab + torch.arange(rows)[:, None] * beams).flatten()
            state = state[origin]
            sequences = torch.cat([sequences[origin], (best % vocab).view(-1, 1)], dim=1)
        return sequences.view(rows, beams, -1)[:, 0, 1:]


class JoeyNMT:
    """Its recurrent model at the same sizes: another architecture, with fewer products in its output layer."""

    def __init__(self, sizes: Sizes):
        from joeynmt.model import build_model
        from joeynmt.vocabulary import Vocabulary

        self.sizes = sizes
        special = SimpleNamespace(
            **{"unk_token": "<unk>", "pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"},
            **{"unk_id": UNK, "pad_id": PAD, "bos_id": START, "eos_id": END},
            sep_token=None,
            lang_tags=[],
        )
        vocabulary = Vocabulary(["<unk>", "<pad>", "<s>", "</s>"], special)
        # add_tokens looks every word up in a list
        vocabulary._itos += [f"w{index}" for index in range(sizes.vocab - 4)]
        common = {"type": "recurrent", "rnn_type": "gru", "hidden_size": sizes.hidden, "num_layers": 1}
        common["embeddings"] = {"embedding_dim": sizes.embedding}
        decoder = {"attention": "bahdanau", "input_feeding": True, "init_hidden": "bridge"}
        torch.manual_seed(0)
        self.model = build_model(
            {"encoder": {**common, "bidirectional": True}, "decoder": {**common, **decoder}}, vocabulary, vocabulary
        )
        self.model.loss_function = ("crossentropy", 0.0)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-4)

    def source(self, batch: Batch) -> dict[str, Tensor]:
        mask = batch.source != PAD
        return {"src": batch.source, "src_mask": mask[:, None], "src_length": mask.sum(dim=1)}

    def loss(self, batch: Batch) -> Tensor:
        start = torch.full_like(batch.target[:, :1], START)
        summed = self.model.train()(
            return_type="loss",
            trg_input=torch.cat([start, batch.target[:, :-1]], dim=1),
            trg=batch.target,
            trg_mask=(batch.target != PAD)[:, None],
            **self.source(batch),
        )[0]
        return summed / (batch.target != PAD).sum()

    @torch.no_grad()
    def decode(self, batch: Batch, beams: int) -> Tensor:
        from joeynmt.search import beam_search, greedy

        source = self.source(batch)
        steps = {"max_output_length": self.sizes.steps, "min_output_length": self.sizes.steps}
        encoded, last, *_ = self.model.eval()(return_type="encode", **source)
        given = {"encoder_output": encoded, "encoder_hidden": last, "src_mask": source["src_mask"], **steps}
        if beams == 1:
            return greedy(model=self.model, **given)[0]
        return torch.as_tensor(beam_search(model=self.model, beam_size=beams, alpha=0.0, **given)[0])


Side = Ours | Naive | JoeyNMT


def train_step(side: Side, batch: Batch) -> None:
    side.optimizer.zero_grad()
    side.loss(batch).backward()
    side.optimizer.step()


def peak_memory(side: Side, batch: Batch) -> float:
    """MB (10^6 bytes) that torch's allocator holds at most in one forward and backward pass, beyond what it held."""
    side.optimizer.zero_grad()
    side.loss(batch).backward()
    side.optimizer.zero_grad()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        side.loss(batch).backward()
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    side.optimizer.zero_grad()
    return most / 1e6


def make_sides(names: list[str], sizes: Sizes, before: Path | None) -> dict[str, Side]:
    sides: dict[str, Side] = {}
    for name in names:
        if name == "ours":
            sides[name] = Ours(sizes)
        elif name == "naive":
            sides[name] = Naive(sizes)
        elif importlib.util.find_spec("joeynmt") is not None:
            sides[name] = JoeyNMT(sizes)
        else:
            print("JoeyNMT can't be imported: left out")
    if before is not None:
        sides["before"] = Ours(sizes, load_models(before, "modeling_rnnsearch"))
    return sides


def make_rows(sizes: Sizes, rounds: int) -> dict[str, Row]:
    fixed = make_batch(sizes, sizes.batch, sizes.length, sizes.length)
    twice = make_batch(sizes, sizes.batch, 2 * sizes.length, 2 * sizes.length)
    padded = make_batch(sizes, sizes.batch, sizes.shortest, sizes.longest)
    few = make_batch(sizes, sizes.decode_batch, sizes.length, sizes.length)

    def timed(work: Callable[[Side], object]) -> Row:
        return lambda sides: time_row(sides, work, rounds)

    def held(batch: Batch) -> Row:
        return lambda sides: {name: peak_memory(side, batch) for name, side in sides.items()}

    # Memory first, before anything has made an optimizer allocate.
    return {
        f"memory {sizes.length}/{sizes.length}, MB": held(fixed),
        f"memory {2 * sizes.length}/{2 * sizes.length}, MB": held(twice),
        f"train, fixed {sizes.length}, ms": timed(lambda side: train_step(side, fixed)),
        f"train, padded {sizes.shortest}..{sizes.longest}, ms": timed(lambda side: train_step(side, padded)),
        f"greedy, batch {sizes.decode_batch}, ms": timed(lambda side: side.decode(few, 1)),
        f"beam-{sizes.beams}, batch {sizes.decode_batch}, ms": timed(lambda side: side.decode(few, sizes.beams)),
    }


def check_agreement(sides: dict[str, Side], sizes: Sizes) -> None:
    """The naive side has the parameters of ours, so its loss must be the same, and (ties aside) what it writes."""
    batch = make_batch(sizes, 4, sizes.shortest, sizes.longest)
    if {"ours", "naive"} <= sides.keys():
        torch.testing.assert_close(sides["ours"].loss(batch), sides["naive"].loss(batch))
        for beams in (1, sizes.beams):
            same = sides["ours"].decode(batch, beams) == sides["naive"].decode(batch, beams)
            print(f"beams {beams}: {same.float().mean():.0%} of the words that ours and naive write are the same")
    for side in sides.values():
        if side.decode(batch, 2).shape != (4, sizes.steps):
            raise RuntimeError(f"{type(side).__name__} didn't write {sizes.steps} words for each of 4 sentences")


def main() -> None:
    options = options_of(__doc__, ["ours", "naive", "joeynmt"])
    sizes = QUICK if options.quick else Sizes()
    sides = make_sides(options.sides, sizes, options.before)
    check_agreement(sides, sizes)
    report(measure(make_rows(sizes, options.rounds), sides, options.rows), sizes, options)


if __name__ == "__main__":
    main()
