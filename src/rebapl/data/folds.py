"""Holding out parts of all images, so that every image is learned from in the end and an estimate is still honest.

A fold is a word: `2/5` holds out the second of five parts, `test` holds out the test images that the data set has by
itself, and `all` holds out nothing. In each case all other images train.

A photo that lies in a class several times is one image here: it is held out once, and its copies do not train then.
Otherwise what was learned from a copy would be asked again, and an estimate would count the photo several times.
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
"""In how many parts images are divided, or in two if no class has three. More parts would cost more trainings."""

ENOUGH = 200
"""If a part has at least this many images, only the first part is held out. If not, each of them is in turn."""

_PART = re.compile(r"([1-9]\d*)/([1-9]\d*)")


def folds_for(dataset: Dataset) -> list[str]:
    """The folds by which learning from these images is measured; none if no class has two images.

    A data set with test images of its own is measured on them. Otherwise the images are divided into three parts, or
    two where no class has three images. Each part is held out in turn (cross-validation), unless one part
    has 200 images: then the first alone is.

    >>> from rebapl.data.catalogue import load_dataset
    >>> folds_for(load_dataset("digits"))
    ['test']
    """
    if dataset.test:
        return [TEST]
    items = without_copies(dataset, dataset.items)
    parts = min(PARTS, max(Counter(item.label for item in items).values()))
    if parts < 2:
        return []
    return [f"{part}/{parts}" for part in range(1, 2 if len(items) // parts >= ENOUGH else parts + 1)]


def check_fold(fold: str) -> None:
    """Refuse a word that is no fold."""
    found = _PART.fullmatch(fold)
    if fold not in (ALL, TEST) and (found is None or int(found[2]) < 2 or int(found[1]) > int(found[2])):
        raise UserError(f"fold '{fold}': write a part such as 2/5, or {TEST}, or {ALL}")


def folded(dataset: Dataset, fold: str) -> Dataset:
    """The data set with the images of a fold as its test images, and all others as its training images.

    The only image of a class is never held out, since its class could not be learned then.

    >>> from rebapl.data.catalogue import load_dataset
    >>> parts = [folded(load_dataset("digits"), fold) for fold in ("1/3", "test", "all")]
    >>> [(len(part.train), len(part.val), len(part.test)) for part in parts]
    [(1198, 0, 599), (1266, 0, 531), (1797, 0, 0)]
    """
    check_fold(fold)
    items = dataset.items
    if fold == ALL:
        return replace(dataset, train=items, val=[], test=[])
    if fold == TEST:
        held_out = without_copies(dataset, dataset.test)
    else:
        part, parts = map(int, fold.split("/"))
        held_out = [item for item, number in _numbered(without_copies(dataset, items), parts) if number == part]
    if not held_out:
        raise UserError(f"data set '{dataset.name}' has no images in fold {fold}: every class has only one image there")
    contents = {_content(dataset, item) for item in held_out}
    train = [item for item in items if _content(dataset, item) not in contents]
    return replace(dataset, train=train, val=[], test=[item for item in items if item in set(held_out)])


def without_copies(dataset: Dataset, items: Iterable[Item]) -> list[Item]:
    """These items, and of those in a class that are copies of one another only the first by name."""
    return list({_content(dataset, item): item for item in sorted(items, reverse=True)}.values())[::-1]


def _content(dataset: Dataset, item: Item) -> tuple[str, int]:
    return dataset.contents[item.key], item.label


def _numbered(items: Iterable[Item], parts: int) -> Iterator[tuple[Item, int]]:
    """Each image with the number of its part, 1 … parts: those of a class in a fixed random order, dealt in turn."""
    for label, group in by_label(sorted(items)).items():
        python_random(0, "fold", group[0].class_name).shuffle(group)
        if len(group) > 1:
            yield from ((item, (number + label) % parts + 1) for number, item in enumerate(group))
