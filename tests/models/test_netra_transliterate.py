"""Real weights: a transliterator from Latin letters to Khmer script, trained by others in Keras, as a Luong model.

The wheel `netra-transliterate` brings a bidirectional GRU with additive attention. Nothing of it is imported: its
weights are numbers in an HDF5 file, its graph is JSON, and the pickle beside them stays shut. It is not Luong's model
to the letter, but a setting of the weights makes it one:

- `score="concat"` with `W_a` of the state the identity is Keras's `AdditiveAttention`, which projects no query;
- the biases that we don't have are columns for a unit of the decoder's state that always stands at 1;
- the original's annotations are projected before they are averaged, ours after: an average doesn't mind;
- the original reads its classes off `[h_t; c_t]` without a `tanh`, and near 0 a tanh is a straight line: `h~_t` holds
  the logits times `SCALE`, a power of two, so that multiplying by it and dividing by it round nothing;
- the original begins with a zero state, a bridge of zeros, and knows no mask: it reads its padding like letters.
"""

import importlib.metadata
import io
import json
import zipfile

import numpy as np
import pytest
import torch
from transformers import AutoModelForSeq2SeqLM

from hf_attnzoo import LuongConfig, LuongForConditionalGeneration

RELEASE = "1.0.1"
LATIN = "aohenrktusmbicplgyvdjzfwxq"
# Low bytes of U+1780 to U+17FF.
KHMER = "".join(
    chr(0x1700 + byte)
    for byte in bytes.fromhex(
        "d2b69a809f948f939884b79ba285bb9c9199cb96c6a0c487c182b88e89bc97c2928a81"
        "bec9c7b9bda19095c0d0c886cdc3ca8bbad78ca7c58388ccbfa5b1abaf8dcecfaaa9b2a6aeb0b3d4adac"
    )
)
# Ids: 0 is padding, 1 what is unknown; then the characters in this order; in the target, start and end behind them.
SOURCE_IDS = {character: index for index, character in enumerate(LATIN, start=2)}
TARGET_IDS = {character: index for index, character in enumerate(KHMER, start=2)}
PAD, START, END = 0, 79, 80
SOURCE_LENGTH = 25
# Units of every direction of the encoder, of the decoder, and of the attention.
UNITS, VOCAB, SOURCE_VOCAB, EMBEDDING = 64, 81, 28, 32
SCALE = 2.0**-20

# First in its README's list of words that its dictionary confirms, `netra-transliterate brodae sokha -n 3`.
DOCUMENTED = {"brodae": "ប្រដែ", "sokha": "សុខា"}
# The most probable texts before that, and their probabilities, as Keras 3.15 computes them from the same file. Where
# the documentation shows lists without the dictionary it differs from this in places.
CANDIDATES = {
    "brodae": {"ប្រដែ": 0.928622, "ប្រដែរ": 0.0414946, "បរដែ": 0.00379507},
    "sokha": {"សខា": 0.702294, "សុខា": 0.223051, "សុខារ": 0.0210071},
    "srolanh": {"ស្រឡាញ់": 0.568472, "ស្រឡាញ": 0.315440, "ស្រលាញ់": 0.0415990},
}


@pytest.fixture(scope="module")
def wheel():
    """File name -> path of what the wheel has installed."""
    advice = (
        f"pip install h5py, and, as it would bring TensorFlow, pip install --no-deps netra-transliterate=={RELEASE}"
    )
    pytest.importorskip("h5py", reason=advice)
    try:
        distribution = importlib.metadata.distribution("netra-transliterate")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(advice)
    if distribution.version != RELEASE:
        pytest.skip(f"the alphabets and the words are those of {RELEASE}, not {distribution.version}: {advice}")
    return {path.name: path.locate() for path in distribution.files}


@pytest.fixture(scope="module")
def archive(wheel):
    """The model's `.keras` file, a zip."""
    with zipfile.ZipFile(wheel["bi_gru_attention_khmer_transliterator.keras"]) as file:
        yield file


@pytest.fixture(scope="module")
def arrays(archive):
    """Path of every array of the original -> the array, but for what its optimizer kept."""
    import h5py

    found = {}

    def take(path, item):
        if isinstance(item, h5py.Dataset) and not path.startswith("optimizer/"):
            found[path.removeprefix("layers/")] = item[()]

    with h5py.File(io.BytesIO(archive.read("model.weights.h5"))) as file:
        file.visititems(take)
    return found


def gru(taken, name, size):
    """Parameters of our GRU from those of Keras's, with units of zeros behind, which stay at 0.

    Keras has the gates z, r, n side by side, ours stand on each other as r, z, n; its two rows of biases are that of
    the input and that of the state.
    """
    kernel, recurrent, biases = (taken.pop(f"{name}/cell/vars/{index}") for index in range(3))

    def gates(matrix):
        z, r, n = np.split(matrix, 3, axis=-1)
        return [np.pad(gate, [(0, 0), (0, size - UNITS)]) for gate in (r, z, n)]

    def rows(matrix):
        return np.concatenate(gates(matrix), axis=-1).T

    input_bias, recurrent_bias = np.concatenate(gates(biases), axis=-1)
    return {
        "rnn.input_proj.weight": rows(kernel),
        "rnn.input_proj.bias": input_bias,
        "rnn.cell.hidden_proj.weight": np.pad(rows(recurrent), [(0, 0), (0, size - UNITS)]),
        "rnn.cell.hidden_proj.bias": recurrent_bias,
    }


def convert(arrays):
    """State of a `LuongForConditionalGeneration` that computes what the arrays do, and the arrays left over."""
    taken = {path: array.astype(np.float64) for path, array in arrays.items()}
    # h~ has a place for every logit, so the states have as many, of which the first are the original's.
    size = VOCAB
    state = {
        "model.encoder.embed_tokens.weight": taken.pop("embedding/vars/0"),
        "model.decoder.embed_tokens.weight": taken.pop("embedding_1/vars/0"),
        "model.decoder.bridge.0.weight": np.zeros((size, 2 * UNITS)),
        "model.decoder.bridge.0.bias": np.zeros(size),
        "lm_head.weight": np.eye(size) / SCALE,
    }
    for ours, theirs, units in (
        ("encoder.layers.0.forward_rnn", "bidirectional/forward_layer", UNITS),
        ("encoder.layers.0.backward_rnn", "bidirectional/backward_layer", UNITS),
        ("decoder.layers.0", "gru", size),
    ):
        state |= {f"model.{ours}.{name}": array for name, array in gru(taken, theirs, units).items()}
    # The unit after the original's keeps nothing of what it was (z = 0) and becomes tanh(100) = 1 in every step.
    one = UNITS
    input_bias = state["model.decoder.layers.0.rnn.input_proj.bias"]
    input_bias[size + one], input_bias[2 * size + one] = -100, 100

    projection, projection_bias = (
        taken.pop("time_distributed/layer/vars/0"),
        taken.pop("time_distributed/layer/vars/1"),
    )
    query_weight, key_weight, v = np.zeros((size, size)), np.zeros((size, 2 * UNITS)), np.zeros(size)
    query_weight[:UNITS, :UNITS] = np.eye(UNITS)
    query_weight[:UNITS, one] = projection_bias
    key_weight[:UNITS] = projection.T
    v[:UNITS] = taken.pop("additive_attention/vars/0")
    state |= {
        "model.decoder.attention.query_proj.weight": query_weight,
        "model.decoder.attention.key_proj.weight": key_weight,
        "model.decoder.attention.v": v,
    }

    of_state, of_context = np.split(taken.pop("dense/vars/0"), 2)
    state_weight = np.zeros((size, size))
    state_weight[:, :UNITS] = of_state.T
    state_weight[:, one] = taken.pop("dense/vars/1") + projection_bias @ of_context
    state["model.decoder.state_proj.weight"] = state_weight * SCALE
    state["model.decoder.context_proj.weight"] = (projection @ of_context).T * SCALE
    return {name: torch.from_numpy(array) for name, array in state.items()}, taken


@pytest.fixture(scope="module")
def model(arrays, tmp_path_factory):
    """The converted model in single precision, once saved and loaded."""
    config = LuongConfig(
        vocab_size=VOCAB,
        source_vocab_size=SOURCE_VOCAB,
        embedding_size=EMBEDDING,
        hidden_size=VOCAB,
        encoder_hidden_size=2 * UNITS,
        cell="gru",
        score="concat",
        bidirectional=True,
        bridge="linear",
        pad_token_id=PAD,
        bos_token_id=START,
        eos_token_id=END,
        decoder_start_token_id=START,
    )
    converted = LuongForConditionalGeneration(config)
    converted.load_state_dict(convert(arrays)[0])
    folder = tmp_path_factory.mktemp("netra")
    converted.save_pretrained(folder)
    return AutoModelForSeq2SeqLM.from_pretrained(folder).eval()


class Original:
    """The graph of the original, one word and one position at a time."""

    def __init__(self, arrays):
        self.arrays = {path: array.astype(np.float64) for path, array in arrays.items()}

    def gru_step(self, name, x, h):
        kernel, recurrent, (input_bias, recurrent_bias) = (
            self.arrays[f"{name}/cell/vars/{index}"] for index in range(3)
        )
        of_input, of_state = x @ kernel + input_bias, h @ recurrent + recurrent_bias
        z = 1 / (1 + np.exp(-of_input[:UNITS] - of_state[:UNITS]))
        r = 1 / (1 + np.exp(-of_input[UNITS : 2 * UNITS] - of_state[UNITS : 2 * UNITS]))
        n = np.tanh(of_input[2 * UNITS :] + r * of_state[2 * UNITS :])
        return z * h + (1 - z) * n

    def gru(self, name, inputs):
        h, states = np.zeros(UNITS), []
        for x in inputs:
            h = self.gru_step(name, x, h)
            states.append(h)
        return states

    def encode(self, ids):
        inputs = [self.arrays["embedding/vars/0"][index] for index in ids]
        forward = self.gru("bidirectional/forward_layer", inputs)
        backward = self.gru("bidirectional/backward_layer", inputs[::-1])[::-1]
        weight, bias = (self.arrays[f"time_distributed/layer/vars/{index}"] for index in range(2))
        return [np.concatenate(pair) @ weight + bias for pair in zip(forward, backward, strict=True)]

    def decode(self, annotations, ids):
        """Logits of every step, and what each attends to."""
        scale = self.arrays["additive_attention/vars/0"]
        weight, bias = (self.arrays[f"dense/vars/{index}"] for index in range(2))
        logits, attention = [], []
        for h in self.gru("gru", [self.arrays["embedding_1/vars/0"][index] for index in ids]):
            scores = np.array([np.sum(scale * np.tanh(h + annotation)) for annotation in annotations])
            alpha = np.exp(scores) / np.exp(scores).sum()
            context = sum(a * annotation for a, annotation in zip(alpha, annotations, strict=True))
            logits.append(np.concatenate([h, context]) @ weight + bias)
            attention.append(alpha)
        return np.array(logits), np.array(attention)


def source_ids(words):
    """Ids `(B, 25)`, filled up with padding that the model reads."""
    rows = [list(map(SOURCE_IDS.get, word)) for word in words]
    return torch.tensor([row + [PAD] * (SOURCE_LENGTH - len(row)) for row in rows])


def spelled(ids):
    """Text of generated ids: what stands between start and end."""
    characters = {index: character for character, index in TARGET_IDS.items()}
    assert ids[0] == START
    end = ids.index(END)
    return "".join(characters[index] for index in ids[1:end])


def candidates(model, word):
    """The three best texts of a beam of 5 and their probabilities, without a penalty for their lengths."""
    input_ids = source_ids([word])
    outputs = model.generate(
        input_ids,
        attention_mask=torch.ones_like(input_ids),
        num_beams=5,
        num_return_sequences=3,
        length_penalty=0.0,
        early_stopping=True,
        max_length=32,
        output_scores=True,
        return_dict_in_generate=True,
    )
    texts = map(spelled, outputs.sequences.tolist())
    return dict(zip(texts, outputs.sequences_scores.exp().tolist(), strict=True))


def inputs_of(layer):
    """Names of the layers whose outputs a layer of the graph is called with, in order."""
    (call,) = layer["inbound_nodes"]
    tensors = call["args"][0] if isinstance(call["args"][0], list) else call["args"]
    return [tensor["config"]["keras_history"][0] for tensor in tensors]


def test_the_alphabets_are_as_large_as_documented():
    assert (len(set(LATIN)), len(set(KHMER))) == (26, 77)


def test_the_graph_is_the_one_that_is_converted(archive):
    graph = json.loads(archive.read("config.json"))["config"]["layers"]
    layers = {layer["name"]: layer for layer in graph if layer["class_name"] not in ("InputLayer", "Concatenate")}
    assert [layer["class_name"] for layer in layers.values()] == [
        "Embedding",
        "Embedding",
        "Bidirectional",
        "GRU",
        "TimeDistributed",
        "AdditiveAttention",
        "Dense",
    ]
    source, target, encoder, decoder, projection, attention, output = (layer["config"] for layer in layers.values())
    for embedding, rows in ((source, SOURCE_VOCAB), (target, VOCAB)):
        assert (embedding["input_dim"], embedding["output_dim"], embedding["mask_zero"]) == (rows, EMBEDDING, False)
    assert encoder["merge_mode"] == "concat"
    directions = [encoder["layer"]["config"], encoder["backward_layer"]["config"]]
    assert [direction["go_backwards"] for direction in directions] == [False, True]
    for cell in (*directions, decoder):
        assert (cell["units"], cell["reset_after"], cell["use_bias"]) == (UNITS, True, True)
        assert (cell["activation"], cell["recurrent_activation"]) == ("tanh", "sigmoid")
    assert attention["use_scale"]
    for dense, size, activation in ((projection["layer"]["config"], UNITS, "linear"), (output, VOCAB, "softmax")):
        assert (dense["units"], dense["activation"], dense["use_bias"]) == (size, activation, True)
    # The decoder is given words alone, no state to begin with; it asks, after its step, what is also read.
    embedding_name, decoder_name, projection_name = (list(layers)[index] for index in (1, 3, 4))
    assert inputs_of(layers[decoder_name]) == [embedding_name]
    assert inputs_of(layers[attention["name"]]) == [decoder_name, projection_name]
    concatenate = next(layer for layer in graph if layer["class_name"] == "Concatenate")
    assert inputs_of(concatenate) == [decoder_name, attention["name"]]
    assert inputs_of(layers[output["name"]]) == [concatenate["name"]]


def test_every_array_is_converted(arrays):
    assert len(arrays) == 16
    # The size that its README gives.
    assert sum(array.size for array in arrays.values()) == 78_705
    _, left = convert(arrays)
    assert left == {}


@pytest.mark.parametrize("double", [False, True])
def test_it_computes_what_the_original_does(model, arrays, double):
    # The longest source there is and the shortest; a text, and what the decoder would never write itself.
    words = ["brodae", "sokha", "abcdefghijklmnopqrstuvwxy", "z"]
    targets = torch.tensor([[START, *map(TARGET_IDS.get, "ប្រដែ")], [START, 1, 0, 78, 40, END]]).repeat(2, 1)
    if double:
        model = LuongForConditionalGeneration(model.config).double().eval()
        model.load_state_dict(convert(arrays)[0])
    # Single precision has seven digits, and logits reach 20.
    close = {"rtol": 0, "atol": 1e-7} if double else {"rtol": 1e-5, "atol": 1e-5}
    input_ids = source_ids(words)
    with torch.no_grad():
        outputs = model(
            input_ids=input_ids,
            attention_mask=torch.ones_like(input_ids),
            decoder_input_ids=targets,
            output_attentions=True,
        )
    original = Original(arrays)
    for row, (source, target) in enumerate(zip(input_ids.tolist(), targets.tolist(), strict=True)):
        logits, attention = original.decode(original.encode(source), target)
        np.testing.assert_allclose(outputs.logits[row].numpy(), logits, **close)
        np.testing.assert_allclose(outputs.cross_attentions[0][row, 0].numpy(), attention, **close)


@pytest.mark.parametrize("word", CANDIDATES)
def test_its_beams_are_those_of_keras(model, word):
    found = candidates(model, word)
    assert list(found) == list(CANDIDATES[word])
    assert found == pytest.approx(CANDIDATES[word], rel=1e-5)


@pytest.mark.parametrize("word", DOCUMENTED)
def test_it_transliterates_the_documented_words(model, wheel, word):
    dictionary = set(wheel["khmer_dictionary.txt"].read_text(encoding="utf-8").split())
    assert next(text for text in candidates(model, word) if text in dictionary) == DOCUMENTED[word]
