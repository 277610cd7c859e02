"""Scores of predicted probabilities (N, C) against labels (N,).

With confidence c_n = max p(·|x_n) and right_n = [argmax p(·|x_n) = y_n]:

    Brier   1/N Σ_n Σ_c (p_nc − [y_n = c])²                                  from 0 to 2
    ECE     Σ_b |B_b|/N · |mean right − mean confidence in B_b|              B_b: 15 bins of equal width, or mass
    AURC    1/N Σ_k (errors among the k surest) / k                          surest first

Images that tie have no order: where one is needed, each counts as right as they are on average.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torchmetrics.functional.classification import binary_calibration_error

ECE_BINS = 15
BELOW_ONE = 1 - torch.finfo(torch.float32).eps / 2
"""The largest float32 below 1. torchmetrics has a bin of its own for exactly 1, and takes what is above, as a rounded
average of certain samples may be, for logits."""


def scores(probabilities: Tensor, labels: Tensor) -> dict[str, float]:
    """Top-1 accuracy, ECE, adaptive ECE and AURC in percent; mean negative log-likelihood in nats; Brier score.

    probabilities (N, C) in float32, labels (N,).

    >>> scores(torch.tensor([[0.8, 0.2], [0.4, 0.6]]), torch.tensor([0, 0]))["accuracy"]
    50.0
    """
    confidence, answers = probabilities.max(-1)
    right = answers == labels
    # The floor is float32's step at 1: an impossible event costs about 16 nats, not infinity.
    likelihood = probabilities.gather(1, labels[:, None]).clamp_min(torch.finfo(torch.float32).eps)
    ece = binary_calibration_error(confidence.clamp_max(BELOW_ONE), right.int(), n_bins=ECE_BINS)
    return {
        "accuracy": 100 * right.double().mean().item(),
        "nll": -likelihood.double().log().mean().item(),
        "ece": 100 * ece.item(),
        "adaptive_ece": 100 * adaptive_calibration_error(confidence, right),
        "brier": brier(probabilities, labels),
        "aurc": 100 * area_under_risk_coverage(1 - confidence, right),
    }


def brier(probabilities: Tensor, labels: Tensor) -> float:
    """The mean squared distance of probabilities (N, C) from the truth, from 0 to 2.

    >>> brier(torch.tensor([[0.5, 0.5]]), torch.tensor([0]))
    0.5
    """
    truth = torch.nn.functional.one_hot(labels, probabilities.shape[1])
    return (probabilities.double() - truth).square().sum(-1).mean().item()


def adaptive_calibration_error(confidence: Tensor, right: Tensor, bins: int = ECE_BINS) -> float:
    """The calibration error with bins of (nearly) equal numbers of images, from confidence (N,) and right (N,)."""
    gaps = _right_in_order(confidence, right) - confidence.sort().values.double()
    return sum(abs(part.sum().item()) for part in gaps.tensor_split(bins)) / len(gaps)


def area_under_risk_coverage(uncertainty: Tensor, right: Tensor) -> float:
    """The mean, over k, of the share of errors among the k least uncertain images; from (N,) and (N,).

    >>> area_under_risk_coverage(torch.tensor([0.1, 0.2]), torch.tensor([True, False]))
    0.25
    """
    errors = 1 - _right_in_order(uncertainty, right)
    return (errors.cumsum(0) / torch.arange(1, len(right) + 1)).mean().item()


def _right_in_order(values: Tensor, right: Tensor) -> Tensor:
    """right (N,) in ascending order of values (N,), averaged over those of equal value."""
    _, block, sizes = values.unique(sorted=True, return_inverse=True, return_counts=True)
    sums = torch.zeros(len(sizes), dtype=torch.float64).index_add(0, block, right.double())
    return (sums / sizes).repeat_interleave(sizes)


def harmonic_mean(base: float, novel: float) -> float:
    """2·b·n / (b + n), 0 where both are.

    >>> harmonic_mean(60.0, 30.0)
    40.0
    """
    return 2 * base * novel / (base + novel) if base + novel else 0.0


def base_novel_scores(base: Mapping[str, float], novel: Mapping[str, float]) -> dict[str, float]:
    """One row of the base-to-novel table: both accuracies, their harmonic mean, mean NLL and ECE of the two."""
    return {
        "base": base["accuracy"],
        "novel": novel["accuracy"],
        "hm": harmonic_mean(base["accuracy"], novel["accuracy"]),
        "nll": (base["nll"] + novel["nll"]) / 2,
        "ece": (base["ece"] + novel["ece"]) / 2,
    }
