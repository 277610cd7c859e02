"""VPT: learnable tokens in the layers of the image tower; text is fixed.

Jia et al., Visual Prompt Tuning, 2022, as the MaPLe authors compare with it on CLIP: `tokens` of them beside the
patches in each of the first J layers (see `deep`). J = 1 is the shallow variant, J = K the deep one. Their text is
"a photo of a {}." for every data set, not the data set's own template.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rebapl.backbones import DualEncoder, States
from rebapl.learners.base import Learner, Output, Recipe
from rebapl.learners.deep import check_tokens, image_features, prompt_parameters
from rebapl.learners.depth import checked_depth
from rebapl.learners.initial import draw_normal
from rebapl.learners.registry import register
from rebapl.learners.templates import mean_features, read_templates

PUBLISHED_DEPTH = 12


@dataclass(frozen=True)
class VPTConfig:
    """`depth`: layers with prompts, all by default, 1 for shallow. `text`: the fixed text, or None: the data set's."""

    tokens: int = 8
    depth: int | None = None
    text: str | None = "a photo of a {}."

    def __post_init__(self) -> None:
        check_tokens(self.tokens)
        if self.text is not None:
            read_templates([self.text])


@register("vpt", VPTConfig)
class VPT(Learner):
    recipe = Recipe(lr=0.0025, epochs=5, batch=4)
    repels_in = "image"

    def __init__(self, encoder: DualEncoder, class_names: Sequence[str], template: str, config: VPTConfig) -> None:
        self.config = config
        depth = checked_depth(config.depth, PUBLISHED_DEPTH, len(encoder.vision.layers))
        super().__init__(encoder, class_names, template)
        self.vision = prompt_parameters(depth, config.tokens, encoder.vision.width, encoder.device)

    def prepare_text(self) -> None:
        template = self.config.text or self.template
        self.text_features = mean_features(self.encoder, self.class_names, template, normalised=True)

    def reset(self, generator: torch.Generator) -> None:
        for prompt in self.vision.values():
            draw_normal(prompt, generator)

    @torch.no_grad()
    def frozen(self, images: Tensor) -> States:
        return self.encoder.embed_images(images)

    def encode_classes(self) -> Mapping[str, Tensor]:
        return {"text": self.text_features}

    def respond(self, frozen: States, classes: Mapping[str, Tensor]) -> Output:
        image = image_features(self.encoder, frozen, list(self.vision.values()))
        return Output(self.cosine_logits(image, classes["text"]), {"image": image}, classes)
