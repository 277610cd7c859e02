"""Decoded and resized images kept on disk, for data sets of large photos that are read again and again.

A cached image is a PPM file, which any viewer opens: `<cache>/<data set>-<size>px-<folder's hash>/<key>.ppm`. A comment
in its head is a checksum of the path, length and date of the file it was made from; when these change, it is made
again. Files appear whole or not at all, so any number of runs may fill and read the same cache at once.
"""

from __future__ import annotations

import hashlib
import os
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from rebapl.data.dataset import Dataset, check_key
from rebapl.errors import UserError
from rebapl.files import NotWrittenError, stamp, write_atomically

CACHE_VARIABLE = "REBAPL_CACHE"
"""The environment variable with the folder of the cache."""


def cached(dataset: Dataset, size: int, folder: Path | None = None) -> Dataset:
    """The same data set with images whose short side is at most `size` px, kept in `folder` or `cache_folder()`.

    Smaller images stay as they are. Drawn data sets have no files and are returned as they are.

    >>> from rebapl.data.catalogue import load_dataset
    >>> digits = load_dataset("digits")
    >>> cached(digits, 256) is digits
    True
    """
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise UserError(f"cache = {size}: give the short side of the cached images in pixels, such as 256")
    if dataset.folder is None:
        return dataset
    source = dataset.folder.resolve()
    subfolder = f"{_plain(dataset.name)}-{size}px-{hashlib.sha256(os.fsencode(source)).hexdigest()[:8]}"
    return replace(dataset, load=CachedImages(dataset, source, size, (folder or cache_folder()) / subfolder))


def cache_folder() -> Path:
    """The usual folder of cached images: $REBAPL_CACHE, or `rebapl/images` in the user's cache folder."""
    if given := os.environ.get(CACHE_VARIABLE):
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "rebapl" / "images"


@dataclass(frozen=True)
class CachedImages:
    """The `load` of a cached data set. It reads an image from the cache, or reads its file and puts it there."""

    dataset: Dataset
    source: Path
    size: int
    folder: Path

    def __call__(self, key: str) -> Image.Image:
        path = self.folder / f"{check_key(key, self.dataset.name)}.ppm"
        try:
            made_from = hashlib.sha256(repr(stamp(self.source / key)).encode("utf-8", "surrogatepass")).hexdigest()
        except OSError:
            return self.dataset.load(key)  # which says what is wrong
        image = _read(path, made_from)
        if image is None:
            image = shrunk(self.dataset.load(key).convert("RGB"), self.size)
            _write(path, made_from, image)
        return image


def shrunk(image: Image.Image, size: int) -> Image.Image:
    """The image with its short side at most `size` px, resized by the cubic filter. The long side is rounded down.

    `Preprocessing.centre` rounds in the same way. So if `size` is what the backbone resizes to, test-time views stay
    the same to the bit.
    """
    short = min(image.size)
    if short <= size:
        return image
    width, height = (int(size * side / short) for side in image.size)
    return image.resize((width, height), Image.Resampling.BICUBIC)


def _write(path: Path, made_from: str, image: Image.Image) -> None:
    head = f"P6\n# {made_from}\n{image.width} {image.height}\n255\n"
    try:
        write_atomically(path, head.encode() + image.tobytes())
    except NotWrittenError as error:
        raise UserError(
            f"cannot keep a cached image in {path.parent} ({error.why}): make room, name another folder in "
            f"${CACHE_VARIABLE}, or leave the cache out"
        ) from error


def _read(path: Path, made_from: str) -> Image.Image | None:
    """The cached image; None if there is none, if it was made from something else, or if it is damaged."""
    try:
        _, comment, size, _, pixels = path.read_bytes().split(b"\n", 4)
        width, height = (int(side) for side in size.split())
    except (OSError, ValueError):
        return None
    if comment != f"# {made_from}".encode() or width < 1 or len(pixels) != 3 * width * height:
        return None
    return Image.frombytes("RGB", (width, height), pixels)


class CacheEntry(NamedTuple):
    """The cached images of one data set at one size: `images` files with `size` bytes in all."""

    folder: Path
    images: int
    size: int


def cache_contents(folder: Path | None = None) -> list[CacheEntry]:
    """The folders of the cache, by name; none if there is no cache yet. They may be deleted at any time."""
    entries = []
    for subfolder in sorted(path for path in (folder or cache_folder()).glob("*") if path.is_dir()):
        sizes = []
        for path in subfolder.rglob("*.ppm"):
            with suppress(OSError):  # replaced or deleted meanwhile
                sizes.append(path.stat().st_size)
        entries.append(CacheEntry(subfolder, len(sizes), sum(sizes)))
    return entries


def _plain(name: str) -> str:
    """The name of a data set with only such characters as the name of a folder may have."""
    return re.sub(r"[^\w.-]+", "_", name).strip(".") or "images"
