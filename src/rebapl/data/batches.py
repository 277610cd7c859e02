"""Images in memory, and mini-batches that are a pure function of the step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from PIL import Image
from torch import Tensor

from rebapl.data.dataset import Dataset, Item
from rebapl.data.transforms import Preprocessing
from rebapl.randomness import generator, python_random


class LabelledImages:
    """Decoded images and labels (N,) of some items of a data set."""

    def __init__(self, dataset: Dataset, items: Sequence[Item]) -> None:
        self.dataset = dataset
        self.images: list[Image.Image] = [dataset.load(item.key).convert("RGB") for item in items]
        self.labels = torch.tensor([item.label for item in items], dtype=torch.long)

    def __len__(self) -> int:
        return len(self.images)

    def views(self, preprocessing: Preprocessing, rows: Sequence[int] | None = None) -> Tensor:
        """The test-time views of all images, or of those in `rows` in that order, uint8 (N, 3, H, W)."""
        images = self.images if rows is None else [self.images[row] for row in rows]
        return torch.stack([preprocessing.centre(image) for image in images])


class TrainBatches:
    """`batches(step)` gives augmented, normalised images (B, 3, H, W) and labels (B,) of that step.

    Each epoch is a new random order, its incomplete last batch dropped (unless there is no complete one). The data
    set may ask for milder crops than `crop_scale`, the share of an image's area.
    Everything is derived from the seed and the step, so a resumed run sees what an uninterrupted one sees.
    """

    def __init__(
        self,
        data: LabelledImages,
        preprocessing: Preprocessing,
        batch: int,
        crop_scale: tuple[float, float],
        seed: int,
        device: torch.device | str = "cpu",
    ) -> None:
        self.data = data
        self.preprocessing = preprocessing
        self.batch = min(batch, len(data))
        self.crop_scale = (max(crop_scale[0], data.dataset.min_crop), crop_scale[1])
        self.flip = data.dataset.flip
        self.seed = seed
        self.device = device

    @property
    def steps_per_epoch(self) -> int:
        return len(self.data) // self.batch

    def __call__(self, step: int) -> tuple[Tensor, Tensor]:
        epoch, place = divmod(step, self.steps_per_epoch)
        order = torch.randperm(len(self.data), generator=generator(self.seed, "order", epoch))
        chosen = order[place * self.batch : (place + 1) * self.batch]
        rng = python_random(self.seed, "augmentation", step)
        images = (self.data.images[index] for index in chosen.tolist())
        views = [self.preprocessing.random(image, self.crop_scale, rng, self.flip) for image in images]
        pixels = torch.stack(views).to(self.device)
        return self.preprocessing.normalize(pixels), self.data.labels[chosen].to(self.device)
