"""Step rules as torch optimizers, the cyclical schedule, the one chain loop, presets."""

from rebapl.sampling.schedule import CyclicalSchedule
from rebapl.sampling.sghmc import SGHMC
from rebapl.sampling.sgld import SGLD

__all__ = ["SGHMC", "SGLD", "CyclicalSchedule"]
