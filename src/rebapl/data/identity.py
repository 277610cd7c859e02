"""A checksum that identifies somebody's own images, and the changes of the images since a run was begun.

The identity is quick: it needs the list of the images, their classes and splits, their sizes, and nothing of their
content. So a folder that was renamed, moved or copied is the same. An image that was replaced by another of equal size
shows when a run looks at the images that it was trained on: their content is read where the time of a file differs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rebapl.data.dataset import SPLITS, Dataset, Item
from rebapl.data.workers import in_threads
from rebapl.errors import UserError
from rebapl.files import sha256, stamp
from rebapl.wording import few

Recorded = Mapping[str, Any]
"""A record that `recorded_images` made."""


def identity(dataset: Dataset) -> str:
    """Sixteen hexadecimal digits that name the images of a folder: their paths in it, classes, splits and sizes.

    The template counts too, since it changes what is learned. The name of the folder does not. Of stored features, the
    checksums of the images count in the place of their sizes, and the backbone and the precision.
    """
    stored = dataset.features
    sizes = stored.checksums if stored is not None else {each.key: _stat(dataset, each)[0] for each in dataset.items}
    named = {
        split: [[*item, sizes[item.key]] for item in items] for split, items in zip(SPLITS, dataset.splits, strict=True)
    }
    made_with = [] if stored is None else [stored.about["fingerprint"], stored.about["precision"]]
    text = json.dumps([dataset.template, named, *made_with], ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def recorded_images(dataset: Dataset, trained: Iterable[Item]) -> dict[str, Any]:
    """The class, the size and the time of each image and, for those `trained` on, the checksum of their content."""
    items = list(trained)
    sums = in_threads(lambda item: sha256(_path(dataset, item)), items)
    return {
        "images": {item.key: [item.class_name, *_stat(dataset, item)] for item in dataset.items},
        "trained": {item.key: checksum for item, checksum in zip(items, sums, strict=True)},
    }


def touched(recorded: Recorded, folder: Path) -> bool:
    """Whether the size or time of an image that was trained on differs, so that it is worth looking for `changes`."""
    return any(_size_and_time(folder / key) != tuple(recorded["images"][key][1:]) for key in recorded["trained"])


def changes(recorded: Recorded, dataset: Dataset) -> str | None:
    """The images that were added, removed or changed since they were recorded, in words; None if there are none.

    An image counts as changed if its class or size has, or if it was trained on and its content has; that is looked at
    only where the time of the file differs.
    """
    before, trained = recorded["images"], recorded["trained"]
    now = {item.key: item for item in dataset.items}

    def has_changed(key: str) -> bool:
        (class_name, size, time), (new_size, new_time) = before[key], _stat(dataset, now[key])
        if (class_name, size) != (now[key].class_name, new_size):
            return True
        return time != new_time and key in trained and sha256(_path(dataset, now[key])) != trained[key]

    found = {
        "added": sorted(now.keys() - before.keys()),
        "removed": sorted(before.keys() - now.keys()),
        "changed": [key for key in sorted(now.keys() & before.keys()) if has_changed(key)],
    }
    return ", ".join(f"{len(keys)} {what} ({few(keys, 3)})" for what, keys in found.items() if keys) or None


def _path(dataset: Dataset, item: Item) -> Path:
    assert dataset.folder is not None
    return dataset.folder / item.key


def _stat(dataset: Dataset, item: Item) -> tuple[int, int]:
    found = _size_and_time(_path(dataset, item))
    if found is None:
        raise UserError(f"{_path(dataset, item)}: no such image")
    return found


def _size_and_time(path: Path) -> tuple[int, int] | None:
    try:
        return stamp(path)[1:]
    except OSError:
        return None
