"""The fifteen corruptions of ImageNet-C at five severities, computed when they are needed, from a seed.

Hendrycks & Dietterich, Benchmarking Neural Network Robustness to Common Corruptions and Perturbations, 2019. Each
function is registered with its settings for severities 1 to 5, as published for test-time views of 224 px. A view x has
values in [0, 1]. The result is clipped to that range and rounded to bytes.

**Views of another size.** Lengths (radii, widths, displacements) are multiplied by side/224, so that a blur covers the
same share of the picture; all other settings (amplitudes, shares, qualities, zooms) stay. Pixels of a glass blur move
by at least 1, so that its severities hardly differ below about 100 px. For 32 and 64 px the authors have other tables,
which have milder noise and stronger blur than this rule.

**Differences from the authors' code.** Frost is drawn (`_frost`), while theirs is cut from photographs. Motion blur is
the formula of ImageMagick, which they call. Pixels of a glass blur change places, as the paper says, while their code
copies one of the two over the other. The disk of a defocus blur has at its edge the share of each pixel that it covers,
before it is smoothed as published, so that radii need not be whole numbers.

The random draws depend on the seed, the corruption and the key of the image. They are the same at every severity.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import scipy
import torch
from PIL import Image
from torch import Tensor

from rebapl.data.workers import in_threads
from rebapl.errors import UserError, unknown
from rebapl.randomness import derived_seed

SIDE = 224
"""The side of the views, in pixels, for which the settings were published."""

SEVERITIES = (1, 2, 3, 4, 5)

Draws = np.random.Generator
Corrupt = Callable[..., np.ndarray]
"""corrupt(x (H, W, 3), scale = side/224, draws, *settings of one severity) returns the corrupted values (H, W, 3)."""


class Corruption(NamedTuple):
    """A corruption at a severity, written NAME@SEVERITY."""

    name: str
    severity: int

    def __call__(self, views: Tensor, keys: Sequence[str], seed: int = 0) -> Tensor:
        """The corrupted test-time views, uint8 (N, 3, H, W), of the images with these keys."""

        def corrupted_view(index: int) -> np.ndarray:
            pixels = views[index].numpy().transpose(1, 2, 0)
            draws = np.random.default_rng(derived_seed(seed, "corruption", self.name, keys[index]))
            return corrupted(pixels, self.name, self.severity, draws).transpose(2, 0, 1)

        return torch.from_numpy(np.stack(in_threads(corrupted_view, range(len(keys))))) if len(keys) else views


CORRUPTIONS: dict[str, tuple[Corrupt, tuple[Any, ...]]] = {}
"""The function of each corruption and its settings for severities 1 to 5, in the order of the paper."""


def named_corruptions(words: Iterable[str]) -> list[Corruption]:
    """The corruptions that a person named: NAME (every severity) or NAME@SEVERITY. The name `all` means all fifteen.

    >>> named_corruptions(["fog@2", "snow@5"])
    [Corruption(name='fog', severity=2), Corruption(name='snow', severity=5)]
    >>> len(named_corruptions(["all"])), len(named_corruptions(["all@3"])), len(named_corruptions(["fog"]))
    (75, 15, 5)
    """
    chosen: list[Corruption] = []
    for word in words:
        name, at, level = word.partition("@")
        if name != "all" and name not in CORRUPTIONS:
            raise unknown("corruption", name, ["all", *CORRUPTIONS])
        if at and level not in map(str, SEVERITIES):
            raise UserError(f"severity {level!r} of corruption {name}: a severity is a whole number from 1 to 5")
        severities = (int(level),) if at else SEVERITIES
        names = CORRUPTIONS if name == "all" else [name]
        chosen += [Corruption(name, severity) for name in names for severity in severities]
    return list(dict.fromkeys(chosen))


def corrupted(pixels: np.ndarray, name: str, severity: int, draws: Draws) -> np.ndarray:
    """An image, uint8 (H, W, 3), with a corruption applied, in the same shape and type.

    >>> grey = np.full((8, 8, 3), 100, dtype=np.uint8)
    >>> corrupted(grey, "brightness", 2, np.random.default_rng(0))[0, 0]
    array([151, 151, 151], dtype=uint8)
    """
    corrupt, settings = CORRUPTIONS[name]
    chosen = settings[severity - 1]
    chosen = chosen if isinstance(chosen, tuple) else (chosen,)
    return _as_bytes(corrupt(pixels / 255.0, min(pixels.shape[:2]) / SIDE, draws, *chosen))


def _as_bytes(x: np.ndarray) -> np.ndarray:
    return (255 * x.clip(0, 1)).round().astype(np.uint8)


def _corruption(name: str, *settings: Any) -> Callable[[Corrupt], Corrupt]:
    def add(function: Corrupt) -> Corrupt:
        CORRUPTIONS[name] = function, settings
        return function

    return add


@_corruption("gaussian-noise", 0.08, 0.12, 0.18, 0.26, 0.38)
def _gaussian_noise(x: np.ndarray, _scale: float, draws: Draws, std: float) -> np.ndarray:
    """x + N(0, std²)."""
    return x + draws.normal(scale=std, size=x.shape)


@_corruption("shot-noise", 60, 25, 12, 5, 3)
def _shot_noise(x: np.ndarray, _scale: float, draws: Draws, photons: float) -> np.ndarray:
    """Poisson(photons·x) / photons."""
    return draws.poisson(photons * x) / photons


@_corruption("impulse-noise", 0.03, 0.06, 0.09, 0.17, 0.27)
def _impulse_noise(x: np.ndarray, _scale: float, draws: Draws, share: float) -> np.ndarray:
    """A random `share` of all values is set to 0 or 1, with equal probability."""
    hit, salt = draws.random(x.shape) < share, draws.random(x.shape) < 0.5
    return np.where(hit, salt, x)


@_corruption("defocus-blur", (3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5))
def _defocus_blur(x: np.ndarray, scale: float, _draws: Draws, radius: float, edge: float) -> np.ndarray:
    """The mean over a disk of this radius whose edge is blurred with a Gaussian of standard deviation `edge`."""
    return scipy.ndimage.convolve(x, _disk(radius * scale, edge)[..., None], mode="mirror")


@lru_cache(maxsize=16)
def _disk(radius: float, edge: float) -> np.ndarray:
    """The kernel (k, k): the share of each pixel in the disk, estimated from 8 × 8 points, blurred, with sum 1."""
    reach, fine = math.ceil(radius) + 2, 8
    points = (np.arange((2 * reach + 1) * fine) + 0.5) / fine - reach - 0.5
    inside = points[:, None] ** 2 + points**2 <= radius**2
    covered = inside.reshape(2 * reach + 1, fine, 2 * reach + 1, fine).mean((1, 3))
    kernel = scipy.ndimage.gaussian_filter(covered, edge, mode="constant")
    return kernel / kernel.sum()


@_corruption("glass-blur", (0.7, 1, 2), (0.9, 2, 1), (1.0, 2, 3), (1.1, 3, 2), (1.5, 4, 2))
def _glass_blur(x: np.ndarray, scale: float, draws: Draws, std: float, most: int, rounds: int) -> np.ndarray:
    """A Gaussian blur, then `rounds` of exchanges, then the same blur again.

    In a round, each pixel changes places with one that is at most `most` pixels to the left and above, or `most` − 1
    to the right and below. `most` is a whole number, at least 1.
    """
    height, width = x.shape[:2]
    most, std = max(1, round(most * scale)), std * scale
    rows, columns = np.arange(height - most, most, -1), np.arange(width - most, most, -1)
    here = rows[:, None] * width + columns
    places = list(range(height * width))
    for _ in range(rounds):
        moves = draws.integers(-most, most, size=(2, *here.shape))
        there = here + moves[0] * width + moves[1]
        for a, b in zip(here.ravel().tolist(), there.ravel().tolist(), strict=True):
            places[a], places[b] = places[b], places[a]
    shuffled = _gaussian(x, std).reshape(-1, 3)[places].reshape(x.shape)
    return _gaussian(shuffled, std)


def _gaussian(x: np.ndarray, std: float) -> np.ndarray:
    return scipy.ndimage.gaussian_filter(x, (std, std, 0), mode="nearest")


@_corruption("motion-blur", (10, 3), (15, 5), (15, 8), (15, 12), (20, 15))
def _motion_blur(x: np.ndarray, scale: float, draws: Draws, radius: float, std: float) -> np.ndarray:
    """Blur along a random direction between −45° and 45°."""
    return _along(x, radius * scale, std * scale, draws.uniform(-45, 45))


def _along(x: np.ndarray, radius: float, std: float, angle: float) -> np.ndarray:
    """Σ_i k_i·x(· + i·(cos, sin)), i = 0 … 2·radius, with k_i ∝ exp(−i²/2std²) and offsets in whole pixels."""
    steps = np.arange(2 * math.ceil(radius) + 1)
    kernel = np.exp(-(steps**2) / (2 * std**2))
    turn = math.radians(angle)
    rows, columns = (np.round(steps * each).astype(int) for each in (math.sin(turn), math.cos(turn)))
    reach = len(steps)
    padded = np.pad(x, [(reach, reach)] * 2 + [(0, 0)] * (x.ndim - 2), mode="edge")
    height, width = x.shape[:2]
    total = sum(
        share * padded[reach + row : reach + row + height, reach + column : reach + column + width]
        for share, row, column in zip(kernel / kernel.sum(), rows, columns, strict=True)
    )
    return np.asarray(total)


@_corruption("zoom-blur", (1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03))
def _zoom_blur(x: np.ndarray, _scale: float, _draws: Draws, below: float, step: float) -> np.ndarray:
    """The mean of x and of x zoomed by 1, 1 + step, … below `below`, as NumPy's `arange` counts them."""
    zooms = [_zoomed(x, factor) for factor in np.arange(1, below, step)]
    return np.mean([x, *zooms], axis=0)


def _zoomed(x: np.ndarray, factor: float) -> np.ndarray:
    """The centre of x, (H, W) or (H, W, 3), enlarged by `factor` to the size of x, with linear interpolation."""
    if x.ndim == 3:
        return np.stack([_zoomed(channel, factor) for channel in np.moveaxis(x, -1, 0)], -1)
    height, width = x.shape
    left, top = (width - width / factor) / 2, (height - height / factor) / 2
    box = (left, top, width - left, height - top)
    image = Image.fromarray(x.astype(np.float32))
    return np.asarray(image.resize((width, height), Image.Resampling.BILINEAR, box), dtype=np.float64)


@_corruption(
    "snow",
    (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
    (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
    (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
    (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
    (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
)
def _snow(x: np.ndarray, scale: float, draws: Draws, *settings: float) -> np.ndarray:
    """weight·x + (1 − weight)·max(x, 1.5·grey + 0.5) + s + s turned by 180°.

    The flakes s are zoomed normal noise above a threshold, blurred along a random direction between −135° and −45°.
    """
    mean, std, zoom, threshold, radius, blur, weight = settings
    noise = draws.normal(size=x.shape[:2])
    flakes = _zoomed(mean + std * noise, zoom)
    flakes = np.where(flakes < threshold, 0, flakes).clip(0, 1)
    flakes = _along(flakes, radius * scale, blur * scale, draws.uniform(-135, -45))[..., None]
    grey = (x @ (0.299, 0.587, 0.114))[..., None]
    return weight * x + (1 - weight) * np.maximum(x, 1.5 * grey + 0.5) + flakes + flakes[::-1, ::-1]


@_corruption("frost", (1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75))
def _frost(x: np.ndarray, _scale: float, draws: Draws, weight: float, strength: float) -> np.ndarray:
    """weight·x + strength·ice. The published ice is cut from photographs; here it is drawn.

    It has bluish white ridges where one of two plasmas has a value near ½, within patches from a third plasma.
    """
    side = max(x.shape[:2])
    ridges, finer, patches = (_plasma(side, decay, draws)[: x.shape[0], : x.shape[1]] for decay in (1.6, 1.35, 1.9))
    crystals = np.maximum(1 - 10 * abs(ridges - 0.5), 0.8 - 8 * abs(finer - 0.5)).clip(0, 1)
    ice = (0.9 * patches * (0.4 + crystals)).clip(0, 1)
    return weight * x + strength * ice[..., None] * (0.85, 0.95, 1.0)


@_corruption("fog", (1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4))
def _fog(x: np.ndarray, _scale: float, draws: Draws, strength: float, decay: float) -> np.ndarray:
    """(x + strength·plasma)·m/(m + strength), where m is the greatest value of x."""
    greatest, fog = x.max(), _plasma(max(x.shape[:2]), decay, draws)[: x.shape[0], : x.shape[1], None]
    return (x + strength * fog) * greatest / (greatest + strength)


def _plasma(side: int, decay: float, draws: Draws) -> np.ndarray:
    """A cloud (n, n) with values from 0 to 1, by the diamond-square algorithm on a torus. n = 2^⌈log₂ side⌉.

    Each new point is the mean of the four points around it plus uniform noise. When the distance of the points halves,
    the size of the noise is divided by decay².
    """
    n = 2 ** math.ceil(math.log2(side))
    cloud = np.zeros((n, n))
    step, size = n, 1.0

    def mean_of_four(first: np.ndarray, second: np.ndarray) -> np.ndarray:
        return (first + second) / 4 + size * draws.uniform(-1, 1, first.shape)

    while step >= 2:
        half = step // 2
        corners = cloud[::step, ::step]
        pairs = corners + np.roll(corners, -1, 0)
        centres = mean_of_four(pairs, np.roll(pairs, -1, 1))
        cloud[half::step, half::step] = centres
        cloud[::step, half::step] = mean_of_four(centres + np.roll(centres, 1, 0), corners + np.roll(corners, -1, 1))
        cloud[half::step, ::step] = mean_of_four(centres + np.roll(centres, 1, 1), pairs)
        step, size = half, size / decay**2
    cloud -= cloud.min()
    return cloud / cloud.max()


@_corruption("brightness", 0.1, 0.2, 0.3, 0.4, 0.5)
def _brightness(x: np.ndarray, _scale: float, _draws: Draws, more: float) -> np.ndarray:
    """The value in HSV, which is max(R, G, B), is raised by `more`, up to 1. Hue and saturation stay."""
    value = x.max(-1, keepdims=True)
    raised = (value + more).clip(max=1)
    return np.where(value > 0, x * raised / np.where(value > 0, value, 1), raised)


@_corruption("contrast", 0.4, 0.3, 0.2, 0.1, 0.05)
def _contrast(x: np.ndarray, _scale: float, _draws: Draws, share: float) -> np.ndarray:
    """share·x + (1 − share)·(the mean of each channel)."""
    return share * x + (1 - share) * x.mean((0, 1))


@_corruption(
    "elastic-transform",
    (488, 170.8, 24.4),
    (488, 19.52, 48.8),
    (12.2, 2.44, 4.88),
    (17.08, 2.44, 4.88),
    (29.28, 2.44, 4.88),
)
def _elastic_transform(
    x: np.ndarray, scale: float, draws: Draws, strength: float, std: float, corner: float
) -> np.ndarray:
    """An affine map, then a displacement of every pixel by strength·(uniform noise, blurred by a Gaussian of `std` px).

    The affine map moves three corners of a square by up to `corner` px. The noise is in [−1, 1]. The blur divides it by
    about std, so `strength` is multiplied by scale², to displace by the same share of the picture. Severities 1 and 2
    bend the whole picture; 3 to 5 ripple it and move less of it.
    """
    height, width = x.shape[:2]
    moves = draws.uniform(-1, 1, (3, 2)) * corner * scale
    reach = min(height, width) // 3
    corners = np.array([(height, width)] * 3) // 2 + reach * np.array([(1, 1), (1, -1), (-1, -1)])
    backwards = np.linalg.solve(np.c_[corners + moves, np.ones(3)], corners)  # from (row, column, 1) to the source
    noise = draws.uniform(-1, 1, (2, height, width))
    down, along = _smoothing(height, std * scale), _smoothing(width, std * scale)
    shift = strength * scale**2 * (down @ noise @ along.T)
    grid = np.stack([*np.mgrid[:height, :width], np.ones((height, width))])
    source = np.tensordot(backwards.T, grid, 1)
    warped = [scipy.ndimage.map_coordinates(each, source, order=1, mode="mirror") for each in np.moveaxis(x, -1, 0)]
    rippled = [scipy.ndimage.map_coordinates(each, grid[:2] + shift, order=1, mode="reflect") for each in warped]
    return np.stack(rippled, -1)


@lru_cache(maxsize=16)
def _smoothing(side: int, std: float) -> np.ndarray:
    """A Gaussian filter along a line as a matrix (side, side), which is much faster than filtering if std is large."""
    return scipy.ndimage.gaussian_filter1d(np.eye(side), std, axis=0, mode="reflect", truncate=3)


@_corruption("pixelate", 0.6, 0.5, 0.4, 0.3, 0.25)
def _pixelate(x: np.ndarray, _scale: float, _draws: Draws, share: float) -> np.ndarray:
    """Reduce both sides to this share and enlarge them again, both with a box filter."""
    image, (height, width) = Image.fromarray(_as_bytes(x)), x.shape[:2]
    small = image.resize((max(1, int(share * width)), max(1, int(share * height))), Image.Resampling.BOX)
    return np.asarray(small.resize((width, height), Image.Resampling.BOX)) / 255.0


@_corruption("jpeg-compression", 25, 18, 15, 10, 7)
def _jpeg_compression(x: np.ndarray, _scale: float, _draws: Draws, quality: int) -> np.ndarray:
    """Write a JPEG of this quality and read it again."""
    file = io.BytesIO()
    Image.fromarray(_as_bytes(x)).save(file, "JPEG", quality=quality)
    return np.asarray(Image.open(file).convert("RGB")) / 255.0
