"""GDA: a Gaussian discriminant on frozen features beside zero-shot, in closed form.

Wang et al., A Hard-to-Beat Baseline for Training-Free CLIP-Based Adaptation, 2024. The features of a class are taken to
be Gaussian with a mean of its own and one covariance for all; Bayes' rule then gives linear logits

    g_c(x) = α (x·w_c + b_c),   w_c = P μ_c,   b_c = log π_c − ½ μ_cᵀ P μ_c,   P = e ((N − 1) Σ̂ + tr(Σ̂) I)⁻¹,

with the class means μ_c, the shares π_c of the classes and the covariance Σ̂ of the N features around the means of their
classes; P is the shrunk inverse of Kubokawa and Srivastava. Centring g over the classes changes no probability, and
lets classes without images stand beside them.

The published code searches α on a validation set. Here α, and κ in front of the zero-shot logits, have the greatest
likelihood of the training images by cross-validation: each part of them is scored by the discriminant of the other
parts. If no class has two images, nothing says how far to trust the discriminant: α = 0 and κ = 1, which is zero-shot.
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

    def adopt(self, class_names: Sequence[str]) -> None:
        super().adopt(class_names)
        self.weight = self.found(len(class_names), self.encoder.joint_width)
        self.bias = self.found(len(class_names))

    def extra(self, features: Tensor) -> Tensor:
        return features @ self.weight.mT + self.bias

    @torch.no_grad()
    def see(self, features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        classes, kappa, alpha = len(self.owners), 1.0, 0.0
        folds = min(FOLDS, int(labels.bincount().max()))
        if folds > 1:
            part, held_out = parts(labels, folds), torch.zeros(len(labels), classes, device=features.device)
            for fold in range(folds):
                weight, bias = discriminant(features[part != fold], labels[part != fold], classes)
                held_out[part == fold] = features[part == fold] @ weight.mT + bias
            kappa, alpha, _ = blended(self.encoder.logits(features, self.text_features), held_out, labels)
        weight, bias = discriminant(features, labels, classes)
        self.text_weight.fill_(kappa)
        self.weight.copy_(alpha * weight)
        self.bias.copy_(alpha * bias)
        return features, labels


def parts(labels: Tensor, folds: int) -> Tensor:
    """The part (N,) of each image: those of a class are dealt in turn.

    >>> parts(torch.tensor([0, 0, 1, 0, 1]), 2)
    tensor([0, 1, 0, 0, 1])
    """
    same = labels[:, None] == labels[None]
    return same.tril(-1).sum(-1) % folds


def discriminant(features: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """w (C, e) and b (C,), centred over the classes. A class without images has the mean of all."""
    x = features.double()
    own = torch.nn.functional.one_hot(labels, classes).to(x)
    counts = own.sum(0)
    means = torch.where(counts[:, None] > 0, own.mT @ x / counts.clamp(min=1)[:, None], x.mean(0))
    around = x - means[labels]
    covariance = around.mT @ around / max(1, len(x) - 1)
    identity = torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
    shrunk = (len(x) - 1) * covariance + covariance.trace().clamp(min=1e-12) * identity
    weight = x.shape[1] * torch.linalg.solve(shrunk, means.mT).mT
    bias = (counts.clamp(min=1) / len(x)).log() - (weight * means).sum(-1) / 2
    return (weight - weight.mean(0)).float(), (bias - bias.mean()).float()
