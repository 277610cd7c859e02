"""Exact Wasserstein-2 (Villani, 2008), the paper's second choice of distance, and its sliced form.

    d² = min over γ of Σ γ_ij ‖x_i − y_j‖²,    γ ≥ 0 with row sums 1/n and column sums 1/m

The plan is computed from the detached costs; the gradient in x is that of Σ γ C with the plan held fixed (envelope
theorem). If both clouds have the same number of points, this is an assignment problem. On a GPU one small kernel solves
it (`assignment_kernel`), so that a step does not wait for the host and can be captured. Everywhere else, and for large
problems, SciPy solves it on the host. With different numbers of points, HiGHS solves the linear programme on the host;
this is meant for comparing samples afterwards, not for every step.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

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

    def between(self, x: Tensor, stored: Stored) -> Tensor:
        """W₂² between x (n, d) and each stored cloud (s, m, d); shape (s,)."""
        y = stored.cloud
        costs = squared_distances(x.detach(), y)
        if x.shape[0] == y.shape[1]:
            order = assigned(costs)[..., None].expand_as(y)
            return (x - y.gather(1, order)).square().sum(-1).mean(-1)
        # The solver must not fail on costs that are not finite: they reach the caller in d².
        finite = np.nan_to_num(costs.cpu().double().numpy())
        plans = torch.from_numpy(np.stack([_plan(cost) for cost in finite])).to(y)
        return (plans * squared_distances(x, y)).sum((-2, -1))

    def waits(self, points: int, device: torch.device) -> bool:
        return not solved_on_device(points, device)


def _plan(cost: np.ndarray) -> np.ndarray:
    """The optimal plan (n, m) between uniform weights."""
    n, m = cost.shape
    sparse = scipy.sparse
    rows = sparse.kron(sparse.eye_array(n), np.ones((1, m)))
    columns = sparse.kron(np.ones((1, n)), sparse.eye_array(m))
    sums = sparse.vstack([rows, columns]).tocsr()
    marginals = np.concatenate([np.full(n, 1 / n), np.full(m, 1 / m)])
    # One of the n + m sums follows from the others, so it is left out.
    constraints = {"A_eq": sums[:-1], "b_eq": marginals[:-1], "bounds": (0, None)}
    solution = scipy.optimize.linprog(cost.ravel(), **constraints, method="highs")
    if solution.x is None:
        raise RuntimeError(f"optimal transport between {n} and {m} points was not solved: {solution.message}")
    return solution.x.reshape(n, m)


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
    generator, so the distance is a fixed function while that sample is remembered. With different numbers of points the
    integral is still exact: both quantile functions are step functions, constant between the levels i/n and j/m.
    """

    projections: int = Field(default=128, ge=1)

    def prepare(self, cloud: Tensor, generator: torch.Generator) -> Stored:
        """The stored cloud with directions (1, d, p), and the projections (1, m, p) of its points on them."""
        directions = torch.randn(cloud.shape[1], self.projections, generator=generator, device=generator.device)
        return with_directions(cloud, directions.to(cloud))

    def between(self, x: Tensor, stored: Stored) -> Tensor:
        """Sliced W₂² between x (n, d) and each stored cloud (s, m, d); shape (s,)."""
        own = _project(x, stored.shared["directions"]).sort(dim=1).values
        other = stored.per_point["projected"].sort(dim=1).values
        n, m = own.shape[1], other.shape[1]
        if n == m:
            return (own - other).square().mean((1, 2))
        levels = torch.cat([torch.arange(n + 1) * m, torch.arange(1, m) * n]).sort().values
        length = levels.diff().to(own) / (n * m)
        i, j = (levels[:-1] // m).to(own.device), (levels[:-1] // n).to(own.device)
        return ((own[:, i] - other[:, j]).square().mean(2) * length).sum(1)


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
