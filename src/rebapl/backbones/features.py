"""Features of images, encoded once: what the frozen image tower gives is kept for whoever asks for the same images.

A text-only method or a head sees an image through the frozen tower alone. So it needs the features of test images, and
a head those of training images, and nothing else of them. They are the same whatever the inference and the method, and
they are kept in a folder, one file for each portion of images:

    <folder>/<first 24 digits of the key>.f32        the SHA-256 of what follows, and float32 (n, e)

The key is a checksum of the backbone's fingerprint (its weights and its preprocessing), of where and in what type it
computes, and of the images: of the path, size and time of each file or, where images are not plain files or are
spoiled by a corruption, of their pixels. So a file can be old, but never wrong, and the folder may be deleted at any
time.
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
"""The folder of kept features in a folder of runs."""

AT_ONCE = 256
"""Images in a portion, and in a pass of a prediction."""

SUM = 32
"""The bytes of a SHA-256."""

_kept: ContextVar[tuple[Path | None, LabelledImages | None]] = ContextVar("kept", default=(None, None))


@contextlib.contextmanager
def features_kept_in(folder: Path | None, whole: LabelledImages | None = None) -> Iterator[None]:
    """Within `with`, features are kept in this folder, and those that are there are not computed again.

    An outer `with` stays in force; without a folder nothing is kept. `whole` are images of which several selections
    will be asked for, such as the folds of a cross-validation: they are encoded once, in their order, and each
    selection is taken from them.
    """
    outer = _kept.get()
    token = _kept.set((folder, whole) if outer[0] is None else outer)
    try:
        yield
    finally:
        _kept.reset(token)


@torch.no_grad()
def encode(encoder: DualEncoder, views: Tensor) -> Tensor:
    """The normalised features float32 (n, e), on the CPU, of test-time views uint8 (n, 3, H, W)."""
    return encoder.image_features(encoder.preprocessing.normalize(views.to(encoder.device))).float().cpu()


def features_of(encoder: DualEncoder, data: LabelledImages) -> Tensor:
    """The features (N, e) of the test-time views of images: stored ones, kept ones, or computed ones, which are kept.

    Stored features of another backbone are refused.
    """
    if (stored := data.dataset.features) is not None:
        stored.check(encoder.fingerprint, encoder.name)
        return stored.of([item.key for item in data.items])
    _, whole = _kept.get()
    if whole is not None and data.corruption is None:
        places = {item.key: row for row, item in enumerate(whole.items)}
        if all(item.key in places for item in data.items):
            return _in_portions(encoder, whole)[[places[item.key] for item in data.items]]
    return _in_portions(encoder, data)


def _in_portions(encoder: DualEncoder, data: LabelledImages) -> Tensor:
    parts = (_portion(encoder, data, rows) for rows in portions(range(len(data)), AT_ONCE))
    return torch.cat([torch.empty(0, encoder.joint_width), *parts])


def _portion(encoder: DualEncoder, data: LabelledImages, rows: Sequence[int]) -> Tensor:
    (folder, _), views = _kept.get(), None
    if folder is None:
        return encode(encoder, data.views(encoder.preprocessing, rows))
    images = _files(data, rows)
    if images is None:
        views = data.views(encoder.preprocessing, rows)
        images = hashlib.sha256(views.numpy().tobytes()).hexdigest()
    computed = (encoder.fingerprint, str(encoder.device), str(encoder.dtype), torch.get_num_threads())
    key = hashlib.sha256(json.dumps([computed, images]).encode("utf-8", "surrogatepass")).hexdigest()
    path = folder / f"{key[:24]}.f32"
    with contextlib.suppress(OSError):
        kept = bytearray(path.read_bytes())
        if hashlib.sha256(kept[SUM:]).digest() == kept[:SUM]:  # a damaged file is written again
            return torch.frombuffer(kept, dtype=torch.float32, offset=SUM).view(len(rows), -1)
    features = encode(encoder, data.views(encoder.preprocessing, rows) if views is None else views)
    content = features.numpy().tobytes()
    with contextlib.suppress(UserError):  # a folder that cannot be written costs time, and no result
        write_atomically(path, hashlib.sha256(content).digest() + content)
    return features


def _files(data: LabelledImages, rows: Sequence[int]) -> object:
    """What identifies plain files without reading them; None if images are not plain files, or spoiled, or gone."""
    load = data.dataset.load
    if not isinstance(load, FileImages) or data.corruption is not None:
        return None
    try:
        return [load.upright, [stamp((load.folder / data.items[row].key).resolve()) for row in rows]]
    except OSError:
        return None
