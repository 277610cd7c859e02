"""Squared distances between clouds of points, by name.

A distance is an object: its settings are its fields, and it compares the current cloud with stored ones. The simplest
way to add one from outside is to register a function:

    @register_distance("mean-shift")
    def mean_shift(x, stored):                      # (n, d) and stored.cloud (s, m, d) → (s,)
        return (x.mean(0) - stored.cloud.mean(1)).square().sum(-1)

It is differentiated in x. A distance that has settings, or something to compute once of the stored side, is a subclass
of `Distance` with a `prepare` method, registered in the same way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from rebapl.errors import UserError
from rebapl.plugins import Registry
from rebapl.repulsion.clouds import Stored, as_points
from rebapl.settings import Settings


class Distance(Settings):
    """`prepare(cloud (m, d), generator)` is called once per stored sample, `between(x (n, d), stored)` at each step."""

    rounding: ClassVar[float] = 0.0
    """Up to here d² may be nothing but float32 rounding, whatever the scale of the features."""

    def prepare(self, cloud: Tensor, generator: torch.Generator) -> Stored:  # noqa: ARG002
        """What is kept of one stored cloud (m, d): here the cloud alone."""
        return Stored(cloud[None])

    def between(self, x: Tensor, stored: Stored) -> Tensor:
        """d² (s,) between a cloud x (n, d) and each stored cloud (s, m, d)."""
        raise NotImplementedError

    def waits(self, points: int, device: torch.device) -> bool:  # noqa: ARG002
        """Whether comparing clouds of so many points each on this device waits for the host: such a step cannot be
        captured."""
        return False


Between = Callable[[Tensor, Stored], Tensor]

DISTANCES: Registry[type[Distance]] = Registry("distance", "rebapl.distances")
"""The distances by name, those of installed plugins included."""


def register_distance(kind: str) -> Callable[[Any], Any]:
    """Decorator: makes a subclass of `Distance`, or a function (x, stored) → d², known as `kind`."""

    def add(made: type[Distance] | Between) -> Any:
        distance: type[Distance] = made if isinstance(made, type) else _of_function(made)
        taken = DISTANCES.known.get(kind)
        if taken is not None and (taken.__module__, taken.__qualname__) != (distance.__module__, distance.__qualname__):
            raise UserError(f"the distance '{kind}' is taken by {taken.__name__}: choose another name")
        distance.kind = kind
        DISTANCES.known[kind] = distance
        return made

    return add


def _of_function(function: Between) -> type[Distance]:
    class OfFunction(Distance):
        def between(self, x: Tensor, stored: Stored) -> Tensor:
            return function(x, stored)

    OfFunction.__doc__ = function.__doc__
    OfFunction.__name__ = OfFunction.__qualname__ = function.__name__
    OfFunction.__module__ = function.__module__
    return OfFunction


def get_distance(kind: str, **options: Any) -> Distance:
    """The distance of that name with these settings.

    >>> get_distance("mmd", bandwidth=1.0)
    MMD(bandwidth=1.0)
    """
    return DISTANCES.find(kind)(**options)


def squared_distance(x: Tensor, y: Tensor, distance: str | Distance = "mmd", **options: Any) -> Tensor:
    """d² between clouds x (n, d) and y (m, d), differentiable in x; y is the stored side, which sets length scales.

    >>> x = torch.eye(3)
    >>> squared_distance(x, x + 1.0, "wasserstein")
    tensor(3.)
    """
    chosen = get_distance(distance, **options) if isinstance(distance, str) else distance
    x, y = as_points(x), as_points(y.detach())
    check_dimensions(x, y)
    return chosen.between(x, chosen.prepare(y.to(x), torch.Generator().manual_seed(0)))[0]


def check_dimensions(x: Tensor, stored: Tensor) -> None:
    """Refuses clouds whose points have different numbers of coordinates."""
    if x.shape[-1] != stored.shape[-1]:
        raise UserError(f"clouds of {x.shape[-1]} and {stored.shape[-1]} dimensions cannot be compared")
