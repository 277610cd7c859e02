"""Maximum mean discrepancy (Gretton et al., 2012), the paper's first choice of distance, and the energy distance.

    d² = mean k(x,x′) + mean k(y,y′) − 2 mean k(x,y),    k(a,b) = mean over σ of exp(−‖a−b‖²/2σ²)

Means run over all pairs, including the diagonal. This is the biased V-statistic, which is a squared distance and never
negative (the paper calls its estimator unbiased, but its equation is this one). The bandwidths σ are ½, 1 and 2 times
the median distance of the stored cloud, so they stay the same while that sample is remembered; or there is one fixed
bandwidth.
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
    """`bandwidth` is one fixed σ; None is the median rule."""

    bandwidth: float | None = Field(default=None, gt=0)

    # d² is a difference of means of kernels, which are of order 1: this is about three units in their last place.
    rounding: ClassVar[float] = 4e-7

    def prepare(self, cloud: Tensor, generator: torch.Generator) -> Stored:  # noqa: ARG002
        """The stored cloud with bandwidths (1, b), and the kernel (1, m, m) between its points."""
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
    """The energy distance (Székely and Rizzo, 2013): an MMD with the kernel −‖a−b‖. It has no settings.

        d² = 2 mean ‖x−y‖ − mean ‖x−x′‖ − mean ‖y−y′‖

    It needs norms, whose gradient is not defined at coincident points; there it is set to zero, a subgradient.
    """

    def prepare(self, cloud: Tensor, generator: torch.Generator) -> Stored:  # noqa: ARG002
        """The stored cloud with the distances (1, m, m) between its points."""
        return Stored(cloud[None], per_pair={"norms": norms(cloud, cloud)[None]})

    def between(self, x: Tensor, stored: Stored) -> Tensor:
        """Squared energy distance between x (n, d) and each stored cloud (s, m, d); shape (s,)."""
        cross = norms(x, stored.cloud).mean((-2, -1))
        own = norms(x, x).mean((-2, -1))
        return (2 * cross - own - stored.per_pair["norms"].mean((-2, -1))).clamp(min=0)


def norms(x: Tensor, y: Tensor) -> Tensor:
    """All distances (…, n, m). Where the squared distance is below rounding, the distance and its gradient are 0."""
    squared = squared_distances(x, y)
    size = (y.detach() - y.detach().mean(-2, keepdim=True)).square().sum(-1).amax(-1)[..., None, None]
    apart = ~(squared <= 16 * torch.finfo(squared.dtype).eps * size)  # written so that nan stays nan
    return torch.where(apart, torch.where(apart, squared, 1).sqrt(), 0)
