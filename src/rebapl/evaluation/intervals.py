"""How far scores would move if other test images had been drawn from where these came from.

    accuracy            Wilson's interval for the share of right answers, which holds near 100 %, too
    other scores        score ± z·σ, σ the standard deviation of the score over bootstrap samples of the images

The bootstrap draws images with replacement. For the same number of images it draws the same ones each time, so that
the resampled scores of two posteriors on the same images can be subtracted: the standard deviation of the differences
is the paired standard error. None of these errors says how much another seed of the training would change.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from rebapl.evaluation.scores import ECE_BINS, Z, confidence_bins, proportion_interval
from rebapl.randomness import generator

DRAWS = 1000
_AT_ONCE = 4_000_000
"""How many numbers the counts of one portion of draws hold."""


class Interval(NamedTuple):
    """The two ends of an interval at level 0.95."""

    low: float
    high: float


def accuracy_interval(right: Tensor) -> Interval:
    """Wilson's interval, in percent, for the accuracy of answers that are right (N,) or wrong.

    >>> [round(end, 2) for end in accuracy_interval(torch.tensor([True] * 9 + [False]))]
    [59.58, 98.21]
    """
    low, high = proportion_interval(int(right.sum()), len(right))
    return Interval(100 * low, 100 * high)


def around(score: float, resampled: Tensor) -> Interval:
    """The interval of a score that is at least zero, from its values (draws,) over bootstrap samples."""
    half = Z * resampled.std().item()
    return Interval(max(0.0, score - half), score + half)


def resampled_scores(probabilities: Tensor, labels: Tensor, draws: int = DRAWS) -> dict[str, Tensor]:
    """`accuracy`, `nll`, `ece` and `brier` (draws,) as in `scores`, over bootstrap samples of the images.

    probabilities (N, C), labels (N,).
    """
    confidence, answers = probabilities.max(-1)
    right = (answers == labels).double()
    likelihood = probabilities.gather(1, labels[:, None])[:, 0].clamp_min(torch.finfo(torch.float32).eps).double()
    # Σ_c (p_c − [y = c])² = Σ_c p_c² − 2 p_y + 1
    squares = probabilities.double().square().sum(-1) - 2 * probabilities.gather(1, labels[:, None])[:, 0].double() + 1
    gaps = torch.zeros(len(labels), ECE_BINS, dtype=torch.float64)
    gaps[torch.arange(len(labels)), confidence_bins(confidence)] = right - confidence.double()
    values = torch.cat([torch.stack([right, -likelihood.log(), squares], -1), gaps], -1)
    means = torch.cat([counts.double() @ values for counts in _counts(len(labels), draws)]) / len(labels)
    accuracy, nll, brier = means[:, :3].T
    return {"accuracy": 100 * accuracy, "nll": nll, "ece": 100 * means[:, 3:].abs().sum(-1), "brier": brier}


def _counts(images: int, draws: int) -> Iterator[Tensor]:
    """How often each image is in each bootstrap sample: portions of shape (some draws, N)."""
    stream, each = generator(0, "bootstrap"), max(1, _AT_ONCE // images)
    for first in range(0, draws, each):
        size = min(each, draws - first)
        chosen = torch.randint(images, (size, images), generator=stream)
        yield torch.zeros(size, images).scatter_add_(1, chosen, torch.ones(size, images))
