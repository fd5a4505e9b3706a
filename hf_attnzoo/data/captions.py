"""`load_captions`: images and their captions from a folder, a stored dataset or the Hub."""

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import datasets
from datasets import Dataset, DatasetDict, Features, Image, List, Value
from PIL import Image as PILImage

from .formats import Row, column_names, format_of, read_jsonl, read_parquet, read_table
from .readers import HUB_NAME, SPLIT_ALIASES, from_hub, listing
from .splits import check_split, split_of

logger = logging.getLogger(__name__)

CAPTION_FEATURES = Features({"image": Image(), "caption": Value("string"), "captions": List(Value("string"))})

METADATA = ("metadata.csv", "metadata.jsonl", "metadata.parquet", "metadata.tsv")
"""Names of the file that says what the images of a folder show; those of `datasets`' `imagefolder`, and TSV."""

# Names that a column of captions may have, the likeliest first
_CAPTION_COLUMNS = ("captions", "caption", "text")
_WARNINGS = 5
_THREADS = 4


class _Entry(NamedTuple):
    """An image, where it is named first, and its captions."""

    where: str
    path: str
    captions: list[str]


def load_captions(
    path: str | os.PathLike,
    split: str | None = None,
    *,
    image_column: str | None = None,
    caption_column: str | None = None,
    config_name: str | None = None,
    revision: str | None = None,
    verify: bool = True,
    on_error: str = "raise",
) -> Dataset:
    """Read images and their captions. Images stay files, and are decoded when a row is asked for.

    Args:
        path: one of
            - a folder of images with a metadata file, as for `datasets`' `imagefolder`: `metadata.csv`, `.jsonl`,
              `.parquet` or `.tsv` with a column `file_name` (a path inside the folder) and one of captions; or with a
              folder for each split, `train`, `validation` (or `valid`, `val`, `dev`) and `test`, that has its own,
              or whose images the one metadata file names by `train/...`;
            - such a metadata file itself, under any name;
            - a folder written by `save_to_disk`;
            - the name of a dataset on the Hub.
        split: which split. A folder of images without folders of splits has none: None takes all of it, while `train`,
            `validation`, `test` take the 90, 5 and 5 % of images that a hash of the file's name deals them. What lies
            in the folder of one split is never dealt to another.
        image_column: name of the column of file names, or of images in a dataset. Default: `file_name`, or the only
            column of images.
        caption_column: name of the column of captions. Default: `captions`, `caption` or `text`, or the only other
            column. An image may have several: in a list, or on several lines.
        config_name: configuration of a Hub dataset.
        revision: commit, branch or tag of a Hub dataset.
        verify: decode every image once, now. False only looks whether the files are there.
        on_error: what to do about a bad row (no such file, a path out of the folder, an image that cannot be decoded,
            an empty caption, a broken line): `raise`, or `skip` it with a warning and a count. Images that no row
            names are left out with a warning.

    Returns:
        A dataset with the columns `image`, `caption` (the first) and `captions` (all of them), in the order in which
        images are first named.

    Raises:
        FileNotFoundError: nothing has that name.
        ValueError: a bad argument, or a bad row as `FILE:LINE: what is wrong`.
    """
    if on_error not in ("raise", "skip"):
        raise ValueError(f"on_error={on_error!r} must be 'raise' or 'skip'")
    path = os.fspath(path)
    here = Path(path).expanduser()
    if here.is_dir():
        if (here / "state.json").is_file() or (here / "dataset_dict.json").is_file():
            dataset, where = _stored(here, split)
            return _from_dataset(dataset, where, image_column, caption_column, verify, on_error)
        metadata, within = _metadata(here, split)
        return _from_metadata(metadata, within, split, image_column, caption_column, verify, on_error)
    if here.is_file():
        return _from_metadata(here, None, split, image_column, caption_column, verify, on_error)
    if format_of(here) is not None or not HUB_NAME.fullmatch(path):
        raise FileNotFoundError(f"{path}: no such file or folder")
    if split is None:
        raise ValueError(f"split=None: say which split of the Hub dataset {path!r} is meant")
    with from_hub(path):
        dataset = datasets.load_dataset(path, config_name, split=split, revision=revision)
    return _from_dataset(dataset, path, image_column, caption_column, verify, on_error)


def one_row_per_caption(dataset: Dataset) -> Dataset:
    """The rows that a model learns from: an image with five captions becomes five rows.

    Args:
        dataset: columns `image`, `caption`, and `captions` where images have several.

    Returns:
        A dataset of `image` and `caption`; images are not decoded, nor stored twice.
    """
    if "captions" not in dataset.column_names:
        return dataset.select_columns(["image", "caption"])
    rows = [(i, caption) for i, captions in enumerate(dataset["captions"]) for caption in captions]
    images = dataset.select_columns(["image"]).select([i for i, _ in rows])
    return images.add_column("caption", [caption for _, caption in rows], feature=Value("string"))


def _stored(folder: Path, split: str | None) -> tuple[Dataset, str]:
    stored = datasets.load_from_disk(str(folder))
    if not isinstance(stored, DatasetDict):
        if split is not None:
            raise ValueError(f"split={split!r}: {folder} holds one dataset without splits; leave split out")
        return stored, str(folder)
    found = [name for name in stored if name in SPLIT_ALIASES.get(split, (split,))]
    if len(found) != 1:
        raise ValueError(f"split={split!r}: {folder} has {len(found)} such splits; found: {', '.join(stored)}")
    return stored[found[0]], f"{folder}/{found[0]}"


def _metadata(folder: Path, split: str | None) -> tuple[Path, str | None]:
    """The metadata file of a split, and the folder beside it that holds the split, or None if it is all of it."""
    own = [name for name in SPLIT_ALIASES.get(split, (split,)) if split is not None and (folder / name).is_dir()]
    if len(own) > 1:
        raise ValueError(f"split={split!r}: {folder} has the folders {' and '.join(own)}; remove one")
    others = [name for names in SPLIT_ALIASES.values() for name in names if (folder / name).is_dir()]
    if split is not None and others and not own:
        # To deal out what the metadata file beside them names would be to take from the other splits
        raise ValueError(f"split={split!r}: {folder} has the folders {', '.join(others)}, and none for this split")
    places = [(folder / own[0], None), (folder, own[0])] if own else [(folder, None)]
    for place, within in places:
        found = [place / name for name in METADATA if (place / name).is_file()]
        if len(found) > 1:
            raise ValueError(f"{place} has both {found[0].name} and {found[1].name}: remove one")
        if found:
            return found[0], within
    reason = "" if split is not None else "split=None: say which split is meant, or "
    raise ValueError(
        f"{folder}: {reason}add a metadata file that says what the images show: {', '.join(METADATA)};"
        f" found: {listing(folder)}"
    )


def _from_metadata(
    metadata: Path,
    within: str | None,
    split: str | None,
    image_column: str | None,
    caption_column: str | None,
    verify: bool,
    on_error: str,
) -> Dataset:
    """The images that a metadata file names: those in the folder `within`, or else those dealt to `split`."""
    folder = metadata.parent.resolve()
    # A file that lies in the folder of a split is that split, whole, and nothing of it is in another
    home = next((name for name, aliases in SPLIT_ALIASES.items() if folder.name in aliases), None)
    if within is None and split is not None and home not in (None, split):
        raise ValueError(f"split={split!r}: {metadata} lies in the folder of {home}; name the folder above, or rename")
    dealt = split is not None and within is None and home is None
    if dealt:
        check_split(split)

    faults = _Faults(on_error)
    named: set[Path] = set()
    entries: dict[str, _Entry] = {}
    for row in _rows(metadata, image_column, caption_column):
        where = f"{metadata}:{row.line}"
        file, problem = _file(folder, row)
        captions, problem = _captions(row.target, problem or row.problem)
        if file is not None:
            named.add(file)
        if faults.has(where, problem):
            continue
        name = file.relative_to(folder).as_posix()
        if (within is not None and not name.startswith(f"{within}/")) or (dealt and split_of(name) != split):
            continue
        entries.setdefault(name, _Entry(where, str(file), [])).captions.extend(captions)
    _report_unnamed(folder if within is None else folder / within, named, metadata)

    good = [
        entry
        for entry, problem in zip(entries.values(), _undecodable(entries.values(), verify), strict=True)
        if not faults.has(entry.where, problem)
    ]
    faults.report(str(metadata))
    if not good:
        of_split = "" if split is None else f" for split {split!r}"
        raise ValueError(f"{metadata}: no usable rows{of_split}")
    columns = {
        "image": [entry.path for entry in good],
        "caption": [entry.captions[0] for entry in good],
        "captions": [entry.captions for entry in good],
    }
    return Dataset.from_dict(columns, features=CAPTION_FEATURES)


def _rows(metadata: Path, image_column: str | None, caption_column: str | None) -> Iterator[Row]:
    """Rows whose `source` is a file's name and whose `target` is a caption, or a list of them."""
    kind = format_of(metadata)
    if kind is None:
        raise ValueError(f"{metadata}: the name does not tell the format; a folder or a metadata file is expected")
    columns = column_names(metadata, kind)
    image_column = image_column or "file_name"
    caption_column = _choose_caption_column(columns, image_column, caption_column, str(metadata))
    if kind == "jsonl":
        return read_jsonl(metadata, image_column, caption_column)
    if kind == "parquet":
        return read_parquet(metadata, image_column, caption_column)
    return read_table(metadata, kind, True, image_column, caption_column)


def _choose_caption_column(columns: Sequence[str], image_column: str, caption_column: str | None, where: str) -> str:
    found = f"columns found: {', '.join(map(repr, columns))}"
    if image_column not in columns:
        raise ValueError(f"{where}: there is no column {image_column!r} of images; {found}")
    if caption_column is not None:
        if caption_column not in columns or caption_column == image_column:
            raise ValueError(f"{where}: caption_column={caption_column!r} is no column of captions; {found}")
        return caption_column
    others = [column for column in columns if column != image_column]
    for column in _CAPTION_COLUMNS:
        if column in others:
            return column
    if len(others) != 1:
        raise ValueError(f"{where}: say which column is meant with caption_column=; {found}")
    return others[0]


def _file(folder: Path, row: Row) -> tuple[Path | None, str | None]:
    """The file that a row names, and what is wrong with it."""
    name = row.source
    if row.problem is not None or not isinstance(name, str) or not name.strip() or "\0" in name:
        return None, row.problem or f"{name!r} is no name of a file"
    # Links are followed: one that leads out of the folder is refused like `..`
    file = (folder / name).resolve()
    if not file.is_relative_to(folder):
        return None, f"{name!r} lies outside the folder"
    return file, None if file.is_file() else f"{name!r}: no such file"


def _captions(value: object, problem: str | None = None) -> tuple[list[str], str | None]:
    """The captions in a cell, and what is wrong with it, or was before."""
    captions = list(value) if isinstance(value, (list, tuple)) else [value]
    if problem is None and not captions:
        problem = "there is no caption"
    for caption in captions:
        if problem is not None:
            break
        if not isinstance(caption, str):
            problem = f"the caption is {'missing' if caption is None else f'{type(caption).__name__}, not text'}"
        elif not caption.strip():
            problem = "the caption is empty"
        elif any("\ud800" <= character <= "\udfff" for character in caption):
            problem = "the caption is not valid UTF-8"
    return captions, problem


def _undecodable(entries: Iterable[_Entry], verify: bool) -> list[str | None]:
    """What is wrong with each image, None where nothing is."""
    if not verify:
        return [None for _ in entries]
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(lambda entry: _decoding_fault(lambda: PILImage.open(entry.path)), entries))


def _decoding_fault(open_image: Callable[[], PILImage.Image]) -> str | None:
    try:
        with open_image() as image:
            image.load()
    # Pillow's decoders raise whatever a damaged file makes them stumble over
    except Exception as error:
        return f"the image cannot be decoded ({error})"
    return None


def _report_unnamed(folder: Path, named: set[Path], metadata: Path) -> None:
    suffixes = PILImage.registered_extensions()
    unnamed = [
        file for file in sorted(folder.rglob("*")) if file.suffix.lower() in suffixes and file.resolve() not in named
    ]
    if unnamed:
        logger.warning("%s: names no caption for %d images, such as %s", metadata, len(unnamed), unnamed[0])


def _from_dataset(
    dataset: Dataset, where: str, image_column: str | None, caption_column: str | None, verify: bool, on_error: str
) -> Dataset:
    if image_column is None:
        images = [name for name, feature in dataset.features.items() if isinstance(feature, Image)]
        if len(images) != 1:
            raise ValueError(
                f"{where}: say which column is meant with image_column=; columns of images found:"
                f" {', '.join(map(repr, images)) or 'none'}"
            )
        image_column = images[0]
    caption_column = _choose_caption_column(dataset.column_names, image_column, caption_column, where)
    if not isinstance(dataset.features[image_column], Image):
        raise ValueError(f"{where}: image_column={image_column!r} holds no images")

    faults = _Faults(on_error)
    stored = dataset.with_format(None).cast_column(image_column, Image(decode=False))
    kept, texts = [], []
    for index, (image, value) in enumerate(zip(stored[image_column], stored[caption_column], strict=True)):
        captions, problem = _captions(value)
        if problem is None and image is None:
            problem = "the image is missing"
        if problem is None and verify:
            problem = _decoding_fault(lambda image=image: Image().decode_example(image))
        if not faults.has(f"{where}:{index + 1}", problem):
            kept.append(index)
            texts.append(captions)
    faults.report(where)
    if not kept:
        raise ValueError(f"{where}: no usable rows")
    images = dataset.with_format(None).select_columns([image_column]).select(kept)
    if image_column != "image":
        images = images.rename_column(image_column, "image")
    images = images.cast_column("image", Image())
    images = images.add_column("caption", [captions[0] for captions in texts], feature=Value("string"))
    return images.add_column("captions", texts, feature=List(Value("string")))


class _Faults:
    """Raises for bad rows, or reports and counts them."""

    def __init__(self, on_error: str):
        self.raises = on_error == "raise"
        self.count = 0

    def has(self, where: str, problem: str | None) -> bool:
        if problem is None:
            return False
        if self.raises:
            raise ValueError(f"{where}: {problem}")
        self.count += 1
        if self.count <= _WARNINGS:
            logger.warning("%s: %s (skipped)", where, problem)
        return True

    def report(self, where: str) -> None:
        if self.count:
            logger.warning("%s: skipped %d rows", where, self.count)
