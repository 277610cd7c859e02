"""One temperature that softens or sharpens probabilities, fitted on held-out images (Guo et al., 2017).

    p_τ(c) ∝ p(c)^(1/τ),    τ = argmin of the mean −log p_τ(y) over held-out images

The mean is convex in β = 1/τ. If every posterior gets its own temperature, their comparison no longer rewards one that
is merely softer: what remains is what samples gain by disagreeing.
"""

from __future__ import annotations

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from rebapl.errors import UserError

RANGE = (0.05, 20.0)
"""The least and the greatest β = 1/τ."""


def tempered(probabilities: Tensor, temperature: float) -> Tensor:
    """p^(1/τ), normalised, of probabilities (N, C).

    >>> tempered(torch.tensor([[0.8, 0.2]]), 2.0)
    tensor([[0.6667, 0.3333]])
    """
    return (_logs(probabilities) / temperature).softmax(-1).to(probabilities.dtype)


def fit_temperature(probabilities: Tensor, labels: Tensor) -> float:
    """τ for held-out probabilities (N, C) and labels (N,).

    >>> sure = torch.tensor([[0.9, 0.1]]).expand(4, 2)
    >>> round(fit_temperature(sure, torch.tensor([0, 0, 0, 1])), 2)  # right three times in four: log 9 / log 3
    2.0
    """
    if len(labels) == 0 or len(labels) != len(probabilities):
        raise UserError(f"{len(labels)} labels for {len(probabilities)} images: as many are needed, and at least one")
    logs = _logs(probabilities)

    def loss(beta: float) -> float:
        return torch.nn.functional.cross_entropy(beta * logs, labels).item()

    return 1 / float(minimize_scalar(loss, bounds=RANGE, method="bounded", options={"xatol": 1e-4}).x)


def _logs(probabilities: Tensor) -> Tensor:
    return probabilities.double().clamp_min(torch.finfo(torch.float32).tiny).log()
