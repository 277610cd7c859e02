"""One layer of a tower.

    h ← h + Attention(LayerNorm(h));    h ← h + MLP(LayerNorm(h))

It is a pure function of tensors, so that on a GPU all layers of a tower share one compiled form. (To join the products
with the weights of queries, keys and values, which share their input, was tried: attention on their strided parts, and
the copies of their gradients, cost more than it saves.)

Where few of the states are read afterwards, as behind the last layer, it computes only those: of the others it needs
keys and values, which are about a sixth of the work.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

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
    """What a layer makes of states (B, L, d): all of them, or only those at `positions` (B, r), as (B, r, d)."""
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
        """What the layer makes of states (B, L, d): all of them, or those at `positions` (B, r), as (B, r, d)."""
        way = _layer if hidden.is_cuda else layer
        return way(hidden, self.weights, self.heads, self.epsilon, self.activation, self.causal, positions)

    @property
    def weights(self) -> Weights:
        """The layer's tensors, where the module is now."""
        attention, mlp = self.module.self_attn, self.module.mlp
        projections = (attention.q_proj, attention.k_proj, attention.v_proj, attention.out_proj)
        parts = (self.module.layer_norm1, *projections, self.module.layer_norm2, mlp.fc1, mlp.fc2)
        return Weights(*(tensor for part in parts for tensor in (part.weight, part.bias)))
