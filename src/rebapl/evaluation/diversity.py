"""How different the samples of a posterior are: in their features and in their answers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rebapl.numbers import effective_samples, spread
from rebapl.posterior import Posterior
from rebapl.repulsion import squared_distance
from rebapl.settings import Record

IMAGES = 100
"""The largest number of test images on which samples are compared, as in the paper."""


class Diversity(Record):
    """How much S samples differ: `distance` and `disagreement` (S, S) of each pair, and their means over pairs.

    `distance` is Wasserstein-2 (not squared) between the clouds of two samples in the feature space `space`.
    `disagreement` is the share of images that two samples answer differently. Both are zero on the diagonal.
    `effective_by_weights` is the effective number of samples by their weights alone, 1/Σ ω², and `effective_by_answers`
    also takes into account how often samples answer alike; see `effective_samples`.
    """

    space: str
    images: int
    mean_distance: float
    mean_disagreement: float
    effective_by_weights: float
    effective_by_answers: float
    distance: list[list[float]]
    disagreement: list[list[float]]


def measure_diversity(posterior: Posterior, views: Tensor) -> Diversity:
    """The diversity of the samples on at most 100 of the test-time views, uint8 (N, 3, H, W), which are spread evenly.

    The space is that in which the method repels: `image` for methods that prompt the image tower, `text` (a point per
    class) for those that learn text only.
    """
    views = views[spread(len(views), IMAGES)]
    space = posterior.learner.repels_in or "image"
    clouds, logits = posterior.passes.clouds(views, space, "logits")
    distance, disagreement = wasserstein_matrix(clouds), disagreement_matrix(logits.argmax(-1))
    return Diversity(
        space=space,
        images=len(views),
        mean_distance=mean_of_pairs(distance),
        mean_disagreement=mean_of_pairs(disagreement),
        effective_by_weights=effective_samples(posterior.weights),
        effective_by_answers=effective_samples(posterior.weights, 1 - disagreement),
        distance=distance.tolist(),
        disagreement=disagreement.tolist(),
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


def mean_of_pairs(matrix: Tensor) -> float:
    """The mean of a matrix (S, S) without its diagonal; 0 for S = 1."""
    count = len(matrix)
    return 0.0 if count == 1 else ((matrix.double().sum() - matrix.double().trace()) / (count * (count - 1))).item()
