"""Scores of predictions: accuracy, likelihood, calibration, selective prediction, outside images, diversity."""

from rebapl.evaluation.diversity import (
    Diversity,
    disagreement_matrix,
    measure_diversity,
    wasserstein_matrix,
)
from rebapl.evaluation.outside import all_outside_scores, outside_scores
from rebapl.evaluation.result import Evaluation
from rebapl.evaluation.scores import (
    SCORES,
    adaptive_calibration_error,
    area_under_risk_coverage,
    base_novel_accuracies,
    base_novel_scores,
    brier,
    scores,
)
from rebapl.evaluation.tasks import evaluate, prediction_scores
from rebapl.numbers import effective_samples, harmonic_mean

__all__ = [
    "SCORES",
    "Diversity",
    "Evaluation",
    "adaptive_calibration_error",
    "all_outside_scores",
    "area_under_risk_coverage",
    "base_novel_accuracies",
    "base_novel_scores",
    "brier",
    "disagreement_matrix",
    "effective_samples",
    "evaluate",
    "harmonic_mean",
    "measure_diversity",
    "outside_scores",
    "prediction_scores",
    "scores",
    "wasserstein_matrix",
]
