"""A step's passes forward and backward: from a mini-batch to gradients, with the repulsion's where it acts."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rebapl.captured import Capturing
from rebapl.compiled import compiling
from rebapl.learnable import Learnable
from rebapl.repulsion import Repulsion
from rebapl.repulsion.measured import Gradient, gradient_of, norm_of, sum_of
from rebapl.repulsion.repulsion import Carried, Found, Plan
from rebapl.sampling.guard import finite
from rebapl.sampling.loop import Batch, Drawing
from rebapl.sampling.reference import Reference


class Gradients(NamedTuple):
    """What a pass gives: the mean loss, the gradient that goes through the step, the repulsion's own gradient where it
    goes beside the step, what the repulsion found, where it acts, and which numbers are finite (see `guard.finite`)."""

    loss: Tensor
    grads: Gradient
    beside: Gradient
    found: Found | None
    finite: Tensor

    @classmethod
    def of(
        cls,
        loss: Tensor,
        grads: Gradient,
        beside: Gradient = (),
        term: Tensor | None = None,
        found: Found | None = None,
    ) -> Gradients:
        """With the norms in the pass, so that a replay has them, too."""
        values = {"loss": loss, "gradient": norm_of(grads)}
        if term is not None:
            values["repulsion"] = term
        if any(grad is not None for grad in beside):
            values["force"] = norm_of(beside)
        return cls(loss.detach(), grads, beside, found, finite(**values))


class StepPasses:
    """The passes of one learner, as usual or replayed by `capturing`; with it, batches must have one shape.

    With `compile`, the parts of the model that can be compiled are. `drawing` makes images and labels of choices, where
    passes are given those instead.
    """

    def __init__(
        self,
        learner: Learnable[Any],
        parameters: list[Tensor],
        capturing: Capturing | None = None,
        compile: bool = False,
        drawing: Drawing | None = None,
    ) -> None:
        self.learner, self.parameters, self.capturing, self.compile = learner, parameters, capturing, compile
        self.drawing = drawing

    def plain(self, batch: Batch) -> Gradients:
        """∇L̃ of a mini-batch."""
        return self._run("plain", self._plain, batch)

    def repelled(
        self,
        batch: Batch,
        repulsion: Repulsion,
        reference: Reference,
        generator: torch.Generator,
        *,
        exploring: bool,
        decoupled: bool,
        memory: int,
    ) -> Gradients:
        """∇(L̃ + the repulsion's term); `memory` is another number whenever other samples are remembered.

        The term's gradient goes beside the step where the force is printed, or where it is `decoupled` from an
        adaptive optimiser.
        """
        device = self.parameters[0].device
        plan = repulsion.plan(device, exploring)
        chosen = reference.choose(generator)
        one = partial(self._repelled, repulsion, reference, plan.kind, decoupled)
        if repulsion.distance.waits(reference.points, device):
            with compiling(self.compile):
                found = one(batch, plan.carried, chosen)
        else:
            kind = f"{plan.kind}, decoupled" if decoupled else plan.kind
            found = self._run(kind, one, batch, plan.carried, chosen, memory=memory)
        assert found.found is not None
        repulsion.keep(Found(*(x.clone() for x in found.found)))  # it outlives the next replay
        return found

    def _run(self, kind: str, one: Any, *given: Any, memory: int = -1) -> Gradients:
        with compiling(self.compile):
            return one(*given) if self.capturing is None else self.capturing(kind, one, *given, memory=memory)

    def _drawn(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Images and labels."""
        if not isinstance(batch, Tensor):
            return batch
        assert self.drawing is not None
        return self.drawing.draw(batch)

    def _plain(self, batch: Batch) -> Gradients:
        images, labels = self._drawn(batch)
        loss = self.learner.loss(self.learner(images), labels)
        return Gradients.of(loss, gradient_of(loss, self.parameters))

    def _repelled(
        self,
        repulsion: Repulsion,
        reference: Reference,
        kind: str,
        decoupled: bool,
        batch: Batch,
        carried: Carried,
        chosen: tuple[Tensor, ...],
    ) -> Gradients:
        images, labels = self._drawn(batch)
        loss, cloud, points = reference.objective(images, labels, chosen)
        term, found, measured = repulsion.term(Plan(kind, carried), cloud, points, loss, self.parameters, decoupled)
        beside = decoupled or repulsion.force.outside
        if not beside and measured is None:
            return Gradients.of(loss, gradient_of(loss + term, self.parameters), (), term, found)
        if measured is None:
            grads = gradient_of(loss, self.parameters, keep=True)
            force = gradient_of(term, self.parameters)
        else:
            grads, force = measured.loss, measured.of_term(self.parameters)
        if not beside:
            grads, force = sum_of([grads, force]), ()
        return Gradients.of(loss, grads, force, term, found)
