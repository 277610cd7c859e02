"""What each sample of a posterior predicts for images: its logits, or its points in a feature space.

All samples go through one learner, and each part is computed as rarely as it can be. What depends on the images alone
(`Learner.frozen`) is computed once for all samples, so a method that learns text only sees each image once. Text
features are computed once per sample. What needs both an image and a sample is computed sample by sample. On a GPU,
methods whose samples each walk through the image tower may take a group of samples in one mapped call: each layer then
sees the images of all of them as one batch.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rebapl.backbones import DualEncoder, Layer, States
from rebapl.errors import UserError, first_line
from rebapl.learners import Learner

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


@dataclass
class Walked:
    """How many layers a learner has run."""

    layers: int = 0


def for_mapping(learner: Learner, walked: Walked) -> Learner:
    """A twin of a learner whose samples may share mapped calls; `walked` hears of the layers that it runs."""

    def taught(layer: Layer) -> Layer:
        def run(hidden: Tensor, positions: Tensor | None = None) -> Tensor:
            walked.layers += 1
            return _AsOneBatch.apply(hidden, positions, layer)

        return run

    twin, encoder = learner.twin(), copy.copy(learner.encoder)
    for name in ("vision", "text"):
        tower = copy.copy(getattr(encoder, name))
        tower.layers = [taught(layer) for layer in tower.layers]
        setattr(encoder, name, tower)
    twin.encoder = encoder
    return twin


def calls(learner: Learner, stacks: Mapping[str, Tensor], count: int) -> Iterator[Callable[..., Any]]:
    """A learner's `at_sample` for each of `count` stacked samples."""
    for index in range(count):
        yield at_sample(learner, {name: stack[index] for name, stack in stacks.items()})


OfSample = Mapping[str, Tensor]
"""Named tensors of one sample; those of all samples have the same names and shapes."""

Function = Callable[[Callable[..., Any], OfSample], OfSample]
"""function(call, given): what a sample gives, where call(method, …) is the learner's at that sample."""


def one_by_one(
    function: Function, learner: Learner, stacks: Mapping[str, Tensor], given: Sequence[OfSample]
) -> dict[str, Tensor]:
    """What `function` gives for each stacked sample s and given[s], one after the other, as stacks again."""
    found = [
        function(call, of_sample) for call, of_sample in zip(calls(learner, stacks, len(given)), given, strict=True)
    ]
    return {name: torch.stack([of_sample[name] for of_sample in found]) for name in found[0]}


class AtSamples:
    """A learner at each of S = `count` stacked samples, one after the other or some of them in one mapped call.

    A learner that cannot be mapped, say because its numbers decide what it does, takes one after the other from then
    on, and a warning says so once.
    """

    def __init__(self, learner: Learner, stacks: Mapping[str, Tensor], count: int) -> None:
        self.walked = Walked()
        self.learner, self.stacks, self.count = for_mapping(learner, self.walked), stacks, count
        self.mappable = bool(stacks)

    def each(self, function: Function, given: Sequence[OfSample], together: int) -> dict[str, Tensor]:
        """What `function` gives for each sample s and given[s], as stacks; `together` samples go into a mapped call."""
        if min(together, self.count) > 1 and self.mappable:
            try:
                return self._mapped(function, given, together)
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
        return one_by_one(function, self.learner, self.stacks, given)

    def _mapped(self, function: Function, given: Sequence[OfSample], together: int) -> dict[str, Tensor]:
        def one(sample: dict[str, Tensor], of_sample: dict[str, Tensor]) -> dict[str, Tensor]:
            return dict(function(at_sample(self.learner, sample), of_sample))

        stacked = {name: torch.stack([of_sample[name] for of_sample in given]) for name in given[0]}
        # What is random in evaluation mode is the same for all samples, see `Learner.noise_stream`.
        return torch.func.vmap(one, chunk_size=together, randomness="same")(dict(self.stacks), stacked)


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


def sample_classes(learner: Learner, stacks: Mapping[str, Tensor], count: int) -> list[OfSample]:
    """What `Learner.encode_classes` gives for each of `count` stacked samples.

    (One mapped call for all was tried: to map the many small operations costs more than to repeat them.)
    """
    return [call("encode_classes") for call in calls(learner, stacks, count)]


def logits_of(frozen: Any) -> Function:
    """The `logits` (B, C) that a sample gives, with what `Learner.frozen` gave; its classes are given."""

    def respond(call: Callable[..., Any], classes: OfSample) -> OfSample:
        return {"logits": call("respond", frozen, classes).logits}

    return respond


def all_logits(samples: AtSamples, classes: Sequence[OfSample], views: Tensor, together: int | None = None) -> Tensor:
    """Logits (S, B, C), float32, of every sample, for views uint8 (B, 3, H, W) on the learner's device.

    `classes` are what `sample_classes` gave. `together` samples go into one mapped call; by default `samples_together`
    decides how many.
    """
    frozen = _frozen(samples.learner, views)
    size = samples_together(frozen) if together is None else together
    return samples.each(logits_of(frozen), classes, size)["logits"].float()


def all_clouds(
    samples: AtSamples, classes: Sequence[OfSample], views: Tensor, spaces: Sequence[str], together: int | None = None
) -> list[Tensor]:
    """The points (S, n, d) of every sample in each of the named feature spaces, for views uint8 (N, 3, H, W).

    n is N, or C if the space has a row per class. One pass per sample serves all spaces. `classes` and `together` are
    as in `all_logits`.
    """
    frozen = _frozen(samples.learner, views)

    def clouds(call: Callable[..., Any], of_sample: OfSample) -> OfSample:
        output = call("respond", frozen, of_sample)
        return {space: output.cloud(space) for space in spaces}

    found = samples.each(clouds, classes, samples_together(frozen) if together is None else together)
    return [found[space].float().cpu() for space in spaces]


def _frozen(learner: Learner, views: Tensor) -> Any:
    encoder: DualEncoder = learner.encoder
    return learner.frozen(encoder.preprocessing.normalize(views))
