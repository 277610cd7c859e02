"""The features of `rebapl embed` as rows of shards: the frozen image tower runs once over any number of images."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from rebapl import __version__
from rebapl.backbones import DualEncoder
from rebapl.backbones.features import encode
from rebapl.data.catalogue import is_own, load_dataset
from rebapl.data.dataset import SPLITS, Dataset
from rebapl.data.features import PRECISIONS, FeatureRow, shard_bytes
from rebapl.data.images import UnreadableImageError, as_rgb, image_sha256, read_image
from rebapl.data.own_images import TEMPLATE, has_classes, own_rows, own_template, read_names
from rebapl.data.tars import is_tar, labels_in_tar, sample_of
from rebapl.data.transforms import Preprocessing
from rebapl.errors import UserError
from rebapl.posterior.answers import CPU_PORTION, Pace, by_one_torch_thread, read_ahead
from rebapl.posterior.images import ImageFiles
from rebapl.posterior.passes import CHUNK
from rebapl.posterior.records import Record, as_text
from rebapl.runs.machine import kept_backbone
from rebapl.runs.shards import Entry

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
class FeatureMaker:
    """The `RowMaker` of features: a backbone. `about` describes the features, and `open` reads it in any process.

    The entry `work` of `about` has the fields of `ToEmbed` that say where the images are. If it is `strict`, an image
    that cannot be read is an error. Otherwise it gets no row.
    """

    about: Mapping[str, Any]
    encoder: DualEncoder

    @classmethod
    def of(
        cls, images: ToEmbed, encoder: DualEncoder, form: str, *, precision: str, strict: bool = False
    ) -> FeatureMaker:
        """The maker of the features of these images in the format `form`."""
        about: dict[str, Any] = {
            "format": form,
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
            "classes": images.classes,
            "work": {
                "start": str(images.start),
                "data": images.data,
                "root": images.root,
                "split": images.split,
                "strict": strict,
            },
        }
        return cls(about, encoder)

    @classmethod
    def open(cls, about: Mapping[str, Any], device: str) -> FeatureMaker:
        """The maker that `about` describes. A backbone that has changed since is refused."""
        encoder = kept_backbone(about["backbone"], device)
        if encoder.fingerprint != about["fingerprint"]:
            raise UserError(f"the backbone {encoder.name} has changed since the work began: embed in another place")
        return cls(about, encoder)

    def count(self, entries: Sequence[Entry]) -> int:
        """The number of images behind these entries."""
        return len(entries)

    def portions(self, entries: Iterable[Entry], pace: Pace) -> Iterator[list[Record]]:
        """A record for each image, a portion at a time: `image`, `error`, its `row`, and its `feature` (e,) or None."""
        on_cpu, work = self.encoder.device.type == "cpu", self.about["work"]
        if work["data"] is not None:
            _dataset(work["data"], work["root"], work["split"])  # before several threads ask for it
        read = functools.partial(_read_entry, work, self.about["classes"] or {}, self.encoder.preprocessing)
        images = read_ahead(read, entries, CPU_PORTION if on_cpu else CHUNK, pace, processes=not on_cpu)
        portions = self._embedded(images, pace)
        return portions if on_cpu else by_one_torch_thread(portions)

    def contents(self, records: Sequence[Record]) -> list[bytes]:
        """The contents of the files of a shard with the features of these images."""
        readable = [record for record in records if record["error"] is None]
        features = np.array([record["feature"] for record in readable], dtype=PRECISIONS[self.about["precision"]])
        features = features.reshape(-1, self.encoder.joint_width)  # also if there is none
        return shard_bytes([record["row"] for record in readable], features, self.about["format"])

    def _embedded(
        self, portions: Iterator[tuple[list[tuple[FeatureRow, str]], Tensor]], pace: Pace
    ) -> Iterator[list[Record]]:
        for portion, views in portions:
            features = iter(encode(self.encoder, views).numpy() if len(views) else ())
            pace.answered(len(portion))
            yield [
                {
                    "image": row.image_path,
                    "error": error or None,
                    "row": row,
                    "feature": None if error else next(features),
                }
                for row, error in portion
            ]


def _read_entry(
    work: Mapping[str, Any], classes: Mapping[str, str], preprocessing: Preprocessing, entry: Entry
) -> tuple[FeatureRow, np.ndarray | None, str]:
    """The row of an image, its view, and an empty text; or its row, None, and the error.

    `work` is the entry of that name in the description of the features, and `classes` has the class names by label.
    """
    name, label, part = entry
    row = FeatureRow(as_text(name), "", label, classes.get(label), part or None)
    try:
        if work["data"] is None:
            path = Path(work["start"], name)
            image, checksum = read_image(path), image_sha256(path)
        else:
            dataset = _dataset(work["data"], work["root"], work["split"])
            image = as_rgb(dataset.load(name), upright=False)  # `load` has turned it upright if it should be
            checksum = dataset.checksum(name, image)
        return row._replace(sha256=checksum), preprocessing.centre(image).numpy(), ""
    except UnreadableImageError as error:
        if work["strict"]:
            raise
        return row, None, error.reason


@functools.lru_cache(maxsize=1)
def _dataset(name: str, root: str | None, split: str | None) -> Dataset:
    return load_dataset(name, root, split=split)
