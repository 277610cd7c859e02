"""A linear head on frozen features, pulled to the text features: logistic regression, TaskRes, CLAP, cross-modal.

The logits of a normalised feature x are s·x·w_c with the backbone's scale s (and its bias, where it has one), and

    w_c = t_c + σ_c r_c,   r_c ~ N(0, I),   so that   w_c ~ N(t_c, σ_c² I),

with the text feature t_c of the class, or 0 where `start` is "zero". The r_c are the parameters, and their prior is a
part of the mean loss, cross-entropy + ‖r‖²/2N, of which exp(−N·loss) is the posterior's density. It has one mode.

* Residuals of the text features with a scale are TaskRes (Yu et al., Task Residual for Tuning Vision-Language Models,
  2023). There w is normalised again, and the scale α is 0.5 or searched on validation images, with weight decay on r.
  Here w is not normalised, which keeps the loss convex and its curvature exact.
* `prior` is σ, or "evidence": then σ has the greatest marginal likelihood of the training images. That is MacKay's
  fixed point of mode and precision, with the Kronecker-factored curvature (see `rebapl.curvature`).
* `class_constraint` holds a class the closer to its text the better zero-shot is on its training images: σ_c = σ/√λ_c,
  with the mean zero-shot probability λ_c of the class on its own images (Silva-Rodríguez et al., A Closer Look at the
  Few-Shot Adaptation of Large Vision-Language Models, 2024: CLAP, whose penalty λ_c‖w_c − t_c‖² this is).
* `texts_as_examples` adds the text features to the training images, each as one more image of its class (Lin et al.,
  Multimodality Helps Unimodality, 2023, who draw as many texts as images).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from rebapl.curvature import Curvature, softmax_curvature
from rebapl.learners.base import Output
from rebapl.learners.head import Head
from rebapl.learners.registry import register
from rebapl.settings import Settings

ROUNDS = 30
"""Rounds of mode and precision, at most; they end when σ changes by less than one part in a hundred."""


class LinearConfig(Settings):
    """`prior` is the standard deviation σ of a weight around its centre, or how it is chosen."""

    start: Literal["text", "zero"] = "text"
    prior: Literal["evidence"] | Annotated[float, Field(gt=0)] = "evidence"
    class_constraint: bool = False
    texts_as_examples: bool = False


@register("linear", LinearConfig)
class Linear(Head):
    config: LinearConfig
    repels_in = "text"
    repels_per_image = False
    prior_precision = 1.0
    """That of the prior of the residuals, which is a part of the loss."""

    examples = 1
    """N, over which the loss is a mean."""

    def adopt(self, class_names: Sequence[str]) -> None:
        super().adopt(class_names)
        shape = (len(class_names), self.encoder.joint_width)
        self.residual = nn.Parameter(torch.zeros(shape, device=self.encoder.device))
        self.prior_std = self.found(len(class_names), 1)

    def prepare_text(self) -> None:
        super().prepare_text()
        own = self.trained[:, None] if self.config.start == "zero" else 0.0
        self.base = self.text_features * (1.0 - own)

    def encode_classes(self) -> Mapping[str, Tensor]:
        return {"text": self.base + self.placed((self.prior_std * self.residual).mT).mT}

    def loss(self, output: Output, labels: Tensor) -> Tensor:
        return super().loss(output, labels) + self.residual.square().sum() / (2 * self.examples)

    def linear_inputs(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """a (B, d) and g (C,) such that the logits are g_c · a · r_c and something that does not depend on r."""
        return self.encoder.logit_scale * self.frozen(images), self.prior_std[:, 0]

    @torch.no_grad()
    def see(self, features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        scale = torch.ones_like(self.prior_std)
        if self.config.class_constraint:
            probabilities = self.encoder.logits(features, self.text_features).softmax(-1)
            own = F.one_hot(labels, len(self.owners)).to(probabilities)
            scale = (((own * probabilities).sum(0) / own.sum(0).clamp(min=1)).clamp(min=1e-3) ** -0.5)[:, None]
        if self.config.texts_as_examples:
            features = torch.cat([features, self.text_features])
            labels = torch.cat([labels, torch.arange(len(self.owners), device=labels.device)])
        self.examples = len(labels)
        std = self.config.prior
        self.prior_std.copy_((self._by_evidence(features, labels, scale) if std == "evidence" else std) * scale)
        return features, labels

    def _by_evidence(self, features: Tensor, labels: Tensor, scale: Tensor) -> float:
        """The σ with the greatest evidence: in turn the mode at σ, and σ from the curvature at that mode."""
        inputs, offset = self.encoder.logit_scale * features, self.encoder.logits(features, self.base)
        second_moment = inputs.double().mT @ inputs.double()
        std, residual = 1 / float(self.encoder.logit_scale), torch.zeros_like(self.residual)
        for _ in range(ROUNDS):
            residual = mode(inputs, offset, labels, std * scale, residual)
            probabilities = (offset + inputs @ (std * scale * residual).mT).double().softmax(-1)
            gains = scale.double()
            of_classes = gains * softmax_curvature(probabilities) * gains.mT
            curvature = Curvature.kronecker(of_classes, second_moment)
            before, distance = std, std**2 * residual.double().square().sum().item()
            std = curvature.best_precision(distance) ** -0.5
            residual = residual * (before / std)
            if abs(math.log(std / before)) < 0.01:
                break
        return std


def mode(inputs: Tensor, offset: Tensor, labels: Tensor, std: Tensor, start: Tensor) -> Tensor:
    """The r (C, d) with the least Σ_n cross-entropy(offset_n + (std·r) inputs_n, label_n) + ½‖r‖², by L-BFGS."""
    residual = start.clone().requires_grad_()
    optimizer = torch.optim.LBFGS([residual], max_iter=100, tolerance_grad=1e-4, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        logits = offset + inputs @ (std * residual).mT
        loss = F.cross_entropy(logits, labels, reduction="sum") + residual.square().sum() / 2
        loss.backward()
        return loss

    with torch.enable_grad():
        optimizer.step(closure)
    return residual.detach()
