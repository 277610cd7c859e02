"""Sample weights fitted on held-out data: log-likelihood stacking (Yao et al., 2018).

    max over ω of  ℓ(ω) = 1/N · Σ_n log Σ_s ω_s p_s(y_n|x_n),    ω ≥ 0, Σ ω = 1

which is concave. It is solved by expectation maximisation from uniform weights: with the mean responsibilities

    g_s = 1/N · Σ_n p_s(y_n|x_n) / Σ_t ω_t p_t(y_n|x_n),    ω_s ← ω_s · g_s

a step never lowers ℓ. Since g is the gradient and Σ ω g = 1, no weights reach more than ℓ(ω) + max_s g_s − 1. The loop
ends when that is within `GAP`. Samples that are nearly alike take longer: after `STEPS` steps, ℓ is at most
log(S)/`STEPS` below its maximum.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import torch
from torch import Tensor

from rebapl.errors import UserError

GAP = 1e-7
"""Nats of mean log-likelihood that the answer may lack."""

STEPS = 100_000


def stacking_weights(log_probabilities: Tensor, labels: Tensor) -> Tensor:
    """Weights (S,), float32, from log-probabilities (S, N, C) and labels (N,) that no sample was trained on.

    >>> surely = torch.tensor([[[0.9, 0.1]], [[0.2, 0.8]]]).log()
    >>> stacking_weights(surely, torch.tensor([0])).round(decimals=3)
    tensor([1., 0.])
    """
    if log_probabilities.ndim != 3 or log_probabilities.shape[1] != len(labels) or len(labels) == 0:
        raise UserError(
            f"log-probabilities (S, N, C) and labels (N,) of at least one image are needed; got shapes "
            f"{tuple(log_probabilities.shape)} and {tuple(labels.shape)}"
        )
    right = log_probabilities.double().gather(2, labels.expand(len(log_probabilities), -1)[..., None])[..., 0]
    (weights,) = deque(expectation_maximisation(right), maxlen=1)
    weights = weights.float()
    return weights / weights.sum()


def expectation_maximisation(right: Tensor) -> Iterator[Tensor]:
    """Uniform weights (S,), then those after each step, from log-likelihoods (S, N) of the right answers."""
    weights = torch.full((len(right),), 1 / len(right), dtype=right.dtype)
    yield weights
    # A factor common to all samples of an image drops out of g, so the best sample's likelihood may become 1; an
    # image that is impossible for all of them says nothing about their weights.
    best = right.amax(0)
    likelihood = (right - best).exp()[:, best > -torch.inf]
    if likelihood.shape[1] == 0:
        return
    for _ in range(STEPS):
        mean = likelihood @ (1 / (weights @ likelihood)) / likelihood.shape[1]
        if mean.max() - 1 <= GAP:
            return
        weights = weights * mean
        yield weights
