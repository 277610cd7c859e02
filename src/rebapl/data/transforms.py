"""From an image to the numbers a backbone sees, at test time and, augmented, at training time."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor


@dataclass(frozen=True)
class Preprocessing:
    """What a checkpoint wants: short side to `resize` px, centre crop of `crop` px, channels normalised.

    With `square`, both sides are made `resize` px, whatever the shape was.
    """

    resize: int
    crop: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    resample: int = Image.Resampling.BICUBIC
    square: bool = False

    def normalize(self, pixels: Tensor) -> Tensor:
        """uint8 (…, 3, H, W) to normalised float32."""
        mean = torch.tensor(self.mean, device=pixels.device).view(3, 1, 1)
        std = torch.tensor(self.std, device=pixels.device).view(3, 1, 1)
        return (pixels.float() / 255 - mean) / std

    def centre(self, image: Image.Image) -> Tensor:
        """The test-time view, uint8 (3, crop, crop): resized, then the centre."""
        image = image.convert("RGB")  # before resizing: palettes and transparency cannot be interpolated
        width, height = image.size
        short = min(width, height)
        # The long side is rounded down, as the published pipelines do.
        size = (int(self.resize * width / short), int(self.resize * height / short))
        if self.square:
            size = (self.resize, self.resize)
        image = image.resize(size, self.resample)
        left, top = (size[0] - self.crop) // 2, (size[1] - self.crop) // 2
        return as_tensor(image.crop((left, top, left + self.crop, top + self.crop)))

    def random(self, image: Image.Image, scale: tuple[float, float], rng: random.Random, flip: bool = True) -> Tensor:
        """The training view, uint8 (3, crop, crop): a random crop of that share of the area, half of them mirrored."""
        box = random_box(*image.size, scale, rng)
        # Cropped before it is resized, as the published pipelines do: no pixel outside the box takes part.
        view = image.convert("RGB").crop(box).resize((self.crop, self.crop), self.resample)
        if flip and rng.random() < 0.5:
            view = view.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return as_tensor(view)


def random_box(width: int, height: int, scale: tuple[float, float], rng: random.Random) -> tuple[int, int, int, int]:
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


def as_tensor(image: Image.Image) -> Tensor:
    """An RGB image as uint8 (3, H, W)."""
    return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1).contiguous()
