"""Scores of predictions: accuracy, likelihood, calibration, selective prediction, outside images, diversity."""

from rebapl.evaluation.diversity import Diversity, measure_diversity
from rebapl.evaluation.outside import all_outside_scores, outside_scores
from rebapl.evaluation.scores import SCORES, base_novel_scores, scores
from rebapl.evaluation.tasks import Evaluation, evaluate, prediction_scores

__all__ = [
    "SCORES",
    "Diversity",
    "Evaluation",
    "all_outside_scores",
    "base_novel_scores",
    "evaluate",
    "measure_diversity",
    "outside_scores",
    "prediction_scores",
    "scores",
]
