"""The repulsive potential V of a squared distance, large when two samples are alike.

    inverse:  V = 1/(d²+ε)       |dV/dd| = 2d/(d²+ε)²  ≤  (9/8√3)·ε^(−3/2) ≈ 0.65·ε^(−3/2), at d² = ε/3
    log:      V = −log(d²+ε)     |dV/dd| = 2d/(d²+ε)   ≤  ε^(−1/2),                        at d² = ε

The inverse one is the paper's. ε is relative, ε = e·s with s the natural size of d² (`natural_scale`): a
fixed small ε gives a force of ε^(−3/2) just off a stored sample, which is where a warm restart begins.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rebapl.errors import UserError, unknown
from rebapl.repulsion.clouds import Stored
from rebapl.repulsion.distances import Distance


@dataclass(frozen=True)
class Potential:
    """`value(d², ε)` is V; `force(d², ε)` is |dV/dd|; `bound(ε)` is the largest force at any distance."""

    value: Callable[[Tensor, Tensor], Tensor]
    force: Callable[[Tensor, Tensor], Tensor]
    bound: Callable[[Tensor], Tensor]


POTENTIALS: dict[str, Potential] = {
    "inverse": Potential(
        value=lambda squared, epsilon: 1 / (squared + epsilon),
        force=lambda squared, epsilon: 2 * squared.sqrt() / (squared + epsilon).square(),
        bound=lambda epsilon: 9 / (8 * math.sqrt(3)) * epsilon**-1.5,
    ),
    "log": Potential(
        value=lambda squared, epsilon: -torch.log(squared + epsilon),
        force=lambda squared, epsilon: 2 * squared.sqrt() / (squared + epsilon),
        bound=lambda epsilon: epsilon**-0.5,
    ),
}


def get_potential(name: str) -> Potential:
    """The potential of that name.

    >>> get_potential("inverse").bound(torch.tensor(1.0))
    tensor(0.6495)
    """
    if name not in POTENTIALS:
        raise unknown("potential", name, POTENTIALS)
    return POTENTIALS[name]


def natural_scale(distance: Distance, stored: Stored, generator: torch.Generator) -> Tensor:
    """s (1,): d² between two random halves of one stored sample's points.

    A single point has no halves. It is a vector of weights, and s is its squared length ‖θ′‖²: of the order
    of the squared distance to an unrelated vector of the same size.
    """
    m = stored.cloud.shape[1]
    if m == 1:
        scale = stored.cloud.square().sum((1, 2))
    else:
        order = torch.randperm(m, generator=generator, device=generator.device).to(stored.cloud.device)
        first, second = order[: m // 2], order[m // 2 : 2 * (m // 2)]
        scale = distance.between(stored.cloud[0, first], stored.rows(second))
    if not scale > 0:
        raise UserError(
            "the remembered cloud gives no scale for epsilon (d² between its halves is "
            f"{scale.item():g}: its points are all equal, or not finite); give one with scale=..."
        )
    return scale
