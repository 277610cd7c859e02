"""Sinkhorn divergence (Genevay et al., 2018; Feydy et al., 2019): entropic transport without its bias.

    d² = OT(x,y) − ½ OT(x,x) − ½ OT(y,y),    OT = min over γ of Σ γ C + r·KL(γ | uniform),    C_ij = ‖x_i −
    y_j‖²

r is a multiple of the median squared distance of the stored cloud. The dual potentials are found by a fixed
number of symmetric updates in the logarithmic domain, from zero, so that equal clouds give exactly zero
however few they are. The gradient is that of the dual objective with the potentials held fixed (envelope
theorem): nothing is unrolled, and the backward pass costs one plan.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rebapl.errors import UserError
from rebapl.repulsion.clouds import Stored, median_squared_distance, squared_distances

ITERATIONS = 50


def prepare(cloud: Tensor, regularisation: float = 0.1) -> Stored:
    """Keeps the costs between all stored points (1, m, m) and r (1,) = regularisation × their median."""
    if not regularisation > 0:
        raise UserError(f"sinkhorn: regularisation must be positive; got {regularisation}")
    r = regularisation * median_squared_distance(cloud)
    return Stored(
        cloud[None], per_pair={"costs": squared_distances(cloud, cloud)[None]}, shared={"r": r[None]}
    )


def between(x: Tensor, stored: Stored) -> Tensor:
    """Sinkhorn divergence between x (n, d) and each stored cloud (s, m, d); shape (s,)."""
    r = stored.shared["r"][:, None, None]
    other = stored.per_pair["costs"]
    own = squared_distances(x, x).expand(len(other), -1, -1)
    cross = squared_distances(x, stored.cloud)
    return (_transport(cross, r) - 0.5 * _transport(own, r) - 0.5 * _transport(other, r)).clamp(min=0)


def _transport(cost: Tensor, r: Tensor) -> Tensor:
    """OT (s,) for costs (s, n, m): the dual objective at potentials f (s, n, 1) and g (s, 1, m)."""
    with torch.no_grad():
        n, m = cost.shape[1:]
        f, g = torch.zeros_like(cost[:, :, :1]), torch.zeros_like(cost[:, :1, :])
        scaled = cost / r
        for _ in range(ITERATIONS):
            f_best = math.log(m) - torch.logsumexp(g - scaled, dim=2, keepdim=True)
            g_best = math.log(n) - torch.logsumexp(f - scaled, dim=1, keepdim=True)
            f, g = 0.5 * (f + f_best), 0.5 * (g + g_best)
        f, g = f * r, g * r
    mass = torch.exp((f + g - cost) / r).mean((1, 2))
    return f.mean((1, 2)) + g.mean((1, 2)) - r.flatten() * (mass - 1)
