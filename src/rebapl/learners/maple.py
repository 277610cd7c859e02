"""MaPLe: text tokens in many layers, and vision tokens made from them.

Khattak et al., MaPLe: Multi-modal Prompt Learning, 2023. For layers i = 1 … J, with text prompts Pᵢ (b, d_t) and a
linear layer Fᵢ: d_t → d_v each,

    text     [start] P₁ of a name . [end]        vision     [class] patches F₁(P₁)

and in the later layers Pᵢ and Fᵢ(Pᵢ) replace the states of those before them (see `deep`). The first b = 2 tokens of
"a photo of a {}." are learnable. The couplings F₂ … F_J start as copies of one draw, as in the authors' code; F₁ starts
from a draw of its own.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from rebapl.backbones import DualEncoder
from rebapl.learners.deep import DeepConfig, DeepPrompts, Depth, prompted_layers
from rebapl.learners.initial import draw_linear, undrawn_linear
from rebapl.learners.registry import register


class MaPLeConfig(DeepConfig):
    """The settings of `DeepConfig`. A `depth` that is a share is a share of the layers of the shorter tower."""

    depth: Depth = "9/12"


@register("maple", MaPLeConfig)
class MaPLe(DeepPrompts):
    config: MaPLeConfig

    def __init__(self, encoder: DualEncoder, config: MaPLeConfig) -> None:
        layers = min(len(encoder.text.layers), len(encoder.vision.layers))
        super().__init__(encoder, config, prompted_layers(config.depth, layers))
        widths = encoder.text.width, encoder.vision.width
        self.couple = nn.ModuleDict({layer: undrawn_linear(*widths, encoder.device) for layer in self.text})

    @torch.no_grad()
    def reset(self, generator: torch.Generator) -> None:
        self.draw_text(generator)
        first, *deeper = (cast(nn.Linear, layer) for layer in self.couple.values())
        for layer in (first, *deeper[:1]):
            draw_linear(layer, generator)
        for layer in deeper[1:]:
            layer.load_state_dict(deeper[0].state_dict())

    def vision_prompts(self) -> list[Tensor]:
        """F₁(P₁) … F_J(P_J), each (b, d_v), by one product: on a GPU, one small kernel replaces many."""
        couplings = [cast(nn.Linear, layer) for layer in self.couple.values()]
        weights, biases = torch.stack([f.weight for f in couplings]), torch.stack([f.bias for f in couplings])
        texts = torch.stack(list(self.text.values()))
        if texts.requires_grad:  # an optimizer moves all parameters at once only if their gradients have their strides
            texts.register_hook(Tensor.contiguous)
        made = torch.baddbmm(biases.unsqueeze(2), weights, texts.transpose(1, 2)).transpose(1, 2)
        return list(made.to(self.encoder.dtype).unbind())
