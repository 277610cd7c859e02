"""Tiny drawn data sets in the published layouts, to test loaders and protocols without the real files.

Layouts, file names and class-name rules are the real ones. So are the classes where code depends on them; the others
are called by numbers in words.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from rebapl.data.dataset import SPLITS, Item, Splits, write_split
from rebapl.data.embedded import NUMBER_WORDS
from rebapl.data.published import (
    CALTECH_DROPPED,
    CALTECH_RENAMED,
    EUROSAT,
    NAME_RULES,
    PUBLISHED,
    Entry,
    year_first,
)

PER_CLASS = {"train": 2, "val": 1, "test": 1}
SIZE = 16
REPEATED = {657: "missile", 744: "missile", 836: "sunglasses", 837: "sunglasses"}
"""The names that occur twice in the published list of ImageNet, by label."""


class Drawn(NamedTuple):
    """An image to draw: its split, its label, and its number, from 1, among all images and within its class."""

    split: str
    label: int
    number: int
    of_class: int


def make_fixture(name: str, root: str | Path) -> Path:
    """Draw a data set below `root` and return its folder, which must not exist before."""
    entry = PUBLISHED[name]
    folder = Path(root) / entry.folder
    folder.mkdir()
    draw = {"split": _split_layout, "aircraft": _aircraft}.get(entry.layout, _imagenet)
    draw(entry, folder)
    return folder


def _words(number: int) -> list[str]:
    """A number from 0 to 999 in three words."""
    return [NUMBER_WORDS[int(digit)] for digit in f"{number:03d}"]


def _images(order: Sequence[int]) -> Iterator[Drawn]:
    number = 0
    for split in SPLITS:
        for label in order:
            for index in range(PER_CLASS[split]):
                number += 1
                before = sum(PER_CLASS[part] for part in SPLITS[: SPLITS.index(split)])
                yield Drawn(split, label, number, before + index + 1)


@lru_cache(maxsize=64)
def _picture(label: int, variant: int) -> Image.Image:
    """A picture in the colour of the class, with some grain."""
    rng = np.random.default_rng((label, variant))
    colour = np.random.default_rng(label).integers(40, 216, size=3)
    grain = rng.integers(-30, 31, size=(SIZE, SIZE, 1))
    return Image.fromarray((colour + grain).astype(np.uint8))


def _draw(path: Path, label: int, variant: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    _picture(label, variant).save(path, format="JPEG", quality=60)


_CALTECH = [*CALTECH_RENAMED, *("_".join(_words(n)) for n in range(100 - len(CALTECH_RENAMED)))]


def _sun_folder(label: int) -> str:
    first, *rest = _words(label)
    scene = ("", "/indoor", "/outdoor")[label % 3]
    return f"{first[0]}/{'_'.join([first, *rest])}{scene}"


def _ucf(label: int) -> str:
    return "".join(word.capitalize() for word in _words(label))


def _pet(label: int) -> str:
    """The name of a breed. The names of cats begin with a capital letter."""
    name = "_".join(_words(label)[1:])
    return name.capitalize() if label % 3 == 0 else name


_KEYS: dict[str, Callable[[Drawn], str]] = {
    "caltech101": lambda p: f"{_CALTECH[p.label]}/image_{p.of_class:04d}.jpg",
    "oxford_pets": lambda p: f"{_pet(p.label)}_{p.of_class}.jpg",
    "stanford_cars": lambda p: f"cars_{'test' if p.split == 'test' else 'train'}/{p.number:05d}.jpg",
    "oxford_flowers": lambda p: f"image_{p.number:05d}.jpg",
    "food101": lambda p: f"{'_'.join(_words(p.label))}/{1_000_000 + p.number}.jpg",
    "sun397": lambda p: f"{_sun_folder(p.label)}/sun_{p.number:016x}.jpg",
    "dtd": lambda p: f"{'-'.join(_words(p.label)[1:])}/{'-'.join(_words(p.label)[1:])}_{p.of_class:04d}.jpg",
    "eurosat": lambda p: f"{list(EUROSAT)[p.label]}/{list(EUROSAT)[p.label]}_{p.of_class}.jpg",
    "ucf101": lambda p: f"{'_'.join(_words(p.label)).title()}/v_{_ucf(p.label)}_g{p.of_class:02d}_c01.jpg",
}


def _split_layout(entry: Entry, folder: Path) -> None:
    order = list(range(entry.classes))
    if entry.name == "oxford_flowers":
        order = order[76:] + order[:76]  # the published list does not begin with the first class either
    cars = [f"{' '.join(_words(label)).title()} Coupe {2012 - label % 3}" for label in range(entry.classes)]
    flowers = [f"{' '.join(_words(label))} lily" for label in range(entry.classes)]
    lists: dict[str, list[Item]] = {split: [] for split in SPLITS}
    for drawn in _images(order):
        key = _KEYS[entry.name](drawn)
        if entry.name == "stanford_cars":
            name: str | None = year_first(cars[drawn.label])
        elif entry.name == "oxford_flowers":
            name = flowers[drawn.label]
        else:
            name = NAME_RULES[entry.name](key)
        assert name is not None
        lists[drawn.split].append(Item(key, drawn.label, name))
        _draw(folder / entry.images / key, drawn.label, drawn.of_class)
    write_split(folder / entry.lists[0], Splits(*lists.values()))
    if entry.name == "caltech101":
        for number, dropped in enumerate(CALTECH_DROPPED):
            _draw(folder / entry.images / dropped / "image_0001.jpg", number, 0)
    if entry.name == "stanford_cars":
        from scipy.io import savemat  # here, because only this data set needs it

        (folder / "devkit").mkdir()
        savemat(folder / "devkit" / "cars_meta.mat", {"class_names": np.array([cars], dtype=object)})
    if entry.name == "oxford_flowers":
        names = {str(label + 1): name for label, name in enumerate(flowers)}
        (folder / "cat_to_name.json").write_text(json.dumps(names))


def _aircraft(entry: Entry, folder: Path) -> None:
    variants = ["707-320", "F/A-18", *(f"{' '.join(_words(n)).title()}" for n in range(entry.classes - 2))]
    (folder / "variants.txt").write_text("\n".join(variants) + "\n")
    lines: dict[str, list[str]] = {split: [] for split in SPLITS}
    for drawn in _images(range(entry.classes)):
        image = f"{drawn.number:07d}"
        lines[drawn.split].append(f"{image} {variants[drawn.label]}")
        _draw(folder / entry.images / f"{image}.jpg", drawn.label, drawn.of_class)
    for split, listed in lines.items():
        (folder / f"images_variant_{split}.txt").write_text("\n".join(listed) + "\n")


def _imagenet(entry: Entry, folder: Path) -> None:
    """Draw ImageNet or a variant of it: 1000 classes in the list, and the folders of the data set."""
    names = [REPEATED.get(label, " ".join(_words(label))) for label in range(1000)]
    folders = [f"n{1_000_000 + 1013 * label:08d}" for label in range(1000)]
    lines = (f"{wordnet} {name}\n" for wordnet, name in zip(folders, names, strict=True))
    (folder / "classnames.txt").write_text("".join(lines))
    images = folder / entry.images
    for label in range(0, 1000, 1000 // entry.classes):
        wordnet = folders[label]
        if entry.layout == "imagenet":
            for number in (1, 2):
                _draw(images / "train" / wordnet / f"{wordnet}_{number}.JPEG", label, number)
            _draw(images / "val" / wordnet / f"ILSVRC2012_val_{label + 1:08d}.JPEG", label, 3)
        elif entry.layout == "numbered":
            _draw(images / str(label) / f"{label:040x}.jpeg", label, 4)
        else:
            _draw(images / wordnet / f"{wordnet}_{label}.{'JPEG' if entry.classes == 1000 else 'jpg'}", label, 5)
    if entry.classes == 200:
        (images / "README.txt").write_text("A drawn stand-in for the real images.\n")
