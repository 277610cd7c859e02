"""Repulsion between samples: distances of feature clouds, the potential, the force, the memory of earlier samples.

Of the rest of the package it uses only the settings, the plugins, the errors and the compilation, so it works in any
training loop: see `Repulsion`.
"""

from rebapl.repulsion import divergences, sinkhorn, wasserstein  # noqa: F401  (importing them registers distances)
from rebapl.repulsion.distances import DISTANCES, Distance, Stored, register_distance, squared_distance
from rebapl.repulsion.force import Fading, Inverse
from rebapl.repulsion.mmd import MMD
from rebapl.repulsion.parameters import kick, weights
from rebapl.repulsion.repulsion import Repulsion, RepulsionSettings, requires_dependence
from rebapl.repulsion.stein import stein_direction

__all__ = [
    "DISTANCES",
    "MMD",
    "Distance",
    "Fading",
    "Inverse",
    "Repulsion",
    "RepulsionSettings",
    "Stored",
    "kick",
    "register_distance",
    "requires_dependence",
    "squared_distance",
    "stein_direction",
    "weights",
]
