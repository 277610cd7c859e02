"""Notes of a run's steps, kept on the device and read when somebody asks: records, and numbers that are not finite."""

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
    """A term became infinite or NaN: `step` and `term` say when and which. The last good state is put back."""

    def __init__(self, step: int, term: str, good_step: int) -> None:
        super().__init__(
            f"the {term} is not finite at step {step}: {ADVICE[term]}. The parameters are those after step {good_step}."
        )
        self.step, self.term, self.good_step = step, term, good_step


class Guard:
    """Notes, on the device, the first step at which each term was not finite; `first` reads it (and waits).

    >>> guard = Guard("cpu")
    >>> guard.note(7, finite(loss=torch.tensor(1.0)))
    >>> guard.note(8, finite(loss=torch.tensor(float("nan"))))
    >>> guard.first()
    (8, 'loss')
    """

    def __init__(self, device: torch.device | str) -> None:
        self.terms = list(ADVICE)
        self._never = torch.iinfo(torch.int64).max
        self._seen = torch.full((len(self.terms),), self._never, device=device)

    def note(self, step: int, finite: Tensor) -> None:
        """`finite` says which numbers of a step are finite, as the function of that name gives it."""
        self._seen = torch.where(finite, self._seen, self._seen.clamp(max=step))

    def first(self) -> tuple[int, str] | None:
        """The earliest step and term that was not finite; None if all were."""
        steps = self._seen.tolist()
        step = min(steps)
        return None if step == self._never else (step, self.terms[steps.index(step)])

    def clear(self) -> None:
        self._seen.fill_(self._never)


def finite(**values: Tensor) -> Tensor:
    """Which of the terms of ADVICE are finite, as bool in that order, if `values` (shape ()) are those that there are.

    >>> finite(loss=torch.tensor(1.0), gradient=torch.tensor(float("inf")))
    tensor([ True,  True, False,  True,  True])
    """
    absent = torch.zeros_like(next(iter(values.values())), dtype=torch.float32)
    terms = torch.stack([values.get(name, absent).detach().float() for name in ADVICE])
    return terms.abs() < math.inf


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
        # copies, because the next replay of a captured step overwrites these tensors
        record: dict[str, Any] = {"step": step, "loss": loss.detach().clone()}
        record["lr"] = group["lr"].clone() if isinstance(group["lr"], Tensor) else group["lr"]
        record["temperature"] = group.get("temperature", 0.0)
        grads = [p.grad for g in optimizer.param_groups for p in g["params"] if p.grad is not None]
        record["gradient_norm"] = total_norm(grads)
        if isinstance(optimizer, Rule):
            record["configurational_temperature"] = _virial(optimizer)
        if repulsion is not None:
            of_force = {"distance": "distance", "norm": "force_norm"}
            record |= {of_force[name]: value for name, value in repulsion.state.items() if name in of_force}
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
