"""Views that a process keeps: the same pixels, read again when the file has changed, and within a limit."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from rebapl.backbones import load_backbone
from rebapl.data import batches
from rebapl.data.batches import LabelledImages
from rebapl.data.catalogue import load_dataset
from rebapl.data.kept import KeptViews
from rebapl.data.own import dataset_of, load_folder
from rebapl.data.transforms import Preprocessing


@pytest.fixture
def preprocessing() -> Preprocessing:
    return load_backbone("mini").preprocessing


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> KeptViews:
    own = KeptViews()
    monkeypatch.setattr(batches, "VIEWS", own)
    return own


def painted(path: Path, value: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((40, 50, 3), value, np.uint8)).save(path)


@pytest.mark.usefixtures("kept")
def test_a_second_look_decodes_nothing_and_a_changed_file_is_read_again(
    tmp_path: Path, preprocessing: Preprocessing
) -> None:
    for number, name in enumerate(("cat", "dog")):
        for index in range(4):
            painted(tmp_path / name / f"{index}.png", 10 * index + number)
    dataset = load_folder(tmp_path)
    decoded = []

    def look() -> torch.Tensor:
        data = LabelledImages(dataset, dataset.test)
        original = data._decoded
        data._decoded = lambda row: decoded.append(row) or original(row)  # type: ignore[method-assign, func-returns-value]
        return data.views(preprocessing)

    first = look()
    assert len(decoded) == len(dataset.test) > 0
    assert torch.equal(look(), first)
    assert len(decoded) == len(dataset.test)
    file = dataset.folder / dataset.test[0].key  # type: ignore[operator]
    painted(file, 200)
    os.utime(file, ns=(1, 1))
    assert look()[0].unique().tolist() == [200]
    assert len(decoded) == len(dataset.test) + 1


def test_drawn_images_are_kept_and_pictures_in_memory_are_not(preprocessing: Preprocessing, kept: KeptViews) -> None:
    digits = load_dataset("digits")
    LabelledImages(digits, digits.test[:3]).views(preprocessing)
    assert len(kept._views) == 3
    own = dataset_of([np.full((32, 32, 3), value, np.uint8) for value in range(4)], [0, 1, 0, 1], ["a", "b"])
    LabelledImages(own, own.train).views(preprocessing)
    assert len(kept._views) == 3


def test_the_oldest_are_dropped_at_the_limit(preprocessing: Preprocessing) -> None:
    digits = load_dataset("digits")
    side = preprocessing.crop
    kept = KeptViews(limit=2 * 3 * side * side)
    view = torch.zeros(3, side, side, dtype=torch.uint8)
    made = []

    def ask(index: int) -> None:
        kept.view(digits, digits.test[index].key, preprocessing, lambda: made.append(index) or view)  # type: ignore[func-returns-value, arg-type, return-value]

    for index in (0, 1, 0, 2, 0, 1):
        ask(index)
    assert made == [0, 1, 2, 1]
