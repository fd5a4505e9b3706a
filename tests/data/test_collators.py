import numpy as np
import pytest
import torch
from datasets import Dataset, Features, Image, IterableDataset, Value
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from hf_attnzoo import train_tokenizer
from hf_attnzoo.data import CaptionCollator, Seq2SeqCollator, tokenize_pairs
from hf_attnzoo.models.image_processing_show_attend_tell import ShowAttendTellImageProcessor
from hf_attnzoo.models.processing_show_attend_tell import ShowAttendTellProcessor

WORDS = ["<unk>", "<pad>", "<s>", "</s>", "a", "b", "c"]
UNKNOWN = {"unk_token": "<unk>"}
SPECIAL = UNKNOWN | {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}


@pytest.fixture(scope="module")
def tokenizer():
    backend = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, **UNKNOWN))
    backend.pre_tokenizer = WhitespaceSplit()
    backend.post_processor = TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 3)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, **SPECIAL)


ROWS = [{"input_ids": [4, 3], "labels": [5, 6, 3]}, {"input_ids": [4, 5, 6, 3], "labels": [3]}]


def test_pads_by_hand(tokenizer):
    batch = Seq2SeqCollator(tokenizer)(ROWS)
    assert set(batch) == {"input_ids", "attention_mask", "labels"}
    assert batch["input_ids"].tolist() == [[4, 3, 1, 1], [4, 5, 6, 3]]
    assert batch["attention_mask"].tolist() == [[1, 1, 0, 0], [1, 1, 1, 1]]
    assert batch["labels"].tolist() == [[5, 6, 3], [3, -100, -100]]
    assert {tensor.dtype for tensor in batch.values()} == {torch.int64}


def test_a_source_may_be_padded_on_the_left_a_target_never(tokenizer):
    tokenizer.padding_side = "left"
    try:
        batch = Seq2SeqCollator(tokenizer, pad_to_multiple_of=6)(ROWS)
    finally:
        tokenizer.padding_side = "right"
    assert batch["input_ids"].tolist() == [[1, 1, 1, 1, 4, 3], [1, 1, 4, 5, 6, 3]]
    assert batch["attention_mask"].tolist() == [[0, 0, 0, 0, 1, 1], [0, 0, 1, 1, 1, 1]]
    assert batch["labels"].tolist() == [[5, 6, 3, -100, -100, -100], [3] + 5 * [-100]]


def test_other_columns_are_left_out_and_masks_kept(tokenizer):
    rows = [{"input_ids": torch.tensor([4, 3]), "attention_mask": [0, 1], "source": "a", "length": 3}, ROWS[1]]
    rows[1] = {**rows[1], "attention_mask": [1, 1, 1, 1]}
    batch = Seq2SeqCollator(tokenizer)(rows)
    assert batch["attention_mask"].tolist() == [[0, 1, 0, 0], [1, 1, 1, 1]]
    assert set(batch) == {"input_ids", "attention_mask"}


def test_decoder_inputs_from_the_model(tokenizer):
    class Model:
        def prepare_decoder_input_ids_from_labels(self, labels):
            return labels.clamp(min=1).roll(1, dims=1)

    batch = Seq2SeqCollator(tokenizer, model=Model())(ROWS)
    assert batch["decoder_input_ids"].tolist() == [[3, 5, 6], [1, 3, 1]]


@given(st.lists(st.tuples(*2 * [st.lists(st.integers(4, 6), min_size=1)]), min_size=1), st.integers(1, 8))
def test_nothing_is_lost(tokenizer, pairs, multiple):
    batch = Seq2SeqCollator(tokenizer, pad_to_multiple_of=multiple)(
        [{"input_ids": source, "labels": target} for source, target in pairs]
    )
    assert batch["input_ids"].shape[1] % multiple == batch["labels"].shape[1] % multiple == 0
    assert batch["input_ids"].shape[1] - max(len(source) for source, _ in pairs) < multiple
    for i, (source, target) in enumerate(pairs):
        assert batch["input_ids"][i][batch["attention_mask"][i].bool()].tolist() == source
        assert batch["labels"][i][batch["labels"][i] != -100].tolist() == target


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "rows is empty"),
        ([{"input_ids": []}], "input_ids of row 0 in the batch is empty"),
        (
            [ROWS[0], {"input_ids": [4] * 5, "labels": [3]}],
            "row 1 in the batch has 5 tokens, more than max_source_length=4",
        ),
        (
            [{"input_ids": [3], "labels": [4] * 4}],
            "labels of row 0 in the batch has 4 tokens, more than max_target_length=3",
        ),
    ],
)
def test_collator_refuses_clearly(tokenizer, rows, message):
    with pytest.raises(ValueError, match=message):
        Seq2SeqCollator(tokenizer, max_source_length=4, max_target_length=3)(rows)


def test_collator_needs_a_pad_token(tokenizer):
    bare = PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer)
    with pytest.raises(ValueError, match="no pad_token_id"):
        Seq2SeqCollator(bare)
    with pytest.raises(ValueError, match="pad_to_multiple_of=0"):
        Seq2SeqCollator(tokenizer, pad_to_multiple_of=0)


PAIRS = Dataset.from_dict({"source": ["a b", "a", "c c c c"], "target": ["c", "b b b", "a x"], "locale": ["", "", ""]})


def test_tokenize_by_hand(tokenizer):
    tokens = tokenize_pairs(PAIRS, tokenizer, max_source_length=5, max_target_length=4)
    assert tokens.to_dict() == {
        "input_ids": [[4, 5, 3], [4, 3], [6, 6, 6, 6, 3]],
        "labels": [[6, 3], [5, 5, 5, 3], [4, 0, 3]],
        "length": [5, 6, 8],
        "row": [0, 1, 2],
    }
    assert tokenize_pairs(PAIRS, tokenizer).to_dict() == tokens.to_dict()


def test_too_long_raises(tokenizer):
    with pytest.raises(
        ValueError, match=r"row 1 has 2 source and 4 target tokens.*max_target_length=3.*\(2 of 3 rows"
    ):
        tokenize_pairs(PAIRS, tokenizer, max_source_length=4, max_target_length=3)


def test_too_long_is_skipped_and_counted(tokenizer, caplog):
    tokens = tokenize_pairs(PAIRS, tokenizer, max_source_length=4, on_too_long="skip")
    assert tokens["input_ids"][:] == [[4, 5, 3], [4, 3]]
    assert tokens["row"][:] == [0, 1]
    assert "such rows are skipped, 1 of 3" in caplog.text
    with pytest.raises(ValueError, match="no row is left"):
        tokenize_pairs(PAIRS, tokenizer, max_source_length=1, on_too_long="skip")


def test_too_long_is_truncated_and_counted(tokenizer, caplog):
    tokens = tokenize_pairs(PAIRS, tokenizer, max_source_length=4, max_target_length=3, on_too_long="truncate")
    assert tokens.to_dict() == {
        "input_ids": [[4, 5, 3], [4, 3], [6, 6, 6, 3]],
        "labels": [[6, 3], [5, 5, 3], [4, 0, 3]],
        "length": [5, 5, 7],
        "row": [0, 1, 2],
    }
    assert "such rows are truncated, 2 of 3" in caplog.text


def test_truncation_without_a_closing_token(tokenizer):
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.post_processor = TemplateProcessing(single="$A", special_tokens=[])
    bare = PreTrainedTokenizerFast(tokenizer_object=backend, **UNKNOWN)
    tokens = tokenize_pairs(PAIRS, bare, max_source_length=1, on_too_long="truncate")
    assert tokens["input_ids"][:] == [[4], [4], [6]]
    with pytest.raises(ValueError, match="row 1: the tokenizer makes no token of it in labels"):
        tokenize_pairs(Dataset.from_dict({"source": ["a", "b"], "target": ["a", " "]}), bare)


@pytest.mark.parametrize(
    ("dataset", "options", "message"),
    [
        (PAIRS, {"on_too_long": "cut"}, "on_too_long='cut'"),
        (PAIRS, {"max_target_length": 0}, "max_target_length=0"),
        (PAIRS.remove_columns("target"), {}, "no column 'target'; columns found: source, locale"),
        (PAIRS.select([]), {}, "dataset is empty"),
        (IterableDataset.from_generator(lambda: iter(())), {}, "dataset is IterableDataset"),
    ],
)
def test_tokenize_refuses_clearly(tokenizer, dataset, options, message):
    with pytest.raises(ValueError, match=message):
        tokenize_pairs(dataset, tokenizer, **options)


@pytest.fixture(scope="module")
def processor(tokenizer):
    return ShowAttendTellProcessor(ShowAttendTellImageProcessor(size=2, do_normalize=False), tokenizer)


def captioned(captions):
    """Pictures of 5 x 6 pixels, the first all black, each of the next a fifth lighter."""
    pictures = [np.full((5, 6), 51 * i, np.uint8) for i in range(len(captions))]
    features = Features({"image": Image(), "caption": Value("string")})
    dataset = Dataset.from_dict({"image": pictures, "caption": captions}, features=features)
    return dataset.add_column("objects", list(range(len(captions))))


def test_captions_by_hand(processor):
    batch = CaptionCollator(processor)(list(captioned(["b c", "a"])))
    assert set(batch) == {"pixel_values", "labels"}
    assert batch["labels"].tolist() == [[5, 6, 3], [4, 3, -100]]
    assert batch["pixel_values"].shape == (2, 3, 2, 2)
    assert batch["pixel_values"].dtype == torch.float32
    torch.testing.assert_close(batch["pixel_values"][:, 0, 0, 0], torch.tensor([0.0, 0.2]))
    assert set(CaptionCollator(processor)([{"image": row["image"]} for row in captioned(["a"])])) == {"pixel_values"}


def test_captions_from_several_workers(processor):
    dataset = captioned(["a b c a", "b", "c a", "a", "b b"])
    loader = torch.utils.data.DataLoader(dataset, batch_size=2, num_workers=2, collate_fn=CaptionCollator(processor))
    batches = list(loader)
    assert [batch["labels"].tolist() for batch in batches] == [
        [[4, 5, 6, 4, 3], [5, 3, -100, -100, -100]],
        [[6, 4, 3], [4, 3, -100]],
        [[5, 5, 3]],
    ]
    levels = torch.cat([batch["pixel_values"] for batch in batches])[:, 2, 1, 1]
    torch.testing.assert_close(levels, torch.tensor([0.0, 0.2, 0.4, 0.6, 0.8]))


def test_decoder_inputs_for_captions(processor):
    class Model:
        def prepare_decoder_input_ids_from_labels(self, labels):
            return labels + 1

    batch = CaptionCollator(processor, Model())(list(captioned(["b c", "a"])))
    assert batch["decoder_input_ids"].tolist() == [[6, 7, 4], [5, 4, -99]]


@pytest.mark.parametrize(
    ("captions", "message"),
    [
        ([], "rows is empty"),
        (["a", " "], "the caption of row 1 in the batch is empty"),
        (["a b", "a b c"], "the caption of row 1 in the batch has 4 tokens, more than max_target_length=3"),
        (["a", None], r"text\[1\] is of type NoneType"),
    ],
)
def test_captions_refused(processor, captions, message):
    with pytest.raises(ValueError, match=message):
        CaptionCollator(processor, max_target_length=3)(list(captioned(captions)) if captions else [])


COPIED = {"source": ["a ann b bob", "a"], "target": ["bob ann b", "b"]}


def test_words_to_copy_are_padded_and_cut_with_their_sources():
    copier = train_tokenizer("word", ["a b"], ["a b"], copy_slots=2)
    pairs = Dataset.from_dict(COPIED)
    tokens = tokenize_pairs(pairs, copier)
    assert tokens["copy_ids"][:] == [[4, 6, 5, 7, 3], [4, 3]]
    assert tokens["labels"][:] == [[7, 6, 5, 3], [5, 3]]
    batch = Seq2SeqCollator(copier)(list(tokens))
    assert batch["copy_ids"].tolist() == [[4, 6, 5, 7, 3], [4, 3, -100, -100, -100]]
    copier.padding_side = "left"
    assert Seq2SeqCollator(copier)(list(tokens))["copy_ids"].tolist()[1] == [-100, -100, -100, 4, 3]
    cut = tokenize_pairs(pairs, copier, max_source_length=3, on_too_long="truncate")
    assert cut["copy_ids"][:] == [[4, 6, 3], [4, 3]]
    # bob is not there any more.
    assert cut["labels"][:] == [[0, 6, 5, 3], [5, 3]]
