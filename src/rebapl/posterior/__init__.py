"""Posteriors: samples in memory and on disk, and predictions of all samples together, with their uncertainty."""

from rebapl.posterior.fitting import choose_conformal, choose_threshold, has_collapsed, stacking_weights
from rebapl.posterior.posterior import Posterior, load_posterior
from rebapl.posterior.prediction import UNCERTAINTIES, Conformal, Prediction, Threshold, Top
from rebapl.posterior.storage import save_posterior

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
