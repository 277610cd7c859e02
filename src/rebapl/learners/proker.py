"""ProKeR: kernel ridge regression of what zero-shot gets wrong on the training images, in closed form.

Bendou et al., ProKeR: A Kernel Perspective on Few-Shot Adaptation of Large Vision-Language Models, 2025. The correction
of the zero-shot logits that is small in the norm of the kernel's space and fits the N training images is

    g(x) = α k(x)ᵀ (K + λ I)⁻¹ (Y − Ŷ),   k_n(x) = exp(−β (1 − x·f_n)),

with the one-hot labels Y, zero-shot's predictions Ŷ of them, and the kernel K between the training images. Tip-Adapter
has Y in the place of (K + λ I)⁻¹ (Y − Ŷ). Here Ŷ are zero-shot's probabilities, so that Y and Ŷ have the same scale.

The paper searches λ and β on validation images. Here λ, β, α, and the factor κ of the zero-shot logits maximise the
likelihood of the training images when each is left out in turn. Kernel ridge regression need not be fitted again for
this: without image n, its prediction for image n is (Y − Ŷ)_n − A_n/(K + λI)⁻¹_nn, with A = (K + λI)⁻¹ (Y − Ŷ).

Kernel ridge regression is the mean of the posterior of a Gaussian process: g_c/α ~ GP(0, s² k), observed at the
training images as (Y − Ŷ)_c with noise of variance s² λ. The coefficients of functions k(x)ᵀ A_c have the posterior

    A_c | images ~ N((K + λI)⁻¹ (Y − Ŷ)_c, s² (K⁻¹ − (K + λI)⁻¹)),   s² = Σ_c (Y − Ŷ)_cᵀ (K + λI)⁻¹ (Y − Ŷ)_c / NC,

where s² maximises the marginal likelihood. `laplace` draws from this posterior. At the training images, these functions
have the mean and the covariance of the process. Elsewhere they have its mean but less variance: the part
s² (1 − k(x)ᵀ K⁻¹ k(x)), which no combination of kernels around the training images can have, is missing.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from rebapl.learners.head import NothingToSet, blended
from rebapl.learners.registry import register
from rebapl.learners.tip_adapter import SHARPNESSES, Cache, kernel

RIDGES = (0.01, 0.1, 1.0, 10.0)
"""The values of λ that are tried."""

ROUNDING = 1e-9
"""The draws leave out eigenvectors of K whose eigenvalues are below this share of the largest one. Duplicate images
cause such eigenvectors: coefficients along them hardly change an answer, and would be too large for float32."""


@register("proker", NothingToSet)
class ProKeR(Cache):
    alpha, ridge = 1.0, RIDGES[0]
    """α and λ as `see` has chosen them. The `values` already contain α."""

    @torch.no_grad()
    def see(self, features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        zero_shot, wrong = self.encoder.logits(features, self.text_features), self.wrong(features, labels)
        candidates = []
        for sharpness in SHARPNESSES:
            between = kernel(features.double(), features.double(), sharpness)
            for ridge in RIDGES:
                inverse = torch.linalg.inv(between + ridge * torch.eye(len(labels)).to(between))
                left_out = wrong - inverse @ wrong / inverse.diagonal()[:, None]
                kappa, alpha, loss = blended(zero_shot, left_out, labels)
                candidates.append((loss, kappa, sharpness, alpha * inverse @ wrong, alpha, ridge))
        _, kappa, sharpness, values, self.alpha, self.ridge = min(candidates, key=lambda candidate: candidate[0])
        self.keep(features, values, sharpness, kappa)
        return features, labels

    @torch.no_grad()
    def draws(self, features: Tensor, labels: Tensor, count: int, stream: torch.Generator) -> list[dict[str, Tensor]]:
        wrong = self.wrong(features, labels)
        between = kernel(features.double(), features.double(), self.sharpness.double())
        mean, root = coefficients(between, wrong, self.ridge)
        noise = torch.randn(count, *wrong.shape, generator=stream, dtype=torch.float64).to(wrong)
        return [{"values": (self.alpha * (mean + root @ normal)).float().cpu()} for normal in noise]

    def wrong(self, features: Tensor, labels: Tensor) -> Tensor:
        """The errors Y − Ŷ (N, C) of zero-shot, float64."""
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
