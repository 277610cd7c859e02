"""Resizing by matrix products against Pillow itself: equal to the bit."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from rebapl.data.resident import Resizer
from rebapl.data.transforms import as_tensor

FILTERS = [Image.Resampling.BILINEAR, Image.Resampling.BICUBIC]

# Width and height: enlarged, shrunk, as they are, strips, one pixel; Pillow 13 shrinks the columns of some first.
SHAPES = [(64, 64), (50, 90), (90, 50), (32, 32), (32, 200), (200, 32), (1, 1), (1, 150), (260, 3), (33, 35), (33, 34)]


def pictures(shapes: list[tuple[int, int]], hard: bool) -> list[Image.Image]:
    """Noise of all levels, or of black and white only, where cubic weights overshoot and clip."""
    rng = np.random.default_rng(0)
    levels = [rng.integers(0, 256, (height, width, 3)).astype(np.uint8) for width, height in shapes]
    return [Image.fromarray((each > 127).astype(np.uint8) * 255 if hard else each) for each in levels]


def on_canvases(images: list[Image.Image], side: int) -> Tensor:
    """uint8 (N, 3, side, side); what is beside an image is noise that must not count."""
    canvas = torch.randint(0, 256, (len(images), 3, side, side), generator=torch.Generator().manual_seed(0))
    canvas = canvas.to(torch.uint8)
    for corner, image in zip(canvas, images, strict=True):
        corner[:, : image.height, : image.width] = as_tensor(image)
    return canvas


def check(size: int, resample: int, hard: bool, device: str = "cpu") -> None:
    images = pictures(SHAPES, hard)
    mirrored = [index % 2 == 1 for index in range(len(images))]
    wanted = []
    for image, mirror in zip(images, mirrored, strict=True):
        small = image.resize((size, size), resample)
        wanted.append(as_tensor(small.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if mirror else small))
    sizes = torch.tensor(SHAPES, device=device)
    canvas = on_canvases(images, 260).to(device)
    resizer = Resizer(260, size, resample, device)
    found = resizer(canvas, sizes, torch.tensor(mirrored, device=device))
    assert found.dtype == torch.uint8
    assert torch.equal(found.cpu(), torch.stack(wanted))


@pytest.mark.parametrize("hard", [False, True], ids=["grey", "hard"])
@pytest.mark.parametrize("resample", FILTERS, ids=["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [1, 32, 64, 100, 300])
def test_equals_pillow_to_the_bit(size: int, resample: int, hard: bool) -> None:
    check(size, resample, hard)


@pytest.mark.gpu
@pytest.mark.parametrize("tf32", [False, True])
def test_equals_pillow_to_the_bit_on_a_gpu(tf32: bool) -> None:
    """Also where matrix products are allowed to drop bits: the numbers are small enough to keep all of theirs."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = tf32
    try:
        for size in (32, 224):
            check(size, Image.Resampling.BICUBIC, hard=True, device="cuda")
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def test_a_picture_shrunk_thirtyfold_is_off_by_one_level_at_most() -> None:
    """Beyond sevenfold the sums may leave the whole numbers that float32 holds."""
    (image,) = pictures([(990, 960)], hard=True)
    sizes = torch.tensor([[990, 960]])
    resizer = Resizer(990, 32, Image.Resampling.BICUBIC)
    found = resizer(on_canvases([image], 990), sizes, torch.tensor([False]))
    difference = found[0].int() - as_tensor(image.resize((32, 32), Image.Resampling.BICUBIC)).int()
    assert difference.abs().max() <= 1
