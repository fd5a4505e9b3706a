"""The Transformer against section 3 of Vaswani et al. (2017) written out, and against Marian and BART of transformers.

The reference knows one sentence at a time, one position and one head at a time: no batch, no padding, no mask, no
module. Values and the gradient of every parameter must agree in double precision.
"""

import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.nn import functional
from transformers import BartConfig, BartForConditionalGeneration, MarianConfig, MarianMTModel

from hf_attnzoo.conversion.marian import layer_names
from hf_attnzoo.models.configuration_transformer import TransformerConfig
from hf_attnzoo.models.modeling_transformer import TransformerForConditionalGeneration

HIDDEN, HEADS, INNER = 6, 2, 5
VOCAB, SOURCE_VOCAB = 9, 11
START, PAD = 2, 1
SOURCES = [[5, 8, 4, 3], [6, 3], [3]]
TARGETS = [[7, 4, 3], [3], [8, 8, 5, 3]]
SIZES = {
    "hidden_size": HIDDEN,
    "num_attention_heads": HEADS,
    "intermediate_size": INNER,
    "vocab_size": VOCAB,
    "num_encoder_layers": 2,
    "num_decoder_layers": 3,
    "max_position_embeddings": 8,
}


class Reference:
    """Section 3, with the parameters of a checkpoint as its matrices."""

    def __init__(self, parameters: dict[str, torch.Tensor], config: TransformerConfig):
        self.config = config
        self.parameters = {name.removeprefix("model."): value for name, value in parameters.items()}

    def linear(self, name, x, rows=slice(None)):
        bias = self.parameters.get(f"{name}.bias")
        product = self.parameters[f"{name}.weight"][rows] @ x
        return product if bias is None else product + bias[rows]

    def normalised(self, name, x):
        mean = x.sum() / HIDDEN
        variance = ((x - mean) ** 2).sum() / HIDDEN
        x = (x - mean) / torch.sqrt(variance + self.config.layer_norm_eps) * self.parameters[f"{name}.weight"]
        bias = self.parameters.get(f"{name}.bias")
        return x if bias is None else x + bias

    def position(self, side, place):
        """3.5: PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos(pos / 10000^(2i/d))."""
        if self.config.position_embeddings == "learned":
            return self.parameters[f"{side}.inputs.positions.table.weight"][place]
        size = self.config.position_vector_size
        sines, cosines, turns = [], [], []
        for i in range(math.ceil(size / 2)):
            angle = place / 10000 ** (2 * i / size)
            sines.append(math.sin(angle))
            cosines.append(math.cos(angle))
            turns += [sines[-1], cosines[-1]]
        if self.config.position_layout == "halves":
            turns = sines + cosines[: size // 2]
        return torch.tensor(turns[:size], dtype=torch.float64)

    def embed(self, side, words):
        """3.4: the embedding layers multiply their weights by the square root of their size."""
        table = self.parameters.get(f"{side}.embed_tokens.weight", self.parameters["encoder.embed_tokens.weight"])
        vectors = []
        for place, word in enumerate(words):
            x = table[word]
            if self.config.scale_embedding:
                x = x * math.sqrt(len(x))
            if self.config.position_combination == "concat":
                x = torch.cat([x, self.position(side, place)])
            else:
                x = x + self.position(side, place)
            vectors.append(self.normalised(f"{side}.inputs.norm", x) if self.config.embedding_norm else x)
        return vectors

    def attend(self, name, x, memory, projections):
        """3.2: Concat(head_1, .., head_h) W^O, head_i = softmax(q K^T / sqrt(d_k)) V."""
        size = HIDDEN // HEADS
        heads, alphas = [], []
        for head in range(HEADS):
            (query_name, query_start), (key_name, key_start), (value_name, value_start) = projections
            own = [
                slice(start + head * size, start + (head + 1) * size)
                for start in (query_start, key_start, value_start)
            ]
            query = self.linear(f"{name}.{query_name}", x, own[0])
            scores = [query @ self.linear(f"{name}.{key_name}", y, own[1]) / math.sqrt(size) for y in memory]
            exponentials = [torch.exp(score) for score in scores]
            alpha = [one / sum(exponentials) for one in exponentials]
            values = [self.linear(f"{name}.{value_name}", y, own[2]) for y in memory]
            heads.append(sum(weight * value for weight, value in zip(alpha, values, strict=True)))
            alphas.append(torch.stack(alpha))
        return self.linear(f"{name}.out_proj", torch.cat(heads)), torch.stack(alphas)

    def self_attend(self, name, x, memory):
        places = [("qkv_proj", 0), ("qkv_proj", HIDDEN), ("qkv_proj", 2 * HIDDEN)]
        return self.attend(name, x, memory, places)

    def cross_attend(self, name, x, memory):
        return self.attend(name, x, memory, [("q_proj", 0), ("kv_proj", 0), ("kv_proj", HIDDEN)])

    def feed_forward(self, name, x):
        """3.3: FFN(x) = max(0, x W_1 + b_1) W_2 + b_2."""
        inner = self.linear(f"{name}.up_proj", x)
        inner = inner.clamp(min=0) if self.config.hidden_act == "relu" else functional.gelu(inner)
        return self.linear(f"{name}.down_proj", inner)

    def residual(self, name, vectors, sublayer):
        """3.1: LayerNorm(x + Sublayer(x)); or x + Sublayer(LayerNorm(x)). `sublayer(i, read)` is of position i."""
        alpha = getattr(self.config, f"{name.split('.')[0]}_residual_scale")
        if self.config.norm_first:
            read = [self.normalised(f"{name}_norm", x) for x in vectors]
            return [alpha * x + sublayer(i, read) for i, x in enumerate(vectors)]
        return [self.normalised(f"{name}_norm", alpha * x + sublayer(i, vectors)) for i, x in enumerate(vectors)]

    def finish(self, side, vectors):
        return [self.normalised(f"{side}.stack.norm", x) for x in vectors] if self.config.norm_first else vectors

    def encode(self, words):
        vectors = self.embed("encoder", words)
        for index in range(self.config.num_encoder_layers):
            layer = f"encoder.stack.layers.{index}"
            vectors = self.residual(
                f"{layer}.self_attn",
                vectors,
                lambda i, read, layer=layer: self.self_attend(f"{layer}.self_attn", read[i], read)[0],
            )
            vectors = self.residual(
                f"{layer}.feed_forward",
                vectors,
                lambda i, read, layer=layer: self.feed_forward(f"{layer}.feed_forward", read[i]),
            )
        return self.finish("encoder", vectors)

    def decode(self, annotations, words):
        vectors = self.embed("decoder", [START, *words[:-1]])
        seen = {"self": [], "cross": []}
        for index in range(self.config.num_decoder_layers):
            layer = f"decoder.stack.layers.{index}"
            alphas = {"self": [], "cross": []}

            def look_back(i, read, layer=layer, alphas=alphas):
                # Position i sees those up to i.
                added, alpha = self.self_attend(f"{layer}.self_attn", read[i], read[: i + 1])
                alphas["self"].append(functional.pad(alpha, (0, len(words) - 1 - i)))
                return added

            def look_across(i, read, layer=layer, alphas=alphas):
                added, alpha = self.cross_attend(f"{layer}.cross_attn", read[i], annotations)
                alphas["cross"].append(alpha)
                return added

            vectors = self.residual(f"{layer}.self_attn", vectors, look_back)
            vectors = self.residual(f"{layer}.cross_attn", vectors, look_across)
            vectors = self.residual(
                f"{layer}.feed_forward",
                vectors,
                lambda i, read, layer=layer: self.feed_forward(f"{layer}.feed_forward", read[i]),
            )
            for kind in seen:
                seen[kind].append(torch.stack(alphas[kind], dim=1))
        vectors = self.finish("decoder", vectors)
        head = self.parameters.get("lm_head.weight")
        if head is None:
            side = "encoder" if self.config.source_vocab_size is None else "decoder"
            head = self.parameters[f"{side}.embed_tokens.weight"]
        seen["logits"] = [head @ x + self.parameters.get("lm_head.bias", 0) for x in vectors]
        loss = 0
        smoothing = self.config.label_smoothing
        for logits, word in zip(seen["logits"], words, strict=True):
            logs = logits - torch.log(torch.exp(logits).sum())
            loss = loss - (1 - smoothing) * logs[word] - smoothing * logs.sum() / VOCAB
        return loss, seen


def close(actual, expected):
    torch.testing.assert_close(actual.detach(), expected.detach(), rtol=1e-9, atol=1e-9)


def right_padded(rows, filler):
    width = max(map(len, rows))
    return torch.tensor([row + [filler] * (width - len(row)) for row in rows])


def build(implementation="sdpa", **choices) -> TransformerForConditionalGeneration:
    """A model in double precision whose parameters are all far from their first values."""
    torch.manual_seed(5)
    config = TransformerConfig(**SIZES | {"dropout": 0.0} | choices)
    model = TransformerForConditionalGeneration(config).double().eval()
    for module in model.modules():
        # in double precision from the start, as the reference is
        if type(module).__name__ == "SinusoidalPositions":
            module.initialize()
    model.set_attn_implementation(implementation)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5)
    return model


VARIANTS = {
    "paper": {},
    "apart": {"tie_word_embeddings": False, "source_vocab_size": SOURCE_VOCAB},
    "tied": {"source_vocab_size": SOURCE_VOCAB, "head_bias": True, "norm_first": True},
    "pre-norm": {"norm_first": True, "hidden_act": "gelu", "scale_embedding": False},
    "deepnet": {"encoder_residual_scale": 1.4, "decoder_residual_scale": 0.5},
    "scaled-pre-norm": {"norm_first": True, "decoder_residual_scale": 2},
    "learned": {"position_embeddings": "learned", "embedding_norm": True, "hidden_act": "gelu"},
    "concat": {"position_combination": "concat", "position_size": 3, "tie_word_embeddings": False},
    "learned-concat": {
        "position_combination": "concat",
        "position_embeddings": "learned",
        "tie_word_embeddings": False,
    },
    "halves": {"position_layout": "halves", "use_bias": False, "layer_norm_eps": 0.1},
    "smoothed": {"label_smoothing": 0.3},
}


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_values_and_gradients_are_those_of_the_equations(variant, implementation):
    model = build(implementation, **VARIANTS[variant]).train()
    # Under the mask stands a word, not padding: nothing but the mask may hide it.
    input_ids = right_padded(SOURCES, filler=7)
    mask = torch.tensor([[1] * len(row) + [0] * (input_ids.shape[1] - len(row)) for row in SOURCES])
    inputs = {"input_ids": input_ids, "attention_mask": mask, "labels": right_padded(TARGETS, filler=-100)}
    outputs = model(**inputs, output_attentions=True, skip_logits=False)
    model(**inputs).loss.backward()

    copies = {name: value.detach().clone().requires_grad_() for name, value in model.named_parameters()}
    reference = Reference(copies, model.config)
    losses = []
    for row, (source, target) in enumerate(zip(SOURCES, TARGETS, strict=True)):
        annotations = reference.encode(source)
        loss, seen = reference.decode(annotations, target)
        losses.append(loss)
        close(outputs.encoder_last_hidden_state[row, : len(source)], torch.stack(annotations))
        assert not outputs.encoder_last_hidden_state[row, len(source) :].any()
        close(outputs.logits[row, : len(target)], torch.stack(seen["logits"]))
        for layer in range(3):
            weights = outputs.decoder_attentions[layer][row, :, : len(target)]
            close(weights[..., : len(target)], seen["self"][layer])
            weights = outputs.cross_attentions[layer][row, :, : len(target)]
            close(weights[..., : len(source)], seen["cross"][layer])
            assert not weights[..., len(source) :].any()
    total = sum(losses) / sum(map(len, TARGETS))
    total.backward()
    close(outputs.loss, total)
    for name, parameter in model.named_parameters():
        # A key's bias adds the same to all scores, of which a softmax knows nothing.
        expected = copies[name].grad
        assert expected.any(), name
        close(parameter.grad, expected)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_padding_may_stand_anywhere(implementation):
    model = build(implementation, position_embeddings="learned")
    input_ids = torch.tensor([[5, 8, 4, 3, PAD, PAD], [PAD, 6, PAD, PAD, 3, PAD], [PAD, PAD, PAD, PAD, PAD, 3]])
    # Under the decoder's mask stands a word.
    decoder_input_ids = torch.tensor([[8, START, 7, 4], [8, 8, 8, START], [START, 8, 8, 5]])
    decoder_mask = torch.tensor([[0, 1, 1, 1], [0, 0, 0, 1], [1, 1, 1, 1]])
    logits = model(
        input_ids=input_ids, decoder_input_ids=decoder_input_ids, decoder_attention_mask=decoder_mask
    ).logits
    reference = Reference(dict(model.named_parameters()), model.config)
    for row, (source, target) in enumerate(zip(SOURCES, TARGETS, strict=True)):
        _, seen = reference.decode(reference.encode(source), target)
        close(logits[row, -len(target) :], torch.stack(seen["logits"]))


@pytest.mark.parametrize("parts", [[1, 1, 1, 1], [3, 1], [1, 2, 1]], ids=str)
def test_hypotheses_share_a_source_and_go_on_from_a_cache(parts):
    model = build()
    annotations = model.get_encoder()(input_ids=right_padded(SOURCES[:2], filler=PAD))
    hypotheses = [[4, 5, 6, 3], [7, 7, 3, 3], [8, 4, 8, 3], [0, 5, 5, 3], [3, 3, 3, 3], [4, 4, 7, 8]]
    inputs = torch.tensor([[START, *words[:-1]] for words in hypotheses])
    cache, logits = None, []
    for part in inputs.split(parts, dim=1):
        outputs = model(encoder_outputs=annotations, decoder_input_ids=part, cache=cache, use_cache=True)
        cache = outputs.cache
        logits.append(outputs.logits)
    assert cache.get_seq_length() == 4
    reference = Reference(dict(model.named_parameters()), model.config)
    for row, words in enumerate(hypotheses):
        _, seen = reference.decode(reference.encode(SOURCES[row // 3]), words)
        close(torch.cat(logits, dim=1)[row], torch.stack(seen["logits"]))


class Half(torch.nn.Module):
    """Stands for a dropout whose draw is known."""

    def forward(self, inputs):
        return inputs / 2


def test_dropout_is_on_inputs_and_on_what_sublayers_add():
    # 5.4: "to the output of each sub-layer, before it is added", and to the sums of the embeddings and the positions.
    model, plain = build(norm_first=True).train(), build(norm_first=True)
    for name, module in list(model.named_modules()):
        if isinstance(module, torch.nn.Dropout):
            expected = "inputs.dropout", "layers.0.dropout", "layers.1.dropout", "layers.2.dropout"
            quiet = name.endswith(("attn.dropout", "feed_forward.dropout"))
            assert quiet or name.endswith(expected), name
            if not quiet:
                model.set_submodule(name, Half())
    # Halving what goes in and what is added halves every sum, which the normalisations make up for to the last.
    inputs = {"input_ids": right_padded(SOURCES, PAD), "labels": right_padded(TARGETS, -100)}
    halved = model(**inputs, skip_logits=False, output_hidden_states=True)
    whole = plain(**inputs, output_hidden_states=True)
    torch.testing.assert_close(halved.decoder_hidden_states[0], whole.decoder_hidden_states[0] / 2)
    torch.testing.assert_close(
        halved.encoder_hidden_states[1], whole.encoder_hidden_states[1] / 2, atol=1e-3, rtol=1e-3
    )


def pair_of(kind: str, options: dict):
    """A stock model with random weights, ours with the same, and the names that say which is which."""
    ids = {"pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 3, "decoder_start_token_id": 2}
    config_class = MarianConfig if kind == "marian" else BartConfig
    model_class = MarianMTModel if kind == "marian" else BartForConditionalGeneration
    shared = options["shared"] or kind == "bart"
    stock_config = config_class(
        vocab_size=20 if shared else 17,
        d_model=options["heads"] * options["head_size"],
        encoder_layers=options["encoder_layers"],
        decoder_layers=options["decoder_layers"],
        encoder_attention_heads=options["heads"],
        decoder_attention_heads=options["heads"],
        encoder_ffn_dim=options["inner"],
        decoder_ffn_dim=options["inner"],
        activation_function=options["activation"],
        scale_embedding=options["scale"],
        max_position_embeddings=16,
        dropout=0.0,
        forced_eos_token_id=None,
        **({} if shared else {"decoder_vocab_size": 20, "share_encoder_decoder_embeddings": False}),
        **ids,
    )
    torch.manual_seed(options["seed"])
    stock = model_class(stock_config).eval()
    with torch.no_grad():
        for parameter in stock.parameters():
            if parameter.requires_grad:
                parameter.normal_(std=0.4)
        stock.final_logits_bias.normal_()
    config = TransformerConfig(
        vocab_size=20,
        source_vocab_size=None if shared else 17,
        hidden_size=stock_config.d_model,
        num_attention_heads=options["heads"],
        intermediate_size=options["inner"],
        num_encoder_layers=options["encoder_layers"],
        num_decoder_layers=options["decoder_layers"],
        hidden_act=options["activation"],
        scale_embedding=options["scale"],
        max_position_embeddings=16,
        dropout=0.0,
        head_bias=True,
        position_embeddings="sinusoidal" if kind == "marian" else "learned",
        position_layout="halves",
        embedding_norm=kind == "bart",
        tie_word_embeddings=True,
    )
    mine = TransformerForConditionalGeneration(config).eval()
    mine.set_attn_implementation(options["implementation"])
    stock.set_attn_implementation(options["implementation"])
    pairs = layer_names(kind, config).items()
    names = {f"model.{own}": [f"model.{other}" for other in others] for own, others in pairs}
    if shared:
        names["model.encoder.embed_tokens.weight"] = ["model.shared.weight"]
    else:
        for side in ("encoder", "decoder"):
            names[f"model.{side}.embed_tokens.weight"] = [f"model.{side}.embed_tokens.weight"]
    theirs = dict(stock.named_parameters())
    assert set(names) | {"lm_head.bias"} == {name for name, _ in mine.named_parameters()}
    for name, parameter in mine.named_parameters():
        with torch.no_grad():
            if name == "lm_head.bias":
                parameter.copy_(stock.final_logits_bias[0])
            else:
                parameter.copy_(theirs_to_ours(name, [theirs[other] for other in names[name]]))
    return stock, mine, names


def theirs_to_ours(name, tensors):
    whole = torch.cat([tensor.detach() for tensor in tensors])
    # BART's first two positions are never used.
    return whole[2:] if "positions" in name else whole


@st.composite
def problems(draw):
    options = {
        "heads": draw(st.integers(1, 3)),
        "head_size": draw(st.sampled_from([2, 4])),
        "inner": draw(st.integers(3, 9)),
        "encoder_layers": draw(st.integers(1, 2)),
        "decoder_layers": draw(st.integers(1, 3)),
        "activation": draw(st.sampled_from(["relu", "gelu", "swish"])),
        "scale": draw(st.booleans()),
        "shared": draw(st.booleans()),
        "implementation": draw(st.sampled_from(["eager", "sdpa"])),
        "seed": draw(st.integers(0, 100)),
    }
    words = st.integers(4, 16)
    rows = draw(st.integers(1, 3))
    sources = [[*draw(st.lists(words, max_size=6)), 3] for _ in range(rows)]
    targets = [[*draw(st.lists(words, max_size=5)), 3] for _ in range(rows)]
    return options, sources, targets


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["marian", "bart"])
@given(problem=problems())
@settings(max_examples=6, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_it_is_what_transformers_has(kind, dtype, problem):
    options, sources, targets = problem
    stock, mine, names = pair_of(kind, options)
    stock, mine = stock.to(dtype), mine.to(dtype)
    input_ids = right_padded(sources, PAD)
    labels = right_padded(targets, -100)
    inputs = {"input_ids": input_ids, "attention_mask": (input_ids != PAD).long(), "labels": labels}
    expected, output = stock(**inputs), mine(**inputs)
    # Marian keeps its sinusoids in single precision.
    exact = dtype == torch.float64
    tolerance = {
        torch.float64: {"rtol": 1e-5, "atol": 1e-5},
        torch.float32: {"rtol": 1e-4, "atol": 1e-4},
        torch.bfloat16: {"rtol": 0.1, "atol": 0.25},
    }[dtype]
    real = labels != -100
    torch.testing.assert_close(output.logits[real], expected.logits[real], **tolerance)
    torch.testing.assert_close(output.loss.double(), expected.loss.double(), **tolerance)
    if not exact:
        return
    expected.loss.backward()
    output.loss.backward()
    theirs = dict(stock.named_parameters())
    for name, parameter in mine.named_parameters():
        if name == "lm_head.bias":
            continue
        gradient = [
            torch.zeros_like(theirs[other]) if theirs[other].grad is None else theirs[other].grad
            for other in names[name]
        ]
        torch.testing.assert_close(parameter.grad, theirs_to_ours(name, gradient), **tolerance, msg=name)
    for search in ({}, {"num_beams": 3, "num_return_sequences": 2}):
        given_mask = {"input_ids": input_ids, "attention_mask": inputs["attention_mask"]}
        written = mine.generate(**given_mask, max_new_tokens=8, **search)
        assert torch.equal(written, stock.generate(**given_mask, max_new_tokens=8, **search))
