"""The objective of a step, L(θ) = mean loss of a mini-batch + the repulsion's term, and its gradient.

`Objective.gradients` is a pure function of its tensors, the parameters and the repulsion's memory, so `rebapl.captured`
can make it fast from outside. `ReferencePool` holds the images on which the repulsion compares features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rebapl.captured import beside, recording
from rebapl.errors import UserError
from rebapl.learnable import HasBranches, Learnable
from rebapl.repulsion import Repulsion, requires_dependence, weights
from rebapl.repulsion.parameters import Gradient, gradient_of, sum_of, total_norm
from rebapl.sampling.diagnostics import finite

Batch = tuple[Tensor, Tensor] | Tensor
"""Images and labels, or the random choices from which a pass draws them (see `Drawing`)."""

PORTION = 64
"""How many images go through a learner at a time, where no gradient is needed."""


class Gradients(NamedTuple):
    """The outcome of a pass.

    `loss` is the mean loss (), and `through` the gradient that goes through the optimizer's step. `beside` is the
    gradient of a force that does not go through it; it is empty if there is no such force. `finite` says which numbers
    are finite (see `diagnostics.finite`), and `state` has new values for the state of the chain's force.
    """

    loss: Tensor
    through: Gradient
    beside: Gradient
    finite: Tensor
    state: dict[str, Tensor]


@dataclass(frozen=True)
class Objective:
    """The objective of a learner. If batches come as random choices, `draw` makes images and labels from them."""

    learner: Learnable[Any]
    parameters: list[Tensor]
    pool: ReferencePool | None = None
    draw: Callable[[Tensor], tuple[Tensor, Tensor]] | None = None

    def gradients(
        self,
        force: Repulsion | None,
        kind: str,
        decoupled: bool,
        batch: Batch,
        chosen: tuple[Tensor, ...] = (),
        state: Mapping[str, Tensor] | None = None,
    ) -> Gradients:
        """One forward and backward pass; `kind` and `state` come from `force.plan`, `chosen` from
        `ReferencePool.choose`.

        The gradient of a force that is printed, or `decoupled` from an adaptive optimiser, is returned apart, as
        `beside`. Norms are computed here, so that a replay computes them too.
        """
        images, labels = self.draw(batch) if self.draw is not None and isinstance(batch, Tensor) else batch
        state = state or {}
        if force is None or kind == "plain":
            loss = self.learner.loss(output_of(self.learner, images), labels)
            through = gradient_of(loss, self.parameters)
            norm = total_norm(through)
            new_state = {} if force is None else force.noted(state, loss, norm)
            return Gradients(loss.detach(), through, (), finite(loss=loss, gradient=norm), new_state)
        assert self.pool is not None
        loss, cloud, points = self.pool.compared(images, labels, chosen)
        term = force.term(kind, state, cloud, points, loss, self.parameters, decoupled)
        apart = decoupled or force.force.outside
        pull: Gradient = ()
        if term.of_loss is None and not apart:
            through = gradient_of(loss + term.value, self.parameters)
        else:
            through = gradient_of(loss, self.parameters, keep=True) if term.of_loss is None else term.of_loss
            pull = term.gradient(self.parameters)
            if not apart:
                through, pull = sum_of([through, pull]), ()
        norm = total_norm(through)
        values = {"loss": loss, "gradient": norm, "repulsion": term.value}
        if any(grad is not None for grad in pull):
            values["force"] = total_norm(pull)
        norm_of_loss = norm if apart and term.of_loss is None else None
        new_state = {**term.state, **force.noted(state, loss, norm_of_loss)}
        return Gradients(loss.detach(), through, pull, finite(**values), new_state)


class ReferencePool:
    """The reference images of a run, and the feature space in which samples are compared on them.

    A cloud with one row per image is computed for n random images of the pool, in one pass with the training batch. A
    cloud with one row per class (text) and the weights need no images. The space `both` has rows of both kinds. `shape`
    is the shape of the cloud on the whole pool. Of a step's rows, `keep` random ones are compared (None: all).
    """

    def __init__(
        self,
        learner: Learnable[Any],
        space: str,
        images: Tensor | None,
        n: int | None,
        example: Tensor,
        keep: int | None = None,
        chunk: int = PORTION,
    ) -> None:
        """`images`: (P, 3, H, W), not augmented; `example`: any image (1, 3, H, W), to find out the space's shape."""
        self.learner, self.space, self.n, self.chunk = learner, space, n, chunk
        self.parameters = [p for _, p in learner.named_parameters() if p.requires_grad]
        self.example, self.keep = example, keep
        self.images = example[:0] if images is None else images
        self.per_image = False
        if space == "weights":
            self.images, self.shape = example[:0], torch.Size([1, sum(p.numel() for p in self.parameters)])
        else:
            self._examine_space(example)
        self.rows = self.shape[0] - len(self.images) + min(n or 0, len(self.images))
        """The number of points in a step's cloud: those of its images, and those that need no images."""
        self.points = self.rows if keep is None else min(keep, self.rows)
        """How many points each step compares."""

    def _examine_space(self, example: Tensor) -> None:
        """Find out the shape of the feature space's clouds, and refuse a space that does not fit the settings."""
        output = self.learner(example)
        cloud = output.cloud(self.space)
        requires_dependence(cloud, self.parameters)
        self.per_image = self.space not in output.per_class
        if self.per_image and (len(self.images) == 0 or self.n is None):
            raise UserError(
                f"repulsion in the space '{self.space}' needs reference images: give un-augmented training images and "
                "set `images`, or repel in the weights or one of: "
                f"{', '.join(output.per_class) or '(none per class here)'}"
            )
        if not self.per_image:
            if self.n is not None:
                raise UserError(
                    f"repulsion in the space '{self.space}' has a point per class and compares no images: set `images` "
                    "to null"
                )
            self.images = example[:0]
        others = len(self.images) - len(example) if self.per_image else 0
        self.shape = torch.Size([len(cloud) + others, *cloud.shape[1:]])

    def choose(self, generator: torch.Generator) -> tuple[Tensor, ...]:
        """A step's random choices: the numbers (n,) of its images in the pool, if any, and of the rows it compares."""
        chosen = [Repulsion.choose(len(self.images), self.n or 0, generator)] if self.per_image else []
        if self.keep is not None:
            chosen.append(Repulsion.choose(self.rows, self.keep, generator))
        return tuple(chosen)

    def compared(
        self, images: Tensor, labels: Tensor, chosen: tuple[Tensor, ...]
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """The mean loss of the batch, this step's cloud (n, d), and the numbers of its points in a stored cloud.

        None in place of the numbers stands for all points.
        """
        points: Tensor | None = None
        if not self.per_image:
            output = output_of(self.learner, images)
            loss = self.learner.loss(output, labels)
            cloud = weights(self.parameters) if self.space == "weights" else output.cloud(self.space)
        else:
            points = chosen[0]
            output = output_of(self.learner, torch.cat([images, self.images[points]]))
            loss = self.learner.loss(output.rows(slice(0, len(images))), labels)
            cloud = output.rows(slice(len(images), None)).cloud(self.space)
            extra = len(cloud) - len(points)  # rows per class, behind those per image
            if extra:
                points = torch.cat([points, torch.arange(extra, device=points.device) + len(self.images)])
        if self.keep is None:
            return loss, cloud, points
        rows = chosen[-1]
        return loss, cloud[rows], rows if points is None else points[rows]

    @torch.no_grad()
    def stored(self) -> Tensor:
        """The cloud (P, d) of the current parameters on the whole pool, as the repulsion's memory stores it."""
        if self.space == "weights":
            return weights(self.parameters)
        if not self.per_image:
            return self.learner(self.example).cloud(self.space)
        parts = [(self.learner(part).cloud(self.space), len(part)) for part in self.images.split(self.chunk)]
        per_image = [cloud[:count] for cloud, count in parts]
        return torch.cat([*per_image, parts[0][0][parts[0][1] :]])


def output_of(learner: Learnable[Any], images: Tensor) -> Any:
    """learner(images); while a graph is recorded, the class names are encoded on a stream of their own."""
    if recording() and isinstance(learner, HasBranches):
        classes = beside(learner.encode_classes)
        return learner.respond(learner.frozen(images), classes)
    return learner(images)


@contextmanager
def evaluating(learner: Learnable[Any]) -> Iterator[None]:
    """Evaluation mode and no gradients inside `with`; afterwards, each module returns to the mode that it had."""
    modes = [(module, module.training) for module in learner.modules()]
    learner.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode
