"""A person's own images as a data set: a folder of images, a CSV file that lists them, or images in memory.

A folder or CSV file without splits is split once, by the rule of `make_split`, and the split is kept in a file.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rebapl.data.dataset import (
    SPLITS,
    Dataset,
    Item,
    Splits,
    by_label,
    check_items,
    check_key,
    check_template,
    named_split,
    read_split,
    refuse_repeats,
    write_split,
)
from rebapl.data.features import StoredFeatures, is_features
from rebapl.data.images import (
    EXTENSIONS,
    NO_IMAGES,
    FileImages,
    ImageLike,
    is_image,
    is_set_aside,
    picture_of,
    said_of_endings,
    subfolders,
    walk_images,
)
from rebapl.errors import UserError, unknown
from rebapl.files import NotWrittenError, read_csv, read_lines
from rebapl.randomness import python_random
from rebapl.wording import few, number_of

TEMPLATE = "a photo of a {}."
SPLIT_FILE = "split_rebapl.json"
FEWEST = 3
"""The number of images that a class needs to be split: one to train, one to validate, one to test."""


class Row(NamedTuple):
    """One of a person's images: its path, its class folder or label, and its split, which is empty if it has none."""

    key: str
    label: str
    part: str


_log = logging.getLogger(__name__)


def dataset_of(
    images: Sequence[ImageLike] | np.ndarray,
    labels: Sequence[int] | np.ndarray,
    class_names: Sequence[str],
    template: str = TEMPLATE,
    name: str = "images",
) -> Dataset:
    """Make a data set of these images. All of them are training images, and files are read when they are needed.

    `labels` are numbers: label 2 means `class_names[2]`. Every class needs an image.

    >>> pictures = np.zeros((4, 8, 8, 3), np.uint8)
    >>> dataset = dataset_of(pictures, [0, 1, 0, 1], ["cat", "dog"])
    >>> len(dataset.train), dataset.train[1].class_name, dataset.load(dataset.train[1].key).size
    (4, 'dog', (8, 8))
    """
    check_template(template)
    names = list(class_names)
    pictures = [Path(image).expanduser() if isinstance(image, str | Path) else image for image in images]
    if isinstance(class_names, str) or not all(isinstance(name, str) for name in names):
        raise UserError(f"class_names is {class_names!r}: give a list of names in words")
    numbers = [_label(label, index, len(names)) for index, label in enumerate(labels)]
    if len(pictures) != len(numbers):
        raise UserError(f"there are {len(pictures)} images and {len(numbers)} labels: each image needs one label")
    refuse_repeats(names, "class_names")
    if lacking := [name for label, name in enumerate(names) if label not in set(numbers)]:
        raise UserError(f"no image has the label of class {few(lacking)}: give images of every class")
    made = [picture_of(picture, f"image {index}") for index, picture in enumerate(pictures)]
    items = [Item(str(index), label, names[label]) for index, label in enumerate(numbers)]
    return Dataset(name, template, items, [], [], lambda key: made[int(key)](), own=True)


def _label(label: object, index: int, classes: int) -> int:
    if isinstance(label, bool) or not hasattr(label, "__index__") or not 0 <= label.__index__() < classes:
        raise UserError(f"label {index} is {label!r}: labels are the numbers 0 … {classes - 1} of the class names")
    return label.__index__()


def load_own(
    path: Path,
    split: str | None = None,
    template: str | None = None,
    *,
    keep_split: bool = False,
    whole: bool = False,
) -> Dataset:
    """The data set of a folder or of a CSV file.

    A folder contains `train/`, `val/` (may be missing) and `test/` with class folders in each, or class folders alone.
    Classes are numbered in the order of their folders' names. A CSV file has the columns `path`, `label` and perhaps
    `split` (train, val or test). Its paths start at its own folder. Labels are class names, or numbers whose names
    stand in `classnames.txt`. Numbers may be left out; classes are numbered in the order of their labels.

    Images without splits are split by a rule; see `kept_split`, also for `split` and `keep_split`. With `whole`, all of
    them are training images. The file `classnames.txt` beside the images may give other class names, and the file
    `template.txt` a template, which `template` replaces. Without either, the template is "a photo of a {}.".

    A folder of stored features has the images, classes and splits of the data set from which it was made.
    """
    stored = StoredFeatures.read(path) if is_features(path) else None
    is_list, folder = path.is_file(), start_of(path)
    if not is_list and keep_split and stored is None:
        _warn_of_folders_set_aside(folder)
    if not is_list and split is not None and is_split(folder):
        splits = read_split(named_split(folder, split))
    else:
        rows, names = own_rows(path) if stored is None else _stored_rows(stored)
        labels = list(names)
        number = {label: index for index, label in enumerate(labels)}
        items = [Item(row.key, number[row.label], names[row.label]) for row in rows]
        if not rows[0].part:
            name = f"{path.stem}.split.json" if is_list else SPLIT_FILE
            split_file = folder / (name if stored is None else f"_{name}")  # readers of Parquet folders skip `_…`
            all_train = Splits(sorted(items, key=lambda item: item.label), [], [])
            splits = all_train if whole else kept_split(split_file, split, all_train.train, labels, keep_split)
        elif split is not None:
            splits = read_split(named_split(folder, split))
        else:
            parted = list(zip(items, (row.part for row in rows), strict=True))
            splits = Splits(*([item for item, part in parted if part == name] for name in SPLITS))
            if not splits.train and stored is None:
                raise UserError(f"{path} lists no training images")
    check_items(splits, str(folder), repeats=stored is not None, tested=not whole)
    if stored is not None:
        wording = template or stored.about["template"]
        return Dataset(stored.about["data"], wording, *splits, stored.load, features=stored, own=stored.own)
    name = path.stem if is_list else folder.resolve().name
    wording = template or own_template(path)
    return Dataset(name, wording, *splits, FileImages(folder, upright=True), folder=folder, own=True)


def start_of(path: Path) -> Path:
    """The folder at which the paths of the images start: the folder itself, or the folder of the CSV file."""
    return path.parent if path.is_file() else path


def own_rows(path: Path) -> tuple[list[Row], dict[str, str]]:
    """The images in a folder or a CSV file, and the class names by folder or label, in the order of the classes."""
    rows, labels = _read_rows(path) if path.is_file() else _folder_rows(path)
    return rows, read_names(start_of(path) / "classnames.txt", labels)


def own_template(path: Path) -> str:
    """The template in `template.txt` beside the images in a folder or a CSV file, or "a photo of a {}."."""
    file = start_of(path) / "template.txt"
    if not file.is_file():
        return TEMPLATE
    lines = read_lines(file)
    if len(lines) != 1 or lines[0].count("{}") != 1:
        raise UserError(f"{file} must have one line, with '{{}}' once, where the class name goes")
    return lines[0]


def _stored_rows(stored: StoredFeatures) -> tuple[list[Row], dict[str, str]]:
    """The rows and the class names of stored features, as `own_rows` returns them."""
    names = stored.about["classes"]
    if names is None:
        raise UserError(
            f"{stored.folder} was embedded without classes: embed a folder with a folder of images for each class, a "
            "CSV file with path and label, or a data set by its name"
        )
    rows = [Row(row.image_path, row.label or "", row.split or "") for row in stored.rows()]
    if not rows:
        raise UserError(f"{stored.folder} holds no features: none of its images could be read when it was made")
    labels = {row.label for row in rows}
    return rows, {label: name for label, name in names.items() if label in labels}


def _warn_of_folders_set_aside(folder: Path) -> None:
    if aside := [name for name in subfolders(folder) if is_set_aside(folder / name)]:
        message = "%s: passed over, since %s in them says that they hold no images: %s"
        _log.warning(message, folder, NO_IMAGES, few(aside))


def passed_over(folder: Path) -> str:
    """Words on the files in a folder of classes that are not learned from; empty if there are none."""
    endings: Counter[str] = Counter()
    for group in _class_folders(folder):
        for _ in walk_images(folder / group, endings):
            pass
    beside = sum(map(is_image, folder.iterdir()))
    parts = [f"{number_of(beside, 'image')} beside the class folders" if beside else "", said_of_endings(endings)]
    return "; ".join(filter(None, parts))


def has_classes(path: Path) -> bool:
    """Whether a folder has class folders and no images beside them, or whether a CSV file has labels."""
    if path.is_dir():
        return bool(_class_folders(path)) and not any(is_image(file) for file in path.iterdir())
    table = read_csv(path) if path.suffix.lower() == ".csv" and path.is_file() else []
    return "label" in _header(table)


def is_flat(folder: Path) -> bool:
    """Whether a folder holds images and no class folders."""
    return folder.is_dir() and not _class_folders(folder) and any(is_image(path) for path in folder.iterdir())


def load_flat_folder(folder: Path) -> Dataset:
    """All images of a folder without classes, as the test images of one class that has the folder's name."""
    name = folder.resolve().name
    keys = sorted(path.name for path in walk_images(folder))
    items = [Item(check_key(key, str(folder)), 0, name) for key in keys]
    return Dataset(name, TEMPLATE, [], [], items, FileImages(folder, upright=True), folder=folder, own=True)


def is_split(folder: Path) -> bool:
    """Whether `train/` holds class folders. If it holds images, it is itself a class with the name train."""
    return has_classes(folder / "train")


def _folder_rows(folder: Path) -> tuple[list[Row], list[str]]:
    """The images in a folder, and its class folders in the order of the classes."""
    if not is_split(folder):
        groups = _groups(folder)
        return [Row(key, group, "") for group, keys in groups.items() for key in keys], list(groups)
    parts = _class_folders(folder)
    if "test" not in parts:
        hint = "; if val/ is what is to be tested on, rename it" if "val" in parts else ""
        raise UserError(f"{folder} has train/ but no test/: scores need images of their own{hint}")
    if others := [part for part in parts if part not in SPLITS]:
        raise UserError(f"{folder} has {few(others)} beside train/ and test/: only train/, val/ and test/ are read")
    groups_by_part = {part: _groups(folder / part, folder) for part in SPLITS if part in parts}
    classes = list(groups_by_part["train"])
    for part, groups in groups_by_part.items():
        if strange := [name for name in groups if name not in classes]:
            raise UserError(f"{folder / part} has class folders that train/ has not: {few(strange)}")
    if lacking := [name for name in classes if name not in groups_by_part["test"]]:
        raise UserError(f"{folder / 'test'} lacks class folders that train/ has: {few(lacking)}")
    rows = [
        Row(key, name, part)
        for part, groups in groups_by_part.items()
        for name in classes
        for key in groups.get(name, ())
    ]
    return rows, classes


def _groups(parent: Path, root: Path | None = None) -> dict[str, list[str]]:
    """The images in and below each class folder of `parent`, as sorted paths below `root` (None: below `parent`)."""
    groups: dict[str, list[str]] = {}
    for group in _class_folders(parent):
        keys = (path.relative_to(root or parent).as_posix() for path in walk_images(parent / group))
        groups[group] = sorted(check_key(key, str(parent)) for key in keys)
        if not groups[group]:
            raise UserError(f"class folder {parent / group} has no images ({' '.join(EXTENSIONS)}): remove or fill it")
    if not groups:
        raise UserError(f"{parent} has no class folders: put the images of each class into a folder named after it")
    return groups


def _class_folders(folder: Path) -> list[str]:
    return [name for name in subfolders(folder) if not is_set_aside(folder / name)]


def _read_rows(file: Path) -> tuple[list[Row], list[str]]:
    """The rows of a CSV file, and its labels in the order of the classes."""
    table = read_csv(file)
    header = _header(table)
    if header not in (["path", "label"], ["path", "label", "split"]):
        raise UserError(f"{file} must begin with the line path,label or path,label,split; it begins with {header}")
    rows: list[Row] = []
    lines: dict[str, int] = {}
    for number, fields in enumerate(table[1:], start=2):
        if not any(field.strip() for field in fields):
            continue
        if len(fields) != len(header) or not fields[1].strip():
            raise UserError(f"{file}, line {number}: {fields} has not the fields {header}")
        path, label, part = (*(field.strip() for field in fields), "")[:3]
        path = check_key(path, f"{file}, line {number}")
        if part not in ("", *SPLITS):
            raise unknown(f"split in {file}, line {number},", part, SPLITS)
        if path in lines:
            raise UserError(f"{file}, line {number}: {path} is listed already in line {lines[path]}")
        lines[path] = number
        rows.append(Row(path, label, part))
    if not rows:
        raise UserError(f"{file} lists no images")
    without = [row.key for row in rows if not row.part]
    if 0 < len(without) < len(rows):
        raise UserError(f"{file}: line {lines[without[0]]} has no split, but others have: give all of them or none")
    labels = sorted({row.label for row in rows}, key=lambda label: (int(label) if label.isdecimal() else -1, label))
    names = file.parent / "classnames.txt"
    if all(label.isdecimal() for label in labels) and not names.is_file():
        raise UserError(f"the labels in {file} are numbers: write names, or {names} with lines such as '0 cat'")
    return rows, labels


def _header(table: Sequence[Sequence[str]]) -> list[str]:
    """The names of the columns of a CSV file, which stand in its first row."""
    return [word.strip().lower() for word in table[0]] if table else []


def make_split(items: Sequence[Item], groups: Sequence[str]) -> Splits:
    """Split the images of each class, in a fixed random order: 20 % are for validation, 30 % for tests, the rest train.

    Each class has at least one validation image and at least one test image. The order depends only on the class and on
    the paths of its images. `groups` holds the folder or label of each class.

    >>> splits = make_split([Item(f"cat/{n}.png", 0, "cat") for n in range(10)], ["cat"])
    >>> [len(items) for items in splits]
    [5, 2, 3]
    """
    train: list[Item] = []
    val: list[Item] = []
    test: list[Item] = []
    for label, class_items in sorted(by_label(items).items()):
        order = sorted(class_items)
        if len(order) < FEWEST:
            name = order[0].class_name
            raise UserError(f"class '{name}' has {len(order)} images: a split needs at least {FEWEST} of each")
        python_random(0, "split", groups[label]).shuffle(order)
        validating, testing = max(1, round(0.2 * len(order))), max(1, round(0.3 * len(order)))
        val += order[:validating]
        test += order[validating : validating + testing]
        train += order[validating + testing :]
    return Splits(train, val, test)


def kept_split(file: Path, split: str | None, items: Sequence[Item], groups: Sequence[str], keep: bool) -> Splits:
    """The splits in `file`. If it does not exist, `items` are split (see `make_split`) and, with `keep`, written there.

    `split` is another file, which is not compared with `items`. A mere name means a file in the same folder, which must
    exist. A path means that file; if it does not exist, the images are split as well.
    """
    if split is not None:
        file = named_split(file.parent, split)
    if file.exists() or split == file.name:
        splits = read_split(file)
        if split is None:
            _check_whole(file, splits, set(items))
        return splits
    splits = make_split(items, groups)
    if not keep:
        return splits
    try:
        write_split(file, splits)
    except NotWrittenError as error:
        raise UserError(
            f"the split is made once and kept in {file}, which cannot be written ({error.why}): let the first run "
            "write it, or say with split=PATH/FILE.json where to keep it"
        ) from error
    counts = " : ".join(str(len(part)) for part in splits)
    _log.warning("images split into train : val : test = %s, kept in %s", counts, file)
    return splits


def _check_whole(file: Path, splits: Splits, present: set[Item]) -> None:
    """Refuse a split file that does not list exactly the images that are present, with their classes."""
    listed = {item for items in splits for item in items}
    anew = f"remove {file} to split anew by the same rule, or name another file with split=FILE"
    keys = {item.key for item in present}
    if gone := sorted({item.key for item in listed} - keys):
        raise UserError(f"{len(gone)} images of the split are gone: {few(gone)}. Put them back, {anew}")
    if new := sorted(keys - {item.key for item in listed}):
        raise UserError(f"{len(new)} images are new since the split was made: {few(new)}. Take them out, {anew}")
    if changed := sorted(present - listed):
        raise UserError(f"class {changed[0].class_name!r} has another name or number in the split: {anew}")


def read_names(file: Path, groups: Iterable[str]) -> dict[str, str]:
    """The class names of these folders or labels: those in the file `classnames.txt`, or themselves without that file.

    A line of the file has a folder (or label), a space or tab, and the class name. Lines for folders or labels that do
    not exist are ignored.
    """
    groups = list(groups)
    names = {group: group for group in groups}
    if file.is_file():
        by_length = sorted(groups, key=len, reverse=True)
        names = {}
        for line in read_lines(file):
            for group in by_length:
                if line.startswith((f"{group} ", f"{group}\t")) or line == group:
                    names[group] = line[len(group) :].strip() or group
                    break
        if lacking := [group for group in groups if group not in names]:
            raise UserError(f"{file} has no line for {few(lacking)}: write the folder or label, a space, and the name")
    refuse_repeats((names[group] for group in groups), str(file if file.is_file() else file.parent))
    return {group: names[group] for group in groups}
