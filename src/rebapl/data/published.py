"""The fifteen published data sets: where their files are below the data root, and the rules for their class names.

`published.yaml` describes each data set. A missing file is an error that says where to get it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import ClassVar

from rebapl.data.dataset import SPLITS, Dataset, Item, Splits, check_items, check_key, named_split, read_split
from rebapl.data.images import EXTENSIONS, FileImages, subfolders
from rebapl.errors import UserError
from rebapl.files import read_json, read_lines
from rebapl.wording import few
from rebapl.yaml_files import read_yaml

ROOT_VARIABLE = "REBAPL_DATA"
"""The environment variable that holds the data root, for people who do not want to pass it every time."""


@dataclass(frozen=True)
class Entry:
    """One published data set, as `published.yaml` describes it."""

    origin: ClassVar[str] = "published"

    name: str
    title: str
    folder: str
    images: str
    layout: str
    lists: Sequence[str]
    classes: int
    counts: Sequence[int]
    template: str
    sources: Sequence[str]

    def sources_of(self, file: str) -> list[str]:
        """Where to get the list `file` or, if it is not one of the lists, the images."""
        name = file if file in self.lists else "images"
        return [source for source in self.sources if source.startswith((name, "all"))]

    def needed_files(self, root: Path, split: str | None = None) -> list[Path]:
        """The folder of images, and the lists from which the data set is read; with another `split`, no lists."""
        lists = [_list_file(self, root, name) for name in self.lists] if split is None else []
        return [root / self.folder / self.images, *lists]

    def missing(self, root: Path, split: str | None = None) -> list[Path]:
        """Those of the `needed_files` that do not exist."""
        needed = self.needed_files(root, split)
        return [path for path in needed if not (path.is_file() if path.name in self.lists else path.is_dir())]

    def load(self, root: str | Path | None = None, split: str | None = None, template: str | None = None) -> Dataset:
        """Load it from below the data root. `split` is another split file: its name in the folder, or its path."""
        root = data_root(self.name, root)
        folder, images = root / self.folder, root / self.folder / self.images
        _refuse(self, root, self.missing(root, split))
        if split is not None:
            splits = read_split(named_split(folder, split), repeats=True)
        else:
            splits = _READERS[self.layout](self, root)
            classes = len({item.label for items in splits for item in items})
            if classes != self.classes:
                lists = folder / self.lists[0] if self.layout == "split" else images
                raise UserError(
                    f"{lists} has {classes} classes; {self.title} has {self.classes}: see `rebapl data list "
                    f"{self.name}` for its files, or name a split file with split=FILE"
                )
        return Dataset(self.name, template or self.template, *splits, FileImages(images, upright=False), folder=images)


PUBLISHED: dict[str, Entry] = {
    name: Entry(name, **about) for name, about in read_yaml(Path(__file__).with_name("published.yaml")).items()
}
"""The published data sets by name."""


def data_root(name: str, root: str | Path | None = None) -> Path:
    """The folder that holds the published data sets: `root`, or the one in $REBAPL_DATA. Having neither is an error."""
    folder = given_root(root)
    if folder is None:
        entry = PUBLISHED[name]
        raise UserError(
            f"data set '{name}' is read from files: say where with --root DIR (or root=…, or ${ROOT_VARIABLE}); "
            f"DIR/{entry.folder}/{entry.images} is expected there, as `rebapl data list {name}` describes"
        )
    return folder


def given_root(root: str | Path | None = None) -> Path | None:
    """The data root: `root`, or the one in $REBAPL_DATA; None if there is neither."""
    path = root if root is not None else os.environ.get(ROOT_VARIABLE)
    if not path:
        return None
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise UserError(f"data root {folder} is not a folder")
    return folder


def _list_file(entry: Entry, root: Path, name: str) -> Path:
    """The path of a list of the data set. A variant of ImageNet may use the `classnames.txt` in ImageNet's folder."""
    own, shared = root / entry.folder / name, root / "imagenet" / name
    return shared if name == "classnames.txt" and not own.exists() and shared.exists() else own


def _refuse(entry: Entry, root: Path, missing: Sequence[Path]) -> None:
    """Refuse a data set of which lists or folders of images are missing. The error is about the first of them."""
    for path in missing:
        never = " Splits are never made up." if path.name in entry.lists and path.name != "classnames.txt" else ""
        whence = "; ".join(entry.sources_of(path.name))
        raise UserError(f"{entry.title} is not complete below {root}: there is no {path}. To get it: {whence}.{never}")


def _split_file(entry: Entry, root: Path) -> Splits:
    return read_split(root / entry.folder / entry.lists[0], repeats=True)


def _aircraft(entry: Entry, root: Path) -> Splits:
    """`variants.txt` lists the classes by label. Each line of a split's list has an image's number and its class."""
    folder = root / entry.folder
    labels = {name: label for label, name in enumerate(read_lines(folder / "variants.txt"))}
    lists = []
    for split in SPLITS:
        path = folder / f"images_variant_{split}.txt"
        items = []
        for number, line in enumerate(read_lines(path), start=1):
            image, _, name = line.partition(" ")
            if name not in labels:
                raise UserError(f"{path}, line {number}: {line!r} is not an image's number and a class of variants.txt")
            items.append(Item(check_key(f"{image}.jpg", str(path)), labels[name], name))
        lists.append(items)
    splits = Splits(*lists)
    check_items(splits, str(folder), repeats=True)
    return splits


def _imagenet(entry: Entry, root: Path) -> Splits:
    """The training images, and the official validation images as test images, as is usual.

    So there are no validation images, because settings must not be chosen on images that are tested later.
    """
    images, names = root / entry.folder / entry.images, _class_names(entry, root)
    _refuse(entry, root, [images / part for part in ("train", "val") if not (images / part).is_dir()])
    return Splits(_class_folders(images, "train/", names), [], _class_folders(images, "val/", names))


def _variant(entry: Entry, root: Path) -> Splits:
    """The images in class folders, which are named 0 … 999 in the order of the class names, or as in ImageNet.

    With ImageNet's names there may be fewer folders than class names. Labels then number the folders that exist.
    """
    images, names = root / entry.folder / entry.images, _class_names(entry, root)
    if entry.layout == "numbered":
        names = {str(label): name for label, name in enumerate(names.values())}
    else:
        existing = subfolders(images)
        names = {folder: name for folder, name in names.items() if folder in existing}
    return Splits([], [], _class_folders(images, "", names))


TEST_ONLY = ("test-only", "numbered")
"""The layouts of ImageNet's variants, which have no training images."""

_READERS: dict[str, Callable[[Entry, Path], Splits]] = {
    "split": _split_file,
    "aircraft": _aircraft,
    "imagenet": _imagenet,
    "test-only": _variant,
    "numbered": _variant,
}
"""The function that reads the items, by the layout of the files."""


def _class_names(entry: Entry, root: Path) -> dict[str, str]:
    """The class names by class folder, from lines such as `n01440764 tench`. The folders are sorted."""
    path = _list_file(entry, root, "classnames.txt")
    names: dict[str, str] = {}
    for number, line in enumerate(read_lines(path), start=1):
        folder, _, name = line.partition(" ")
        if not name.strip() or folder in names:
            raise UserError(f"{path}, line {number}: {line!r} is not a class folder, once, and a class name")
        names[check_key(folder, str(path))] = name.strip()
    return dict(sorted(names.items()))


def _class_folders(images: Path, below: str, names: dict[str, str]) -> list[Item]:
    """All images of the class folders in `images/below`, sorted by label and file name. The folders must be `names`."""
    parent = images / below
    folders = subfolders(parent)
    if lacking := [folder for folder in names if folder not in folders]:
        raise UserError(f"{parent} lacks class folders of classnames.txt: {few(lacking)}")
    if extra := [folder for folder in folders if folder not in names]:
        raise UserError(f"{parent} has folders that classnames.txt does not name: {few(extra)}")
    items = []
    for label, (folder, name) in enumerate(names.items()):
        files = (path.name for path in (parent / folder).iterdir() if not path.name.startswith("."))
        keys = [f"{below}{folder}/{file}" for file in sorted(files) if file.lower().endswith(EXTENSIONS)]
        if not keys:
            raise UserError(f"class folder {parent / folder} ({name}) has no images")
        items += [Item(key, label, name) for key in keys]
    return items


CALTECH_RENAMED = {"airplanes": "airplane", "Faces": "face", "Leopards": "leopard", "Motorbikes": "motorbike"}
CALTECH_DROPPED = ("BACKGROUND_Google", "Faces_easy")

EUROSAT = {
    "AnnualCrop": "Annual Crop Land",
    "Forest": "Forest",
    "HerbaceousVegetation": "Herbaceous Vegetation Land",
    "Highway": "Highway or Road",
    "Industrial": "Industrial Buildings",
    "Pasture": "Pasture Land",
    "PermanentCrop": "Permanent Crop Land",
    "Residential": "Residential Buildings",
    "River": "River",
    "SeaLake": "Sea or Lake",
}


def year_first(official: str) -> str:
    """The name of a class of StanfordCars with the year in front.

    >>> year_first("Audi TTS Coupe 2012")
    '2012 Audi TTS Coupe'
    """
    *words, year = official.split(" ")
    return " ".join([year, *words])


def place_last(official: str) -> str:
    """The name of a class of SUN397 without the initial, and with the word that distinguishes two places in front.

    >>> place_last("a/apartment_building/outdoor"), place_last("a/abbey")
    ('outdoor apartment_building', 'abbey')
    """
    return " ".join(reversed(official.split("/")[1:]))


def _folder(key: str) -> str:
    return PurePosixPath(key).parts[0]


def _caltech(key: str) -> str | None:
    folder = _folder(key)
    return None if folder in CALTECH_DROPPED else CALTECH_RENAMED.get(folder, folder)


NAME_RULES: dict[str, Callable[[str], str | None]] = {
    "caltech101": _caltech,
    "oxford_pets": lambda key: key.rpartition("_")[0].lower(),
    "food101": _folder,
    "sun397": lambda key: place_last(str(PurePosixPath(key).parent)),
    "dtd": _folder,
    "eurosat": lambda key: EUROSAT.get(_folder(key)),
    "ucf101": _folder,  # such as Apply_Eye_Makeup
}
"""The class name that the published split files give an image, from its path; None if it belongs to no class.

>>> NAME_RULES["caltech101"]("Faces/image_0001.jpg"), NAME_RULES["eurosat"]("SeaLake/SeaLake_7.jpg")
('face', 'Sea or Lake')
"""


def names_by_label(dataset: str, folder: Path) -> list[str] | None:
    """The class names of StanfordCars and Flowers102, by label, from a file beside their images, if the file exists."""
    if dataset == "stanford_cars" and (file := folder / "devkit" / "cars_meta.mat").is_file():
        from scipy.io import loadmat  # imported here, because only this data set needs it

        return [year_first(str(cell[0])) for cell in loadmat(file)["class_names"][0]]
    if dataset == "oxford_flowers" and (file := folder / "cat_to_name.json").is_file():
        names = read_json(file, "Flowers102's list of names")
        return [names[str(number + 1)] for number in range(len(names))]
    return None
