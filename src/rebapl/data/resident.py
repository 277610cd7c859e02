"""Training images that stay in the memory of the device, and Pillow's resizing as matrix products there.

A whole batch is resized at once, and its views equal Pillow's to the last bit. Resizing turns a row of w px into one of
n px. With r = w/n, s = max(r, 1), centre c = (x + ½)·r and filter f, its pixel x is

    Σ_i k_i·p_i / Σ_i k_i,   k_i = f((i + ½ − c)/s),   over the pixels i within s·(f's reach) of c.

Pillow rounds the shares k_i/Σk to whole multiples of 2⁻²², sums whole numbers, rounds and clips to 8 bit. It does so
along the rows and then along the columns, or the other way round (see `columns_first`). Here a share is split into two
whole numbers of at most 12 bits. Their products with pixels and the sums of these products are whole numbers below 2²⁴
(for pictures shrunk up to sevenfold). Float32 represents them exactly, in any order of summation and in TensorFloat-32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import PIL
import torch
from PIL import Image
from torch import Tensor

from rebapl.data.transforms import Preprocessing, as_tensor, largest_box

LONGEST_SIDE = 1024
"""Larger crops are resized by Pillow, which is cheaper: the matrix products grow with the square of the side."""

SHARE_OF_FREE_MEMORY = 4
"""The images may take one in four bytes of the device's free memory: the backbone and other runs need the rest."""

FRACTION_BITS = 22
"""Pillow's shares are whole multiples of 2⁻²²."""

SLICE_BITS = 12
"""The bits of the lower of the two numbers that make up a share."""

REACH = {Image.Resampling.BILINEAR: 1.0, Image.Resampling.BICUBIC: 2.0}
"""The filters that can be computed here, and how far each one reaches, in pixels of the smaller picture."""


class ResidentImages:
    """RGB images as uint8 on a device, one after the other without padding: pixel p of image n is at offset_n + p.

    `views` equals `Preprocessing.view` of each image to the last bit. It never waits for the device and its shapes are
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

        `boxes` (B, 4) hold left, top, right and bottom; `mirrored` (B,) says which views are mirrored.
        """
        corners, ends = boxes.unflatten(1, (2, 2)).unbind(1)
        sizes = ends - corners
        # Beyond the box, the address of its last pixel is repeated: that pixel is ignored, but addresses must be valid.
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
    """Whether a GPU has enough memory for these images and for the views of a step, so that they should stay there."""
    if preprocessing.resample not in REACH:
        return False
    side = _longest_side(images, scale)
    stored = sum(3 * image.width * image.height for image in images)
    step = batch * side * (26 * side + 48 * preprocessing.crop)  # addresses, canvas in 8 and 32 bit, matrices, sums
    tables = 112 * side * max(side, preprocessing.crop)
    free, _ = torch.cuda.mem_get_info(device)
    return side <= LONGEST_SIDE and stored + step + tables <= free // SHARE_OF_FREE_MEMORY


def _longest_side(images: Sequence[Image.Image], scale: tuple[float, float]) -> int:
    return max(max(largest_box(*image.size, scale)) for image in images)


class Resizer:
    """Resizes pictures of at most `side` by `side` px to `size` by `size` px, with tables that stay on the device.

    >>> canvas = torch.arange(3 * 4 * 4, dtype=torch.uint8).view(1, 3, 4, 4)
    >>> Resizer(4, 2, Image.Resampling.BILINEAR)(canvas, torch.tensor([[2, 4]]), torch.tensor([True]))[0, 0]
    tensor([[ 4,  3],
            [10,  9]], dtype=torch.uint8)
    """

    def __init__(self, side: int, size: int, resample: int, device: torch.device | str = "cpu") -> None:
        self.side, self.size = side, size
        lengths = torch.arange(side + 1, device=device).clamp(min=1)
        self.pixels, self.shares = _shares(lengths, size, side, REACH[Image.Resampling(resample)])
        self.rows_first_up_to = _rows_first_up_to(lengths, size)

    def __call__(self, canvas: Tensor, sizes: Tensor, mirrored: Tensor) -> Tensor:
        """Resize pictures in the top left corners of a canvas, uint8 (B, 3, side, side), to uint8 (B, 3, size, size).

        `sizes` (B, 2) are the widths and heights of the pictures; the rest of the canvas has no effect. `mirrored` (B,)
        says which results are mirrored left to right. Nothing here waits for the device.
        """
        if self.side <= self.size:  # nothing is shrunk
            result = self._resized(canvas, sizes)
        else:
            columns_first = sizes[:, 1:] > self.rows_first_up_to[sizes[:, :1]]
            turned = columns_first[..., None, None]
            canvas = torch.where(turned, canvas.mT, canvas)
            result = self._resized(canvas, torch.where(columns_first, sizes.flip(1), sizes))
            result = torch.where(turned, result.mT, result)
        return torch.where(mirrored.view(-1, 1, 1, 1), result.flip(-1), result).to(torch.uint8)

    def _resized(self, canvas: Tensor, sizes: Tensor) -> Tensor:
        """Resize along the rows, then along the columns."""
        across, down = self._matrices(sizes).unbind(1)
        rows = canvas.to(torch.float32, memory_format=torch.contiguous_format)
        sums = rows.view(len(canvas), 3 * self.side, self.side) @ across.mT
        narrow = _rounded(*sums.int().split(self.size, -1)).view(-1, 3, self.side, self.size)
        # The three channels stand side by side, so that one matrix holds all columns.
        narrow = narrow.transpose(1, 2).to(torch.float32, memory_format=torch.contiguous_format)
        sums = down @ narrow.view(len(canvas), self.side, 3 * self.size)
        result = _rounded(*sums.int().split(self.size, -2))
        return result.view(-1, self.size, 3, self.size).transpose(1, 2)

    def _matrices(self, sizes: Tensor) -> Tensor:
        """The matrices (B, 2, 2·size, side) that resize these widths and heights.

        They hold the upper and the lower slices of the share of each pixel in each pixel of the result.
        """
        shares = self.shares[sizes]  # (B, 2, 2, size, taps)
        taps = shares.shape[-1]
        # Taps beyond the picture have the share 0. They may lie beyond the canvas, where they are cut off.
        matrix = shares.new_zeros(*shares.shape[:-1], self.side + taps)
        matrix.scatter_(-1, self.pixels[sizes][:, :, None].expand_as(shares), shares)
        return matrix.flatten(2, 3)[..., : self.side]


def _rows_first_up_to(widths: Tensor, size: int) -> Tensor:
    """For each width, the largest height of a picture that Pillow resizes along the rows first.

    From version 13 on, Pillow begins with the columns if the picture shrinks more along them.
    """
    if int(PIL.__version__.split(".")[0]) < 13:
        return torch.full_like(widths, torch.iinfo(widths.dtype).max)
    return size + 2 * (widths - size).clamp(min=0)


def _shares(lengths: Tensor, size: int, longest: int, reach: float) -> tuple[Tensor, Tensor]:
    """The pixels (N, size, taps) that have a share in each pixel of the result, and their shares (N, 2, size, taps).

    Shares are in units of 2⁻²². A share is its first slice times 2¹² plus its second slice.
    """
    ratio = lengths[:, None].double() / size
    stretch = ratio.clamp(min=1)
    centre = (torch.arange(size, device=lengths.device) + 0.5) * ratio
    first = (centre - reach * stretch + 0.5).long().clamp(min=0)
    end = torch.minimum((centre + reach * stretch + 0.5).long(), lengths[:, None])
    taps = 2 * math.ceil(reach * max(longest / size, 1)) + 1
    pixels = first[..., None] + torch.arange(taps, device=lengths.device)
    weight = _filter((pixels - centre[..., None] + 0.5) / stretch[..., None], reach)
    weight = torch.where(pixels < end[..., None], weight, 0)
    share = weight / weight.sum(-1, keepdim=True) * 2**FRACTION_BITS
    share = (share + torch.where(share < 0, -0.5, 0.5)).trunc()
    upper = (share / 2**SLICE_BITS).round()
    return pixels, torch.stack([upper, share - upper * 2**SLICE_BITS], dim=1).float()


def _filter(x: Tensor, reach: float) -> Tensor:
    """The bilinear filter (a triangle, reach 1) or the bicubic one with a = −½ (reach 2) at x."""
    x = x.abs()
    if reach == 1:
        return (1 - x).clamp(min=0)
    a = -0.5
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return torch.where(x < 1, near, torch.where(x < 2, far, 0))


def _rounded(upper: Tensor, lower: Tensor) -> Tensor:
    """Join the sums of both slices, round them and clip them to 0 … 255, as int32."""
    total = torch.add(lower, upper, alpha=2**SLICE_BITS) + 2 ** (FRACTION_BITS - 1)
    return (total >> FRACTION_BITS).clamp(0, 255)
