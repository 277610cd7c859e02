"""The squared distances between clouds, by name. To add one, write a function and register it:

    def mean_shift(x, stored):                      # (n, d) and stored.cloud (s, m, d) → (s,)
        return (x.mean(0) - stored.cloud.mean(1)).square().sum(-1)

    DISTANCES["mean-shift"] = Distance(mean_shift)

It is differentiated in x. A distance with something to keep of the stored side has a `prepare` as well.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from rebapl.errors import UserError, unknown
from rebapl.repulsion import energy, mmd, paired, sinkhorn, sliced, wasserstein
from rebapl.repulsion.clouds import Stored, as_points, plain


@dataclass(frozen=True)
class Distance:
    """`prepare(cloud (m, d), **options)` once per stored sample; `between(x (n, d), stored)` → d² (s,).

    `rounding`: up to here d² may be nothing but float32 rounding, whatever the features' scale.
    `on_host`: part of it is computed on the CPU, so that a step with it waits for the device.
    """

    between: Callable[[Tensor, Stored], Tensor]
    prepare: Callable[..., Stored] = plain
    rounding: float = 0.0
    on_host: bool = False


DISTANCES: dict[str, Distance] = {
    "mmd": Distance(mmd.between, mmd.prepare, mmd.ROUNDING),
    "wasserstein": Distance(wasserstein.between, on_host=True),
    "sinkhorn": Distance(sinkhorn.between, sinkhorn.prepare),
    "sliced": Distance(sliced.between, sliced.prepare),
    "energy": Distance(energy.between, energy.prepare),
    "paired": Distance(paired.between),
}


def get_distance(metric: str) -> Distance:
    """The distance of that name."""
    if metric not in DISTANCES:
        raise unknown("metric", metric, DISTANCES)
    return DISTANCES[metric]


def takes(metric: str) -> list[str]:
    """The options that a metric's `prepare` accepts.

    >>> takes("mmd"), takes("sliced"), takes("energy")
    (['bandwidth'], ['projections', 'generator'], [])
    """
    return list(inspect.signature(get_distance(metric).prepare).parameters)[1:]


def check_options(metric: str, options: dict[str, object]) -> None:
    """Refuses options that the metric does not have."""
    accepted = takes(metric)
    for name in options:
        if name not in accepted:
            raise UserError(f"metric '{metric}' has no option '{name}'; it takes {', '.join(accepted) or 'none'}")


def squared_distance(x: Tensor, y: Tensor, metric: str = "mmd", **options: object) -> Tensor:
    """d² between clouds x (n, d) and y (m, d), differentiable in x; y is the stored side, which sets length
    scales.

    >>> x = torch.eye(3)
    >>> squared_distance(x, x + 1.0, "wasserstein")
    tensor(3.)
    """
    check_options(metric, options)
    x, y = as_points(x), as_points(y.detach())
    check_dimensions(x, y)
    return get_distance(metric).between(x, get_distance(metric).prepare(y.to(x), **options))[0]


def check_dimensions(x: Tensor, stored: Tensor) -> None:
    """Refuses clouds whose points have different numbers of coordinates."""
    if x.shape[-1] != stored.shape[-1]:
        raise UserError(f"clouds of {x.shape[-1]} and {stored.shape[-1]} dimensions cannot be compared")
