"""What each sample of a posterior gives for images: its logits, or its points in a feature space.

All samples go through one learner, and each part is computed as rarely as it can be. What depends on the images alone
(`Learner.frozen`) is computed once for all samples, so a method that learns text only sees each image once. Text
features are computed once per sample. What needs both an image and a sample is computed sample by sample. On a GPU,
methods whose samples each walk through the image tower may take a group of samples in one mapped call: each layer then
sees the images of all of them as one batch.
"""

from __future__ import annotations

import copy
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rebapl.backbones import Layer, States
from rebapl.errors import UserError, first_line
from rebapl.learners import Learner

MAPPED_BYTES = 512 * 2**20
"""Working memory of one call that is mapped over samples; as many samples go together as fit into it.

More would fit, but mapping pays only while one sample's pass leaves a GPU idle, which is so for few images.
"""

WORKING_COPIES = 16
"""A layer's working memory in units of the states it is given: attention, four times the width, sums."""

Classes = Mapping[str, Tensor]
"""What `Learner.encode_classes` gives at one sample; those of all samples have the same names and shapes."""


class _Methods(nn.Module):
    """Makes every method of a learner callable through `forward`, which `functional_call` needs."""

    def __init__(self, learner: Learner) -> None:
        super().__init__()
        self.learner = learner

    def forward(self, method: str, *arguments: Any) -> Any:
        return getattr(self.learner, method)(*arguments)


def at_sample(learner: Learner, sample: Mapping[str, Tensor]) -> Callable[..., Any]:
    """Calls `(method, *arguments)` of a learner as if its parameters were the sample's.

    They are replaced while it runs, so threads may not share a learner; each takes a `Learner.twin`.
    """
    parameters = {f"learner.{name}": tensor for name, tensor in sample.items()}
    methods = _Methods(learner)
    return lambda method, *arguments: torch.func.functional_call(methods, parameters, (method, *arguments))


def encode_classes(learner: Learner, stacks: Mapping[str, Tensor], count: int) -> list[Classes]:
    """What `Learner.encode_classes` gives at each of `count` stacked samples.

    (One mapped call for all was tried: to map the many small operations costs more than to repeat them.)
    """
    return [at_sample(learner, sample)("encode_classes") for sample in _each(stacks, count)]


def one_by_one(
    learner: Learner, stacks: Mapping[str, Tensor], frozen: Any, classes: Sequence[Classes], spaces: Sequence[str]
) -> dict[str, Tensor]:
    """The points (S, n, d) of stacked samples in the named feature spaces, computed one sample after the other.

    `frozen` is what `Learner.frozen` gave for the images, and `classes` what `encode_classes` gave.
    """
    found = [
        _points(learner, sample, frozen, own, spaces)
        for sample, own in zip(_each(stacks, len(classes)), classes, strict=True)
    ]
    return {space: torch.stack([points[space] for points in found]) for space in spaces}


def _points(
    learner: Learner, sample: Mapping[str, Tensor], frozen: Any, classes: Classes, spaces: Sequence[str]
) -> dict[str, Tensor]:
    output = at_sample(learner, sample)("respond", frozen, classes)
    return {space: output.cloud(space) for space in spaces}


def _each(stacks: Mapping[str, Tensor], count: int) -> Iterator[dict[str, Tensor]]:
    for index in range(count):
        yield {name: stack[index] for name, stack in stacks.items()}


class _AsOneBatch(torch.autograd.Function):
    """`layer(hidden, positions)`. In a call mapped over samples, their sequences become one batch of the layer.

    So a layer never learns that it is mapped: attention, and a layer that is compiled, run as they do otherwise.
    """

    @staticmethod
    def forward(hidden: Tensor, positions: Tensor | None, layer: Layer) -> Tensor:
        return layer(hidden, positions)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Nothing is kept: predictions have no gradients."""

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], hidden: Tensor, positions: Tensor | None, layer: Layer
    ) -> tuple[Tensor, int]:
        def as_one(tensor: Tensor, dim: int | None) -> Tensor:
            """(S, B, …) as (S·B, …); what all samples share is repeated."""
            of_samples = tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
            return of_samples.flatten(0, 1)

        read = None if positions is None else as_one(positions, in_dims[1])
        return layer(as_one(hidden, in_dims[0]), read).unflatten(0, (info.batch_size, -1)), 0


def _for_mapping(learner: Learner, ran: Counter[str]) -> Learner:
    """A twin of a learner whose layers may run in mapped calls. `ran` counts the layers that run."""

    def counted(layer: Layer) -> Layer:
        def run(hidden: Tensor, positions: Tensor | None = None) -> Tensor:
            ran["layers"] += 1
            return _AsOneBatch.apply(hidden, positions, layer)

        return run

    twin, encoder = learner.twin(), copy.copy(learner.encoder)
    for name in ("vision", "text"):
        tower = copy.copy(getattr(encoder, name))
        tower.layers = [counted(layer) for layer in tower.layers]
        setattr(encoder, name, tower)
    twin.encoder = encoder
    return twin


class AtSamples:
    """A learner at each of S = `count` stacked samples, one after the other or some of them in one mapped call.

    A learner that cannot be mapped, say because its numbers decide what it does, takes one after the other from then
    on, and a warning says so once.
    """

    def __init__(self, learner: Learner, stacks: Mapping[str, Tensor], count: int) -> None:
        self._ran: Counter[str] = Counter()
        self.learner, self.stacks, self.count = _for_mapping(learner, self._ran), stacks, count
        self.mappable = bool(stacks)

    @property
    def layers(self) -> int:
        """How many layers have run."""
        return self._ran["layers"]

    def points(
        self, views: Tensor, classes: Sequence[Classes], spaces: Sequence[str], together: int | None = None
    ) -> dict[str, Tensor]:
        """The points (S, n, d) of every sample in each named feature space, float32, `logits` (S, B, C) among them.

        `views` are uint8 (B, 3, H, W) on the learner's device; n is B, or C if the space has a row per class. One pass
        per sample serves all spaces. `together` samples go into one mapped call, by default as many as pay.
        """
        frozen = self.learner.frozen(self.learner.encoder.preprocessing.normalize(views))
        together = samples_together(frozen) if together is None else together
        found = None
        if min(together, self.count) > 1 and self.mappable:
            try:
                found = self._mapped(frozen, classes, spaces, together)
            except UserError:
                raise
            except Exception as error:  # whatever stands in the way makes torch raise; any other error comes again
                self.mappable = False
                warnings.warn(
                    "several samples cannot go into one call and are taken one after the other, which is slower "
                    f"({first_line(error)})",
                    RuntimeWarning,
                    stacklevel=2,
                )
        found = found or one_by_one(self.learner, self.stacks, frozen, classes, spaces)
        return {space: points.float() for space, points in found.items()}

    def _mapped(
        self, frozen: Any, classes: Sequence[Classes], spaces: Sequence[str], together: int
    ) -> dict[str, Tensor]:
        def one(sample: dict[str, Tensor], own: dict[str, Tensor]) -> dict[str, Tensor]:
            return _points(self.learner, sample, frozen, own, spaces)

        stacked = {name: torch.stack([own[name] for own in classes]) for name in classes[0]}
        # What is random in evaluation mode is the same for all samples, see `Learner.noise_stream`.
        return torch.func.vmap(one, chunk_size=together, randomness="same")(dict(self.stacks), stacked)


def samples_together(frozen: Tensor | States) -> int:
    """How many samples one call may be mapped over; 1 if mapping gains nothing.

    Mapping gains nothing for methods whose image features are complete in `frozen`, nor without a GPU: there the
    samples are as quick one after another. Otherwise the passes of all mapped samples fit into `MAPPED_BYTES`.
    """
    if not isinstance(frozen, States) or frozen.hidden.device.type == "cpu":
        return 1
    hidden = frozen.hidden
    return max(1, MAPPED_BYTES // (hidden.numel() * hidden.element_size() * WORKING_COPIES))
