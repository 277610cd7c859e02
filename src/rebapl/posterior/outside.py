"""Images that belong to none of the classes: scores that find them, and a threshold with a promise.

Every score is higher for images that are less likely to belong to the classes. The `UNCERTAINTIES` of a prediction are
such scores. Two more are computed from the logits z_s of the samples, with weights ω and the backbone's logit scale a,

    energy         −Σ_s ω_s log Σ_c exp z_s,c                                  (Liu et al., 2020, at temperature 1)
    mcm            1 − max_c softmax_c(Σ_s ω_s z_s,c / a)                      (Ming et al., 2022, at temperature 1)

and two from the frozen normalised image features f, by comparing an image with the training images:

    neighbours     ‖f − f_(k)‖, f_(k) the k-th nearest of a training image; k = 3 is ours   (Sun et al., 2022)
    mahalanobis    min_c (f − μ_c)ᵀ Σ⁻¹ (f − μ_c)                                           (Lee et al., 2018)

μ_c are the means of the classes, and Σ is the covariance around these means, shared by all classes. It is shrunk after
Ledoit and Wolf (2004), because there are far fewer training images than features; the shrinkage is ours. 10⁻⁶ of the
mean variance is added to its diagonal, so that Σ can always be inverted.
`energy` and `mcm` do not depend on the temperature of the probabilities. They need logits of a single view of an image
that are scaled products of features (`Learner.logits_are_products`): the energy of log-probabilities, for example, is 0
for every image.

**The threshold** is an order statistic. Let s_1 … s_n be the scores of n held-out images of the classes, and
k = ⌈(n + 1)(1 − rate)⌉:

    value = the k-th smallest of s_1 … s_n,        "none of these" where s(x) > value

If a new image of the classes is drawn as the held-out ones were, it is called "none of these" with probability ≤ rate,
over the draw of all n + 1 images. This holds for any n and with ties. There is no promise about how many images of
other things are found.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from rebapl.errors import UserError, unknown
from rebapl.posterior.conformal import rank_of
from rebapl.posterior.prediction import UNCERTAINTIES, Outside, Prediction

NEIGHBOURS = 3
"""k, or the number of training images if there are fewer."""

RATE = 0.05
FLOOR = 1e-6

Bank = Mapping[str, Tensor]
"""The tensors, computed from the training images, that a feature score compares new images with."""


@dataclass(frozen=True)
class FeatureScore:
    """A score of image features. `keep` computes its bank from the features (M, e) and labels (M,) of the training
    images, and `score` maps features (N, e) and this bank to scores (N,)."""

    keep: Callable[[Tensor, Tensor], dict[str, Tensor]]
    score: Callable[[Tensor, Bank], Tensor]


def logit_scores(logits: Tensor, weights: Tensor, scale: float) -> dict[str, Tensor]:
    """The scores (N,) of samples' logits (S, N, C), by name.

    >>> scores = logit_scores(torch.tensor([[[100.0, 80.0]]]), torch.ones(1), scale=100.0)
    >>> {name: round(score.item(), 3) for name, score in scores.items()}  # 1 − 1 / (1 + e^(0.8 − 1))
    {'energy': -100.0, 'mcm': 0.45}
    """
    cosines = torch.einsum("s,snc->nc", weights, logits) / scale
    return {"energy": -(weights @ logits.logsumexp(-1)), "mcm": 1 - cosines.softmax(-1).amax(-1)}


def _keep_features(features: Tensor, labels: Tensor) -> dict[str, Tensor]:  # noqa: ARG001 (classes do not matter)
    return {"features": features.float().contiguous()}


def _to_neighbours(features: Tensor, bank: Bank) -> Tensor:
    distances = torch.cdist(features.double(), bank["features"].double())
    return distances.kthvalue(min(NEIGHBOURS, distances.shape[1]), dim=1).values.float()


def _keep_gaussians(features: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """The means (C, e) of the classes that have images, and L (e, e) with L Lᵀ = Σ⁻¹."""
    from sklearn.covariance import ledoit_wolf  # late: scikit-learn is slow to import

    features = features.double()
    classes, index = labels.unique(return_inverse=True)
    means = torch.stack([features[index == number].mean(0) for number in range(len(classes))])
    around = features - means[index]
    if not bool((around.abs() > 1e-9).any()):
        raise UserError("mahalanobis needs two different training images of at least one class: take another score")
    covariance = torch.from_numpy(ledoit_wolf(around.numpy(), assume_centered=True)[0])
    covariance += FLOOR * covariance.diagonal().mean() * torch.eye(len(covariance), dtype=covariance.dtype)
    root = torch.linalg.cholesky(torch.linalg.inv(covariance))
    return {"means": means.float().contiguous(), "root": root.float().contiguous()}


def _to_gaussians(features: Tensor, bank: Bank) -> Tensor:
    root = bank["root"].double()
    distances = torch.cdist(features.double() @ root, bank["means"].double() @ root)
    return distances.square().amin(1).float()


FEATURE_SCORES = {
    "neighbours": FeatureScore(_keep_features, _to_neighbours),
    "mahalanobis": FeatureScore(_keep_gaussians, _to_gaussians),
}

LOGIT_SCORES = ("energy", "mcm")

OUTSIDE_SCORES = (*UNCERTAINTIES, *LOGIT_SCORES, *FEATURE_SCORES)
"""The names of all scores."""


def check_outside(by: str, rate: float, images: int | None, products: bool = True) -> None:
    """Refuse an unknown score, and a rate that is not between 0 and 1 or needs more held-out images than these.

    `images` is None if their number is not known yet. If `products` is false, the logits are not scaled products of
    features, and `energy` and `mcm` are refused, too.
    """
    if by not in OUTSIDE_SCORES:
        raise unknown("outside score", by, OUTSIDE_SCORES)
    if by in LOGIT_SCORES and not products:
        others = ", ".join(name for name in OUTSIDE_SCORES if name not in LOGIT_SCORES)
        raise UserError(
            f"{by} needs logits that are scaled cosines, and those of this method, or the mean over several views of "
            f"an image, are not: take another score ({others})"
        )
    if not 0 < rate < 1:
        raise UserError(f"rate = {rate}: the share of false alarms is above 0 and below 1")
    if images is not None and rank_of(1 - rate, images) > images:
        needed = math.ceil((1 - rate) / rate - 1e-9)
        raise UserError(
            f"a false-alarm rate of {rate:g} needs at least {needed} held-out images, and there are {images}: with "
            "fewer no threshold can promise it; allow a higher rate"
        )


def choose_outside(prediction: Prediction, by: str = "energy", rate: float = RATE) -> Outside:
    """Choose the threshold of a score at a false-alarm rate, on held-out images of the classes."""
    check_outside(by, rate, len(prediction))
    value = prediction.outside_score(by).sort().values[rank_of(1 - rate, len(prediction)) - 1]
    names = tuple(prediction.class_names)
    return Outside(by, float(value), rate, prediction.average, names, images=len(prediction))
