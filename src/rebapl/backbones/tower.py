"""One transformer tower, walked layer by layer, so that tokens can be put in at any layer.

A learner says which tokens go to which position of which layer (`Insert`, `Replace`). So the model itself need not be
changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Insert:
    """Put tokens (n, d) or (B, n, d) in front of position `at`, or at the end if it is None. The sequence grows by n.

    A negative `at` counts from the end.
    """

    tokens: Tensor
    at: int | None = None


@dataclass(frozen=True)
class Replace:
    """Overwrite n tokens from position `at` (negative counts from the end) by `mix`·new + (1−`mix`)·old."""

    tokens: Tensor
    at: int
    mix: float = 1.0


Edit = Insert | Replace


@dataclass(frozen=True)
class States:
    """Sequences on their way through a tower: hidden (B, L, d) about to enter `layer`.

    `read` (B,) is the position whose last state becomes the feature.
    """

    hidden: Tensor
    read: Tensor
    layer: int = 0

    def edited(self, edit: Edit) -> States:
        """The same states with one edit made. The read position moves if tokens are put in front of it."""
        old = self.hidden
        new = edit.tokens.to(old.dtype)
        if new.dim() == 2:
            new = new.expand(old.shape[0], -1, -1)
        length, count = old.shape[1], new.shape[1]
        at = length if edit.at is None else edit.at
        at = at + length if at < 0 else at
        room = length - (count if isinstance(edit, Replace) else 0)
        if not 0 <= at <= room:
            raise ValueError(f"{count} tokens at position {edit.at} do not fit into a sequence of {length}")
        if isinstance(edit, Insert):
            hidden = torch.cat([old[:, :at], new, old[:, at:]], dim=1)
            return replace(self, hidden=hidden, read=self.read + count * (self.read >= at))
        if edit.mix != 1.0:
            new = edit.mix * new + (1 - edit.mix) * old[:, at : at + count]
        return replace(self, hidden=torch.cat([old[:, :at], new, old[:, at + count :]], dim=1))


class Tower:
    """The layers of one frozen encoder, with what comes before and after them.

    `first_norm`, which CLIP's vision tower has, is applied to the states before layer 0, after the edit of that layer.
    The feature is the `projection` of the state at the read position, or of what `pool` makes of all states
    (B, L, d) → (B, d).
    """

    def __init__(
        self,
        layers: Sequence[Callable[[Tensor], Tensor]],
        width: int,
        first_norm: Callable[[Tensor], Tensor],
        last_norm: Callable[[Tensor], Tensor],
        projection: Any,
        pool: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.layers = layers
        self.width = width
        self.first_norm = first_norm
        self.last_norm = last_norm
        self.projection = projection
        self.pool = pool

    def run(self, states: States, edits: Mapping[int, Edit] | None = None, stop: int | None = None) -> States:
        """Go through the layers from that of the states up to `stop` (None: all), making `edits[i]` before layer i."""
        edits = edits or {}
        stop = len(self.layers) if stop is None else stop
        for index in range(states.layer, stop):
            if index in edits:
                states = states.edited(edits[index])
            hidden = self.first_norm(states.hidden) if index == 0 else states.hidden
            states = replace(states, hidden=self.layers[index](hidden), layer=index + 1)
        return states

    def features(self, states: States) -> Tensor:
        """The joint-space features (B, e), float32, not normalised, of states that left the last layer."""
        if self.pool is not None:
            return self.projection(self.pool(self.last_norm(states.hidden))).float()
        rows = torch.arange(states.hidden.shape[0], device=states.hidden.device)
        return self.projection(self.last_norm(states.hidden[rows, states.read])).float()
