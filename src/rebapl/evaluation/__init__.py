"""Scores of predictions: accuracy, likelihood, calibration."""

from rebapl.evaluation.scores import base_novel_scores, harmonic_mean, scores

__all__ = ["base_novel_scores", "harmonic_mean", "scores"]
