"""Folders of small pictures for tests of a person's own data."""

from pathlib import Path
from zlib import crc32

import numpy as np
from PIL import Image


def draw(*paths: Path) -> None:
    """Draw a small picture at each path, in the colour of its folder with noise, so that all are different."""
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        noise, colour = (_drawn("/".join(path.parts[-3:]), (8, 10, 3)), _drawn(path.parent.name, (3,)))
        Image.fromarray(noise // 2 + colour // 2).save(path)


def _drawn(text: str, shape: tuple[int, ...]) -> np.ndarray:
    seed = crc32(text.encode("utf-8", "surrogateescape"))
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def class_folders(parent: Path, **counts: int) -> Path:
    """Draw `parent/<class>/<number>.png`, for each class the given number of pictures."""
    draw(*(parent / name / f"{number}.png" for name, count in counts.items() for number in range(count)))
    return parent


def coloured_squares(parent: Path) -> Path:
    """Draw `parent/<split>/<class>/<number>.png`: red and blue squares, few in each split."""
    for split, count in (("train", 2), ("val", 1), ("test", 2)):
        for name, colour in (("red square", "red"), ("blue square", "blue")):
            folder = parent / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                Image.new("RGB", (24, 24), colour).save(folder / f"{number}.png")
    return parent
