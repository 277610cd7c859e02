"""Random backgrounds with a name: one colour, a gradient, a faint pattern, or clutter."""

import numpy as np

from captioned.shapes import ALL_TEXTURES
from rebapl.data.drawing.canvas import (
    COLOURS,
    LEAST_CONTRAST,
    Colour,
    Picture,
    blend,
    clutter,
    contrast,
    flat,
    gradient,
    lay,
    shade_of,
    tone_apart_from,
)
from rebapl.data.drawing.shapes import textured


def colour_apart_from(rng: np.random.Generator, other: Colour, least: float) -> tuple[str, Colour]:
    """A random named colour and its shade, at a contrast of at least `least` from `other`."""
    names = list(COLOURS)
    while True:
        name = names[rng.integers(len(names))]
        shade = shade_of(rng, name)
        if contrast(shade, other) >= least:
            return name, shade


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
        pattern = tuple(ALL_TEXTURES)[rng.integers(1, len(ALL_TEXTURES))]
        share = textured(rng, ALL_TEXTURES[pattern], rng.uniform(4, 14), (0, 0), rng.uniform(0, np.pi))
        return kind, lay(flat(base), share, blend(base, second, rng.uniform(0.2, 0.45)))
    return kind, clutter(rng, flat(base), int(rng.integers(3, 9)), rng.uniform(0.3, 0.8), other)
