"""Repulsion between samples: distances of feature clouds, the potential, the force, the memory of earlier samples.

Depends on nothing else of this package but its settings: use it in any training loop, see `Repulsion`.
"""

from rebapl.repulsion.clouds import Stored
from rebapl.repulsion.distances import DISTANCES, Distance, get_distance, register_distance, squared_distance
from rebapl.repulsion.energy import Energy
from rebapl.repulsion.force import FORCES, Absolute, Capped, Fading, Force, Normalised, Printed
from rebapl.repulsion.kick import kick
from rebapl.repulsion.memory import Memory
from rebapl.repulsion.mmd import MMD
from rebapl.repulsion.paired import Paired, weights
from rebapl.repulsion.potential import POTENTIALS, Inverse, Log, Potential
from rebapl.repulsion.repulsion import DISTANCE, FORCE, POTENTIAL, Repulsion, requires_dependence
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
