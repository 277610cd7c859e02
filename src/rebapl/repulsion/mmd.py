"""Maximum mean discrepancy (Gretton et al., 2012), the paper's first choice of distance, and the energy distance.

    d² = mean k(x,x′) + mean k(y,y′) − 2 mean k(x,y),    k(a,b) = mean over σ of exp(−‖a−b‖²/2σ²)

Means run over all pairs, the diagonal included: the biased V-statistic, which is a squared distance and never
negative (the paper calls its estimator unbiased, and writes this one). σ is ½, 1 and 2 times the median
distance of the stored cloud, so it is frozen while that sample is remembered; or one fixed bandwidth.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from rebapl.repulsion.distances import Distance, Stored, median_squared_distance, register_distance, squared_distances

FACTORS = (0.5, 1.0, 2.0)


@register_distance("mmd")
class MMD(Distance):
    """`bandwidth` is one fixed σ; None takes the median rule."""

    bandwidth: float | None = Field(default=None, gt=0)

    rounding: ClassVar[float] = (
        4e-7  # means of kernels, of order 1, are subtracted: about three units in the last place
    )

    def prepare(self, cloud: Tensor, generator: torch.Generator) -> Stored:  # noqa: ARG002
        """Keeps the bandwidths (1, b) and the kernel of all stored points (1, m, m)."""
        if self.bandwidth is None:
            widths = median_squared_distance(cloud).sqrt() * cloud.new_tensor(FACTORS)
        else:
            widths = cloud.new_tensor([self.bandwidth])
        widths = widths[None]
        kernel = _kernel(squared_distances(cloud, cloud)[None], widths)
        return Stored(cloud[None], per_pair={"kernel": kernel}, shared={"bandwidths": widths})

    def between(self, x: Tensor, stored: Stored) -> Tensor:
        """MMD² between x (n, d) and each stored cloud (s, m, d); shape (s,)."""
        widths = stored.shared["bandwidths"]
        own = _kernel(squared_distances(x, x)[None], widths).mean((-2, -1))
        cross = _kernel(squared_distances(x, stored.cloud), widths).mean((-2, -1))
        return (own + stored.per_pair["kernel"].mean((-2, -1)) - 2 * cross).clamp(min=0)


def _kernel(squared: Tensor, widths: Tensor) -> Tensor:
    """Squared distances (s or 1, n, m) and bandwidths (s, b) → the mixture of kernels (s, n, m)."""
    rate = -0.5 / widths.square()
    return torch.exp(squared[:, None] * rate[:, :, None, None]).mean(1)


@register_distance("energy")
class Energy(Distance):
    """The energy distance (Székely and Rizzo, 2013): an MMD whose kernel is −‖a−b‖, with no settings.

        d² = 2 mean ‖x−y‖ − mean ‖x−x′‖ − mean ‖y−y′‖

    It needs norms, whose gradient is undefined at coincident points; there it is taken to be zero (a subgradient).
    """

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
