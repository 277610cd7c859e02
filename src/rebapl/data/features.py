"""Stored features: a folder that `rebapl embed` wrote. It can be used in the place of the images.

    _about.json              the backbone and preprocessing that made the features, their precision, classes, template
    shard-000000.parquet     image_path, sha256 (of the file), label, class, split, and feature: one row per image

or, in the layout that clip-retrieval writes,

    img_emb/img_emb_000000.npy             the features (n, e) of a shard
    metadata/metadata_000000.parquet       the other columns, in the same order

A feature is the output of the frozen image tower, normalised to length one, as float16 or float32. An image that could
not be read has no row. `label` is the data set's own word for the class (a folder's name, or a word or number in a
list), `class` is the name of the class, and `split` is train, val or test; each is null where it is not known.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from rebapl.errors import UserError, printable
from rebapl.files import import_parquet, read_json
from rebapl.wording import few

ABOUT = "_about.json"
"""The file that describes a folder of features. Readers of Parquet folders skip files whose names begin with `_`."""

WHAT = "features of rebapl embed"
FORMS = ("parquet", "npy")
PRECISIONS = {"float16": np.float16, "float32": np.float32}


class FeatureRow(NamedTuple):
    """The row of an image without its feature: its path, the checksum of its file, its label, class and split."""

    image_path: str
    sha256: str
    label: str | None
    class_name: str | None
    split: str | None


COLUMNS = ("image_path", "sha256", "label", "class", "split")
"""The columns that hold a `FeatureRow`."""


def shard_files(folder: Path, form: str, number: int) -> list[Path]:
    """The files of a shard: one with everything, or in the form `npy` one with features and one with other columns.

    Shards of answers have the same names, with the ending of their own format.
    """
    if form == "npy":
        names = [f"img_emb/img_emb_{number:06}.npy", f"metadata/metadata_{number:06}.parquet"]
        return [folder / name for name in names]
    return [folder / f"shard-{number:06}.{form.partition('-')[0]}"]


def shard_bytes(rows: Sequence[FeatureRow], features: np.ndarray, form: str) -> list[bytes]:
    """The content of each of the `shard_files` of a shard with these rows and features (n, e)."""
    import pyarrow

    columns = list(zip(*rows, strict=True)) or [()] * len(COLUMNS)
    table = pyarrow.table(
        {name: pyarrow.array(values, pyarrow.string()) for name, values in zip(COLUMNS, columns, strict=True)}
    )
    if form == "npy":
        stream = io.BytesIO()
        np.save(stream, features)
        return [stream.getvalue(), _parquet_bytes(table)]
    flat = pyarrow.array(features.reshape(-1))
    return [
        _parquet_bytes(table.append_column("feature", pyarrow.FixedSizeListArray.from_arrays(flat, features.shape[1])))
    ]


def _parquet_bytes(table: Any) -> bytes:
    stream = io.BytesIO()
    import_parquet().write_table(table, stream, compression={"feature": "none"})
    return stream.getvalue()


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Say in one line that a file of features is missing or damaged."""
    try:
        yield
    except UserError:
        raise
    except FileNotFoundError as error:
        raise UserError(f"{printable(str(path))} is missing: embed again") from error
    except (OSError, EOFError, ValueError, LookupError) as error:
        raise UserError(f"{printable(str(path))} is damaged ({error}): remove it and embed again") from error


def is_features(path: Path) -> bool:
    """Whether a folder holds stored features."""
    about = path / ABOUT
    return about.is_file() and read_json(about, "a folder of features").get("what") == WHAT


@dataclass(frozen=True)
class StoredFeatures:
    """The features in a folder. `about` is the content of its `_about.json`. `read` opens a folder."""

    folder: Path
    about: Mapping[str, Any]

    @classmethod
    def read(cls, folder: Path) -> StoredFeatures:
        """Open a folder of features. A folder that is not complete is refused."""
        about, shown = read_json(folder / ABOUT, "a folder of features"), printable(str(folder))
        if about.get("what") != WHAT:
            raise UserError(f"{shown} holds {about.get('what')}, not {WHAT}")
        if not about.get("complete"):
            raise UserError(f"{shown} is not complete: give the command `rebapl embed` again, and it goes on")
        import_parquet()
        return cls(folder, about)

    def __len__(self) -> int:
        """The number of images that have features."""
        return self.about["rows"] - self.about["cannot_be_read"]

    @property
    def own(self) -> bool:
        """Whether they are features of somebody's own images, and not of a data set of the catalogue."""
        return self.about.get("own", False)

    @property
    def backbone(self) -> str:
        """The name of the backbone that made the features."""
        return self.about["backbone"]

    def check(self, fingerprint: str, name: str) -> None:
        """Refuse a backbone other than the one that made the features.

        `name` and `fingerprint` are those of the backbone that is to be used. The fingerprint depends on its weights
        and its preprocessing.
        """
        if fingerprint != self.about["fingerprint"]:
            raise UserError(
                f"{printable(str(self.folder))} holds features of the backbone {self.backbone} "
                f"({self.about['fingerprint'][:16]}), and this needs those of {name} ({fingerprint[:16]}): embed the "
                f"images with it, or take the backbone of the features"
            )

    @property
    def numbers(self) -> range:
        """The numbers of the shards."""
        return range(self.about["shards"])

    def shards(self) -> list[tuple[int, str, int]]:
        """For each shard that has rows, its number, the path of its first image, and how many rows it has."""
        shards = []
        for number in self.numbers:
            path = self._files(number)[-1]
            with _readable(path), import_parquet().ParquetFile(path) as file:
                if rows := file.metadata.num_rows:
                    first = next(file.iter_batches(1, columns=["image_path"]))["image_path"][0].as_py()
                    shards.append((number, first, rows))
        return shards

    def _files(self, number: int) -> list[Path]:
        return shard_files(self.folder, self.about["format"], number)

    def portions(self, size: int, numbers: Iterable[int] | None = None) -> Iterator[tuple[list[str], Tensor]]:
        """Paths and features float32 (n, e) of the images in these shards, or in all shards, n ≤ `size` at a time."""
        for number in self.numbers if numbers is None else numbers:
            paths, features = self._paths(number), self._features(number)
            for first in range(0, len(paths), size):
                part = features[first : first + size].astype(np.float32)  # a copy: Parquet's arrays are read-only
                yield paths[first : first + size], torch.from_numpy(part)

    def _paths(self, number: int) -> list[str]:
        return self._column(number, "image_path").to_pylist()

    def _column(self, number: int, name: str) -> Any:
        path = self._files(number)[-1]
        with _readable(path):
            return import_parquet().read_table(path, columns=[name])[name].combine_chunks()

    def _features(self, number: int) -> np.ndarray:
        """The features (n, e) of a shard in the precision in which they are stored."""
        path = self._files(number)[0]
        with _readable(path):
            if self.about["format"] == "npy":
                features = np.load(path, allow_pickle=False)
            else:
                features = self._column(number, "feature").flatten().to_numpy(zero_copy_only=False)
            return features.reshape(-1, self.about["width"])

    def rows(self) -> Iterator[FeatureRow]:
        """The rows of all images, without their features, in their order."""
        for number in self.numbers:
            yield from map(FeatureRow, *(self._column(number, name).to_pylist() for name in COLUMNS))

    def of(self, keys: Sequence[str]) -> Tensor:
        """The features float32 (n, e) of the images with these paths. A shard that holds some of them is read once."""
        features = np.empty((len(keys), self.about["width"]), dtype=np.float32)
        if lacking := [key for key in keys if key not in self._where]:
            raise UserError(
                f"{printable(str(self.folder))} has no features of {few(lacking)}: they could not be read when it was "
                "made, or were not among the images"
            )
        numbers, rows = np.array([self._where[key] for key in keys], dtype=int).reshape(-1, 2).T
        for number in np.unique(numbers).tolist():
            features[numbers == number] = self._latest(number)[rows[numbers == number]]
        return torch.from_numpy(features)

    @cached_property
    def _latest(self) -> Callable[[int], np.ndarray]:
        """`_features`, which remembers the last shard, because images are read in portions and in their order."""
        return lru_cache(maxsize=1)(self._features)

    @cached_property
    def _where(self) -> dict[str, tuple[int, int]]:
        """The number of the shard that holds each path, and the row of the path in that shard."""
        return {key: (number, row) for number in self.numbers for row, key in enumerate(self._paths(number))}

    @cached_property
    def checksums(self) -> dict[str, str]:
        """The checksum of the file of each image, by its path."""
        return {row.image_path: row.sha256 for row in self.rows()}

    def load(self, key: str) -> Image.Image:
        """Raise an error: a folder of features holds no images."""
        raise UserError(
            f"{printable(str(self.folder))} holds features of images, and this needs the images themselves ({key}): "
            f"name the folder of the images, or a method that reads features only, such as zero-shot or coop"
        )
