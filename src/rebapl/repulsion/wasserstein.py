"""Exact Wasserstein-2 (Villani, 2008), the paper's second choice of distance, and its sliced form.

    d² = min over γ of Σ γ_ij ‖x_i − y_j‖²,    γ ≥ 0 with row and column sums 1/n

The plan is computed from the detached costs; the gradient in x is that of Σ γ C with the plan held fixed (envelope
theorem). Since both clouds have the same number of points, this is an assignment problem. On a GPU one small kernel
solves it (`assignment_kernel`), so that a step does not wait for the host and can be captured. Everywhere else, and for
large problems, SciPy solves it on the host.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import ClassVar

import numpy as np
import scipy
import torch
from pydantic import Field
from torch import Tensor

from rebapl.repulsion.distances import Distance, Stored, register_distance, squared_distances

LARGEST = 256
"""The largest number of points for the kernel. It solves a problem on one multiprocessor, so larger ones are left to
the host."""


@register_distance("wasserstein")
class Wasserstein(Distance):
    """The exact Wasserstein-2 distance. It has no settings."""

    of_equal_sizes: ClassVar[bool] = True

    def between(self, x: Tensor, stored: Stored) -> Tensor:
        """W₂² between x (n, d) and each stored cloud (s, n, d); shape (s,)."""
        y = stored.cloud
        order = assigned(squared_distances(x.detach(), y))[..., None].expand_as(y)
        return (x - y.gather(1, order)).square().sum(-1).mean(-1)

    def waits(self, points: int, device: torch.device) -> bool:
        return not solved_on_device(points, device)


def solved_on_device(points: int, device: torch.device) -> bool:
    """Whether problems with `points` rows and columns are solved on this device, without waiting for the host."""
    return device.type == "cuda" and points <= LARGEST and _has_triton()


def assigned(costs: Tensor) -> Tensor:
    """The columns (s, n) assigned to the rows of s cost matrices (s, n, n), at the least total cost of each.

    Costs that are not finite are no error here: they reach the caller in the distance.
    """
    if solved_on_device(costs.shape[-1], costs.device):
        from rebapl.repulsion.assignment_kernel import assign_on_device

        return assign_on_device(costs)
    finite = np.nan_to_num(costs.cpu().double().numpy())
    return torch.from_numpy(np.stack([scipy.optimize.linear_sum_assignment(cost)[1] for cost in finite])).to(
        costs.device
    )


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


@register_distance("sliced")
class Sliced(Distance):
    """Sliced Wasserstein-2 (Rabin et al., 2011; Bonneel et al., 2015): the mean of W₂² over `projections` directions u.

        d² = mean over u of ∫₀¹ (F⁻¹(⟨x,u⟩)(t) − F⁻¹(⟨y,u⟩)(t))² dt,    u uniform on the sphere

    In one dimension optimal transport is sorting. The directions are drawn once per stored sample, from an explicit
    generator, so the distance is a fixed function while that sample is remembered.
    """

    of_equal_sizes: ClassVar[bool] = True
    projections: int = Field(default=128, ge=1)

    def prepare(self, cloud: Tensor, generator: torch.Generator) -> Stored:
        """The stored cloud with directions (1, d, p), and the projections (1, m, p) of its points on them."""
        directions = torch.randn(cloud.shape[1], self.projections, generator=generator, device=generator.device)
        return with_directions(cloud, directions.to(cloud))

    def between(self, x: Tensor, stored: Stored) -> Tensor:
        """Sliced W₂² between x (n, d) and each stored cloud (s, n, d); shape (s,)."""
        own = _project(x, stored.shared["directions"]).sort(dim=1).values
        other = stored.per_point["projected"].sort(dim=1).values
        return (own - other).square().mean((1, 2))


def with_directions(cloud: Tensor, directions: Tensor) -> Stored:
    """A stored cloud (m, d) with its projections on directions (d, p), which are normalised first."""
    directions = (directions / directions.norm(dim=0))[None]
    return Stored(
        cloud[None],
        per_point={"projected": _project(cloud[None], directions)},
        shared={"directions": directions},
    )


def _project(points: Tensor, directions: Tensor) -> Tensor:
    with torch.autocast(points.device.type, enabled=False):
        return points @ directions
