"""ProKeR: kernel ridge regression of what zero-shot gets wrong on the training images, in closed form.

Bendou et al., ProKeR: A Kernel Perspective on Few-Shot Adaptation of Large Vision-Language Models, 2025. A correction
of the zero-shot logits that is small in the norm of the kernel's space and right on the N training images is

    g(x) = α k(x)ᵀ (K + λ I)⁻¹ (Y − Ŷ),   k_n(x) = exp(−β (1 − x·f_n)),

with the one-hot labels Y, what zero-shot says of them, Ŷ, and K the kernel between the training images. Tip-Adapter is
this with (K + λ I)⁻¹ (Y − Ŷ) replaced by Y. Here Ŷ are zero-shot's probabilities, so that both have one scale.

The paper searches λ and β on validation images. Here λ, β, α and κ in front of the zero-shot logits have the greatest
likelihood of the training images, each left out in turn, which kernel ridge regression knows without being fitted
again: of image n it says (Y − Ŷ)_n − A_n/(K + λI)⁻¹_nn with the coefficients A = (K + λI)⁻¹ (Y − Ŷ).

Kernel ridge regression is the mean of the posterior of a Gaussian process: g_c/α ~ GP(0, s² k), of which the training
images say (Y − Ŷ)_c with noise of variance s² λ. The coefficients of functions k(x)ᵀ A_c have the exact posterior

    A_c | images ~ N((K + λI)⁻¹ (Y − Ŷ)_c, s² (K⁻¹ − (K + λI)⁻¹)),   s² = Σ_c (Y − Ŷ)_cᵀ (K + λI)⁻¹ (Y − Ŷ)_c / NC,

where s² has the greatest marginal likelihood. `laplace` draws from it. On the training images the functions are those
of the process, in mean and covariance. Elsewhere they have its mean, and less of its variance: s² (1 − k(x)ᵀ K⁻¹ k(x)),
which no combination of kernels around the training images has, is left out.
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

ROUNDING = 1e-9
"""Eigenvalues of K below this share of the largest are left out of the draws. Images that are there twice have such:
coefficients along their vectors hardly change an answer, and would be too large for float32."""


@register("proker", NothingToSet)
class ProKeR(Cache):
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
        mean, root = coefficients(between, wrong, self.ridge)
        noise = torch.randn(count, *wrong.shape, generator=stream, dtype=torch.float64).to(wrong)
        return [{"values": (self.alpha * (mean + root @ each)).float().cpu()} for each in noise]

    def wrong(self, features: Tensor, labels: Tensor) -> Tensor:
        """Y − Ŷ (N, C), float64."""
        zero_shot = self.encoder.logits(features, self.text_features)
        return F.one_hot(labels, len(self.owners)).double() - zero_shot.double().softmax(-1)


def coefficients(between: Tensor, wrong: Tensor, ridge: float) -> tuple[Tensor, Tensor]:
    """The mean (N, C) of the coefficients A, and R (N, N) with R Rᵀ = s² (K⁻¹ − (K + λI)⁻¹).

    `between` is K (N, N), and `wrong` is Y − Ŷ (N, C).
    """
    heights, vectors = torch.linalg.eigh(between)
    known = heights > ROUNDING * heights.max()
    heights, along = heights.clamp(min=0), vectors.mT @ wrong
    scale = (along.square() / (heights + ridge)[:, None]).mean()
    variances = scale * torch.where(known, ridge / (heights * (heights + ridge)), 0.0)
    return vectors @ (along / (heights + ridge)[:, None]), vectors * variances.sqrt()
