"""PromptSRC: independent prompts in both towers, held near the frozen model.

Khattak et al., Self-regulating Prompts: Foundational Model Adaptation without Forgetting, 2023. IVLP with 4+4 tokens,
J = 9. With prompted image features x, text features w and logits z, and x̄, w̄, z̄ those of the frozen model,

    L = CE(z, y) + 25·mean|w − w̄| + 10·mean|x − x̄| + Σ p̄·(log p̄ − log p) / (B·C),    p = softmax(z), p̄ = softmax(z̄)

All features are normalised, also w̄: the mean of a class's raw features in 60 ImageNet templates, normalised once
after the mean. z̄ = exp(logit_scale)·x̄·w̄ᵀ. Prompts are averaged over epochs with Gaussian weights: see the recipe.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from rebapl.backbones import States
from rebapl.errors import UserError
from rebapl.learners.base import Output, Recipe, Variant
from rebapl.learners.ivlp import IVLP, IVLPConfig
from rebapl.learners.registry import register
from rebapl.learners.taught import TaughtStates, with_teacher
from rebapl.learners.templates import mean_features, read_templates


@dataclass(frozen=True)
class PromptSRCConfig(IVLPConfig):
    """IVLP's settings; the weights of the three terms; the `templates` of the frozen text features."""

    tokens: int = 4
    depth_of_12: int = 9
    text_weight: float = 25.0
    image_weight: float = 10.0
    logits_weight: float = 1.0
    templates: str | Sequence[str] = "imagenet-60"

    def __post_init__(self) -> None:
        super().__post_init__()
        read_templates(self.templates)
        for name in ("text_weight", "image_weight", "logits_weight"):
            if not getattr(self, name) >= 0:
                raise UserError(f"{name} = {getattr(self, name)}: the weight of a term cannot be negative")


_TRANSFER = Variant(settings={"depth_of_12": 3}, recipe={"averaging": (6, 10)})
_LATE = Variant(recipe={"averaging": (45, 5)})


@register("promptsrc", PromptSRCConfig)
class PromptSRC(IVLP):
    config: PromptSRCConfig
    recipe = Recipe(lr=0.0025, epochs=20, batch=4, averaging=(15, 1))
    variants = {
        "cross-dataset": _TRANSFER,
        "domain-generalization": _TRANSFER,
        "few-shot": Variant(recipe={"epochs": 50, "averaging": (30, 30)}),
        **{
            f"few-shot/{name}": _LATE for name in ("stanford_cars", "oxford_flowers", "fgvc_aircraft", "dtd", "eurosat")
        },
    }

    def prepare_text(self) -> None:
        super().prepare_text()
        self._teacher_text: Tensor | None = None

    @property
    def teacher_text(self) -> Tensor:
        """The frozen model's text features (C, e), computed when a loss first asks for them."""
        if self._teacher_text is None:
            given = self.config.templates
            self._teacher_text = mean_features(self.encoder, self.class_names, given, normalised=False)
        return self._teacher_text

    @torch.no_grad()
    def frozen(self, images: Tensor) -> States:
        """In training mode with the frozen model's features, which only the loss needs."""
        embedded = self.encoder.embed_images(images)
        return with_teacher(self.encoder, embedded) if self.training else embedded

    def respond(self, frozen: States, classes: Mapping[str, Tensor]) -> Output:
        output = super().respond(frozen, classes)
        if not isinstance(frozen, TaughtStates) or frozen.teacher is None:
            return output
        return replace(output, per_image={**output.per_image, "frozen_image": frozen.teacher})

    def loss(self, output: Output, labels: Tensor) -> Tensor:
        if "frozen_image" not in output.per_image:
            raise UserError(
                "PromptSRC's loss compares with the frozen model's image features, which are computed in training "
                "mode only: call learner.train() before the pass"
            )
        image, text = output.per_image["frozen_image"], self.teacher_text
        frozen_logits = self.cosine_logits(image, text)
        divergence = F.kl_div(
            output.logits.log_softmax(-1), frozen_logits.log_softmax(-1), reduction="sum", log_target=True
        )
        return (
            F.cross_entropy(output.logits, labels)
            + self.config.text_weight * F.l1_loss(output.per_class["text"], text)
            + self.config.image_weight * F.l1_loss(output.per_image["image"], image)
            + self.config.logits_weight * divergence / output.logits.numel()
        )
