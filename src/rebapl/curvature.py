"""How sharply a likelihood is curved at its mode, the Gaussian that follows from it, and the evidence for a prior.

Laplace's approximation (MacKay, Bayesian Interpolation, 1992). With the prior θ ~ N(θ₀, δ⁻¹ I), the mode θ* and the
curvature H ≥ 0 of the negative log-likelihood there,

    p(θ | data) ≈ N(θ*, (H + δ I)⁻¹),
    log p(data | δ) ≈ log p(data | θ*) − ½ δ ‖θ* − θ₀‖² − ½ log det(I + H/δ).

With θ* and H held fixed, the evidence is greatest at the one δ at which γ = δ ‖θ* − θ₀‖². Here γ = Σ h/(h + δ), over
the eigenvalues h of H, is the number of directions that the data determine.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

LOWEST, HIGHEST = 1e-10, 1e14
"""The least and the greatest precision δ that `best_precision` returns."""


@dataclass(frozen=True)
class Curvature:
    """H = U diag(h) Uᵀ over P parameters: its eigenvalues h (P,), float64, and the map u → U u for rows u of (S, P)."""

    eigenvalues: Tensor
    rotate: Callable[[Tensor], Tensor]

    @classmethod
    def full(cls, matrix: Tensor) -> Curvature:
        """The curvature that is this matrix (P, P)."""
        values, vectors = _spectrum(matrix)
        return cls(values, lambda u: u @ vectors.mT)

    @classmethod
    def kronecker(cls, rows: Tensor, columns: Tensor) -> Curvature:
        """The curvature rows ⊗ columns, of (C, C) and (d, d), for parameters (C, d) that are flattened row by row."""
        (a, left), (b, right) = _spectrum(rows), _spectrum(columns)
        shape = (len(a), len(b))
        return cls(torch.outer(a, b).flatten(), lambda u: (left @ u.unflatten(-1, shape) @ right.mT).flatten(-2))

    @classmethod
    def diagonal(cls, values: Tensor) -> Curvature:
        """The curvature with this diagonal (P,) and zeros elsewhere."""
        return cls(values.double().clamp(min=0), lambda u: u)

    def evidence(self, log_likelihood: float, squared_distance: float, precision: float) -> float:
        """log p(data | δ), from log p(data | θ*) and ‖θ* − θ₀‖²."""
        volume = (self.eigenvalues / precision).log1p().sum().item()
        return log_likelihood - 0.5 * precision * squared_distance - 0.5 * volume

    def best_precision(self, squared_distance: float) -> float:
        """The δ with the greatest evidence, from ‖θ* − θ₀‖², by bisection of log δ.

        >>> curvature = Curvature.diagonal(torch.full((3,), 2.0))  # 3·2/(2 + δ) = δ·0.5 at δ = √13 − 1
        >>> round(curvature.best_precision(0.5), 4)
        2.6056
        """
        low, high = math.log(LOWEST), math.log(HIGHEST)
        for _ in range(60):
            middle = (low + high) / 2
            precision = math.exp(middle)
            determined = (self.eigenvalues / (self.eigenvalues + precision)).sum().item()
            low, high = (middle, high) if determined > precision * squared_distance else (low, middle)
        return math.exp((low + high) / 2)

    def draw(self, count: int, precision: float, generator: torch.Generator) -> Tensor:
        """S = `count` draws (S, P) from N(0, (H + δ I)⁻¹), float64 on the CPU, with a generator of the CPU."""
        shape = (count, len(self.eigenvalues))
        noise = torch.randn(shape, generator=generator, dtype=torch.float64)
        return self.rotate(noise / (self.eigenvalues + precision).sqrt())


def softmax_curvature(probabilities: Tensor) -> Tensor:
    """The mean of diag p − p pᵀ over (N, C): the curvature (C, C) of cross-entropy in the logits."""
    return torch.diag(probabilities.mean(0)) - probabilities.mT @ probabilities / len(probabilities)


def _spectrum(matrix: Tensor) -> tuple[Tensor, Tensor]:
    values, vectors = torch.linalg.eigh(matrix.double().cpu())
    return values.clamp(min=0), vectors  # rounding can make an eigenvalue of 0 negative
