"""Split files: what is written is read, and what would train or score wrongly is refused."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from drawn_folder import draw
from PIL import Image

from rebapl.data.batches import LabelledImages
from rebapl.data.dataset import Dataset, Item, Splits, check_key, read_split, refuse_repeats, write_split
from rebapl.errors import UserError

GOOD = {
    "train": [["cats/a b.jpg", 0, "cat"], ["dogs/ü.jpg", 1, "dog"]],
    "val": [],
    "test": [["cats/2.jpg", 0, "cat"], ["dogs/2.jpg", 1, "dog"]],
}


def write(folder: Path, content: object) -> Path:
    path = folder / "split.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def test_written_and_read_in_the_published_format(tmp_path: Path) -> None:
    splits = Splits(*([Item(*entry) for entry in GOOD[part]] for part in ("train", "val", "test")))
    write_split(tmp_path / "split.json", splits)
    assert json.loads((tmp_path / "split.json").read_text(encoding="utf-8")) == GOOD
    assert read_split(tmp_path / "split.json") == splits
    assert [path.name for path in tmp_path.iterdir()] == ["split.json"]


def test_a_checksum_is_that_of_the_file_or_of_the_pixels(tmp_path: Path) -> None:
    draw(tmp_path / "a.png", tmp_path / "b.jpg")
    items = [Item("a.png", 0, "cat"), Item("b.jpg", 1, "dog")]

    def load(key: str) -> Image.Image:
        return Image.open(tmp_path / key).convert("RGB")

    def unused(key: str) -> Image.Image:
        raise AssertionError(f"{key} was decoded")

    files = Dataset("pets", "a {}.", items, [], [], unused, folder=tmp_path)
    assert files.checksum("a.png") == hashlib.sha256((tmp_path / "a.png").read_bytes()).hexdigest()
    with pytest.raises(UserError, match=r"c\.png: no such image"):
        files.checksum("c.png")
    drawn = Dataset("pets", "a {}.", items, [], [], load)
    pixels = hashlib.sha256(load("b.jpg").tobytes()).hexdigest()
    assert drawn.checksum("b.jpg") == replace(drawn, load=unused).checksum("b.jpg", load("b.jpg")) == pixels
    again, moved = (LabelledImages(files, chosen).fingerprint() for chosen in (items, items[::-1]))
    assert again == LabelledImages(files, items).fingerprint() != moved


def test_class_names_are_made_once() -> None:
    items = [Item("a.png", 1, "dog"), Item("b.png", 0, "cat")]
    data = Dataset("pets", "a {}.", items, [], [], lambda _: Image.new("RGB", (4, 4)))
    assert data.class_names == ["cat", "dog"]
    assert data.class_names is data.class_names


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "damaged"),
        ([], "no JSON object"),
        ({"train": [], "test": []}, "found: train, test"),
        ({**GOOD, "val": {}}, "'val' must be a list"),
        ({**GOOD, "val": [["a.jpg", "0", "cat"]]}, r"val\[0\] is \['a.jpg', '0', 'cat'\], not"),
        ({**GOOD, "val": [["a.jpg", True, "cat"]]}, r"val\[0\]"),
        ({**GOOD, "val": [["a.jpg", 0]]}, r"val\[0\]"),
        ({**GOOD, "val": [["/etc/passwd", 0, "cat"]]}, "'/etc/passwd' leads outside"),
        ({**GOOD, "val": [["../a.jpg", 0, "cat"]]}, "'../a.jpg' leads outside"),
        ({**GOOD, "val": [["a.jpg", 0, "dog"]]}, "class 0 has two names, 'cat' and 'dog'"),
        ({**GOOD, "val": [["a.jpg", 0, " "]]}, "two names"),
        ({**GOOD, "val": [["a.jpg", 3, "fish"]]}, "without gaps; missing: 2"),
        ({**GOOD, "val": [["a.jpg", -1, "fish"]]}, "without gaps"),
        ({**GOOD, "val": [["a.jpg", 2, "cat"]]}, "'cat' is given twice"),
        ({**GOOD, "val": [["cats/2.jpg", 0, "cat"]]}, "cats/2.jpg is listed twice, in val and in test"),
        ({**GOOD, "val": [["./cats//2.jpg", 0, "cat"]]}, "cats/2.jpg is listed twice, in val and in test"),
        ({**GOOD, "val": [["a.jpg", 2, "fish"]]}, "no train image of fish"),
        ({**GOOD, "test": GOOD["test"][:1]}, "no test image of dog"),
        ({**GOOD, "test": []}, "no test images"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, content: object, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_split(write(tmp_path, content))


def test_published_lists_may_repeat_a_name(tmp_path: Path) -> None:
    twice = {part: [[key, label, "missile"] for key, label, _ in GOOD[part]] for part in GOOD}
    assert len(read_split(write(tmp_path, twice), repeats=True).train) == 2
    with pytest.raises(UserError, match="'missile' is given twice"):
        read_split(write(tmp_path, twice))


@pytest.mark.parametrize(
    "key", ["/a.jpg", "../a.jpg", "a/../../b.jpg", "C:\\a.jpg", "\\\\host\\a.jpg", "", " ", "a\0b"]
)
def test_no_path_escapes(key: str) -> None:
    with pytest.raises(UserError, match="leads outside the data folder"):
        check_key(key, "list")


@pytest.mark.parametrize("key", ["a.jpg", "a/b c.jpg", "..a/b...jpg", "x..y/z.jpg", "1:2.jpg", ".hidden/ä.jpg"])
def test_odd_paths_below_the_folder_are_fine(key: str) -> None:
    assert check_key(key, "list") == key


def test_names_that_give_the_same_text_are_repeats() -> None:
    refuse_repeats(["big cat", "cat", "bigcat"], "list")
    for other in ("big_cat", " Big  Cat", "BIG CAT"):
        with pytest.raises(UserError, match=r"is given twice .the other time as 'big cat'"):
            refuse_repeats(["big cat", "dog", other], "list")


@pytest.mark.shared
def test_the_published_files_are_accepted(shared: Path) -> None:
    files = sorted((shared / "splits").glob("split_zhou_*.json"))
    assert len(files) == 7
    for file in files:
        raw = json.loads(file.read_text())
        assert [len(items) for items in read_split(file)] == [len(raw[part]) for part in ("train", "val", "test")]
