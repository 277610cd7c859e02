"""The shapes and textures of the captioned pictures: those of the task `shapes`, and further ones."""

import numpy as np
from PIL import ImageDraw

from rebapl.data.drawing.canvas import OVERSAMPLING, SIZE, Colour, Field, Points, mask
from rebapl.data.drawing.shapes import OUTLINES, TEXTURES, Texture, arc, edge, regular

WHITE: Colour = np.ones(3, np.float32)
BLACK: Colour = np.zeros(3, np.float32)

ALL_OUTLINES: dict[str, Points] = {
    "circle": OUTLINES["circle"],
    "square": OUTLINES["square"],
    "triangle": OUTLINES["triangle"],
    "pentagon": regular(5),
    "hexagon": regular(6, 0.0),
    "star": OUTLINES["star"],
    "heart": OUTLINES["heart"],
    "cross": OUTLINES["cross"],
    "ring": arc(0.95, 0, 2 * np.pi),
    "crescent": OUTLINES["crescent"],
    "diamond": regular(4) * [0.75, 1.1],
    "arrow": OUTLINES["arrow"],
    "ellipse": arc(1, 0, 2 * np.pi) * [1.1, 0.6],
}
"""The closed outlines of the shapes. A random number chooses one by its position, so the order must stay."""

HOLES: dict[str, Points] = {"ring": arc(0.5, 0, 2 * np.pi)}
"""The outline of the hole in a shape that has one."""


def mask_with_hole(outline: Points, hole: Points) -> Field:
    """The share of each pixel that a filled polygon covers, without a polygonal hole. Points are in pixels."""

    def draw(pen: ImageDraw.ImageDraw) -> None:
        pen.polygon((outline * OVERSAMPLING).ravel().tolist(), fill=255)
        pen.polygon((hole * OVERSAMPLING).ravel().tolist(), fill=0)

    return mask(draw)


def _solid(u: Field, v: Field, period: float, rng: np.random.Generator) -> Field:  # noqa: ARG001
    return np.zeros((SIZE, SIZE), np.float32)


def _gridded(u: Field, v: Field, period: float, rng: np.random.Generator) -> Field:
    return edge(np.maximum(np.cos(u), np.cos(v)) - rng.uniform(0.55, 0.8), period)


def _shaded(u: Field, v: Field, period: float, rng: np.random.Generator) -> Field:  # noqa: ARG001
    return np.clip(0.5 + u * period / (2 * np.pi) / 26, 0, 1)


def _speckled(u: Field, v: Field, period: float, rng: np.random.Generator) -> Field:  # noqa: ARG001
    grains = (rng.random((SIZE // 2, SIZE // 2), np.float32) < rng.uniform(0.15, 0.3)).astype(np.float32)
    return grains.repeat(2, 0).repeat(2, 1)


ALL_TEXTURES: dict[str, Texture] = {
    "solid": _solid,
    "striped": TEXTURES["striped"],
    "dotted": TEXTURES["dotted"],
    "checkered": TEXTURES["checkered"],
    "gridded": _gridded,
    "zigzag": TEXTURES["zigzag"],
    "shaded": _shaded,
    "speckled": _speckled,
}
"""The textures. A random number chooses one by its position, so the order must stay."""
