"""Named colours, and shades of them that still deserve the name."""

import numpy as np
from numpy.typing import NDArray

Colour = NDArray[np.floating]
"""Red, green and blue in [0, 1]."""

COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (215, 30, 35),
    "orange": (245, 135, 20),
    "yellow": (245, 220, 40),
    "green": (40, 150, 55),
    "cyan": (50, 200, 210),
    "blue": (35, 75, 205),
    "purple": (125, 45, 165),
    "pink": (245, 145, 185),
    "brown": (120, 72, 35),
    "black": (18, 18, 18),
    "grey": (128, 128, 128),
    "white": (245, 245, 245),
}

WHITE: Colour = np.ones(3, np.float32)
BLACK: Colour = np.zeros(3, np.float32)


def shade_of(rng: np.random.Generator, name: str, spread: float = 0.04) -> Colour:
    """A colour near the named one: `spread` is the standard deviation of each channel and of the brightness."""
    colour = np.array(COLOURS[name], np.float32) / 255
    return np.clip(colour + rng.normal(0, spread, 3) + rng.normal(0, spread), 0, 1).astype(np.float32)


def blend(first: Colour, second: Colour, share: float) -> Colour:
    """`share` of the second colour mixed into the first."""
    return (1 - share) * first + share * second


def contrast(first: Colour, second: Colour) -> float:
    """Euclidean distance in RGB; 0 for equal colours, √3 for black and white."""
    return float(np.linalg.norm(first - second))


def tone_apart_from(rng: np.random.Generator, other: Colour, least: float) -> Colour:
    """A random grey or pale tone without a colour name, at a contrast of at least `least` from `other`."""
    while True:
        tone: Colour = np.full(3, rng.random(), np.float32)
        if rng.random() < 0.5:
            tone = blend(tone, rng.random(3).astype(np.float32), 0.3)
        if contrast(tone, other) >= least:
            return tone
