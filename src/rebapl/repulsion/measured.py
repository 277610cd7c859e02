"""Gradients by parameter, and those that a measuring step of the repulsion leaves for the step to use."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm

Gradient = tuple[Tensor | None, ...]
"""One tensor for each parameter, None where there is no dependence on it."""


def gradient_of(value: Tensor, parameters: Sequence[Tensor], keep: bool = False) -> Gradient:
    """∇value by parameter; None also for those that do not learn. With `keep`, one can go backward again."""
    learning = [p for p in parameters if p.requires_grad]
    found = iter(torch.autograd.grad(value, learning, retain_graph=keep or None, allow_unused=True))
    return tuple(next(found) if p.requires_grad else None for p in parameters)


def norm_of(gradient: Gradient) -> Tensor:
    """‖∇‖ over all parameters together; shape (), not waited for."""
    return get_total_norm([g for g in gradient if g is not None])


def sum_of(gradients: Iterable[Gradient]) -> Gradient:
    """The sum by parameter of what is there."""
    return tuple(map(_added, zip(*gradients, strict=True)))


def _added(parts: Iterable[Tensor | None]) -> Tensor | None:
    there = [part for part in parts if part is not None]
    return torch.stack(there).sum(0) if len(there) > 1 else next(iter(there), None)


class Measured(NamedTuple):
    """The gradients that a measuring step has computed anyway, so that nobody need go backward for them again.

    `loss` is that of the loss, `samples` are those of the measured samples' potentials, and `weights` (m,) their
    coefficients in the term; `rest` is what the others add to the term, None if all were measured.
    """

    loss: Gradient
    samples: list[Gradient]
    weights: Tensor
    rest: Tensor | None

    def of_term(self, parameters: Sequence[Tensor]) -> Gradient:
        """The gradient of the whole term."""
        rest = [] if self.rest is None else [gradient_of(self.rest, parameters)]
        scaled = [
            tuple(None if g is None else weight * g for g in sample)
            for weight, sample in zip(self.weights, self.samples, strict=True)
        ]
        return sum_of([*rest, *scaled])
