"""Energy distance (Székely and Rizzo, 2013): an MMD whose kernel is −‖a−b‖, with no bandwidth to choose.

    d² = 2 mean ‖x−y‖ − mean ‖x−x′‖ − mean ‖y−y′‖

It needs norms, whose gradient is undefined at coincident points; there it is taken to be zero (a
subgradient).
"""

from __future__ import annotations

import torch
from torch import Tensor

from rebapl.repulsion.distances import Distance, Stored, register_distance, squared_distances


@register_distance("energy")
class Energy(Distance):
    """The energy distance; it has no settings."""

    def prepare(self, cloud: Tensor, generator: torch.Generator) -> Stored:  # noqa: ARG002
        """Keeps the distances between all stored points (1, m, m)."""
        return Stored(cloud[None], per_pair={"norms": norms(cloud, cloud)[None]})

    def between(self, x: Tensor, stored: Stored) -> Tensor:
        """Squared energy distance between x (n, d) and each stored cloud (s, m, d); shape (s,)."""
        cross = norms(x, stored.cloud).mean((-2, -1))
        own = norms(x, x).mean((-2, -1))
        return (2 * cross - own - stored.per_pair["norms"].mean((-2, -1))).clamp(min=0)


def norms(x: Tensor, y: Tensor) -> Tensor:
    """All distances (…, n, m), 0 with gradient 0 where the squared distance is lost in rounding."""
    squared = squared_distances(x, y)
    size = (y.detach() - y.detach().mean(-2, keepdim=True)).square().sum(-1).amax(-1)[..., None, None]
    apart = ~(squared <= 16 * torch.finfo(squared.dtype).eps * size)  # so that nan stays nan
    return torch.where(apart, torch.where(apart, squared, 1).sqrt(), 0)
