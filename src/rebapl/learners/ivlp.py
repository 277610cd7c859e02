"""IVLP: independent learnable tokens in the layers of both towers.

The baseline of Khattak et al., MaPLe, 2023, and the model under PromptSRC: b tokens in each of the first J layers
of the text tower and, drawn independently, of the image tower (see `deep`). Published with 2+2 tokens, J = 12; only
"a photo" of "a photo of a {}." is learnable then, "of a" stays fixed. PromptSRC's has 4+4, J = 9.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rebapl.backbones import DualEncoder, States
from rebapl.learners.base import Learner, Output, Recipe
from rebapl.learners.deep import OpeningText, check_tokens, draw_text_prompts, image_features, prompt_parameters
from rebapl.learners.depth import checked_depth
from rebapl.learners.initial import draw_normal
from rebapl.learners.registry import register


@dataclass(frozen=True)
class IVLPConfig:
    """`tokens` in either tower, in the first `depth` layers; without it, `depth_of_12` scaled to each tower.

    `init`: the words the text opens with.
    """

    tokens: int = 2
    depth: int | None = None
    depth_of_12: int = 12
    init: str | None = "a photo of a"

    def __post_init__(self) -> None:
        check_tokens(self.tokens)


@register("ivlp", IVLPConfig)
class IVLP(Learner):
    recipe = Recipe(lr=0.0035, epochs=5, batch=4)
    repels_in = "image"

    def __init__(self, encoder: DualEncoder, class_names: Sequence[str], template: str, config: IVLPConfig) -> None:
        self.config = config
        depths = [
            checked_depth(config.depth, config.depth_of_12, len(tower.layers))
            for tower in (encoder.text, encoder.vision)
        ]
        super().__init__(encoder, class_names, template)
        self.text = prompt_parameters(depths[0], config.tokens, encoder.text.width, encoder.device)
        self.vision = prompt_parameters(depths[1], config.tokens, encoder.vision.width, encoder.device)

    def prepare_text(self) -> None:
        self.opening = OpeningText(self.encoder, self.class_names, self.config.tokens, self.config.init)

    def reset(self, generator: torch.Generator) -> None:
        draw_text_prompts(self.text.values(), self.encoder, self.config.init, generator)
        for prompt in self.vision.values():
            draw_normal(prompt, generator)

    @torch.no_grad()
    def frozen(self, images: Tensor) -> States:
        return self.encoder.embed_images(images)

    def encode_classes(self) -> Mapping[str, Tensor]:
        return {"text": self.opening.features(list(self.text.values()))}

    def respond(self, frozen: States, classes: Mapping[str, Tensor]) -> Output:
        image = image_features(self.encoder, frozen, list(self.vision.values()))
        return Output(self.cosine_logits(image, classes["text"]), {"image": image}, classes)
