"""Backgrounds: one colour, a gradient, a faint pattern, or clutter."""

import numpy as np

from rebapl.data.drawing.canvas import (
    OVERSAMPLING,
    SIZE,
    Picture,
    lay,
    mask,
    pixel_grid,
)
from rebapl.data.drawing.colours import Colour, blend, colour_apart_from, tone_apart_from
from rebapl.data.drawing.textures import TEXTURES, texture

LEAST_CONTRAST = 0.4
"""Between a background and what stands before it."""


def flat(colour: Colour) -> Picture:
    """A picture of one colour."""
    return np.broadcast_to(colour, (SIZE, SIZE, 3)).astype(np.float32)


def gradient(first: Colour, second: Colour, turn: float) -> Picture:
    """From the first colour to the second along the direction `turn` in radians."""
    x, y = pixel_grid()
    ramp = (np.cos(turn) * (x - SIZE / 2) + np.sin(turn) * (y - SIZE / 2)) / SIZE
    return lay(flat(first), np.clip(0.5 + ramp, 0, 1).astype(np.float32), second)


def clutter(rng: np.random.Generator, picture: Picture, pieces: int, strength: float, other: Colour) -> Picture:
    """The picture with random lines and blobs over it, at `strength`, in tones away from the colour `other`."""
    for _ in range(pieces):
        x0, y0, x1, y1 = rng.uniform(0, SIZE * OVERSAMPLING, 4)
        width = rng.uniform(1, 3) * OVERSAMPLING
        if rng.random() < 0.6:
            coverage = mask(lambda pen: pen.line((x0, y0, x1, y1), fill=255, width=round(width)))  # noqa: B023
        else:
            box = (x0 - 2 * width, y0 - 2 * width, x0 + 2 * width, y0 + 2 * width)
            coverage = mask(lambda pen: pen.ellipse(box, fill=255))  # noqa: B023
        picture = lay(picture, strength * coverage, tone_apart_from(rng, other, LEAST_CONTRAST))
    return picture


def background(rng: np.random.Generator, other: Colour) -> tuple[str, Picture]:
    """A background that the colour `other` stands out from, and its name: a colour or the kind of background."""
    named = rng.random() < 0.5
    if named:
        name, base = colour_apart_from(rng, other, LEAST_CONTRAST)
    else:
        name, base = "neutral", tone_apart_from(rng, other, LEAST_CONTRAST)
    kind = rng.choice(["plain", "gradient", "patterned", "cluttered"], p=[0.55, 0.15, 0.15, 0.15])
    if kind == "plain":
        return name, flat(base)
    second = tone_apart_from(rng, other, LEAST_CONTRAST)
    if kind == "gradient":
        return kind, gradient(base, second, rng.uniform(0, 2 * np.pi))
    if kind == "patterned":
        pattern = TEXTURES[rng.integers(1, len(TEXTURES))]
        share = texture(rng, pattern, rng.uniform(4, 14), (0, 0), rng.uniform(0, np.pi))
        return kind, lay(flat(base), share, blend(base, second, rng.uniform(0.2, 0.45)))
    return kind, clutter(rng, flat(base), int(rng.integers(3, 9)), rng.uniform(0.3, 0.8), other)
