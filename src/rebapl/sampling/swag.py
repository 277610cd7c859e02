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

import torch
from torch import Tensor

from rebapl.sampling.schedule import CyclicalSchedule
from rebapl.sampling.summary import Parameters, Summary


class GaussianPath(Summary):
    """The Gaussian that is fitted to the snapshots of a cycle so far, and `samples` draws from it at the cycle's end.

    The marks of the schedule are its snapshots.

    >>> path = GaussianPath(samples=3, generator=torch.Generator())
    >>> for value in (1.0, 3.0):
    ...     path.add({"theta": torch.tensor([value])})
    >>> path.state["mean"]["theta"], path.state["squares"]["theta"] / path.count
    (tensor([2.]), tensor([1.]))
    """

    def __init__(self, samples: int, generator: torch.Generator) -> None:
        super().__init__()
        self.samples, self.generator = samples, generator

    def restart(self) -> None:
        """Forget all snapshots."""
        self.state = {"mean": {}, "squares": {}, "deviations": []}

    def samples_after(self, parameters: Parameters, schedule: CyclicalSchedule) -> list[Parameters]:
        """Add a snapshot at a mark, and return the draws at the end of a cycle."""
        if schedule.at_sample:
            self.add(parameters)
        return [self.draw() for _ in range(self.samples)] if schedule.at_cycle_end else []

    @property
    def count(self) -> int:
        """The number of snapshots added so far."""
        return len(self.state["deviations"])

    @torch.no_grad()
    def add(self, parameters: Parameters) -> None:
        """Add a snapshot θ_i, name → tensor."""
        means, squares, deviations = self.state["mean"], self.state["squares"], {}
        for name, value in parameters.items():
            before = means.get(name, torch.zeros_like(value))
            means[name] = before + (value - before) / (self.count + 1)
            deviations[name] = value - means[name]
            squares[name] = squares.get(name, 0) + (value - before) * deviations[name]
        self.state["deviations"].append(deviations)

    def draw(self) -> dict[str, Tensor]:
        """A sample from the Gaussian. With a single snapshot, it is that snapshot."""
        means, generator = self.state["mean"], self.generator
        z2 = torch.randn(self.count, generator=generator, device=generator.device).to(next(iter(means.values())))
        theta = {}
        for name, mean in means.items():
            z1 = torch.randn(mean.shape, generator=generator, device=generator.device).to(mean)
            deviations = torch.stack([snapshot[name] for snapshot in self.state["deviations"]], -1)
            diagonal, low_rank = (self.state["squares"][name] / self.count).sqrt() * z1, deviations @ z2
            theta[name] = mean + (diagonal + low_rank / math.sqrt(max(1, self.count - 1))) / math.sqrt(2)
        return theta
