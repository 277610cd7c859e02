"""VPT: learnable tokens in the layers of the image tower; text is fixed.

Jia et al., Visual Prompt Tuning, 2022, in the form with which the MaPLe authors compare on CLIP: `tokens` learnable
tokens next to the patches in each of the first J layers (see `deep`). J = 1 is the shallow variant and J = K the deep
one. The text is "a photo of a {}." for every data set, not the data set's own template.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from pydantic import Field, field_validator
from torch import Tensor

from rebapl.backbones import DualEncoder
from rebapl.data.dataset import check_template
from rebapl.learners.deep import Depth, VisionPrompts, prompt_parameters, prompted_layers
from rebapl.learners.initial import draw_normal
from rebapl.learners.registry import register
from rebapl.learners.templates import mean_features
from rebapl.settings import Settings


class VPTConfig(Settings):
    """`depth`: the layers with prompts, by default all; 1 is shallow. `text`: the template; None is the data set's."""

    tokens: int = Field(default=8, ge=1, le=512)
    depth: Depth = "12/12"
    text: str | None = "a photo of a {}."

    @field_validator("text")
    @classmethod
    def _readable(cls, text: str | None) -> str | None:
        if text is not None:
            check_template(text)
        return text


@register("vpt", VPTConfig)
class VPT(VisionPrompts):
    config: VPTConfig

    @classmethod
    def reads_template(cls, config: Settings) -> bool:
        return isinstance(config, VPTConfig) and config.text is None

    def __init__(self, encoder: DualEncoder, config: VPTConfig) -> None:
        super().__init__(encoder, config)
        depth = prompted_layers(config.depth, len(encoder.vision.layers))
        self.vision = prompt_parameters(depth, config.tokens, encoder.vision.width, encoder.device)

    def prepare_text(self) -> None:
        template = self.config.text or self.template
        self.text_features = mean_features(self.encoder, self.class_names, template, normalised=True)

    def reset(self, generator: torch.Generator) -> None:
        for prompt in self.vision.values():
            draw_normal(prompt, generator)

    def encode_classes(self) -> Mapping[str, Tensor]:
        return {"text": self.text_features}
