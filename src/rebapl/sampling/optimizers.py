"""From settings to the optimizers that carry them out, and to the schedule that drives these through the cycles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rebapl.sampling.rule import prior_decay
from rebapl.sampling.schedule import CyclicalSchedule, stage_steps
from rebapl.sampling.settings import (
    SCHEDULED,
    AdamWSettings,
    Cold,
    Cosine,
    Inference,
    LangevinSettings,
    SGDSettings,
    SGHMCSettings,
    Warm,
)
from rebapl.sampling.sghmc import SGHMC
from rebapl.sampling.sgld import SGLD


class CenteredAdamW(torch.optim.AdamW):
    """AdamW whose weight decay pulls to where the parameters were when it was built: θ ← θ − lr·wd·(θ − θ₀) − …"""

    def __init__(self, params: Sequence[Tensor], lr: float, weight_decay: float) -> None:
        super().__init__(params, lr=lr, weight_decay=weight_decay)
        self._centers = [p.detach().clone() for p in params]

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """AdamW's step, which decays towards zero, and the centre's share of the decay beside it."""
        loss = super().step(closure)
        group = self.param_groups[0]
        for p, center in zip(group["params"], self._centers, strict=True):
            if p.grad is not None:
                p.add_(center, alpha=float(group["lr"]) * group["weight_decay"])
        return loss

    def state_dict(self) -> dict[str, Any]:
        """AdamW's, and the centres: a run that is resumed elsewhere is pulled to where the first one began."""
        return {**super().state_dict(), "centers": list(self._centers)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The inverse of `state_dict`."""
        super().load_state_dict(state_dict)
        self._centers = [
            center.to(p) for center, p in zip(state_dict["centers"], self.param_groups[0]["params"], strict=True)
        ]


def build_optimizer(
    inference: Inference, parameters: list[Any], num_data: int, generator: torch.Generator
) -> torch.optim.Optimizer:
    """The step rule that `inference.sampler` names. SGD is SGHMC at temperature 0, which is the same step."""
    sampler = inference.sampler
    own: dict[str, Any] = {name: getattr(sampler, name) for name in type(sampler).model_fields if name not in SCHEDULED}
    if isinstance(sampler, AdamWSettings):
        return torch.optim.AdamW(parameters, **own)
    if isinstance(sampler, SGDSettings):
        return SGHMC(parameters, **own, num_data=num_data, temperature=0.0)
    rule = SGHMC if isinstance(sampler, SGHMCSettings) else SGLD
    return rule(parameters, **own, num_data=num_data, generator=generator)


def build_burn_in(sampler: LangevinSettings, parameters: list[Any], num_data: int) -> torch.optim.Optimizer:
    """The AdamW of the first part of each cycle, with the sampler's prior as its decoupled weight decay."""
    decay = prior_decay(sampler.weight_decay, sampler.prior_std, num_data)
    if sampler.center == "init":
        return CenteredAdamW(parameters, sampler.lr, decay)
    return torch.optim.AdamW(parameters, lr=sampler.lr, weight_decay=decay)


def build_schedule(
    inference: Inference,
    parameters: list[Any],
    num_data: int,
    steps_per_epoch: int,
    generator: torch.Generator,
    optimizer: torch.optim.Optimizer | None = None,
) -> CyclicalSchedule:
    """The schedule of a whole run: chains side by side are cycles of their own, one after the other."""
    sampler, curve, warmup, restart = inference.sampler, inference.curve, inference.warmup, inference.restart
    langevin = sampler if isinstance(sampler, LangevinSettings) else None
    exploration, marks = 1.0 if langevin is None else langevin.exploration, inference.samples_per_cycle
    if (swag := inference.swag) is not None:  # the marks of the schedule are its snapshots
        shortest = min(inference.epochs, inference.first_epochs or inference.epochs) * steps_per_epoch
        stage = shortest - stage_steps(swag.start, shortest)
        exploration, marks = swag.start, min(swag.snapshots, stage)
    rounds = inference.cycles * inference.chains
    return CyclicalSchedule(
        optimizer or build_optimizer(inference, parameters, num_data, generator),
        inference.epochs * steps_per_epoch,
        cycles=rounds,
        exploration=exploration,
        samples_per_cycle=marks,
        first_steps=None if inference.first_epochs is None else inference.first_epochs * steps_per_epoch,
        first_cycles=inference.chains,
        floor=curve.floor if isinstance(curve, Cosine) else 1.0,
        granularity=curve.every if isinstance(curve, Cosine) else "step",
        steps_per_epoch=steps_per_epoch,
        warmup_steps=0 if warmup is None else warmup.epochs * steps_per_epoch,
        warmup_lr=0.0 if warmup is None else warmup.lr,
        warmup_cycles=rounds if isinstance(restart, Cold) else inference.chains,
        keep_momentum=isinstance(restart, Warm) and restart.keep_momentum,
        burn_in=0.0 if langevin is None else langevin.burn_in * langevin.exploration,
        burn_in_optimizer=build_burn_in(langevin, parameters, num_data) if langevin and langevin.burn_in else None,
    )
