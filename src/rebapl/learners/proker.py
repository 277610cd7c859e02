"""ProKeR: kernel ridge regression of what zero-shot gets wrong on the training images, in closed form.

Bendou et al., ProKeR: A Kernel Perspective on Few-Shot Adaptation of Large Vision-Language Models, 2025. A correction
of the zero-shot logits that is small in the norm of the kernel's space and right on the N training images is

    g(x) = α k(x)ᵀ (K + λ I)⁻¹ (Y − Ŷ),   k_n(x) = exp(−β (1 − x·f_n)),

with the one-hot labels Y, what zero-shot says of them, Ŷ, and K the kernel between the training images. Tip-Adapter is
this with (K + λ I)⁻¹ (Y − Ŷ) replaced by Y. Here Ŷ are zero-shot's probabilities, so that both have one scale.

The paper searches λ and β on validation images. Here λ, β, α and κ in front of the zero-shot logits have the greatest
likelihood of the training images, each left out in turn, which kernel ridge regression knows without being fitted
again: of image n it says (Y − Ŷ)_n − A_n/(K + λI)⁻¹_nn with the coefficients A = (K + λI)⁻¹ (Y − Ŷ).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from rebapl.learners.head import NothingToSet, blended
from rebapl.learners.registry import register
from rebapl.learners.tip_adapter import SHARPNESSES, Cache, kernel

RIDGES = (0.01, 0.1, 1.0, 10.0)
"""The λ that are tried."""


@register("proker", NothingToSet)
class ProKeR(Cache):
    @torch.no_grad()
    def see(self, features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        zero_shot = self.encoder.logits(features, self.text_features)
        wrong = F.one_hot(labels, len(self.owners)).double() - zero_shot.double().softmax(-1)
        tried = []
        for sharpness in SHARPNESSES:
            between = kernel(features.double(), features.double(), sharpness)
            for ridge in RIDGES:
                inverse = torch.linalg.inv(between + ridge * torch.eye(len(labels)).to(between))
                left_out = wrong - inverse @ wrong / inverse.diagonal()[:, None]
                kappa, alpha, loss = blended(zero_shot, left_out, labels)
                tried.append((loss, kappa, sharpness, alpha * inverse @ wrong))
        _, kappa, sharpness, values = min(tried, key=lambda each: each[0])
        self.keep(features, values, sharpness, kappa)
        return features, labels
