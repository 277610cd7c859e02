"""Folds: hold out a part of all images to estimate the accuracy, while the final training still uses every image.

A fold is a word: `2/5` holds out the second of five parts, `test` holds out the data set's own test images, and `all`
holds out nothing. In each case all other images are training images.

If a class contains copies of a photo, they count as one image here: the photo is held out once, and while it is held
out, none of its copies is a training image. Otherwise a test image could have been trained on, and an estimate would
count the photo several times.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

from rebapl.data.dataset import Dataset, Item, by_label
from rebapl.errors import UserError
from rebapl.randomness import python_random

ALL, TEST = "all", "test"

PARTS = 3
"""The number of parts into which images are divided; two if no class has three. More parts cost more trainings."""

ENOUGH = 200
"""If a part has at least this many images, only the first part is held out; otherwise each part in turn."""

_PART = re.compile(r"([1-9]\d*)/([1-9]\d*)")


def folds_for(dataset: Dataset) -> list[str]:
    """The folds on which a training on these images is tested; none if no class has two images.

    A data set with test images of its own is tested on them. Otherwise the images are divided into three parts, or two
    if no class has three images. Each part is held out in turn (cross-validation), or only the first one if a part has
    200 images.

    >>> from rebapl.data.catalogue import load_dataset
    >>> folds_for(load_dataset("digits"))
    ['test']
    """
    if dataset.test:
        return [TEST] if _held_out(dataset, TEST) else []
    items = without_copies(dataset, dataset.items)
    parts = min(PARTS, max(Counter(item.label for item in items).values()))
    if parts < 2:
        return []
    return [f"{part}/{parts}" for part in range(1, 2 if len(items) // parts >= ENOUGH else parts + 1)]


def check_fold(fold: str) -> None:
    """Refuse a word that is not a fold."""
    part = _PART.fullmatch(fold)
    if fold not in (ALL, TEST) and (part is None or int(part[2]) < 2 or int(part[1]) > int(part[2])):
        raise UserError(f"fold '{fold}': write a part such as 2/5, or {TEST}, or {ALL}")


def folded(dataset: Dataset, fold: str) -> Dataset:
    """The data set with the held-out images of a fold as test images, and all others as training images.

    The only image of a class is never held out, because its class could not be learned then. If all images of a class
    are among the data set's own test images, for example because the training images are copies of them, the first one
    by name is a training image.

    >>> from rebapl.data.catalogue import load_dataset
    >>> parts = [folded(load_dataset("digits"), fold) for fold in ("1/3", "test", "all")]
    >>> [(len(part.train), len(part.val), len(part.test)) for part in parts]
    [(1198, 0, 599), (1266, 0, 531), (1797, 0, 0)]
    """
    check_fold(fold)
    items = dataset.items
    if fold == ALL:
        return replace(dataset, train=items, val=[], test=[])
    if fold == TEST and not dataset.test:
        raise UserError(f"data set '{dataset.name}' has no test images of its own: choose a fold such as 1/3")
    held_out = _held_out(dataset, fold)
    if not held_out:
        raise UserError(
            f"data set '{dataset.name}' has no images in fold {fold}: choose a fold of fewer parts, or add images: "
            "the only image of a class is never held out"
        )
    contents, tested = {_content(dataset, item) for item in held_out}, set(held_out)
    train = [item for item in items if _content(dataset, item) not in contents]
    return replace(dataset, train=train, val=[], test=[item for item in items if item in tested])


def _held_out(dataset: Dataset, fold: str) -> list[Item]:
    """The images that a fold holds out, each photo once, so that a training image of every class remains."""
    if fold != TEST:
        part, parts = map(int, fold.split("/"))
        numbered = _numbered(without_copies(dataset, dataset.items), parts)
        return [item for item, number in numbered if number == part]
    tested = without_copies(dataset, dataset.test)
    contents = {_content(dataset, item) for item in tested}
    learned = {item.label for item in dataset.items if _content(dataset, item) not in contents}
    held_out = []
    for item in tested:
        if item.label in learned:
            held_out.append(item)
        learned.add(item.label)
    return held_out


def without_copies(dataset: Dataset, items: Iterable[Item]) -> list[Item]:
    """These items without copies: of several items of one class with the same content, the first by name stays."""
    return list({_content(dataset, item): item for item in sorted(items, reverse=True)}.values())[::-1]


def _content(dataset: Dataset, item: Item) -> tuple[str, int]:
    return dataset.contents[item.key], item.label


def _numbered(items: Iterable[Item], parts: int) -> Iterator[tuple[Item, int]]:
    """Each image with the number of its part, 1 … parts. Those of a class are dealt out in a fixed random order."""
    for label, group in by_label(sorted(items)).items():
        python_random(0, "fold", group[0].class_name).shuffle(group)
        if len(group) > 1:
            yield from ((item, (number + label) % parts + 1) for number, item in enumerate(group))
