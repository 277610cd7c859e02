"""The feature clouds that the repulsion compares: what is run for them, and what is kept of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from rebapl.errors import UserError
from rebapl.learnable import Learnable
from rebapl.repulsion import Repulsion, requires_dependence, weights


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


class Reference:
    """The reference pool of a run, seen in one feature space.

    Clouds with a row per image come from n random pool images that ride in the training batch's pass; clouds
    with a row per class (text) and the weights need no images. `both` has rows of either kind. `shape` is that of
    the cloud on the whole pool. Of a step's rows, `keep` random ones are compared (None: all).
    """

    def __init__(
        self,
        learner: Learnable[Any],
        space: str,
        pool: Tensor | None,
        n: int | None,
        example: Tensor,
        keep: int | None = None,
        chunk: int = 64,
    ) -> None:
        """`pool`: (P, 3, H, W), not augmented; `example`: any image (1, 3, H, W), to see what the space is."""
        self.learner, self.space, self.pool, self.n, self.chunk = learner, space, pool, n, chunk
        self.parameters = [p for _, p in learner.named_parameters() if p.requires_grad]
        self.example, self.keep = example, keep
        self.per_image = False
        if space == "weights":
            self.shape = torch.Size([1, sum(p.numel() for p in self.parameters)])
            return
        output = learner(example)
        cloud = output.cloud(space)
        requires_dependence(cloud, self.parameters)
        self.per_image = space not in output.per_class
        if self.per_image and (pool is None or len(pool) == 0 or n is None):
            raise UserError(
                f"repulsion in the space '{space}' needs reference images: give un-augmented training images and set "
                f"`images`, or repel in the weights or one of: {', '.join(output.per_class) or '(none per class here)'}"
            )
        if not self.per_image and n is not None:
            raise UserError(
                f"repulsion in the space '{space}' has a point per class and compares no images: set `images` to null"
            )
        others = 0 if not self.per_image or pool is None else len(pool) - len(example)
        self.shape = torch.Size([len(cloud) + others, *cloud.shape[1:]])

    @property
    def points(self) -> int:
        """How many points each step compares."""
        if self.keep is not None:
            return self.keep
        in_pool = len(self.pool) if self.per_image and self.pool is not None else 0
        return self.shape[0] - in_pool + min(self.n or 0, in_pool)

    def choose(self, generator: torch.Generator) -> tuple[Tensor, ...]:
        """What is random in a step: which pool images ride along (n,), where any do; which of the rows are kept."""
        chosen = []
        if self.per_image:
            assert self.pool is not None
            assert self.n is not None
            chosen.append(Repulsion.choose(len(self.pool), self.n, generator).to(self.pool.device))
        if self.keep is not None:
            images = len(chosen[0]) if chosen else 0
            per_class = self.shape[0] - (len(self.pool) if self.per_image and self.pool is not None else 0)
            chosen.append(Repulsion.choose(images + per_class, self.keep, generator).to(self.parameters[0].device))
        return tuple(chosen)

    def objective(
        self, images: Tensor, labels: Tensor, chosen: tuple[Tensor, ...]
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Mean loss of the batch, the cloud (n, d) of this step, and which points of the stored cloud it is."""
        points: Tensor | None = None
        if not self.per_image:
            output = self.learner(images)
            loss = self.learner.loss(output, labels)
            cloud = weights(self.parameters) if self.space == "weights" else output.cloud(self.space)
        else:
            assert self.pool is not None
            points = chosen[0]
            output = self.learner(torch.cat([images, self.pool[points]]))
            loss = self.learner.loss(output.rows(slice(0, len(images))), labels)
            cloud = output.rows(slice(len(images), None)).cloud(self.space)
            extra = len(cloud) - len(points)  # rows per class, behind those per image
            if extra:
                points = torch.cat([points, torch.arange(extra, device=points.device) + len(self.pool)])
        if self.keep is None:
            return loss, cloud, points
        kept = chosen[-1]
        return loss, cloud[kept], kept if points is None else points[kept]

    @torch.no_grad()
    def stored(self) -> Tensor:
        """The cloud of the current parameters on the whole pool (P, d): what is remembered of a sample."""
        if self.space == "weights":
            return weights(self.parameters)
        if not self.per_image:
            return self.learner(self.example).cloud(self.space)
        assert self.pool is not None
        parts = [(self.learner(part).cloud(self.space), len(part)) for part in self.pool.split(self.chunk)]
        per_image = [cloud[:count] for cloud, count in parts]
        return torch.cat([*per_image, parts[0][0][parts[0][1] :]])
