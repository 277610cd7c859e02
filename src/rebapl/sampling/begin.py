"""The run that settings ask for."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from rebapl.errors import UserError
from rebapl.sampling.chain import Chain
from rebapl.sampling.sample import Batches
from rebapl.sampling.settings import Inference
from rebapl.sampling.svgd import SVGD


def begin(
    learner: Any,
    inference: Inference,
    batches: Batches,
    *,
    held_out: tuple[Tensor, Tensor | None] | None = None,
    record_every: int = 0,
    **arguments: Any,
) -> Chain | SVGD:
    """A `Chain`, or an `SVGD` where the sampler is that; arguments as `Chain`'s.

    Both have `step()`, `run()`, `done`, `samples`, `steps_done`, `steps_in_all`, `last_loss`, `state_dict()` and
    `load_state_dict()`.
    """
    if inference.sampler != "svgd":
        return Chain(learner, inference, batches, held_out=held_out, record_every=record_every, **arguments)
    if inference.adaptive is not None:
        raise UserError("svgd runs one cycle: adaptive cycles do not apply, leave `adaptive` out")
    return SVGD(learner, inference, batches, **arguments)
