"""Letters and digits as strokes, and the pictures of the task `letters`: dashes, dots, double lines or chalk.

`skeletons.txt` has the strokes. A glyph that people write in several ways has several skeletons. The pictures of the
pre-training have unbroken lines. The constants set how hard the task is; they were chosen by zero-shot scores on
training and validation images.
"""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from rebapl.data.drawing.canvas import (
    COLOURS,
    SIZE,
    Field,
    Picture,
    Points,
    add_noise,
    blur,
    ground,
    lay,
    shade_of,
    stroke_mask,
)

JITTER = (2.0, 6.0)
"""Range of the standard deviation of a letter's points, in hundredths of its height."""

HEIGHT = (0.5, 0.85)
"""Range of a letter's height as a share of the picture."""

CLUTTER = (6, 12)
"""Range of the number of lines and blobs behind a letter."""

NOISE = (0.04, 0.12)
"""Range of the standard deviation of the noise."""

CONTRAST = 0.5
"""The least contrast between ink and background."""

CAPITALS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@cache
def _skeletons() -> dict[str, list[str]]:
    """The skeletons of each glyph."""
    lines = Path(__file__).with_name("skeletons.txt").read_text(encoding="utf-8").splitlines()
    skeletons: dict[str, list[str]] = {}
    for line in lines:
        glyph, _, skeleton = line.partition(" ")
        if glyph != "#":
            skeletons.setdefault(glyph, []).append(skeleton)
    return skeletons


@cache
def _parse(skeleton: str) -> tuple[tuple[bool, Points], ...]:
    """The strokes of a skeleton: whether each is curved, and its points."""
    strokes = []
    for stroke in skeleton.split("/"):
        points = [tuple(map(float, point.split(","))) for point in stroke[1:].split()]
        strokes.append((stroke[0] == "~", np.array(points)))
    return tuple(strokes)


@cache
def _spline_weights(steps: int) -> Points:
    """The Catmull–Rom weights (steps, 4) of the two points before and the two points after, along one piece."""
    t = np.linspace(0, 1, steps, endpoint=False)
    return 0.5 * np.stack(
        [-t + 2 * t**2 - t**3, 2 - 5 * t**2 + 3 * t**3, t + 4 * t**2 - 3 * t**3, -(t**2) + t**3], axis=1
    )


def smooth(points: Points, steps: int = 8) -> Points:
    """The Catmull–Rom curve through the points, with `steps` points between two of them."""
    padded = np.concatenate([[2 * points[0] - points[1]], points, [2 * points[-1] - points[-2]]])
    quads = np.stack([padded[:-3], padded[1:-2], padded[2:-1], padded[3:]], axis=1)
    return np.concatenate([(_spline_weights(steps) @ quads).reshape(-1, 2), points[-1:]])


def strokes_of(rng: np.random.Generator, glyph: str, jitter: float) -> list[Points]:
    """The strokes of a glyph: a random skeleton, with smoothed curves, in a box of about 100 by 100.

    Every point is moved at random, with the standard deviation `jitter`. The caller places and scales the strokes.
    """
    variants = _skeletons()[glyph]
    chosen = _parse(variants[rng.integers(len(variants))])
    moved = [(curved, points + rng.normal(0, jitter, points.shape)) for curved, points in chosen]
    return [smooth(points) if curved and len(points) > 2 else points for curved, points in moved]


def distortion(rng: np.random.Generator, height: tuple[float, float]) -> Points:
    """A random 2×2 matrix that turns, slants, stretches and scales to a height, which is a share of the picture."""
    turn, slant, narrow = rng.normal(0, 0.13), rng.normal(0.05, 0.22), rng.uniform(0.6, 1.15)
    c, s = np.cos(turn), np.sin(turn)
    return rng.uniform(*height) * np.array([[c, -s], [s, c]]) @ np.array([[narrow, -slant], [0, 1]])


def fit(rng: np.random.Generator, strokes: Sequence[Points], matrix: Points, margin: float) -> list[Points]:
    """Strokes in a box 100 high, transformed by `matrix`, placed at random, at least `margin` pixels from the edges."""
    everything = np.concatenate(strokes)
    low, high = everything.min(0), everything.max(0)
    matrix = matrix * SIZE / max(high[1] - low[1], 60.0)
    moved = [(stroke - (low + high) / 2) @ matrix.T for stroke in strokes]
    everything = np.concatenate(moved)
    low, high = everything.min(0), everything.max(0)
    room = SIZE - 2 * margin
    shrink = min(1.0, room / max(float((high - low).max()), 1e-6))
    free = np.maximum(room - shrink * (high - low), 0) / 2
    centre = SIZE / 2 + rng.uniform(-1, 1, 2) * free * rng.choice([0.15, 0.8])
    return [(stroke - (low + high) / 2) * shrink + centre for stroke in moved]


def _pieces(stroke: Points, step: float, length: float) -> list[Points]:
    """The stroke cut into pieces of `length` pixels, which start every `step` pixels along it."""
    way = np.concatenate([[0], np.cumsum(np.linalg.norm(np.diff(stroke, axis=0), axis=1))])
    starts = np.arange(0, way[-1], step)
    ends = np.minimum(starts + length, way[-1])
    lengths = np.linspace(starts, ends, 4, axis=1)
    return [np.stack([np.interp(at, way, stroke[:, axis]) for axis in (0, 1)], axis=1) for at in lengths]


def _dashed(rng: np.random.Generator, strokes: Sequence[Points]) -> Field:
    step = rng.uniform(6, 8.5)
    return stroke_mask([p for stroke in strokes for p in _pieces(stroke, step, 0.5 * step)], rng.uniform(1.5, 3))


def _dotted(rng: np.random.Generator, strokes: Sequence[Points]) -> Field:
    step = rng.uniform(4.5, 6.5)
    return stroke_mask([p for stroke in strokes for p in _pieces(stroke, step, 0.1)], rng.uniform(2, 3.5))


def _double(rng: np.random.Generator, strokes: Sequence[Points]) -> Field:
    width = rng.uniform(5, 8)
    return stroke_mask(strokes, width) - stroke_mask(strokes, width - 2.4)


def _chalk(rng: np.random.Generator, strokes: Sequence[Points]) -> Field:
    grain = np.clip(blur(rng.random((SIZE, SIZE), np.float32), 1) * 5 - 2.2, 0, 1)
    return stroke_mask(strokes, rng.uniform(3, 5)) * grain


_PENS: tuple[Callable[[np.random.Generator, Sequence[Points]], Field], ...] = (_dashed, _dotted, _double, _chalk)


def draw_letter(rng: np.random.Generator, letter: str) -> Picture:
    """A picture of a letter, drawn with a random pen in a random colour over clutter."""
    ink = shade_of(rng, tuple(COLOURS)[rng.integers(len(COLOURS))])
    picture = ground(rng, ink, CONTRAST, 0.4, CLUTTER)
    strokes = fit(rng, strokes_of(rng, letter, rng.uniform(*JITTER)), distortion(rng, HEIGHT), 5)
    picture = lay(picture, _PENS[rng.integers(len(_PENS))](rng, strokes), ink)
    return add_noise(rng, picture, rng.uniform(*NOISE))
