"""The command that makes a folder of emoji, on small packages made here, hostile ones among them."""

import base64
import csv
import hashlib
import importlib.util
import io
import json
import sys
import tarfile
from pathlib import Path

import pytest
from PIL import Image

from hf_attnzoo.data import load_captions, split_of

SCRIPT = Path(__file__).parents[2] / "training" / "data" / "emoji.py"


@pytest.fixture(scope="module")
def emoji():
    spec = importlib.util.spec_from_file_location("emoji_script", SCRIPT)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def png(level):
    file = io.BytesIO()
    Image.new("RGBA", (4, 4), (level, level, level, 128)).save(file, "png")
    return file.getvalue()


def archive(path, files, kinds=None):
    """A package of files, each name as it stands in the archive."""
    with tarfile.open(path, "w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.type = (kinds or {}).get(name, tarfile.REGTYPE)
            member.linkname = "/etc/passwd" if member.type == tarfile.SYMTYPE else ""
            member.size = len(content) if member.isfile() else 0
            tar.addfile(member, io.BytesIO(content))
    return path


def entry(text, **variations):
    unified = "-".join(f"{ord(character):04X}" for character in text)
    image = unified.lower() + ".png"
    tones = {key: entry(value) for key, value in variations.items()}
    return {"unified": unified, "image": image, "has_img_google": True} | ({"skin_variations": tones} if tones else {})


CAT, WAVE, DARK_WAVE, NAMELESS, HEART = "🐈", "👋", "👋🏿", "🐙", "❤️"


@pytest.fixture
def packages(tmp_path):
    listed = [entry(CAT), entry(WAVE, **{"1F3FF": DARK_WAVE}), entry(NAMELESS), entry(HEART)]
    pictures = [entry(text)["image"] for text in (CAT, WAVE, DARK_WAVE, NAMELESS, HEART)]

    def build(listed=listed, extra=None, kinds=None):
        files = {"package/emoji.json": json.dumps(listed).encode(), "package/img/google/sheets/64.png": b"x"}
        files |= {f"package/img/google/64/{name}": png(50 * i) for i, name in enumerate(pictures)} | (extra or {})
        # The names are written without the variation selector, as CLDR has them
        annotations = {CAT: {"tts": ["cat"]}, WAVE: {"tts": ["waving hand"]}, "❤": {"tts": ["red heart"]}, "x": {}}
        derived = {DARK_WAVE: {"tts": ["waving hand: dark skin tone"]}}
        names = {"package/annotations/en/annotations.json": {"annotations": {"annotations": annotations}}}
        more = {"package/annotationsDerived/en/annotations.json": {"annotationsDerived": {"annotations": derived}}}
        dump = lambda table: {name: json.dumps(content).encode() for name, content in table.items()}  # noqa: E731
        return {
            "emoji-datasource-google": archive(tmp_path / "images.tgz", files, kinds),
            "cldr-annotations-full": archive(tmp_path / "names.tgz", dump(names)),
            "cldr-annotations-derived-full": archive(tmp_path / "derived.tgz", dump(more)),
        }

    return build


def read(output):
    rows = {}
    for file in output.glob("*/metadata.csv"):
        with file.open(encoding="utf-8", newline="") as table:
            rows |= {row["emoji"]: (file.parent.name, row["caption"], row["base"]) for row in csv.DictReader(table)}
    return rows


def test_a_folder_that_captions_are_read_from(emoji, packages, tmp_path):
    output = tmp_path / "out"
    counts = emoji.write_folder(packages(), output)
    assert read(output) == {
        CAT: (split_of(CAT), "cat", CAT),
        WAVE: (split_of(WAVE), "waving hand", WAVE),
        DARK_WAVE: (split_of(WAVE), "waving hand: dark skin tone", WAVE),
        HEART: (split_of("❤"), "red heart", "❤"),
    }
    assert sum(counts.values()) == 4 + 1
    assert counts["unnamed"] == 1
    for split in ("train", "validation", "test"):
        rows = load_captions(output, split) if counts[split] else []
        assert len(rows) == counts[split]
    train = load_captions(output, "train")
    assert train["caption"] == [caption for split, caption, _ in read(output).values() if split == "train"]
    assert train[0]["image"].mode == "RGBA"


def test_without_skin_tones(emoji, packages, tmp_path):
    emoji.write_folder(packages(), tmp_path / "out", skin_tones=False)
    assert set(read(tmp_path / "out")) == {CAT, WAVE, HEART}


BASES = {
    "🐈": "🐈",
    "🐈‍⬛": "🐈‍⬛",
    "👋🏽": "👋",
    "❤️": "❤",
    "👩🏽‍🚒": "🧑‍🚒",
    "👨‍🚒": "🧑‍🚒",
    "🏃🏿‍♀️‍➡️": "🏃",
    "🏃‍➡️": "🏃",
    "👨": "🧑",
    "👵🏻": "🧓",
    "👨‍👩‍👧‍👦": "🧑‍🧑‍🧒‍🧒",
    "👭": "🧑‍🤝‍🧑",
    "👩🏼‍🤝‍👨🏿": "🧑‍🤝‍🧑",
    "👩‍❤️‍💋‍👨": "🧑‍❤‍💋‍🧑",
    "💏🏽": "🧑‍❤‍💋‍🧑",
    "👸": "🫅",
    "🤶🏿": "🧑‍🎄",
    # What is taken off others stands for itself when it is alone
    "🏿": "🏿",
    "♀️": "♀",
    "➡️": "➡",
    "🇦🇩": "🇦🇩",
}


@pytest.mark.parametrize("text", BASES)
def test_variants_have_one_base(emoji, text):
    assert emoji.base_of(text) == BASES[text]


def test_an_output_that_holds_something_is_left_alone(emoji, packages, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    with pytest.raises(ValueError, match="holds something: name a new folder"):
        emoji.write_folder(packages(), tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("image", ["../../evil.png", "/evil.png", "evil.sh", "1f408.png/../x.png", ""])
def test_images_with_a_path_for_a_name(emoji, packages, tmp_path, image):
    with pytest.raises(ValueError, match=r"emoji\.json names an image"):
        emoji.write_folder(packages([entry(CAT) | {"image": image}]), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_members_that_lead_elsewhere_are_not_read(emoji, packages, tmp_path):
    name = entry(CAT)["image"]
    extra = {
        f"package/../img/google/64/{name}": b"evil",
        f"/package/img/google/64/{name}": b"evil",
        f"package/img/google/64/../64/{name}": b"evil",
        f"package/img/google/64/x/../../../../{name}": b"evil",
        "../../evil.png": b"evil",
    }
    emoji.write_folder(packages(extra=extra), tmp_path / "out")
    images = list((tmp_path / "out").rglob("*.png"))
    assert len(images) == 4
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in images)
    assert not list(tmp_path.parent.rglob("evil*"))


def test_links_in_place_of_images(emoji, packages, tmp_path):
    name = f"package/img/google/64/{entry(CAT)['image']}"
    with pytest.raises(ValueError, match="is no plain file"):
        emoji.write_folder(packages(kinds={name: tarfile.SYMTYPE}), tmp_path / "out")


def test_packages_that_lack_something(emoji, packages, tmp_path):
    # It has a name, and no picture
    archives = packages([entry("😀")])
    names = {"annotations": {"annotations": {"😀": {"tts": ["grinning face"]}}}}
    path = "package/annotations/en/annotations.json"
    archives["cldr-annotations-full"] = archive(tmp_path / "n.tgz", {path: json.dumps(names).encode()})
    with pytest.raises(ValueError, match="1 images are missing, such as 1f600"):
        emoji.write_folder(archives, tmp_path / "a")
    with pytest.raises(ValueError, match="language='xx': CLDR has no names"):
        emoji.write_folder(packages(), tmp_path / "b", language="xx")
    archives = packages()
    with pytest.raises(ValueError, match=r"has no emoji\.json"):
        emoji.write_folder({**archives, "emoji-datasource-google": archives["cldr-annotations-full"]}, tmp_path / "c")
    archives["emoji-datasource-google"].write_bytes(archives["emoji-datasource-google"].read_bytes()[:-200])
    with pytest.raises(ValueError, match="not an archive that can be read"):
        emoji.write_folder(archives, tmp_path / "d")


def test_archives_are_checked(emoji, tmp_path, monkeypatch):
    content = b"some archive"
    digest = base64.b64encode(hashlib.sha512(content).digest()).decode()
    monkeypatch.setattr(emoji, "PACKAGES", {"a-package": emoji.Package("1.2.3", digest)})
    path = tmp_path / "a-package-1.2.3.tgz"
    path.write_bytes(content)
    # What is there is not fetched again
    monkeypatch.setattr(emoji.shutil, "which", lambda _: None)
    assert emoji.fetch(tmp_path) == {"a-package": path}
    path.write_bytes(content + b"!")
    with pytest.raises(ValueError, match=r"its SHA-512 is .*, expected "):
        emoji.fetch(tmp_path)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"npm is not installed; install it, or download a-package 1\.2\.3"):
        emoji.fetch(tmp_path)
