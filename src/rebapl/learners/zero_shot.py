"""Zero-shot CLIP: the data set's hand-written template, nothing learned.

Radford et al., Learning Transferable Visual Models From Natural Language Supervision, 2021.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rebapl.backbones import DualEncoder
from rebapl.learners.base import Learner, Output, Recipe
from rebapl.learners.registry import register


@dataclass(frozen=True)
class ZeroShotConfig:
    """Zero-shot has no settings of its own."""


@register("zero-shot", ZeroShotConfig)
class ZeroShot(Learner):
    recipe = Recipe(lr=0.0, epochs=0, batch=1)
    repels_in = None

    def __init__(
        self, encoder: DualEncoder, class_names: Sequence[str], template: str, config: ZeroShotConfig
    ) -> None:
        super().__init__(encoder, class_names, template)

    @torch.no_grad()
    def prepare_text(self) -> None:
        text = self.encoder.tokenize([[self.template.format(name)] for name in self.class_names])
        self.text_features = self.encoder.text_features(text)

    def reset(self, generator: torch.Generator) -> None:
        """Nothing to draw."""

    @torch.no_grad()
    def frozen(self, images: Tensor) -> Tensor:
        return self.encoder.image_features(images)

    def encode_classes(self) -> Mapping[str, Tensor]:
        return {"text": self.text_features}

    def respond(self, frozen: Tensor, classes: Mapping[str, Tensor]) -> Output:
        return Output(self.cosine_logits(frozen, classes["text"]), {"image": frozen}, classes)
