"""From the files of a published data set to its items. A missing file is an error that says where to get it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rebapl.data.dataset import Dataset, Item
from rebapl.data.images import EXTENSIONS, FileImages
from rebapl.data.published import Entry
from rebapl.data.splits import SPLITS, Splits, check_items, check_key, few, named_split, read_split
from rebapl.errors import UserError
from rebapl.files import read_lines


def load_published(entry: Entry, root: Path, split: str | None = None, template: str | None = None) -> Dataset:
    """Load a published data set below `root`. `split` names another split file, in its folder or by its path."""
    folder = root / entry.folder
    images = folder / entry.images
    if not images.is_dir():
        raise missing(entry, root, images)
    if split is not None:
        splits = read_split(named_split(folder, split), repeats=True)
    else:
        splits = _READERS[entry.layout](entry, root)
        classes = len({item.label for items in splits for item in items})
        if classes != entry.classes:
            lists = folder / entry.lists[0] if entry.split else images
            raise UserError(f"{lists} has {classes} classes; {entry.title} has {entry.classes}: {_see(entry)}")
    load = FileImages(images, upright=False)
    return Dataset(entry.name, template or entry.template, *splits, load, folder=images)


def missing(entry: Entry, root: Path, path: Path) -> UserError:
    """The error for a file or folder that is not there."""
    never = " Splits are never made up." if path.name in entry.lists and path.name != "classnames.txt" else ""
    whence = "; ".join(entry.sources_of(path.name))
    return UserError(f"{entry.title} is not complete below {root}: there is no {path}. To get it: {whence}.{never}")


def _see(entry: Entry) -> str:
    return f"see `rebapl data list {entry.name}` for its files, or name a split file with split=FILE"


def _split_file(entry: Entry, root: Path) -> Splits:
    path = root / entry.folder / entry.lists[0]
    if not path.is_file():
        raise missing(entry, root, path)
    return read_split(path, repeats=True)


def _aircraft(entry: Entry, root: Path) -> Splits:
    """`variants.txt` names the classes by label; each list has lines of an image's number and its class."""
    folder = root / entry.folder
    variants = _lines(entry, root, folder / "variants.txt")
    labels = {name: label for label, name in enumerate(variants)}
    lists = []
    for split in SPLITS:
        path = folder / f"images_variant_{split}.txt"
        items = []
        for number, line in enumerate(_lines(entry, root, path), start=1):
            image, _, name = line.partition(" ")
            if name not in labels:
                raise UserError(f"{path}, line {number}: {line!r} is not an image's number and a class of variants.txt")
            items.append(Item(check_key(f"{image}.jpg", str(path)), labels[name], name))
        lists.append(items)
    splits = Splits(*lists)
    check_items(splits, str(folder), repeats=True)
    return splits


def _imagenet(entry: Entry, root: Path) -> Splits:
    """The training images, and the official validation images as test images, as is the custom.

    So no images are left to validate on, because nothing may be chosen on images that are tested later.
    """
    images = root / entry.folder / entry.images
    names = _class_names(entry, root)
    for part in ("train", "val"):
        if not (images / part).is_dir():
            raise missing(entry, root, images / part)
    return Splits(_class_folders(images, "train/", names), [], _class_folders(images, "val/", names))


def _test_only(entry: Entry, root: Path) -> Splits:
    """Folders of classes. There may be fewer folders than names; labels number the folders that there are."""
    images = root / entry.folder / entry.images
    names = _class_names(entry, root)
    found = {path.name for path in images.iterdir() if path.is_dir() and not path.name.startswith(".")}
    return Splits([], [], _class_folders(images, "", {key: name for key, name in names.items() if key in found}))


def _numbered(entry: Entry, root: Path) -> Splits:
    """Class folders called 0 … 999, in the order of the names."""
    images = root / entry.folder / entry.images
    names = {str(label): name for label, name in enumerate(_class_names(entry, root).values())}
    return Splits([], [], _class_folders(images, "", names))


def _class_names(entry: Entry, root: Path) -> dict[str, str]:
    """Names by class folder, from lines such as `n01440764 tench`; folders in order."""
    own = root / entry.folder / "classnames.txt"
    path = own if own.is_file() else root / "imagenet" / "classnames.txt"
    if not path.is_file():
        raise missing(entry, root, own)
    names: dict[str, str] = {}
    for number, line in enumerate(_lines(entry, root, path), start=1):
        folder, _, name = line.partition(" ")
        if not name.strip() or folder in names:
            raise UserError(f"{path}, line {number}: {line!r} is not a class folder, once, and a class name")
        names[check_key(folder, str(path))] = name.strip()
    return dict(sorted(names.items()))


def _class_folders(images: Path, below: str, names: dict[str, str]) -> list[Item]:
    """All images of the class folders in `images/below`, which must be those of `names`, by label and file name."""
    parent = images / below
    found = {path.name for path in parent.iterdir() if path.is_dir() and not path.name.startswith(".")}
    if lacking := [folder for folder in names if folder not in found]:
        raise UserError(f"{parent} lacks class folders of classnames.txt: {few(lacking)}")
    if extra := sorted(found - set(names)):
        raise UserError(f"{parent} has folders that classnames.txt does not name: {few(extra)}")
    items = []
    for label, (folder, name) in enumerate(names.items()):
        files = sorted(path.name for path in (parent / folder).iterdir() if _is_image(path.name))
        if not files:
            raise UserError(f"class folder {parent / folder} ({name}) has no images")
        items += [Item(f"{below}{folder}/{file}", label, name) for file in files]
    return items


def _is_image(file: str) -> bool:
    return file.lower().endswith(EXTENSIONS) and not file.startswith(".")


def _lines(entry: Entry, root: Path, path: Path) -> Sequence[str]:
    if not path.is_file():
        raise missing(entry, root, path)
    return read_lines(path)


_READERS = {
    "split": _split_file,
    "aircraft": _aircraft,
    "imagenet": _imagenet,
    "test-only": _test_only,
    "numbered": _numbered,
}
