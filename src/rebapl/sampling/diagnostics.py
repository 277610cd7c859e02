"""Records of a run's steps, and a guard against numbers that are not finite.

Both are stored on the device, so that a step does not wait for it, and are copied to the CPU when they are read.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from rebapl.errors import UserError
from rebapl.repulsion import Repulsion
from rebapl.repulsion.parameters import total_norm
from rebapl.sampling.rule import Rule
from rebapl.sampling.sghmc import SGHMC

ADVICE = {
    "loss": "lr is the likely cause: lower it, or lengthen the warm-up",
    "repulsion": "the repulsion is the likely cause: raise the potential's `epsilon`, or take a fading force",
    "gradient": "lr (or the precision of the backbone) is the likely cause: lower lr, or compute in float32",
    "force": "the repulsion is the likely cause: raise the potential's `epsilon`, or take a fading force",
    "parameters": "lr or temperature is the likely cause: lower them",
}


class NonFiniteError(UserError):
    """The `term` of the objective became infinite or NaN at the `step`. The state after `good_step` is restored."""

    def __init__(self, step: int, term: str, good_step: int) -> None:
        super().__init__(
            f"the {term} is not finite at step {step}: {ADVICE[term]}. The parameters are those after step {good_step}."
        )
        self.step, self.term, self.good_step = step, term, good_step


class Guard:
    """Notes on the device the first step at which each term was not finite. `first` reads it, which waits for the
    device.

    >>> guard = Guard("cpu")
    >>> guard.note(7, finite(loss=torch.tensor(1.0)))
    >>> guard.note(8, finite(loss=torch.tensor(float("nan"))))
    >>> guard.first()
    (8, 'loss')
    """

    def __init__(self, device: torch.device | str) -> None:
        self.terms = list(ADVICE)
        self._never = torch.iinfo(torch.int64).max
        self._first_steps = torch.full((len(self.terms),), self._never, device=device)

    def note(self, step: int, finite: Tensor) -> None:
        """Note which terms of a step are not finite; `finite` is the result of the function `finite`."""
        self._first_steps = torch.where(finite, self._first_steps, self._first_steps.clamp(max=step))

    def first(self) -> tuple[int, str] | None:
        """The first step at which a term was not finite, and this term; None if all terms were finite."""
        steps = self._first_steps.tolist()
        step = min(steps)
        return None if step == self._never else (step, self.terms[steps.index(step)])

    def clear(self) -> None:
        self._first_steps.fill_(self._never)


def finite(**values: Tensor) -> Tensor:
    """Which terms are finite, as a bool tensor in the order of ADVICE. `values` (shape ()) are the terms that exist.

    >>> finite(loss=torch.tensor(1.0), gradient=torch.tensor(float("inf")))
    tensor([ True,  True, False,  True,  True])
    """
    absent = torch.zeros_like(next(iter(values.values())), dtype=torch.float32)
    terms = torch.stack([values.get(name, absent).detach().float() for name in ADVICE])
    return terms.abs() < math.inf


class Diagnostics:
    """Records of some steps of a loop. A record holds:

    * `loss`, and `gradient_norm`: ‖∇‖ of what goes through the optimizer's step, without the prior's share;
    * `kinetic_temperature`: mean p², corrected for the integrator (SGHMC);
    * `configurational_temperature`: N·⟨θ−θ₀, ∇L⟩/d, the virial, which averages to T at equilibrium;
    * `acceptance`: the share of coordinates where the estimated gradient noise left room for injected noise;
    * `distance`, `force_norm`: d² to the nearest remembered sample, and the sum of the norms of a relative force;
    * `lr`, `temperature` of the step.

    Call `before` between `backward()` and the optimizer's step, and `after` between that and the schedule's step.

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
        # copies, because the next replay of a captured step overwrites these tensors
        record: dict[str, Any] = {"step": step, "loss": loss.detach().clone()}
        record["lr"] = group["lr"].clone() if isinstance(group["lr"], Tensor) else group["lr"]
        record["temperature"] = group.get("temperature", 0.0)
        grads = [p.grad for g in optimizer.param_groups for p in g["params"] if p.grad is not None]
        record["gradient_norm"] = total_norm(grads)
        if isinstance(optimizer, Rule):
            record["configurational_temperature"] = _virial(optimizer)
        if repulsion is not None:
            columns = {"distance": "distance", "norm": "force_norm"}
            record |= {columns[name]: value for name, value in repulsion.state.items() if name in columns}
        self._records.append(record)

    @torch.no_grad()
    def after(self, optimizer: torch.optim.Optimizer) -> None:
        record = self._records[-1]
        if isinstance(optimizer, SGHMC):
            record["kinetic_temperature"] = optimizer.kinetic_temperature()
        if isinstance(optimizer, Rule):
            record["acceptance"] = optimizer.acceptance()

    def rows(self) -> list[dict[str, float]]:
        """All records as numbers, which waits for the device."""
        return [{name: float(value) for name, value in record.items()} for record in self._records]


def _virial(optimizer: Rule) -> Tensor:
    products, count = [], 0
    for group in optimizer.param_groups:
        params = [p for p in group["params"] if p.grad is not None]
        for p, g in zip(params, optimizer.gradients(group, params), strict=True):
            center = optimizer.state[p].get("center", 0.0)
            products.append(((p - center) * g).sum() * group["num_data"])
            count += p.numel()
    if not products:
        return torch.tensor(math.nan)
    return torch.stack([x.to(products[0].device) for x in products]).sum() / count
