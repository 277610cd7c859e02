"""Features in shards: `rebapl embed` runs the frozen image tower once over any number of images."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from rebapl import __version__
from rebapl.backbones import DualEncoder
from rebapl.backbones.features import encode
from rebapl.data.catalogue import is_own, load_dataset
from rebapl.data.dataset import SPLITS, Dataset
from rebapl.data.features import PRECISIONS, WHAT, FeatureRow, shard_bytes, shard_files
from rebapl.data.images import UnreadableImageError, as_rgb, image_sha256, read_image
from rebapl.data.own_images import TEMPLATE, has_classes, own_rows, own_template, read_names
from rebapl.data.tars import is_tar, labels_in_tar, sample_of
from rebapl.errors import UserError
from rebapl.posterior.answers import CPU_PORTION, Pace, by_one_torch_thread, read_ahead
from rebapl.posterior.images import ImageFiles
from rebapl.posterior.passes import CHUNK
from rebapl.posterior.records import Record, as_text
from rebapl.runs.machine import kept_backbone
from rebapl.runs.shards import Entry, Place, Shard, entries_of, plan_lists, written

SIZE = 8192
"""Images in a shard: 8 MB of features of 512 numbers, and seconds of work on a GPU."""

CPU_SIZE = 512
"""Images in a shard if one process computes on a CPU: about a minute of work with ViT-B/16."""


class ToEmbed(NamedTuple):
    """The images that are to be embedded.

    `entries` has [path, label, split] of each image by its path. Paths are relative to the folder `start` or, if `data`
    is given, they are keys of that data set, with `root` and `split` as in `load_dataset`. `classes` has the class
    names by label, in their order, if they are known. `name` and `template` belong to the data set. `passed_over` is a
    message about files that are not images.
    """

    entries: Mapping[str, Entry]
    classes: Mapping[str, str] | None
    name: str
    template: str
    start: Path
    data: str | None = None
    root: str | None = None
    split: str | None = None
    passed_over: str = ""


def gather_images(
    images: Sequence[str],
    lists: Sequence[Path] = (),
    *,
    root: Path | None = None,
    split: str | None = None,
    unlabelled: bool = False,
) -> ToEmbed:
    """Find the images in folders, files, CSV files and tar archives, or in a data set by its name.

    Classes and splits are used if `images` is one data set, one folder whose images are all in class folders, or one
    CSV file with labels. With `unlabelled` they are not used. `lists` are as in `rebapl predict`, and `root` and
    `split` as in `load_dataset`.
    """
    alone = images[0] if len(images) == 1 and not lists else None
    if alone is not None and not is_own(alone):
        if unlabelled:
            raise UserError(f"--unlabelled is for folders and CSV files: the data set {alone} has its classes")
        dataset = load_dataset(alone, root, split=split)
        rows = [(item.key, str(item.label), part) for part in SPLITS for item in getattr(dataset, part)]
        names = {str(label): name for label, name in enumerate(dataset.class_names)}
        folder = None if root is None else str(root.absolute())
        return ToEmbed(_by_path(rows), names, dataset.name, dataset.template, Path.cwd(), alone, folder, split)
    if split is not None:
        raise UserError(f"--split {split}: only a published data set has other split files; leave it out")
    path = None if alone is None else Path(alone).expanduser()
    if path is not None and not unlabelled and has_classes(path):
        start = path.parent if path.is_file() else path
        labelled, names = own_rows(path)
        name = path.stem if path.is_file() else path.resolve().name
        return ToEmbed(_by_path(labelled), names, name, own_template(path), start.absolute())
    paths = [Path(image).expanduser() for image in images]
    csv_files = [path for path in paths if _is_list(path)]
    files = ImageFiles([path for path in paths if not _is_list(path)], [*csv_files, *lists])
    if not files.known:
        raise UserError("which images? Name a data set, folders, files, tar archives, or --list FILE")
    tars = [path for path in paths if is_tar(path)]
    labels = {sample: label for tar in tars for sample, label in labels_in_tar(tar).items()}
    named = _names_beside(tars[0], set(labels.values())) if labels and len(tars) == len(paths) and not lists else None
    entries = _by_path([(str(file), labels.get(sample_of(file)), "") for file in files])
    name = "images" if path is None else path.stem if path.is_file() else path.resolve().name
    return ToEmbed(entries, named, name, TEMPLATE, Path.cwd(), passed_over=files.said_of_others())


def _by_path(rows: Sequence[tuple[str, str | None, str]]) -> dict[str, Entry]:
    return {as_text(path): [path, label, part] for path, label, part in rows}


def _is_list(path: Path) -> bool:
    return path.suffix.lower() == ".csv"


def _names_beside(tar: Path, labels: set[str]) -> dict[str, str] | None:
    """The class names of the labels in an archive: from `classnames.txt` beside it, or the labels if they are words."""
    file = tar.parent / "classnames.txt"
    if not file.is_file() and any(label.isdecimal() for label in labels):
        return None
    return read_names(file, sorted(labels, key=lambda label: (int(label) if label.isdecimal() else -1, label)))


@dataclasses.dataclass(frozen=True)
class FeatureInquiry:
    """What is embedded and how, as plain values that can be sent to any process; see `ToEmbed` and `plan_features`."""

    backbone: str
    fingerprint: str
    start: str
    data: str | None
    root: str | None
    split: str | None
    classes: Mapping[str, str] | None
    form: str
    precision: str
    strict: bool


@dataclasses.dataclass(frozen=True)
class FeatureShard(Shard):
    """The features of the images of a shard. `inquiry` is a `FeatureInquiry`."""

    @property
    def files(self) -> Sequence[Path]:
        """The files with its features and its other columns. In some formats this is one file."""
        return shard_files(self.kept_in, self.inquiry["form"], self.number)

    def portions(self, device: str) -> Iterator[list[Record]]:
        """Encode the images and write the files."""
        encoder = kept_backbone(self.inquiry["backbone"], device)
        if encoder.fingerprint != self.inquiry["fingerprint"]:
            raise UserError(f"the backbone {encoder.name} has changed since the work began: embed in another place")
        return embed_shards([self], encoder)


def plan_features(
    place: Place,
    images: ToEmbed,
    encoder: DualEncoder,
    *,
    precision: str,
    size: int,
    strict: bool = False,
) -> list[FeatureShard]:
    """The shards for the features of images. A place with other features is refused; see `plan_lists`.

    With `strict`, an image that cannot be read is an error. Otherwise it gets no row.
    """
    inquiry = FeatureInquiry(
        backbone=encoder.name,
        fingerprint=encoder.fingerprint,
        start=str(images.start),
        data=images.data,
        root=images.root,
        split=images.split,
        classes=None if images.classes is None else dict(images.classes),
        form=place.form,
        precision=precision,
        strict=strict,
    )
    about: dict[str, Any] = {
        "format": place.form,
        "rebapl": __version__,
        "backbone": encoder.name,
        "revision": encoder.revision,
        "fingerprint": encoder.fingerprint,
        "preprocessing": dataclasses.asdict(encoder.preprocessing),
        "precision": precision,
        "width": encoder.joint_width,
        "data": images.name,
        "own": images.data is None,
        "template": images.template,
        "classes": inquiry.classes,
    }
    lists = plan_lists(place, json.loads(json.dumps(about)), images.entries, size)
    plain = dataclasses.asdict(inquiry)
    return [FeatureShard(place.folder_of(number), plain, number, len(images)) for number, images in enumerate(lists)]


def features_place(out: Path, form: str) -> Place:
    """A folder as a place of features."""
    return Place(out, form, joined=False, what=WHAT)


def embed_shards(
    shards: Sequence[FeatureShard], encoder: DualEncoder, pace: Pace | None = None
) -> Iterator[list[Record]]:
    """Embed the images of shards in one stream, and write each shard when it is complete.

    Yields for each portion of images their records, each with the `image` and the `error` (None if it could be read).
    """
    if not shards:
        return
    inquiry, pace = FeatureInquiry(**shards[0].inquiry), pace or Pace()
    size = CPU_PORTION if encoder.device.type == "cpu" else CHUNK
    done = _embedded(read_ahead(_reader(inquiry, encoder), entries_of(shards), size, pace), encoder, pace)

    def write(shard: FeatureShard, embedded: list[_Embedded]) -> None:
        readable = [image for image in embedded if image.feature is not None]
        features = np.array([image.feature for image in readable], dtype=PRECISIONS[inquiry.precision])
        features = features.reshape(-1, encoder.joint_width)  # also if there is none
        broken = [(image.row.image_path, image.error) for image in embedded if image.feature is None]
        shard.write(shard_bytes([image.row for image in readable], features, inquiry.form), broken)

    for portion in written(by_one_torch_thread(done) if encoder.device.type == "cuda" else done, shards, write):
        yield [{"image": row.image_path, "error": error or None} for row, error, _ in portion]


class _Embedded(NamedTuple):
    """One image: its row, the reason why it could not be read (empty if it could), and otherwise its feature (e,)."""

    row: FeatureRow
    error: str
    feature: np.ndarray | None


def _embedded(
    portions: Iterator[tuple[list[tuple[FeatureRow, str]], Tensor]], encoder: DualEncoder, pace: Pace
) -> Iterator[list[_Embedded]]:
    for portion, views in portions:
        features = iter(encode(encoder, views).numpy() if len(views) else ())
        pace.answered(len(portion))
        yield [_Embedded(row, error, None if error else next(features)) for row, error in portion]


def _reader(inquiry: FeatureInquiry, encoder: DualEncoder) -> Callable[[Entry], tuple[FeatureRow, Tensor | None, str]]:
    """A function that reads an image: its row, its view, and an empty text; or its row, None, and the error."""
    start, classes = Path(inquiry.start), inquiry.classes or {}
    dataset = None if inquiry.data is None else _dataset(inquiry.data, inquiry.root, inquiry.split)

    def read(entry: Entry) -> tuple[FeatureRow, Tensor | None, str]:
        name, label, part = entry
        row = FeatureRow(as_text(name), "", label, classes.get(label), part or None)
        try:
            if dataset is None:
                image, checksum = read_image(start / name), image_sha256(start / name)
            else:
                image = as_rgb(dataset.load(name), upright=False)  # `load` has turned it upright if it should be
                checksum = dataset.checksum(name, image)
            return row._replace(sha256=checksum), encoder.preprocessing.centre(image), ""
        except UnreadableImageError as error:
            if inquiry.strict:
                raise
            return row, None, error.reason

    return read


@functools.lru_cache(maxsize=1)
def _dataset(name: str, root: str | None, split: str | None) -> Dataset:
    return load_dataset(name, root, split=split)
