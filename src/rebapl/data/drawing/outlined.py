"""The pictures of the task `shapes` and its shifts: thin outlines with marks inside, on clutter and noise.

Pre-training shows filled shapes in two tones; here only lines carry the colour. The constants set how hard the
tasks are; zero-shot scores on training and validation images (`tools/score_mini.py`) say whether they are right.
"""

from collections.abc import Callable, Sequence

import numpy as np

from rebapl.data.drawing.canvas import (
    LEAST_CONTRAST,
    SIZE,
    Field,
    Picture,
    Points,
    add_noise,
    blur,
    clutter,
    flat,
    gradient,
    lay,
    polygon_mask,
    stroke_mask,
)
from rebapl.data.drawing.colours import Colour, blend, shade_of, tone_apart_from
from rebapl.data.drawing.shapes import outline, place
from rebapl.data.drawing.textures import texture

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


class _Plan:
    """Where the shape of one picture stands and what it looks like, before a style draws it."""

    def __init__(self, rng: np.random.Generator, colour: str, pattern: str, shape: str, turn: float) -> None:
        self.ink: Colour = shade_of(rng, colour, 0.05)
        radius = rng.uniform(*RADIUS)
        free = (SIZE / 2 - radius) * 0.9
        x, y = SIZE / 2 + rng.uniform(-free, free, 2)
        centre = (float(x), float(y))
        self.points: Points = place(outline(shape), centre, radius, turn, rng.uniform(0.8, 1.2))
        period = float(np.clip(radius * rng.uniform(0.4, 0.6), 7, 13))
        self.share: Field = texture(rng, pattern, period, centre, turn + rng.uniform(0, np.pi))
        self.inside: Field = polygon_mask(self.points)


def _closed(points: Points) -> Points:
    return np.concatenate([points, points[:1]])


def _ground(rng: np.random.Generator, ink: Colour) -> Picture:
    """Two tones that the ink stands out from, running into one another, under clutter."""
    first, second = (tone_apart_from(rng, ink, LEAST_CONTRAST) for _ in range(2))
    picture = gradient(first, blend(first, second, 0.5), rng.uniform(0, 2 * np.pi))
    return clutter(rng, picture, int(rng.integers(*CLUTTER)), rng.uniform(0.3, 0.7), ink)


def _drawn(rng: np.random.Generator, colour: str, pattern: str, shape: str, turn: float) -> Picture:
    plan = _Plan(rng, colour, pattern, shape, turn)
    picture = _ground(rng, plan.ink)
    picture = lay(picture, plan.inside * plan.share * rng.uniform(*MARKS), plan.ink)
    picture = lay(picture, stroke_mask([_closed(plan.points)], rng.uniform(*LINE_WIDTH)), plan.ink)
    return add_noise(rng, picture, rng.uniform(*NOISE))


def draw_outlined(rng: np.random.Generator, colour: str, pattern: str, shape: str) -> Picture:
    """Thin outline, marks of the texture in the same colour, cluttered and noisy ground."""
    return _drawn(rng, colour, pattern, shape, rng.normal(0, 0.15))


def draw_rotated(rng: np.random.Generator, colour: str, pattern: str, shape: str) -> Picture:
    """The same with the shape turned by 30 to 330 degrees."""
    return _drawn(rng, colour, pattern, shape, rng.uniform(np.pi / 6, 11 * np.pi / 6))


def draw_lowlight(rng: np.random.Generator, colour: str, pattern: str, shape: str) -> Picture:
    """The same seen in the dark: an eighth to a third of the light, the camera's noise on top."""
    picture = np.clip(draw_outlined(rng, colour, pattern, shape), 0, 1)
    return add_noise(rng, picture * rng.uniform(0.12, 0.33), 0.02)


def draw_inverted(rng: np.random.Generator, colour: str, pattern: str, shape: str) -> Picture:
    """The same with light and dark exchanged and every hue kept: r + (1 - max - min), and so for g and b."""
    picture = np.clip(draw_outlined(rng, colour, pattern, shape), 0, 1)
    return picture + (1 - picture.max(-1, keepdims=True) - picture.min(-1, keepdims=True))


def _shaky(rng: np.random.Generator, points: Points, deviation: float) -> Points:
    """A closed outline as a hasty hand repeats it: finely divided, then moved by smooth noise."""
    ring: Sequence[Points] = [_closed(points)]
    fine = np.concatenate(
        [np.linspace(a, b, 6, endpoint=False) for a, b in zip(ring[0][:-1], ring[0][1:], strict=True)]
    )
    waves = np.fft.irfft(rng.normal(size=(2, 7)) * np.exp(-0.3 * np.arange(7)), len(fine)) * len(fine) / 6
    return _closed(fine + deviation * waves.T)


def draw_sketch(rng: np.random.Generator, colour: str, pattern: str, shape: str) -> Picture:
    """A crayon sketch: the outline gone over three times by a shaky hand, broken marks, pale paper."""
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
"""By the name of the task: picture of a colour, a texture and a shape."""
