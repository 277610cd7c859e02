"""Stops a run whose numbers are no longer finite, without waiting for the device at each step."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from rebapl.errors import UserError

ADVICE = {
    "loss": "lr is the likely cause: lower it, or lengthen the warm-up",
    "repulsion": "the repulsion is the likely cause: raise the potential's `epsilon`, or take a fading force",
    "gradient": "lr (or the precision of the backbone) is the likely cause: lower lr, or compute in float32",
    "force": "the repulsion is the likely cause: raise the potential's `epsilon`, or take a fading force",
    "parameters": "lr or temperature is the likely cause: lower them",
}


class NonFiniteError(UserError):
    """A term became infinite or NaN. `step` is the iteration, `term` what it was; the last good state is back."""

    def __init__(self, step: int, term: str, good_step: int) -> None:
        super().__init__(
            f"the {term} is not finite at step {step}: {ADVICE[term]}. The parameters are those after step {good_step}."
        )
        self.step, self.term, self.good_step = step, term, good_step


class Guard:
    """Notes, on the device, the first step at which each term was not finite; `first` reads it (and waits).

    >>> guard = Guard("cpu")
    >>> guard.note(step=7, loss=torch.tensor(1.0))
    >>> guard.note(step=8, loss=torch.tensor(float("nan")))
    >>> guard.first()
    (8, 'loss')
    """

    def __init__(self, device: torch.device | str) -> None:
        self.terms = list(ADVICE)
        self._never = torch.iinfo(torch.int64).max
        self._seen = torch.full((len(self.terms),), self._never, device=device)

    def note(self, step: int, **values: Tensor) -> None:
        """`values` are 0-d tensors named as in ADVICE."""
        self.take(step, finite(**values))

    def take(self, step: int, finite: Tensor) -> None:
        """Note what `finite` has found of a step."""
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


def total_norm(tensors: Iterable[Tensor]) -> Tensor:
    """The Euclidean norm of all tensors together; shape (), not waited for."""
    found = list(tensors)
    if not found:
        return torch.zeros(())
    return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(found)))
