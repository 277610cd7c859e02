"""Textures: for every pixel the share of the second tone, from formulas smooth enough to need no oversampling."""

from collections.abc import Callable

import numpy as np

from rebapl.data.drawing.canvas import SIZE, Field, pixel_grid


def _edge(height: Field, period: float) -> Field:
    """A wave of unit slope per radian turned into bands with edges one pixel wide."""
    return np.clip(0.5 + height * period / (2 * np.pi), 0, 1)


def _solid(u: Field, v: Field, period: float, rng: np.random.Generator) -> Field:  # noqa: ARG001
    return np.zeros((SIZE, SIZE), np.float32)


def _striped(u: Field, v: Field, period: float, rng: np.random.Generator) -> Field:  # noqa: ARG001
    return _edge(np.sin(u) - rng.uniform(-0.3, 0.3), period)


def _dotted(u: Field, v: Field, period: float, rng: np.random.Generator) -> Field:
    return _edge(np.cos(u) + np.cos(v) - rng.uniform(0.3, 0.9), period)


def _checkered(u: Field, v: Field, period: float, rng: np.random.Generator) -> Field:  # noqa: ARG001
    return _edge(1.5 * np.sin(u) * np.sin(v), period)


def _gridded(u: Field, v: Field, period: float, rng: np.random.Generator) -> Field:
    return _edge(np.maximum(np.cos(u), np.cos(v)) - rng.uniform(0.55, 0.8), period)


def _zigzag(u: Field, v: Field, period: float, rng: np.random.Generator) -> Field:
    swing = np.arcsin(np.sin(0.8 * v)) * rng.uniform(0.9, 1.4)
    return _edge(np.sin(u + swing), period)


def _shaded(u: Field, v: Field, period: float, rng: np.random.Generator) -> Field:  # noqa: ARG001
    return np.clip(0.5 + u * period / (2 * np.pi) / 26, 0, 1)


def _speckled(u: Field, v: Field, period: float, rng: np.random.Generator) -> Field:  # noqa: ARG001
    grains = (rng.random((SIZE // 2, SIZE // 2), np.float32) < rng.uniform(0.15, 0.3)).astype(np.float32)
    return grains.repeat(2, 0).repeat(2, 1)


_FORMULAS: dict[str, Callable[[Field, Field, float, np.random.Generator], Field]] = {
    "solid": _solid,
    "striped": _striped,
    "dotted": _dotted,
    "checkered": _checkered,
    "gridded": _gridded,
    "zigzag": _zigzag,
    "shaded": _shaded,
    "speckled": _speckled,
}

TEXTURES = tuple(_FORMULAS)


def texture(rng: np.random.Generator, name: str, period: float, centre: tuple[float, float], turn: float) -> Field:
    """The share of the second tone of a texture repeating every `period` pixels, turned by `turn` radians."""
    x, y = pixel_grid()
    frequency = np.float32(2 * np.pi / period)
    c, s = np.float32(np.cos(turn)), np.float32(np.sin(turn))
    dx, dy = x - np.float32(centre[0]), y - np.float32(centre[1])
    return _FORMULAS[name]((c * dx + s * dy) * frequency, (c * dy - s * dx) * frequency, period, rng)
