"""One transformer tower, computed layer by layer, so that tokens can be inserted at any layer.

A layer is h ← h + Attention(LayerNorm(h)), then h ← h + MLP(LayerNorm(h)). It is a pure function of tensors, so that on
a GPU all layers of a tower share one compiled form. (Queries, keys and values have the same input. To compute them in
one product was tried: attention on its strided parts, and copies of their gradients, cost more than it saves.) If only
a few states are read after a layer, as after the last one, the layer computes only these. Of the other states it needs
only keys and values, which are about a sixth of the work.

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
    """x·σ(1.702·x), the activation of OpenAI's CLIP."""
    return x * torch.sigmoid(1.702 * x)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "quick_gelu": quick_gelu,
    "gelu": F.gelu,
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
}
"""The activations, by their names in `transformers`. The CLIPs and SigLIPs of the hub use the first three."""


class Weights(NamedTuple):
    """The tensors of one layer: the weight and the bias (or shift) of each of its parts."""

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
    """The states (B, r, d) at the positions (B, r) of sequences (B, L, d); all states if `positions` is None."""
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
    """Apply one layer to states (B, L, d). Return all states, or only those at `positions` (B, r), as (B, r, d)."""
    count, length, width = hidden.shape

    def norm(states: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        return F.layer_norm(states, (width,), scale, shift, epsilon)

    def by_head(states: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.linear(states, weight, bias).reshape(count, -1, heads, width // heads).transpose(1, 2)

    attended = norm(hidden, weights.first_norm, weights.first_shift)
    attending, mask = attended, None
    if positions is not None:
        hidden = states_at(hidden, positions)
        attending = norm(hidden, weights.first_norm, weights.first_shift)
        if causal:
            mask = torch.arange(length, device=hidden.device) <= positions[:, None, :, None]  # (B, 1, r, L)
    mixed = F.scaled_dot_product_attention(
        by_head(attending, weights.query, weights.query_bias),
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
    """One layer of a CLIP or SigLIP tower. `module` holds its tensors, and `config` has the settings of the tower."""

    def __init__(self, module: Any, config: Any, causal: bool = False) -> None:
        self.module, self.causal = module, causal
        self.heads: int = config.num_attention_heads
        self.epsilon: float = config.layer_norm_eps
        self.activation: str = config.hidden_act

    def __call__(self, hidden: Tensor, positions: Tensor | None = None) -> Tensor:
        """Apply the layer to states (B, L, d); see `layer`."""
        function = _layer if hidden.is_cuda else layer
        return function(hidden, self.weights, self.heads, self.epsilon, self.activation, self.causal, positions)

    @property
    def weights(self) -> Weights:
        """The layer's tensors, on the device where the module is now."""
        attention, mlp = self.module.self_attn, self.module.mlp
        projections = (attention.q_proj, attention.k_proj, attention.v_proj, attention.out_proj)
        parts = (self.module.layer_norm1, *projections, self.module.layer_norm2, mlp.fc1, mlp.fc2)
        return Weights(*(tensor for part in parts for tensor in (part.weight, part.bias)))


class Layer(Protocol):
    """A function that maps states (B, L, d) to the next states: all, or those at `positions` (B, r), as (B, r, d)."""

    def __call__(self, hidden: Tensor, positions: Tensor | None = None) -> Tensor: ...


@dataclass(frozen=True)
class Insert:
    """Insert tokens (n, d) or (B, n, d) in front of position `at`, or at the end if `at` is None.

    A negative `at` counts from the end. The sequence becomes n tokens longer.
    """

    tokens: Tensor
    at: int | None = None


@dataclass(frozen=True)
class Replace:
    """Replace the n tokens from position `at` on by `mix`·new + (1−`mix`)·old. A negative `at` counts from the end."""

    tokens: Tensor
    at: int
    mix: float = 1.0


Edit = Insert | Replace


@dataclass(frozen=True)
class States:
    """Sequences on their way through a tower. Their states `hidden` (B, L, d) are the next input of layer `layer`.

    `read` (B,) is the position whose state after the last layer becomes the feature. `features` (B, e), normalised, are
    those that the frozen model gives the same images, where a learner needs them too.
    """

    hidden: Tensor
    read: Tensor
    layer: int = 0
    features: Tensor | None = None

    def positions(self, count: int) -> Tensor:
        """The `count` positions (B, count) from `read` on."""
        return self.read.unsqueeze(-1) + torch.arange(count, device=self.read.device)

    def edited(self, edit: Edit) -> States:
        """The states after one edit. `read` moves if tokens are inserted in front of it."""
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
    The feature is the `projection` of the state at the position `read` or, with a `pool` (B, L, d) → (B, d), of the
    pooled states.
    """

    layers: Sequence[Layer]
    width: int
    first_norm: Callable[[Tensor], Tensor]
    last_norm: Callable[[Tensor], Tensor]
    projection: Any
    pool: Callable[[Tensor], Tensor] | None = None

    def run(self, states: States, edits: Mapping[int, Edit] | None = None, stop: int | None = None) -> States:
        """Apply the layers from `states.layer` to `stop` − 1 (None: the last), with `edits[i]` before layer i."""
        stop = len(self.layers) if stop is None else stop
        for index in range(states.layer, stop):
            states = self._entering(states, edits)
            states = replace(states, hidden=self.layers[index](states.hidden), layer=index + 1)
        return states

    def features(self, states: States, edits: Mapping[int, Edit] | None = None) -> Tensor:
        """The features (B, e) in the joint space, float32, not normalised.

        The states go through the remaining layers, with `edits` as in `run`.
        """
        if self.pool is not None:
            return self.projection(self.pool(self.last_norm(self.run(states, edits).hidden))).float()
        return self.projection(self.last_states(states, edits)[:, 0]).float()

    def last_states(self, states: States, edits: Mapping[int, Edit] | None = None, count: int = 1) -> Tensor:
        """The `count` states (B, count, d) from position `read` on, after the last layer and the last norm.

        The states go through the remaining layers, with `edits` as in `run`. The last layer computes only the states
        that are returned.
        """
        last = len(self.layers) - 1
        states = self.run(states, edits, last)
        if states.layer > last:  # they have passed the last layer already
            return self.last_norm(states_at(states.hidden, states.positions(count)))
        states = self._entering(states, edits)
        return self.last_norm(self.layers[last](states.hidden, states.positions(count)))

    def _entering(self, states: States, edits: Mapping[int, Edit] | None) -> States:
        """The input of the next layer: the states after its edit and, in front of layer 0, after the first norm."""
        if edits and states.layer in edits:
            states = states.edited(edits[states.layer])
        return states if states.layer > 0 else replace(states, hidden=self.first_norm(states.hidden))
