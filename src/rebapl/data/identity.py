"""A checksum that identifies somebody's own images, and a list of what changed since a run began.

The checksum is quick to compute, because it covers the paths of the images, their classes, splits and sizes, but not
their content. So a folder that was renamed, moved or copied has the same identity. If an image was replaced by another
one of equal size, `changes` finds it: it reads the images that were trained on again if the time of a file differs.
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
from rebapl.files import stamp
from rebapl.wording import few

Recorded = Mapping[str, Any]
"""What `recorded_images` returned when a run began."""


def identity(dataset: Dataset) -> str:
    """Sixteen hexadecimal digits that identify the images of a folder by their paths in it, classes, splits and sizes.

    They also depend on the template, which changes what is learned, but not on the name of the folder. For stored
    features, they depend on the checksums of the images instead of their sizes, and on the backbone and the precision.
    """
    stored = dataset.features
    sizes = stored.checksums if stored is not None else {item.key: _stat(dataset, item)[0] for item in dataset.items}
    named = {
        split: [[*item, sizes[item.key]] for item in items] for split, items in zip(SPLITS, dataset.splits, strict=True)
    }
    made_with = [] if stored is None else [stored.about["fingerprint"], stored.about["precision"]]
    text = json.dumps([dataset.template, named, *made_with], ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def recorded_images(dataset: Dataset, trained: Iterable[Item]) -> dict[str, Any]:
    """The class, the size and the time of each image, and a checksum of the content of each image `trained` on."""
    items = list(trained)
    sums = in_threads(lambda item: dataset.checksum(item.key), items)
    return {
        "images": {item.key: [item.class_name, *_stat(dataset, item)] for item in dataset.items},
        "trained": {item.key: checksum for item, checksum in zip(items, sums, strict=True)},
    }


def touched(recorded: Recorded, folder: Path) -> bool:
    """Whether the size or time of an image that was trained on has changed, so that `changes` may find something."""
    return any(_size_and_time(folder / key) != tuple(recorded["images"][key][1:]) for key in recorded["trained"])


def changes(recorded: Recorded, dataset: Dataset) -> str | None:
    """Words on the images that were added, removed or changed since they were recorded; None if there are none.

    An image has changed if its class or size differs, or if it was trained on and its content differs. The content is
    compared only if the time of the file differs.
    """
    before, trained = recorded["images"], recorded["trained"]
    now = {item.key: item for item in dataset.items}

    def has_changed(key: str) -> bool:
        (class_name, size, time), (new_size, new_time) = before[key], _stat(dataset, now[key])
        if (class_name, size) != (now[key].class_name, new_size):
            return True
        return time != new_time and key in trained and dataset.checksum(key) != trained[key]

    keys_by_change = {
        "added": sorted(now.keys() - before.keys()),
        "removed": sorted(before.keys() - now.keys()),
        "changed": [key for key in sorted(now.keys() & before.keys()) if has_changed(key)],
    }
    said = (f"{len(keys)} {change} ({few(keys, 3)})" for change, keys in keys_by_change.items() if keys)
    return ", ".join(said) or None


def _stat(dataset: Dataset, item: Item) -> tuple[int, int]:
    assert dataset.folder is not None
    if (size_and_time := _size_and_time(dataset.folder / item.key)) is None:
        raise UserError(f"{dataset.folder / item.key}: no such image")
    return size_and_time


def _size_and_time(path: Path) -> tuple[int, int] | None:
    try:
        return stamp(path)[1:]
    except OSError:
        return None
