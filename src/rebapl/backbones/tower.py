"""One transformer tower, walked layer by layer, so that tokens can be put in at any layer.

A learner says which tokens go to which position of which layer (`Insert`, `Replace`). So the model itself need not be
changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from rebapl.backbones.block import states_at


class Layer(Protocol):
    """What a layer makes of states (B, L, d): all of them, or those at `positions` (B, r), as (B, r, d)."""

    def __call__(self, hidden: Tensor, positions: Tensor | None = None) -> Tensor: ...


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

    def positions(self, count: int) -> Tensor:
        """The `count` positions (B, count) from the read one on."""
        return self.read.unsqueeze(-1) + torch.arange(count, device=self.read.device)

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
        layers: Sequence[Layer],
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
        stop = len(self.layers) if stop is None else stop
        for index in range(states.layer, stop):
            states = self._entering(states, edits)
            states = replace(states, hidden=self.layers[index](states.hidden), layer=index + 1)
        return states

    def features(self, states: States, edits: Mapping[int, Edit] | None = None) -> Tensor:
        """The joint-space features (B, e), float32, not normalised.

        The states go through the layers that are left, with the edits of `run`.
        """
        if self.pool is not None:
            return self.projection(self.pool(self.last_norm(self.run(states, edits).hidden))).float()
        return self.projection(self.last_states(states, edits)[:, 0]).float()

    def last_states(self, states: States, edits: Mapping[int, Edit] | None = None, count: int = 1) -> Tensor:
        """What is read behind the last layer and its norm: the `count` states (B, count, d) from `read` on.

        The states go through the layers that are left, with the edits of `run`. The last layer computes only what is
        read.
        """
        last = len(self.layers) - 1
        states = self.run(states, edits, last)
        if states.layer > last:  # they came from there
            return self.last_norm(states_at(states.hidden, states.positions(count)))
        states = self._entering(states, edits)
        return self.last_norm(self.layers[last](states.hidden, states.positions(count)))

    def _entering(self, states: States, edits: Mapping[int, Edit] | None) -> States:
        """The states as their layer sees them: with its edit made, and behind the first norm in front of layer 0."""
        if edits and states.layer in edits:
            states = states.edited(edits[states.layer])
        return states if states.layer > 0 else replace(states, hidden=self.first_norm(states.hidden))
