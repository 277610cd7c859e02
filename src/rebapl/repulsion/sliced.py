"""Sliced Wasserstein-2 (Rabin et al., 2011; Bonneel et al., 2015): the mean of W₂² over directions.

    d² = mean over u of ∫₀¹ (F⁻¹(⟨x,u⟩)(t) − F⁻¹(⟨y,u⟩)(t))² dt,    u uniform on the sphere

In one dimension optimal transport is sorting. The directions are drawn once per stored sample, from an
explicit generator, and kept: the distance is a fixed function while that sample is remembered. With unequal
numbers of points the integral is still exact: both quantile functions are steps, constant between the levels
i/n and j/m.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from rebapl.repulsion.distances import Distance, Stored, register_distance


@register_distance("sliced")
class Sliced(Distance):
    """`projections` is the number of directions u."""

    projections: int = Field(default=128, ge=1)

    def prepare(self, cloud: Tensor, generator: torch.Generator) -> Stored:
        """Keeps the directions (1, d, p) and the projections of the stored points (1, m, p)."""
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
    """A stored cloud (m, d) with its projections on directions (d, p), which are brought to length 1."""
    directions = (directions / directions.norm(dim=0))[None]
    return Stored(
        cloud[None],
        per_point={"projected": _project(cloud[None], directions)},
        shared={"directions": directions},
    )


def _project(points: Tensor, directions: Tensor) -> Tensor:
    with torch.autocast(points.device.type, enabled=False):
        return points @ directions
