"""Training images that stay in the memory of the device, and Pillow's resizing as matrix products there.

The views equal Pillow's to the bit, for a whole batch at once. A row of w px becomes one of n px. With r = w/n,
s = max(r, 1), centre c = (x + ½)·r and filter f, its pixel x is

    Σ_i k_i·p_i / Σ_i k_i,   k_i = f((i + ½ − c)/s),   over the pixels i within s·(f's reach) of c.

Pillow makes the shares k_i/Σk whole numbers of 2⁻²², sums whole numbers, rounds and clips to 8 bit, along the rows and
then along the columns (or the other way, see `columns_first`). Here a share is two whole numbers of at most 12 bits.
Their products with pixels and the sums of these are whole numbers below 2²⁴ (for pictures shrunk up to sevenfold),
which float32 holds exactly: in whichever order they are summed, and in TensorFloat-32 too.
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
"""Larger crops are cheaper by Pillow: the matrix products grow with the square of the side."""

SHARE_OF_FREE_MEMORY = 4
"""The images may take a quarter of the device's free memory: the backbone and other runs want the rest."""

FRACTION_BITS = 22  # of Pillow's shares
SLICE_BITS = 12
REACH = {Image.Resampling.BILINEAR: 1.0, Image.Resampling.BICUBIC: 2.0}
"""How far the filters that can be computed here reach, in pixels of the smaller picture."""


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
    """Whether these images should stay on a GPU: if it has room for them and for the views of a step."""
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
    """Makes pictures of up to `side` by `side` px `size` by `size`, on a device that keeps the shares of all lengths.

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
        """Pictures uint8 (B, 3, side, side), each in the top left corner, as uint8 (B, 3, size, size).

        `sizes` (B, 2) are the pictures' own widths and heights; the rest of the canvas takes no part. Those `mirrored`
        (B,) come out mirrored left to right. Nothing here waits for the device.
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
        """Along the rows, then along the columns."""
        across, down = self._matrices(sizes).unbind(1)
        rows = canvas.to(torch.float32, memory_format=torch.contiguous_format)
        sums = rows.view(len(canvas), 3 * self.side, self.side) @ across.mT
        narrow = _rounded(*sums.int().split(self.size, -1)).view(-1, 3, self.side, self.size)
        # All three channels side by side, so that each column is one of one matrix.
        narrow = narrow.transpose(1, 2).to(torch.float32, memory_format=torch.contiguous_format)
        sums = down @ narrow.view(len(canvas), self.side, 3 * self.size)
        result = _rounded(*sums.int().split(self.size, -2))
        return result.view(-1, self.size, 3, self.size).transpose(1, 2)

    def _matrices(self, sizes: Tensor) -> Tensor:
        """(B, 2, 2·size, side), for widths and heights: upper and lower slices of each pixel's share in each pixel of
        the result."""
        shares = self.shares[sizes]  # (B, 2, 2, size, taps)
        taps = shares.shape[-1]
        # Taps beyond the picture, which have no share, may land on pixels beyond the canvas, which are cut off.
        matrix = shares.new_zeros(*shares.shape[:-1], self.side + taps)
        matrix.scatter_(-1, self.pixels[sizes][:, :, None].expand_as(shares), shares)
        return matrix.flatten(2, 3)[..., : self.side]


def _rows_first_up_to(widths: Tensor, size: int) -> Tensor:
    """Up to which height Pillow resizes a picture of each width along the rows first.

    From version 13 on it begins with the columns of pictures that shrink more there.
    """
    if int(PIL.__version__.split(".")[0]) < 13:
        return torch.full_like(widths, torch.iinfo(widths.dtype).max)
    return size + 2 * (widths - size).clamp(min=0)


def _shares(lengths: Tensor, size: int, longest: int, reach: float) -> tuple[Tensor, Tensor]:
    """Pixels (N, size, taps) that have a share in each pixel of the result, and the shares (N, 2, size, taps).

    In units of 2⁻²²; the first slice, times 2¹², and the second add up to the share.
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
    """The triangle, or the cubic with a = −½."""
    x = x.abs()
    if reach == 1:
        return (1 - x).clamp(min=0)
    a = -0.5
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return torch.where(x < 1, near, torch.where(x < 2, far, 0))


def _rounded(upper: Tensor, lower: Tensor) -> Tensor:
    """Sums of both slices to values of 0 … 255, as int32."""
    total = torch.add(lower, upper, alpha=2**SLICE_BITS) + 2 ** (FRACTION_BITS - 1)
    return (total >> FRACTION_BITS).clamp(0, 255)
