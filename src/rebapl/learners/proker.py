"""ProKeR: kernel ridge regression of what zero-shot gets wrong on the training images, in closed form.

Bendou et al., ProKeR: A Kernel Perspective on Few-Shot Adaptation of Large Vision-Language Models, 2025. A correction
of the zero-shot logits that is small in the norm of the kernel's space and right on the N training images is

    g(x) = α k(x)ᵀ (K + λ I)⁻¹ (Y − Ŷ),   k_n(x) = exp(−β (1 − x·f_n)),

with the one-hot labels Y, what zero-shot says of them, Ŷ, and K the kernel between the training images. Tip-Adapter is
this with (K + λ I)⁻¹ (Y − Ŷ) replaced by Y. Here Ŷ are zero-shot's probabilities, so that both have one scale.

The paper searches λ and β on validation images. Here λ, β, α and κ in front of the zero-shot logits have the greatest
likelihood of the training images, each left out in turn, which kernel ridge regression knows without being fitted
again: of image n it says (Y − Ŷ)_n − A_n/(K + λI)⁻¹_nn with the coefficients A = (K + λI)⁻¹ (Y − Ŷ).

Kernel ridge regression is the posterior mean of a Gaussian process: g/α ~ GP(0, s² k) for each class, of which
the images say Y − Ŷ with noise of variance s² λ. The coefficients of functions k(x)ᵀ A then have the exact posterior

    A_c | images ~ N((K + λI)⁻¹ (Y − Ŷ)_c, s² (K⁻¹ − (K + λI)⁻¹)),   s² = Σ_c (Y − Ŷ)_cᵀ (K + λI)⁻¹ (Y − Ŷ)_c / NC,

where s² has the greatest marginal likelihood. `laplace` draws from it. On the training images these functions are
those of the process, in mean and covariance. Elsewhere they have its mean, and of its variance
s² k(x)ᵀ (K⁻¹ − (K + λI)⁻¹) k(x): what no combination of the training images can say, s² (1 − k(x)ᵀ K⁻¹ k(x)), is left out.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from rebapl.learners.head import blended
from rebapl.learners.registry import register
from rebapl.learners.tip_adapter import SHARPNESSES, Cache, kernel
from rebapl.settings import Settings

RIDGES = (0.01, 0.1, 1.0, 10.0)
"""The λ that are tried."""


ROUNDING = 1e-12
"""Eigenvalues of K below this share of the largest are not known: images that are there twice have such."""


class ProKeRConfig(Settings):
    """There is nothing to set."""


@register("proker", ProKeRConfig)
class ProKeR(Cache):
    config: ProKeRConfig
    alpha, ridge = 1.0, RIDGES[0]
    """What `see` found; the values have it already."""

    @torch.no_grad()
    def see(self, features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        zero_shot, wrong, tried = self.encoder.logits(features, self.text_features), self.wrong(features, labels), []
        for sharpness in SHARPNESSES:
            between = kernel(features.double(), features.double(), sharpness)
            for ridge in RIDGES:
                inverse = torch.linalg.inv(between + ridge * torch.eye(len(labels)).to(between))
                left_out = wrong - inverse @ wrong / inverse.diagonal()[:, None]
                kappa, alpha, loss = blended(zero_shot, left_out, labels)
                tried.append((loss, kappa, sharpness, alpha * inverse @ wrong, alpha, ridge))
        _, kappa, sharpness, values, self.alpha, self.ridge = min(tried, key=lambda each: each[0])
        self.keep(features, values, sharpness, kappa)
        return features, labels

    @torch.no_grad()
    def draws(self, features: Tensor, labels: Tensor, count: int, stream: torch.Generator) -> list[dict[str, Tensor]]:
        wrong = self.wrong(features, labels)
        between = kernel(features.double(), features.double(), self.sharpness.double())
        heights, vectors = torch.linalg.eigh(between)
        inside = heights > ROUNDING * heights.max()  # the others change no answer, and their coefficients have no bound
        along = vectors.mT @ wrong
        scale = (along.square() / (heights.clamp(min=0) + self.ridge)[:, None]).mean()
        variances = scale * torch.where(inside, self.ridge / (heights * (heights + self.ridge)), 0.0)
        mean, root = vectors @ (along / (heights + self.ridge)[:, None]), vectors * variances.sqrt()
        noise = torch.randn(count, *wrong.shape, generator=stream, dtype=torch.float64).to(wrong)
        return [{"values": (self.alpha * (mean + root @ each)).float().cpu()} for each in noise]

    def wrong(self, features: Tensor, labels: Tensor) -> Tensor:
        """Y − Ŷ (N, C), float64."""
        zero_shot = self.encoder.logits(features, self.text_features)
        return F.one_hot(labels, len(self.owners)).double() - zero_shot.double().softmax(-1)
