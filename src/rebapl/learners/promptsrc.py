"""PromptSRC: independent prompts in both towers, held near the frozen model.

Khattak et al., Self-regulating Prompts: Foundational Model Adaptation without Forgetting, 2023. IVLP with 4+4 tokens,
J = 9. With prompted image features x, text features w and logits z, and x̄, w̄, z̄ those of the frozen model,

    L = CE(z, y) + 25·mean|w − w̄| + 10·mean|x − x̄| + Σ p̄·(log p̄ − log p) / (B·C),    p = softmax(z), p̄ = softmax(z̄)

All features are normalised. w̄ is the mean of a class's raw features in 60 ImageNet templates, normalised after the
averaging. z̄ = exp(logit_scale)·x̄·w̄ᵀ. The prompts are averaged over epochs with Gaussian weights: see the recipe.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor

from rebapl.backbones import States
from rebapl.learners.base import Output
from rebapl.learners.deep import DeepConfig, Depth, frozen_image, with_features
from rebapl.learners.ivlp import IVLP
from rebapl.learners.registry import register
from rebapl.learners.templates import Templates, mean_features
from rebapl.settings import SettingError

TEMPLATES = "imagenet-60"


class PromptSRCConfig(DeepConfig):
    """IVLP's settings, the weights of the loss's terms, and the `templates` of the frozen text features."""

    tokens: int = Field(default=4, ge=1, le=512)
    depth: Depth = "9/12"
    text_weight: float = Field(default=25.0, ge=0)
    image_weight: float = Field(default=10.0, ge=0)
    logits_weight: float = Field(default=1.0, ge=0)
    templates: Templates = TEMPLATES

    @model_validator(mode="after")
    def _templates_act(self) -> PromptSRCConfig:
        if self.templates != TEMPLATES and self.text_weight == 0 and self.logits_weight == 0:
            wrong = "has no effect where text_weight and logits_weight are both 0: leave it out"
            raise SettingError(("templates",), wrong)
        return self


@register("promptsrc", PromptSRCConfig)
class PromptSRC(IVLP):
    config: PromptSRCConfig

    def prepare_text(self) -> None:
        super().prepare_text()
        self._frozen_text: Tensor | None = None

    @property
    def frozen_text(self) -> Tensor:
        """The frozen model's text features (C, e). The first `loss` computes them: predictions never need them."""
        if self._frozen_text is None:
            templates = self.config.templates
            self._frozen_text = mean_features(self.encoder, self.class_names, templates, normalised=False)
        return self._frozen_text

    @torch.no_grad()
    def frozen(self, images: Tensor) -> States:
        """In training mode, the result has the frozen model's features, which only the loss needs."""
        embedded = self.encoder.embed_images(images)
        return with_features(self.encoder, embedded) if self.training else embedded

    def respond(self, frozen: States, classes: Mapping[str, Tensor]) -> Output:
        output = super().respond(frozen, classes)
        if frozen.features is None:
            return output
        return replace(output, per_image={**output.per_image, "frozen_image": frozen.features})

    def loss(self, output: Output, labels: Tensor) -> Tensor:
        image, text = frozen_image(output, "PromptSRC"), self.frozen_text
        frozen_logits = self.encoder.logits(image, text)
        divergence = F.kl_div(
            output.logits.log_softmax(-1), frozen_logits.log_softmax(-1), reduction="sum", log_target=True
        )
        return (
            F.cross_entropy(output.logits, labels)
            + self.config.text_weight * F.l1_loss(output.per_class["text"], text)
            + self.config.image_weight * F.l1_loss(output.per_image["image"], image)
            + self.config.logits_weight * divergence / output.logits.numel()
        )
