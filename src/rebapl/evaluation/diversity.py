"""How different the samples of a posterior are: in their features and in their answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rebapl.numbers import effective_samples, spread
from rebapl.posterior import Posterior
from rebapl.repulsion import squared_distance

IMAGES = 100
"""Test images that the distances are measured on, as in the paper."""


@dataclass(frozen=True)
class Diversity:
    """How much S samples differ: `distance` and `disagreement` (S, S) for each pair, and the numbers below.

    `distance` is Wasserstein-2 (not squared) between the clouds that two samples have in the feature space `space`;
    `disagreement` is the share of images that two samples answer differently. Both are zero on the diagonal.
    """

    space: str
    images: int
    distance: Tensor
    disagreement: Tensor
    weights: Tensor

    @property
    def mean_distance(self) -> float:
        """Over different pairs; 0 for one sample."""
        return mean_of_pairs(self.distance)

    @property
    def mean_disagreement(self) -> float:
        """Over different pairs; 0 for one sample."""
        return mean_of_pairs(self.disagreement)

    @property
    def by_weights(self) -> float:
        """The effective number of samples by their weights alone: 1/Σ ω²."""
        return effective_samples(self.weights)

    @property
    def by_answers(self) -> float:
        """The effective number of samples by how alike their answers are; see `effective_samples`."""
        return effective_samples(self.weights, 1 - self.disagreement)


def diversity_record(diversity: Diversity) -> dict[str, Any]:
    """The diversity as plain values, for a JSON file."""
    return {
        "space": diversity.space,
        "images": diversity.images,
        "mean_distance": diversity.mean_distance,
        "mean_disagreement": diversity.mean_disagreement,
        "effective_by_weights": diversity.by_weights,
        "effective_by_answers": diversity.by_answers,
        "distance": diversity.distance.tolist(),
        "disagreement": diversity.disagreement.tolist(),
    }


def measure_diversity(posterior: Posterior, views: Tensor, space: str | None = None) -> Diversity:
    """The diversity of the samples on at most 100 of the test-time views, uint8 (N, 3, H, W), spread evenly over them.

    `space` defaults to the one in which the method repels: `image` for methods that prompt the image tower, `text` (a
    point per class) for those that learn text only.
    """
    views = views[spread(len(views), IMAGES)]
    space = space or posterior.learner.repels_in or "image"
    clouds, logits = posterior.passes.clouds(views, space, "logits")
    return Diversity(
        space=space,
        images=len(views),
        distance=wasserstein_matrix(clouds),
        disagreement=disagreement_matrix(logits.argmax(-1)),
        weights=posterior.weights,
    )


def wasserstein_matrix(clouds: Tensor | Sequence[Tensor]) -> Tensor:
    """W₂ between clouds (S, n, d), each a uniform distribution over its points; (S, S), symmetric."""
    count = len(clouds)
    matrix = torch.zeros(count, count)
    for i in range(count):
        for j in range(i):
            squared = squared_distance(clouds[i], clouds[j], "wasserstein")
            matrix[i, j] = matrix[j, i] = squared.clamp_min(0).sqrt()
    return matrix


def disagreement_matrix(answers: Tensor) -> Tensor:
    """The share of images that two samples answer differently, (S, S), from answers (S, N)."""
    return (answers[:, None] != answers[None]).double().mean(-1).float()


def total_variation_matrix(probabilities: Tensor) -> Tensor:
    """½ Σ_c |p_s − p_t|, averaged over images, between samples' probabilities (S, N, C); (S, S)."""
    count = len(probabilities)
    matrix = torch.zeros(count, count)
    for first in range(count):
        distances = (probabilities[first] - probabilities[:first]).abs().sum(-1).mean(-1) / 2
        matrix[first, :first] = matrix[:first, first] = distances
    return matrix


def mean_of_pairs(matrix: Tensor) -> float:
    """The mean of a matrix (S, S) without its diagonal; 0 for S = 1."""
    count = len(matrix)
    return 0.0 if count == 1 else ((matrix.double().sum() - matrix.double().trace()) / (count * (count - 1))).item()
