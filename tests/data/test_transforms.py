"""Preprocessing against `transformers`' PIL image processors, to the bit before normalisation; random crops."""

import math
import random
from typing import Any

import checkpoints
import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from transformers import CLIPImageProcessorPil, SiglipImageProcessorPil

from rebapl.backbones.loading import read_preprocessing
from rebapl.data.transforms import Preprocessing, random_box

SIZES = [(64, 64), (300, 200), (201, 333), (40, 31), (33, 500), (17, 17), (223, 224)]
MODES = ["RGB", "L", "RGBA", "P", "LA", "1", "CMYK"]


def picture(size: tuple[int, int], mode: str) -> Image.Image:
    """Smooth colours and noise; in RGBA the transparency varies too."""
    width, height = size
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:height, :width]
    waves = [128 + 100 * np.sin(x / (5 + c) + y / (9 - c)) for c in range(4)]
    pixels = np.stack(waves, -1) + rng.normal(0, 15, (height, width, 4))
    rgba = Image.fromarray(pixels.clip(0, 255).astype(np.uint8), "RGBA")
    if mode == "P":
        return rgba.convert("RGB").quantize(16)
    return rgba if mode == "RGBA" else rgba.convert(mode)


def theirs(processor: Any, image: Image.Image, normalize: bool) -> Tensor:
    return processor(image, return_tensors="pt", do_normalize=normalize, do_rescale=normalize)["pixel_values"][0]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", ["clip", "siglip", "clip-margin"])
def test_equals_the_processor_of_transformers(kind: str, size: tuple[int, int], mode: str) -> None:
    if kind == "siglip":
        given = checkpoints.siglip_processor(32)
        processor, ours = SiglipImageProcessorPil(**given), read_preprocessing(given, 32, crops=False)
    else:
        given = checkpoints.clip_processor(32) | ({"size": {"shortest_edge": 41}} if kind == "clip-margin" else {})
        processor, ours = CLIPImageProcessorPil(**given), read_preprocessing(given, 32, crops=True)
    image = picture(size, mode)
    view = ours.centre(image)
    assert view.shape == (3, 32, 32)
    assert view.dtype == torch.uint8
    assert torch.equal(view, theirs(processor, image, normalize=False).to(torch.uint8))
    torch.testing.assert_close(ours.normalize(view), theirs(processor, image, normalize=True), atol=1e-6, rtol=0)


def test_the_training_view_is_a_resized_box_maybe_flipped() -> None:
    preprocessing = Preprocessing(resize=16, crop=16, mean=(0.5,) * 3, std=(0.5,) * 3)
    image = picture((50, 40), "RGBA")
    flips = 0
    for seed in range(40):
        view = preprocessing.view(image, random_box(50, 40, (0.2, 1.0), random.Random(seed)), mirrored=seed % 2 == 0)
        box = random_box(50, 40, (0.2, 1.0), random.Random(seed))
        plain = image.convert("RGB").crop(box).resize((16, 16), Image.Resampling.BICUBIC)
        straight = torch.from_numpy(np.array(plain)).permute(2, 0, 1)
        assert torch.equal(view, straight) or torch.equal(view, straight.flip(-1))
        flips += int(torch.equal(view, straight.flip(-1)))
    assert 10 <= flips <= 30  # 40 fair coins leave this range once in 1,700 tries


def draws(scale: tuple[float, float], n: int = 20_000) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Shares of the area, log aspect ratios, and left edges as a share of the room, of boxes in 1000 × 1000."""
    rng = random.Random(0)
    boxes = np.array([random_box(1000, 1000, scale, rng) for _ in range(n)])
    w, h = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    assert boxes.min() >= 0
    assert boxes.max() <= 1000
    return w * h / 1e6, np.log(w / h), boxes[:, 0] / np.maximum(1000 - w, 1)


def test_boxes_have_a_uniform_area_a_log_uniform_ratio_and_a_uniform_place() -> None:
    """At up to half the area every draw fits, so the first one counts and the distributions are the plain ones."""
    area, ratio, place = draws((0.1, 0.5))
    edge = math.log(4 / 3)
    for values, low, high in ((area, 0.1, 0.5), (ratio, -edge, edge), (place, 0, 1)):
        spread = high - low
        error = spread / math.sqrt(12 * len(values))
        assert abs(values.mean() - (low + high) / 2) < 5 * error
        assert values.std() == pytest.approx(spread / math.sqrt(12), rel=0.02)
        assert values.min() >= low - 0.01 * spread
        assert values.max() <= high + 0.01 * spread


def test_boxes_near_the_whole_area_are_drawn_again_until_they_fit() -> None:
    """Against rejection sampling of area and ratio written out; a draw at scale (0.08, 1) may not fit."""
    area, ratio, _ = draws((0.08, 1.0))
    rng = np.random.default_rng(1)
    target, log_ratio = rng.uniform(0.08, 1, 200_000), rng.uniform(-math.log(4 / 3), math.log(4 / 3), 200_000)
    fits = (target * np.exp(log_ratio) <= 1) & (target * np.exp(-log_ratio) <= 1)
    assert 0.7 < fits.mean() < 0.99
    for found, oracle in ((area, target[fits]), (np.abs(ratio), np.abs(log_ratio[fits]))):
        error = oracle.std() * math.sqrt(1 / len(found) + 1 / len(oracle))
        assert abs(found.mean() - oracle.mean()) < 5 * error


@pytest.mark.parametrize(("size", "expected"), [((400, 20), (26, 20)), ((20, 400), (20, 26))])
def test_where_nothing_fits_the_box_is_the_centre(size: tuple[int, int], expected: tuple[int, int]) -> None:
    """The whole area of a 20:1 strip never fits 3/4 … 4/3: torchvision's rule then takes ratio 4/3 or 3/4."""
    left, top, right, bottom = random_box(*size, (1.0, 1.0), random.Random(0))
    assert abs(right - left - expected[0]) <= 1
    assert abs(bottom - top - expected[1]) <= 1
    assert abs((left + right) - size[0]) <= 1
    assert abs((top + bottom) - size[1]) <= 1


GOOD = checkpoints.clip_processor(32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"crop_size": 48}, "come out at 48 px but the model sees 32 px"),
        ({"size": {"height": 32, "width": 40}}, "height and width must be equal"),
        ({"size": {"longest_edge": 32}}, "size must be pixels"),
        ({"crop_size": "32"}, "crop_size must be pixels"),
        ({"image_mean": [0.5]}, "image_mean must be three numbers"),
        ({"image_std": None}, "image_std must be three numbers"),
        ({"do_center_crop": False}, "not square"),
        ({"do_normalize": False}, "do_normalize is false"),
        ({"do_resize": False}, "do_resize is false"),
    ],
)
def test_a_preprocessor_that_does_not_fit_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_preprocessing(GOOD | change, 32, crops=True)


def test_sizes_are_understood_in_every_notation() -> None:
    plain = read_preprocessing(GOOD, 32, crops=True)
    named = GOOD | {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}
    assert read_preprocessing(named, 32, crops=True) == plain
    assert read_preprocessing({k: v for k, v in GOOD.items() if k != "do_center_crop"}, 32, crops=True) == plain
    assert not plain.square
    assert read_preprocessing(GOOD | {"size": {"height": 32, "width": 32}}, 32, crops=True).square
