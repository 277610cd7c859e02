"""IVLP: independent learnable tokens in the layers of both towers.

The baseline of Khattak et al., MaPLe, 2023, and the model under PromptSRC: b tokens in each of the first J layers
of the text tower and, drawn independently, of the image tower (see `deep`). It was published with 2+2 tokens and
J = 12; then only "a photo" of "a photo of a {}." is learnable, and "of a" stays fixed. PromptSRC uses 4+4 tokens and
J = 9.
"""

from __future__ import annotations

import torch

from rebapl.backbones import DualEncoder
from rebapl.learners.deep import DeepConfig, DeepPrompts, prompt_parameters, prompted_layers
from rebapl.learners.initial import draw_normal
from rebapl.learners.registry import register


@register("ivlp", DeepConfig)
class IVLP(DeepPrompts):
    def __init__(self, encoder: DualEncoder, config: DeepConfig) -> None:
        depths = [prompted_layers(config.depth, len(tower.layers)) for tower in (encoder.text, encoder.vision)]
        super().__init__(encoder, config, depths[0])
        self.vision = prompt_parameters(depths[1], config.tokens, encoder.vision.width, encoder.device)

    def reset(self, generator: torch.Generator) -> None:
        self.draw_text(generator)
        for prompt in self.vision.values():
            draw_normal(prompt, generator)
