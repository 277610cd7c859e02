"""Samples in memory and on disk; prediction by all of them together."""

from rebapl.posterior.posterior import Posterior
from rebapl.posterior.storage import load_posterior, save_posterior

__all__ = ["Posterior", "load_posterior", "save_posterior"]
