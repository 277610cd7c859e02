"""GDA: a Gaussian discriminant on frozen features beside zero-shot, in closed form.

Wang et al., A Hard-to-Beat Baseline for Training-Free CLIP-Based Adaptation, 2024. The features of a class are taken to
be Gaussian with a mean of its own and one covariance for all; Bayes' rule then gives linear logits

    g_c(x) = α (x·w_c + b_c),   w_c = P μ_c,   b_c = log π_c − ½ μ_cᵀ P μ_c,   P = e ((N − 1) Σ̂ + tr(Σ̂) I)⁻¹,

with the class means μ_c, the shares π_c of the classes and the covariance Σ̂ of the N features around the means of their
classes; P is the shrunk inverse of Kubokawa and Srivastava. Centring g over the classes changes no probability, and
lets classes without images stand beside them.

The published code searches α on a validation set. Here α, and κ in front of the zero-shot logits, have the greatest
likelihood of the training images by cross-validation: each part of them is scored by the discriminant of the other
parts. Parts that leave one image of each class have no covariance: they take the variance of the whole, the same in all
directions. If no class has two images, nothing says how far to trust the discriminant: α = 0 and κ = 1, which is
zero-shot.

With the covariance taken as known and a flat prior, the posterior of the means is Gaussian and exact,

    μ_c | images ~ N(μ̂_c, P⁻¹ / n_c),

around the mean μ̂_c of the n_c features of the class. `laplace` draws from it: each sample is the discriminant of drawn
means, with the same P, π, α and κ. The covariance is not drawn: an inverse Wishart posterior grows surer with N, and
the shrunk P has no such reading.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rebapl.learners.head import Head, blended
from rebapl.learners.registry import register
from rebapl.settings import Settings

FOLDS = 5
"""Parts of the training images; fewer if every class has fewer images."""


class GDAConfig(Settings):
    """There is nothing to set."""


@register("gda", GDAConfig)
class GDA(Head):
    config: GDAConfig
    alpha = 0.0
    """What `see` found; the weight and the bias have it already."""

    def adopt(self, class_names: Sequence[str]) -> None:
        super().adopt(class_names)
        self.weight = self.found(len(class_names), self.encoder.joint_width)
        self.bias = self.found(len(class_names))

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
        root, drawn = torch.linalg.cholesky(shrunk / means.shape[1]), []
        deviation = (shares * len(labels)).rsqrt()[:, None]
        for _ in range(count):
            noise = torch.randn(means.shape, generator=stream, dtype=torch.float64).to(means)
            weight, bias = discriminant(means + deviation * noise @ root.mT, shares, shrunk)
            drawn.append({"weight": (self.alpha * weight).cpu(), "bias": (self.alpha * bias).cpu()})
        return drawn


def parts(labels: Tensor, folds: int) -> Tensor:
    """The part (N,) of each image: those of a class are dealt in turn.

    >>> parts(torch.tensor([0, 0, 1, 0, 1]), 2)
    tensor([0, 1, 0, 0, 1])
    """
    same = labels[:, None] == labels[None]
    return same.tril(-1).sum(-1) % folds


def moments(features: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """The means (C, e), the shares (C,) and the shrunk sum of squares e·P⁻¹ (e, e), float64.

    A class without images has the mean of all, as if that were one image of it.
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
