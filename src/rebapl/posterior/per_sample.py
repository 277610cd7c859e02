"""What each sample of a posterior predicts for images: its logits, or its points in a feature space.

All samples go through one learner, and each part is computed as rarely as it can be. What depends on the images alone
(`Learner.frozen`) is computed once for all samples, so a method that learns text only sees each image once. Text
features are computed once per sample. What needs both an image and a sample is computed sample by sample. On a GPU,
methods whose samples each walk through the image tower may take a group of samples in one mapped call: each layer then
sees the images of all of them as one batch.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rebapl.backbones import DualEncoder, Layer, States
from rebapl.learners import Learner, Output

MAPPED_BYTES = 512 * 2**20
"""Working memory of one call that is mapped over samples; as many samples go together as fit into it.

More would fit, but mapping pays only while one sample's pass leaves a GPU idle, which is so for few images.
"""

WORKING_COPIES = 16
"""A layer's working memory in units of the states it is given: attention, four times the width, sums."""


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


def for_mapping(learner: Learner, layers: Iterator[int]) -> Learner:
    """A twin of a learner whose samples may share mapped calls; `layers` counts the layers that it runs."""

    def taught(layer: Layer) -> Layer:
        def run(hidden: Tensor, positions: Tensor | None = None) -> Tensor:
            next(layers)
            return _AsOneBatch.apply(hidden, positions, layer)

        return run

    twin, encoder = learner.twin(), copy.copy(learner.encoder)
    for name in ("vision", "text"):
        tower = copy.copy(getattr(encoder, name))
        tower.layers = [taught(layer) for layer in tower.layers]
        setattr(encoder, name, tower)
    twin.encoder = encoder
    return twin


def samples_together(frozen: Tensor | States) -> int:
    """How many samples one call may be mapped over; 1 if mapping gains nothing.

    Mapping gains nothing for methods whose image features are complete in `frozen`, nor without a GPU: there the
    samples are as quick one after another.
    """
    if not isinstance(frozen, States) or frozen.hidden.device.type == "cpu":
        return 1
    return room_for(frozen)


def room_for(frozen: States) -> int:
    """How many samples' passes over these states fit into `MAPPED_BYTES`."""
    hidden = frozen.hidden
    return max(1, MAPPED_BYTES // (hidden.numel() * hidden.element_size() * WORKING_COPIES))


def sample_classes(learner: Learner, stacks: Mapping[str, Tensor], count: int) -> list[Mapping[str, Tensor]]:
    """What `Learner.encode_classes` gives for each of `count` stacked samples."""
    return [call("encode_classes") for call in _calls(learner, stacks, count)]


def all_logits(
    learner: Learner,
    stacks: Mapping[str, Tensor],
    classes: Sequence[Mapping[str, Tensor]],
    views: Tensor,
    together: int | None = None,
) -> Tensor:
    """Logits (S, B, C), float32, of every sample, for views uint8 (B, 3, H, W) on the learner's device.

    The learner is one that `for_mapping` gave, and `classes` are what `sample_classes` gave. `together` samples go into
    one mapped call; by default `samples_together` decides how many.
    """
    frozen = _frozen(learner, views)
    size = samples_together(frozen) if together is None else together
    if min(size, len(classes)) > 1 and stacks:
        return _mapped(learner, stacks, classes, frozen, size).float()
    return one_by_one(learner, stacks, classes, frozen).float()


def one_by_one(
    learner: Learner, stacks: Mapping[str, Tensor], classes: Sequence[Mapping[str, Tensor]], frozen: Any
) -> Tensor:
    """The logits (S, B, C) of each sample, with what `sample_classes` and `Learner.frozen` gave."""
    calls = zip(_calls(learner, stacks, len(classes)), classes, strict=True)
    return torch.stack([call("respond", frozen, of_sample).logits for call, of_sample in calls])


def all_clouds(
    learner: Learner,
    stacks: Mapping[str, Tensor],
    classes: Sequence[Mapping[str, Tensor]],
    views: Tensor,
    spaces: Sequence[str],
) -> list[Tensor]:
    """The points (S, n, d) of every sample in each of the named feature spaces, for views uint8 (N, 3, H, W).

    n is N, or C if the space has a row per class. One pass per sample serves all spaces.
    """
    frozen = _frozen(learner, views)
    calls = zip(_calls(learner, stacks, len(classes)), classes, strict=True)
    outputs: Iterator[Output] = (call("respond", frozen, of_sample) for call, of_sample in calls)
    clouds = [[output.cloud(space).float().cpu() for space in spaces] for output in outputs]
    return [torch.stack(of_space) for of_space in zip(*clouds, strict=True)]


def _calls(learner: Learner, stacks: Mapping[str, Tensor], count: int) -> Iterator[Callable[..., Any]]:
    for index in range(count):
        yield at_sample(learner, {name: stack[index] for name, stack in stacks.items()})


def _frozen(learner: Learner, views: Tensor) -> Any:
    encoder: DualEncoder = learner.encoder
    return learner.frozen(encoder.preprocessing.normalize(views))


def _mapped(
    learner: Learner,
    stacks: Mapping[str, Tensor],
    classes: Sequence[Mapping[str, Tensor]],
    frozen: Any,
    size: int,
) -> Tensor:
    """The logits (S, B, C) in calls of `size` samples each."""

    def respond(sample: dict[str, Tensor], of_sample: dict[str, Tensor]) -> Tensor:
        return at_sample(learner, sample)("respond", frozen, of_sample).logits

    stacked = {name: torch.stack([of_sample[name] for of_sample in classes]) for name in classes[0]}
    return torch.func.vmap(respond, chunk_size=size)(dict(stacks), stacked)
