"""A data set: labelled items in three splits, a function that loads an item's image, and the files that list the items.

Split files have the published format: {"train": [[path, label, class name], …], "val": …, "test": …}.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

from PIL import Image

from rebapl.data.images import as_rgb, image_sha256
from rebapl.data.workers import in_threads
from rebapl.errors import UserError
from rebapl.files import read_json, write_atomically
from rebapl.wording import few

if TYPE_CHECKING:
    from rebapl.data.features import StoredFeatures

SPLITS = ("train", "val", "test")

_OUTSIDE = re.compile(r"^\s*$|\0|^[/\\]|^[A-Za-z]:|(^|[/\\])\.\.([/\\]|$)")
NOT_UNICODE = re.compile("[\ud800-\udfff]")
"""Surrogates. Python puts them into a file's name in the place of bytes that are not UTF-8."""


def check_template(template: object) -> None:
    """Refuse a template that does not contain `{}` exactly once, where the class name goes."""
    if not isinstance(template, str) or template.count("{}") != 1:
        raise UserError(f"template {template!r} must hold '{{}}' once, where the class name goes")


class Item(NamedTuple):
    """One labelled image. `key` is its path below the data folder, or the text from which a drawn image is drawn."""

    key: str
    label: int
    class_name: str


def by_label(items: Iterable[Item]) -> dict[int, list[Item]]:
    """The items of each label, in the order in which labels first appear."""
    groups: dict[int, list[Item]] = {}
    for item in items:
        groups.setdefault(item.label, []).append(item)
    return groups


class Splits(NamedTuple):
    """The items of the three splits, in the order in which the split files list them."""

    train: Sequence[Item]
    val: Sequence[Item]
    test: Sequence[Item]


@dataclass(frozen=True)
class Dataset:
    """Items in the order of the published split files, on which the few-shot rule depends.

    `load` turns an item's key into an RGB image. `template` has one `{}` for the class name. Augmentation must keep at
    least `min_crop` of an image's area, and may mirror the image only if `flip` is true; otherwise its label could
    become wrong. If the images are files, their keys are paths below `folder`; drawn images have no folder. A data set
    of stored `features` has no images, and `load` raises an error. `own` says that these are somebody's own images:
    `name` may then be that of a published data set by chance.
    """

    name: str
    template: str
    train: Sequence[Item]
    val: Sequence[Item]
    test: Sequence[Item]
    load: Callable[[str], Image.Image]
    min_crop: float = 0.0
    flip: bool = True
    folder: Path | None = None
    features: StoredFeatures | None = None
    own: bool = False

    @property
    def catalogue_name(self) -> str:
        """The name by which catalogues and recipes may know it; empty for somebody's own images."""
        return "" if self.own else self.name

    @property
    def splits(self) -> Splits:
        """The items of the three splits."""
        return Splits(self.train, self.val, self.test)

    @property
    def items(self) -> list[Item]:
        """All items, the training ones first."""
        return [*self.train, *self.val, *self.test]

    def checksum(self, key: str, image: Image.Image | None = None) -> str:
        """The SHA-256 of the file of an image or, if it has no file, of its RGB pixels.

        A file is not decoded. `image` is the picture, if it has been loaded already. For stored features it is the
        checksum of the file from which they were computed.
        """
        if self.features is not None:
            return self.features.checksums[key]
        if self.folder is not None:
            return image_sha256(self.folder / key)
        picture = as_rgb(self.load(key) if image is None else image, upright=False)
        return hashlib.sha256(picture.tobytes()).hexdigest()

    @cached_property
    def contents(self) -> Mapping[str, str]:
        """For each key a text that two images share exactly if their files have the same bytes.

        A file is read only if another file has the same size.
        """
        if self.features is not None:
            return self.features.checksums
        contents, by_size = {item.key: item.key for item in self.items}, dict[int, list[str]]()
        if (folder := self.folder) is None:
            return contents
        for key in contents:
            if (folder / key).is_file():
                by_size.setdefault((folder / key).stat().st_size, []).append(key)
        alike = [key for keys in by_size.values() if len(keys) > 1 for key in keys]
        return contents | dict(zip(alike, in_threads(self.checksum, alike), strict=True))

    def copies(self) -> list[list[Item]]:
        """The groups of images whose content is the same: one list of items for each such content."""
        groups: dict[str, list[Item]] = {}
        for item in sorted(set(self.items)):
            groups.setdefault(self.contents[item.key], []).append(item)
        return [group for group in groups.values() if len(group) > 1]

    @cached_property
    def class_names(self) -> list[str]:
        """Class names by label, 0 … n−1."""
        names = {item.label: item.class_name for item in self.items}
        if sorted(names) != list(range(len(names))):
            raise UserError(f"the labels of data set '{self.name}' are not 0 … {len(names) - 1}: {sorted(names)}")
        return [names[label] for label in sorted(names)]


def read_split(path: Path, repeats: bool = False) -> Splits:
    """Read a split file and check its items; see `check_items`, also for `repeats`."""
    if not path.exists():
        raise UserError(f"there is no split file {path}")
    content = read_json(path, "a split file")
    if set(content) != set(SPLITS):
        raise UserError(f"split file {path} must hold the lists train, val and test; found: {', '.join(content)}")
    splits = Splits(*(_listed_items(content[split], path, split) for split in SPLITS))
    check_items(splits, f"split file {path}", repeats)
    return splits


def _listed_items(entries: Any, path: Path, split: str) -> list[Item]:
    if not isinstance(entries, list):
        raise UserError(f"split file {path}: '{split}' must be a list")
    items = []
    for number, entry in enumerate(entries):
        match entry:
            case [str(key), int(label), str(name)] if not isinstance(label, bool):
                items.append(Item(check_key(key, f"split file {path}"), label, name))
            case _:
                raise UserError(f"split file {path}: {split}[{number}] is {entry!r}, not [path, label, class name]")
    return items


def named_split(folder: Path, split: str) -> Path:
    """The path of the split file `split`. A name without a folder means a file in the data set's `folder`."""
    return folder / split if Path(split).name == split else Path(split)


def write_split(path: Path, splits: Splits) -> None:
    """Write a split file with one item on each line. It appears as a whole or not at all."""
    lines = [
        f'"{split}": [\n' + ",\n".join(json.dumps(list(item), ensure_ascii=False) for item in items) + "\n]"
        for split, items in zip(SPLITS, splits, strict=True)
    ]
    write_atomically(path, "{\n" + ",\n".join(lines) + "\n}\n")


def check_key(key: str, where: str) -> str:
    """The key as a plain relative path, without `./` and `//`. A path that leads out of the data folder is refused.

    Links inside the folder are followed, because its owner made them, for example to keep images on another disk.
    """
    if _OUTSIDE.search(key):
        raise UserError(f"{where}: path {key!r} leads outside the data folder: write paths below it")
    if NOT_UNICODE.search(key):
        raise UserError(f"{where}: path {key!r} is not valid Unicode: rename the file or folder")
    return str(PurePosixPath(key))


def check_items(splits: Splits, where: str, repeats: bool = False, tested: bool = True) -> None:
    """Refuse splits that would train or score wrongly. `where` names their source in the error.

    These are errors: labels that leave out a number, a class with two names, two classes with one name (unless
    `repeats`), an image that is listed twice, a class without images in a training or test split that has any, and, if
    the data set is to be `tested`, no test images at all.
    """
    names: dict[int, str] = {}
    keys: dict[str, str] = {}
    for split, items in zip(SPLITS, splits, strict=True):
        for key, label, name in items:
            if names.setdefault(label, name) != name:
                raise UserError(f"{where}: class {label} has two names, {names[label]!r} and {name!r}")
            if not name.strip():
                raise UserError(f"{where}: class {label} has an empty name")
            if key in keys:
                raise UserError(f"{where}: {key} is listed twice, in {keys[key]} and in {split}")
            keys[key] = split
    if tested and not splits.test:
        raise UserError(f"{where} has no test images")
    if set(names) != set(range(len(names))):
        missing = few(sorted(set(range(len(names))) - set(names)))
        raise UserError(f"{where}: labels must be 0 … {len(names) - 1} without gaps; missing: {missing}")
    if not repeats:
        refuse_repeats([names[label] for label in sorted(names)], where)
    for split in ("train", "test"):
        items = getattr(splits, split)
        lacking = set(names) - {item.label for item in items}
        if items and lacking:
            raise UserError(f"{where}: no {split} image of {few(names[label] for label in sorted(lacking))}")


def refuse_repeats(names: Iterable[str], where: str) -> None:
    """Refuse classes that would have the same text. Only published lists may have such classes, as ImageNet's does."""
    name_by_text: dict[str, str] = {}
    for name in names:
        text = " ".join(unicodedata.normalize("NFC", name).replace("_", " ").split()).casefold()
        if text in name_by_text:
            like = "" if name_by_text[text] == name else f" (the other time as {name_by_text[text]!r})"
            raise UserError(f"{where}: class name {name!r} is given twice{like}: names must differ")
        name_by_text[text] = name
