"""Scores of tagged words against values worked out by hand, and by the rules of the CoNLL tasks."""

import re

import pytest

from hf_attnzoo.evaluation import entities, tagging_metrics, tagging_statistics

WANTED = [["B-PER", "I-PER", "O", "B-LOC"], ["O", "O"], ["B-ORG", "B-ORG", "I-ORG"]]
GIVEN = [["B-PER", "I-PER", "O", "B-ORG"], ["O", "B-LOC"], ["B-ORG", "I-ORG", "I-ORG"]]


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("O O", []),
        ("B-PER I-PER O B-PER", [("PER", 0, 2), ("PER", 3, 4)]),
        ("B-PER B-PER I-PER", [("PER", 0, 1), ("PER", 1, 3)]),
        # IOB1: I- begins one where none of its type goes on
        ("I-PER I-PER I-LOC O I-LOC", [("PER", 0, 2), ("LOC", 2, 3), ("LOC", 4, 5)]),
        ("B-PER I-LOC", [("PER", 0, 1), ("LOC", 1, 2)]),
        ("S-A B-A E-A E-A I-A", [("A", 0, 1), ("A", 1, 3), ("A", 3, 4), ("A", 4, 5)]),
        ("U-A U-A B-A I-A L-A I-A", [("A", 0, 1), ("A", 1, 2), ("A", 2, 5), ("A", 5, 6)]),
        ("B-a-b I-a-b", [("a-b", 0, 2)]),
    ],
)
def test_entities_by_the_rules_of_conll(tags, expected):
    assert entities(tags.split()) == expected


def test_scores_by_hand():
    # Wanted are four entities, PER, LOC and two ORG; given are four, PER, ORG, LOC and an ORG of three; one is right.
    scores = tagging_metrics(GIVEN, WANTED)
    assert scores["entity_precision"] == scores["entity_recall"] == scores["entity_f1"] == 1 / 4
    # Wrong are the last of the first, of the second, and the middle of the third.
    assert scores["accuracy"] == 6 / 9
    assert scores["entity_f1_signature"] == "sentences:3|entities:4|predicted:4"
    assert scores["accuracy_signature"] == "sentences:3|words:9"
    fewer = [["B-PER", "I-PER", "O", "O"], ["O", "O"], ["O", "O", "O"]]
    scores = tagging_metrics(fewer, WANTED)
    assert (scores["entity_precision"], scores["entity_recall"]) == (1, 1 / 4)
    assert scores["entity_f1"] == pytest.approx(2 * 1 * 0.25 / 1.25)


def test_where_there_are_no_entities_scores_are_zero():
    nothing = tagging_metrics([["O"]], [["O"]])
    assert [nothing[name] for name in ("entity_f1", "entity_precision", "entity_recall")] == [0, 0, 0]
    assert nothing["accuracy"] == 1
    assert tagging_metrics([["NOUN"]], [["VERB"]], ["accuracy"])["accuracy"] == 0


@pytest.mark.parametrize("name", ["accuracy", "entity_f1", "entity_precision", "entity_recall"])
def test_parts_of_sentences_make_the_score_of_any_of_them(name):
    statistics = tagging_statistics(name, GIVEN, WANTED)
    for rows in ([0], [0, 2], [1, 1, 2]):
        some = [[tags[row] for row in rows] for tags in (GIVEN, WANTED)]
        assert statistics.take(rows).value == tagging_metrics(*some, [name])[name]


@pytest.mark.parametrize(
    ("given", "wanted", "names", "message"),
    [
        ([], [], ["accuracy"], "predictions is empty"),
        ([["O"]], [["O"], ["O"]], ["accuracy"], "1 predictions and 2 references"),
        ([["O"]], [["O", "O"]], ["accuracy"], "sentence 0: 1 tag predicted, and 2 wanted"),
        ([["O"]], [["O"]], ["f1"], "name is 'f1'; the scores of tags are accuracy, entity_f1"),
        ([["O"]], [["NOUN"]], ["entity_f1"], "the tag 'NOUN' marks no entity"),
        ([["O"]], [["B-"]], ["entity_f1"], "the tag 'B-' marks no entity"),
    ],
)
def test_what_can_not_be_scored_is_refused(given, wanted, names, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        tagging_metrics(given, wanted, names)
