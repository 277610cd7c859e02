"""Choices that are made on held-out images: when to say "I don't know", and the weights of the samples.

**A threshold** on an uncertainty; see `choose_threshold` and `rebapl.posterior.selective`.

**Weights** of samples are fitted by log-likelihood stacking (Yao et al., 2018) with a prior towards uniform weights:

    max over ω of  F(ω) = 1/N · Σ_n log Σ_s ω_s p_s(y_n|x_n) + α/N · Σ_s log ω_s,    ω ≥ 0, Σ ω = 1

The second term is a Dirichlet(1 + α) prior: for each of the S samples it acts like α more images that only this sample
explains. So a few images cannot give one sample all the weight, and many images still decide. α = 0 is plain stacking.
F is concave. It is maximised by expectation maximisation, which starts with uniform weights and repeats

    g_s = 1/N · Σ_n p_s(y_n|x_n) / Σ_t ω_t p_t(y_n|x_n),    ω_s ← (ω_s · g_s + α/N) / (1 + S·α/N)

No step lowers F. The gradient of F is d_s = g_s + α/(N·ω_s), and Σ ω d = 1 + S·α/N, so the maximum of F is at most
F(ω) + max_s d_s − 1 − S·α/N. The loop ends when this bound is within `GAP` of F(ω). It takes longer when samples are
nearly alike: without a prior, F is at most log(S)/`STEPS` below its maximum after `STEPS` steps.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rebapl.errors import UserError
from rebapl.numbers import effective_samples
from rebapl.posterior.prediction import Prediction, Threshold
from rebapl.posterior.selective import CONFIDENCE, answered_within, check_labels, check_promise

GAP = 1e-7
"""How far below its maximum F may be at the end, in nats."""

STEPS = 100_000

PRIOR = 1.0
"""α: for each sample, the number of images that only it explains, which the prior adds to the held-out images."""

COLLAPSED = 1.5
"""If more than two samples have fewer effective samples than this, one of them decides nearly alone."""


@dataclass(frozen=True)
class EarlierWeights:
    """Sample weights that were replaced: what they were replaced by, and when (UTC, ISO 8601)."""

    __pydantic_config__ = {"extra": "forbid"}
    weights: tuple[float, ...]
    replaced_by: str
    replaced_at: str


def choose_threshold(
    prediction: Prediction,
    labels: Tensor,
    *,
    risk: float | None = None,
    coverage: float | None = None,
    by: str = "max-probability",
    confidence: float = CONFIDENCE,
) -> Threshold:
    """Choose a threshold on the uncertainty `by`, on validation images with labels (N,) that nothing was trained on.

    With `risk`, it is the highest threshold that promises, with this `confidence`, that at most the share `risk` of the
    answers to new images is wrong; see `rebapl.posterior.selective`. With confidence 0 nothing is promised, and the
    risk is kept on these images only. With `coverage`, it is the lowest threshold at which at least this share of the
    images is answered. With both, the risk is kept, and at most the share `coverage`, rounded up to whole images, is
    answered. Images of equal uncertainty are answered together or not at all.
    """
    if risk is None and coverage is None:
        raise UserError("choose a threshold by risk or by coverage: give one of them, or both")
    check_labels(labels, len(prediction))
    doubt, wrong, names = prediction.uncertainty(by), prediction.labels != labels, prediction.class_names
    return threshold_on(doubt, wrong, by, names, prediction.average, risk, coverage, confidence)


def threshold_on(
    uncertainty: Tensor,
    wrong: Tensor,
    by: str,
    class_names: Sequence[str],
    average: str,
    risk: float | None,
    coverage: float | None,
    confidence: float,
) -> Threshold:
    """As `choose_threshold`, from uncertainties (N,) of the kind `by` and booleans (N,) for which answers are wrong."""
    if coverage is not None and not 0 < coverage <= 1:
        raise UserError(f"coverage = {coverage}: the share of images to answer is above 0 and at most 1")
    images, ordered = len(wrong), uncertainty.sort().values
    share = images if coverage is None else math.ceil(coverage * images - 1e-9)
    if risk is None:
        answered = int((uncertainty <= ordered[share - 1]).sum())
    else:
        check_promise(risk, confidence, images)
        answered = answered_within(uncertainty, wrong, risk, confidence, share)
    if risk is not None and answered == 0:
        promise, less = (f", at confidence {confidence:g},", " or less confidence") if confidence else ("", "")
        raise UserError(
            f"no threshold keeps the risk at {risk:g}{promise} on these {images} images: even their surest "
            f"answers are wrong too often; allow more risk{less}, or choose by coverage"
        )
    answers = uncertainty <= ordered[answered - 1]
    return Threshold(
        by=by,
        value=float(ordered[answered - 1]),
        average=average,
        class_names=tuple(class_names),
        risk=wrong[answers].double().mean().item(),
        coverage=answered / images,
        images=images,
        promised=risk if confidence else None,
        confidence=confidence if risk is not None else 0.0,
    )


def stacking_weights(log_probabilities: Tensor, labels: Tensor, prior: float = PRIOR) -> Tensor:
    """Weights (S,), float32, from log-probabilities (S, N, C) and labels (N,) that no sample was trained on.

    `prior` is α, at least 0: the larger it is, the nearer the weights stay to uniform ones.

    >>> surely = torch.tensor([[[0.9, 0.1]], [[0.2, 0.8]]]).log()
    >>> for prior in (0.0, 1.0):
    ...     print(stacking_weights(surely, torch.tensor([0]), prior).round(decimals=2))
    tensor([1., 0.])
    tensor([0.6300, 0.3700])
    """
    if not 0 <= prior < math.inf:
        raise UserError(f"prior = {prior}: it is a number of images, at least 0")
    if log_probabilities.ndim != 3 or log_probabilities.shape[1] != len(labels) or len(labels) == 0:
        raise UserError(
            f"log-probabilities (S, N, C) and labels (N,) of at least one image are needed; got shapes "
            f"{tuple(log_probabilities.shape)} and {tuple(labels.shape)}"
        )
    right = log_probabilities.double().gather(2, labels.expand(len(log_probabilities), -1)[..., None])[..., 0]
    (weights,) = deque(expectation_maximisation(right, prior), maxlen=1)  # those after the last step
    weights = weights.float()
    return weights / weights.sum()


def has_collapsed(weights: Tensor) -> bool:
    """Whether one of more than two samples has almost all the weight."""
    return len(weights) > 2 and effective_samples(weights) < COLLAPSED


def expectation_maximisation(right: Tensor, prior: float = PRIOR) -> Iterator[Tensor]:
    """Uniform weights (S,), then those after each step, from log-likelihoods (S, N) of the right answers."""
    weights = torch.full((len(right),), 1 / len(right), dtype=right.dtype)
    yield weights
    # A factor that all samples share for an image cancels in g, so each image is scaled such that its best sample has
    # likelihood 1. An image that is impossible for every sample says nothing about the weights, and is left out.
    best = right.amax(0)
    likelihood = (right - best).exp()[:, best > -torch.inf]
    if likelihood.shape[1] == 0:
        return
    each = prior / likelihood.shape[1]
    total = 1 + len(right) * each
    for _ in range(STEPS):
        mean = likelihood @ (1 / (weights @ likelihood)) / likelihood.shape[1]
        slope = mean + each / weights if each else mean  # without a prior, a weight may have become 0
        if slope.max() - total <= GAP:
            return
        weights = (weights * mean + each) / total
        yield weights
