"""Posteriors: samples in memory and on disk, and predictions by all samples together, with their uncertainty."""

from rebapl.posterior.fitting import has_collapsed
from rebapl.posterior.loading import load_posterior
from rebapl.posterior.posterior import Posterior
from rebapl.posterior.prediction import UNCERTAINTIES, Prediction
from rebapl.posterior.storage import save_posterior

__all__ = ["UNCERTAINTIES", "Posterior", "Prediction", "has_collapsed", "load_posterior", "save_posterior"]
