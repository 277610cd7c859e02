"""From an image to the numbers a backbone sees, at test time and, augmented, at training time."""

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
"""Left, top, right, bottom; the last two are outside."""


@dataclass(frozen=True)
class Preprocessing:
    """The preprocessing of a checkpoint: resize the short side to `resize` px, crop the centre, normalise the channels.

    The crop has `crop` px a side. With `square`, both sides are resized to `resize` px, whatever the shape was.
    """

    resize: int
    crop: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    resample: int = Image.Resampling.BICUBIC
    square: bool = False

    def normalize(self, pixels: Tensor) -> Tensor:
        """uint8 (…, 3, H, W) to normalised float32. Features (n, e), which stand for images, stay as they are."""
        if pixels.ndim == 2:
            return pixels
        return (pixels.float() / 255 - _channels(self.mean, pixels.device)) / _channels(self.std, pixels.device)

    def centre(self, image: Image.Image) -> Tensor:
        """The test-time view, uint8 (3, crop, crop): resized, then the centre."""
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
        """That box of the image, uint8 (3, crop, crop)."""
        # Cropped before it is resized, as the published pipelines do: no pixel outside the box takes part.
        view = _as_rgb(image).crop(box).resize((self.crop, self.crop), self.resample)
        return as_tensor(view.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if mirrored else view)


def random_box(width: int, height: int, scale: tuple[float, float], rng: random.Random) -> Box:
    """A box of `scale` of the area and an aspect ratio log-uniform in 3/4 … 4/3; the centre if ten draws do not fit."""
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
    """The greatest width and the greatest height that a `random_box` can have, though not both at once."""
    side = math.sqrt(width * height * scale[1] * 4 / 3)
    wide = max(round(side), round(height * 4 / 3))
    high = max(round(side), round(width * 4 / 3))
    return min(width, wide), min(height, high)


def as_tensor(image: Image.Image) -> Tensor:
    """An RGB image as uint8 (3, H, W)."""
    # By numpy: torch would divide even a small copy among threads, and there is a thread per image already.
    return torch.from_numpy(np.array(np.asarray(_as_rgb(image)).transpose(2, 0, 1), order="C"))


def stacked(views: Sequence[Tensor]) -> Tensor:
    """Views (3, H, W), one or more, as one tensor (n, 3, H, W)."""
    return torch.from_numpy(np.stack([view.numpy() for view in views]))  # by numpy, as in `as_tensor`


def _as_rgb(image: Image.Image) -> Image.Image:
    """The image as RGB; one that is so already is not copied."""
    return image if image.mode == "RGB" else image.convert("RGB")


@cache
def _channels(values: tuple[float, ...], device: torch.device) -> Tensor:
    """One value per channel, (3, 1, 1); kept on the device, since sending it each time would wait for it."""
    with torch.inference_mode(False):
        return torch.tensor(values, device=device).view(3, 1, 1)
