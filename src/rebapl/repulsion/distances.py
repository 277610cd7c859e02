"""Squared distances between clouds of points, by name.

A distance is an object that compares the current cloud with stored ones; its settings are its fields. The simplest way
to add a distance from outside the package is to register a function:

    @register_distance("mean-shift")
    def mean_shift(x, stored):                      # (n, d) and stored.cloud (s, m, d) → (s,)
        return (x.mean(0) - stored.cloud.mean(1)).square().sum(-1)

Its gradient is taken in x. A distance that has settings, or that computes something once for each stored cloud, is a
subclass of `Distance`, which is registered in the same way; its method `prepare` makes that computation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from rebapl.errors import UserError
from rebapl.plugins import Registry
from rebapl.settings import Settings


def as_points(cloud: Tensor) -> Tensor:
    """A cloud (n, d) in at least float32: float16 and bfloat16 become float32, and float64 stays."""
    if cloud.ndim != 2 or not cloud.is_floating_point() or cloud.shape[0] == 0:
        raise UserError(
            f"a cloud is a floating-point tensor (points, dimensions) with at least one point; "
            f"got {cloud.dtype} of shape {tuple(cloud.shape)}"
        )
    return cloud.float() if cloud.dtype in (torch.float16, torch.bfloat16) else cloud


def squared_distances(x: Tensor, y: Tensor) -> Tensor:
    """All squared Euclidean distances, (…, n, d) and (…, m, d) → (…, n, m), as x² + y² − 2xy clamped at 0.

    Both clouds are first shifted by the mean of y, which changes no distance and keeps the subtraction from
    cancelling. Autocast is switched off: in bfloat16 the difference would be noise.
    """
    with torch.autocast(x.device.type, enabled=False):
        centre = y.detach().mean(-2, keepdim=True)
        x, y = x - centre, y - centre
        norms = x.square().sum(-1, keepdim=True) + y.square().sum(-1).unsqueeze(-2)
        return (norms - 2 * x @ y.mT).clamp(min=0)


def median_of_pairs(cloud: Tensor) -> Tensor:
    """The median of the squared distances between different points of a cloud (m, d); shape (), 0 for one point."""
    i, j = torch.triu_indices(len(cloud), len(cloud), offset=1, device=cloud.device)
    return squared_distances(cloud, cloud)[i, j].median() if len(cloud) > 1 else cloud.new_zeros(())


def median_squared_distance(cloud: Tensor) -> Tensor:
    """The `median_of_pairs` of a stored cloud (m, d).

    It is an error if it is zero, because a kernel's width or a regularisation in its units would be zero too.
    """
    median = median_of_pairs(cloud)
    if not median > 0:
        raise UserError(
            f"the median distance between the {len(cloud)} stored points is not a positive number, so it cannot set a "
            "length scale; give one yourself (for mmd: bandwidth=...), or take the distance 'paired', as for weights"
        )
    return median


@dataclass(frozen=True)
class Stored:
    """The clouds (s, m, d) of s earlier samples on the same m reference points, and a distance's statistics of them.

    The statistics are grouped by their shapes, which decide how `rows` selects from them: `per_point` (s, m, …),
    `per_pair` (s, m, m), and `shared` (s, …), from which nothing is selected.
    """

    cloud: Tensor
    per_point: dict[str, Tensor] = field(default_factory=dict)
    per_pair: dict[str, Tensor] = field(default_factory=dict)
    shared: dict[str, Tensor] = field(default_factory=dict)

    def rows(self, rows: Tensor) -> Stored:
        """The clouds at some of the m points. Their statistics are selected, not computed again."""
        rows = rows.to(self.cloud.device, non_blocking=True)
        return Stored(
            self.cloud[:, rows],
            {name: x[:, rows] for name, x in self.per_point.items()},
            {name: x[:, rows[:, None], rows] for name, x in self.per_pair.items()},
            self.shared,
        )

    def to(self, device: torch.device) -> Stored:
        """A copy on a device."""
        return Stored(**tree_map(lambda x: x.to(device), vars(self)))

    @staticmethod
    def join(parts: Sequence[Stored]) -> Stored:
        """All samples along s, on the device of the last one. They must be of the same distance and the same pool."""
        shapes = {tuple(part.cloud.shape[1:]) for part in parts}
        if len(shapes) > 1:
            raise UserError(f"all remembered clouds must be of the same reference points; got shapes {sorted(shapes)}")
        device = parts[-1].cloud.device
        return Stored(**tree_map(lambda *xs: torch.cat([x.to(device) for x in xs]), *map(vars, parts)))


class Distance(Settings):
    """A squared distance. `prepare` is called once for each stored sample, and `between` at each step."""

    space: ClassVar[str | None] = None
    """The only feature space whose points it can compare; None: it can compare those of any."""

    of_equal_sizes: ClassVar[bool] = False
    """Whether both clouds must have the same number of points."""

    rounding: ClassVar[float] = 0.0
    """A d² up to this value may be float32 rounding alone, whatever the scale of the features."""

    def prepare(self, cloud: Tensor, generator: torch.Generator) -> Stored:  # noqa: ARG002
        """The stored form of a cloud (m, d), with the statistics that `between` needs; here it has none."""
        return Stored(cloud[None])

    def between(self, x: Tensor, stored: Stored) -> Tensor:
        """d² (s,) between a cloud x (n, d) and each stored cloud (s, m, d)."""
        raise NotImplementedError

    def unsettled(self, x: Tensor, stored: Stored) -> Tensor | None:  # noqa: ARG002
        """How far the iterations of `between` are from their end for these clouds (); None: it has no iterations.

        It does not wait for the device.
        """
        return None

    def warn_of(self, unsettled: float) -> bool:  # noqa: ARG002
        """Warn if a value of `unsettled` means that `between` is inaccurate; return whether it does."""
        return False

    def check(self, x: Tensor, stored: Stored) -> None:
        """Warn if `between` is inaccurate for these clouds. This is called once for each remembered sample."""
        if (unsettled := self.unsettled(x, stored)) is not None:
            self.warn_of(unsettled.item())

    def waits(self, points: int, device: torch.device) -> bool:  # noqa: ARG002
        """Whether comparing clouds of this number of points waits for the host. Such a step cannot be captured."""
        return False


Between = Callable[[Tensor, Stored], Tensor]

DISTANCES: Registry[type[Distance]] = Registry("distance", "rebapl.distances")
"""The distances by name, including those of installed plugins."""


def register_distance(kind: str) -> Callable[[Any], Any]:
    """Decorator that registers a subclass of `Distance`, or a function (x, stored) → d², under the name `kind`."""

    def add(definition: type[Distance] | Between) -> Any:
        distance: type[Distance] = definition if isinstance(definition, type) else _of_function(definition)
        taken = DISTANCES.known.get(kind)
        if taken is not None and (taken.__module__, taken.__qualname__) != (distance.__module__, distance.__qualname__):
            raise UserError(f"the distance '{kind}' is taken by {taken.__name__}: choose another name")
        distance.kind = kind
        DISTANCES.known[kind] = distance
        return definition

    return add


def _of_function(function: Between) -> type[Distance]:
    class OfFunction(Distance):
        def between(self, x: Tensor, stored: Stored) -> Tensor:
            return function(x, stored)

    OfFunction.__doc__ = function.__doc__
    OfFunction.__name__ = OfFunction.__qualname__ = function.__name__
    OfFunction.__module__ = function.__module__
    return OfFunction


@register_distance("paired")
class Paired(Distance):
    """The mean squared distance between points of the same row: how far the features of each image have moved.

        d² = mean over i of ‖x_i − y_i‖²

    Unlike the others it is no distance between distributions: it is not zero if two images exchange their features. For
    clouds of one row, the flattened parameters (see `weights`), it is the squared distance in weight space. It has no
    settings.
    """

    of_equal_sizes: ClassVar[bool] = True

    def between(self, x: Tensor, stored: Stored) -> Tensor:
        """Mean squared distance between x (n, d) and each stored cloud (s, n, d), row by row; shape (s,)."""
        return (x - stored.cloud).square().sum(-1).mean(-1)


def squared_distance(x: Tensor, y: Tensor, distance: str | Distance = "mmd", **options: Any) -> Tensor:
    """d² between clouds x (n, d) and y (m, d), differentiable in x. Length scales are measured on y, the stored cloud.

    >>> x = torch.eye(3)
    >>> squared_distance(x, x + 1.0, "wasserstein")
    tensor(3.)
    """
    chosen = DISTANCES.find(distance)(**options) if isinstance(distance, str) else distance
    x, y = as_points(x), as_points(y.detach())
    check_clouds(chosen, x, y)
    stored = chosen.prepare(y.to(x), torch.Generator().manual_seed(0))
    chosen.check(x.detach(), stored)
    return chosen.between(x, stored)[0]


def check_clouds(distance: Distance, x: Tensor, stored: Tensor) -> None:
    """Raise an error if a distance cannot compare x (n, d) with stored clouds (…, m, d) because of their shapes."""
    if x.shape[-1] != stored.shape[-1]:
        raise UserError(f"clouds of {x.shape[-1]} and {stored.shape[-1]} dimensions cannot be compared")
    if distance.of_equal_sizes and x.shape[0] != stored.shape[-2]:
        raise UserError(
            f"the distance '{distance.kind}' needs clouds of equally many points; got {x.shape[0]} and "
            f"{stored.shape[-2]} stored ones (give rows=, the pool's indices of these points)"
        )
