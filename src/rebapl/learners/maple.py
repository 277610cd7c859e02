"""MaPLe: text tokens in many layers, and vision tokens made from them.

Khattak et al., MaPLe: Multi-modal Prompt Learning, 2023. For layers i = 1 … J, with text prompts Pᵢ (b, d_t) and a
linear layer Fᵢ: d_t → d_v each,

    text     [start] P₁ of a name . [end]        vision     [class] patches F₁(P₁)

and Pᵢ, Fᵢ(Pᵢ) replace the states of the ones before (see `deep`). Of "a photo of a {}." the first b = 2 tokens are
learnable. The couplings F₂ … F_J start as copies of one draw, as in the authors' code; F₁ has its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from rebapl.backbones import DualEncoder, States
from rebapl.learners.base import Learner, Output, Recipe, Variant
from rebapl.learners.deep import OpeningText, check_tokens, draw_text_prompts, image_features, prompt_parameters
from rebapl.learners.depth import checked_depth
from rebapl.learners.initial import draw_linear, undrawn_linear
from rebapl.learners.registry import register


@dataclass(frozen=True)
class MaPLeConfig:
    """`tokens` in the first `depth` layers of both towers; without it, `depth_of_12` scaled to the shorter tower.

    `init`: the words the text opens with.
    """

    tokens: int = 2
    depth: int | None = None
    depth_of_12: int = 9
    init: str | None = "a photo of a"

    def __post_init__(self) -> None:
        check_tokens(self.tokens)


_TRANSFER = Variant(settings={"depth_of_12": 3}, recipe={"lr": 0.0026, "epochs": 2})


@register("maple", MaPLeConfig)
class MaPLe(Learner):
    recipe = Recipe(lr=0.0035, epochs=5, batch=4)
    repels_in = "image"
    variants = {"cross-dataset": _TRANSFER, "domain-generalization": _TRANSFER}

    def __init__(self, encoder: DualEncoder, class_names: Sequence[str], template: str, config: MaPLeConfig) -> None:
        self.config = config
        layers = min(len(encoder.text.layers), len(encoder.vision.layers))
        depth = checked_depth(config.depth, config.depth_of_12, layers)
        super().__init__(encoder, class_names, template)
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
        return {"text": self.opening.features(list(self.text.values()))}

    def respond(self, frozen: States, classes: Mapping[str, Tensor]) -> Output:
        prompts = [self.couple[layer](prompt) for layer, prompt in self.text.items()]
        image = image_features(self.encoder, frozen, prompts)
        return Output(self.cosine_logits(image, classes["text"]), {"image": image}, classes)
