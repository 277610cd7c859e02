"""A data set: labelled items in three splits, how to get an item's image, and the split files that list the items.

Split files are in the published format: {"train": [[path, label, class name], …], "val": …, "test": …}.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from PIL import Image

from rebapl.data.features import StoredFeatures
from rebapl.data.workers import in_threads
from rebapl.errors import UserError
from rebapl.files import read_json, sha256, write_atomically
from rebapl.wording import few

SPLITS = ("train", "val", "test")

_OUTSIDE = re.compile(r"^\s*$|\0|^[/\\]|^[A-Za-z]:|(^|[/\\])\.\.([/\\]|$)")
NOT_UNICODE = re.compile("[\ud800-\udfff]")
"""The bytes of another encoding, as Python has them in the name of a file."""


def check_template(template: object) -> None:
    """Refuses a template that does not hold `{}` once, where the class name goes."""
    if not isinstance(template, str) or template.count("{}") != 1:
        raise UserError(f"template {template!r} must hold '{{}}' once, where the class name goes")


class Item(NamedTuple):
    """One labelled image. `key` is its path below the data root or, for a drawn image, the text it is drawn from."""

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
    """The items of a data set in the order of its files."""

    train: Sequence[Item]
    val: Sequence[Item]
    test: Sequence[Item]


@dataclass(frozen=True)
class Dataset:
    """Items in the order of the published split files, which the few-shot rule depends on.

    `load` turns an item's key into an RGB image. `template` has one `{}` for the class name. So that the label of an
    image stays true, augmentation must leave at least `min_crop` of its area, and mirror it only if `flip`. If the
    images are files, their keys are paths below `folder`; drawn images have no folder. If `features` are stored, they
    stand for the images, which `load` then refuses to give.
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

    @property
    def splits(self) -> Splits:
        """The items of the three splits."""
        return Splits(self.train, self.val, self.test)

    @property
    def items(self) -> list[Item]:
        """All items, the training ones first."""
        return [*self.train, *self.val, *self.test]

    @cached_property
    def contents(self) -> Mapping[str, str]:
        """A text for each image, by key: the same for files with the same bytes. Only files of one size are read."""
        if self.features is not None:
            return self.features.checksums
        contents, by_size = {item.key: item.key for item in self.items}, dict[int, list[str]]()
        if (folder := self.folder) is None:
            return contents
        for key in contents:
            if (folder / key).is_file():
                by_size.setdefault((folder / key).stat().st_size, []).append(key)
        alike = [key for keys in by_size.values() if len(keys) > 1 for key in keys]
        return contents | dict(zip(alike, in_threads(lambda key: sha256(folder / key), alike), strict=True))

    def copies(self) -> list[list[Item]]:
        """The images that are copies of one another, a list for each content."""
        groups: dict[str, list[Item]] = {}
        for item in sorted(set(self.items)):
            groups.setdefault(self.contents[item.key], []).append(item)
        return [group for group in groups.values() if len(group) > 1]

    @property
    def class_names(self) -> list[str]:
        """Class names by label, 0 … n−1."""
        names = {item.label: item.class_name for item in self.items}
        if sorted(names) != list(range(len(names))):
            raise UserError(f"the labels of data set '{self.name}' are not 0 … {len(names) - 1}: {sorted(names)}")
        return [names[label] for label in sorted(names)]


def read_split(path: Path, repeats: bool = False) -> Splits:
    """The items that a split file lists, checked; see `check_items`."""
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
    """The path of a split file that a person named. A name without a path means a file in the data set's folder."""
    return folder / split if Path(split).name == split else Path(split)


def write_split(path: Path, splits: Splits) -> None:
    """Write a split file, one item a line, at once or not at all."""
    lines = [
        f'"{split}": [\n' + ",\n".join(json.dumps(list(item), ensure_ascii=False) for item in items) + "\n]"
        for split, items in zip(SPLITS, splits, strict=True)
    ]
    write_atomically(path, "{\n" + ",\n".join(lines) + "\n}\n")


def check_key(key: str, where: str) -> str:
    """The key as a plain relative path, without `./` and `//`. A path that leads out of the data root is refused.

    Links inside the root are followed, because its owner put them there, to keep images on another disk.
    """
    if _OUTSIDE.search(key):
        raise UserError(f"{where}: path {key!r} leads outside the data folder: write paths below it")
    if NOT_UNICODE.search(key):
        raise UserError(f"{where}: path {key!r} is not valid Unicode: rename the file or folder")
    return str(PurePosixPath(key))


def check_items(splits: Splits, where: str, repeats: bool = False, tested: bool = True) -> None:
    """Refuse a split that would train or score wrongly.

    Refused are labels that leave out a number, a class with two names, a name with two classes (unless `repeats`), an
    image that is listed twice, a class that cannot be learned or tested, and, where it is to be `tested`, a split
    without test images.
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
    """Refuse classes that would have the same text. Only published lists may have them, as ImageNet's has."""
    seen: dict[str, str] = {}
    for name in names:
        text = " ".join(unicodedata.normalize("NFC", name).replace("_", " ").split()).casefold()
        if text in seen:
            like = "" if seen[text] == name else f" (the other time as {seen[text]!r})"
            raise UserError(f"{where}: class name {name!r} is given twice{like}: names must differ")
        seen[text] = name
