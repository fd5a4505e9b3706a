from itertools import chain

import numpy as np
import pytest
from accelerate import skip_first_batches
from accelerate.data_loader import BatchSamplerShard, prepare_data_loader
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from hf_attnzoo.data import TokenBudgetBatchSampler, token_lengths

LENGTHS = st.lists(st.tuples(st.integers(1, 30), st.integers(0, 30)), min_size=1, max_size=60)


def test_worked_example():
    # Longest source first; budget 12: 1 x (5 + 5); 2 x (3 + 3); 3 x (1 + 2) with room for no fourth
    sampler = TokenBudgetBatchSampler([1, 5, 3, 1, 3, 1, 1], [2, 5, 3, 2, 3, 2, 2], max_tokens=12, shuffle=False)
    assert list(sampler) == [[1], [2, 4], [0, 3, 5, 6]]
    sampler = TokenBudgetBatchSampler([1, 5, 3, 1, 3, 1, 1], [2, 5, 3, 2, 3, 2, 2], max_tokens=11, shuffle=False)
    assert list(sampler) == [[1], [2], [4], [0, 3, 5], [6]]
    sampler = TokenBudgetBatchSampler([1, 5, 3, 1, 3, 1, 1], max_tokens=6, max_rows=3, shuffle=False)
    assert list(sampler) == [[1], [2, 4], [0, 3, 5], [6]]


@settings(deadline=None)
@given(LENGTHS, st.integers(60, 200), st.one_of(st.none(), st.integers(1, 5)), st.integers(0, 9), st.booleans())
def test_every_row_once_within_the_budget(lengths, budget, max_rows, seed, shuffle):
    source, target = map(list, zip(*lengths, strict=True))
    sampler = TokenBudgetBatchSampler(source, target, max_tokens=budget, max_rows=max_rows, seed=seed, shuffle=shuffle)
    sizes = set()
    for epoch in range(3):
        sampler.set_epoch(epoch)
        batches = list(sampler)
        assert sorted(row for batch in batches for row in batch) == list(range(len(lengths)))
        for batch in batches:
            assert len(batch) <= (max_rows or len(lengths))
            assert len(batch) * (max(source[i] for i in batch) + max(target[i] for i in batch)) <= budget
        assert len(batches) == len(sampler)
        sizes.add(len(batches))
        assert batches == list(sampler)
    assert len(sizes) == 1


def test_order_depends_on_seed_and_epoch_only():
    rng = np.random.default_rng(0)
    source, target = rng.integers(1, 9, 300), rng.integers(1, 9, 300)

    def order(seed, epoch):
        sampler = TokenBudgetBatchSampler(source, target, max_tokens=40, seed=seed)
        sampler.set_epoch(epoch)
        return list(sampler)

    assert order(1, 2) == order(1, 2)
    assert order(1, 2) != order(1, 3)
    assert order(1, 2) != order(2, 2)
    # Not only the batches move, the rows in them change company
    assert {frozenset(batch) for batch in order(1, 2)} != {frozenset(batch) for batch in order(1, 3)}


def test_rows_of_like_length_meet():
    rng = np.random.default_rng(0)
    source = rng.integers(5, 40, 5000)
    target = np.maximum(1, source + rng.integers(-3, 4, 5000))
    batches = list(TokenBudgetBatchSampler(source, target, max_tokens=1000))
    padded = sum(len(batch) * (source[batch].max() + target[batch].max()) for batch in batches)
    assert (source.sum() + target.sum()) / padded > 0.97
    # Batches of 25 rows in random order waste a third
    random = np.array_split(rng.permutation(5000), 200)
    assert (source.sum() + target.sum()) / sum(len(b) * (source[b].max() + target[b].max()) for b in random) < 0.7


def dataset(rows=50):
    return Dataset.from_dict({"input_ids": [[i] * (1 + i % 7) for i in range(rows)], "labels": [[3]] * rows})


def test_from_dataset():
    sampler = TokenBudgetBatchSampler.from_dataset(
        Dataset.from_dict({"input_ids": [[4, 3], [4, 4, 3]], "labels": [[3], [4, 3]]}), max_tokens=5, shuffle=False
    )
    assert list(sampler) == [[1], [0]]
    sampler = TokenBudgetBatchSampler.from_dataset(
        Dataset.from_dict({"input_ids": [[4, 3], [4, 4, 3]]}), max_tokens=6, shuffle=False
    )
    assert list(sampler) == [[1, 0]]


def test_token_lengths_of_a_selection():
    assert token_lengths(dataset().select([6, 0, 8]), "input_ids").tolist() == [7, 1, 2]
    with pytest.raises(ValueError, match="column 'ids' is not in the dataset; columns found: input_ids, labels"):
        token_lengths(dataset(), "ids")


def loader(seed=0):
    rows = dataset()
    sampler = TokenBudgetBatchSampler.from_dataset(rows, max_tokens=30, seed=seed)
    return DataLoader(rows, batch_sampler=sampler, collate_fn=lambda batch: [row["input_ids"][0] for row in batch])


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_accelerate_shards_it(processes):
    whole = list(loader())
    parts = [
        list(prepare_data_loader(loader(), num_processes=processes, process_index=i, put_on_device=False))
        for i in range(processes)
    ]
    assert len({len(part) for part in parts}) == 1
    assert sorted(map(tuple, {tuple(batch) for part in parts for batch in part})) == sorted(map(tuple, whole))
    for i, part in enumerate(parts):
        assert part[: len(whole) // processes] == whole[i::processes][: len(whole) // processes]


@settings(deadline=None)
@given(LENGTHS, st.integers(60, 200), st.integers(1, 4), st.integers(0, 3), st.booleans())
def test_processes_share_out_what_one_process_would_take_in_turn(lengths, budget, processes, seed, shuffle):
    source, target = map(list, zip(*lengths, strict=True))
    options = {"max_tokens": budget, "seed": seed, "shuffle": shuffle}
    alone = TokenBudgetBatchSampler(source, target, **options)
    shared = TokenBudgetBatchSampler(source, target, **options, num_processes=processes)
    for epoch in range(2):
        alone.set_epoch(epoch)
        shared.set_epoch(epoch)
        one, many = list(alone), list(shared)
        shards = [list(BatchSamplerShard(shared, processes, index)) for index in range(processes)]
        # Every process makes the same number of steps, and the length promises it.
        assert len({len(shard) for shard in shards}) == 1
        assert len(many) == len(shared) == processes * -(-len(one) // processes) == processes * len(shards[0])
        assert [batch for step in zip(*shards, strict=True) for batch in step] == many
        assert all(len(batch) for batch in many)
        for batch in many:
            assert len(batch) * (max(source[i] for i in batch) + max(target[i] for i in batch)) <= budget
        if max(map(len, one)) < processes:
            continue
        # No row twice in an epoch, and the steps before the last are those of one process.
        assert sorted(row for batch in many for row in batch) == list(range(len(lengths)))
        whole = len(one) // processes * processes
        if sum(map(len, one[whole:])) >= processes:
            assert many[:whole] == one[:whole]
            assert sorted(chain(*many[whole:])) == sorted(chain(*one[whole:]))


def test_what_is_left_at_the_end_is_divided():
    # Batches of 1, 2 and 4 rows, see above.
    lengths = [1, 5, 3, 1, 3, 1, 1], [2, 5, 3, 2, 3, 2, 2]
    options = {"max_tokens": 12, "shuffle": False}
    assert list(TokenBudgetBatchSampler(*lengths, **options, num_processes=2)) == [[1], [2, 4], [0, 3], [5, 6]]
    assert list(TokenBudgetBatchSampler(*lengths, **options, num_processes=5)) == [[1], [2], [4], [0, 3], [5, 6]]
    # One row is left for two processes: the longest batch comes last in its stead.
    lone = TokenBudgetBatchSampler([3, 3, 1], max_tokens=6, shuffle=False, num_processes=3)
    assert list(lone) == [[0], [1], [2]]
    lone = TokenBudgetBatchSampler([3, 3, 2, 2, 1], max_tokens=6, max_rows=2, shuffle=False, num_processes=2)
    assert list(lone) == [[0, 1], [4], [2], [3]]
    # Nothing can be divided: one process reads what another does.
    assert list(TokenBudgetBatchSampler([3, 2, 1], max_tokens=3, num_processes=2, max_rows=1, shuffle=False)) == [
        [0],
        [1],
        [2],
        [2],
    ]


@pytest.mark.parametrize("processes", [1, 2])
def test_accelerate_sets_its_epoch(processes):
    expected = []
    for epoch in range(2):
        plain = loader()
        plain.batch_sampler.set_epoch(epoch)
        expected.append(list(BatchSamplerShard(plain.batch_sampler, processes, 0)))
    assert expected[0] != expected[1]
    prepared = prepare_data_loader(loader(), num_processes=processes, process_index=0, put_on_device=False)
    rows = dataset()
    for epoch in range(2):
        assert list(prepared) == [[rows[i]["input_ids"][0] for i in batch] for batch in expected[epoch]]


def test_accelerate_skips_in_it():
    plain = loader(seed=3)
    assert list(skip_first_batches(plain, 4)) == list(plain)[4:]
    assert len(skip_first_batches(plain, 4)) == len(plain) - 4


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (
            ([3, 9, 8], [3, 4, 9]),
            {"max_tokens": 12},
            r"row 1 has 9 source and 4 target tokens, 13 in all.*\(2 such rows\)",
        ),
        (([],), {"max_tokens": 12}, "at least one number"),
        (([1, 2], [1]), {"max_tokens": 12}, r"shape \(2,\) and target_lengths of shape \(1,\)"),
        (([1],), {"max_tokens": 0}, "max_tokens=0"),
        (([1],), {"max_tokens": 9, "max_rows": 0}, "max_rows=0"),
        (([-1],), {"max_tokens": 9}, "negative"),
        (([1],), {"max_tokens": 9, "num_processes": 0}, "num_processes=0"),
    ],
)
def test_refuses_clearly(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        TokenBudgetBatchSampler(*arguments, **options)
