"""Zero-shot CLIP: hand-written templates, nothing learned.

Radford et al., Learning Transferable Visual Models From Natural Language Supervision, 2021. The data set's template,
or an ensemble: the text feature of a class is the normalised mean of its normalised features in every template.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rebapl.backbones import DualEncoder
from rebapl.learners.base import Learner, Output, Recipe, Variant
from rebapl.learners.registry import register
from rebapl.learners.templates import mean_features, read_templates


@dataclass(frozen=True)
class ZeroShotConfig:
    """`templates` makes it an ensemble: a named set (imagenet-7, imagenet-80), one template, or several.

    `with_own` adds the data set's own template to them, as published for all data sets but ImageNet.
    """

    templates: str | Sequence[str] | None = None
    with_own: bool = True

    def __post_init__(self) -> None:
        if self.templates is not None:
            read_templates(self.templates)


@register("zero-shot", ZeroShotConfig)
class ZeroShot(Learner):
    recipe = Recipe(lr=0.0, epochs=0, batch=1)
    repels_in = None
    variants = {"imagenet": Variant(settings={"with_own": False})}

    def __init__(self, encoder: DualEncoder, class_names: Sequence[str], template: str, config: ZeroShotConfig) -> None:
        self.config = config
        super().__init__(encoder, class_names, template)

    def prepare_text(self) -> None:
        templates = self.template if self.config.templates is None else self.config.templates
        own = self.template if self.config.with_own else None
        self.text_features = mean_features(self.encoder, self.class_names, templates, normalised=True, own=own)

    def reset(self, generator: torch.Generator) -> None:
        """Nothing to draw."""

    @torch.no_grad()
    def frozen(self, images: Tensor) -> Tensor:
        return self.encoder.image_features(images)

    def encode_classes(self) -> Mapping[str, Tensor]:
        return {"text": self.text_features}

    def respond(self, frozen: Tensor, classes: Mapping[str, Tensor]) -> Output:
        return Output(self.cosine_logits(frozen, classes["text"]), {"image": frozen}, classes)
