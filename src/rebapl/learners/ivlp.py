"""IVLP: independent learnable tokens in the layers of both towers.

The baseline of Khattak et al., MaPLe, 2023, and the model under PromptSRC: b tokens in each of the first J layers
of the text tower and, drawn independently, of the image tower (see `deep`). Published with 2+2 tokens, J = 12; only
"a photo" of "a photo of a {}." is learnable then, "of a" stays fixed. PromptSRC's has 4+4, J = 9.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from pydantic import Field
from torch import Tensor

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
from rebapl.learners.initial import draw_normal
from rebapl.learners.registry import register
from rebapl.settings import Settings


class IVLPConfig(Settings):
    """`tokens` in either tower, in the first `depth` layers, a number of them or a share of each tower's.

    `init`: the words the text opens with.
    """

    tokens: int = Field(default=2, ge=1, le=512)
    depth: Depth = "12/12"
    init: str | None = Field(default=OPENING, min_length=1)


@register("ivlp", IVLPConfig)
class IVLP(Learner[States]):
    config: IVLPConfig
    repels_in = "image"
    uses_template = False

    def __init__(self, encoder: DualEncoder, config: IVLPConfig) -> None:
        super().__init__(encoder, config)
        check_opening(encoder, config.tokens, config.init)
        depths = [prompted_layers(config.depth, len(tower.layers)) for tower in (encoder.text, encoder.vision)]
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
        return {"text": self.opening.features(self.encoder, list(self.text.values()))}

    def respond(self, frozen: States, classes: Mapping[str, Tensor]) -> Output:
        image = image_features(self.encoder, frozen, list(self.vision.values()))
        return Output(self.encoder.logits(image, classes["text"]), {"image": image}, classes)
