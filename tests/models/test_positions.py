"""Positions: numbers of real words, documents of a row, and the vectors of Vaswani et al. (2017), section 3.5."""

import math

import pytest
import torch

from hf_attnzoo.models.positions import (
    LearnedPositions,
    SinusoidalPositions,
    documents_of,
    read_positions,
    sinusoids,
)


def vectors(rows, length):
    return torch.zeros(rows, length, 2)


def test_sines_and_cosines_of_the_paper():
    table = sinusoids(50, 8)
    for position in (0, 1, 7, 49):
        for i in range(4):
            angle = position / 10000 ** (2 * i / 8)
            assert table[position, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-12)
            assert table[position, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-12)
    assert table[0].tolist() == [0, 1, 0, 1, 0, 1, 0, 1]
    assert table[1, :2].tolist() == pytest.approx([0.8414709848078965, 0.5403023058681398])


def test_a_shift_is_a_rotation():
    # Section 3.5: PE(pos + k) is a linear function of PE(pos), whatever pos is.
    table = sinusoids(40, 6)
    for i in range(3):
        angle = 5 / 10000 ** (2 * i / 6)
        rotation = torch.tensor(
            [[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]], dtype=torch.float64
        )
        pairs = table[:, 2 * i : 2 * i + 2]
        torch.testing.assert_close(pairs[5:], pairs[:-5] @ rotation.T, atol=1e-10, rtol=0)


@pytest.mark.parametrize("size", [6, 7])
def test_the_layouts_hold_the_same(size):
    interleaved, halves = sinusoids(9, size), sinusoids(9, size, "halves")
    assert torch.equal(halves, torch.cat([interleaved[:, 0::2], interleaved[:, 1::2]], dim=1))


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        ([1, 1, 1, 1], [0, 1, 2, 3]),
        ([1, 1, 0, 0], [0, 1, 1, 1]),
        ([0, 0, 1, 1], [0, 0, 0, 1]),
        ([0, 1, 0, 1], [0, 0, 0, 1]),
        ([0, 0, 0, 0], [0, 0, 0, 0]),
    ],
)
def test_real_words_are_counted_wherever_padding_stands(mask, expected):
    numbers, documents = read_positions(vectors(1, 4), torch.tensor([mask]))
    assert numbers.tolist() == [expected]
    assert documents is None


def test_without_a_mask_all_are_real():
    assert read_positions(vectors(2, 3))[0].tolist() == [[0, 1, 2]]
    assert read_positions(vectors(2, 3), seen=4)[0].tolist() == [[4, 5, 6]]


def test_a_cache_holds_what_came_before():
    mask = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]])
    assert read_positions(vectors(2, 2), mask, seen=3)[0].tolist() == [[3, 4], [1, 2]]
    for wrong in (mask[:, :4], mask[:1]):
        with pytest.raises(ValueError, match=r"decoder_attention_mask.*\(2, 5\)"):
            read_positions(vectors(2, 2), wrong, seen=3, side="decoder_")


def test_given_numbers_are_taken():
    numbers, documents = read_positions(vectors(2, 3), None, torch.tensor([[4, 6, 9]]))
    assert numbers.tolist() == [[4, 6, 9], [4, 6, 9]]
    assert documents is None
    with pytest.raises(ValueError, match=r"position_ids.*\(2, 3\).*\(2, 2\)"):
        read_positions(vectors(2, 3), None, torch.tensor([[0, 1], [0, 1]]))


@pytest.mark.parametrize(
    ("numbers", "mask", "expected"),
    [
        ([0, 1, 0, 1, 2], None, [0, 0, 1, 1, 1]),
        ([0, 0, 0, 1, 0], None, [0, 1, 2, 2, 3]),
        ([3, 4, 2, 3, 4], None, [0, 0, 1, 1, 1]),
        ([0, 1, 2, 3, 4], None, None),
        ([0, 2, 5, 6, 9], None, None),
        # as transformers numbers padding
        ([0, 0, 0, 1, 2], [0, 0, 1, 1, 1], None),
        ([1, 1, 0, 1, 2], [0, 0, 1, 1, 1], None),
        ([0, 1, 2, 0, 0], [1, 1, 1, 0, 0], None),
        ([0, 1, 1, 1, 2], [1, 1, 0, 0, 1], None),
        # whatever padding says
        ([0, 9, 1, 9, 2], [1, 0, 1, 0, 1], None),
        ([0, 1, 9, 0, 1], [1, 1, 0, 1, 1], [0, 0, 0, 1, 1]),
    ],
)
def test_a_document_begins_where_numbers_do(numbers, mask, expected):
    mask = None if mask is None else torch.tensor([mask])
    documents = documents_of(torch.tensor([numbers]), mask)
    assert (None if documents is None else documents[0].tolist()) == expected
    assert read_positions(vectors(1, 5), mask, torch.tensor([numbers]))[1] is None or expected is not None


def test_rows_are_packed_each_for_itself():
    documents = documents_of(torch.tensor([[0, 1, 2], [0, 0, 1]]))
    assert documents.tolist() == [[0, 0, 0], [0, 1, 1]]


@pytest.mark.parametrize("module", [SinusoidalPositions(5, 4), LearnedPositions(5, 4)], ids=lambda m: type(m).__name__)
def test_positions_beyond_the_table_are_refused(module):
    assert module(torch.tensor([[0, 4]])).shape == (1, 2, 4)
    for wrong in (5, -1):
        with pytest.raises(ValueError, match=rf"position_ids.*{wrong}.*4.*max_position_embeddings=5"):
            module(torch.tensor([[0, wrong]]))


def test_vectors_are_rows_of_the_table():
    module = SinusoidalPositions(5, 4)
    numbers = torch.tensor([[3, 0], [1, 1]])
    torch.testing.assert_close(module(numbers), sinusoids(5, 4).float()[numbers], atol=1e-7, rtol=0)
    assert not list(module.parameters())
    assert not module.state_dict()
    learned = LearnedPositions(5, 4)
    assert torch.equal(learned(numbers), learned.table.weight[numbers])


def test_the_table_is_written_again_where_loading_left_it_empty():
    with torch.device("meta"):
        module = SinusoidalPositions(5, 4, "halves")
    assert module.table.is_meta
    module = module.to_empty(device="cpu")
    module.table.fill_(7.0)
    module.initialize()
    torch.testing.assert_close(module.table, sinusoids(5, 4, "halves").float())
