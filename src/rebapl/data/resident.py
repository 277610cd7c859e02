"""Images that stay in the memory of the device, from which training views are cut there."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from PIL import Image
from torch import Tensor

from rebapl.data.resampling import REACH, Resizer
from rebapl.data.transforms import Preprocessing, as_tensor, largest_box

LONGEST_SIDE = 1024
"""Larger crops are cheaper by Pillow: the matrix products grow with the square of the side."""

SHARE_OF_FREE_MEMORY = 4
"""One part in so many of the device's free memory may be taken: the backbone and other runs want the rest."""


class ResidentImages:
    """RGB images as uint8 on a device, one after the other without padding: pixel p of image n is its offset + p.

    `views` equals `Preprocessing.view` of each image to the bit. It never waits for the device and its shapes are
    fixed, so that it can be part of a captured CUDA graph.
    """

    def __init__(
        self,
        images: Sequence[Image.Image],
        preprocessing: Preprocessing,
        scale: tuple[float, float],
        device: torch.device | str,
    ) -> None:
        self.resizer = Resizer(_longest_side(images, scale), preprocessing.crop, preprocessing.resample, device)
        self.positions = torch.arange(self.resizer.side, device=device)
        areas = torch.tensor([0] + [image.width * image.height for image in images])
        ends = areas.cumsum(0)
        widths = torch.tensor([image.width for image in images])
        self.offsets_and_widths = torch.stack([ends[:-1], widths], dim=1).to(device)
        self.pixels = torch.empty(3, int(ends[-1]), dtype=torch.uint8, device=device)
        for image, start, end in zip(images, ends[:-1].tolist(), ends[1:].tolist(), strict=True):
            self.pixels[:, start:end] = as_tensor(image).flatten(1).to(device)

    def views(self, rows: Tensor, boxes: Tensor, mirrored: Tensor) -> Tensor:
        """Training views, uint8 (B, 3, crop, crop), of the images `rows` (B,), all on the device.

        `boxes` (B, 4) are left, top, right, bottom; those `mirrored` (B,) come out mirrored.
        """
        corners, ends = boxes.unflatten(1, (2, 2)).unbind(1)
        sizes = ends - corners
        # Beyond the box its last pixel is repeated: there nothing counts, but the address must be one.
        within = torch.minimum(self.positions, sizes[:, :, None] - 1)
        columns, lines = (corners[:, :, None] + within).unbind(1)  # (B, side)
        offsets, widths = self.offsets_and_widths[rows].unbind(1)
        starts = offsets[:, None] + lines * widths[:, None]
        canvas = self.pixels[:, starts[:, :, None] + columns[:, None, :]].transpose(0, 1)  # (B, 3, side, side)
        return self.resizer(canvas, sizes, mirrored)


def fits(
    images: Sequence[Image.Image],
    preprocessing: Preprocessing,
    scale: tuple[float, float],
    batch: int,
    device: torch.device | str,
) -> bool:
    """Whether these images should stay on the device: if it is a GPU with room for them and for the views of a step."""
    if torch.device(device).type != "cuda" or preprocessing.resample not in REACH:
        return False
    side = _longest_side(images, scale)
    stored = sum(3 * image.width * image.height for image in images)
    step = batch * side * (26 * side + 48 * preprocessing.crop)  # addresses, canvas in 8 and 32 bit, matrices, sums
    tables = 112 * side * max(side, preprocessing.crop)
    free, _ = torch.cuda.mem_get_info(device)
    return side <= LONGEST_SIDE and stored + step + tables <= free // SHARE_OF_FREE_MEMORY


def _longest_side(images: Sequence[Image.Image], scale: tuple[float, float]) -> int:
    return max(max(largest_box(*image.size, scale)) for image in images)
