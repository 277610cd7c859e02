"""One layer of a tower, in two ways that give the same: as `transformers` computes it, and quicker on a GPU.

    h ← h + Attention(LayerNorm(h));    h ← h + MLP(LayerNorm(h))

On a GPU it is a pure function of tensors, so that all layers of a tower share one compiled form. (To join the products
with the weights of queries, keys and values, which share their input, was tried: attention on their strided parts, and
the copies of their gradients, cost more than it saves.)
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
}
"""The activations that the quicker way knows; layers with others are computed as `transformers` does."""


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


def layer(hidden: Tensor, weights: Weights, heads: int, epsilon: float, activation: str, causal: bool) -> Tensor:
    """What a layer makes of states (B, L, d)."""
    count, length, width = hidden.shape
    normed = F.layer_norm(hidden, (width,), weights.first_norm, weights.first_shift, epsilon)
    queries, keys, values = (
        F.linear(normed, weight, bias).reshape(count, length, heads, width // heads).transpose(1, 2)
        for weight, bias in (
            (weights.query, weights.query_bias),
            (weights.key, weights.key_bias),
            (weights.value, weights.value_bias),
        )
    )
    mixed = F.scaled_dot_product_attention(queries, keys, values, is_causal=causal)
    hidden = hidden + F.linear(mixed.transpose(1, 2).reshape(count, length, width), weights.out, weights.out_bias)
    normed = F.layer_norm(hidden, (width,), weights.second_norm, weights.second_shift, epsilon)
    inner = ACTIVATIONS[activation](F.linear(normed, weights.up, weights.up_bias))
    return hidden + F.linear(inner, weights.down, weights.down_bias)


_layer = Compiled(layer)


class Block:
    """One layer of a CLIP or SigLIP tower; `module` is that of `transformers`, of the tower's `config`."""

    def __init__(self, module: Any, config: Any, causal: bool = False) -> None:
        self.module, self.causal = module, causal
        self.heads: int = config.num_attention_heads
        self.epsilon: float = config.layer_norm_eps
        self.activation: str = config.hidden_act

    def __call__(self, hidden: Tensor) -> Tensor:
        if hidden.is_cuda and self.activation in ACTIVATIONS:
            return _layer(hidden, self.weights, self.heads, self.epsilon, self.activation, self.causal)
        given = {"is_causal": True} if self.causal else {}
        return self.module(hidden, attention_mask=None, **given)

    @property
    def weights(self) -> Weights:
        """The layer's tensors, where the module is now."""
        attention, mlp = self.module.self_attn, self.module.mlp
        projections = (attention.q_proj, attention.k_proj, attention.v_proj, attention.out_proj)
        parts = (self.module.layer_norm1, *projections, self.module.layer_norm2, mlp.fc1, mlp.fc2)
        return Weights(*(tensor for part in parts for tensor in (part.weight, part.bias)))
