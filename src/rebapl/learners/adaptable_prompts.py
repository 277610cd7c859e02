"""APP: CoOp with a prior that depends on the data, for particles under Stein variational gradient descent.

Cho et al., Make Prompts Adaptable: Bayesian Modeling for Vision-Language Prompt Learning with Data-Dependent Prior,
2024. The learner holds one particle, a context v of b vectors, and the prior's network π: e → e/16 → d_t with a ReLU
between, applied to the normalised image feature x. APP was published with the inference `svgd`, which runs the
particles (4 in the paper) side by side. All of them share the one network.

    L = CE(z_v, y) + λ·‖mean_b v − mean_B π(x)‖²  +  CE(z_π, y)

z_v are CoOp's logits. z_π are the logits of a text in which every context vector is the batch's mean of π(x). The last
term trains the network; the middle term treats π as a constant and does not. The last term does not depend on the
particle, so it does not change the particle's gradient. Since it is the same for every particle, the mean over the
particles of their gradients, with which `SVGD` moves shared parameters, equals its gradient: the network is trained as
if it were trained by itself. In prediction every image has a text of its own from π(x), and the logits are
α·z_v + (1−α)·z_π with α = 0.7.

The authors' released code differs in two ways. It first trains π and then the particles with the other terms; here both
are trained together. It leaves out the kernel, so that its particles do not influence each other; here they do, as in
the paper.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from rebapl.backbones import DualEncoder
from rebapl.learners.base import Output
from rebapl.learners.cocoop import bottleneck
from rebapl.learners.coop import CoOp, CoOpConfig
from rebapl.learners.initial import draw_linear
from rebapl.learners.registry import register


class APPConfig(CoOpConfig):
    """CoOp's settings. `prior_weight` is λ, which the authors set to 1/shots; `particle_share` is α."""

    tokens: int | None = Field(default=16, ge=1, le=512)
    init: str | None = Field(default=None, min_length=1)
    prior_weight: float = Field(default=1 / 16, ge=0)
    particle_share: float = Field(default=0.7, ge=0, le=1)


@register("app", APPConfig)
class APP(CoOp):
    config: APPConfig
    shared_parameters = frozenset({"squeeze", "expand"})

    def __init__(self, encoder: DualEncoder, config: APPConfig) -> None:
        super().__init__(encoder, config)
        self.squeeze, self.expand = bottleneck(encoder)

    def reset(self, generator: torch.Generator) -> None:
        super().reset(generator)
        draw_linear(self.squeeze, generator)
        draw_linear(self.expand, generator)

    def respond(self, frozen: Tensor, classes: Mapping[str, Tensor]) -> Output:
        """The cloud `prior` (B, d_t) is π(x). It enters the logits in evaluation mode only."""
        prior = self.expand(F.relu(self.squeeze(frozen)))
        logits = self.encoder.logits(frozen, classes["text"])
        if not self.training:
            share = self.config.particle_share
            text = self.in_portions(self._prior_text, prior)
            logits = share * logits + (1 - share) * self.encoder.logits(frozen.unsqueeze(1), text).squeeze(1)
        return Output(logits, {"image": frozen, "prior": prior}, classes)

    def loss(self, output: Output, labels: Tensor) -> Tensor:
        logits = self.encoder.logits(output.per_image["image"], output.per_class["text"])
        centre = output.per_image["prior"].mean(0).detach()
        distance = (self.context.mean(-2) - centre).square().sum()
        particle_loss = F.cross_entropy(logits, labels) + self.config.prior_weight * distance
        return particle_loss + self.prior_loss(output, labels)

    def prior_loss(self, output: Output, labels: Tensor) -> Tensor:
        """CE(z_π, y), with the batch's mean of π(x) as every context vector: the loss that trains the network."""
        (text,) = self._prior_text(output.per_image["prior"].mean(0, keepdim=True))
        return F.cross_entropy(self.encoder.logits(output.per_image["image"], text), labels)

    def _prior_text(self, prior: Tensor) -> Tensor:
        """Normalised text features (B, C, e) with each of the vectors (B, d_t) as every context vector."""
        count, classes = len(prior), len(self.class_names)
        fill = prior[:, None, None].expand(-1, classes, self.tokens, -1).flatten(0, 1)
        return self.encoder.text_features(self.text.repeated(count), fill).unflatten(0, (count, classes))
