"""Turn an image into the numbers that a backbone reads: unchanged at test time, augmented at training time."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from rebapl.data.images import refuse_elongated

Box = tuple[int, int, int, int]
"""Left, top, right, bottom in pixels. Right and bottom are the first pixels outside the box."""


@dataclass(frozen=True)
class Preprocessing:
    """The preprocessing of a checkpoint: resize the short side to `resize` px, crop the centre, normalise the channels.

    The crop is `crop` by `crop` px. With `square`, both sides are resized to `resize` px, whatever the image's shape.
    """

    resize: int
    crop: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    resample: int = Image.Resampling.BICUBIC
    square: bool = False

    def normalize(self, pixels: Tensor) -> Tensor:
        """Pixels, uint8 (…, 3, H, W), as normalised float32. Features (n, e) instead of pixels stay as they are."""
        if pixels.ndim == 2:
            return pixels
        return (pixels.float() / 255 - _channels(self.mean, pixels.device)) / _channels(self.std, pixels.device)

    def centre(self, image: Image.Image) -> Tensor:
        """The test-time view, uint8 (3, crop, crop): the image is resized, and its centre is cropped."""
        refuse_elongated(image)
        image = _as_rgb(image)  # before resizing: palettes and transparency cannot be interpolated
        width, height = image.size
        short = min(width, height)
        # The long side is rounded down, as the published pipelines do.
        size = (int(self.resize * width / short), int(self.resize * height / short))
        if self.square:
            size = (self.resize, self.resize)
        image = image.resize(size, self.resample)
        left, top = (size[0] - self.crop) // 2, (size[1] - self.crop) // 2
        return as_tensor(image.crop((left, top, left + self.crop, top + self.crop)))

    def view(self, image: Image.Image, box: Box, mirrored: bool) -> Tensor:
        """A training view, uint8 (3, crop, crop): the box of the image, resized and perhaps mirrored."""
        # Cropped before it is resized, as in the published pipelines: no pixel outside the box has an effect.
        view = _as_rgb(image).crop(box).resize((self.crop, self.crop), self.resample)
        return as_tensor(view.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if mirrored else view)


def random_box(width: int, height: int, scale: tuple[float, float], rng: random.Random) -> Box:
    """A random box, with a share of the area that is uniform in `scale` and a log-uniform aspect ratio in 3/4 … 4/3.

    If ten draws do not fit into the image, it is the largest box in the centre with an aspect ratio in that range.
    """
    area = width * height * 1.0
    for _ in range(10):
        target = area * rng.uniform(*scale)
        ratio = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(target * ratio)), round(math.sqrt(target / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = rng.randint(0, width - w), rng.randint(0, height - h)
            return left, top, left + w, top + h
    w = min(width, round(height * 4 / 3))
    h = min(height, round(width * 4 / 3))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


def largest_box(width: int, height: int, scale: tuple[float, float]) -> tuple[int, int]:
    """The largest width and the largest height of a `random_box`. No box has both."""
    side = math.sqrt(width * height * scale[1] * 4 / 3)
    wide = max(round(side), round(height * 4 / 3))
    high = max(round(side), round(width * 4 / 3))
    return min(width, wide), min(height, high)


def as_tensor(image: Image.Image) -> Tensor:
    """An RGB image as uint8 (3, H, W)."""
    # With NumPy: torch would divide even a small copy among threads, and there is already one thread per image.
    return torch.from_numpy(np.array(np.asarray(_as_rgb(image)).transpose(2, 0, 1), order="C"))


def stacked(views: Sequence[Tensor | np.ndarray]) -> Tensor:
    """One or more views (3, H, W) as one tensor (n, 3, H, W)."""
    return torch.from_numpy(np.stack([np.asarray(view) for view in views]))  # with NumPy, as in `as_tensor`


def _as_rgb(image: Image.Image) -> Image.Image:
    """The image as RGB. An image that is RGB already is not copied."""
    return image if image.mode == "RGB" else image.convert("RGB")


@cache
def _channels(values: tuple[float, ...], device: torch.device) -> Tensor:
    """One value per channel, (3, 1, 1). It stays on the device, because copying it there makes the caller wait."""
    with torch.inference_mode(False):
        return torch.tensor(values, device=device).view(3, 1, 1)
