"""Repulsion between samples: distances of feature clouds, the potential, the memory of earlier samples.

Depends on nothing else of this package: use it in any training loop, see `Repulsion`.
"""

from rebapl.repulsion.clouds import Stored
from rebapl.repulsion.distances import DISTANCES, Distance, squared_distance
from rebapl.repulsion.kick import kick
from rebapl.repulsion.paired import weights
from rebapl.repulsion.potential import POTENTIALS, Potential
from rebapl.repulsion.repulsion import Repulsion, Turn, requires_dependence
from rebapl.repulsion.stein import median_bandwidth, stein_direction, stein_feature_direction

__all__ = [
    "DISTANCES",
    "POTENTIALS",
    "Distance",
    "Potential",
    "Repulsion",
    "Stored",
    "Turn",
    "kick",
    "median_bandwidth",
    "requires_dependence",
    "squared_distance",
    "stein_direction",
    "stein_feature_direction",
    "weights",
]
