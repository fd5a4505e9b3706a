"""OpenNMT-py's models to luong and transformer, by what they compute: its equations, and itself where it is there."""

import argparse
import math
import os
import shutil

import pytest
import torch
from naive_layers import (
    average,
    decode,
    encode,
    fill,
    greedy,
    linear,
    multi_head,
    normalise,
    position_table,
    rnn_shapes,
)
from safetensors.torch import save_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, pipeline

from hf_attnzoo.conversion import convert

UNK, PAD, BOS, EOS = SPECIAL = ["<unk>", "<blank>", "<s>", "</s>"]
SOURCE_WORDS = [*SPECIAL, "the", "cat", "sat", "on", "mat"]
# Special words stand anywhere.
TARGET_WORDS = ["le", PAD, "chat", BOS, "est", "assis", UNK, EOS, "sur", "tapis", "un"]
# Of each of our ids, theirs.
ORDER = [TARGET_WORDS.index(word) for word in SPECIAL]
ORDER += [index for index in range(len(TARGET_WORDS)) if index not in ORDER]
TEXTS = ["the cat sat on the mat", "a cat sat"]
SOURCES = [[4, 5, 6, 7, 4, 8], [0, 5, 6]]
TARGETS = [[2, 4, 9, 6, 3], [2, 10, 5]]
STEPS = 7
VECTORS = "{}.embeddings.make_embedding.emb_luts.0.weight"
TABLE = "{}.embeddings.make_embedding.pe.pe"

RECURRENT = {
    "general": {"encoder_type": "brnn", "enc_layers": 2, "dec_layers": 2},
    "general-batched": {"input_feed": 0, "rnn_type": "GRU", "enc_layers": 2, "dec_layers": 2},
    "dot-bridge": {
        "global_attention": "dot",
        "encoder_type": "brnn",
        "bridge": True,
        "enc_layers": 2,
        "dec_layers": 2,
    },
    "mlp": {"global_attention": "mlp", "rnn_type": "GRU"},
    "mlp-batched-bridge": {"global_attention": "mlp", "input_feed": 0, "bridge": True, "encoder_type": "brnn"},
    "none": {"global_attention": "none", "input_feed": 0, "rnn_type": "GRU", "encoder_type": "brnn", "bridge": True},
}
TRANSFORMERS = {
    "without-biases": {"pos_ffn_activation_fn": "relu"},
    "with-biases": {"add_qkvbias": True, "add_ffnbias": True, "pos_ffn_activation_fn": "gelu", "norm_eps": 1e-3},
}


def recurrent(case):
    """Options, and parameters by their names."""
    words, size = 6, 8
    options = {
        "encoder_type": "rnn",
        "decoder_type": "rnn",
        "rnn_type": "LSTM",
        "global_attention": "general",
        "global_attention_function": "softmax",
        "input_feed": 1,
        "bridge": False,
        "enc_layers": 1,
        "dec_layers": 1,
        "layers": -1,
        "hidden_size": size,
        "enc_hid_size": size,
        "dec_hid_size": size,
        "word_vec_size": -1,
        "src_word_vec_size": words,
        "tgt_word_vec_size": words,
        "position_encoding": False,
    } | RECURRENT[case]
    layers, gates, directions = options["enc_layers"], gates_of(options), directions_of(options)
    own = size // directions
    pattern = decoder_pattern(options)
    shapes = {
        VECTORS.format("encoder"): (len(SOURCE_WORDS), words),
        VECTORS.format("decoder"): (len(TARGET_WORDS), words),
        **rnn_shapes("encoder.rnn.{}_l{}", gates, words, own, layers, directions),
        **rnn_shapes(pattern, gates, words + size * options["input_feed"], size, options["dec_layers"]),
    }
    if options["bridge"]:
        for kind in range(gates - 2 if gates == 4 else 1):
            shapes[f"encoder.bridge.{kind}.weight"] = (own * layers, own * layers)
            shapes[f"encoder.bridge.{kind}.bias"] = (own * layers,)
    score = options["global_attention"]
    if score != "none":
        shapes["decoder.attn.linear_out.weight"] = (size, 2 * size)
    if score == "general":
        shapes["decoder.attn.linear_in.weight"] = (size, size)
    if score == "mlp":
        shapes |= {f"decoder.attn.linear_{part}.weight": (size, size) for part in ("context", "query")}
        shapes |= {f"decoder.attn.linear_{part}.bias": (size,) for part in ("query", "out")}
        shapes["decoder.attn.v.weight"] = (1, size)
    return options, fill(shapes | generator_shapes(size))


def transformer(case):
    """Options, and parameters by their names."""
    size, inner = 8, 10
    options = {
        "encoder_type": "transformer",
        "decoder_type": "transformer",
        "position_encoding": True,
        "position_encoding_type": "SinusoidalInterleaved",
        "self_attn_type": "scaled-dot-flash",
        "heads": 2,
        "transformer_ff": inner,
        "enc_layers": 1,
        "dec_layers": 2,
        "hidden_size": size,
        "word_vec_size": size,
        "norm_eps": 1e-6,
        "layer_norm": "standard",
        "max_relative_positions": 0,
    } | TRANSFORMERS[case]
    matrices, norms = {}, {"encoder.layer_norm": (size,), "decoder.layer_norm": (size,)}
    for name, attentions, layer_norms in (
        ("encoder.transformer.0", ("self_attn",), ("layer_norm",)),
        ("decoder.transformer_layers.0", ("self_attn", "context_attn"), ("layer_norm_1", "layer_norm_2")),
        ("decoder.transformer_layers.1", ("self_attn", "context_attn"), ("layer_norm_1", "layer_norm_2")),
    ):
        for attention in attentions:
            for part in ("linear_keys", "linear_values", "linear_query", "final_linear"):
                matrices[f"{name}.{attention}.{part}"] = (size, size)
        matrices |= {f"{name}.feed_forward.w_1": (inner, size), f"{name}.feed_forward.w_2": (size, inner)}
        norms |= {f"{name}.{norm}": (size,) for norm in (*layer_norms, "feed_forward.layer_norm")}
    shapes = {f"{name}.weight": shape for name, shape in (matrices | norms).items()}
    biased = norms | (matrices if options.get("add_qkvbias") else {})
    shapes |= {f"{name}.bias": shape[:1] for name, shape in biased.items()}
    shapes |= {
        VECTORS.format("encoder"): (len(SOURCE_WORDS), size),
        VECTORS.format("decoder"): (len(TARGET_WORDS), size),
    }
    state = fill(shapes | generator_shapes(size))
    state |= {TABLE.format(side): position_table(30, size)[:, None] for side in ("encoder", "decoder")}
    return options, state


def gates_of(options):
    return {"LSTM": 4, "GRU": 3}[options["rnn_type"]]


def directions_of(options):
    return 2 if options["encoder_type"] == "brnn" else 1


def decoder_pattern(options):
    return "decoder.rnn.layers.{1}.{0}" if options["input_feed"] else "decoder.rnn.{}_l{}"


def generator_shapes(size):
    return {"generator.weight": (len(TARGET_WORDS), size), "generator.bias": (len(TARGET_WORDS),)}


def recurrent_logits(options, state, source, target):
    """Scores of the next word after each of a target's, from OpenNMT-py's equations."""
    layers, directions, size = options["enc_layers"], directions_of(options), options["hidden_size"]
    kinds = gates_of(options) - 2 if gates_of(options) == 4 else 1
    annotations, finals = encode(
        state, state[VECTORS.format("encoder")][source], size // directions, layers, directions, kinds
    )
    # A state has a row for each layer and direction.
    rows = [torch.stack([side[kind] for layer in finals for side in layer]) for kind in range(kinds)]
    if options["bridge"]:
        for kind in range(kinds):
            # As many rows as fit its matrix go through it together.
            parts = rows[kind].reshape(directions, -1)
            made = torch.stack([linear(state, f"encoder.bridge.{kind}", part) for part in parts])
            rows[kind] = (made * (made > 0)).reshape(rows[kind].shape)
    states = [
        tuple(kind[layer * directions : (layer + 1) * directions].flatten() for kind in rows)
        for layer in range(layers)
    ]

    def energy(query, annotation):
        if options["global_attention"] == "dot":
            return query @ annotation
        if options["global_attention"] == "general":
            return linear(state, "decoder.attn.linear_in", query) @ annotation
        inner = linear(state, "decoder.attn.linear_query", query) + linear(
            state, "decoder.attn.linear_context", annotation
        )
        return linear(state, "decoder.attn.v", torch.tanh(inner))[0]

    def attend(query):
        if options["global_attention"] == "none":
            return query
        context = average([energy(query, annotation) for annotation in annotations], annotations)
        made = linear(state, "decoder.attn.linear_out", torch.cat([context, query]))
        return made if options["global_attention"] == "mlp" else torch.tanh(made)

    vectors = state[VECTORS.format("decoder")][target]
    made = decode(state, decoder_pattern(options), vectors, states, attend, options["input_feed"])
    return linear(state, "generator", made)


def transformer_logits(options, state, source, target):
    """Scores of the next word after each of a target's, from OpenNMT-py's equations."""
    eps = options["norm_eps"]

    def activation(x):
        return x * (1 + torch.erf(x / math.sqrt(2))) / 2 if options["pos_ffn_activation_fn"] == "gelu" else x * (x > 0)

    def start(side, ids):
        vectors = state[VECTORS.format(side)][ids]
        return math.sqrt(vectors.shape[1]) * vectors + position_table(*vectors.shape)

    def attention(name, x, memory, causal=False):
        parts = (("query", x), ("keys", memory), ("values", memory))
        q, k, v = (linear(state, f"{name}.linear_{part}", vectors) for part, vectors in parts)
        return linear(state, f"{name}.final_linear", multi_head(q, k, v, 2, causal))

    def feed_forward(name, x):
        inner = activation(linear(state, f"{name}.w_1", normalise(state, f"{name}.layer_norm", x, eps)))
        return x + linear(state, f"{name}.w_2", inner)

    x, name = start("encoder", source), "encoder.transformer.0"
    read = normalise(state, f"{name}.layer_norm", x, eps)
    x = feed_forward(f"{name}.feed_forward", x + attention(f"{name}.self_attn", read, read))
    memory, y = normalise(state, "encoder.layer_norm", x, eps), start("decoder", target)
    for layer in range(2):
        name = f"decoder.transformer_layers.{layer}"
        read = normalise(state, f"{name}.layer_norm_1", y, eps)
        y = y + attention(f"{name}.self_attn", read, read, True)
        y = y + attention(f"{name}.context_attn", normalise(state, f"{name}.layer_norm_2", y, eps), memory)
        y = feed_forward(f"{name}.feed_forward", y)
    return linear(state, "generator", normalise(state, "decoder.layer_norm", y, eps))


CASES = [(recurrent, recurrent_logits, case) for case in RECURRENT]
CASES += [(transformer, transformer_logits, case) for case in TRANSFORMERS]
cases = pytest.mark.parametrize(("make", "logits_of", "case"), CASES, ids=[case for _, _, case in CASES])


def write(path, options, state, sides=(SOURCE_WORDS, TARGET_WORDS), **changes):
    """A file as OpenNMT-py saves it."""
    path.parent.mkdir(exist_ok=True)
    data = {"corpus_1": {"path_src": "src.txt", "transforms": [], "weight": 1}}
    generator = {name.removeprefix("generator."): t for name, t in state.items() if name.startswith("generator.")}
    content = {
        "model": {name: t for name, t in state.items() if not name.startswith("generator.")},
        "generator": generator,
        "vocab": {"src": sides[0], "tgt": sides[1], "data_task": "seq2seq", "decoder_start_token": BOS},
        "opt": argparse.Namespace(**{"model_type": "text", "dropout": [0.3, 0.1], "data": data} | options),
        "optim": {"training_step": 5},
    } | changes
    torch.save(content, path)
    return path


def load(folder):
    model, info = AutoModelForSeq2SeqLM.from_pretrained(folder, output_loading_info=True)
    assert not any(info.values()), info
    return model, AutoTokenizer.from_pretrained(folder)


def check(model, tokenizer, logits_of, options, state, order=ORDER):
    """A padded batch has the scores of the equations, row by row, by our ids."""
    width = max(map(len, TARGETS))
    ids = torch.tensor([row + [1] * (width - len(row)) for row in TARGETS])
    with torch.no_grad():
        logits = model(**tokenizer(TEXTS, padding=True, return_tensors="pt"), decoder_input_ids=ids).logits
    for source, target, mine in zip(SOURCES, TARGETS, logits, strict=True):
        expected = logits_of(options, state, source, [order[i] for i in target])[:, order]
        torch.testing.assert_close(mine[: len(target)], expected, atol=2e-5, rtol=1e-5)


@cases
def test_scores_and_greedy_output_are_those_of_its_equations(make, logits_of, case, tmp_path):
    options, state = make(case)
    write(tmp_path / "onmt" / "model_step_5.pt", options, state)
    convert(tmp_path / "onmt", tmp_path / "ours")
    model, tokenizer = load(tmp_path / "ours")
    # No end of the source, which they don't have.
    assert tokenizer(TEXTS)["input_ids"] == SOURCES
    assert tokenizer(text_target="le zut")["input_ids"] == [4, 0, 3]
    assert tokenizer.pad_token == PAD
    assert model.config.dropout == 0.1
    check(model, tokenizer, logits_of, options, state)

    start, end = TARGET_WORDS.index(BOS), TARGET_WORDS.index(EOS)
    written = [
        greedy(lambda ids, source=source: logits_of(options, state, source, ids), start, end, STEPS)
        for source in SOURCES
    ]
    inputs = tokenizer(TEXTS, padding=True, return_tensors="pt")
    generated = model.generate(**inputs, max_new_tokens=STEPS)[:, 1:].tolist()
    mine = [[ORDER[i] for i in row[: len(ids)]] for row, ids in zip(generated, written, strict=True)]
    assert mine == written
    words = [" ".join(TARGET_WORDS[i] for i in ids if TARGET_WORDS[i] not in SPECIAL) for ids in written]
    made = pipeline("attnzoo-translation", model=str(tmp_path / "ours"))(TEXTS, max_new_tokens=STEPS)
    assert [item["translation_text"] for item in made] == words


@cases
def test_its_own_classes_compute_the_same(make, logits_of, case):
    builder = pytest.importorskip("onmt.model_builder", reason="OpenNMT-py is not installed")
    inputter = pytest.importorskip("onmt.inputters.inputter")
    parse = pytest.importorskip("onmt.utils.parse").ArgumentParser
    options, state = make(case)
    opt = parse.defaults(pytest.importorskip("onmt.opts").model_opts)
    vars(opt).update({"optim": "adam", "world_size": 1, "parallel_mode": "data_parallel", "use_ckpting": []} | options)
    vars(opt).update({"dropout": [0.0], "attention_dropout": [0.0], "gpu_ranks": []})
    vars(opt).update({"freeze_word_vecs_enc": False, "freeze_word_vecs_dec": False})
    parse.update_model_opts(opt)
    parse.validate_model_opts(opt)
    vocabulary = {"src": SOURCE_WORDS, "tgt": TARGET_WORDS, "data_task": "seq2seq"}
    stock = builder.build_base_model(opt, inputter.dict_to_vocabs(vocabulary))
    # It makes tables of 5000 positions.
    tables = {name: tensor for name, tensor in stock.state_dict().items() if name.endswith("pe.pe")}
    torch.nn.Module.load_state_dict(stock, state | tables)
    stock.eval()
    for source, target in zip(SOURCES, TARGETS, strict=True):
        ids = [ORDER[i] for i in target]
        src, lengths = torch.tensor(source)[None, :, None], torch.tensor([len(source)])
        annotations, finals, _ = stock.encoder(src, lengths)
        stock.decoder.init_state(src, annotations, finals)
        made, _ = stock.decoder(torch.tensor(ids)[None, :, None], annotations, src_len=lengths)
        theirs = stock.generator(made)[0].detach()
        torch.testing.assert_close(theirs, logits_of(options, state, source, ids), atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize(("make", "logits_of", "case"), [CASES[1], CASES[6]], ids=["recurrent", "transformer"])
def test_one_vocabulary_with_tied_words(make, logits_of, case, tmp_path):
    options, state = make(case)
    size = options["hidden_size"]
    options |= {"share_embeddings": True, "share_decoder_embeddings": make is transformer}
    words = fill({"": (len(SOURCE_WORDS), state[VECTORS.format("decoder")].shape[1])}, seed=2)[""]
    state |= {VECTORS.format("encoder"): words, VECTORS.format("decoder"): words}
    state |= fill({name: (len(SOURCE_WORDS), *shape[1:]) for name, shape in generator_shapes(size).items()})
    if make is transformer:
        state["generator.weight"] = words
    write(tmp_path / "onmt" / "model.pt", options, state, (SOURCE_WORDS, SOURCE_WORDS))
    convert(tmp_path / "onmt" / "model.pt", tmp_path / "ours")
    model, tokenizer = load(tmp_path / "ours")
    assert model.config.source_vocab_size is None
    assert (model.lm_head.weight is model.model.encoder.embed_tokens.weight) == (make is transformer)
    # The target's text ends, the source's doesn't.
    assert (tokenizer("the cat")["input_ids"], tokenizer(text_target="the cat")["input_ids"]) == ([4, 5], [4, 5, 3])
    ids = [2, 4, 8]
    logits = model(**tokenizer("the cat", return_tensors="pt"), decoder_input_ids=torch.tensor([ids])).logits[0]
    torch.testing.assert_close(logits, logits_of(options, state, [4, 5], ids), atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("parts", [["model.safetensors"], ["model.00.safetensors", "model.01.safetensors"]])
def test_weights_may_lie_beside_the_file(parts, tmp_path):
    options, state = recurrent("mlp")
    path = write(tmp_path / "onmt" / "model.pt", options, state)
    content = {"opt": argparse.Namespace(**options), "vocab": {"src": SOURCE_WORDS, "tgt": TARGET_WORDS}}
    torch.save(content, path)
    with pytest.raises(FileNotFoundError, match=r"holds no weights, and there is no model\.safetensors beside it"):
        convert(path, tmp_path / "ours")
    names = sorted(state)
    for number, part in enumerate(parts):
        save_file({name: state[name] for name in names[number :: len(parts)]}, path.parent / part)
    shutil.copy(path.parent / parts[0], path.parent / "model2.safetensors")
    convert(path, tmp_path / "ours")
    model, tokenizer = load(tmp_path / "ours")
    check(model, tokenizer, recurrent_logits, options, state)


def test_what_came_before_is_told(tmp_path, caplog):
    options, state = recurrent("general")
    data = {"a": {"transforms": ["sentencepiece", "filtertoolong"]}, "b": {"transforms": ["lowercase"]}, "valid": {}}
    convert(write(tmp_path / "model.pt", options | {"data": data}, state), tmp_path / "ours")
    told = " ".join(record.getMessage() for record in caplog.records)
    assert "went through lowercase, sentencepiece, which lie outside the checkpoint" in told


def test_another_word_to_begin_with(tmp_path):
    options, state = recurrent("general")
    vocabulary = {"src": SOURCE_WORDS, "tgt": TARGET_WORDS, "data_task": "seq2seq", "decoder_start_token": EOS}
    convert(write(tmp_path / "model.pt", options, state, vocab=vocabulary), tmp_path / "ours")
    assert load(tmp_path / "ours")[0].generation_config.decoder_start_token_id == 3
    path = write(tmp_path / "model.pt", options, state, vocab=vocabulary | {"decoder_start_token": ""})
    with pytest.raises(ValueError, match="decoder_start_token='' is no word of the target"):
        convert(path, tmp_path / "other")


@pytest.mark.parametrize(
    ("make", "case", "change", "words"),
    [
        (recurrent, "general", {"rnn_type": "SRU"}, "rnn_type='SRU' has no place in our models, .*'LSTM', 'GRU'"),
        (recurrent, "general", {"global_attention": "fast"}, "global_attention='fast' has no place"),
        (recurrent, "general", {"global_attention": "none"}, "global_attention='none' with input_feed=1 has no place"),
        (recurrent, "general", {"global_attention_function": "sparsemax"}, "global_attention_function='sparsemax'"),
        (recurrent, "general", {"copy_attn": True}, "copy_attn=True has no place in our models, .* copy_attn=False"),
        (recurrent, "general", {"coverage_attn": True}, "coverage_attn=True has no place"),
        (recurrent, "general", {"context_gate": "both"}, "context_gate='both' has no place"),
        (recurrent, "general", {"position_encoding": True}, "position_encoding=True has no place"),
        (recurrent, "general", {"encoder_type": "cnn"}, "encoder_type='cnn' with decoder_type='rnn' has no place"),
        (recurrent, "general", {"n_src_feats": 1}, "n_src_feats=1 has no place"),
        (recurrent, "general", {"tgt_word_vec_size": 7}, "tgt_word_vec_size=7 has no place .*src_word_vec_size=6"),
        (recurrent, "general", {"dec_layers": 3}, r"bridge=\"copy\" needs as many layers"),
        (recurrent, "dot-bridge", {"dec_layers": 3}, r"lacks the parameter decoder\.rnn\.layers\.2"),
        (recurrent, "general", {"hidden_size": -1, "dec_hid_size": 6}, "dec_hid_size=6 has no place .*enc_hid_size=8"),
        (recurrent, "general", {"model_task": "lm"}, "model_task='lm' has no place"),
        (recurrent, "general", {"share_decoder_embeddings": True}, r"generator\.weight is not decoder\.embeddings"),
        (recurrent, "general", {"share_embeddings": True}, "share_embeddings=True, but the vocabularies are not"),
        (transformer, "with-biases", {"max_relative_positions": -1}, "max_relative_positions=-1 has no place"),
        (
            transformer,
            "with-biases",
            {"position_encoding_type": "SinusoidalConcat"},
            "'SinusoidalConcat' has no place",
        ),
        (transformer, "with-biases", {"pos_ffn_activation_fn": "silu"}, "pos_ffn_activation_fn='silu' has no place"),
        (transformer, "with-biases", {"self_attn_type": "average"}, "self_attn_type='average' has no place"),
        (transformer, "with-biases", {"num_kv": 1}, "num_kv=1 has no place"),
        (transformer, "with-biases", {"layer_norm": "rms"}, "layer_norm='rms' has no place"),
        (transformer, "with-biases", {"parallel_residual": True}, "parallel_residual=True has no place"),
        (transformer, "with-biases", {"num_experts": 4}, "num_experts=4 has no place"),
        (transformer, "with-biases", {"lora_layers": ["w_1"]}, r"lora_layers=\['w_1'\] has no place"),
        (
            transformer,
            "with-biases",
            {"word_vec_size": 6},
            "word_vec_size=6 has no place in transformer: hidden_size=8",
        ),
        (transformer, "with-biases", {"enc_layers": None}, "enc_layers=None must be a number"),
        (transformer, "with-biases", {"heads": 3}, "hidden_size=8 is no multiple of num_attention_heads=3"),
        (transformer, "with-biases", {"heads": "two"}, "num_attention_heads"),
    ],
)
def test_settings_without_a_place_are_named(make, case, change, words, tmp_path):
    options, state = make(case)
    path = write(tmp_path / "model.pt", options | change, state)
    with pytest.raises(ValueError, match=rf"(?s){words}"):
        convert(path, tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s.update(extra=torch.ones(2)), "no place for extra"),
        (
            lambda s: s.update({"decoder.transformer_layers.1.feed_forward.w_3.weight": torch.ones(2)}),
            r"place for .*w_3",
        ),
        (lambda s: s.pop("decoder.transformer_layers.1.self_attn.linear_keys.bias"), r"lacks .*linear_keys\.bias"),
        (
            lambda s: s.update({"encoder.transformer.0.self_attn.linear_keys.weight": torch.ones(8, 7)}),
            "another shape than its settings tell",
        ),
        (lambda s: s.update({TABLE.format("decoder"): torch.ones(3)}), "does not hold the sinusoids"),
        (lambda s: s.update({"generator.bias": torch.ones(10)}), r"generator\.bias has 10 rows, .* has 11 words"),
        (lambda s: s[TABLE.format("encoder")].mul_(1.01), r"encoder\..*pe\.pe does not hold the sinusoids"),
    ],
)
def test_parameters_without_a_place_are_named(change, words, tmp_path):
    options, state = transformer("with-biases")
    change(state)
    with pytest.raises(ValueError, match=words):
        convert(write(tmp_path / "model.pt", options, state), tmp_path / "ours")


class Field:
    """An object of a class that isn't there to be trusted; unpickled, it makes a folder."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"vocab": {"src": ["the"], "tgt": TARGET_WORDS}}, "lacks the special words <unk>, <blank>, <s>, </s>"),
        ({"vocab": {"src": [*SOURCE_WORDS, "cat"], "tgt": TARGET_WORDS}}, "has 10 words, of which 9 are different"),
        ({"vocab": {"src": {"the": 1}, "tgt": TARGET_WORDS}}, r"vocab\.src must be a list of words, as version 3"),
        ({"vocab": ["the"]}, "opt and vocab must be options and a mapping"),
        ({"opt": {"layers": 2}}, "opt and vocab must be options and a mapping, got .*dict"),
        ({"model": [1]}, "model must be a mapping"),
        ({"generator": None}, "generator must be a mapping"),
    ],
)
def test_a_file_of_something_else(changes, words, tmp_path):
    path = write(tmp_path / "model.pt", *recurrent("general"), **changes)
    with pytest.raises(ValueError, match=words):
        convert(path, tmp_path / "ours")


def test_objects_of_earlier_versions_are_not_read(tmp_path):
    for place in ("vocab", "opt"):
        trap = Field(tmp_path / "sprung")
        changes = {"vocab": {"src": trap}} if place == "vocab" else {"opt": argparse.Namespace(field=trap)}
        path = write(tmp_path / "model.pt", *recurrent("general"), **changes)
        with pytest.raises(
            ValueError, match=r"(?s)can't be read as tensors and plain values: .*If you trust the file"
        ):
            convert(path, tmp_path / "ours")
    assert not (tmp_path / "sprung").exists()
