"""GDA: a Gaussian discriminant on frozen features, added to zero-shot, in closed form.

Wang et al., A Hard-to-Beat Baseline for Training-Free CLIP-Based Adaptation, 2024. The features of each class are
assumed to be Gaussian, with a mean per class and one covariance for all classes. Bayes' rule then gives linear logits

    g_c(x) = α (x·w_c + b_c),   w_c = P μ_c,   b_c = log π_c − ½ μ_cᵀ P μ_c,   P = e ((N − 1) Σ̂ + tr(Σ̂) I)⁻¹,

with the class means μ_c, the shares π_c of the classes and the covariance Σ̂ of the N features around the means of
their classes. P is the shrunk inverse of Kubokawa and Srivastava. g is centred over the classes: this changes no
probability, and makes the logits comparable with those of classes without images, for which g is 0.

The published code searches α on a validation set. Here α, and the factor κ of the zero-shot logits, maximise the
likelihood of the training images in cross-validation: each part of them is scored by the discriminant of the other
parts. If only one image of each class remains in the other parts, they have no covariance; then the variance of all
images is used, the same in all directions. If no class has two images, nothing shows how reliable the discriminant is:
then α = 0 and κ = 1, which is zero-shot.

With a known covariance and a flat prior, the posterior of the means is exactly Gaussian,

    μ_c | images ~ N(μ̂_c, P⁻¹ / n_c),

around the mean μ̂_c of the n_c features of the class. `laplace` draws from it: each sample is the discriminant of drawn
means, with the same P, π, α and κ. The covariance is not drawn, because the shrunk P does not correspond to an inverse
Wishart posterior, which becomes narrower with N.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rebapl.learners.head import Head, NothingToSet, blended
from rebapl.learners.registry import register

FOLDS = 5
"""The number of parts of the training images; fewer if every class has fewer images."""


@register("gda", NothingToSet)
class GDA(Head):
    alpha = 0.0
    """α as `see` has chosen it. The weight and the bias already contain it."""

    def adopt(self, class_names: Sequence[str]) -> None:
        super().adopt(class_names)
        self.weight = self.fixed(len(class_names), self.encoder.joint_width)
        self.bias = self.fixed(len(class_names))

    def extra(self, features: Tensor) -> Tensor:
        return features @ self.weight.mT + self.bias

    @torch.no_grad()
    def see(self, features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        classes, kappa, alpha = len(self.owners), 1.0, 0.0
        folds, whole = min(FOLDS, int(labels.bincount().max())), moments(features, labels, classes)
        if folds > 1:
            part, held_out = parts(labels, folds), torch.zeros(len(labels), classes, device=features.device)
            for fold in range(folds):
                means, shares, shrunk = moments(features[part != fold], labels[part != fold], classes)
                if shrunk.trace() < 1e-6 * whole[2].trace():
                    shrunk = whole[2].diagonal().mean() * torch.eye(len(shrunk)).to(shrunk)
                weight, bias = discriminant(means, shares, shrunk)
                held_out[part == fold] = features[part == fold] @ weight.mT + bias
            kappa, alpha, _ = blended(self.encoder.logits(features, self.text_features), held_out, labels)
        weight, bias = discriminant(*whole)
        self.text_weight.fill_(kappa)
        self.weight.copy_(alpha * weight)
        self.bias.copy_(alpha * bias)
        self.alpha = alpha
        return features, labels

    @torch.no_grad()
    def draws(self, features: Tensor, labels: Tensor, count: int, stream: torch.Generator) -> list[dict[str, Tensor]]:
        means, shares, shrunk = moments(features, labels, len(self.owners))
        root, samples = torch.linalg.cholesky(shrunk / means.shape[1]), []
        deviation = (shares * len(labels)).rsqrt()[:, None]
        for _ in range(count):
            noise = torch.randn(means.shape, generator=stream, dtype=torch.float64).to(means)
            weight, bias = discriminant(means + deviation * noise @ root.mT, shares, shrunk)
            samples.append({"weight": (self.alpha * weight).cpu(), "bias": (self.alpha * bias).cpu()})
        return samples


def parts(labels: Tensor, folds: int) -> Tensor:
    """The part (N,) of each image: the images of a class are dealt to the parts in turn.

    >>> parts(torch.tensor([0, 0, 1, 0, 1]), 2)
    tensor([0, 1, 0, 0, 1])
    """
    same = labels[:, None] == labels[None]
    return same.tril(-1).sum(-1) % folds


def moments(features: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """The class means (C, e), the shares (C,) and the shrunk sum of squares e·P⁻¹ (e, e), float64.

    A class without images is treated as if its one image were the mean of all images.
    """
    x = features.double()
    own = torch.nn.functional.one_hot(labels, classes).to(x)
    counts = own.sum(0)
    means = torch.where(counts[:, None] > 0, own.mT @ x / counts.clamp(min=1)[:, None], x.mean(0))
    around = x - means[labels]
    covariance = around.mT @ around / max(1, len(x) - 1)
    identity = torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
    shrunk = (len(x) - 1) * covariance + covariance.trace().clamp(min=1e-12) * identity
    return means, counts.clamp(min=1) / len(x), shrunk


def discriminant(means: Tensor, shares: Tensor, shrunk: Tensor) -> tuple[Tensor, Tensor]:
    """w (C, e) and b (C,), centred over the classes, from their moments."""
    weight = means.shape[1] * torch.linalg.solve(shrunk, means.mT).mT
    bias = shares.log() - (weight * means).sum(-1) / 2
    return (weight - weight.mean(0)).float(), (bias - bias.mean()).float()
