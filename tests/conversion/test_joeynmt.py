"""JoeyNMT's models to luong and transformer, by what they compute: its equations, and itself where it is installed."""

import math
from types import SimpleNamespace

import pytest
import torch
import yaml
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
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedTokenizerFast, pipeline
from typer.testing import CliRunner

from hf_attnzoo import AttnZooTokenizer
from hf_attnzoo.cli import app
from hf_attnzoo.conversion import convert

SPECIAL = ["<unk>", "<pad>", "<s>", "</s>"]
SOURCE_WORDS = [*SPECIAL, "the", "cat", "sat", "on", "mat"]
TARGET_WORDS = [*SPECIAL, "le", "chat", "est", "assis", "sur", "tapis", "un"]
TEXTS = ["the cat sat on the mat", "a cat sat"]
SOURCES = [[4, 5, 6, 7, 4, 8, 3], [0, 5, 6, 3]]
TARGETS = [[2, 4, 9, 6, 3], [2, 10, 5]]
STEPS = 7

RECURRENT = {
    "luong": {"cell": "lstm", "attention": "luong", "input_feeding": True, "init_hidden": "bridge", "layers": (1, 1)},
    "luong-deep": {
        "cell": "lstm",
        "attention": "luong",
        "input_feeding": False,
        "init_hidden": "bridge",
        "layers": (2, 3),
    },
    "luong-gru": {"cell": "gru", "attention": "luong", "input_feeding": True, "init_hidden": "zero", "layers": (2, 1)},
    "bahdanau": {"cell": "gru", "attention": "bahdanau", "input_feeding": True, "init_hidden": "bridge"},
    "bahdanau-lstm": {"cell": "lstm", "attention": "bahdanau", "input_feeding": False, "init_hidden": "zero"},
}
TRANSFORMERS = {
    "pre": {"layer_norm": "pre", "activation": "relu", "scale": True},
    "post": {"layer_norm": "post", "activation": "gelu", "scale": False},
    "alpha": {"layer_norm": "pre", "activation": "swish", "scale": True, "alpha": (1.5, 0.7)},
    "deepnet": {"layer_norm": "post", "activation": "relu", "scale": True, "initializer": "xavier_normal"},
}


def recurrent(case, tied=False):
    """Settings, and parameters by their names."""
    options = {"layers": (1, 1), **RECURRENT[case]}
    gates, (below, above) = {"lstm": 4, "gru": 3}[options["cell"]], options["layers"]
    words, size, encoder_size = 6, 6, 5
    shared = {"type": "recurrent", "rnn_type": options["cell"], "embeddings": {"embedding_dim": words}}
    model = {
        "tied_embeddings": tied,
        "tied_softmax": tied,
        "encoder": {**shared, "hidden_size": encoder_size, "num_layers": below, "bidirectional": True},
        "decoder": {**shared, "hidden_size": size, "num_layers": above}
        | {name: options[name] for name in ("attention", "input_feeding", "init_hidden")},
    }
    shapes = {
        "src_embed.lut.weight": (len(SOURCE_WORDS), words),
        "trg_embed.lut.weight": (len(TARGET_WORDS), words),
        **rnn_shapes("encoder.rnn.{}_l{}", gates, words, encoder_size, below, 2),
        **rnn_shapes("decoder.rnn.{}_l{}", gates, words + size * options["input_feeding"], size, above),
        "decoder.att_vector_layer.weight": (size, size + 2 * encoder_size),
        "decoder.att_vector_layer.bias": (size,),
        "decoder.output_layer.weight": (len(TARGET_WORDS), size),
        "decoder.attention.key_layer.weight": (size, 2 * encoder_size),
    }
    if options["attention"] == "bahdanau":
        shapes |= {
            "decoder.attention.query_layer.weight": (size, size),
            "decoder.attention.energy_layer.weight": (1, size),
        }
    if options["init_hidden"] == "bridge":
        shapes |= {"decoder.bridge_layer.weight": (size, 2 * encoder_size), "decoder.bridge_layer.bias": (size,)}
    return model, tie(model, fill(shapes))


def transformer(case, tied=False):
    """Settings, and parameters by their names."""
    options = TRANSFORMERS[case]
    size, inner, alphas = 8, 10, options.get("alpha", (None, None))
    model = {"tied_embeddings": tied, "tied_softmax": tied}
    model |= {"initializer": options["initializer"]} if "initializer" in options else {}
    for side, layers, alpha in (("encoder", 1, alphas[0]), ("decoder", 2, alphas[1])):
        model[side] = {
            "type": "transformer",
            "embeddings": {"embedding_dim": size, "scale": options["scale"]},
            "hidden_size": size,
            "ff_size": inner,
            "num_heads": 2,
            "num_layers": layers,
            "layer_norm": options["layer_norm"],
            "activation": options["activation"],
        } | ({} if alpha is None else {"alpha": alpha})
    shapes, norms = {}, {}
    for side, name, attentions in (
        ("encoder", "encoder.layers.0", {"src_src_att": "layer_norm"}),
        ("decoder", "decoder.layers.0", {"trg_trg_att": "x_layer_norm", "src_trg_att": "dec_layer_norm"}),
        ("decoder", "decoder.layers.1", {"trg_trg_att": "x_layer_norm", "src_trg_att": "dec_layer_norm"}),
    ):
        for attention, norm in attentions.items():
            for part in ("k", "v", "q", "output"):
                shapes[f"{name}.{attention}.{part}_layer"] = (size, size)
            norms[f"{name}.{norm}"] = (size,)
        shapes |= {
            f"{name}.feed_forward.pwff_layer.0": (inner, size),
            f"{name}.feed_forward.pwff_layer.3": (size, inner),
        }
        norms[f"{name}.feed_forward.layer_norm"] = (size,)
        if options["layer_norm"] == "pre":
            norms[f"{side}.layer_norm"] = (size,)
    both = {f"{name}.weight": shape for name, shape in (shapes | norms).items()}
    both |= {f"{name}.bias": shape[:1] for name, shape in (shapes | norms).items()}
    both |= {
        "src_embed.lut.weight": (len(SOURCE_WORDS), size),
        "trg_embed.lut.weight": (len(TARGET_WORDS), size),
        "decoder.output_layer.weight": (len(TARGET_WORDS), size),
    }
    state = tie(model, fill(both))
    for side in ("encoder", "decoder"):
        state[f"{side}.pe.pe"] = position_table(30, size)[None]
    return model, state


def tie(model, state):
    if model["tied_embeddings"]:
        state["trg_embed.lut.weight"] = state["src_embed.lut.weight"] = fill({"": (len(TARGET_WORDS), 6)}, seed=1)[""]
    if model["tied_softmax"]:
        state["decoder.output_layer.weight"] = state["trg_embed.lut.weight"]
    return state


def recurrent_logits(model, state, source, target):
    """Scores of the next word after each of a target's, from JoeyNMT's equations."""
    encoder, decoder = model["encoder"], model["decoder"]
    kinds = {"lstm": 2, "gru": 1}[encoder["rnn_type"]]
    annotations, finals = encode(
        state, state["src_embed.lut.weight"][source], encoder["hidden_size"], encoder["num_layers"], 2, kinds
    )
    first = torch.zeros(decoder["hidden_size"])
    if decoder["init_hidden"] == "bridge":
        (forward, *_), (backward, *_) = finals[-1]
        first = torch.tanh(linear(state, "decoder.bridge_layer", torch.cat([forward, backward])))
    states = [(first,) * kinds] * decoder["num_layers"]

    def attend(query):
        energies = []
        for annotation in annotations:
            key = linear(state, "decoder.attention.key_layer", annotation)
            if decoder["attention"] == "luong":
                energies.append(query @ key)
            else:
                inner = torch.tanh(linear(state, "decoder.attention.query_layer", query) + key)
                energies.append(linear(state, "decoder.attention.energy_layer", inner)[0])
        both = torch.cat([query, average(energies, annotations)])
        return torch.tanh(linear(state, "decoder.att_vector_layer", both))

    vectors = state["trg_embed.lut.weight"][target]
    made = decode(state, "decoder.rnn.{}_l{}", vectors, states, attend, decoder["input_feeding"])
    return linear(state, "decoder.output_layer", made)


def transformer_logits(model, state, source, target):
    """Scores of the next word after each of a target's, from JoeyNMT's equations."""
    alphas = {side: model[side].get("alpha", 1) for side in ("encoder", "decoder")}
    if "initializer" in model:
        # 1 layer below and 2 above.
        alphas = {"encoder": 0.81 * 2 ** (1 / 16), "decoder": 6 ** (1 / 4)}
    activation = {
        "relu": lambda x: x * (x > 0),
        "gelu": lambda x: x * (1 + torch.erf(x / math.sqrt(2))) / 2,
        "swish": lambda x: x / (1 + torch.exp(-x)),
    }[model["encoder"]["activation"]]
    pre = model["encoder"]["layer_norm"] == "pre"

    def start(name, ids):
        vectors = state[f"{name}_embed.lut.weight"][ids]
        scale = math.sqrt(vectors.shape[1]) if model["encoder"]["embeddings"]["scale"] else 1
        return scale * vectors + position_table(*vectors.shape)

    def sublayer(side, norm, x, function):
        if pre:
            return alphas[side] * x + function(normalise(state, norm, x, 1e-6))
        return normalise(state, norm, alphas[side] * x + function(x), 1e-6)

    def attention(name, x, memory, causal=False):
        q, k, v = (linear(state, f"{name}.{part}_layer", m) for part, m in (("q", x), ("k", memory), ("v", memory)))
        return linear(state, f"{name}.output_layer", multi_head(q, k, v, 2, causal))

    def feed_forward(name, x):
        return linear(state, f"{name}.pwff_layer.3", activation(linear(state, f"{name}.pwff_layer.0", x)))

    def finish(side, x):
        return normalise(state, f"{side}.layer_norm", x, 1e-6) if pre else x

    def decoder_layer(name, y, memory):
        y = sublayer("decoder", f"{name}.x_layer_norm", y, lambda y: attention(f"{name}.trg_trg_att", y, y, True))
        y = sublayer("decoder", f"{name}.dec_layer_norm", y, lambda y: attention(f"{name}.src_trg_att", y, memory))
        return sublayer(
            "decoder", f"{name}.feed_forward.layer_norm", y, lambda y: feed_forward(f"{name}.feed_forward", y)
        )

    x, name = start("src", source), "encoder.layers.0"
    x = sublayer("encoder", f"{name}.layer_norm", x, lambda x: attention(f"{name}.src_src_att", x, x))
    x = sublayer("encoder", f"{name}.feed_forward.layer_norm", x, lambda x: feed_forward(f"{name}.feed_forward", x))
    memory, y = finish("encoder", x), start("trg", target)
    for layer in range(2):
        y = decoder_layer(f"decoder.layers.{layer}", y, memory)
    return linear(state, "decoder.output_layer", finish("decoder", y))


CASES = [(recurrent, recurrent_logits, case) for case in RECURRENT]
CASES += [(transformer, transformer_logits, case) for case in TRANSFORMERS]
cases = pytest.mark.parametrize(("make", "logits_of", "case"), CASES, ids=[case for _, _, case in CASES])


def write(folder, model, state, sides=(SOURCE_WORDS, TARGET_WORDS), data=None, testing=None):
    """A folder as JoeyNMT leaves it."""
    folder.mkdir(exist_ok=True)
    settings = {
        "name": "test",
        "joeynmt_version": "2.3.0",
        "data": {"src": {"lang": "en", "level": "word"}, "trg": {"lang": "fr", "level": "word"}} | (data or {}),
        "model": model,
        "testing": {"max_output_length": STEPS} | (testing or {}),
        "training": {"epochs": 1},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    for name, words in zip(("src", "trg"), sides, strict=True):
        (folder / f"{name}_vocab.txt").write_text("\n".join(words), encoding="utf-8")
    rest = {"optimizer_state": {"state": {}}, "scaler_state": None, "stats_state": {"best_ckpt_score": math.inf}}
    torch.save({"model_state": state, **rest}, folder / "best.ckpt")
    return folder


def load(folder):
    model, info = AutoModelForSeq2SeqLM.from_pretrained(folder, output_loading_info=True)
    assert not any(info.values()), info
    return model, AutoTokenizer.from_pretrained(folder)


def check(model, tokenizer, expected, texts=TEXTS, targets=TARGETS):
    """A padded batch has the expected scores, row by row."""
    width = max(map(len, targets))
    ids = torch.tensor([row + [1] * (width - len(row)) for row in targets])
    with torch.no_grad():
        logits = model(**tokenizer(texts, padding=True, return_tensors="pt"), decoder_input_ids=ids).logits
    for row, mine in zip(expected, logits, strict=True):
        torch.testing.assert_close(mine[: len(row)], row, atol=2e-5, rtol=1e-5)


@cases
def test_scores_and_greedy_output_are_those_of_its_equations(make, logits_of, case, tmp_path):
    settings, state = make(case)
    write(tmp_path / "joey", settings, state)
    assert convert(tmp_path / "joey", tmp_path / "ours") == tmp_path / "ours"
    model, tokenizer = load(tmp_path / "ours")
    assert tokenizer(TEXTS)["input_ids"] == SOURCES
    assert tokenizer(text_target="le zut")["input_ids"] == [4, 0, 3]
    check(model, tokenizer, [logits_of(settings, state, *pair) for pair in zip(SOURCES, TARGETS, strict=True)])

    never = [1, 2] if make is recurrent else [2]
    written = [
        greedy(lambda ids, source=source: logits_of(settings, state, source, ids), 2, 3, STEPS, never, at_least=1)
        for source in SOURCES
    ]
    generated = model.generate(**tokenizer(TEXTS, padding=True, return_tensors="pt"))[:, 1:].tolist()
    assert [row[: len(ids)] for row, ids in zip(generated, written, strict=True)] == written
    words = [" ".join(TARGET_WORDS[i] for i in ids if i > 3) for ids in written]
    made = pipeline("attnzoo-translation", model=str(tmp_path / "ours"))(TEXTS)
    assert [item["translation_text"] for item in made] == words


@cases
def test_its_own_classes_compute_the_same(make, logits_of, case):
    module = pytest.importorskip("joeynmt.model", reason="JoeyNMT is not installed")
    vocabulary = pytest.importorskip("joeynmt.vocabulary").Vocabulary
    settings, state = make(case)
    symbols = {"sep_token": None, "sep_id": None, "lang_tags": []}
    for index, name in enumerate(("unk", "pad", "bos", "eos")):
        symbols |= {f"{name}_token": SPECIAL[index], f"{name}_id": index}
    vocabularies = [vocabulary(words[4:], SimpleNamespace(**symbols)) for words in (SOURCE_WORDS, TARGET_WORDS)]
    stock = module.build_model({"tied_embeddings": False} | settings, *vocabularies)
    # It makes tables of 5000 positions.
    tables = {name: tensor for name, tensor in stock.state_dict().items() if name.endswith("pe.pe")}
    stock.load_state_dict(state | tables)
    stock.eval()
    for source, target in zip(SOURCES, TARGETS, strict=True):
        src, trg = torch.tensor([source]), torch.tensor([target])
        theirs, *_ = stock._encode_decode(
            src=src,
            trg_input=trg,
            src_mask=torch.ones(1, 1, len(source)).bool(),
            src_length=torch.tensor([len(source)]),
            trg_mask=torch.ones(1, 1, len(target)).bool(),
        )
        expected = logits_of(settings, state, source, target)
        torch.testing.assert_close(theirs[0].detach(), expected, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize(("make", "logits_of", "case"), [CASES[0], CASES[5]], ids=["recurrent", "transformer"])
def test_one_vocabulary_with_tied_words(make, logits_of, case, tmp_path):
    settings, state = make(case)
    settings |= {"tied_embeddings": True, "tied_softmax": True}
    for name in ("src_embed.lut.weight", "decoder.output_layer.weight"):
        state[name] = state["trg_embed.lut.weight"]
    write(tmp_path / "joey", settings, state, (TARGET_WORDS, TARGET_WORDS))
    convert(tmp_path / "joey", tmp_path / "ours")
    model, tokenizer = load(tmp_path / "ours")
    assert type(tokenizer) is not AttnZooTokenizer
    assert isinstance(tokenizer, PreTrainedTokenizerFast)
    assert model.lm_head.weight is model.model.encoder.embed_tokens.weight
    assert model.config.source_vocab_size is None
    expected = [logits_of(settings, state, [4, 7, 3], [2, 5, 6, 8]), logits_of(settings, state, [5, 3], [2])]
    check(model, tokenizer, expected, ["le assis", "chat"], [[2, 5, 6, 8], [2]])


def test_norms_come_first_where_there_is_no_setting_but_a_last_norm(tmp_path):
    settings, state = transformer("pre")
    for side in ("encoder", "decoder"):
        del settings[side]["layer_norm"]
    write(tmp_path / "joey", settings, state)
    convert(tmp_path / "joey", tmp_path / "ours")
    model, tokenizer = load(tmp_path / "ours")
    settings["encoder"]["layer_norm"] = "pre"
    check(
        model, tokenizer, [transformer_logits(settings, state, *pair) for pair in zip(SOURCES, TARGETS, strict=True)]
    )
    # Version 2.3 makes of this an encoder with norms first and a decoder with norms after.
    for parameter in ("weight", "bias"):
        del state[f"encoder.layer_norm.{parameter}"], state[f"decoder.layer_norm.{parameter}"]
    del settings["encoder"]["layer_norm"]
    write(tmp_path / "joey", settings, state)
    with pytest.raises(
        ValueError, match=r"model\.encoder\.layer_norm=None and model\.decoder\.layer_norm=None have no place"
    ):
        convert(tmp_path / "joey", tmp_path / "other")


class TestVocabulary:
    def test_special_words_come_first_whatever_they_are_called(self, tmp_path):
        settings, state = recurrent("luong")
        symbols = {"bos_token": "<b>", "eos_token": "<e>", "pad_token": "_", "unk_token": "?"}
        # As JoeyNMT reads its files.
        sides = [[*SOURCE_WORDS[4:], "?", "<e>", "the"], TARGET_WORDS[4:]]
        write(tmp_path / "joey", settings, state, sides, {"special_symbols": symbols})
        convert(tmp_path / "joey", tmp_path / "ours")
        model, tokenizer = load(tmp_path / "ours")
        assert tokenizer(TEXTS)["input_ids"] == SOURCES
        assert (tokenizer.unk_token, tokenizer.pad_token, tokenizer.bos_token, tokenizer.eos_token) == (
            *"?_",
            "<b>",
            "<e>",
        )
        check(
            model, tokenizer, [recurrent_logits(settings, state, *pair) for pair in zip(SOURCES, TARGETS, strict=True)]
        )

    def test_case_and_characters(self, tmp_path):
        settings, state = recurrent("luong")
        letters = [*SPECIAL, "\u2581", "l", "e", "c", "h", "a", "t"]
        sides = {"src": {"level": "word", "lowercase": True}, "trg": {"level": "char"}}
        write(tmp_path / "joey", settings, state, (SOURCE_WORDS, letters), sides)
        convert(tmp_path / "joey", tmp_path / "ours")
        _, tokenizer = load(tmp_path / "ours")
        assert tokenizer("The CAT")["input_ids"] == [4, 5, 3]
        assert tokenizer(text_target="le chat")["input_ids"] == [5, 6, 4, 7, 8, 9, 10, 3]
        assert tokenizer.decode([5, 6, 4, 7, 8, 9, 10, 3], skip_special_tokens=True) == "le chat"

    def test_what_lies_outside_is_told(self, tmp_path, caplog):
        settings, state = recurrent("luong")
        side = {"level": "bpe", "tokenizer_type": "subword-nmt", "normalize": True}
        moses = {"level": "word", "tokenizer_cfg": {"pretokenizer": "moses"}}
        write(tmp_path / "joey", settings, state, data={"src": side, "trg": moses})
        convert(tmp_path / "joey", tmp_path / "ours")
        told = " ".join(record.getMessage() for record in caplog.records)
        assert "data.src has normalize=True and tokenizer_type='subword-nmt'" in told
        assert "data.trg has pretokenizer='moses'" in told

    def test_what_it_never_writes(self, tmp_path):
        settings, state = transformer("pre")
        symbols = {"sep_token": "<sep>", "sep_id": 4, "lang_tags": ["<fr>"]}
        sides = [[*SPECIAL, "<sep>", "<fr>", *words[6:]] for words in (SOURCE_WORDS, TARGET_WORDS)]
        testing = {"generate_unk": False, "min_output_length": 2, "max_output_length": -1}
        write(tmp_path / "joey", settings, state, sides, {"special_symbols": symbols}, testing)
        convert(tmp_path / "joey", tmp_path / "ours")
        written = load(tmp_path / "ours")[0].generation_config
        assert (written.suppress_tokens, written.min_new_tokens) == ([0, 2, 4, 5], 2)
        assert written.max_new_tokens is None


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("encoder.bidirectional", False, r"model\.encoder\.bidirectional=False"),
        ("encoder.rnn_type", "rnn", r"model\.encoder\.rnn_type='rnn'"),
        ("decoder.rnn_type", "gru", r"model\.decoder\.rnn_type='gru', but the encoder has 'lstm'"),
        ("decoder.attention", "dot", r"model\.decoder\.attention='dot' has no place .*'luong', 'bahdanau'"),
        ("decoder.init_hidden", "last", r"model\.decoder\.init_hidden='last' has no place"),
        ("decoder.activation", "relu", r"model\.decoder\.activation='relu' has no place in luong"),
        ("decoder.embeddings.scale", True, r"model\.decoder\.embeddings\.scale=True has no place in luong"),
        ("decoder.hidden_size", "six", r"model\.decoder\.hidden_size must be a number, got 'six'"),
        ("decoder.hidden_size", 7, r"must have the shape"),
        ("decoder.num_layers", 2, r"lacks the parameter decoder\.rnn\.weight_ih_l1"),
        ("decoder.dropout", 1.5, r"dropout=1\.5"),
        ("decoder.input_feeding", "yes", r"input_feeding"),
        ("encoder", [3], r"model\.encoder must be a mapping, got \[3\]"),
        ("tied_softmax", True, r"output_layer\.weight is not trg_embed\.lut\.weight, but model\.tied_softmax=True"),
        ("tied_embeddings", True, r"model\.tied_embeddings=True, but the vocabularies are not the same"),
    ],
)
def test_recurrent_settings_without_a_place_are_named(path, value, words, tmp_path):
    refused(tmp_path, recurrent("luong"), path, value, words)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("decoder.num_heads", 4, r"model\.decoder\.num_heads=4 has no place .*model\.encoder\.num_heads=2"),
        ("decoder.ff_size", 12, r"model\.decoder\.ff_size=12 has no place"),
        ("decoder.layer_norm", "post", r"layer_norm='pre' and model\.decoder\.layer_norm='post' have no place"),
        ("encoder.activation", "tanh", r"model\.decoder\.activation='relu' has no place"),
        ("decoder.embeddings.scale", False, r"model\.decoder\.embeddings\.scale=False has no place"),
        ("encoder.num_layers", None, r"model\.encoder\.num_layers must be a number, got None"),
    ],
)
def test_transformer_settings_without_a_place_are_named(path, value, words, tmp_path):
    refused(tmp_path, transformer("pre"), path, value, words)


def refused(folder, made, path, value, words):
    settings, state = made
    *sections, name = path.split(".")
    section = settings
    for part in sections:
        section[part] = section = dict(section[part])
    section[name] = value
    write(folder / "joey", settings, state)
    with pytest.raises(ValueError, match=words):
        convert(folder / "joey", folder / "ours")
    assert not (folder / "ours").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s.update(extra=torch.ones(2)), "no place for extra"),
        (lambda s: s.pop("decoder.att_vector_layer.bias"), r"lacks the parameter decoder\.att_vector_layer\.bias"),
        (
            lambda s: s.update({"decoder.att_vector_layer.weight": torch.ones(6)}),
            "another shape than its settings tell",
        ),
        (lambda s: s.update({"src_embed.lut.weight": torch.ones(8, 6)}), "has 8 rows, but the vocabulary has 9 words"),
        (lambda s: s.update({"trg_embed.lut.weight": torch.ones(11, 5)}), r"embedding_dim=5 has no place in luong"),
    ],
)
def test_parameters_without_a_place_are_named(change, words, tmp_path):
    settings, state = recurrent("luong")
    change(state)
    write(tmp_path / "joey", settings, state)
    with pytest.raises(ValueError, match=words):
        convert(tmp_path / "joey", tmp_path / "ours")


def test_a_table_that_holds_no_sinusoids_is_refused(tmp_path):
    settings, state = transformer("pre")
    state["decoder.pe.pe"][0, 20, 3] += 1e-3
    write(tmp_path / "joey", settings, state)
    with pytest.raises(ValueError, match=r"decoder\.pe\.pe does not hold the sinusoids"):
        convert(tmp_path / "joey", tmp_path / "ours")


def test_which_file_is_read(tmp_path):
    folder = write(tmp_path / "joey", *recurrent("luong"))
    command = CliRunner().invoke(app, ["convert", str(folder / "best.ckpt"), str(tmp_path / "named")])
    assert command.exit_code == 0, command.output
    (folder / "best.ckpt").rename(folder / "300.ckpt")
    (folder / "200.ckpt").write_bytes(b"noise")
    with pytest.raises(FileNotFoundError, match=r"no best\.ckpt, and 2 files \.ckpt or \.pt, of which one is wanted"):
        convert(folder, tmp_path / "ours")
    with pytest.raises(ValueError, match=r"200\.ckpt can't be read as tensors and plain values"):
        convert(folder / "200.ckpt", tmp_path / "ours")
    torch.save({"state": {}}, folder / "latest.ckpt")
    with pytest.raises(ValueError, match=r"latest\.ckpt has no model_state"):
        convert(folder, tmp_path / "ours")
    (folder / "trg_vocab.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"trg_vocab\.txt is missing"):
        convert(folder / "300.ckpt", tmp_path / "ours")
    (folder / "config.yaml").write_text("!!python/object/apply:os.getcwd []")
    with pytest.raises(ValueError, match="not valid YAML of plain values"):
        convert(folder / "300.ckpt", tmp_path / "ours")
    (folder / "config.yaml").unlink()
    with pytest.raises(FileNotFoundError, match=r"config\.yaml is missing"):
        convert(folder / "300.ckpt", tmp_path / "ours")
