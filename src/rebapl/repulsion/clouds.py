"""Point clouds: their precision, their pairwise squared distances, and a stored cloud with its statistics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rebapl.errors import UserError


def as_points(cloud: Tensor) -> Tensor:
    """A cloud (n, d) in at least float32: float16 and bfloat16 are raised, float64 stays."""
    if cloud.ndim != 2 or not cloud.is_floating_point() or cloud.shape[0] == 0:
        raise UserError(
            f"a cloud is a floating-point tensor (points, dimensions) with at least one point; "
            f"got {cloud.dtype} of shape {tuple(cloud.shape)}"
        )
    return cloud.float() if cloud.dtype in (torch.float16, torch.bfloat16) else cloud


def squared_distances(x: Tensor, y: Tensor) -> Tensor:
    """All squared Euclidean distances, (…, n, d) and (…, m, d) → (…, n, m), as x² + y² − 2xy clamped at 0.

    Both clouds are first moved by the mean of y, which changes no distance and keeps the subtraction from
    cancelling. Autocast is switched off: in bfloat16 the difference would be noise.
    """
    with torch.autocast(x.device.type, enabled=False):
        centre = y.detach().mean(-2, keepdim=True)
        x, y = x - centre, y - centre
        norms = x.square().sum(-1, keepdim=True) + y.square().sum(-1).unsqueeze(-2)
        return (norms - 2 * x @ y.mT).clamp(min=0)


def median_squared_distance(cloud: Tensor) -> Tensor:
    """The median of the squared distances between different points of a cloud (m, d); shape ().

    Raises if it is zero, since a kernel's width or a regularisation in its units would be zero too.
    """
    m = cloud.shape[0]
    i, j = torch.triu_indices(m, m, offset=1, device=cloud.device)
    pairs = squared_distances(cloud, cloud)[i, j]
    if m < 2 or not pairs.median() > 0:
        raise UserError(
            f"the median distance between the {m} stored points is not a positive number, so it cannot set a "
            "length scale; give one yourself (for mmd: bandwidth=...), or take the distance 'paired', as for weights"
        )
    return pairs.median()


@dataclass(frozen=True)
class Stored:
    """The clouds (s, m, d) of s earlier samples on the same m reference points, and what was computed from
    them.

    A distance keeps its statistics of the stored side here, by how they follow a choice of points:
    `per_point` (s, m, …), `per_pair` (s, m, m), `shared` (s, …), which stays as it is.
    """

    cloud: Tensor
    per_point: Mapping[str, Tensor] = field(default_factory=dict)
    per_pair: Mapping[str, Tensor] = field(default_factory=dict)
    shared: Mapping[str, Tensor] = field(default_factory=dict)

    def rows(self, rows: Tensor) -> Stored:
        """The same for some of the m points: statistics are looked up, not computed again."""
        rows = rows.to(self.cloud.device, non_blocking=True)
        return Stored(
            self.cloud[:, rows],
            {name: x[:, rows] for name, x in self.per_point.items()},
            {name: x[:, rows[:, None], rows] for name, x in self.per_pair.items()},
            self.shared,
        )

    def map(self, change: Callable[[Tensor], Tensor]) -> Stored:
        """Every tensor changed, for example moved to a device."""
        return Stored.from_tensors({name: change(x) for name, x in self.tensors().items()})

    @staticmethod
    def join(parts: Sequence[Stored]) -> Stored:
        """Samples one after another along s, on the last one's device; all of one distance and one pool."""
        shapes = {tuple(part.cloud.shape[1:]) for part in parts}
        if len(shapes) > 1:
            raise UserError(f"all remembered clouds must be of the same reference points; got shapes {sorted(shapes)}")
        device = parts[-1].cloud.device
        tensors = [part.map(lambda x: x.to(device)).tensors() for part in parts]
        return Stored.from_tensors({name: torch.cat([t[name] for t in tensors]) for name in tensors[0]})

    def tensors(self) -> dict[str, Tensor]:
        """One flat dictionary of tensors, as safetensors stores it."""
        out = {"cloud": self.cloud}
        for kind in ("per_point", "per_pair", "shared"):
            out |= {f"{kind}.{name}": x for name, x in getattr(self, kind).items()}
        return out

    @staticmethod
    def from_tensors(tensors: Mapping[str, Tensor]) -> Stored:
        """The inverse of `tensors`."""

        def kind(prefix: str) -> dict[str, Tensor]:
            return {n[len(prefix) :]: x for n, x in tensors.items() if n.startswith(prefix)}

        return Stored(tensors["cloud"], kind("per_point."), kind("per_pair."), kind("shared."))
