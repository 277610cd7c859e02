"""Mean squared distance between points of the same row: how far each image's features have moved.

    d² = mean over i of ‖x_i − y_i‖²

Unlike the others it is no distance between distributions: it notices two images exchanging their features.
On one row, the flattened parameters (see `weights`), it is the squared distance in weight space.
"""

from __future__ import annotations

from torch import Tensor

from rebapl.errors import UserError
from rebapl.repulsion.distances import Distance, Stored, register_distance


@register_distance("paired")
class Paired(Distance):
    """The paired squared distance; it has no settings."""

    def between(self, x: Tensor, stored: Stored) -> Tensor:
        """Mean squared distance between x (n, d) and each stored cloud (s, n, d), row by row; shape (s,)."""
        if x.shape[0] != stored.cloud.shape[1]:
            raise UserError(
                f"the distance 'paired' compares row by row and needs equally many points; got {x.shape[0]} and "
                f"{stored.cloud.shape[1]} stored ones (give rows=, the pool's indices of these points)"
            )
        return (x - stored.cloud).square().sum(-1).mean(-1)
