"""The output of each sample of a posterior for images: its logits, or its points in a feature space.

All samples go through one learner, and nothing is computed more often than necessary. The part that depends on the
images alone (`Learner.frozen`) is computed once for all samples, so a method that learns only text sees each image
once. Text features are computed once per sample. The part that needs both an image and a sample is computed sample by
sample. On a GPU, methods whose samples each walk through the image tower may take a group of samples in one mapped
call: each layer then sees the images of the whole group as one batch.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import cached_property
from operator import methodcaller
from typing import Any

import torch
from torch import Tensor

from rebapl.backbones import Layer, States
from rebapl.errors import UserError, warn_slower
from rebapl.learnable import call_at
from rebapl.learners import Learner

MAPPED_BYTES = 512 * 2**20
"""Working memory of one call that is mapped over samples; it limits how many samples go into one call.

A GPU has room for more, but mapping pays only while one sample's pass leaves the GPU idle, as it does for few images.
"""

WORKING_COPIES = 16
"""A layer's working memory in multiples of its input states: attention, four times the width, sums."""

Sample = Mapping[str, Tensor]
"""The values of a learner's parameters by name."""

Classes = Mapping[str, Tensor]
"""The result of `Learner.encode_classes` at one sample; all samples have the same names and shapes in it."""


def unstacked(stacks: Mapping[str, Tensor], count: int) -> list[Sample]:
    """The samples of stacks (S, …), S = `count`; a learner without parameters has empty samples."""
    return [{name: stack[index] for name, stack in stacks.items()} for index in range(count)]


def encode_classes(learner: Learner, samples: Sequence[Sample]) -> list[Classes]:
    """The result of `Learner.encode_classes` at each sample.

    (One mapped call for all samples was tried: mapping the many small operations costs more than repeating them.)
    """
    return [call_at(learner, sample, methodcaller("encode_classes")) for sample in samples]


def points_at(
    learner: Learner, sample: Sample, frozen: Any, classes: Classes, spaces: Sequence[str]
) -> dict[str, Tensor]:
    """The points (n, d) of a sample in the named feature spaces; `frozen` is the result of `Learner.frozen`."""
    output = call_at(learner, sample, methodcaller("respond", frozen, classes))
    return {space: output.cloud(space) for space in spaces}


class _AsOneBatch(torch.autograd.Function):
    """`layer(hidden, positions)`. In a call mapped over samples, the sequences of all samples form one batch.

    So the layer itself is never mapped: attention and compiled layers run as they do without mapping.
    """

    @staticmethod
    def forward(hidden: Tensor, positions: Tensor | None, layer: Layer) -> Tensor:
        return layer(hidden, positions)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Save nothing: predictions need no gradients."""

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], hidden: Tensor, positions: Tensor | None, layer: Layer
    ) -> tuple[Tensor, int]:
        def as_one(tensor: Tensor, dim: int | None) -> Tensor:
            """(S, B, …) as (S·B, …); a tensor that all samples share is repeated for each."""
            of_samples = tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
            return of_samples.flatten(0, 1)

        read = None if positions is None else as_one(positions, in_dims[1])
        return layer(as_one(hidden, in_dims[0]), read).unflatten(0, (info.batch_size, -1)), 0


def for_mapping(learner: Learner) -> Learner:
    """A twin of a learner whose layers may run in mapped calls."""

    def mappable(layer: Layer) -> Layer:
        return lambda hidden, positions=None: _AsOneBatch.apply(hidden, positions, layer)

    twin, encoder = learner.twin(), copy.copy(learner.encoder)
    for name in ("vision", "text"):
        tower = copy.copy(getattr(encoder, name))
        tower.layers = [mappable(layer) for layer in tower.layers]
        setattr(encoder, name, tower)
    twin.encoder = encoder
    return twin


class AtSamples:
    """A learner at each of S = `count` stacked samples, which run one after the other or in groups in mapped calls.

    The texts of the class names are encoded here, once. If a learner cannot be mapped, for example because its code
    branches on the values of tensors, a warning says so once, and its samples then run one after the other.
    """

    def __init__(self, learner: Learner, stacks: Mapping[str, Tensor], count: int) -> None:
        self.learner, self.stacks = learner.twin(), stacks
        self.samples = unstacked(stacks, count)
        self.classes = encode_classes(self.learner, self.samples)
        self.mappable = bool(stacks)
        self.calls = 0
        """The number of calls with images so far, each for one sample or for several at once."""

    def points(self, views: Tensor, spaces: Sequence[str], together: int | None = None) -> dict[str, Tensor]:
        """The points (S, n, d) of every sample in each named feature space, float32, `logits` (S, B, C) among them.

        `views` are uint8 (B, 3, H, W) on the learner's device; n is B, or C if the space has a row per class. One pass
        per sample serves all spaces. One mapped call takes `together` samples (default: see `samples_together`).
        """
        frozen = self.learner.frozen(self.learner.encoder.preprocessing.normalize(views))
        together = min(samples_together(frozen) if together is None else together, len(self.samples))
        stacked = self._mapped(frozen, spaces, together) if together > 1 and self.mappable else None
        if stacked is None:
            self.calls += len(self.samples)
            per_sample = [
                points_at(self.learner, sample, frozen, classes, spaces)
                for sample, classes in zip(self.samples, self.classes, strict=True)
            ]
            stacked = {space: torch.stack([points[space] for points in per_sample]) for space in spaces}
        return {space: points.float() for space, points in stacked.items()}

    def _mapped(self, frozen: Any, spaces: Sequence[str], together: int) -> dict[str, Tensor] | None:
        """The points of every sample by mapped calls of `together` samples; None if the learner cannot be mapped."""

        def points_of(sample: dict[str, Tensor], classes: dict[str, Tensor]) -> dict[str, Tensor]:
            return points_at(self._for_mapping, sample, frozen, classes, spaces)

        classes = {name: torch.stack([each[name] for each in self.classes]) for name in self.classes[0]}
        try:
            # Random numbers in evaluation mode are the same for all samples, see `Learner.noise_stream`.
            mapped = torch.func.vmap(points_of, chunk_size=together, randomness="same")
            points: dict[str, Tensor] = mapped(dict(self.stacks), classes)
        except UserError:
            raise
        except Exception as error:  # torch raises many kinds of errors here; one with another cause is raised again
            self.mappable = False
            warn_slower("several samples cannot go into one call and are taken one after the other", error)
            return None
        self.calls += -(-len(self.samples) // together)
        return points

    @cached_property
    def _for_mapping(self) -> Learner:
        return for_mapping(self.learner)


def samples_together(frozen: Tensor | States) -> int:
    """The number of samples in one mapped call; 1 if mapping gains nothing.

    Mapping gains nothing for methods whose image features are complete in `frozen`, and nothing on a CPU, where the
    samples are as quick one after another. Otherwise as many samples go together as fit into `MAPPED_BYTES`.
    """
    if not isinstance(frozen, States) or frozen.hidden.device.type == "cpu":
        return 1
    hidden = frozen.hidden
    return max(1, MAPPED_BYTES // (hidden.numel() * hidden.element_size() * WORKING_COPIES))
