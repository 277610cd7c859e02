"""The tasks that come with the package: real handwritten digits, and pictures that are drawn when they are needed.

A drawn picture depends only on its task and its key, `split/class name/number`. So no picture is stored, only the
pictures that are used are drawn, and two splits cannot share a picture.
"""

import hashlib
from collections.abc import Callable
from functools import cache, lru_cache, partial

import numpy as np
from PIL import Image

from rebapl.data.dataset import SPLITS, Dataset, Item, Splits
from rebapl.data.drawing.canvas import SIZE, to_pixels
from rebapl.data.drawing.letters import CAPITALS, draw_letter
from rebapl.data.drawing.shapes import STYLES

PER_CLASS = {"train": 32, "val": 8, "test": 20}
"""The number of pictures of each class in a drawn task."""

NUMBER_WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")

ENLARGED = 4
"""Each pixel of a scanned digit becomes a square of 4 by 4 pixels."""

MIN_CROP = 0.5
"""The least share of one of these small pictures that a crop keeps: a smaller crop might miss the object."""

LETTERS, NOISE = "letters", "noise"

NOISE_IMAGES = 300

_SHAPES = ("circle", "square", "triangle", "star", "heart", "cross", "crescent", "arrow")
_COLOURS = ("red", "green", "blue", "yellow", "purple", "orange")
_TEXTURES = ("striped", "dotted", "checkered", "zigzag")


def shape_classes() -> list[str]:
    """The 48 classes of the shapes tasks, each a colour, a texture and a shape.

    Each half of 24, base and novel, holds all 6 colours, 4 textures and 8 shapes equally often. A shape comes three
    times in a half, twice in one colour and twice in one texture, so that no word of a class name can be guessed from
    the other two. No pair of a colour and a shape is in both halves.
    """
    classes = []
    for half in range(2):
        for number, shape in enumerate(_SHAPES):
            first, second = (number + 3 * half) % 6, (2 + number % 4 + 3 * half) % 6
            texture, other = (number + 2 * half) % 4, (number + 2 * half + 1) % 4
            for colour, pattern in ((first, texture), (first, other), (second, texture)):
                classes.append(f"{_COLOURS[colour]} {_TEXTURES[pattern]} {shape}")
    return classes


def _rng(address: str) -> np.random.Generator:
    """A random generator that depends on the address alone."""
    return np.random.default_rng(int.from_bytes(hashlib.sha256(address.encode()).digest()[:8], "big"))


@lru_cache(maxsize=8192)
def _picture(task: str, key: str) -> Image.Image:
    """Draw the picture of a key. Up to 100 MB of pictures are cached, because runs in one process use the same ones."""
    words, rng = key.split("/")[1], _rng(f"{task}/{key}")
    drawn = draw_letter(rng, words) if task == LETTERS else STYLES[task](rng, *words.split())
    return Image.fromarray(to_pixels(drawn))


def _drawn(name: str, template: str, class_names: list[str], flip: bool) -> Dataset:
    train, val, test = (
        [
            Item(f"{part}/{class_name}/{number:03d}", label, class_name)
            for label, class_name in enumerate(class_names)
            for number in range(count)
        ]
        for part, count in PER_CLASS.items()
    )
    return Dataset(name, template, train, val, test, partial(_picture, name), MIN_CROP, flip)


@cache
def _digit_scans() -> tuple[np.ndarray, np.ndarray]:
    """The images (1797, 8, 8), with values from 0 to 16, and the labels (1797,)."""
    from sklearn.datasets import load_digits  # imported here: it is slow, and only this task needs it

    bunch = load_digits()
    return bunch.images, bunch.target


def _digits() -> Dataset:
    """Scikit-learn's handwritten digits. Of every ten images of a digit, 5 are in train, 2 in val and 3 in test."""

    def load(key: str) -> Image.Image:
        scan = (_digit_scans()[0][int(key.split("/")[2])] * 255 / 16).round().astype(np.uint8)
        squares = scan.repeat(ENLARGED, axis=0).repeat(ENLARGED, axis=1)
        return Image.fromarray(np.pad(squares, (SIZE - len(squares)) // 2)).convert("RGB")

    labels = _digit_scans()[1]
    items: dict[str, list[Item]] = {part: [] for part in SPLITS}
    for label, word in enumerate(NUMBER_WORDS):
        for position, index in enumerate(np.flatnonzero(labels == label)):
            part = SPLITS[np.searchsorted([5, 7], position % 10, side="right")]
            items[part].append(Item(f"{part}/{word}/{index:04d}", label, word))
    return Dataset("digits", "a photo of the number {}.", *Splits(*items.values()), load, MIN_CROP, flip=False)


def noise_images() -> Dataset:
    """Pictures that show nothing: squares of random colours, 7 to 224 squares a side. They are only test images.

    The squares have six sizes, so that some noise remains when a backbone reduces the picture.
    """

    def load(key: str) -> Image.Image:
        squares = 7 * 2 ** (int(key) % 6)
        colours = _rng(f"{NOISE}/{key}").integers(256, size=(squares, squares, 3), dtype=np.uint8)
        return Image.fromarray(colours).resize((224, 224), Image.Resampling.NEAREST)

    items = [Item(f"{number:03d}", 0, NOISE) for number in range(NOISE_IMAGES)]
    return Dataset(NOISE, "a photo of {}.", (), (), items, load)


EMBEDDED: dict[str, Callable[[], Dataset]] = {
    "digits": _digits,
    **{name: partial(_drawn, name, "a photo of a {}.", shape_classes(), flip=True) for name in STYLES},
    LETTERS: partial(_drawn, LETTERS, "a photo of the letter {}.", list(CAPITALS), flip=False),
}
"""The embedded tasks by name."""
