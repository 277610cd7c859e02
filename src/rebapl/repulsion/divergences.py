"""Divergences between class probabilities, image by image: how different the predictions of two samples are.

The points are logits with a row per image (the space `logits`). With p = softmax(x_i) and q = softmax(y_i), d² is the
mean over the rows i of

    kullback-leibler   ½ KL(p ‖ q) + ½ KL(q ‖ p)  =  ½ Σ_c (p_c − q_c)·(log p_c − log q_c)      (Jeffreys; unbounded)
    jensen-shannon     ½ KL(p ‖ m) + ½ KL(q ‖ m),  m = ½ (p + q)                                at most log 2

in nats. The square root of the second is a metric (Endres & Schindelin, 2003). Both are computed as sums of terms that
are not negative: with u = ½ (log p_c − log q_c), the second is ½ Σ_c (p_c + q_c)·(u·tanh u − log cosh u). So nothing
cancels when two samples predict almost the same, and value and gradient are zero when they predict the same.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from rebapl.repulsion.distances import Distance, Stored, register_distance


class Divergence(Distance):
    """A divergence between class probabilities; it has no settings."""

    space: ClassVar[str | None] = "logits"
    of_equal_sizes: ClassVar[bool] = True

    def between(self, x: Tensor, stored: Stored) -> Tensor:
        """The mean divergence between logits x (n, C) and each stored cloud (s, n, C), row by row; shape (s,)."""
        return self.of(x.log_softmax(-1), stored.cloud.log_softmax(-1)).sum(-1).mean(-1)

    def of(self, p: Tensor, q: Tensor) -> Tensor:
        """The terms (s, n, C) of log-probabilities p (n, C) and q (s, n, C)."""
        raise NotImplementedError


@register_distance("kullback-leibler")
class KullbackLeibler(Divergence):
    """The Kullback–Leibler divergence in both directions, averaged."""

    def of(self, p: Tensor, q: Tensor) -> Tensor:
        return (p.exp() - q.exp()) * (p - q) / 2


@register_distance("jensen-shannon")
class JensenShannon(Divergence):
    """The Jensen–Shannon divergence."""

    def of(self, p: Tensor, q: Tensor) -> Tensor:
        return (p.exp() + q.exp()) * _excess((p - q) / 2) / 2


def _excess(u: Tensor) -> Tensor:
    """u·tanh u − log cosh u, computed without cancellation.

    Near zero log cosh u = −½ log(1 − tanh² u) is used. Elsewhere, with a = 2|u|, the whole expression is
    log 2 − log(1 + exp(−a)) − a·sigmoid(−a).
    """
    near, a = u.abs() < 1, 2 * u.abs()
    small = torch.where(near, u, 0)
    small = small * small.tanh() + torch.log1p(-small.tanh().square()) / 2
    return torch.where(near, small, math.log(2) - torch.log1p(torch.exp(-a)) - a * torch.sigmoid(-a))
