"""SWAG: a Gaussian fitted to the path of an optimiser (Maddox et al., A Simple Baseline for Bayesian Uncertainty in
Deep Learning, 2019).

From T snapshots θ₁ … θ_T of the end of a training, in which the step size is constant,

    θ̄ = 1/T Σ θ_i        Σ_diag = diag(1/T Σ θ_i² − θ̄²)        D = (θ_i − θ̄_i)_i,    θ̄_i the mean of the first i
    θ = θ̄ + 1/√2·Σ_diag^½·z₁ + 1/√(2(T−1))·D·z₂,               z₁ ~ N(0, I_d),  z₂ ~ N(0, I_T)

that is, θ ~ N(θ̄, ½·(Σ_diag + D·Dᵀ/(T−1))). The paper uses only the last 20 columns of D; here all T snapshots are used,
and 20 is the default of T. Σ_diag is computed from squared differences from the running mean, which is the same and
loses no digits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rebapl.sampling.schedule import CyclicalSchedule


class GaussianPath:
    """The Gaussian that is fitted to the snapshots of a cycle so far, and `samples` draws from it at the cycle's end.

    The marks of the schedule are its snapshots.

    >>> path = GaussianPath(samples=3, generator=torch.Generator())
    >>> for value in (1.0, 3.0):
    ...     path.add({"theta": torch.tensor([value])})
    >>> path.mean["theta"], path.squares["theta"] / path.count
    (tensor([2.]), tensor([1.]))
    """

    def __init__(self, samples: int, generator: torch.Generator) -> None:
        self.samples, self.generator = samples, generator
        self.restart()

    def restart(self) -> None:
        """Forget all snapshots."""
        self.mean: dict[str, Tensor] = {}
        self.squares: dict[str, Tensor] = {}
        self.deviations: list[dict[str, Tensor]] = []

    def samples_after(self, parameters: Mapping[str, Tensor], schedule: CyclicalSchedule) -> list[Mapping[str, Tensor]]:
        """Add a snapshot at a mark, and return the draws at the end of a cycle."""
        if schedule.at_sample:
            self.add(parameters)
        return [self.draw() for _ in range(self.samples)] if schedule.at_cycle_end else []

    @property
    def count(self) -> int:
        """The number of snapshots added so far."""
        return len(self.deviations)

    @torch.no_grad()
    def add(self, parameters: Mapping[str, Tensor]) -> None:
        """Add a snapshot θ_i, name → tensor."""
        deviations = {}
        for name, value in parameters.items():
            before = self.mean.get(name, torch.zeros_like(value))
            self.mean[name] = before + (value - before) / (self.count + 1)
            deviations[name] = value - self.mean[name]
            self.squares[name] = self.squares.get(name, 0) + (value - before) * deviations[name]
        self.deviations.append(deviations)

    def draw(self) -> dict[str, Tensor]:
        """A sample from the Gaussian. With a single snapshot, it is that snapshot."""
        like, generator = next(iter(self.mean.values())), self.generator
        z2 = torch.randn(self.count, generator=generator, device=generator.device).to(like)
        theta = {}
        for name, mean in self.mean.items():
            z1 = torch.randn(mean.shape, generator=generator, device=generator.device).to(mean)
            deviations = torch.stack([snapshot[name] for snapshot in self.deviations], -1)
            diagonal, low_rank = (self.squares[name] / self.count).sqrt() * z1, deviations @ z2
            theta[name] = mean + (diagonal + low_rank / math.sqrt(max(1, self.count - 1))) / math.sqrt(2)
        return theta

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean, "squares": self.squares, "deviations": self.deviations}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`."""
        self.mean, self.squares, self.deviations = state["mean"], state["squares"], state["deviations"]
