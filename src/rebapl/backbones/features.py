"""A cache of the features of images, so that the frozen image tower encodes each image only once.

A text-only method needs only the features of the test images, and a head only those of the training and test images.
These features do not depend on the inference or the method. They are kept in a folder, with one file for each portion
of images, and for portions of plain files a second one:

    <folder>/<first 24 digits of the key>.f32        the SHA-256 of the features, and the features, float32 (n, e)
    <folder>/<first 24 digits of the key>.rows       the SHA-256 of the rest, and a mark of 16 bytes for each row

The key is a checksum of the backbone's fingerprint (its weights and its preprocessing), of the device and the type in
which it computes, and of the images: of the path, size and time of each file, or, if images are not plain files or are
corrupted on purpose, of their pixels. So a file may become useless, but never wrong, and the folder may be deleted at
any time.

The mark is the same checksum for a single image. By it, an image is found that was encoded in another portion, such as
a training image that two seeds have drawn; only the other images of its portion are encoded. The number of images in a
pass changes the last digits of a feature, so a portion that was put together in this way is kept as well: then a
training that is interrupted and continued has the same features, to the last bit.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from rebapl.backbones.encoder import DualEncoder
from rebapl.data.batches import LabelledImages
from rebapl.data.images import FileImages
from rebapl.data.workers import portions
from rebapl.errors import UserError
from rebapl.files import stamp, write_atomically

FOLDER = ".features"
"""The name of the folder of kept features in a folder of runs."""

AT_ONCE = 256
"""The number of images in a portion, and in a pass of a prediction."""

SUM = 32
"""The number of bytes of a SHA-256."""

MARK = 16
"""The number of bytes of the mark of an image."""


@dataclass(frozen=True)
class _Kept:
    """What `features_kept_in` was called with, and what is known of the files in its folder.

    `places` has the file of features and the row of each mark, from all files of marks whose names are in `listed`.
    """

    folder: Path | None = None
    whole: LabelledImages | None = None
    places: dict[bytes, tuple[Path, int]] = field(default_factory=dict)
    listed: set[Path] = field(default_factory=set)


_cache: ContextVar[_Kept] = ContextVar("cache", default=_Kept())  # noqa: B039 (without a folder it is never filled)


@contextlib.contextmanager
def features_kept_in(folder: Path | None, whole: LabelledImages | None = None) -> Iterator[None]:
    """Within `with`, features are kept in this folder, and features that are there already are not computed again.

    If an outer `with` names a folder, that one stays in force. If `folder` is None, nothing is kept. `whole` are images
    of which several selections will be needed, such as the folds of a cross-validation: they are encoded once, in their
    order, and each selection is taken from their features.
    """
    outer = _cache.get()
    token = _cache.set(_Kept(folder, whole) if outer.folder is None else outer)
    try:
        yield
    finally:
        _cache.reset(token)


@torch.no_grad()
def encode(encoder: DualEncoder, views: Tensor) -> Tensor:
    """The normalised features float32 (n, e), on the CPU, of test-time views uint8 (n, 3, H, W)."""
    return encoder.image_features(encoder.preprocessing.normalize(views.to(encoder.device))).float().cpu()


def features_of(encoder: DualEncoder, data: LabelledImages) -> Tensor:
    """The features (N, e) of the test-time views of images.

    They are read from the data set if it has stored features, which must be of this backbone. Otherwise they are read
    from the folder of `features_kept_in`, or computed and kept there.
    """
    if (stored := data.dataset.features) is not None:
        stored.check(encoder.fingerprint, encoder.name)
        return stored.of([item.key for item in data.items])
    whole = _cache.get().whole
    if whole is not None and data.corruption is None and _source(data) == _source(whole):
        rows = {item.key: row for row, item in enumerate(whole.items)}
        if all(item.key in rows for item in data.items):
            return _in_portions(encoder, whole)[[rows[item.key] for item in data.items]]
    return _in_portions(encoder, data)


def _source(data: LabelledImages) -> tuple[str, Path | None]:
    """What distinguishes data sets whose images may have the same keys."""
    return data.dataset.name, data.dataset.folder


def _in_portions(encoder: DualEncoder, data: LabelledImages) -> Tensor:
    parts = (_portion(encoder, data, rows) for rows in portions(range(len(data)), AT_ONCE))
    return torch.cat([torch.empty(0, encoder.joint_width), *parts])


def _portion(encoder: DualEncoder, data: LabelledImages, rows: Sequence[int]) -> Tensor:
    kept, views = _cache.get(), None
    if kept.folder is None:
        return encode(encoder, data.views(encoder.preprocessing, rows))
    files = _files(data, rows)
    if files is None:
        views = data.views(encoder.preprocessing, rows)
    pixels = None if views is None else hashlib.sha256(views.numpy().tobytes()).hexdigest()
    computation = [encoder.fingerprint, str(encoder.device), str(encoder.dtype), torch.get_num_threads()]
    marks = [_checksum(computation, file)[:MARK] for file in files or ()]
    key = _checksum(computation, files or pixels).hex()
    path = kept.folder / f"{key[:24]}.f32"
    if (content := _read(path)) is not None:
        return torch.frombuffer(content, dtype=torch.float32).view(len(rows), -1)
    features = torch.empty(len(rows), encoder.joint_width)
    known = _fill(features, marks, kept)
    if lacking := [index for index in range(len(rows)) if index not in known]:
        if views is None:
            views = data.views(encoder.preprocessing, [rows[index] for index in lacking])
        features[lacking] = encode(encoder, views)
    _write(path, features.numpy().tobytes())
    if marks and lacking:
        _write(path.with_suffix(".rows"), b"".join(marks))
    return features


def _fill(features: Tensor, marks: Sequence[bytes], kept: _Kept) -> set[int]:
    """Copy the kept features of the images with these marks into `features` (n, e), and return their rows."""
    assert kept.folder is not None
    for path in sorted(set(kept.folder.glob("*.rows")) - kept.listed) if marks else ():
        listed = bytes(_read(path) or b"")
        for row in range(len(listed) // MARK):
            kept.places.setdefault(listed[row * MARK : (row + 1) * MARK], (path.with_suffix(".f32"), row))
        kept.listed.add(path)
    by_file: dict[Path, list[tuple[int, int]]] = {}
    for index, mark in enumerate(marks):
        if mark in kept.places:
            path, row = kept.places[mark]
            by_file.setdefault(path, []).append((index, row))
    known = set[int]()
    for path, places in by_file.items():
        if (content := _read(path)) is not None:
            indices, rows = (list(each) for each in zip(*places, strict=True))
            features[indices] = torch.frombuffer(content, dtype=torch.float32).view(-1, features.shape[1])[rows]
            known.update(indices)
    return known


def _checksum(computation: Sequence[object], images: object) -> bytes:
    return hashlib.sha256(json.dumps([computation, images]).encode("utf-8", "surrogatepass")).digest()


def _read(path: Path) -> bytearray | None:
    """The content of a file that `_write` has written; None if there is none, or if it is damaged."""
    with contextlib.suppress(OSError):
        content = bytearray(path.read_bytes())
        if hashlib.sha256(content[SUM:]).digest() == content[:SUM]:
            return content[SUM:]
    return None


def _write(path: Path, content: bytes) -> None:
    with contextlib.suppress(UserError):  # if the folder cannot be written, only time is lost
        write_atomically(path, hashlib.sha256(content).digest() + content)


def _files(data: LabelledImages, rows: Sequence[int]) -> list[object] | None:
    """What identifies plain files without reading them; None for other images, corrupted images and missing files."""
    load = data.dataset.load
    if not isinstance(load, FileImages) or data.corruption is not None:
        return None
    try:
        return [[load.upright, *stamp((load.folder / data.items[row].key).resolve())] for row in rows]
    except OSError:
        return None
