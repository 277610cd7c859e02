"""MaPLe: text tokens in many layers, and vision tokens made from them.

Khattak et al., MaPLe: Multi-modal Prompt Learning, 2023. For layers i = 1 … J, with text prompts Pᵢ (b, d_t) and a
linear layer Fᵢ: d_t → d_v each,

    text     [start] P₁ of a name . [end]        vision     [class] patches F₁(P₁)

and Pᵢ, Fᵢ(Pᵢ) replace the states of the ones before (see `deep`). Of "a photo of a {}." the first b = 2 tokens are
learnable. The couplings F₂ … F_J start as copies of one draw, as in the authors' code; F₁ has its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import torch
from pydantic import Field
from torch import Tensor, nn

from rebapl.backbones import DualEncoder, States
from rebapl.learners.base import Learner, Output
from rebapl.learners.deep import (
    OPENING,
    Depth,
    OpeningText,
    check_opening,
    draw_text_prompts,
    image_features,
    prompt_parameters,
    prompted_layers,
)
from rebapl.learners.initial import draw_linear, undrawn_linear
from rebapl.learners.registry import register
from rebapl.settings import Settings


class MaPLeConfig(Settings):
    """`tokens` in the first `depth` layers of both towers, a number of them or a share of the shorter tower's.

    `init`: the words the text opens with.
    """

    tokens: int = Field(default=2, ge=1, le=512)
    depth: Depth = "9/12"
    init: str | None = Field(default=OPENING, min_length=1)


@register("maple", MaPLeConfig)
class MaPLe(Learner[States]):
    config: MaPLeConfig
    repels_in = "image"
    uses_template = False

    def __init__(self, encoder: DualEncoder, config: MaPLeConfig) -> None:
        super().__init__(encoder, config)
        check_opening(encoder, config.tokens, config.init)
        depth = prompted_layers(config.depth, min(len(encoder.text.layers), len(encoder.vision.layers)))
        widths = encoder.text.width, encoder.vision.width
        self.text = prompt_parameters(depth, config.tokens, widths[0], encoder.device)
        self.couple = nn.ModuleDict({layer: undrawn_linear(*widths, encoder.device) for layer in self.text})

    def prepare_text(self) -> None:
        self.opening = OpeningText(self.encoder, self.class_names, self.config.tokens, self.config.init)

    @torch.no_grad()
    def reset(self, generator: torch.Generator) -> None:
        draw_text_prompts(self.text.values(), self.encoder, self.config.init, generator)
        first, *deeper = (cast(nn.Linear, layer) for layer in self.couple.values())
        for layer in (first, *deeper[:1]):
            draw_linear(layer, generator)
        for layer in deeper[1:]:
            layer.load_state_dict(deeper[0].state_dict())

    @torch.no_grad()
    def frozen(self, images: Tensor) -> States:
        return self.encoder.embed_images(images)

    def encode_classes(self) -> Mapping[str, Tensor]:
        return {"text": self.opening.features(self.encoder, list(self.text.values()))}

    def vision_prompts(self) -> list[Tensor]:
        """F₁(P₁) … F_J(P_J), each (b, d_v): one product for all layers, which on a GPU is one small kernel for many."""
        couplings = [cast(nn.Linear, layer) for layer in self.couple.values()]
        weights, biases = torch.stack([f.weight for f in couplings]), torch.stack([f.bias for f in couplings])
        texts = torch.stack(list(self.text.values()))
        if texts.requires_grad:  # an optimizer moves all parameters in one go if gradients lie in memory as they do
            texts.register_hook(Tensor.contiguous)
        made = torch.baddbmm(biases.unsqueeze(2), weights, texts.transpose(1, 2)).transpose(1, 2)
        return list(made.to(self.encoder.dtype).unbind())

    def respond(self, frozen: States, classes: Mapping[str, Tensor]) -> Output:
        image = image_features(self.encoder, frozen, self.vision_prompts())
        return Output(self.encoder.logits(image, classes["text"]), {"image": image}, classes)
