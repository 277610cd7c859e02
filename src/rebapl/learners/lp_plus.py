"""LP++: a linear probe whose classes blend a visual prototype with the text feature, each class in its own proportion.

Huang et al., LP++: A Surprisingly Strong Linear Probe for Few-Shot CLIP, 2024. The logits are s·x·(w_c + a_c t_c) with
the text features t_c. Both the w_c and the numbers a_c are learned by cross-entropy on the features of the training
images. The w_c start from the prototypes (the mean features of the classes) times one number ν, and all a_c from κ.

The authors derive the start and the step sizes from the training images alone, so that nothing is searched. Here κ and
ν maximise the likelihood of the training images, where each image is scored by prototypes without this image. If no
class has two images, κ = 1 and ν = 0. AdamW replaces the authors' block-wise steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rebapl.learners.head import Head, NothingToSet, blended
from rebapl.learners.registry import register


@register("lp++", NothingToSet)
class LPPlus(Head):
    repels_in = "text"
    repels_per_image = False
    start: tuple[Tensor, float] | None = None
    """The weights (T, e) and the κ from which the training starts. `see` computes them."""

    def adopt(self, class_names: Sequence[str]) -> None:
        super().adopt(class_names)
        self.weight = nn.Parameter(torch.zeros(len(class_names), self.encoder.joint_width, device=self.encoder.device))
        self.blend = nn.Parameter(torch.ones(len(class_names), device=self.encoder.device))
        del self.text_weight  # each class has its own

    @torch.no_grad()
    def reset(self, generator: torch.Generator) -> None:  # noqa: ARG002
        """Draw nothing: start from the values of `see`, or from zero-shot before it was called."""
        weight, kappa = (torch.zeros_like(self.weight), 1.0) if self.start is None else self.start
        self.weight.copy_(weight)
        self.blend.fill_(kappa)

    @property
    def kappa(self) -> Tensor:
        return (1 + self.placed(self.blend - 1))[:, None]

    def encode_classes(self) -> Mapping[str, Tensor]:
        return {"text": self.kappa * self.text_features + self.trained[:, None] * self.weight[self.rows]}

    @torch.no_grad()
    def see(self, features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        own = F.one_hot(labels, len(self.owners)).to(features)
        sums, counts = own.mT @ features, own.sum(0)
        kappa, share = 1.0, 0.0
        if counts.max() > 1:
            similarity = features @ sums.mT  # (N, T); an image adds 1 to that with its own class, subtracted below
            left_out = (similarity - own) / (counts - own).clamp(min=1)
            zero_shot = self.encoder.logits(features, self.text_features)
            kappa, share, _ = blended(zero_shot, self.encoder.logit_scale * left_out, labels)
        self.start = (share * sums / counts.clamp(min=1)[:, None], kappa)
        self.reset(torch.Generator())
        return features, labels
