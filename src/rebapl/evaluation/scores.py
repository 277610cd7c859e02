"""Scores of predicted probabilities (N, C) against labels (N,).

With confidence c_n = max p(·|x_n) and right_n = [argmax p(·|x_n) = y_n]:

    Brier   1/N Σ_n Σ_c (p_nc − [y_n = c])²                                  from 0 to 2
    ECE     Σ_b |B_b|/N · |mean right − mean confidence in B_b|              B_b: 15 bins of equal width, or mass
    AURC    1/N Σ_k (errors among the k surest) / k                          surest first

Images of equal confidence have no order. Where an order is needed, right_n of each of them is replaced by their mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rebapl.errors import unknown
from rebapl.numbers import harmonic_mean, mean

HM_CONVENTIONS = ("of-averages", "average")
"""The harmonic mean over several data sets: of the two average accuracies, or the average over the data sets."""

Z = 1.959963984540054
"""A standard normal number lies between −Z and Z with probability 0.95."""

ECE_BINS = 15


Score = Callable[[Tensor, Tensor], float]
"""A function of probabilities (N, C) in float32 and labels (N,) that returns a number."""


def scores(probabilities: Tensor, labels: Tensor) -> dict[str, float]:
    """Every score of `SCORES`, by name: probabilities (N, C) in float32, labels (N,).

    >>> scores(torch.tensor([[0.8, 0.2], [0.4, 0.6]]), torch.tensor([0, 0]))["accuracy"]
    50.0
    """
    return {name: score(probabilities, labels) for name, score in SCORES.items()}


def accuracy(probabilities: Tensor, labels: Tensor) -> float:
    """The share of images, in percent, whose likeliest class is the right one."""
    return 100 * (probabilities.max(-1).indices == labels).double().mean().item()


def negative_log_likelihood(probabilities: Tensor, labels: Tensor) -> float:
    """The mean of −log p(y|x), in nats."""
    # The floor is float32's step at 1: an impossible event costs about 16 nats, not infinity.
    likelihood = probabilities.gather(1, labels[:, None]).clamp_min(torch.finfo(torch.float32).eps)
    return -likelihood.double().log().mean().item()


def confidence_and_right(probabilities: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The confidence (N,), and booleans (N,) for which answers are right."""
    confidence, answers = probabilities.max(-1)
    return confidence, answers == labels


def aurc(probabilities: Tensor, labels: Tensor) -> float:
    """The area under the curve of risk over coverage, in percent."""
    confidence, right = confidence_and_right(probabilities, labels)
    return 100 * area_under_risk_coverage(1 - confidence, right)


def proportion_interval(count: int, total: int) -> tuple[float, float]:
    """Wilson's interval at level 0.95 for a probability, when `count` of `total` cases had the event.

    With p = count/total, n = total and z = 1.96 it is (p + z²/2n ± z·√(p(1−p)/n + z²/4n²)) / (1 + z²/n).

    >>> low, high = proportion_interval(9, 10)
    >>> round(low, 3), round(high, 3)
    (0.596, 0.982)
    """
    share, square = count / total, Z**2
    middle = share + square / (2 * total)
    width = math.sqrt(square * (share * (1 - share) / total + square / (4 * total**2)))
    low, high = ((middle + sign * width) / (1 + square / total) for sign in (-1, 1))
    return max(low, 0.0), min(high, 1.0)


def brier(probabilities: Tensor, labels: Tensor) -> float:
    """The mean squared distance of probabilities (N, C) from the truth, from 0 to 2.

    >>> brier(torch.tensor([[0.5, 0.5]]), torch.tensor([0]))
    0.5
    """
    truth = torch.nn.functional.one_hot(labels, probabilities.shape[1])
    return (probabilities.double() - truth).square().sum(-1).mean().item()


def calibration_error(confidence: Tensor, right: Tensor, bins: int = ECE_BINS) -> float:
    """The calibration error with bins of equal width, from confidence (N,) and right (N,).

    A bin includes its lower edge. The last bin also includes 1, and values a little above 1, which rounding can give.

    >>> round(calibration_error(torch.tensor([0.95, 0.95]), torch.tensor([True, False])), 6)
    0.45
    """
    bin_of_image = confidence_bins(confidence, bins)
    gaps = torch.zeros(bins, dtype=torch.float64).index_add(0, bin_of_image, right.double() - confidence.double())
    return gaps.abs().sum().item() / len(confidence)


def confidence_bins(confidence: Tensor, bins: int = ECE_BINS) -> Tensor:
    """The number (N,) of the bin of equal width that each confidence (N,) is in."""
    return torch.bucketize(confidence, torch.linspace(0, 1, bins + 1)[1:-1], right=True)


class Bin(NamedTuple):
    """The images whose confidence is in one bin: their mean confidence, the share answered right, and their number."""

    confidence: float
    accuracy: float
    images: int


def reliability(confidence: Tensor, right: Tensor, bins: int = ECE_BINS) -> list[Bin]:
    """The bins of the calibration error that hold images, from confidence (N,) and right (N,).

    >>> reliability(torch.tensor([0.25, 0.75, 0.75]), torch.tensor([True, True, False]))
    [Bin(confidence=0.25, accuracy=1.0, images=1), Bin(confidence=0.75, accuracy=0.5, images=2)]
    """
    bin_of_image = confidence_bins(confidence, bins)
    filled = []
    for number in bin_of_image.unique().tolist():
        inside = bin_of_image == number
        means = confidence[inside].double().mean().item(), right[inside].double().mean().item()
        filled.append(Bin(*means, int(inside.sum())))
    return filled


def adaptive_calibration_error(confidence: Tensor, right: Tensor, bins: int = ECE_BINS) -> float:
    """The calibration error with bins of (nearly) equal numbers of images, from confidence (N,) and right (N,)."""
    gaps = _right_in_order(confidence, right) - confidence.sort().values.double()
    return sum(abs(part.sum().item()) for part in gaps.tensor_split(bins)) / len(gaps)


def area_under_risk_coverage(uncertainty: Tensor, right: Tensor) -> float:
    """The mean, over k, of the share of errors among the k least uncertain images; from (N,) and (N,).

    >>> area_under_risk_coverage(torch.tensor([0.1, 0.2]), torch.tensor([True, False]))
    0.25
    """
    return risk_by_coverage(uncertainty, right).mean().item()


def risk_by_coverage(uncertainty: Tensor, right: Tensor) -> Tensor:
    """The share of errors among the k least uncertain images, for k = 1 … N; from (N,) and (N,).

    >>> risk_by_coverage(torch.tensor([0.1, 0.2]), torch.tensor([True, False])).tolist()
    [0.0, 0.5]
    """
    errors = 1 - _right_in_order(uncertainty, right)
    return errors.cumsum(0) / torch.arange(1, len(right) + 1)


def _right_in_order(values: Tensor, right: Tensor) -> Tensor:
    """right (N,) in ascending order of values (N,), averaged over images of equal value."""
    _, block, sizes = values.unique(sorted=True, return_inverse=True, return_counts=True)
    sums = torch.zeros(len(sizes), dtype=torch.float64).index_add(0, block, right.double())
    return (sums / sizes).repeat_interleave(sizes)


SCORES: dict[str, Score] = {
    "accuracy": accuracy,
    "nll": negative_log_likelihood,
    "ece": lambda *arguments: 100 * calibration_error(*confidence_and_right(*arguments)),
    "adaptive_ece": lambda *arguments: 100 * adaptive_calibration_error(*confidence_and_right(*arguments)),
    "brier": brier,
    "aurc": aurc,
}
"""The scores of predicted probabilities, by name. `evaluate` and `results.json` also have every score that you add."""


def base_novel_accuracies(parts: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """`base`, `novel` and `hm`: the accuracies of the parts `base` and `novel`, and their harmonic mean."""
    base, novel = (parts[name]["accuracy"] for name in ("base", "novel"))
    return {"base": base, "novel": novel, "hm": harmonic_mean(base, novel)}


def base_novel_scores(base: Mapping[str, float], novel: Mapping[str, float]) -> dict[str, float]:
    """One row of the base-to-novel table: both accuracies, their harmonic mean, and the means of both NLLs and ECEs."""
    means = {name: (base[name] + novel[name]) / 2 for name in ("nll", "ece")}
    return {**base_novel_accuracies({"base": base, "novel": novel}), **means}


def average_over_data(
    per_data: Sequence[Mapping[str, float | None]], convention: str = HM_CONVENTIONS[0]
) -> dict[str, float | None]:
    """The average over data sets of the scores of one seed; None for a score that some data set does not have.

    If there are base and novel classes, `hm` follows the `convention`, one of `HM_CONVENTIONS`, and `hm of-averages`
    and `hm average` have the values of both.

    >>> scores = [{"base": 60.0, "novel": 30.0, "hm": 40.0}, {"base": 80.0, "novel": 80.0, "hm": 80.0}]
    >>> {name: round(value, 2) for name, value in average_over_data(scores).items()}
    {'base': 70.0, 'novel': 55.0, 'hm': 61.6, 'hm of-averages': 61.6, 'hm average': 60.0}
    """
    check_hm_convention(convention)
    means = {name: mean(scores[name] for scores in per_data) for name in per_data[0]}
    base, novel = means.get("base"), means.get("novel")
    if base is None or novel is None:
        return means
    both = dict(zip(HM_CONVENTIONS, (harmonic_mean(base, novel), means["hm"]), strict=True))
    return {**means, "hm": both[convention], **{f"hm {name}": value for name, value in both.items()}}


def check_hm_convention(name: str) -> None:
    """Refuse a name that is not in `HM_CONVENTIONS`."""
    if name not in HM_CONVENTIONS:
        raise unknown("convention of --hm", name, HM_CONVENTIONS)
