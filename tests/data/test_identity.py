"""What identifies somebody's own images, and what has changed of them."""

import os
import shutil
from pathlib import Path

import pytest
from drawn_folder import class_folders, draw

from rebapl.data.catalogue import load_dataset
from rebapl.data.dataset import Dataset
from rebapl.data.identity import changes, identity, recorded_images, touched


def whole(folder: Path) -> Dataset:
    return load_dataset(str(folder), whole=True)


def test_a_copy_under_another_name_is_the_same(tmp_path: Path) -> None:
    photos = class_folders(tmp_path / "photos", cat=2, dog=2)
    data = whole(photos)
    recorded = recorded_images(data, data.train)
    copy = shutil.copytree(photos, tmp_path / "copy", copy_function=shutil.copyfile)
    os.utime(copy / "cat" / "0.png", (1, 1))
    assert identity(whole(copy)) == identity(data)
    assert touched(recorded, copy)
    assert changes(recorded, whole(copy)) is None


def test_what_changed_is_said_in_words(tmp_path: Path) -> None:
    photos = class_folders(tmp_path, cat=3, dog=3)
    data = whole(photos)
    recorded, before = recorded_images(data, data.train), identity(data)
    (photos / "cat" / "0.png").unlink()
    draw(photos / "dog" / "new.png")
    (photos / "dog" / "1.png").write_bytes(b"longer than it was" + (photos / "dog" / "1.png").read_bytes())
    assert identity(whole(photos)) != before
    assert changes(recorded, whole(photos)) == "1 added (dog/new.png), 1 removed (cat/0.png), 1 changed (dog/1.png)"


def test_an_image_that_was_replaced_by_one_of_equal_size_is_noticed(tmp_path: Path) -> None:
    photos = class_folders(tmp_path, cat=2, dog=2)
    data = whole(photos)
    recorded, file = recorded_images(data, data.train), photos / "cat" / "0.png"
    assert not touched(recorded, photos)
    file.write_bytes(bytes(reversed(file.read_bytes())))
    os.utime(file, (1, 1))
    assert touched(recorded, photos)
    assert changes(recorded, whole(photos)) == "1 changed (cat/0.png)"


def test_no_content_is_read_where_times_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photos = class_folders(tmp_path, cat=2, dog=2)
    data = whole(photos)
    recorded = recorded_images(data, data.train)
    monkeypatch.setattr(Dataset, "checksum", None)
    assert identity(data)
    assert changes(recorded, data) is None
