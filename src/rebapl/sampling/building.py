"""From settings to the objects that carry them out: the optimizers and the schedule that drives them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rebapl.sampling.schedule import CyclicalSchedule
from rebapl.sampling.settings import Inference
from rebapl.sampling.sghmc import SGHMC
from rebapl.sampling.sgld import SGLD


def build_optimizer(
    inference: Inference, parameters: list[Tensor], num_data: int, generator: torch.Generator
) -> torch.optim.Optimizer:
    """The step rule that `inference.sampler` names."""
    if inference.sampler == "adamw":
        return torch.optim.AdamW(parameters, lr=inference.lr, weight_decay=inference.weight_decay)
    shared: dict[str, Any] = {
        "lr": inference.lr,
        "num_data": num_data,
        "temperature": inference.temperature,
        "weight_decay": inference.weight_decay,
        "prior_std": inference.prior_std,
        "center": inference.center,
        "gradient_noise": inference.gradient_noise,
        "generator": generator,
    }
    if inference.sampler == "sgld":
        return SGLD(parameters, **shared)
    return SGHMC(parameters, momentum=inference.momentum, integrator=inference.integrator, **shared)


def build_schedule(
    inference: Inference,
    parameters: list[Tensor],
    num_data: int,
    steps_per_epoch: int,
    generator: torch.Generator,
) -> CyclicalSchedule:
    """The schedule of a whole run: chains side by side are cycles of their own, one after the other."""
    burner = None
    if inference.burn_in > 0:
        lr = inference.lr if inference.burn_in_lr is None else inference.burn_in_lr
        burner = torch.optim.AdamW(parameters, lr=lr, weight_decay=inference.weight_decay)
    rounds = inference.cycles * inference.chains
    return CyclicalSchedule(
        build_optimizer(inference, parameters, num_data, generator),
        inference.epochs * steps_per_epoch,
        cycles=rounds,
        exploration=inference.exploration,
        samples_per_cycle=inference.samples_per_cycle,
        floor=inference.floor,
        granularity=inference.granularity,
        steps_per_epoch=steps_per_epoch,
        warmup_steps=inference.warmup_epochs * steps_per_epoch,
        warmup_lr=inference.warmup_lr,
        warmup_cycles=rounds if inference.restart == "cold" else inference.chains,
        keep_momentum=inference.keep_momentum,
        burn_in=inference.burn_in,
        burn_in_optimizer=burner,
    )
