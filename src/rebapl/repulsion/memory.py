"""The memory of earlier samples: their feature clouds, from which the next cycles are repelled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from rebapl.errors import UserError
from rebapl.repulsion.distances import Distance, Stored, as_points

Keep = Literal["all", "previous"]


class Memory:
    """Clouds of earlier samples. A sample that is remembered during a cycle repels from the next cycle on.

    `keep`: whether the samples of all earlier cycles are kept, or only those of the previous one, as in the paper.
    `scale` is the s of the potential's ε. If it is None, s is measured for each sample: it is d² to the `anchor`, the
    cloud (m, d) of the model before learning, on the same points.
    """

    def __init__(
        self,
        distance: Distance,
        keep: Keep,
        generator: torch.Generator,
        scale: float | None = None,
        anchor: Tensor | None = None,
    ) -> None:
        self.distance, self.keep, self.generator = distance, keep, generator
        self.scale, self.anchor = scale, None if anchor is None else as_points(anchor.detach()).clone()
        self.stored: Stored | None = None
        self._pending: list[Stored] = []

    def __len__(self) -> int:
        return 0 if self.stored is None else len(self.stored.cloud)

    def remember(self, cloud: Tensor) -> None:
        """Keep a sample's cloud (m, d) on the whole pool."""
        cloud = as_points(cloud.detach()).clone()
        stored = self.distance.prepare(cloud, self.generator)
        self._pending.append(replace(stored, shared={**stored.shared, "scale": self._scale(stored)}))

    def _scale(self, stored: Stored) -> Tensor:
        cloud = stored.cloud
        if self.scale is not None:
            return cloud.new_tensor([self.scale])
        if self.anchor is None:
            raise UserError(
                "repulsion: epsilon is measured against the model before learning: give its features on the pool as "
                "anchor=..., or set the potential's `scale` (1 makes epsilon absolute)"
            )
        if self.anchor.shape != cloud.shape[1:]:
            raise UserError(
                f"repulsion: the anchor's cloud has shape {tuple(self.anchor.shape)} and the sample's "
                f"{tuple(cloud.shape[1:])}: both are of the same points"
            )
        self.distance.check(self.anchor.to(cloud), stored)
        scale = self.distance.between(self.anchor.to(cloud), stored).detach()
        if not scale > self.distance.rounding:
            raise UserError(
                f"repulsion: the remembered sample gives no scale for epsilon (d² to the model before learning is "
                f"{scale.item():g}): it has learned nothing in this space, or its features are not finite; give one "
                "with the potential's `scale`"
            )
        return scale

    def begin_cycle(self) -> None:
        """Let the samples remembered since the last call repel from now on. Without any, the memory does not change."""
        if self._pending:
            older = [self.stored] if self.keep == "all" and self.stored is not None else []
            self.stored, self._pending = Stored.join([*older, *self._pending]), []

    def to(self, device: torch.device) -> None:
        """Move the clouds to a device."""
        if self.stored is not None and self.stored.cloud.device != device:
            self.stored = self.stored.to(device)

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to continue bit for bit: nested dicts and lists of tensors, and the distance's name."""
        return {
            "distance": self.distance.kind,
            "stored": None if self.stored is None else dict(vars(self.stored)),
            "pending": [dict(vars(stored)) for stored in self._pending],
            "anchor": self.anchor,
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned. The settings are not part of it: they stay as they are."""
        if state["distance"] != self.distance.kind:
            raise UserError(
                f"repulsion: the saved memory is for the distance '{state['distance']}', not '{self.distance.kind}'"
            )
        self.stored = None if state["stored"] is None else Stored(**state["stored"])
        self._pending = [Stored(**fields) for fields in state["pending"]]
        self.anchor = state["anchor"]
        self.generator.set_state(state["generator"].cpu())
