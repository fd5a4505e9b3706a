"""Prompts that show tasks on strings: right examples, and nothing of the test in training."""

import random

import pytest

from hf_attnzoo.data import SPLITS, load_text_source, split_of
from hf_attnzoo.data.in_context import (
    KINDS,
    StringTask,
    draw_task,
    in_context_episodes,
    task_split,
)

# What each task makes of two words, worked out by hand.
SIMPLE = {
    "copy": ("abcd", "cab"),
    "reverse": ("dcba", "bac"),
    "first": ("a", "c"),
    "last": ("d", "b"),
    "swap-case": ("ABCD", "CAB"),
    "duplicate": ("abcdabcd", "cabcab"),
    "double-letters": ("aabbccdd", "ccaabb"),
    "rotate": ("bcda", "abc"),
    "rotate-back": ("dabc", "bca"),
    "swap-ends": ("dbca", "bac"),
    "without-first": ("bcd", "ab"),
    "without-last": ("abc", "ca"),
    "sorted": ("abcd", "abc"),
    "first-and-last": ("ad", "cb"),
}


def test_tasks_do_what_their_names_say():
    generator = random.Random(0)
    drawn = {task.name: task for task in (draw_task(generator, "simple") for _ in range(400))}
    assert {name: (task.apply("abcd"), task.apply("cab")) for name, task in drawn.items()} == SIMPLE
    for _ in range(20):
        shift = draw_task(generator, "shift", letters=5)
        step = int(shift.name.removeprefix("shift by "))
        assert shift.apply("abcde") == ("abcde" * 2)[step : step + 5]
        assert shift.apply("ABCDE") == shift.apply("abcde").upper()
        letters = draw_task(generator, "map", letters=5)
        assert sorted(letters.apply("abcde")) == list("abcde")
        assert letters.name == f"map to {letters.apply('abcde')}"
    composed = [draw_task(generator, "composed", letters=12) for _ in range(400)]
    both = next(task for task in composed if task.name == "reverse, then without-last")
    assert both.apply("cab") == "ba"


def test_a_task_is_dealt_by_what_it_does_and_some_are_none():
    copy = StringTask("copy", "simple", lambda word: word)
    again = StringTask("another name", "composed", lambda word: word[::-1][::-1])
    assert task_split(copy) == task_split(again) is not None
    assert task_split(StringTask("nothing", "simple", lambda word: word[3:])) is None
    assert task_split(StringTask("long", "simple", lambda word: word * 3)) is None
    generator = random.Random(1)
    dealt = [task_split(draw_task(generator, "map")) for _ in range(1000)]
    # 90, 5 and 5 %, within five standard deviations
    assert abs(dealt.count("train") - 900) < 48
    assert {*dealt} == set(SPLITS)


def test_rows_show_one_task_with_words_of_their_split():
    rows, episodes = (
        load_text_source("in_context", "train", size=40, shots=5),
        in_context_episodes("train", 40, shots=5),
    )
    assert rows.column_names == ["text", "task"]
    assert rows["text"][:] == [episode.text for episode in episodes]
    assert rows["task"][:] == [episode.task.name for episode in episodes]
    for row, episode in zip(rows, episodes, strict=True):
        pairs = [line.split(">") for line in row["text"].removesuffix("\n").split("\n")]
        assert len(pairs) == len({source for source, _ in pairs}) == 5
        assert all(episode.task.apply(source) == target for source, target in pairs)
        assert all(split_of(source) == "train" and 3 <= len(source) <= 5 for source, _ in pairs)
    assert {episode.task.kind for episode in episodes} == set(KINDS)


def test_no_task_and_no_word_of_the_test_is_in_training():
    probes = ["bdfhjlace", "kigeca", "lbc"]
    seen, words = {}, {}
    for split in SPLITS:
        episodes = in_context_episodes(split, 150, seed=3, shots=4)
        seen[split] = {tuple(map(episode.task.apply, probes)) for episode in episodes}
        words[split] = {source for episode in episodes for source, _ in episode.pairs}
    for one, other in (("train", "validation"), ("train", "test"), ("validation", "test")):
        assert not seen[one] & seen[other]
        assert not words[one] & words[other]


def test_kinds_can_be_simple_tasks_by_name():
    tasks = [
        episode.task.name for episode in in_context_episodes("train", 200, kinds=["copy", "copy", "map"], shots=2)
    ]
    # Two of three, within five standard deviations; some maps are in other splits
    assert 100 < tasks.count("copy") < 175
    assert all(task == "copy" or task.startswith("map to ") for task in tasks)


def test_easy_rows_have_few_letters_and_examples_of_one_length():
    options = {"letters": 6, "min_length": 1, "max_length": 3, "same_length": True, "own_letters": True, "shots": 9}
    sizes, lengths = set(), set()
    for episode in in_context_episodes("train", 300, kinds=["map", "shift"], **options):
        words = [source for source, _ in episode.pairs]
        assert len(words) == 9
        (length,) = {len(word) for word in words}
        assert all(split_of(word) == "train" for word in words if length == 3)
        lengths.add(length)
        if length > 1:
            # Of 18 letters or more, all that the row has are seen almost always
            sizes.add(len({*"".join(words)}))
    assert lengths == {1, 2, 3}
    assert sizes == {2, 3, 4, 5, 6}


def test_seeds_and_sizes():
    first = load_text_source("in_context", "test", size=6, shots=3)["text"][:]
    assert load_text_source("in_context", "test", size=9, shots=3)["text"][:6] == first
    assert load_text_source("in_context", "test", size=6, shots=3, seed=1)["text"][:] != first
    assert {*load_text_source("in_context", "train", size=9, shots=2, kinds=["shift"])["task"]} <= {
        f"shift by {step}" for step in range(1, 12)
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "dev"}, "split='dev'"),
        ({"size": 0}, "size=0"),
        ({"shots": 0}, "shots=0"),
        ({"letters": 2}, "letters=2 must lie in 3..26"),
        ({"min_length": 0}, "min_length=0"),
        ({"split": "test", "min_length": 2}, "min_length=2, .*at least 3 in split 'test'"),
        ({"max_length": 2}, "max_length=2"),
        ({"kinds": ["shifts"]}, "kinds=.*simple, shift, composed, map"),
        ({"kinds": []}, "kinds="),
        ({"letters": 3, "max_length": 3, "shots": 30}, "shots=30 is more than there are words"),
        ({"letters": 3, "max_length": 3, "shots": 30, "same_length": True}, "shots=30 is more than there are words"),
        ({"shot": 3}, "no option 'shot'; did you mean 'shots'"),
    ],
)
def test_refuses_clearly(options, message):
    with pytest.raises(ValueError, match=message):
        load_text_source("in_context", **{"split": "train", "size": 2} | options)


def test_other_texts_are_read_as_ever(tmp_path):
    (tmp_path / "a.txt").write_text("some text", encoding="utf-8")
    assert load_text_source(tmp_path / "a.txt")["text"][:] == ["some text"]
    with pytest.raises(FileNotFoundError, match="did you mean the built-in source 'in_context'"):
        load_text_source("in_contxt", "train")
