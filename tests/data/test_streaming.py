"""Streams: the rows are those of the whole, one buffer is held at a time, and any batch can be gone on from."""

import gzip
import itertools
import json
import weakref

import numpy as np
import pytest
from datasets import Dataset, IterableDataset

from hf_attnzoo.data import StreamedBatches, cut_blocks, join_parts, load_pairs, load_texts, token_lengths
from hf_attnzoo.models.tokenization_attnzoo import train_tokenizer


def prepare(rows):
    """A row says its number so often as it is long."""
    ids = [[number] * length for number, length in zip(rows["number"], rows["length"], strict=True)]
    return Dataset.from_dict({"input_ids": ids, "labels": [row[:2] for row in ids]})


def both_lengths(prepared):
    return token_lengths(prepared, "input_ids"), token_lengths(prepared, "labels")


def rows_of(count):
    lengths = np.random.default_rng(0).integers(1, 9, count).tolist()
    return Dataset.from_dict({"number": list(range(count)), "length": lengths})


def stream_of(count, shards=1):
    return rows_of(count).to_iterable_dataset(num_shards=shards)


def streamed(rows, **options):
    options = {"buffer_size": 10, "max_tokens": 24} | options
    return StreamedBatches(rows, options.pop("prepare", prepare), both_lengths, **options)


def numbers(batches):
    return [[row["input_ids"][0] for row in batch] for batch in batches]


def first(batches, count):
    return numbers(itertools.islice(batches, count))


def test_a_pass_has_every_row_once_within_the_budget():
    batches, seen = [], 0
    for batch in streamed(stream_of(35)):
        widest = max(len(row["input_ids"]) for row in batch), max(len(row["labels"]) for row in batch)
        assert len(batch) * sum(widest) <= 24
        batches.append(batch)
        seen += len(batch)
        if seen >= 70:
            break
    given = [number for batch in numbers(batches) for number in batch]
    # Buffers of ten, one after the other, and the last of five; then all over again, in another order.
    for begin, end in [(0, 10), (10, 20), (20, 30), (30, 35)]:
        assert sorted(given[begin:end]) == list(range(begin, end))
        assert sorted(given[35 + begin : 35 + end]) == list(range(begin, end))
    assert given[:10] != list(range(10))
    assert given[:35] != given[35:]


def test_rows_of_like_length_meet():
    first_batch = next(iter(streamed(stream_of(1000), buffer_size=1000, max_tokens=100)))
    lengths = {len(row["input_ids"]) for row in first_batch}
    assert len(lengths) == 1


def test_no_more_than_a_buffer_is_held():
    read, live = 0, weakref.WeakSet()

    def generate():
        nonlocal read
        for row in rows_of(100):
            read += 1
            yield row

    def prepare_and_watch(rows):
        live.add(rows)
        # The rows of the buffers before are gone.
        assert len(live) == 1
        prepared = prepare(rows)
        assert len(rows) == 10
        return prepared

    given = 0
    for batch in itertools.islice(streamed(IterableDataset.from_generator(generate), prepare=prepare_and_watch), 25):
        assert given < read <= given // 10 * 10 + 10
        given += len(batch)
    assert given > 30


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("passed", [0, 1, 4, 5, 13, 30])
def test_training_goes_on_behind_any_batch(shards, passed):
    whole = first(streamed(stream_of(35, shards)), passed + 30)
    before = streamed(stream_of(35, shards))
    iterator = iter(before)
    assert first(iterator, passed) == whole[:passed]
    # As JSON holds it; and a state can be asked for more than once.
    before.state_dict(max(passed - 3, 0))
    state = json.loads(json.dumps(before.state_dict(passed)))
    after = streamed(stream_of(35, shards))
    after.load_state_dict(state)
    assert first(after, 30) == whole[passed:]
    assert after.rows_read(passed) <= sum(map(len, whole[:passed]))


def test_resuming_reads_nothing_of_earlier_shards():
    opened = []

    def generate(shards):
        for shard in shards:
            opened.append(shard)
            yield from ({"number": 10 * shard + place, "length": 3} for place in range(10))

    def stream():
        return IterableDataset.from_generator(generate, gen_kwargs={"shards": list(range(6))})

    before = streamed(stream())
    whole = first(before, 22)
    state = before.state_dict(16)
    opened.clear()
    after = streamed(stream())
    after.load_state_dict(state)
    assert first(after, 6) == whole[16:]
    # 24 tokens are four rows of five: three batches a shard, so the 16th is of the sixth, behind the end of the fifth.
    assert opened[:2] == [4, 5]


@pytest.mark.parametrize(("shards", "processes"), [(1, 2), (4, 2), (6, 3), (1, 3)])
def test_processes_share_out_the_stream(shards, processes):
    given = []
    for rank in range(processes):
        batches = streamed(stream_of(36, shards), rank=rank, world_size=processes, buffer_size=5)
        mine = []
        for batch in batches:
            mine += [row["input_ids"][0] for row in batch]
            if len(mine) >= 36 // processes:
                break
        assert len(mine) == 36 // processes
        given += mine
    assert sorted(given) == list(range(36))


def test_the_order_hangs_on_the_seed():
    assert first(streamed(stream_of(35), seed=1), 9) == first(streamed(stream_of(35), seed=1), 9)
    assert first(streamed(stream_of(35), seed=1), 9) != first(streamed(stream_of(35), seed=2), 9)
    assert max(map(len, first(streamed(stream_of(35), max_rows=2), 9))) == 2


def test_passes_are_told_where_they_begin():
    told = []
    batches = streamed(stream_of(35), on_pass=told.append)
    count, length = 0, 0
    for batch in batches:
        count, length = count + len(batch), length + 1
        if count >= 75:
            break
    assert told == [0, 1, 2]
    after = streamed(stream_of(35), on_pass=told.append)
    after.load_state_dict(batches.state_dict(length))
    next(iter(after))
    assert told == [0, 1, 2, 2]


def test_refuses_clearly():
    with pytest.raises(ValueError, match="buffer_size=0 must be at least 1"):
        streamed(stream_of(3), buffer_size=0)
    with pytest.raises(ValueError, match=r"rank=2 must be from 0 to 1, since world_size=2"):
        streamed(stream_of(3), rank=2, world_size=2)
    batches = streamed(stream_of(3), rank=0, world_size=2)
    with pytest.raises(ValueError, match="the stream was left with world_size=1, and can't be gone on with as 2"):
        batches.load_state_dict(streamed(stream_of(3)).state_dict(0))
    nothing = streamed(stream_of(30), prepare=lambda rows: prepare(rows).select([]))
    with pytest.raises(ValueError, match="the stream gives no batch: 30 rows, of which none is left"):
        next(iter(nothing))


@pytest.fixture
def translations(tmp_path):
    """A folder like a translation corpus on the Hub: Parquet files, a column `translation`, an empty text in each."""
    for shard in range(3):
        texts = [{"de": f"d{shard}{row}", "en": f"e{shard}{row}" if row != 3 else ""} for row in range(5)]
        Dataset.from_dict({"translation": texts}).to_parquet(tmp_path / f"train-{shard:05}-of-00003.parquet")
    return tmp_path


def test_a_translation_column_is_read_as_it_comes(translations, caplog):
    columns = {"source_column": "en", "target_column": "de"}
    rows = load_pairs(translations, split="train", streaming=True, on_error="skip", **columns)
    assert rows.num_shards == 3
    whole = load_pairs(translations, split="train", on_error="skip", **columns)
    assert list(rows) == list(whole)
    assert list(rows)[3] == {"source": "e04", "target": "d04"}
    assert f"{translations}:4: the source is empty (skipped)" in caplog.text
    with pytest.raises(ValueError, match=r":4: the source is empty$"):
        list(load_pairs(translations, split="train", streaming=True, **columns))


TEXT = "".join(f"{number} is a line{' and more' * (number % 3)}\r\n" for number in range(700)) + "the last"


@pytest.mark.parametrize("name", ["text.txt", "text.txt.gz"])
@pytest.mark.parametrize("end", ["", "\n"])
def test_a_text_file_comes_in_parts_that_make_it_up(tmp_path, name, end):
    raw = (TEXT + end).encode()
    (tmp_path / name).write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    rows = load_texts(tmp_path / name, streaming=True)
    parts = list(rows)
    assert len(parts) == 2
    assert [part["part"] for part in parts] == [0, 1]
    whole = load_texts(tmp_path / name)
    assert list(join_parts(Dataset.from_list(parts))) == list(whole)
    # What doesn't follow isn't joined: the second process of two has the second part alone.
    second = Dataset.from_list([parts[0], parts[1] | {"part": 2}])
    assert len(join_parts(second)) == 2
    tokenizer = train_tokenizer("character", rows["text"], causal=True)
    blocks = StreamedBatches(
        rows,
        lambda buffer: cut_blocks(join_parts(buffer), tokenizer, 32),
        lambda prepared: (np.zeros(len(prepared), dtype=int), token_lengths(prepared, "labels")),
        max_tokens=128,
    )
    expected = cut_blocks(whole, tokenizer, 32)
    given = [row["input_ids"] for batch in itertools.islice(blocks, -(-len(expected) // 4)) for row in batch]
    assert sorted(given) == sorted(expected["input_ids"])


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz", "rows.csv", "rows.parquet"])
def test_documents_of_a_table_are_streamed(tmp_path, name):
    texts = ["a b", "one\ntwo", "c"]
    path = tmp_path / name
    rows = Dataset.from_dict({"n": [1, 2, 3], "body": texts})
    if name.endswith("parquet"):
        rows.to_parquet(path)
    elif name.endswith("csv"):
        rows.to_csv(path)
    else:
        raw = "".join(json.dumps(row) + "\n" for row in rows).encode()
        path.write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    streamed_rows = load_texts(path, streaming=True, text_column="body")
    assert isinstance(streamed_rows, IterableDataset)
    assert list(streamed_rows) == [{"text": text} for text in texts]
    with pytest.raises(ValueError, match=r"split='train': where the shares of one file .* end isn't known"):
        load_texts(path, "train", streaming=True, text_column="body")
