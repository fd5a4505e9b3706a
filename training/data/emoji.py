"""Emoji and their names, made into a folder of images that captioning recipes read.

    python training/data/emoji.py data/emoji

fetches three packages with `npm pack` (80 MB): Google's Noto emoji at 64 pixels from `emoji-datasource-google`, and
their names from the Unicode CLDR, in `cldr-annotations-full` and, for skin tones, families and flags,
`cldr-annotations-derived-full`. Nothing of them is installed or run. It writes the folders `train`, `validation` and
`test`, each with its images and a `metadata.csv` of `file_name`, `caption` (CLDR's short name), `emoji` and `base`:

    from hf_attnzoo.data import load_captions
    load_captions("data/emoji", "train")

A hash deals *base* emoji to the splits: an emoji in another skin tone or gender, or facing the other way, is in the
same split. The images are under the Apache licence 2.0, the names under the Unicode licence v3.
"""

import base64
import csv
import hashlib
import json
import re
import shutil
import subprocess
import tarfile
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from rich.console import Console

from hf_attnzoo.cli.base import plain_errors
from hf_attnzoo.data import SPLITS, split_of
from hf_attnzoo.folders import check_new_folder


class Package(NamedTuple):
    """A version of an npm package, and the SHA-512 of its archive in base64."""

    version: str
    sha512: str


PACKAGES = {
    "emoji-datasource-google": Package(
        "16.0.0", "ZRexfzs7MVoLnmzZmNsO4TKhnAJp5D++Vm6PpUpH/jEQQlemp3l88CjZ+DoZ2faM9R4QxZkOPJCoT8DlPhfQ3A=="
    ),
    "cldr-annotations-full": Package(
        "48.2.0", "DV7A+rEcgUSNTRsVGNGqBZRmAkGfwhGHO5Q1dRwzBoBnVrHWp804JP7/QJdEc66iHmx3+zLWVIMCFLm0lW7PUQ=="
    ),
    "cldr-annotations-derived-full": Package(
        "48.2.0", "log62km+AOzI7n/NEuNNFV0mg9DWnt67EYCh1RwxZq9dyRuyteB586LT83Ke8TchEfnwI9cIk2P31zO4nTvZmw=="
    ),
}

_JOINER, _VARIATION, _RIGHTWARDS = "\u200d", "\ufe0f", "\u27a1"
_SKIN_TONES = "\U0001f3fb\U0001f3fc\U0001f3fd\U0001f3fe\U0001f3ff"
_GENDERS = "\u2640\u2642"
_PERSON, _CHILD, _OLDER = "\U0001f9d1", "\U0001f9d2", "\U0001f9d3"

# What is drawn as the same thing but for whom: man and woman, boy and girl, ...
_NEUTRAL = {
    **dict.fromkeys("\U0001f468\U0001f469", _PERSON),
    **dict.fromkeys("\U0001f466\U0001f467", _CHILD),
    **dict.fromkeys("\U0001f474\U0001f475", _OLDER),
    # Woman and man, men, and women holding hands
    **dict.fromkeys("\U0001f46b\U0001f46c\U0001f46d", f"{_PERSON}{_JOINER}\U0001f91d{_JOINER}{_PERSON}"),
    "\U0001f491": f"{_PERSON}{_JOINER}\u2764{_JOINER}{_PERSON}",
    "\U0001f48f": f"{_PERSON}{_JOINER}\u2764{_JOINER}\U0001f48b{_JOINER}{_PERSON}",
    # Prince and princess, Santa Claus and Mrs. Claus
    **dict.fromkeys("\U0001f934\U0001f478", "\U0001fac5"),
    **dict.fromkeys("\U0001f385\U0001f936", f"{_PERSON}{_JOINER}\U0001f384"),
}

# No file of the packages comes near this
_MOST_BYTES = 50_000_000
_IMAGE_NAME = re.compile(r"[0-9a-f]+(-[0-9a-f]+)*\.png")


def fetch(folder: Path) -> dict[str, Path]:
    """Download the packages with `npm pack`, which installs and runs nothing, and check what came.

    Args:
        folder: where to put the archives; those that are there already are taken.

    Returns:
        Name of each package -> its archive.

    Raises:
        FileNotFoundError: npm is not installed.
        ValueError: npm fails, or an archive is not the one that was asked for.
    """
    folder.mkdir(parents=True, exist_ok=True)
    archives = {}
    for name, package in PACKAGES.items():
        archives[name] = folder / f"{name}-{package.version}.tgz"
        if not archives[name].is_file():
            npm = shutil.which("npm")
            if npm is None:
                raise FileNotFoundError(
                    f"npm is not installed; install it, or download {name} {package.version} from the npm registry"
                    f" as {archives[name]}"
                )
            command = [npm, "pack", f"{name}@{package.version}", "--pack-destination", str(folder), "--ignore-scripts"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - no input in it
            if done.returncode != 0 or not archives[name].is_file():
                raise ValueError(f"npm pack {name}@{package.version} failed: {done.stderr.strip()}")
        check_archive(archives[name], package.sha512)
    return archives


def check_archive(path: Path, sha512: str) -> None:
    """Refuse an archive whose SHA-512, in base64, is another."""
    found = base64.b64encode(hashlib.sha512(path.read_bytes()).digest()).decode()
    if found != sha512:
        raise ValueError(f"{path}: its SHA-512 is {found}, expected {sha512}; delete the file and try again")


def read_members(archive: Path, pattern: str) -> Iterator[tuple[str, bytes]]:
    """Files in an npm package whose path in it matches a pattern, read without writing anything to disk.

    Args:
        archive: `.tgz` file.
        pattern: regular expression for the whole path below `package/`.

    Yields:
        Path below `package/`, and content.

    Raises:
        ValueError: a damaged archive, or a matching member that is no plain file or suspiciously large.
    """
    wanted = re.compile(pattern)
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                name = member.name.removeprefix("package/")
                if name == member.name or not wanted.fullmatch(name):
                    continue
                if not member.isfile() or member.size > _MOST_BYTES:
                    raise ValueError(f"{archive}: {member.name!r} is no plain file of at most {_MOST_BYTES} bytes")
                yield name, tar.extractfile(member).read()
    except (tarfile.TarError, zlib.error, EOFError, OSError) as error:
        raise ValueError(f"{archive}: not an archive that can be read ({error})") from error


def read_names(archives: Mapping[str, Path], language: str = "en") -> dict[str, str]:
    """Short names of emoji, by the emoji without variation selectors.

    Args:
        archives: as of `fetch`.
        language: a locale of CLDR.

    Raises:
        ValueError: CLDR has no names in that language.
    """
    names = {}
    for package, key in (
        ("cldr-annotations-full", "annotations"),
        ("cldr-annotations-derived-full", "annotationsDerived"),
    ):
        for _, content in read_members(archives[package], rf"{key}/{re.escape(language)}/annotations\.json"):
            for emoji, entry in json.loads(content)[key]["annotations"].items():
                if entry.get("tts"):
                    names[emoji.replace(_VARIATION, "")] = entry["tts"][0]
    if not names:
        raise ValueError(f"language={language!r}: CLDR has no names of emoji for it")
    return names


def base_of(emoji: str) -> str:
    """The emoji that is left without skin tone, gender, direction and variation selectors.

    A man and a woman are persons, a boy and a girl children, and their couples and families couples and families.
    """
    ignored = _SKIN_TONES + _GENDERS + _VARIATION + _RIGHTWARDS
    whole = emoji.replace(_VARIATION, "")
    # A skin tone, a sign of gender and an arrow are emoji too
    if len(whole) == 1 and whole in ignored:
        return whole
    neutral = "".join(_NEUTRAL.get(character, character) for character in whole if character not in ignored)
    return _JOINER.join(part for part in neutral.split(_JOINER) if part)


def write_folder(
    archives: Mapping[str, Path], output: Path, language: str = "en", skin_tones: bool = True
) -> dict[str, int]:
    """Write the folder of images.

    Args:
        archives: as of `fetch`.
        output: folder to make; there must be nothing in it.
        language: of the names, a locale of CLDR.
        skin_tones: whether to write the variants of skin tone too, more than half of all.

    Returns:
        Number of images in each split, and under `unnamed` of those that were left out for want of a name.

    Raises:
        ValueError: `output` is not empty, or a package does not hold what it should.
    """
    check_new_folder(output, "output")
    images = archives["emoji-datasource-google"]
    listed = [content for _, content in read_members(images, r"emoji\.json")]
    if len(listed) != 1:
        raise ValueError(f"{images}: it has no emoji.json")
    names = read_names(archives, language)

    rows: dict[str, dict[str, str]] = {}
    unnamed = 0
    for entry in _entries(json.loads(listed[0]), skin_tones):
        emoji = "".join(chr(int(code, 16)) for code in entry["unified"].split("-"))
        name = names.get(emoji.replace(_VARIATION, ""))
        if name is None:
            unnamed += 1
            continue
        if not _IMAGE_NAME.fullmatch(entry["image"]):
            raise ValueError(f"{images}: emoji.json names an image {entry['image']!r}")
        rows[entry["image"]] = {"file_name": entry["image"], "caption": name, "emoji": emoji, "base": base_of(emoji)}

    written = set()
    for path, content in read_members(images, r"img/google/64/[^/]+"):
        row = rows.get(path.rpartition("/")[2])
        if row is not None:
            # The name is one of those checked above, and so holds no path
            folder = output / split_of(row["base"])
            folder.mkdir(parents=True, exist_ok=True)
            (folder / row["file_name"]).write_bytes(content)
            written.add(row["file_name"])
    missing = rows.keys() - written
    if missing:
        raise ValueError(f"{images}: {len(missing)} images are missing, such as {min(missing)}")

    counts = Counter()
    for split in SPLITS:
        of_split = [row for row in rows.values() if split_of(row["base"]) == split]
        if of_split:
            with open(output / split / "metadata.csv", "w", encoding="utf-8", newline="") as file:
                table = csv.DictWriter(file, ("file_name", "caption", "emoji", "base"))
                table.writeheader()
                table.writerows(of_split)
        counts[split] = len(of_split)
    return {**counts, "unnamed": unnamed}


def _entries(emoji: list[dict], skin_tones: bool) -> Iterator[dict]:
    for entry in emoji:
        for each in (entry, *(entry.get("skin_variations", {}).values() if skin_tones else ())):
            if each["has_img_google"]:
                yield each


def main(
    output: Annotated[Path, typer.Argument(help="Folder to make.")],
    archives: Annotated[
        Path | None, typer.Option(help="Folder of the archives, kept there; else they are fetched and thrown away.")
    ] = None,
    language: Annotated[str, typer.Option(help="Language of the names, a locale of CLDR.")] = "en",
    skin_tones: Annotated[bool, typer.Option(help="Write the variants of skin tone too.")] = True,
) -> None:
    """Fetch emoji and their names, and write them as a folder of images."""
    console = Console()
    with plain_errors("emoji.py"), tempfile.TemporaryDirectory() as passing:
        # Before 80 MB are fetched
        check_new_folder(output, "output")
        console.print("Fetching", ", ".join(f"{name} {package.version}" for name, package in PACKAGES.items()))
        counts = write_folder(fetch(archives or Path(passing)), output, language, skin_tones)
    console.print(f"{output}: " + ", ".join(f"{count:,} {what}" for what, count in counts.items()))


if __name__ == "__main__":
    typer.run(main)
