"""Stein variational gradient descent (Liu and Wang, 2016): P particles side by side, moved together.

    φ(θ_i) = 1/P Σ_j [ k(θ_j,θ_i)·∇log p(θ_j) + ∇_{θ_j} k(θ_j,θ_i) ],    k(a,b) = exp(−‖a−b‖²/h)

The first term drives the particles to high density, and the second pushes them apart. h follows the median rule,
h = median‖a−b‖² / log(P+1), by which the other particles together weigh about as much in a particle's sum as the
particle itself. In the units of this package ∇log p = −(N/T)·∇L. The kernel compares the weights of the particles, or
their features.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from rebapl.errors import UserError
from rebapl.repulsion.distances import squared_distances


def median_bandwidth(points: Tensor) -> Tensor:
    """h for particles (P, d), by the median rule; 1 if all of them coincide or if there is only one."""
    particles = len(points)
    i, j = torch.triu_indices(particles, particles, offset=1, device=points.device)
    if particles < 2:
        return points.new_ones(())
    h = squared_distances(points, points)[i, j].median() / math.log(particles + 1)
    return torch.where(h > 0, h, 1)


def stein_direction(weights: Tensor, gradients: Tensor, bandwidth: Tensor | float | None = None) -> Tensor:
    """φ (P, d) for particles `weights` (P, d) with `gradients` ∇log p (P, d); the kernel compares weights.

    >>> stein_direction(torch.zeros(1, 2), torch.ones(1, 2))     # one particle: plain gradient ascent
    tensor([[1., 1.]])
    """
    _check(weights, gradients)
    h = median_bandwidth(weights) if bandwidth is None else bandwidth
    kernel = torch.exp(-squared_distances(weights, weights) / h)
    apart = (2 / h) * (kernel.sum(1, keepdim=True) * weights - kernel @ weights)
    return (kernel @ gradients + apart) / len(weights)


def stein_feature_direction(
    clouds: Tensor,
    parameters: Sequence[Sequence[Tensor]],
    gradients: Tensor,
    bandwidth: Tensor | float | None = None,
) -> Tensor:
    """φ (P, d) with a kernel on features: k = exp(−mean over rows of ‖f_j − f_i‖²/h).

    `clouds` (P, n, e) are the particles' features on the same n points, with their autograd graphs. `parameters[j]`
    are the tensors of particle j, d numbers in all, in the order of the columns of `gradients` (P, d). The second term
    sums gradients taken at *different* particles, so each particle needs one backward pass through all clouds.
    """
    points = clouds.flatten(1) / math.sqrt(clouds.shape[1])
    _check(points, gradients, same_width=False)
    h = median_bandwidth(points.detach()) if bandwidth is None else bandwidth
    kernel = torch.exp(-squared_distances(points, points.detach()) / h)
    flat = [p for particle in parameters for p in particle]
    apart = []
    for i in range(len(points)):
        pushes = torch.autograd.grad(kernel[:, i].sum(), flat, retain_graph=True, materialize_grads=True)
        apart.append(torch.cat([push.flatten() for push in pushes]).view(len(points), -1).sum(0))
    return (kernel.detach().mT @ gradients + torch.stack(apart)) / len(points)


def _check(points: Tensor, gradients: Tensor, same_width: bool = True) -> None:
    if points.ndim != 2 or len(points) != len(gradients) or (same_width and points.shape != gradients.shape):
        raise UserError(
            f"Stein's direction needs one row per particle; got particles {tuple(points.shape)} and "
            f"gradients {tuple(gradients.shape)}"
        )
