"""Real weights: six Transformers trained by others, which number the residues of antibodies and T-cell receptors.

The wheel `anarcii` brings its models as PyTorch states of tensors alone, and their code in modules that need nothing
but PyTorch. These are run from their files: importing the package would ask for the rest of what it depends on.

The models are the paper's, post-LN, with other choices that are options here: learned positions, a vocabulary for each
side, an output layer of its own with a bias. No number is changed by the conversion. Keys, queries and values of
self-attention are packed in the same order; those of cross-attention are one matrix there, and here two.
"""

import importlib.metadata
import importlib.util
import json

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM

from hf_attnzoo import TransformerConfig, TransformerForConditionalGeneration

RELEASE = "2.0.8"
PAD, START, END = 0, 1, 2
CLASSIFIER = "classifii/classifii"
# Folder and file of each state, and the parameters of what its code and its sizes describe.
SIZES = {
    "models/antibody/antibody_4_1_128_512": 554_760,
    "models/antibody/antibody_4_2_128_512": 1_017_608,
    "models/shark/shark_4_2_128_512": 1_017_608,
    "models/tcr/tcr_4_1_128_512": 555_017,
    "models/tcr/tcr_4_2_128_512": 1_017_865,
    CLASSIFIER: 528_388,
}
ANTIBODY = [name for name in SIZES if "antibody" in name]
OTHERS = [name for name in SIZES if name not in (*ANTIBODY, CLASSIFIER)]

# Trastuzumab's variable domains, and the alpha chain of the T-cell receptor A6.
HEAVY = (
    "EVQLVESGGGLVQPGGSLRLSCAASGFNIKDTYIHWVRQAPGKGLEWVARIYPTNGYTRYADSVKGRFTISADTSKNTAYLQMNSLRAEDTAVYYC"
    "SRWGGDGFYAMDYWGQGTLVTVSS"
)
KAPPA = "DIQMTQSPSSLSASVGDRVTITCRASQDVNTAVAWYQQKPGKAPKLLIYSASFLYSGVPSRFSGSRSGTDFTLTISSLQPEDFATYYCQQHYTTPPTFGQGTKVEIK"
ALPHA = (
    "KEVEQNSGPLSVPEGAIASLNCTYSDRGSQSFFWYRQYSGKSPELIMFIYSNGDKEDGRFTAQLNKASQYVSLLIRDSQPSDSATYLCAVTTDSWGKLQFGAGTQVVVTP"
)
# IMGT's unique numbering of the two, by its rules: cysteines at 23 and 104, tryptophan at 41, and at 118 the J
# region's tryptophan or phenylalanine; gaps in the middle of each CDR (27-38, 56-65, 105-117); a heavy chain has no
# residue 10, neither has 73, and between 80 and 83 kappa has none.
IMGT = {
    "heavy": [*range(1, 10), *range(11, 31), *range(35, 60), *range(62, 73), *range(74, 129)],
    "kappa": [*range(1, 30), *range(36, 58), *range(65, 73), *range(74, 81), *range(83, 110), *range(114, 128)],
}


@pytest.fixture(scope="module")
def wheel():
    """File name, with its folders inside the package -> path of what the wheel has installed."""
    advice = f"as it would bring what its models don't need, pip install --no-deps anarcii=={RELEASE}"
    try:
        distribution = importlib.metadata.distribution("anarcii")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(advice)
    if distribution.version != RELEASE:
        pytest.skip(f"sizes and vocabularies are those of {RELEASE}, not {distribution.version}: {advice}")
    return {path.as_posix().removeprefix("anarcii/"): path.locate() for path in distribution.files}


def sizes(wheel, name):
    """Sizes that the wheel gives for a model."""
    path = wheel["classifii/params.json" if name == CLASSIFIER else f"{name}.json"]
    return json.loads(path.read_text(encoding="utf-8"))


def state_of(wheel, name):
    """Tensors of a model, by their names in it."""
    return torch.load(wheel[f"{name}.pt"], map_location="cpu", weights_only=True)


def load_original(wheel, name, dtype=torch.float32):
    """A model as the wheel's own code builds it."""
    path = wheel["classifii/model.py" if name == CLASSIFIER else "inference/model.py"]
    spec = importlib.util.spec_from_file_location("original_of_anarcii", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    given = sizes(wheel, name)
    hidden = given["HID_DIM"]
    shared = (hidden, given["LAYERS"], given["HEADS"], 4 * hidden, given["DROPOUT"], "cpu")
    model = module.S2S(
        module.Encoder(given["INPUT_DIM"], *shared),
        module.Decoder(given["OUTPUT_DIM"], *shared),
        given["SRC_PAD_IDX"],
        given["TRG_PAD_IDX"],
        "cpu",
    )
    model.load_state_dict(state_of(wheel, name))
    # The factor of the word vectors is no buffer there, so it wouldn't follow.
    for side in (model.encoder, model.decoder):
        side.scale = torch.tensor([hidden], dtype=dtype).sqrt()
    return model.to(dtype).eval()


def convert(tensors):
    """State of a `TransformerForConditionalGeneration` that computes the same, and the tensors left over."""
    taken = dict(tensors)
    state = {
        "lm_head.weight": taken.pop("decoder.fc_out.weight"),
        "lm_head.bias": taken.pop("decoder.fc_out.bias"),
    }
    for side in ("encoder", "decoder"):
        state[f"model.{side}.embed_tokens.weight"] = taken.pop(f"{side}.tok_embedding.weight")
        state[f"model.{side}.inputs.positions.table.weight"] = taken.pop(f"{side}.pos_embedding.weight")
        number = 0
        while f"{side}.layers.{number}.ff_layer_norm.weight" in taken:
            ours, theirs = f"model.{side}.stack.layers.{number}", f"{side}.layers.{number}"
            names = {
                "self_attn.out_proj": "self_attention.multihead_attn.out_proj",
                "self_attn_norm": "self_attn_layer_norm",
                "feed_forward.up_proj": "positionwise_feedforward.fc_1",
                "feed_forward.down_proj": "positionwise_feedforward.fc_2",
                "feed_forward_norm": "ff_layer_norm",
            }
            if side == "decoder":
                names["cross_attn.out_proj"] = "encoder_attention.multihead_attn.out_proj"
                names["cross_attn_norm"] = "enc_attn_layer_norm"
            for kind in ("weight", "bias"):
                for our_name, their_name in names.items():
                    state[f"{ours}.{our_name}.{kind}"] = taken.pop(f"{theirs}.{their_name}.{kind}")
                state[f"{ours}.self_attn.qkv_proj.{kind}"] = taken.pop(
                    f"{theirs}.self_attention.multihead_attn.in_proj_{kind}"
                )
                if side == "decoder":
                    packed = taken.pop(f"{theirs}.encoder_attention.multihead_attn.in_proj_{kind}")
                    size = packed.shape[0] // 3
                    query, key_value = packed.split([size, 2 * size])
                    state[f"{ours}.cross_attn.q_proj.{kind}"] = query
                    state[f"{ours}.cross_attn.kv_proj.{kind}"] = key_value
            number += 1
    return state, taken


def load_converted(wheel, name, dtype=torch.float32):
    """A model of ours with the weights of the wheel's."""
    given, tensors = sizes(wheel, name), state_of(wheel, name)
    classifies = name == CLASSIFIER
    config = TransformerConfig(
        vocab_size=given["OUTPUT_DIM"],
        source_vocab_size=given["INPUT_DIM"],
        hidden_size=given["HID_DIM"],
        num_attention_heads=given["HEADS"],
        intermediate_size=4 * given["HID_DIM"],
        num_encoder_layers=given["LAYERS"],
        num_decoder_layers=given["LAYERS"],
        dropout=given["DROPOUT"],
        attention_dropout=given["DROPOUT"],
        activation_dropout=given["DROPOUT"],
        position_embeddings="learned",
        max_position_embeddings=len(tensors["encoder.pos_embedding.weight"]),
        head_bias=True,
        tie_word_embeddings=False,
        pad_token_id=PAD,
        bos_token_id=START,
        # The classifier writes one word, and in its vocabulary there is no end.
        eos_token_id=None if classifies else END,
        decoder_start_token_id=START,
    )
    model = TransformerForConditionalGeneration(config)
    model.load_state_dict(convert(tensors)[0])
    return model.to(dtype).eval()


def source_ids(chains, first_residue=4):
    """Ids `(B, S)` of chains between start and end, padded on the right."""
    residues = {residue: index for index, residue in enumerate("ACDEFGHIKLMNPQRSTVWXY", start=first_residue)}
    rows = [torch.tensor([START, *map(residues.get, chain), END]) for chain in chains]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)


def logits_of_both(wheel, name, dtype):
    """Logits of the original and of ours `(N, V)`, for every position of some targets that is no padding."""
    original, model = load_original(wheel, name, dtype), load_converted(wheel, name, dtype)
    # The longest text there is room for, two chains, and next to nothing; then what no model would write, on as many
    # positions as there are, and fewer.
    longest = model.config.max_position_embeddings
    first_residue = 3 if name == CLASSIFIER else 4
    input_ids = source_ids([(HEAVY + KAPPA + ALPHA)[: longest - 2], HEAVY, ALPHA, "W"], first_residue)
    targets = torch.randint(1, model.config.vocab_size, (4, longest), generator=torch.Generator().manual_seed(0))
    targets[:, 0] = START
    targets[2, 50:] = PAD
    real = targets != PAD
    with torch.no_grad():
        expected = original(input_ids, targets)
        logits = model(
            input_ids=input_ids,
            attention_mask=(input_ids != PAD).long(),
            decoder_input_ids=targets,
            decoder_attention_mask=real.long(),
        ).logits
    # The decoders return their caches too, but for the classifier's, which has none.
    expected = expected if name == CLASSIFIER else expected[0]
    return expected[real], logits[real]


@pytest.mark.parametrize("name", SIZES)
def test_every_tensor_is_converted(wheel, name):
    tensors = state_of(wheel, name)
    assert sum(tensor.numel() for tensor in tensors.values()) == SIZES[name]
    state, left = convert(tensors)
    assert left == {}
    assert sum(tensor.numel() for tensor in state.values()) == SIZES[name]


@pytest.mark.parametrize("name", SIZES)
def test_it_computes_what_the_original_does(wheel, name):
    expected, logits = logits_of_both(wheel, name, torch.float64)
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize("name", SIZES)
def test_it_is_as_exact_as_the_original_in_single_precision(wheel, name):
    # Two layers of these turn an error in the seventh digit of a weight into one in the fourth of a logit, in the
    # original's own code too, so that its logits in single precision are no measure. Those in double precision are.
    exact, _ = logits_of_both(wheel, name, torch.float64)
    expected, logits = logits_of_both(wheel, name, torch.float32)
    assert logits.dtype == torch.float32
    assert (logits - exact).abs().mean() < 2 * (expected - exact).abs().mean()


def numbered_by_the_original(original, input_ids, steps):
    """Ids `(B, 1 + steps)` of the highest logits, one step after another, with the original's own cache."""
    source_padding = original.make_src_mask(input_ids)
    source = original.encoder(input_ids, source_padding)
    ids, cache = input_ids[:, :1], None
    for _ in range(steps):
        logits, cache = original.decoder(
            ids[:, -1:], source, *original.make_trg_mask(ids), source_padding, caches=cache
        )
        ids = torch.cat([ids, logits.argmax(-1)], dim=1)
    return ids


def until_the_end(ids):
    """Ids up to the first end."""
    return ids[: ids.index(END)]


@pytest.mark.parametrize("name", OTHERS)
def test_it_writes_what_the_original_does(wheel, name, tmp_path):
    load_converted(wheel, name).save_pretrained(tmp_path)
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, dtype=torch.float64).eval()
    original = load_original(wheel, name, torch.float64)
    input_ids = source_ids([HEAVY, KAPPA, ALPHA])
    steps = input_ids.shape[1]
    with torch.no_grad():
        expected = numbered_by_the_original(original, input_ids, steps)
    ids = model.generate(input_ids, attention_mask=(input_ids != PAD).long(), do_sample=False, max_new_tokens=steps)
    for row, expected_row in zip(ids.tolist(), expected.tolist(), strict=True):
        assert until_the_end(row) == until_the_end(expected_row)


@pytest.mark.parametrize("name", ANTIBODY)
def test_it_numbers_as_imgt_does(wheel, name):
    model = load_converted(wheel, name)
    input_ids = source_ids([HEAVY, KAPPA])
    ids = model.generate(input_ids, attention_mask=(input_ids != PAD).long(), do_sample=False, max_new_tokens=125)
    # The type of the chain stands before the numbers, and behind them in the vocabulary.
    vocabulary = ["<PAD>", "<SOS>", "<EOS>", "<SKIP>", *range(1, 129), "X", "H", "L", "K"]
    heavy, kappa = ([vocabulary[index] for index in until_the_end(row)[1:]] for row in ids.tolist())
    assert heavy == ["H", *IMGT["heavy"]]
    assert kappa == ["K", *IMGT["kappa"]]


def test_it_tells_antibodies_from_receptors(wheel):
    model = load_converted(wheel, "classifii/classifii")
    input_ids = source_ids([HEAVY, ALPHA, KAPPA], first_residue=3)
    with torch.no_grad():
        logits = model(
            input_ids=input_ids,
            attention_mask=(input_ids != PAD).long(),
            decoder_input_ids=torch.full((3, 1), START),
        ).logits
    assert ["PSAT"[index] for index in logits[:, 0].argmax(-1)] == ["A", "T", "A"]
