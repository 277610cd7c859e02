"""Scores of a posterior's prediction: of all samples together, and of each alone."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from rebapl.evaluation.diversity import disagreement_matrix, mean_of_pairs
from rebapl.evaluation.scores import scores
from rebapl.posterior import Prediction


def prediction_scores(prediction: Prediction, labels: Tensor) -> dict[str, Any]:
    """`scores` of the averaged probabilities; the mean entropies and mutual information in nats; the mean share, in
    percent, of images that two different samples answer differently; and in `per_sample` the scores of each."""
    answers = prediction.per_sample.argmax(-1)
    return {
        **scores(prediction.probabilities, labels),
        "entropy": prediction.predictive_entropy.mean().item(),
        "expected_entropy": prediction.expected_entropy.mean().item(),
        "mutual_information": prediction.mutual_information.mean().item(),
        "disagreement": 100 * mean_of_pairs(disagreement_matrix(answers)),
        "images": len(prediction),
        "per_sample": [scores(alone, labels) for alone in prediction.per_sample],
    }
