"""The source g2p against a dictionary written by hand, and against CMUdict where it is installed."""

import importlib.metadata
from pathlib import Path

import pytest

from hf_attnzoo.data import load_source, references, split_of
from hf_attnzoo.data.g2p import g2p, pronunciations

DICTIONARY = """\
'em AH M
a AH
a(2) EY
a.m. EY EH M
able EY B AH L
able's EY B AH L Z
able(2) EY B AH L
ad-hoc AE D HH AA K
cent S EH N T
cent(3) S EH N
"""


@pytest.fixture
def dictionary(tmp_path, monkeypatch):
    """Puts a small dictionary where the package would have its own; returns its file."""
    file = tmp_path / "pocketsphinx" / "model" / "en-us" / "cmudict-en-us.dict"
    file.parent.mkdir(parents=True)
    file.write_text(DICTIONARY)

    class Distribution:
        def locate_file(self, path: str) -> Path:
            return tmp_path / path

    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: Distribution())
    pronunciations.cache_clear()
    yield file
    pronunciations.cache_clear()


def test_reads_words_and_their_variants(dictionary):
    assert pronunciations() == {
        "'em": ("AH M",),
        "a": ("AH", "EY"),
        "able": ("EY B AH L",),
        "able's": ("EY B AH L Z",),
        "cent": ("S EH N T", "S EH N"),
    }


def test_training_has_a_row_for_each_pronunciation_and_the_rest_one_for_each_word(dictionary, monkeypatch):
    monkeypatch.setattr("hf_attnzoo.data.g2p.split_of", lambda word: "train" if word == "cent" else "test")
    train, test = g2p("train"), g2p("test")
    both = ["S EH N T", "S EH N"]
    assert train.to_list() == [{"source": "cent", "target": target, "references": both} for target in both]
    assert sorted(test["source"]) == ["'em", "a", "able", "able's"]
    row = next(row for row in test if row["source"] == "a")
    assert row == {"source": "a", "target": "AH", "references": ["AH", "EY"]}


def test_a_possessive_goes_with_its_noun(dictionary, monkeypatch):
    asked = []
    monkeypatch.setattr("hf_attnzoo.data.g2p.split_of", lambda word: asked.append(word) or "train")
    g2p("train")
    assert sorted(asked) == ["a", "able", "able", "cent", "em"]


def test_size_and_seed(dictionary, monkeypatch):
    monkeypatch.setattr("hf_attnzoo.data.g2p.split_of", lambda word: "test")
    orders = {tuple(g2p("test", seed=seed)["source"]) for seed in range(5)}
    assert len(orders) > 1
    assert {frozenset(order) for order in orders} == {frozenset(pronunciations())}
    assert g2p("test", size=2)["source"][:] == g2p("test")["source"][:2]
    for size in (0, 6, True, 1.5):
        with pytest.raises(ValueError, match=r"size=.* from 1 to 5"):
            g2p("test", size=size)
    with pytest.raises(ValueError, match="seed='0' must be an integer"):
        g2p("test", seed="0")
    with pytest.raises(ValueError, match="split='dev' is not one of train, validation, test"):
        g2p("dev")


def test_without_the_dictionary_it_says_how_to_get_it(dictionary, monkeypatch):
    dictionary.unlink()
    with pytest.raises(FileNotFoundError, match=r'pip install "hf-attnzoo\[g2p\]"'):
        g2p("train")

    def absent(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", absent)
    with pytest.raises(FileNotFoundError, match=r'pip install "hf-attnzoo\[g2p\]"'):
        g2p("train")


def test_cmudict():
    pytest.importorskip("pocketsphinx", reason='CMUdict comes with pocketsphinx: pip install "hf-attnzoo[g2p]"')
    assert pronunciations()["tomato"] == ("T AH M EY T OW", "T AH M AA T OW")
    splits = {split: load_source("g2p", split) for split in ("train", "validation", "test")}
    words = {split: set(rows["source"]) for split, rows in splits.items()}
    assert sum(map(len, words.values())) == len(pronunciations()) == len(set.union(*words.values()))
    assert len(words["test"]) == len(splits["test"]) == len(references(splits["test"]))
    assert all(split_of(word) == "test" for word in words["test"] if "'" not in word)
    phonemes = {phoneme for row in splits["train"]["target"] for phoneme in row.split()}
    assert len(phonemes) == 39
    # Stress is a digit behind a vowel.
    assert all(phoneme.isalpha() for phoneme in phonemes)
