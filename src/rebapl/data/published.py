"""The catalogue: the fifteen published data sets, where their files come from and how they lie below the data root."""

from __future__ import annotations

from dataclasses import dataclass

OBJECT = "a photo of a {}."
COOP = "linked in DATASETS.md of github.com/KaiyangZhou/CoOp"


@dataclass(frozen=True)
class Entry:
    """One data set. `images` lies below `folder`, which lies below the data root; so do the `lists` of its items.

    `layout`: `split` (a split file in the published format), `aircraft` (the official text files), or, with names from
    a `classnames.txt`, class folders: `imagenet` (in train/ and val/) or `test-only`, `numbered` from 0 or not.
    `counts`: the published numbers of train, val and test images.
    """

    name: str
    title: str
    folder: str
    images: str
    layout: str
    lists: tuple[str, ...]
    classes: int
    counts: tuple[int, int, int]
    template: str
    sources: tuple[str, ...]

    @property
    def split(self) -> str | None:
        """The name of its split file, where it has one."""
        return self.lists[0] if self.layout == "split" else None

    def sources_of(self, file: str) -> list[str]:
        """Where one of its lists comes from or, under any other name, its images."""
        wanted = file if file in self.lists else "images"
        return [source for source in self.sources if source.startswith((wanted, "all"))]


def _split(
    name: str,
    title: str,
    folder: str,
    images: str,
    file: str,
    classes: int,
    counts: tuple[int, int, int],
    template: str,
    *sources: str,
) -> Entry:
    list_ = f"split_zhou_{file}.json"
    sources = (*sources, f"{list_}: {COOP}")
    return Entry(name, title, folder, images, "split", (list_,), classes, counts, template, sources)


def _variant(name: str, title: str, folder: str, images: str, layout: str, classes: int, test: int, url: str) -> Entry:
    sources = (url, "classnames.txt: the one of imagenet, which is used where this folder has none")
    return Entry(name, title, folder, images, layout, ("classnames.txt",), classes, (0, 0, test), OBJECT, sources)


_ALL = (
    Entry(
        "imagenet",
        "ImageNet",
        "imagenet",
        "images",
        "imagenet",
        ("classnames.txt",),
        1000,
        (1_281_167, 0, 50_000),
        OBJECT,
        (
            "images: image-net.org, ILSVRC 2012, both train/ and val/ sorted into class folders",
            f"classnames.txt: {COOP}",
        ),
    ),
    _split(
        "caltech101",
        "Caltech101",
        "caltech-101",
        "101_ObjectCategories",
        "Caltech101",
        100,
        (4128, 1649, 2465),
        OBJECT,
        "images: data.caltech.edu, Caltech 101, 101_ObjectCategories.tar.gz",
    ),
    _split(
        "oxford_pets",
        "OxfordPets",
        "oxford_pets",
        "images",
        "OxfordPets",
        37,
        (2944, 736, 3669),
        "a photo of a {}, a type of pet.",
        "images: www.robots.ox.ac.uk/~vgg/data/pets, images.tar.gz",
    ),
    _split(
        "stanford_cars",
        "StanfordCars",
        "stanford_cars",
        ".",
        "StanfordCars",
        196,
        (6509, 1635, 8041),
        OBJECT,
        "images: ai.stanford.edu/~jkrause/cars/car_dataset.html, cars_train.tgz and cars_test.tgz",
    ),
    _split(
        "oxford_flowers",
        "Flowers102",
        "oxford_flowers",
        "jpg",
        "OxfordFlowers",
        102,
        (4093, 1633, 2463),
        "a photo of a {}, a type of flower.",
        "images: www.robots.ox.ac.uk/~vgg/data/flowers/102, 102flowers.tgz",
    ),
    _split(
        "food101",
        "Food101",
        "food-101",
        "images",
        "Food101",
        101,
        (50_500, 20_200, 30_300),
        "a photo of {}, a type of food.",
        "images: data.vision.ee.ethz.ch/cvl/datasets_extra/food-101, food-101.tar.gz",
    ),
    Entry(
        "fgvc_aircraft",
        "FGVCAircraft",
        "fgvc_aircraft",
        "images",
        "aircraft",
        ("variants.txt", "images_variant_train.txt", "images_variant_val.txt", "images_variant_test.txt"),
        100,
        (3334, 3333, 3333),
        "a photo of a {}, a type of aircraft.",
        ("all: www.robots.ox.ac.uk/~vgg/data/fgvc-aircraft, fgvc-aircraft-2013b.tar.gz, its folder data/ renamed",),
    ),
    _split(
        "sun397",
        "SUN397",
        "sun397",
        "SUN397",
        "SUN397",
        397,
        (15_880, 3970, 19_850),
        OBJECT,
        "images: vision.princeton.edu/projects/2010/SUN, SUN397.tar.gz",
    ),
    _split(
        "dtd",
        "DTD",
        "dtd",
        "images",
        "DescribableTextures",
        47,
        (2820, 1128, 1692),
        "{} texture.",
        "images: www.robots.ox.ac.uk/~vgg/data/dtd, dtd-r1.0.1.tar.gz",
    ),
    _split(
        "eurosat",
        "EuroSAT",
        "eurosat",
        "2750",
        "EuroSAT",
        10,
        (13_500, 5400, 8100),
        "a centered satellite photo of {}.",
        "images: github.com/phelber/EuroSAT, EuroSAT.zip (the RGB one)",
    ),
    _split(
        "ucf101",
        "UCF101",
        "ucf101",
        "UCF-101-midframes",
        "UCF101",
        101,
        (7639, 1898, 3783),
        "a photo of a person doing {}.",
        f"images: UCF-101-midframes.zip, the middle frames of the videos, {COOP}",
    ),
    _variant(
        "imagenetv2",
        "ImageNetV2",
        "imagenetv2",
        "imagenetv2-matched-frequency-format-val",
        "numbered",
        1000,
        10_000,
        "images: github.com/modestyachts/ImageNetV2, imagenetv2-matched-frequency.tar.gz",
    ),
    _variant(
        "imagenet_sketch",
        "ImageNet-Sketch",
        "imagenet-sketch",
        "images",
        "test-only",
        1000,
        50_889,
        "images: github.com/HaohanWang/ImageNet-Sketch",
    ),
    _variant(
        "imagenet_a",
        "ImageNet-A",
        "imagenet-adversarial",
        "imagenet-a",
        "test-only",
        200,
        7500,
        "images: github.com/hendrycks/natural-adv-examples, imagenet-a.tar",
    ),
    _variant(
        "imagenet_r",
        "ImageNet-R",
        "imagenet-rendition",
        "imagenet-r",
        "test-only",
        200,
        30_000,
        "images: github.com/hendrycks/imagenet-r, imagenet-r.tar",
    ),
)

PUBLISHED: dict[str, Entry] = {entry.name: entry for entry in _ALL}
"""The published data sets by name."""
