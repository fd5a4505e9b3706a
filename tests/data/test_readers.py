import csv
import gzip
import json
import logging
import os
import re
from pathlib import Path

import datasets
import pyarrow
import pyarrow.parquet
import pytest
from datasets import Dataset, DatasetDict, Features, Translation, Value
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hf_attnzoo.data import load_pairs, split_of

PAIRS = [("a cat", "eine Katze"), ("two\u2028dogs", "zwei\x85Hunde"), ('say "hi', "sag «hi»")]


def pairs_of(dataset):
    return [(row["source"], row["target"]) for row in dataset]


def write(path: Path, data: bytes | str) -> Path:
    data = data.encode() if isinstance(data, str) else data
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def tsv(pairs, header=""):
    return header + "".join(f"{s}\t{t}\n" for s, t in pairs)


def csv_text(pairs, header=""):
    quote = lambda text: '"' + text.replace('"', '""') + '"'  # noqa: E731
    return header + "".join(f"{quote(s)},{quote(t)}\n" for s, t in pairs)


def jsonl(pairs, names=("source", "target")):
    return "".join(json.dumps(dict(zip(names, pair, strict=True))) + "\n" for pair in pairs)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("x.tsv", tsv(PAIRS, "source\ttarget\n")),
        ("x.tab.gz", tsv(PAIRS, "source\ttarget\n")),
        ("x.csv", csv_text(PAIRS, "source,target\n")),
        ("x.CSV.gz", csv_text(PAIRS, "source,target\n")),
        ("x.jsonl", jsonl(PAIRS)),
        ("x.ndjson.gz", jsonl(PAIRS)),
    ],
)
def test_each_format(tmp_path, name, text, streaming):
    dataset = load_pairs(write(tmp_path / name, text), streaming=streaming)
    assert pairs_of(dataset) == PAIRS
    assert dataset.features == {"source": Value("string"), "target": Value("string")}
    assert isinstance(dataset, datasets.IterableDataset if streaming else Dataset)


@pytest.mark.parametrize("names", [("x.en", "x.de"), ("x.en.gz", "x.de"), ("x.en.gz", "x.de.gz")])
def test_parallel_files(tmp_path, names):
    source = write(tmp_path / names[0], "".join(s + "\n" for s, _ in PAIRS))
    # The last line need not end
    target = write(tmp_path / names[1], "\r\n".join(t for _, t in PAIRS))
    assert pairs_of(load_pairs(source, target)) == PAIRS


@pytest.mark.parametrize("streaming", [False, True])
def test_parquet(tmp_path, streaming):
    path = tmp_path / "x.parquet"
    columns = {"id": [1, 2, 3], "en": [s for s, _ in PAIRS], "de": [t for _, t in PAIRS]}
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    assert pairs_of(load_pairs(path, source_column="en", target_column="de", streaming=streaming)) == PAIRS
    with pytest.raises(ValueError, match=r"x\.parquet: say which columns .* columns found: 'id', 'en', 'de'"):
        pairs_of(load_pairs(path))
    with pytest.raises(ValueError, match=r"x\.parquet:1: the source is int, not text"):
        load_pairs(path, source_column="id", target_column="de")


def test_nested_translation_in_files(tmp_path):
    records = [{"id": "7", "translation": {"de": t, "en": s}} for s, t in PAIRS]
    path = write(tmp_path / "x.jsonl", "".join(json.dumps(record) + "\n" for record in records))
    assert pairs_of(load_pairs(path, source_column="en", target_column="de")) == PAIRS
    assert pairs_of(load_pairs(path, source_column="de", target_column="en")) == [(t, s) for s, t in PAIRS]
    parquet = tmp_path / "x.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), parquet)
    assert pairs_of(load_pairs(parquet, source_column="en", target_column="de")) == PAIRS
    # No direction is assumed
    with pytest.raises(ValueError, match=r"columns found: 'id', 'translation.de', 'translation.en'"):
        load_pairs(parquet)


def test_a_lone_quote_swallows_nothing(tmp_path):
    path = write(tmp_path / "x.tsv", 'source\ttarget\n"a\tb\nc\td"\n"e"\tf\n')
    assert pairs_of(load_pairs(path)) == [('"a', "b"), ("c", 'd"'), ('"e"', "f")]


def test_csv_quoting(tmp_path):
    path = write(tmp_path / "x.csv", 'source,target\n"a, ""b""",c\n"two\nlines",d\n')
    assert pairs_of(load_pairs(path)) == [('a, "b"', "c"), ("two\nlines", "d")]


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(
            *2 * [st.text(st.characters(exclude_characters="\t\r\n\0", exclude_categories=["Cs"]), min_size=1)]
        ).filter(lambda pair: pair[0].strip() and pair[1].strip()),
        min_size=1,
    )
)
def test_any_text_comes_back(tmp_path, pairs):
    assert pairs_of(load_pairs(write(tmp_path / "x.tsv", tsv(pairs)), header=False)) == strip_bom(pairs)
    assert pairs_of(load_pairs(write(tmp_path / "x.csv.gz", csv_text(pairs)), header=False)) == pairs
    assert pairs_of(load_pairs(write(tmp_path / "x.jsonl", jsonl(pairs)))) == pairs
    source = write(tmp_path / "x.en", "".join(s + "\r\n" for s, _ in pairs))
    target = write(tmp_path / "x.de", "".join(t + "\n" for _, t in pairs))
    both = zip(strip_bom(pairs), strip_bom([(t, s) for s, t in pairs]), strict=True)
    assert pairs_of(load_pairs(source, target)) == [(s, t) for (s, _), (t, _) in both]


def strip_bom(pairs):
    return [(pairs[0][0].removeprefix("\ufeff"), pairs[0][1]), *pairs[1:]]


def test_byte_order_marks(tmp_path):
    path = write(tmp_path / "x.csv", b"\xef\xbb\xbfsource,target\na,b\n")
    assert pairs_of(load_pairs(path)) == [("a", "b")]
    path = write(tmp_path / "x.tsv", "source\ttarget\na\tb\n".encode("utf-16"))
    with pytest.raises(ValueError, match=r"x\.tsv:1: this is UTF-16; save the file as UTF-8"):
        load_pairs(path)


class TestColumns:
    def test_header(self, tmp_path, caplog):
        path = write(tmp_path / "x.tsv", "here\tthere\na\tb\n")
        assert pairs_of(load_pairs(path, header=True)) == [("a", "b")]
        assert pairs_of(load_pairs(path, source_column="there", target_column="here")) == [("b", "a")]
        assert pairs_of(load_pairs(path, source_column="there")) == [("b", "a")]
        assert pairs_of(load_pairs(path, target_column="there")) == [("a", "b")]
        assert pairs_of(load_pairs(path, header=False)) == [("here", "there"), ("a", "b")]
        assert caplog.text == ""
        for _ in range(3):
            assert pairs_of(load_pairs(path)) == [("here", "there"), ("a", "b")]
        assert [record.getMessage() for record in caplog.records] == [
            f"{path}:1: read as data, not as a header: ['here', 'there']. Say header=False to be sure of it, or "
            "header=True (in a recipe: data.options.header=false, or true)."
        ]

    @pytest.mark.parametrize("first", ["de,en", "pt-BR,ZH_cn"])
    def test_two_languages_are_a_header(self, tmp_path, caplog, first):
        path = write(tmp_path / "x.csv", f"{first}\na,b\n")
        assert pairs_of(load_pairs(path)) == [("a", "b")]
        assert pairs_of(load_pairs(path, header=False)) == [tuple(first.split(",")), ("a", "b")]
        [record] = caplog.records
        assert "x.csv:1: read as a header, since these are two languages" in record.getMessage()
        assert "data.options.header=false" in record.getMessage()

    @pytest.mark.parametrize("first", ["de,de", "de,xx", "war,was", "no,nein"])
    def test_other_words_are_a_pair(self, tmp_path, first):
        assert pairs_of(load_pairs(write(tmp_path / "x.csv", f"{first}\n"))) == [tuple(first.split(","))]

    def test_source_and_target_are_found_in_any_order(self, tmp_path):
        path = write(tmp_path / "x.csv", "target,note,source\nb,n,a\n")
        assert pairs_of(load_pairs(path)) == [("a", "b")]

    def test_numbers(self, tmp_path):
        path = write(tmp_path / "x.tsv", "1\tb\ta\n")
        assert pairs_of(load_pairs(path, source_column=2, target_column=1)) == [("a", "b")]

    @pytest.mark.parametrize(
        ("text", "options", "message"),
        [
            ("a\tb\tc\n", {}, r"x\.tsv:1 \(no header.*\): say which columns .* columns found: '0', '1', '2'"),
            ("en\tde\tfr\n", {"header": True}, "columns found: 'en', 'de', 'fr'"),
            ("en\tde\n", {"source_column": "it"}, "source_column='it': no column has that name; columns found: 'en'"),
            ("en\ten\n", {"source_column": "en"}, "more than one column has that name"),
            ("en\tde\n", {"source_column": "en", "target_column": "en"}, "are one column"),
            ("a\tb\n", {"source_column": 2, "target_column": 0}, r"source_column=2 is outside 0\.\.1"),
            ("a\tb\n", {"source_column": "a", "header": False}, "need a header line, but header=False"),
            ("alone\n", {}, "columns found: '0'"),
            ("", {}, "the file has no rows"),
            ("source\ttarget\n", {}, "no usable rows"),
            ("a,b\n", {}, "one column, 'a,b'; if ',' stands between the columns, say format='csv'"),
            ("a;b\n", {}, "if ';' stands between the columns, say format='csv' and delimiter=';'"),
            ("a\tb\n", {"delimiter": "\t"}, r"delimiter='\\t' is for CSV, and .*x\.tsv is read as tsv: leave it out"),
            ("a\tb\n", {"delimiter": "ab"}, "delimiter='ab' must be one character"),
        ],
    )
    def test_refuses_clearly(self, tmp_path, text, options, message):
        with pytest.raises(ValueError, match=message):
            load_pairs(write(tmp_path / "x.tsv", text), **options)

    def test_what_stands_between_columns_is_told(self, tmp_path):
        path = write(tmp_path / "x.csv", 'de;en\n"a; c";b,\n')
        with pytest.raises(ValueError, match=r"x\.csv:1: there is one column, 'de;en'; .* say delimiter=';'"):
            load_pairs(path)
        assert pairs_of(load_pairs(path, delimiter=";")) == [("a; c", "b,")]
        quoted = write(tmp_path / "quoted.csv", '"de";"en"\n"a";"b"\n')
        with pytest.raises(ValueError, match=r"quoted\.csv:1: broken CSV: .*; if ';' stands .* say delimiter=';'"):
            load_pairs(quoted)
        assert pairs_of(load_pairs(quoted, delimiter=";")) == [("a", "b")]
        with pytest.raises(ValueError, match="say format='tsv'"):
            load_pairs(write(tmp_path / "tabs.csv", "a\tb\n"))
        with pytest.raises(ValueError, match="say delimiter=','"):
            load_pairs(write(tmp_path / "commas.csv", "a,b\n"), delimiter=";")

    def test_a_long_field_of_csv(self, tmp_path):
        before = csv.field_size_limit()
        path = write(tmp_path / "x.csv", f'"{"a " * 100_000}",b\n')
        assert pairs_of(load_pairs(path, header=False)) == [("a " * 100_000, "b")]
        assert csv.field_size_limit() == before
        open_quote = write(tmp_path / "y.csv", 'a,b\n"' + f"{'c ' * 500_000}\n" * 17)
        with pytest.raises(ValueError, match=r"y\.csv:2: a field has more than 16,777,216 characters: is a quote not"):
            load_pairs(open_quote, header=False)


# Each file's second row is bad, its first and third are good
BAD = [
    ("x.tsv", b"a\tb\na\tb\tc\nd\te\n", "x.tsv:2: 3 columns, expected 2"),
    ("x.tsv", b"a\tb\n \t\nd\te\n", "x.tsv:2: the source is empty"),
    ("x.tsv", b"a\tb\nc\t\xff\nd\te\n", "x.tsv:2: the target is not valid UTF-8: byte 0xff at character 1"),
    ("x.tsv.gz", b"a\tb\nc\0\tb\nd\te\n", "x.tsv.gz:2: the source holds a NUL character"),
    ("x.csv", b"a,b\nc\nd,e\n", "x.csv:2: 1 columns, expected 2"),
    ("x.csv", b'a,b\n"c"x,d\nd,e\n', "x.csv:2: broken CSV: "),
    ("x.csv", b'a,b\nc,"caf\xe9"\nd,e\n', "x.csv:2: the target is not valid UTF-8: byte 0xe9 at character 4"),
    ("x.jsonl", b'{"s": "a", "t": "b"}\n{"s": "a"\n{"s": "d", "t": "e"}\n', "x.jsonl:2: broken JSON: "),
    (
        "x.jsonl",
        b'{"s": "a", "t": "b"}\n["a", "b"]\n{"s": "d", "t": "e"}\n',
        "x.jsonl:2: a JSON object is expected, not list",
    ),
    (
        "x.jsonl",
        b'{"s": "a", "t": "b"}\n{"s": "a"}\n{"s": "d", "t": "e"}\n',
        "x.jsonl:2: no 't' here; columns found: 's'",
    ),
    (
        "x.jsonl",
        b'{"s": "a", "t": "b"}\n{"s": "a", "t": null}\n{"s": "d", "t": "e"}\n',
        "x.jsonl:2: the target is missing",
    ),
    (
        "x.jsonl",
        b'{"s": "a", "t": "b"}\n{"s": "a", "t": 3}\n{"s": "d", "t": "e"}\n',
        "x.jsonl:2: the target is int, not text",
    ),
    (
        "x.jsonl",
        b'{"s": "a", "t": "b"}\n{"s": "a", "t": "\\ud83d"}\n{"s": "d", "t": "e"}\n',
        "x.jsonl:2: the target holds half of a surrogate pair at character 1",
    ),
]


@pytest.mark.parametrize(("name", "data", "message"), BAD)
def test_bad_rows(tmp_path, caplog, name, data, message):
    path = write(tmp_path / name, data)
    options = {} if name.endswith("jsonl") else {"header": False}
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        load_pairs(path, **options)
    assert str(error.value).startswith(str(tmp_path / message))
    assert pairs_of(load_pairs(path, on_error="skip", **options)) == [("a", "b"), ("d", "e")]
    assert str(tmp_path / message) in caplog.text
    assert "skipped 1 of 3 rows" in caplog.text


def test_an_open_quote_is_reported_where_it_opens(tmp_path, caplog):
    path = write(tmp_path / "x.csv", 'a,b\nc,d\n"e,f\ng,h\n')
    with pytest.raises(ValueError, match=r"x\.csv:3: broken CSV: "):
        load_pairs(path, header=False)
    assert pairs_of(load_pairs(path, header=False, on_error="skip")) == [("a", "b"), ("c", "d")]


def test_unequal_parallel_files(tmp_path, caplog):
    short = write(tmp_path / "x.en", "a\nb\n")
    long = write(tmp_path / "x.de", "A\nB\nC\nD\n")
    with pytest.raises(ValueError, match=r"x\.en:3: no line here, but .*x\.de goes on"):
        load_pairs(short, long)
    with pytest.raises(ValueError, match=r"x\.en:3: no line here, but .*x\.de goes on"):
        load_pairs(long, short)
    assert pairs_of(load_pairs(short, long, on_error="skip")) == [("a", "A"), ("b", "B")]
    assert "skipped 2 of 4 rows" in caplog.text


def test_an_empty_target_is_reported_in_its_file(tmp_path):
    source = write(tmp_path / "x.en", "a\nb\n")
    with pytest.raises(ValueError, match=r"x\.de:2: the target is empty"):
        load_pairs(source, write(tmp_path / "x.de", "A\n\n"))


def test_only_the_first_few_are_named(tmp_path, caplog):
    path = write(tmp_path / "x.tsv", "a\tb\n" + "c\n" * 50)
    load_pairs(path, header=False, on_error="skip")
    assert len(caplog.records) == 6
    assert caplog.messages[-1] == f"{path}: skipped 50 of 51 rows"


def test_blank_lines_of_tables_are_no_rows(tmp_path):
    assert pairs_of(load_pairs(write(tmp_path / "x.tsv", "\na\tb\n\n"), header=False)) == [("a", "b")]
    assert pairs_of(load_pairs(write(tmp_path / "x.csv", "a,b\n\n"), header=False)) == [("a", "b")]
    assert pairs_of(load_pairs(write(tmp_path / "x.jsonl", '\n{"s":"a","t":"b"}\n\n'))) == [("a", "b")]


def test_gzip_is_told_by_content_and_damage_is_found(tmp_path):
    data = gzip.compress(tsv([(f"source {i * i}", f"target {i**3}") for i in range(3000)]).encode())
    (tmp_path / "x.tsv").write_bytes(data)
    assert len(load_pairs(tmp_path / "x.tsv", header=False)) == 3000
    (tmp_path / "y.tsv.gz").write_bytes(data[: len(data) // 2])
    for on_error in ("raise", "skip"):
        with pytest.raises(ValueError, match=r"y\.tsv\.gz:\d+: the gzip data is damaged or cut short"):
            load_pairs(tmp_path / "y.tsv.gz", header=False, on_error=on_error)


def test_broken_parquet(tmp_path):
    with pytest.raises(ValueError, match=r"x\.parquet: not a Parquet file that can be read"):
        load_pairs(write(tmp_path / "x.parquet", "no parquet"))


def test_a_file_that_changes_is_read_again(tmp_path):
    for text in ("a", "b"):
        path = write(tmp_path / "x.tsv", f"{text}\t{text}\n")
        assert pairs_of(load_pairs(path, header=False)) == [(text, text)]


def test_one_file_is_dealt_to_the_splits(tmp_path):
    # Each source twice: both of its rows must go the same way
    pairs = [(f"sentence {i}", f"{i} {k}") for i in range(300) for k in "xy"]
    path = write(tmp_path / "x.tsv", tsv(pairs))
    dealt = {split: pairs_of(load_pairs(path, split=split, header=False)) for split in ("train", "validation", "test")}
    assert sorted(pair for rows in dealt.values() for pair in rows) == sorted(pairs)
    for split, rows in dealt.items():
        assert rows
        assert {split_of(source) for source, _ in rows} == {split}
    assert len({s for s, _ in dealt["train"]}) > 250
    tiny = write(tmp_path / "y.tsv", "2003-06-22\tb\n")
    with pytest.raises(ValueError, match=r"y\.tsv: no usable rows in split 'test'"):
        load_pairs(tiny, split="test", header=False)


class TestFolders:
    def test_parallel(self, tmp_path):
        for name, text in {"train.en": "a\n", "train.de.gz": "A\n", "val.en": "b\n", "val.de": "B\n"}.items():
            write(tmp_path / name, text)
        write(tmp_path / "README.md", "about it")
        options = {"source_column": "en", "target_column": "de"}
        assert pairs_of(load_pairs(tmp_path, split="train", **options)) == [("a", "A")]
        assert pairs_of(load_pairs(tmp_path, split="validation", **options)) == [("b", "B")]
        assert pairs_of(load_pairs(tmp_path, split="val", source_column="de", target_column="en")) == [("B", "b")]
        with pytest.raises(
            ValueError, match=r"which of train\.de\.gz, train\.en in .* source_column= and target_column= name"
        ):
            load_pairs(tmp_path, split="train")
        with pytest.raises(ValueError, match=r"split=None: say which split .* README\.md, train\.de\.gz"):
            load_pairs(tmp_path, **options)

    def test_tables(self, tmp_path):
        write(tmp_path / "train.tsv.gz", "en\tde\na\tA\n")
        write(tmp_path / "dev.jsonl", jsonl([("b", "B")], ("en", "de")))
        options = {"source_column": "en", "target_column": "de"}
        assert pairs_of(load_pairs(tmp_path, split="train", **options)) == [("a", "A")]
        assert pairs_of(load_pairs(tmp_path, split="validation", **options)) == [("b", "B")]
        write(tmp_path / "valid.csv", "en,de\nc,C\n")
        with pytest.raises(ValueError, match=r"which of dev\.jsonl, valid\.csv in"):
            load_pairs(tmp_path, split="validation", **options)
        write(tmp_path / "train.tsv", "en\tde\na\tA\n")
        with pytest.raises(ValueError, match=r"both train\.tsv and train\.tsv\.gz"):
            load_pairs(tmp_path, split="train", **options)

    def test_nothing_there(self, tmp_path, cache):
        write(tmp_path / "notes.md", "hello")
        with pytest.raises(FileNotFoundError, match=r"nothing here for split 'test'; found: .*notes\.md"):
            load_pairs(tmp_path, split="test")

    @pytest.mark.parametrize("streaming", [False, True])
    def test_save_to_disk(self, tmp_path, streaming):
        columns = {"fr": ["a", "b", "c"], "note": [1, 2, 3], "en": ["A", "B", "C"]}
        DatasetDict(train=Dataset.from_dict(columns), val=Dataset.from_dict(columns).select([1])).save_to_disk(
            tmp_path
        )
        options = {"source_column": "fr", "target_column": "en", "streaming": streaming}
        assert pairs_of(load_pairs(tmp_path, split="train", **options)) == [("a", "A"), ("b", "B"), ("c", "C")]
        assert pairs_of(load_pairs(tmp_path, split="validation", **options)) == [("b", "B")]
        with pytest.raises(ValueError, match=r"split='test': .* found: train, val"):
            load_pairs(tmp_path, split="test", **options)

    def test_save_to_disk_of_one_dataset(self, tmp_path):
        pairs = [(f"s{i}", f"t{i}") for i in range(200)]
        Dataset.from_dict({"source": [s for s, _ in pairs], "target": [t for _, t in pairs]}).save_to_disk(tmp_path)
        assert pairs_of(load_pairs(tmp_path)) == pairs
        held_out = [pair for pair in pairs if split_of(pair[0]) == "test"]
        assert held_out
        assert pairs_of(load_pairs(tmp_path, split="test")) == held_out

    def test_swapped_and_malformed(self, tmp_path, caplog):
        rows = {"source": ["a", None, "c"], "target": ["A", "B", "C"]}
        Dataset.from_dict(rows).save_to_disk(tmp_path)
        with pytest.raises(ValueError, match=r":2: the source is missing"):
            load_pairs(tmp_path)
        assert pairs_of(load_pairs(tmp_path, on_error="skip")) == [("a", "A"), ("c", "C")]
        swapped = load_pairs(tmp_path, source_column="target", target_column="source", on_error="skip")
        assert pairs_of(swapped) == [("A", "a"), ("C", "c")]


def write_hub_dataset(folder: Path) -> None:
    """A dataset repository as on the Hub, with a `translation` column."""
    features = Features({"translation": Translation(["de", "en"])})
    (folder / "data").mkdir(parents=True)
    for split, pairs in {"train": PAIRS, "test": PAIRS[:1]}.items():
        rows = Dataset.from_list([{"translation": {"de": t, "en": s}} for s, t in pairs], features=features)
        rows.to_parquet(folder / "data" / f"{split}-00000-of-00001.parquet")


class TestHub:
    @pytest.mark.parametrize("streaming", [False, True])
    def test_repository_folder(self, tmp_path, cache, streaming):
        write_hub_dataset(tmp_path / "opus")
        options = {"source_column": "en", "target_column": "de", "streaming": streaming}
        dataset = load_pairs(tmp_path / "opus", split="train", **options)
        assert pairs_of(dataset) == PAIRS
        assert dataset.features == {"source": Value("string"), "target": Value("string")}
        assert pairs_of(load_pairs(tmp_path / "opus", split="test", **options)) == PAIRS[:1]
        with pytest.raises(ValueError, match=r"columns found: 'translation\.de', 'translation\.en'"):
            load_pairs(tmp_path / "opus", split="train")

    def test_name(self, tmp_path, cache, monkeypatch):
        # The Hub stands in a local folder; everything after the name is looked up is the real thing
        write_hub_dataset(tmp_path / "opus")
        real, calls = datasets.load_dataset, []

        def load_dataset(name, config=None, **options):
            calls.append((name, config, options.pop("revision")))
            return real(str(tmp_path / "opus"), **options)

        monkeypatch.setattr(datasets, "load_dataset", load_dataset)
        options = {"source_column": "en", "target_column": "de", "config_name": "de-en", "revision": "main"}
        assert pairs_of(load_pairs("Helsinki-NLP/opus", split="train", **options)) == PAIRS
        assert calls == [("Helsinki-NLP/opus", "de-en", "main")]
        with pytest.raises(ValueError, match="split=None: say which split of the Hub dataset 'Helsinki-NLP/opus'"):
            load_pairs("Helsinki-NLP/opus")

    def test_unknown_name(self, monkeypatch):
        def load_dataset(*args, **options):
            raise ConnectionError("Couldn't reach the Hub")

        monkeypatch.setattr(datasets, "load_dataset", load_dataset)
        with pytest.raises(FileNotFoundError, match=r"no/such: no such file or folder here, .*Couldn't reach the Hub"):
            load_pairs("no/such", split="train")


@pytest.mark.parametrize("name", ["absent.tsv", "./absent", "/absent", "some/deep/path", "absent.jsonl.gz"])
def test_missing_files(name):
    with pytest.raises(FileNotFoundError, match=r"no such file or folder$"):
        load_pairs(name, split="train")


def test_missing_target(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"absent\.de: no such file$"):
        load_pairs(write(tmp_path / "x.en", "a\n"), tmp_path / "absent.de")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_error": "ignore"}, "on_error='ignore' must be 'raise' or 'skip'"),
        ({"format": "xml"}, "format='xml' is not one of tsv, csv, jsonl, parquet"),
        ({}, r"x\.txt: the name does not tell the format; give format="),
        ({"format": "tsv", "split": "dev"}, "split='dev'"),
    ],
)
def test_refuses_clearly(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        load_pairs(write(tmp_path / "x.txt", "a\tb\n"), **options)


def test_format_by_argument(tmp_path):
    assert pairs_of(load_pairs(write(tmp_path / "x.txt", "a\tb\n"), format="tsv", header=False)) == [("a", "b")]


def test_real_corpora(caplog):
    folder = Path(os.environ.get("ATTNZOO_DATA", Path(__file__).parents[3] / "shared" / "data"))
    if not (folder / "multi30k").is_dir():
        pytest.skip(f"no corpora in {folder}; ATTNZOO_DATA names another folder")
    multi30k = load_pairs(folder / "multi30k", split="validation", source_column="de", target_column="en")
    assert len(multi30k) == 1014
    tatoeba = load_pairs(folder / "tatoeba_en_fr", split="test", source_column="en", target_column="fr")
    assert len(tatoeba) == 2000
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
