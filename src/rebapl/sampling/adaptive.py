"""Adaptive cycles: stop when further cycles add neither diversity nor held-out likelihood.

The members s are the samples so far. With p̄ the average of their class probabilities p_s on M held-out images,

    likelihood  = mean over images of log p̄(y|x)
    diversity   = mean over images of H[p̄] − mean over members of H[p_s]     (≥ 0: their Jensen–Shannon divergence)

A cycle is *idle* if adding its samples raised the likelihood by less than `min_likelihood_gain` and the diversity by
less than `min_diversity_gain` (nats per image). After `patience` idle cycles in a row, no further cycle begins. The
first cycle is never idle. Without held-out labels, only the diversity counts.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rebapl.numbers import entropy
from rebapl.sampling.settings import Adaptive


def likelihood(probabilities: Tensor, labels: Tensor) -> float:
    """Held-out log-likelihood of the averaged prediction, from member probabilities (S, M, C), labels (M,)."""
    of_labels = probabilities.mean(0).gather(1, labels[:, None]).squeeze(1)
    return of_labels.clamp_min(1e-12).log().mean().item()


def diversity(probabilities: Tensor) -> float:
    """H[mean] − mean H of member probabilities (S, M, C), averaged over images."""
    return (entropy(probabilities.mean(0)) - entropy(probabilities).mean(0)).mean().item()


def worth_another_cycle(cycles: list[Tensor], labels: Tensor | None, rule: Adaptive) -> bool:
    """Whether another cycle should begin. `cycles` has the member probabilities (K, M, C) of each cycle so far.

    >>> same = torch.full((1, 4, 2), 0.5)
    >>> worth_another_cycle([same], None, Adaptive()), worth_another_cycle([same, same], None, Adaptive())
    (True, False)
    """
    idle_in_a_row = 0
    for c in range(1, len(cycles)):
        before, after = torch.cat(cycles[:c]), torch.cat(cycles[: c + 1])
        gains = diversity(after) - diversity(before) >= rule.min_diversity_gain
        if labels is not None:
            gains |= likelihood(after, labels) - likelihood(before, labels) >= rule.min_likelihood_gain
        idle_in_a_row = 0 if gains else idle_in_a_row + 1
    return idle_in_a_row < rule.patience
