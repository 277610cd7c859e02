"""Step rules as torch optimizers, the cyclical schedule, the loops `Chain` and `SVGD`, and presets."""

from rebapl.learnable import Learnable
from rebapl.sampling.chain import Chain
from rebapl.sampling.diagnostics import NonFiniteError
from rebapl.sampling.loop import Drawing, Loop, Sample
from rebapl.sampling.presets import PRESETS, preset, preset_values, register_preset
from rebapl.sampling.schedule import CyclicalSchedule
from rebapl.sampling.settings import SAMPLERS, Adaptive, Inference
from rebapl.sampling.sghmc import SGHMC
from rebapl.sampling.sgld import SGLD
from rebapl.sampling.svgd import SVGD

LOOPS: dict[str, type[Loop]] = {**dict.fromkeys(SAMPLERS, Chain), "svgd": SVGD}
"""The loop that runs each kind of sampler. All loops take the same arguments and are driven as a `Loop`."""

__all__ = [
    "LOOPS",
    "PRESETS",
    "SGHMC",
    "SGLD",
    "SVGD",
    "Adaptive",
    "Chain",
    "CyclicalSchedule",
    "Drawing",
    "Inference",
    "Learnable",
    "Loop",
    "NonFiniteError",
    "Sample",
    "preset",
    "preset_values",
    "register_preset",
]
