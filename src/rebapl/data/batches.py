"""Images in memory, and mini-batches of images or of their features. A batch depends only on the seed and the step."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from PIL import Image
from torch import Tensor

from rebapl.captured import current
from rebapl.data.dataset import Dataset, Item
from rebapl.data.images import BROKEN, as_rgb, unreadable
from rebapl.data.resident import ResidentImages, fits
from rebapl.data.transforms import Preprocessing, random_box
from rebapl.data.workers import Ahead, in_threads, thread_count
from rebapl.randomness import generator, python_random

if TYPE_CHECKING:
    from rebapl.data.corruptions import Corruption


class LabelledImages:
    """The images and the labels (N,) of some items of a data set. Threads decode the images when they are needed.

    A `corruption`, if there is one, is applied to their test-time views.
    """

    def __init__(self, dataset: Dataset, items: Sequence[Item], corruption: Corruption | None = None) -> None:
        self.dataset = dataset
        self.items = items
        self.corruption = corruption
        self.labels = torch.tensor([item.label for item in items], dtype=torch.long)
        self._images: list[Image.Image] | None = None

    def __len__(self) -> int:
        return len(self.items)

    @property
    def images(self) -> list[Image.Image]:
        """All images, decoded as RGB. They are kept until `forget` is called."""
        if self._images is None:
            self._images = in_threads(self._decoded, range(len(self)))
        return self._images

    def forget(self) -> None:
        """Free the memory of the decoded images. They are decoded again when they are needed."""
        self._images = None

    def fingerprint(self) -> str:
        """A checksum that identifies these images: it covers the key, the label and the checksum of each image.

        Images that are not files are decoded for it, and kept until `forget` is called.
        """
        if self.dataset.features is not None:
            sums = [self.dataset.checksum(item.key) for item in self.items]
        else:
            images = self.images if self.dataset.folder is None else [None] * len(self)
            sums = in_threads(lambda row: self.dataset.checksum(self.items[row].key, images[row]), range(len(self)))
        lines = (f"{item.key}\n{item.label} {checksum}\n" for item, checksum in zip(self.items, sums, strict=True))
        return hashlib.sha256("".join(lines).encode("utf-8", "surrogatepass")).hexdigest()

    def views(self, preprocessing: Preprocessing, rows: Sequence[int] | None = None) -> Tensor:
        """The test-time views, uint8 (N, 3, H, W), of all images, or of the images `rows` in this order.

        Images that are decoded only for this call are not kept. If the data set has stored features instead of images,
        the features, float32 (N, e), are returned.
        """
        rows = range(len(self)) if rows is None else rows
        if self.dataset.features is not None:
            return self.dataset.features.of([self.items[row].key for row in rows])
        views = torch.empty(len(rows), 3, preprocessing.crop, preprocessing.crop, dtype=torch.uint8)

        def fill(index: int) -> None:
            row = rows[index]
            image = self._decoded(row) if self._images is None else self._images[row]
            views.numpy()[index] = preprocessing.centre(image).numpy()

        in_threads(fill, range(len(rows)))
        return views if self.corruption is None else self.corruption(views, [self.items[row].key for row in rows])

    def _decoded(self, row: int) -> Image.Image:
        image = self.dataset.load(self.items[row].key)
        try:
            return as_rgb(image, upright=False)
        except BROKEN as error:
            raise unreadable(self.items[row].key, error) from error


class TrainBatches:
    """`batches(step)` returns the augmented, normalised images (B, 3, H, W) and the labels (B,) of a step.

    Each epoch goes through the images in a new random order and drops an incomplete last batch. A batch that is larger
    than the data set is cut to its size. `crop_scale` is the range of the area of a crop, as a share of the image's
    area; the data set may raise its lower end (`min_crop`). Everything is derived from the seed and the step, so a
    resumed run sees the same batches as an uninterrupted one.

    The pixels are made in one of three ways, which give the same result. On a GPU with enough memory, the images stay
    on the GPU and are cropped and resized there (`resident=True` does this on any device). On a GPU with less memory,
    threads prepare the next `ahead` batches in the background. On a CPU, each batch is made when it is requested. A
    call never waits for the GPU.
    """

    def __init__(
        self,
        data: LabelledImages,
        preprocessing: Preprocessing,
        batch: int,
        crop_scale: tuple[float, float],
        seed: int,
        device: torch.device | str = "cpu",
        *,
        resident: bool | None = None,
        ahead: int | None = None,
    ) -> None:
        self.preprocessing = preprocessing
        self.batch = min(batch, len(data))
        self.crop_scale = (max(crop_scale[0], data.dataset.min_crop), crop_scale[1])
        self.flip = data.dataset.flip
        self.seed = seed
        self.device = torch.device(device)
        self.labels = data.labels
        self.sizes: list[tuple[int, int]] = [image.size for image in data.images]
        self.steps_per_epoch = len(self.sizes) // self.batch
        self.resident: ResidentImages | None = None
        self.images: list[Image.Image] = []
        if resident is None:
            gpu = self.device.type == "cuda"
            resident = gpu and fits(data.images, preprocessing, self.crop_scale, self.batch, self.device)
        if resident:
            self.resident = ResidentImages(data.images, preprocessing, self.crop_scale, self.device)
            data.forget()
        else:
            self.images = data.images
        if ahead is None:
            ahead = 0 if self.device.type == "cpu" else max(2, thread_count())
        self._prepared: Callable[[int], tuple[Tensor, Tensor]] = self._prepare
        if self.resident is None and ahead > 0:
            self._prepared = Ahead(self._prepare, ahead)

    def __call__(self, step: int) -> tuple[Tensor, Tensor]:
        if self.resident is not None:
            return self.draw(self.choices(step))
        pixels, labels = self._prepared(step)
        pixels = pixels.to(self.device, non_blocking=True)
        return self.preprocessing.normalize(pixels), labels.to(self.device, non_blocking=True)

    @property
    def drawable(self) -> bool:
        """Whether `draw` can make the batches, which needs the images on the device."""
        return self.resident is not None

    def choices(self, step: int) -> Tensor:
        """The random choices of a step, (B, 7): for each image its row, left, top, right, bottom, mirrored and label.

        The tensor is on the CPU, in pinned memory if the batches go to a GPU.
        """
        rows: list[int] = rows_at(step, self.batch, len(self.sizes), self.seed).tolist()
        rng = python_random(self.seed, "augmentation", step)
        crops = [(random_box(*self.sizes[row], self.crop_scale, rng), self.flip and rng.random() < 0.5) for row in rows]
        labels = self.labels[rows].tolist()
        result = self._host((len(rows), 7), torch.long)
        result[:] = torch.tensor(
            [(row, *box, mirrored, label) for row, (box, mirrored), label in zip(rows, crops, labels, strict=True)]
        )
        return result

    def draw(self, choices: Tensor) -> tuple[Tensor, Tensor]:
        """The images and labels that `choices` describes. The images must be resident on the device.

        `batches(step)` is `batches.draw(batches.choices(step))`. Shapes are fixed and nothing waits for the device. So
        a CUDA graph can capture this call and replay it on new choices that were copied to the device.
        """
        assert self.resident is not None
        choices = choices.to(self.device, non_blocking=True)
        views = self.resident.views(choices[:, 0], choices[:, 1:5], choices[:, 5].bool())
        return self.preprocessing.normalize(views), choices[:, 6].clone()

    def _prepare(self, step: int) -> tuple[Tensor, Tensor]:
        """The pixels, uint8 (B, 3, H, W), and the labels (B,) of a step, made with Pillow."""
        choices = self.choices(step)
        pixels = self._host((len(choices), 3, self.preprocessing.crop, self.preprocessing.crop), torch.uint8)
        for view, (row, left, top, right, bottom, mirrored, _) in zip(pixels.numpy(), choices.tolist(), strict=True):
            box = (left, top, right, bottom)
            view[:] = self.preprocessing.view(self.images[row], box, bool(mirrored)).numpy()
        labels = self._host((len(choices),), torch.long)
        labels[:] = choices[:, 6]
        return pixels, labels

    def _host(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """An uninitialised tensor on the CPU. If batches go to a GPU, it is pinned, so that copies do not wait."""
        with current(self.device):
            return torch.empty(shape, dtype=dtype, pin_memory=self.device.type == "cuda")


class FeatureBatches:
    """`batches(step)` returns the features (B, e) and the labels (B,) of a step. Heads are trained on them.

    If all features fit into one batch, each step has all of them, in their order. Otherwise each epoch goes through
    them in a new random order, which depends only on the seed and the epoch, and drops an incomplete last batch.
    """

    def __init__(self, features: Tensor, labels: Tensor, batch: int, seed: int) -> None:
        self.features, self.labels, self.seed = features, labels, seed
        self.batch = min(batch, len(labels))

    @property
    def steps_per_epoch(self) -> int:
        return len(self.labels) // self.batch

    def __call__(self, step: int) -> tuple[Tensor, Tensor]:
        if self.batch == len(self.labels):
            return self.features, self.labels
        rows = rows_at(step, self.batch, len(self.labels), self.seed).to(self.features.device, non_blocking=True)
        return self.features[rows], self.labels[rows]


def rows_at(step: int, batch: int, count: int, seed: int) -> Tensor:
    """The rows (batch,), out of `count` images or features, that make up the batch of a step."""
    epoch, number = divmod(step, count // batch)
    return epoch_order(seed, epoch, count)[number * batch : (number + 1) * batch]


@lru_cache(maxsize=8)
def epoch_order(seed: int, epoch: int, count: int) -> Tensor:
    """The random order (count,) in which an epoch goes through `count` images or features."""
    return torch.randperm(count, generator=generator(seed, "order", epoch))
