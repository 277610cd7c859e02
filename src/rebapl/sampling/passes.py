"""A step's passes forward and backward: from a mini-batch to the gradient, with the repulsion's where it acts."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rebapl.repulsion import Repulsion, Turn
from rebapl.sampling.captured import Capturing
from rebapl.sampling.reference import Learnable, Reference


class Gradients(NamedTuple):
    """What a pass gives: the mean loss, the gradient of all terms, and the repulsion's own term, where there is one."""

    loss: Tensor
    grads: tuple[Tensor | None, ...]
    force: Tensor | None = None
    kept: tuple[Tensor, ...] = ()


class Passes:
    """The passes of one learner, as usual or replayed by `capturing`; with it, batches must have one shape."""

    def __init__(self, learner: Learnable, parameters: list[Tensor], capturing: Capturing | None = None) -> None:
        self.learner, self.parameters, self.capturing = learner, parameters, capturing

    def plain(self, images: Tensor, labels: Tensor) -> Gradients:
        """∇L̃ of a mini-batch."""
        return self._run("plain", self._plain, images, labels)

    def repelled(
        self,
        images: Tensor,
        labels: Tensor,
        repulsion: Repulsion,
        reference: Reference,
        generator: torch.Generator,
        memory: int,
    ) -> Gradients:
        """∇(L̃ + the repulsion's term); `memory` is another number whenever other samples are remembered."""
        turn = repulsion.turn(images.device)
        given = (images, labels, *turn.carried, *reference.choose(generator))
        one = partial(self._repelled, repulsion, reference, turn.kind, len(turn.carried))
        found = one(*given) if repulsion.on_host else self._run(turn.kind, one, *given, memory=memory)
        repulsion.keep(tuple(x.clone() for x in found.kept))  # it outlives the next replay
        return found

    def _run(self, kind: str, one: Any, *given: Tensor, memory: int = -1) -> Gradients:
        return one(*given) if self.capturing is None else self.capturing(kind, one, *given, memory=memory)

    def _plain(self, images: Tensor, labels: Tensor) -> Gradients:
        loss = self.learner.loss(self.learner(images), labels)
        return Gradients(loss.detach(), self._differentiate(loss))

    def _repelled(
        self, repulsion: Repulsion, reference: Reference, kind: str, carried: int, *given: Tensor
    ) -> Gradients:
        """`given`: images, labels, what the repulsion carries from earlier steps, what of the reference was chosen."""
        images, labels, *others = given
        loss, cloud, points = reference.objective(images, labels, tuple(others[carried:]))
        turn = Turn(kind, tuple(others[:carried]))
        force, kept = repulsion.term(turn, cloud, points, loss, self.parameters)
        return Gradients(loss.detach(), self._differentiate(loss + force), force.detach(), kept)

    def _differentiate(self, value: Tensor) -> tuple[Tensor | None, ...]:
        return torch.autograd.grad(value, self.parameters, allow_unused=True)
