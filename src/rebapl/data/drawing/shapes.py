"""Shapes, textures, and the pictures of the task `shapes` and its shifts: outlines with marks inside, over clutter.

The pictures of the pre-training show filled shapes in two tones; in these pictures only thin lines have the colour. The
constants set how hard the tasks are; zero-shot scores on training and validation images (`tools/score_mini.py`) show
whether they are right.
"""

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from rebapl.data.drawing.canvas import (
    LEAST_CONTRAST,
    SIZE,
    Colour,
    Field,
    Picture,
    Points,
    add_noise,
    blur,
    flat,
    ground,
    lay,
    pixel_grid,
    polygon_mask,
    shade_of,
    stroke_mask,
)

LINE_WIDTH = (1.2, 2.2)
"""Range of the outline's width in pixels."""

MARKS = (0.55, 0.95)
"""Range of the opacity of the texture's marks inside the outline."""

CLUTTER = (8, 16)
"""Range of the number of lines and blobs behind a shape."""

NOISE = (0.04, 0.1)
"""Range of the standard deviation of the noise."""

RADIUS = (16.0, 26.0)
"""Range of a shape's radius in pixels."""


def arc(radius: float, start: float, stop: float, centre: tuple[float, float] = (0, 0), n: int = 40) -> Points:
    """`n` points on a circle, from the angle `start` to `stop` in radians."""
    angle = np.linspace(start, stop, n)
    return np.stack([centre[0] + radius * np.cos(angle), centre[1] + radius * np.sin(angle)], 1)


def regular(corners: int, first: float = -np.pi / 2) -> Points:
    """The corners of a regular polygon in the unit circle, the first one at the angle `first`."""
    return arc(1, first, first + 2 * np.pi * (1 - 1 / corners), n=corners)


def _star() -> Points:
    points = regular(10)
    points[1::2] *= 0.42
    return points


def _heart() -> Points:
    t = np.linspace(0, 2 * np.pi, 60)
    x = 16 * np.sin(t) ** 3
    y = -(13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t))
    return np.stack([x, y - 2.5], 1) / 16


def _cross() -> Points:
    a, b = 0.33, 0.95
    quarter = [(a, -b), (a, -a), (b, -a)]
    points = []
    for turn in range(4):
        c, s = round(np.cos(turn * np.pi / 2)), round(np.sin(turn * np.pi / 2))
        points += [(c * x - s * y, s * x + c * y) for x, y in quarter]
    return np.array(points, float)


def _crescent() -> Points:
    outer = arc(1, 0.22 * np.pi, 1.78 * np.pi)
    tip = outer[-1]
    centre = (0.62, 0.0)
    radius = float(np.hypot(tip[0] - centre[0], tip[1]))
    angle = float(np.arctan2(-tip[1], tip[0] - centre[0]))
    inner = arc(radius, 2 * np.pi - angle, angle, centre)
    return np.concatenate([outer, inner]) + np.array([0.12, 0])


def _arrow() -> Points:
    half = [(1.0, 0.0), (0.2, -0.75), (0.2, -0.28), (-1.0, -0.28)]
    return np.array(half + [(x, -y) for x, y in reversed(half[1:])], float)


OUTLINES: dict[str, Points] = {
    "circle": arc(0.95, 0, 2 * np.pi),
    "square": 1.15 * regular(4, np.pi / 4),
    "triangle": 1.1 * regular(3) + [0, 0.2],
    "star": 1.1 * _star(),
    "heart": _heart(),
    "cross": _cross(),
    "crescent": _crescent(),
    "arrow": _arrow(),
}
"""The closed outlines of the shapes, whose last point is joined to the first. Do not change them in place."""


def place(points: Points, centre: tuple[float, float], radius: float, turn: float = 0, stretch: float = 1) -> Points:
    """Points scaled by `radius` (y also by `stretch`), turned by `turn` radians and moved to `centre`."""
    c, s = np.cos(turn), np.sin(turn)
    scaled = points * [radius, radius * stretch]
    return scaled @ np.array([[c, s], [-s, c]]) + centre


def edge(height: Field, period: float) -> Field:
    """Turn a wave, of slope one per radian, into bands with edges that are one pixel wide."""
    return np.clip(0.5 + height * period / (2 * np.pi), 0, 1)


Texture = Callable[[Field, Field, float, np.random.Generator], Field]
"""The share of the second tone, from the coordinates u and v of the pixels in radians, the period and a generator."""


def _striped(u: Field, v: Field, period: float, rng: np.random.Generator) -> Field:  # noqa: ARG001
    return edge(np.sin(u) - rng.uniform(-0.3, 0.3), period)


def _dotted(u: Field, v: Field, period: float, rng: np.random.Generator) -> Field:
    return edge(np.cos(u) + np.cos(v) - rng.uniform(0.3, 0.9), period)


def _checkered(u: Field, v: Field, period: float, rng: np.random.Generator) -> Field:  # noqa: ARG001
    return edge(1.5 * np.sin(u) * np.sin(v), period)


def _zigzag(u: Field, v: Field, period: float, rng: np.random.Generator) -> Field:
    swing = np.arcsin(np.sin(0.8 * v)) * rng.uniform(0.9, 1.4)
    return edge(np.sin(u + swing), period)


TEXTURES: dict[str, Texture] = {"striped": _striped, "dotted": _dotted, "checkered": _checkered, "zigzag": _zigzag}
"""The textures by name."""


def textured(
    rng: np.random.Generator, texture: Texture, period: float, centre: tuple[float, float], turn: float
) -> Field:
    """The share of its second tone in a texture that repeats every `period` pixels and is turned by `turn` radians."""
    x, y = pixel_grid()
    frequency = np.float32(2 * np.pi / period)
    c, s = np.float32(np.cos(turn)), np.float32(np.sin(turn))
    dx, dy = x - np.float32(centre[0]), y - np.float32(centre[1])
    return texture((c * dx + s * dy) * frequency, (c * dy - s * dx) * frequency, period, rng)


class _Plan:
    """The place and the look of the shape in one picture, before a style draws it."""

    def __init__(self, rng: np.random.Generator, colour: str, pattern: str, shape: str, turn: float) -> None:
        self.ink: Colour = shade_of(rng, colour, 0.05)
        radius = rng.uniform(*RADIUS)
        free = (SIZE / 2 - radius) * 0.9
        x, y = SIZE / 2 + rng.uniform(-free, free, 2)
        centre = (float(x), float(y))
        self.points: Points = place(OUTLINES[shape], centre, radius, turn, rng.uniform(0.8, 1.2))
        period = float(np.clip(radius * rng.uniform(0.4, 0.6), 7, 13))
        self.share: Field = textured(rng, TEXTURES[pattern], period, centre, turn + rng.uniform(0, np.pi))
        self.inside: Field = polygon_mask(self.points)


def _closed(points: Points) -> Points:
    return np.concatenate([points, points[:1]])


def _drawn(rng: np.random.Generator, colour: str, pattern: str, shape: str, turn: float) -> Picture:
    plan = _Plan(rng, colour, pattern, shape, turn)
    picture = ground(rng, plan.ink, LEAST_CONTRAST, 0.5, CLUTTER)
    picture = lay(picture, plan.inside * plan.share * rng.uniform(*MARKS), plan.ink)
    picture = lay(picture, stroke_mask([_closed(plan.points)], rng.uniform(*LINE_WIDTH)), plan.ink)
    return add_noise(rng, picture, rng.uniform(*NOISE))


def draw_outlined(rng: np.random.Generator, colour: str, pattern: str, shape: str) -> Picture:
    """A thin outline, marks of the texture in the same colour, and a cluttered and noisy background."""
    return _drawn(rng, colour, pattern, shape, rng.normal(0, 0.15))


def draw_rotated(rng: np.random.Generator, colour: str, pattern: str, shape: str) -> Picture:
    """As `draw_outlined`, with the shape turned by 30 to 330 degrees."""
    return _drawn(rng, colour, pattern, shape, rng.uniform(np.pi / 6, 11 * np.pi / 6))


def draw_lowlight(rng: np.random.Generator, colour: str, pattern: str, shape: str) -> Picture:
    """As `draw_outlined`, seen in the dark: an eighth to a third of the light, with the noise of a camera."""
    picture = np.clip(draw_outlined(rng, colour, pattern, shape), 0, 1)
    return add_noise(rng, picture * rng.uniform(0.12, 0.33), 0.02)


def draw_inverted(rng: np.random.Generator, colour: str, pattern: str, shape: str) -> Picture:
    """As `draw_outlined`, with light and dark exchanged and hues kept: r becomes r + (1 − max − min), as do g and b."""
    picture = np.clip(draw_outlined(rng, colour, pattern, shape), 0, 1)
    return picture + (1 - picture.max(-1, keepdims=True) - picture.min(-1, keepdims=True))


def _shaky(rng: np.random.Generator, points: Points, deviation: float) -> Points:
    """A closed outline as drawn by an unsteady hand: it is finely divided and moved by smooth noise."""
    ring = _closed(points)
    fine = np.concatenate([np.linspace(a, b, 6, endpoint=False) for a, b in pairwise(ring)])
    waves = np.fft.irfft(rng.normal(size=(2, 7)) * np.exp(-0.3 * np.arange(7)), len(fine)) * len(fine) / 6
    return _closed(fine + deviation * waves.T)


def draw_sketch(rng: np.random.Generator, colour: str, pattern: str, shape: str) -> Picture:
    """A crayon sketch: the outline drawn three times by an unsteady hand, broken marks, pale or dark paper."""
    plan = _Plan(rng, colour, pattern, shape, rng.normal(0, 0.15))
    picture = flat(np.full(3, rng.uniform(0.88, 1), np.float32))
    if plan.ink.mean() > 0.6:
        picture = flat(np.full(3, rng.uniform(0.1, 0.25), np.float32))
    grain = np.clip(blur(rng.random((SIZE, SIZE), np.float32), 1) * 2.4 - 0.5, 0, 1)
    lines = stroke_mask([_shaky(rng, plan.points, 0.5) for _ in range(3)], 1.0)
    picture = lay(picture, plan.inside * plan.share * grain * rng.uniform(*MARKS), plan.ink)
    return add_noise(rng, lay(picture, lines * (0.4 + 0.6 * grain), plan.ink), 0.02)


STYLES: dict[str, Callable[[np.random.Generator, str, str, str], Picture]] = {
    "shapes": draw_outlined,
    "shapes-sketch": draw_sketch,
    "shapes-inverted": draw_inverted,
    "shapes-lowlight": draw_lowlight,
    "shapes-rotated": draw_rotated,
}
"""The function that draws a colour, a texture and a shape, by the name of the task."""
