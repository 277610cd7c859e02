"""Repulsion between samples: distances of feature clouds, the potential, the force, the memory of earlier samples.

Depends on nothing else of this package but its settings: use it in any training loop, see `Repulsion`.
"""

from rebapl.repulsion.distances import DISTANCES, Distance, Stored, get_distance, register_distance, squared_distance
from rebapl.repulsion.energy import Energy
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
    Potential,
    Printed,
)
from rebapl.repulsion.memory import Memory
from rebapl.repulsion.mmd import MMD
from rebapl.repulsion.paired import Paired
from rebapl.repulsion.parameters import kick, weights
from rebapl.repulsion.repulsion import (
    DISTANCE,
    FORCE,
    POTENTIAL,
    Repulsion,
    RepulsionSettings,
    requires_dependence,
)
from rebapl.repulsion.sinkhorn import Sinkhorn
from rebapl.repulsion.sliced import Sliced
from rebapl.repulsion.stein import median_bandwidth, stein_direction, stein_feature_direction
from rebapl.repulsion.wasserstein import Wasserstein

__all__ = [
    "DISTANCE",
    "DISTANCES",
    "FORCE",
    "FORCES",
    "MMD",
    "POTENTIAL",
    "POTENTIALS",
    "Absolute",
    "Capped",
    "Distance",
    "Energy",
    "Fading",
    "Force",
    "Inverse",
    "Log",
    "Memory",
    "Normalised",
    "Paired",
    "Potential",
    "Printed",
    "Repulsion",
    "RepulsionSettings",
    "Sinkhorn",
    "Sliced",
    "Stored",
    "Wasserstein",
    "get_distance",
    "kick",
    "median_bandwidth",
    "register_distance",
    "requires_dependence",
    "squared_distance",
    "stein_direction",
    "stein_feature_direction",
    "weights",
]
