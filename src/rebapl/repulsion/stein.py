"""Stein variational gradient descent (Liu and Wang, 2016): P particles side by side, moved together.

    φ(θ_i) = 1/P Σ_j [ k(θ_j,θ_i)·∇log p(θ_j) + ∇_{θ_j} k(θ_j,θ_i) ],    k(a,b) = exp(−‖a−b‖²/h)

The first term drives the particles to high density, and the second pushes them apart. h follows the median rule,
h = median‖a−b‖² / log(P+1), by which the other particles together weigh about as much in a particle's sum as the
particle itself. In the units of this package ∇log p = −(N/T)·∇L.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rebapl.repulsion.distances import median_of_pairs, squared_distances


def median_bandwidth(points: Tensor) -> Tensor:
    """h for particles (P, d), by the median rule; 1 if all of them coincide or if there is only one."""
    h = median_of_pairs(points) / math.log(len(points) + 1)
    return torch.where(h > 0, h, 1)


def stein_direction(weights: Tensor, gradients: Tensor) -> Tensor:
    """φ (P, d) for particles `weights` (P, d) with `gradients` ∇log p (P, d).

    >>> stein_direction(torch.zeros(1, 2), torch.ones(1, 2))     # one particle: plain gradient ascent
    tensor([[1., 1.]])
    """
    h = median_bandwidth(weights)
    kernel = torch.exp(-squared_distances(weights, weights) / h)
    apart = (2 / h) * (kernel.sum(1, keepdim=True) * weights - kernel @ weights)
    return (kernel @ gradients + apart) / len(weights)
