"""A cache of the features of images, so that the frozen image tower encodes each image only once.

A text-only method needs only the features of the test images, and a head only those of the training and test images.
These features do not depend on the inference or the method. They are kept in a folder, with one file for each portion
of images:

    <folder>/<first 24 digits of the key>.f32        the SHA-256 of the features, and the features, float32 (n, e)

The key is a checksum of the backbone's fingerprint (its weights and its preprocessing), of the device and the type in
which it computes, and of the images: of the path, size and time of each file, or, if images are not plain files or are
corrupted on purpose, of their pixels. So a file may become useless, but never wrong, and the folder may be deleted at
any time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
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

_cache: ContextVar[tuple[Path | None, LabelledImages | None]] = ContextVar("cache", default=(None, None))


@contextlib.contextmanager
def features_kept_in(folder: Path | None, whole: LabelledImages | None = None) -> Iterator[None]:
    """Within `with`, features are kept in this folder, and features that are there already are not computed again.

    If an outer `with` names a folder, that one stays in force. If `folder` is None, nothing is kept. `whole` are images
    of which several selections will be needed, such as the folds of a cross-validation: they are encoded once, in their
    order, and each selection is taken from their features.
    """
    outer = _cache.get()
    token = _cache.set((folder, whole) if outer[0] is None else outer)
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
    _, whole = _cache.get()
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
    (folder, _), views = _cache.get(), None
    if folder is None:
        return encode(encoder, data.views(encoder.preprocessing, rows))
    images = _files(data, rows)
    if images is None:
        views = data.views(encoder.preprocessing, rows)
        images = hashlib.sha256(views.numpy().tobytes()).hexdigest()
    computation = (encoder.fingerprint, str(encoder.device), str(encoder.dtype), torch.get_num_threads())
    key = hashlib.sha256(json.dumps([computation, images]).encode("utf-8", "surrogatepass")).hexdigest()
    path = folder / f"{key[:24]}.f32"
    with contextlib.suppress(OSError):
        content = bytearray(path.read_bytes())
        if hashlib.sha256(content[SUM:]).digest() == content[:SUM]:  # a damaged file is written again
            return torch.frombuffer(content, dtype=torch.float32, offset=SUM).view(len(rows), -1)
    features = encode(encoder, data.views(encoder.preprocessing, rows) if views is None else views)
    numbers = features.numpy().tobytes()
    with contextlib.suppress(UserError):  # if the folder cannot be written, only time is lost
        write_atomically(path, hashlib.sha256(numbers).digest() + numbers)
    return features


def _files(data: LabelledImages, rows: Sequence[int]) -> object:
    """What identifies plain files without reading them; None for other images, corrupted images and missing files."""
    load = data.dataset.load
    if not isinstance(load, FileImages) or data.corruption is not None:
        return None
    try:
        return [load.upright, [stamp((load.folder / data.items[row].key).resolve()) for row in rows]]
    except OSError:
        return None
