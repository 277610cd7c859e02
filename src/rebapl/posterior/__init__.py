"""Posteriors: samples in memory and on disk, and predictions by all samples together, with their uncertainty."""

from rebapl.posterior.conformal import Conformal, choose_conformal, choose_cross_conformal, cross_conformal_sets
from rebapl.posterior.fitting import choose_threshold, has_collapsed, stacking_weights
from rebapl.posterior.loading import load_posterior
from rebapl.posterior.outside import OUTSIDE_SCORES, choose_outside
from rebapl.posterior.posterior import Posterior
from rebapl.posterior.prediction import UNCERTAINTIES, Outside, Prediction, Threshold, Top
from rebapl.posterior.storage import save_posterior

__all__ = [
    "OUTSIDE_SCORES",
    "UNCERTAINTIES",
    "Conformal",
    "Outside",
    "Posterior",
    "Prediction",
    "Threshold",
    "Top",
    "choose_conformal",
    "choose_cross_conformal",
    "choose_outside",
    "choose_threshold",
    "cross_conformal_sets",
    "has_collapsed",
    "load_posterior",
    "save_posterior",
    "stacking_weights",
]
