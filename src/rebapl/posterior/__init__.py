"""Posteriors: samples in memory and on disk, and predictions of all samples together, with their uncertainty."""

from rebapl.posterior.abstention import choose_threshold
from rebapl.posterior.conformal import choose_conformal
from rebapl.posterior.posterior import Posterior, load_posterior, save_posterior
from rebapl.posterior.prediction import UNCERTAINTIES, Conformal, Prediction, Threshold, Top
from rebapl.posterior.stacking import has_collapsed, stacking_weights

__all__ = [
    "UNCERTAINTIES",
    "Conformal",
    "Posterior",
    "Prediction",
    "Threshold",
    "Top",
    "choose_conformal",
    "choose_threshold",
    "has_collapsed",
    "load_posterior",
    "save_posterior",
    "stacking_weights",
]
