"""Class names as the published split files have them, from the names that the data sets' own files have."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from rebapl.files import read_json

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
    """StanfordCars: the year comes first.

    >>> year_first("Audi TTS Coupe 2012")
    '2012 Audi TTS Coupe'
    """
    *words, year = official.split(" ")
    return " ".join([year, *words])


def words_apart(official: str) -> str:
    """UCF101: words written together are joined by underscores, which become spaces in text.

    >>> words_apart("ApplyEyeMakeup")
    'Apply_Eye_Makeup'
    """
    return "_".join(re.findall("[A-Z][^A-Z]*", official))


def place_last(official: str) -> str:
    """SUN397: the initial goes, and what tells places apart comes first.

    >>> place_last("a/apartment_building/outdoor"), place_last("a/abbey")
    ('outdoor apartment_building', 'abbey')
    """
    return " ".join(reversed(official.split("/")[1:]))


def _folder(key: str) -> str:
    return PurePosixPath(key).parts[0]


def _caltech(key: str) -> str | None:
    folder = _folder(key)
    return None if folder in CALTECH_DROPPED else CALTECH_RENAMED.get(folder, folder)


_RULES: dict[str, Callable[[str], str | None]] = {
    "caltech101": _caltech,
    "oxford_pets": lambda key: key.rpartition("_")[0].lower(),
    "food101": _folder,
    "sun397": lambda key: place_last(str(PurePosixPath(key).parent)),
    "dtd": _folder,
    "eurosat": lambda key: EUROSAT.get(_folder(key)),
    "ucf101": _folder,
}


def has_rule(dataset: str) -> bool:
    """Whether the class of an image can be told from its path; see `names_by_label` for two others."""
    return dataset in _RULES


def class_name(dataset: str, key: str) -> str | None:
    """The class of the image at that path of a published data set; None where it belongs to no class.

    >>> class_name("caltech101", "Faces/image_0001.jpg"), class_name("caltech101", "Faces_easy/image_0001.jpg")
    ('face', None)
    >>> class_name("eurosat", "SeaLake/SeaLake_7.jpg")
    'Sea or Lake'
    """
    return _RULES[dataset](key)


def names_by_label(dataset: str, folder: Path) -> list[str] | None:
    """The class names of StanfordCars and Flowers102 from the files beside their images, where these are there."""
    if dataset == "stanford_cars" and (file := folder / "devkit" / "cars_meta.mat").is_file():
        from scipy.io import loadmat  # late: only this data set needs it

        return [year_first(str(cell[0])) for cell in loadmat(file)["class_names"][0]]
    if dataset == "oxford_flowers" and (file := folder / "cat_to_name.json").is_file():
        names = read_json(file, "Flowers102's list of names")
        return [names[str(number + 1)] for number in range(len(names))]
    return None
