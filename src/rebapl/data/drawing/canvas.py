"""The canvas: named colours, masks that are drawn large and then reduced, painting through them, backgrounds, noise."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

SIZE = 64
"""The side of every drawn image in pixels."""

OVERSAMPLING = 4
"""Masks are drawn this many times larger, so that edges come out smooth."""

LEAST_CONTRAST = 0.4
"""The least contrast between a background and what is drawn on it."""

Field = NDArray[np.floating]
"""(SIZE, SIZE): a number in [0, 1] for each pixel, such as the share of it that a shape covers."""

Picture = NDArray[np.floating]
"""(SIZE, SIZE, 3): colours in [0, 1]."""

Points = NDArray[np.float64]
"""(n, 2): x to the right and y downwards."""

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


def shade_of(rng: np.random.Generator, name: str, spread: float = 0.04) -> Colour:
    """A colour near the named one: `spread` is the standard deviation of each channel and of the brightness."""
    colour = np.array(COLOURS[name], np.float32) / 255
    return np.clip(colour + rng.normal(0, spread, 3) + rng.normal(0, spread), 0, 1).astype(np.float32)


def blend(first: Colour, second: Colour, share: float) -> Colour:
    """The mixture of `share` of the second colour and 1 − `share` of the first."""
    return (1 - share) * first + share * second


def contrast(first: Colour, second: Colour) -> float:
    """Euclidean distance in RGB; 0 for equal colours, √3 for black and white."""
    return float(np.linalg.norm(first - second))


def tone_apart_from(rng: np.random.Generator, other: Colour, least: float) -> Colour:
    """A random grey or pale tone without a colour name. Its contrast to `other` is at least `least`."""
    while True:
        tone: Colour = np.full(3, rng.random(), np.float32)
        if rng.random() < 0.5:
            tone = blend(tone, rng.random(3).astype(np.float32), 0.3)
        if contrast(tone, other) >= least:
            return tone


def pixel_grid() -> tuple[Field, Field]:
    """x and y of the pixel centres, each of shape (SIZE, SIZE)."""
    line = np.arange(SIZE, dtype=np.float32) + 0.5
    return np.broadcast_to(line[None, :], (SIZE, SIZE)), np.broadcast_to(line[:, None], (SIZE, SIZE))


def mask(draw: Callable[[ImageDraw.ImageDraw], None]) -> Field:
    """The share of each pixel that `draw` covers with fill 255, on a canvas of SIZE · OVERSAMPLING pixels a side."""
    large = Image.new("L", (SIZE * OVERSAMPLING, SIZE * OVERSAMPLING))
    draw(ImageDraw.Draw(large))
    return np.asarray(large.reduce(OVERSAMPLING), np.float32) / 255


def polygon_mask(outline: Points) -> Field:
    """The share of each pixel that a filled polygon covers. Points are in pixels."""
    return mask(lambda pen: pen.polygon((outline * OVERSAMPLING).ravel().tolist(), fill=255))


def stroke_mask(strokes: Sequence[Points], width: float) -> Field:
    """The share of each pixel that open strokes with round ends cover. Points and width are in pixels."""

    def draw(pen: ImageDraw.ImageDraw) -> None:
        radius = width * OVERSAMPLING / 2
        for stroke in strokes:
            points = stroke * OVERSAMPLING
            pen.line(points.ravel().tolist(), fill=255, width=max(1, round(2 * radius)), joint="curve")
            for x, y in (points[0], points[-1]):
                pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=255)

    return mask(draw)


def lay(picture: Picture, coverage: Field, paint: Colour | Picture) -> Picture:
    """The picture after painting over it with `paint`, a colour or a picture, through the mask `coverage`."""
    return picture + coverage[..., None] * (paint - picture)


def flat(colour: Colour) -> Picture:
    """A picture of one colour."""
    return np.broadcast_to(colour, (SIZE, SIZE, 3)).astype(np.float32)


def gradient(first: Colour, second: Colour, turn: float) -> Picture:
    """A picture that changes from the first colour to the second along the direction `turn` in radians."""
    x, y = pixel_grid()
    ramp = (np.cos(turn) * (x - SIZE / 2) + np.sin(turn) * (y - SIZE / 2)) / SIZE
    return lay(flat(first), np.clip(0.5 + ramp, 0, 1).astype(np.float32), second)


def clutter(rng: np.random.Generator, picture: Picture, pieces: int, strength: float, other: Colour) -> Picture:
    """The picture with random lines and blobs over it, of opacity `strength`, in tones that contrast with `other`."""
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


def ground(rng: np.random.Generator, ink: Colour, least: float, share: float, pieces: tuple[int, int]) -> Picture:
    """A background whose tones contrast with the ink by at least `least`: a gradient under random clutter.

    The gradient goes from a tone to the mixture of it and `share` of another one. `pieces` is the range of the number
    of lines and blobs.
    """
    first, second = (tone_apart_from(rng, ink, least) for _ in range(2))
    picture = gradient(first, blend(first, second, share), rng.uniform(0, 2 * np.pi))
    return clutter(rng, picture, int(rng.integers(*pieces)), rng.uniform(0.3, 0.7), ink)


def add_noise(rng: np.random.Generator, picture: Picture, deviation: float) -> Picture:
    """The picture with independent Gaussian noise of this standard deviation on every channel."""
    return picture + deviation * rng.standard_normal(picture.shape, np.float32)


def blur(field: Field, passes: int) -> Field:
    """A picture or field smoothed by a (1, 2, 1) filter along both axes, `passes` times."""
    for _ in range(passes):
        for axis in (0, 1):
            before, after = np.roll(field, 1, axis), np.roll(field, -1, axis)
            field = (before + 2 * field + after) / 4
    return field


def to_pixels(picture: Picture) -> NDArray[np.uint8]:
    """The picture as bytes; colours outside [0, 1] are clipped."""
    return (np.clip(picture, 0, 1) * 255 + 0.5).astype(np.uint8)
