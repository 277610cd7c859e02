"""Test-time augmentation: the answer to an image is the mean of the answers to several views of it.

    p(y|x, θ_s) = 1/V Σ_v p(y | view_v(x), θ_s)

The first view is the image as the backbone sees it. The others are crops of this view, enlarged to its size: boxes of
at least half its area, drawn as in training (`random_box`). The V − 1 boxes are drawn once, from a fixed seed, and are
the same for every image, so that an answer does not depend on the other images. Nothing is mirrored, because a mirrored
letter is another letter. An answer costs V times the passes of the image tower; texts are encoded once.
"""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor

from rebapl.data.transforms import random_box
from rebapl.errors import UserError
from rebapl.randomness import python_random

LEAST = 0.5
"""The smallest share of the area in a crop. A smaller crop of a small picture may not show the object at all."""


def check_views(count: int, pixels: bool) -> None:
    """Refuse several views of images that have no pixels."""
    if count > 1 and not pixels:
        raise UserError(
            f"{count} views of an image need its pixels, and stored features have none: take one view "
            "(inference.views=1 in a training, `rebapl evaluate RUN --views 1` for a run that has more)"
        )


def several_views(views: Tensor, count: int) -> list[Tensor]:
    """`count` versions of test-time views, uint8 (N, 3, H, W): themselves, and crops of the same size."""
    check_views(count, pixels=views.ndim == 4)
    height, width = views.shape[-2:]
    versions, rng = [views], python_random(0, "views")
    for _ in range(count - 1):
        left, top, right, bottom = random_box(width, height, (LEAST, 1.0), rng)
        crop = views[..., top:bottom, left:right].float()
        larger = F.interpolate(crop, size=(height, width), mode="bicubic", align_corners=False)
        versions.append(larger.round().clamp(0, 255).to(views.dtype))
    return versions


def mean_over_views(logits: Tensor, count: int) -> Tensor:
    """log of the mean probabilities (S, N, C), from logits (S, count·N, C): all of the first version, then the next."""
    by_version = logits.float().log_softmax(-1).unflatten(1, (count, -1))
    return by_version.logsumexp(1) - math.log(count)
