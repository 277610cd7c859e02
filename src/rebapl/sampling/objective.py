"""The objective of a step, L(θ) = mean loss of a mini-batch + the repulsion's term, and its gradient.

`Objective.gradients` is a pure function of tensors, the parameters and the repulsion's memory: `rebapl.captured` makes
it fast from outside. `ReferencePool` has the images on which the repulsion compares features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
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
"""Images and labels, or the choices from which a pass draws them."""


class Gradients(NamedTuple):
    """The outcome of a pass.

    `loss` is the mean loss (), `through` the gradient that goes through the optimizer's step, `beside` the gradient of
    a force that does not (empty without one), `finite` says which numbers are finite (see `diagnostics.finite`), and
    `state` has new values for the state of the chain's force.
    """

    loss: Tensor
    through: Gradient
    beside: Gradient
    finite: Tensor
    state: dict[str, Tensor]


class Objective:
    """The objective of a learner. `draw` makes images and labels of choices, where batches come as those."""

    def __init__(
        self,
        learner: Learnable[Any],
        parameters: list[Tensor],
        pool: ReferencePool | None = None,
        draw: Callable[[Tensor], tuple[Tensor, Tensor]] | None = None,
    ) -> None:
        self.learner, self.parameters, self.pool, self.draw = learner, parameters, pool, draw

    def gradients(
        self,
        force: Repulsion | None,
        kind: str,
        decoupled: bool,
        batch: Batch,
        chosen: tuple[Tensor, ...] = (),
        state: Mapping[str, Tensor] | None = None,
    ) -> Gradients:
        """One pass forward and backward; `kind` and `state` come from `force.plan`, `chosen` from the pool.

        The force goes beside the step where it is printed, or `decoupled` from an adaptive optimiser. Norms are
        computed here, so that a replay has them, too.
        """
        images, labels = self.draw(batch) if self.draw is not None and isinstance(batch, Tensor) else batch
        state = state or {}
        if force is None or kind == "plain":
            loss = self.learner.loss(output_of(self.learner, images), labels)
            through = gradient_of(loss, self.parameters)
            norm = total_norm(through)
            noted = {} if force is None else force.noted(state, loss, norm)
            return Gradients(loss.detach(), through, (), finite(loss=loss, gradient=norm), noted)
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
        known = norm if apart and term.of_loss is None else None
        after = {**term.state, **force.noted(state, loss, known)}
        return Gradients(loss.detach(), through, pull, finite(**values), after)


class ReferencePool:
    """The reference images of a run, seen in one feature space.

    Clouds with a row per image come from n random images of the pool, in one pass with the training batch; clouds
    with a row per class (text) and the weights need no images. `both` has rows of either kind. `shape` is that of
    the cloud on the whole pool. Of a step's rows, `keep` random ones are compared (None: all).
    """

    def __init__(
        self,
        learner: Learnable[Any],
        space: str,
        images: Tensor | None,
        n: int | None,
        example: Tensor,
        keep: int | None = None,
        chunk: int = 64,
    ) -> None:
        """`images`: (P, 3, H, W), not augmented; `example`: any image (1, 3, H, W), to see what the space is."""
        self.learner, self.space, self.n, self.chunk = learner, space, n, chunk
        self.parameters = [p for _, p in learner.named_parameters() if p.requires_grad]
        self.example, self.keep = example, keep
        self.images = example[:0] if images is None else images
        self.per_image = False
        if space == "weights":
            self.images, self.shape = example[:0], torch.Size([1, sum(p.numel() for p in self.parameters)])
        else:
            self._look_at(example)
        self.rows = self.shape[0] - len(self.images) + min(n or 0, len(self.images))
        """How many points the images of a step have, and those that need no images."""
        self.points = self.rows if keep is None else keep
        """How many points each step compares."""

    def _look_at(self, example: Tensor) -> None:
        """See what the feature space is, and refuse one that does not fit the settings."""
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
        """The random choices of a step: which images of the pool it sees (n,), if any, and which rows it compares."""
        chosen = [Repulsion.choose(len(self.images), self.n or 0, generator)] if self.per_image else []
        if self.keep is not None:
            chosen.append(Repulsion.choose(self.rows, self.keep, generator))
        return tuple(chosen)

    def compared(
        self, images: Tensor, labels: Tensor, chosen: tuple[Tensor, ...]
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Mean loss of the batch, the cloud (n, d) of this step, and which points of the stored cloud it is."""
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
        kept = chosen[-1]
        return loss, cloud[kept], kept if points is None else points[kept]

    @torch.no_grad()
    def stored(self) -> Tensor:
        """The cloud of the current parameters on the whole pool (P, d), which a sample is remembered by."""
        if self.space == "weights":
            return weights(self.parameters)
        if not self.per_image:
            return self.learner(self.example).cloud(self.space)
        parts = [(self.learner(part).cloud(self.space), len(part)) for part in self.images.split(self.chunk)]
        per_image = [cloud[:count] for cloud, count in parts]
        return torch.cat([*per_image, parts[0][0][parts[0][1] :]])


def output_of(learner: Learnable[Any], images: Tensor) -> Any:
    """learner(images); while a graph is recorded, with the class names on a stream of their own."""
    if recording() and isinstance(learner, HasBranches):
        classes = beside(learner.encode_classes)
        return learner.respond(learner.frozen(images), classes)
    return learner(images)


@contextmanager
def evaluating(learner: Learnable[Any]) -> Iterator[None]:
    """In evaluation mode inside, each part back in its own mode after; no gradients."""
    modes = [(module, module.training) for module in learner.modules()]
    learner.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode
