"""The canvas: masks drawn large and reduced, colours laid through them, backgrounds, and the camera's faults."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from rebapl.data.drawing.colours import Colour, tone_apart_from

SIZE = 64
"""Side of every drawn image in pixels."""

OVERSAMPLING = 4
"""Masks are drawn this many times larger, so that edges come out smooth."""

LEAST_CONTRAST = 0.4
"""Between a background and what stands before it."""

Field = NDArray[np.floating]
"""(SIZE, SIZE): a number in [0, 1] for each pixel, such as the share of it that a shape covers."""

Picture = NDArray[np.floating]
"""(SIZE, SIZE, 3): colours in [0, 1]."""

Points = NDArray[np.float64]
"""(n, 2): x to the right and y downwards."""


def pixel_grid() -> tuple[Field, Field]:
    """x and y of the pixel centres, each of shape (SIZE, SIZE)."""
    line = np.arange(SIZE, dtype=np.float32) + 0.5
    return np.broadcast_to(line[None, :], (SIZE, SIZE)), np.broadcast_to(line[:, None], (SIZE, SIZE))


def mask(draw: Callable[[ImageDraw.ImageDraw], None]) -> Field:
    """The coverage of what `draw` draws (fill 255) on a canvas of SIZE · OVERSAMPLING pixels a side."""
    large = Image.new("L", (SIZE * OVERSAMPLING, SIZE * OVERSAMPLING))
    draw(ImageDraw.Draw(large))
    return np.asarray(large.reduce(OVERSAMPLING), np.float32) / 255


def polygon_mask(outline: Points, hole: Points | None = None) -> Field:
    """The coverage of a filled polygon, points in pixels, less a polygonal hole."""

    def draw(pen: ImageDraw.ImageDraw) -> None:
        pen.polygon((outline * OVERSAMPLING).ravel().tolist(), fill=255)
        if hole is not None:
            pen.polygon((hole * OVERSAMPLING).ravel().tolist(), fill=0)

    return mask(draw)


def stroke_mask(strokes: Sequence[Points], width: float) -> Field:
    """The coverage of open strokes with round ends, points and width in pixels."""

    def draw(pen: ImageDraw.ImageDraw) -> None:
        radius = width * OVERSAMPLING / 2
        for stroke in strokes:
            points = stroke * OVERSAMPLING
            pen.line(points.ravel().tolist(), fill=255, width=max(1, round(2 * radius)), joint="curve")
            for x, y in (points[0], points[-1]):
                pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=255)

    return mask(draw)


def lay(picture: Picture, coverage: Field, paint: Colour | Picture) -> Picture:
    """The picture with `paint`, one colour or a picture, laid over it through a coverage mask."""
    return picture + coverage[..., None] * (paint - picture)


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


def add_noise(rng: np.random.Generator, picture: Picture, deviation: float) -> Picture:
    """Independent Gaussian noise on every channel."""
    return picture + deviation * rng.standard_normal(picture.shape, np.float32)


def blur(field: Field, passes: int) -> Field:
    """A picture or field smoothed by a (1, 2, 1) filter along both axes, `passes` times."""
    for _ in range(passes):
        for axis in (0, 1):
            before, after = np.roll(field, 1, axis), np.roll(field, -1, axis)
            field = (before + 2 * field + after) / 4
    return field


def to_pixels(picture: Picture) -> NDArray[np.uint8]:
    """Colours in [0, 1], clipped, as bytes."""
    return (np.clip(picture, 0, 1) * 255 + 0.5).astype(np.uint8)
