"""One transformer tower, walked layer by layer, so that tokens can be put in at any layer.

A layer is h ← h + Attention(LayerNorm(h)), then h ← h + MLP(LayerNorm(h)). It is a pure function of tensors, so that on
a GPU all layers of a tower share one compiled form. (Joining the products with the weights of queries, keys and values,
which share their input, was tried: attention on their strided parts, and the copies of their gradients, cost more than
it saves.) Where few of the states are read afterwards, as behind the last layer, it computes only those: of the others
it needs keys and values, which are about a sixth of the work.

A learner says which tokens go to which position of which layer (`Insert`, `Replace`). So the model itself need not be
changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from rebapl.compiled import Compiled


def quick_gelu(x: Tensor) -> Tensor:
    """x·σ(1.702·x), as OpenAI's CLIP has it."""
    return x * torch.sigmoid(1.702 * x)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "quick_gelu": quick_gelu,
    "gelu": F.gelu,
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
}
"""The activations by the names of `transformers`. The first three are those of the CLIPs and SigLIPs of the hub."""


class Weights(NamedTuple):
    """The tensors of one layer."""

    first_norm: Tensor
    first_shift: Tensor
    query: Tensor
    query_bias: Tensor
    key: Tensor
    key_bias: Tensor
    value: Tensor
    value_bias: Tensor
    out: Tensor
    out_bias: Tensor
    second_norm: Tensor
    second_shift: Tensor
    up: Tensor
    up_bias: Tensor
    down: Tensor
    down_bias: Tensor


def states_at(hidden: Tensor, positions: Tensor | None) -> Tensor:
    """The states (B, r, d) at positions (B, r) of sequences (B, L, d); all of them if no positions are given."""
    if positions is None:
        return hidden
    return hidden.gather(1, positions.unsqueeze(-1).expand(-1, -1, hidden.shape[-1]))


def layer(
    hidden: Tensor,
    weights: Weights,
    heads: int,
    epsilon: float,
    activation: str,
    causal: bool,
    positions: Tensor | None = None,
) -> Tensor:
    """The states that follow states (B, L, d): all of them, or only those at `positions` (B, r), as (B, r, d)."""
    count, length, width = hidden.shape

    def norm(states: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        return F.layer_norm(states, (width,), scale, shift, epsilon)

    def by_head(states: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.linear(states, weight, bias).reshape(count, -1, heads, width // heads).transpose(1, 2)

    attended = norm(hidden, weights.first_norm, weights.first_shift)
    asking, mask = attended, None
    if positions is not None:
        hidden = states_at(hidden, positions)
        asking = norm(hidden, weights.first_norm, weights.first_shift)
        if causal:
            mask = torch.arange(length, device=hidden.device) <= positions[:, None, :, None]  # (B, 1, r, L)
    mixed = F.scaled_dot_product_attention(
        by_head(asking, weights.query, weights.query_bias),
        by_head(attended, weights.key, weights.key_bias),
        by_head(attended, weights.value, weights.value_bias),
        attn_mask=mask,
        is_causal=causal and positions is None,
    )
    hidden = hidden + F.linear(mixed.transpose(1, 2).flatten(2), weights.out, weights.out_bias)
    normed = norm(hidden, weights.second_norm, weights.second_shift)
    inner = ACTIVATIONS[activation](F.linear(normed, weights.up, weights.up_bias))
    return hidden + F.linear(inner, weights.down, weights.down_bias)


_layer = Compiled(layer)


class Block:
    """One layer of a CLIP or SigLIP tower; `module` holds its tensors, and `config` is that of the tower."""

    def __init__(self, module: Any, config: Any, causal: bool = False) -> None:
        self.module, self.causal = module, causal
        self.heads: int = config.num_attention_heads
        self.epsilon: float = config.layer_norm_eps
        self.activation: str = config.hidden_act

    def __call__(self, hidden: Tensor, positions: Tensor | None = None) -> Tensor:
        """Apply the layer to states (B, L, d), see `layer`."""
        way = _layer if hidden.is_cuda else layer
        return way(hidden, self.weights, self.heads, self.epsilon, self.activation, self.causal, positions)

    @property
    def weights(self) -> Weights:
        """The layer's tensors, where the module is now."""
        attention, mlp = self.module.self_attn, self.module.mlp
        projections = (attention.q_proj, attention.k_proj, attention.v_proj, attention.out_proj)
        parts = (self.module.layer_norm1, *projections, self.module.layer_norm2, mlp.fc1, mlp.fc2)
        return Weights(*(tensor for part in parts for tensor in (part.weight, part.bias)))


class Layer(Protocol):
    """A function from states (B, L, d) to the next ones: all, or those at `positions` (B, r), as (B, r, d)."""

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


@dataclass(eq=False)
class Tower:
    """The layers of one frozen encoder, with the norms, the pooling and the projection around them.

    `first_norm`, which CLIP's vision tower has, is applied to the states before layer 0, after the edit of that layer.
    The feature is the `projection` of the state at the read position, or of the result of
    `pool` for all states, (B, L, d) → (B, d).
    """

    layers: Sequence[Layer]
    width: int
    first_norm: Callable[[Tensor], Tensor]
    last_norm: Callable[[Tensor], Tensor]
    projection: Any
    pool: Callable[[Tensor], Tensor] | None = None

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
        """The `count` states (B, count, d) from position `read` on, behind the last layer and its norm.

        The states go through the layers that are left, with the edits of `run`. The last layer computes only the
        states that are read.
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
