"""Repulsion between samples: distances of feature clouds, the potential, the force, the memory of earlier samples.

Of the rest of the package it uses only the settings, the plugins, the errors and the compilation, so it works in any
training loop: see `Repulsion`.
"""

from rebapl.repulsion.distances import DISTANCES, Distance, Paired, Stored, register_distance, squared_distance
from rebapl.repulsion.divergences import JensenShannon, KullbackLeibler
from rebapl.repulsion.force import (
    FORCES,
    POTENTIALS,
    Absolute,
    Capped,
    Fading,
    Force,
    Inverse,
    Log,
    Normalised,
    Printed,
)
from rebapl.repulsion.mmd import MMD, Energy
from rebapl.repulsion.parameters import kick, weights
from rebapl.repulsion.repulsion import Repulsion, RepulsionSettings, requires_dependence
from rebapl.repulsion.sinkhorn import Sinkhorn
from rebapl.repulsion.stein import median_bandwidth, stein_direction, stein_feature_direction
from rebapl.repulsion.wasserstein import Sliced, Wasserstein

__all__ = [
    "DISTANCES",
    "FORCES",
    "MMD",
    "POTENTIALS",
    "Absolute",
    "Capped",
    "Distance",
    "Energy",
    "Fading",
    "Force",
    "Inverse",
    "JensenShannon",
    "KullbackLeibler",
    "Log",
    "Normalised",
    "Paired",
    "Printed",
    "Repulsion",
    "RepulsionSettings",
    "Sinkhorn",
    "Sliced",
    "Stored",
    "Wasserstein",
    "kick",
    "median_bandwidth",
    "register_distance",
    "requires_dependence",
    "squared_distance",
    "stein_direction",
    "stein_feature_direction",
    "weights",
]
