"""Gaussian-weighted averaging of the parameters over epochs (PromptSRC, Khattak et al. 2023)."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor


def epoch_weights(epochs: int, mean: float, std: float) -> list[float]:
    """w_e ∝ exp(−(e−mean)²/(2·std²)) for e = 1..epochs, summing to one.

    >>> [round(w, 3) for w in epoch_weights(3, mean=2, std=1)]
    [0.274, 0.452, 0.274]
    """
    raw = [math.exp(-((epoch - mean) ** 2) / (2 * std**2)) for epoch in range(1, epochs + 1)]
    return [w / sum(raw) for w in raw]


class EpochAverage:
    """Σ_e w_e·θ_e over one cycle, θ_e the parameters at the end of epoch e."""

    def __init__(self, epochs: int, mean: float, std: float) -> None:
        self.weights = epoch_weights(epochs, mean, std)
        self.sums: dict[str, Tensor] = {}

    def restart(self) -> None:
        self.sums = {}

    @torch.no_grad()
    def add(self, epoch: int, parameters: Mapping[str, Tensor]) -> None:
        """Count the parameters at the end of epoch `epoch`, from 0."""
        for name, value in parameters.items():
            term = value.detach().float() * self.weights[epoch]
            self.sums[name] = self.sums[name] + term if name in self.sums else term
