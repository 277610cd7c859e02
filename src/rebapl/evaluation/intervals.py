"""How far scores would move if other test images had been drawn from the same source.

    accuracy            Wilson's interval for the share of right answers, which holds near 100 %, too
    ECE                 see `calibration_interval`
    other scores        score ± z·σ, σ the standard deviation of the score over bootstrap samples of the images
    mean over seeds     mean ± t·s/√n, t of Student's distribution with n − 1 degrees of freedom; see `mean_interval`

The bootstrap draws images with replacement. For the same number of images it always draws the same ones, so that the
resampled scores of two posteriors on the same images can be subtracted: the standard deviation of the differences is
the paired standard error. Only the mean over seeds shows how much another seed of the training would change.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import scipy
import torch
from torch import Tensor

from rebapl.evaluation.scores import ECE_BINS, Z, confidence_bins, proportion_interval
from rebapl.randomness import generator

DRAWS = 1000
_AT_ONCE = 4_000_000
"""The largest number of values in one portion of draws, which has a value for each draw and image."""


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


def around(score: float, resampled: Tensor, least: float = 0.0, most: float = math.inf) -> Interval:
    """The interval of a score from `least` to `most`, from its values (draws,) over bootstrap samples."""
    half = Z * resampled.std().item()
    return Interval(max(least, score - half), min(most, score + half))


def mean_interval(values: Sequence[float]) -> Interval:
    """Student's interval for the mean of the distribution from which two or more independent values were drawn.

    The distribution is taken to be normal. t is 12.7 for two values, 4.30 for three and 2.26 for ten: the fewer values
    there are, the less their spread tells.

    >>> [round(end, 2) for end in mean_interval([1.0, 2.0, 3.0])]
    [-0.48, 4.48]
    """
    mean, count = statistics.fmean(values), len(values)
    half = float(scipy.special.stdtrit(count - 1, 0.975)) * statistics.stdev(values) / count**0.5
    return Interval(mean - half, mean + half)


def calibration_interval(confidence: Tensor, right: Tensor, draws: int = DRAWS) -> Interval:
    """The interval, in percent, for the ECE that infinitely many images would have in the same 15 bins.

    confidence (N,), right (N,). Let S_b = 1/N Σ_{n in b} (right_n − confidence_n) and μ_b = E S_b. The score is
    ECE = ‖S‖₁, and it estimates ‖μ‖₁. Since chance makes every |S_b| larger on average, E‖S‖₁ ≥ ‖μ‖₁: with few images
    ECE is too high, and far above 0 even for a calibrated predictor. So each end has its own formula:

        upper   ‖S‖₁ + z·σ, since ‖μ‖₁ ≤ E‖S‖₁;   σ: the standard deviation of ‖S*‖₁ over bootstrap samples S*
        lower   ‖S‖₁ − q,   since ‖S‖₁ − ‖μ‖₁ ≤ ‖S − μ‖₁;   q: the larger of the 97.5 % quantiles of ‖S* − S‖₁ and of
                the ECE of a calibrated predictor that has these confidences

    ‖μ‖₁ lies beyond each end in about 2.5 % of cases at most. The lower end is above 0 only if a calibrated predictor
    would have an ECE this large in fewer than 2.5 % of cases; this holds for any number of images.
    """
    gaps = _gaps(confidence, right.double())
    drawn = torch.cat([counts.double() @ gaps for counts in _counts(len(right), draws)]) / len(right)
    calibrated = torch.cat(list(_calibrated(confidence, draws)))
    mean = gaps.mean(0)
    noise = torch.stack([(drawn - mean).abs().sum(-1), calibrated])
    score, half = mean.abs().sum().item(), Z * drawn.abs().sum(-1).std().item()
    return Interval(100 * max(0.0, score - noise.quantile(0.975, dim=1).max().item()), 100 * (score + half))


def _calibrated(confidence: Tensor, draws: int) -> Iterator[Tensor]:
    """ECE, as a share, of drawn answers that are right as often as their confidence: portions (some draws,)."""
    stream, bins = generator(0, "calibrated"), _bins(confidence)
    for size in _portions(len(confidence), draws):
        right = torch.rand(size, len(confidence), generator=stream) < confidence
        yield ((right.double() - confidence.double()) @ bins / len(confidence)).abs().sum(-1)


def resampled_scores(probabilities: Tensor, labels: Tensor, draws: int = DRAWS) -> dict[str, Tensor]:
    """`accuracy`, `nll`, `ece` and `brier` (draws,) as in `scores`, over bootstrap samples of the images.

    probabilities (N, C), labels (N,).
    """
    confidence, answers = probabilities.max(-1)
    right = (answers == labels).double()
    likelihood = probabilities.gather(1, labels[:, None])[:, 0].clamp_min(torch.finfo(torch.float32).eps).double()
    # Σ_c (p_c − [y = c])² = Σ_c p_c² − 2 p_y + 1
    squares = probabilities.double().square().sum(-1) - 2 * probabilities.gather(1, labels[:, None])[:, 0].double() + 1
    values = torch.cat([torch.stack([right, -likelihood.log(), squares], -1), _gaps(confidence, right)], -1)
    means = torch.cat([counts.double() @ values for counts in _counts(len(labels), draws)]) / len(labels)
    accuracy, nll, brier = means[:, :3].T
    return {"accuracy": 100 * accuracy, "nll": nll, "ece": 100 * means[:, 3:].abs().sum(-1), "brier": brier}


def _gaps(confidence: Tensor, right: Tensor) -> Tensor:
    """right − confidence of each image in the column of its bin, and 0 in the others: (N, bins)."""
    return _bins(confidence) * (right.double() - confidence.double())[:, None]


def _bins(confidence: Tensor) -> Tensor:
    """1 in the column of each image's bin, and 0 in the others: (N, bins)."""
    return torch.nn.functional.one_hot(confidence_bins(confidence), ECE_BINS).double()


def _counts(images: int, draws: int) -> Iterator[Tensor]:
    """How often each image is in each bootstrap sample: portions of shape (some draws, N)."""
    stream = generator(0, "bootstrap")
    for size in _portions(images, draws):
        chosen = torch.randint(images, (size, images), generator=stream)
        yield torch.zeros(size, images).scatter_add_(1, chosen, torch.ones(size, images))


def _portions(images: int, draws: int) -> Iterator[int]:
    """The sizes of portions of draws that fit into memory; see `_AT_ONCE`."""
    size = max(1, _AT_ONCE // images)
    return (min(size, draws - first) for first in range(0, draws, size))
