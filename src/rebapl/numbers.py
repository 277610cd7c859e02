"""Formulas that several folders use."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

import torch
from torch import Tensor


def entropy(probabilities: Tensor) -> Tensor:
    """−Σ_c p_c log p_c over the last dimension, in nats; 0·log 0 = 0. Shape (…, C) → (…).

    >>> entropy(torch.tensor([0.5, 0.5]))  # log 2
    tensor(0.6931)
    """
    return torch.special.entr(probabilities).sum(-1)


def harmonic_mean(base: float, novel: float) -> float:
    """2·b·n / (b + n), or 0 if both are 0.

    >>> harmonic_mean(60.0, 30.0)
    40.0
    """
    return 2 * base * novel / (base + novel) if base + novel else 0.0


def mean(values: Iterable[float | None]) -> float | None:
    """The mean; None if one of the values is missing, or if there are none.

    >>> mean([1.0, 2.0]), mean([1.0, None]), mean([])
    (1.5, None, None)
    """
    known = list(values)
    return None if not known or None in known else statistics.fmean(value for value in known if value is not None)


def effective_samples(weights: Tensor, similarity: Tensor | None = None) -> float:
    """1 / Σ_st ω_s ω_t Z_st (Leinster & Cobbold, 2012, order 2): from 1, if all samples are alike, to their number S.

    The similarity Z_st of samples s and t is from 0 to 1, and is 1 on the diagonal. Without it, samples count as
    entirely different (Z = I), and the result is 1/Σ ω². If Z_st is the share of images to which samples s and t give
    the same answer, S samples that always agree count as one.

    >>> effective_samples(torch.tensor([0.5, 0.5])), effective_samples(torch.tensor([0.5, 0.5]), torch.ones(2, 2))
    (2.0, 1.0)
    """
    weights = weights.double()
    similarity = torch.eye(len(weights)) if similarity is None else similarity
    return 1 / (weights @ similarity.double() @ weights).item()


def spread(count: int, limit: int) -> list[int]:
    """At most `limit` indices, evenly spread over range(count).

    >>> spread(10, 4), spread(3, 4)
    ([0, 2, 5, 7], [0, 1, 2])
    """
    return [index * count // limit for index in range(limit)] if limit < count else list(range(count))
