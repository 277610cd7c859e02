"""Decoded and resized images kept on disk, for data sets of large photos that are read again and again.

A cached image is a PPM file, which any viewer opens: `<cache>/<data set>-<size>px-<folder's hash>/<key>.ppm`. A comment
in its head says which file it was made from, of which length and date; when these change, it is made again. Files
appear whole or not at all, so any number of runs may fill and read the same cache at once.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

from PIL import Image

from rebapl.data.dataset import Dataset
from rebapl.data.splits import check_key
from rebapl.errors import UserError
from rebapl.files import NotWrittenError, write_atomically

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
        stamp = self._stamp(key)
        if stamp is not None and (kept := _read(path, stamp)) is not None:
            return kept
        image = shrunk(self.dataset.load(key).convert("RGB"), self.size)
        if stamp is not None:
            _write(path, stamp, image)
        return image

    def _stamp(self, key: str) -> str | None:
        """Describes the file that a cached image is made from; None if there is no such file."""
        path = self.source / key
        try:
            file = path.stat()
        except OSError:
            return None
        return hashlib.sha256(os.fsencode(path) + f" {file.st_size} {file.st_mtime_ns}".encode()).hexdigest()


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


def _write(path: Path, stamp: str, image: Image.Image) -> None:
    head = f"P6\n# {stamp}\n{image.width} {image.height}\n255\n"
    try:
        write_atomically(path, head.encode() + image.tobytes())
    except NotWrittenError as error:
        raise UserError(
            f"cannot keep a cached image in {path.parent} ({error.why}): make room, name another folder in "
            f"${CACHE_VARIABLE}, or leave the cache out"
        ) from error


def _read(path: Path, stamp: str) -> Image.Image | None:
    """The cached image; None if there is none, if it was made from something else, or if it is damaged."""
    try:
        _, comment, size, _, pixels = path.read_bytes().split(b"\n", 4)
        width, height = (int(side) for side in size.split())
    except (OSError, ValueError):
        return None
    if comment != f"# {stamp}".encode() or width < 1 or len(pixels) != 3 * width * height:
        return None
    return Image.frombytes("RGB", (width, height), pixels)


@dataclass(frozen=True)
class CacheEntry:
    """What the cache holds of one data set at one size: `images` files with `size` bytes in all."""

    folder: Path
    images: int
    size: int


def cache_contents(folder: Path | None = None) -> list[CacheEntry]:
    """What the cache holds, by name; nothing if there is no cache yet. Its folders may be deleted at any time."""
    folder = folder or cache_folder()
    entries = []
    for subfolder in sorted(path for path in folder.glob("*") if path.is_dir()):
        sizes = [size for path in subfolder.rglob("*.ppm") if (size := _length(path)) is not None]
        entries.append(CacheEntry(subfolder, len(sizes), sum(sizes)))
    return entries


def _length(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:  # replaced or deleted meanwhile
        return None


def _plain(name: str) -> str:
    """The name of a data set with only such characters as the name of a folder may have."""
    return re.sub(r"[^\w.-]+", "_", name).strip(".") or "images"
