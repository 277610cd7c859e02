"""Scores of predictions: accuracy, likelihood, calibration, selective prediction, outside images, diversity."""

from rebapl.evaluation.diversity import Diversity
from rebapl.evaluation.outside import all_outside_scores
from rebapl.evaluation.scores import SCORES, base_novel_scores
from rebapl.evaluation.tasks import evaluate

__all__ = ["SCORES", "Diversity", "all_outside_scores", "base_novel_scores", "evaluate"]
