"""Shapes as polygons around the origin, within about a unit circle."""

from collections.abc import Callable
from functools import cache

import numpy as np

from rebapl.data.drawing.canvas import Points


def _arc(radius: float, start: float, stop: float, centre: tuple[float, float] = (0, 0), n: int = 40) -> Points:
    angle = np.linspace(start, stop, n)
    return np.stack([centre[0] + radius * np.cos(angle), centre[1] + radius * np.sin(angle)], 1)


def _regular(corners: int, first: float = -np.pi / 2) -> Points:
    return _arc(1, first, first + 2 * np.pi * (1 - 1 / corners), n=corners)


def _star() -> Points:
    points = _regular(10)
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
    outer = _arc(1, 0.22 * np.pi, 1.78 * np.pi)
    tip = outer[-1]
    centre = (0.62, 0.0)
    radius = float(np.hypot(tip[0] - centre[0], tip[1]))
    angle = float(np.arctan2(-tip[1], tip[0] - centre[0]))
    inner = _arc(radius, 2 * np.pi - angle, angle, centre)
    return np.concatenate([outer, inner]) + np.array([0.12, 0])


def _arrow() -> Points:
    half = [(1.0, 0.0), (0.2, -0.75), (0.2, -0.28), (-1.0, -0.28)]
    return np.array(half + [(x, -y) for x, y in reversed(half[1:])], float)


_OUTLINES: dict[str, Callable[[], Points]] = {
    "circle": lambda: _arc(0.95, 0, 2 * np.pi),
    "square": lambda: 1.15 * _regular(4, np.pi / 4),
    "triangle": lambda: 1.1 * _regular(3) + [0, 0.2],
    "pentagon": lambda: _regular(5),
    "hexagon": lambda: _regular(6, 0.0),
    "star": lambda: 1.1 * _star(),
    "heart": _heart,
    "cross": _cross,
    "ring": lambda: _arc(0.95, 0, 2 * np.pi),
    "crescent": _crescent,
    "diamond": lambda: _regular(4) * [0.75, 1.1],
    "arrow": _arrow,
    "ellipse": lambda: _arc(1, 0, 2 * np.pi) * [1.1, 0.6],
}

SHAPES = tuple(_OUTLINES)

_HOLES = {"ring": lambda: _arc(0.5, 0, 2 * np.pi)}


@cache
def outline(shape: str) -> Points:
    """The closed outline of a shape, last point joined to the first; do not change it in place."""
    return _OUTLINES[shape]()


@cache
def hole(shape: str) -> Points | None:
    """The outline of the hole in a shape, or nothing; do not change it in place."""
    return _HOLES[shape]() if shape in _HOLES else None


def place(points: Points, centre: tuple[float, float], radius: float, turn: float = 0, stretch: float = 1) -> Points:
    """Points scaled by `radius` (y also by `stretch`), turned by `turn` radians and moved to `centre`."""
    c, s = np.cos(turn), np.sin(turn)
    scaled = points * [radius, radius * stretch]
    return scaled @ np.array([[c, s], [-s, c]]) + centre
