"""A small record per step: tensors on the device, read when somebody asks."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from rebapl.repulsion import Repulsion
from rebapl.sampling.guard import total_norm
from rebapl.sampling.rule import Rule
from rebapl.sampling.sghmc import SGHMC


class Diagnostics:
    """Records, for some steps of any loop:

    * `loss`, and `gradient_norm`: ‖∇‖ of all that was back-propagated;
    * `kinetic_temperature`: mean p², corrected for the integrator (SGHMC);
    * `configurational_temperature`: N·⟨θ−θ₀, ∇L⟩/d, the virial, which averages to T at equilibrium;
    * `acceptance`: share of coordinates where the estimated gradient noise left room for injected noise;
    * `distance`, `force_norm`: d² to the nearest remembered sample, and the norms of a relative force, added up;
    * `lr`, `temperature` of the step.

    Call `before` between backward() and the optimizer's step, `after` between that and the schedule's.

    >>> theta = torch.nn.Parameter(torch.ones(2))
    >>> sampler, record = SGHMC([theta], lr=0.1, num_data=10), Diagnostics()
    >>> loss = theta.square().sum()
    >>> loss.backward()
    >>> record.before(0, sampler, loss); sampler.step(); record.after(sampler)
    >>> record.rows()[0]["loss"], record.rows()[0]["configurational_temperature"]
    (2.0, 20.0)
    """

    def __init__(self) -> None:
        self._records: list[dict[str, Any]] = []

    @torch.no_grad()
    def before(
        self, step: int, optimizer: torch.optim.Optimizer, loss: Tensor, repulsion: Repulsion | None = None
    ) -> None:
        group = optimizer.param_groups[0]
        # copies: what a captured step gives is overwritten by the next
        record: dict[str, Any] = {"step": step, "loss": loss.detach().clone(), "lr": _copy(group["lr"])}
        record["temperature"] = group.get("temperature", 0.0)
        grads = [p.grad for g in optimizer.param_groups for p in g["params"] if p.grad is not None]
        record["gradient_norm"] = total_norm(grads)
        if isinstance(optimizer, Rule):
            record["configurational_temperature"] = _virial(optimizer)
        if repulsion is not None and repulsion.last is not None:
            record["distance"] = repulsion.last.distance
            if repulsion.force.relative:
                record["force_norm"] = repulsion.last.norm
        self._records.append(record)

    @torch.no_grad()
    def after(self, optimizer: torch.optim.Optimizer) -> None:
        record = self._records[-1]
        if isinstance(optimizer, SGHMC):
            record["kinetic_temperature"] = optimizer.kinetic_temperature()
        if isinstance(optimizer, Rule):
            record["acceptance"] = optimizer.acceptance()

    def rows(self) -> list[dict[str, float]]:
        """All records as numbers. This waits for the device."""
        return [{name: float(value) for name, value in record.items()} for record in self._records]

    def clear(self) -> None:
        self._records = []


def _virial(optimizer: Rule) -> Tensor:
    total, count = [], 0
    for group in optimizer.param_groups:
        params = [p for p in group["params"] if p.grad is not None]
        for p, g in zip(params, optimizer.gradients(group, params), strict=True):
            center = optimizer.state[p].get("center", 0.0)
            total.append(((p - center) * g).sum() * group["num_data"])
            count += p.numel()
    if not total:
        return torch.tensor(math.nan)
    return torch.stack([x.to(total[0].device) for x in total]).sum() / count


def _copy(value: float | Tensor) -> float | Tensor:
    return value.clone() if isinstance(value, Tensor) else value
