"""One layer of a tower, in two ways that give the same: as `transformers` computes it, and quicker on a GPU.

    h ← h + Attention(LayerNorm(h));    h ← h + MLP(LayerNorm(h))

On a GPU the products with the weights of queries, keys and values, which share their input, become one. What is left is
a pure function of tensors, so that all layers of a tower share one compiled form.
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
    """The tensors of one layer, those of queries, keys and values one above the other."""

    first_norm: Tensor
    first_shift: Tensor
    joint: Tensor
    joint_bias: Tensor
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
    joint = F.linear(normed, weights.joint, weights.joint_bias).reshape(count, length, 3, heads, width // heads)
    queries, keys, values = joint.permute(2, 0, 3, 1, 4).unbind(0)
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
        self._weights: Weights | None = None
        self._made_of = (torch.device("meta"), torch.float32, 0)

    def __call__(self, hidden: Tensor) -> Tensor:
        if hidden.is_cuda and self.activation in ACTIVATIONS:
            return _layer(hidden, self.weights, self.heads, self.epsilon, self.activation, self.causal)
        given = {"is_causal": True} if self.causal else {}
        return self.module(hidden, attention_mask=None, **given)

    @property
    def weights(self) -> Weights:
        """The layer's tensors where the module is now. They are gathered again after it was moved or cast."""
        norms, attention, mlp = (
            (self.module.layer_norm1, self.module.layer_norm2),
            self.module.self_attn,
            self.module.mlp,
        )
        first = attention.q_proj.weight
        made_of = (first.device, first.dtype, first.data_ptr())
        if self._weights is None or made_of != self._made_of:
            projections = (attention.q_proj, attention.k_proj, attention.v_proj)
            with torch.inference_mode(False), torch.no_grad():
                joint, bias = (torch.cat([getattr(p, name) for p in projections]) for name in ("weight", "bias"))
            parts = (attention.out_proj, norms[1], mlp.fc1, mlp.fc2)
            others = [tensor.detach() for part in parts for tensor in (part.weight, part.bias)]
            self._weights = Weights(norms[0].weight.detach(), norms[0].bias.detach(), joint, bias, *others)
            self._made_of = made_of
        return self._weights
