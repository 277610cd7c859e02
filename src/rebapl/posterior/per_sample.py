"""What each sample of a posterior predicts for images: its logits, or its points in a feature space.

All samples go through one learner, and each part is computed as rarely as it can be. What depends on the images alone
(`Learner.frozen`) is computed once for all samples, so a method that learns text only sees each image once. Text
features are computed once per sample. What needs both an image and a sample is computed sample by sample. On a GPU,
methods whose samples each walk through the image tower may take a group of samples in one mapped call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rebapl.backbones import States
from rebapl.learners import Learner, Output

CHUNK = 256
"""Images in one pass."""

MAPPED_BYTES = 512 * 2**20
"""Working memory of one call that is mapped over samples; as many samples go together as fit into it.

More would fit, but mapping pays only while one sample's pass leaves a GPU idle. With ViT-B/16 and 12 samples on an
H200, one call took half the time of 12 for one image and three quarters for eight, as long for 32, and a quarter more
from 256 on.
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
    """Calls `(method, *arguments)` of a learner as if its parameters were the sample's."""
    parameters = {f"learner.{name}": tensor for name, tensor in sample.items()}
    methods = _Methods(learner)
    return lambda method, *arguments: torch.func.functional_call(methods, parameters, (method, *arguments))


def samples_together(frozen: Tensor | States) -> int:
    """How many samples one call may be mapped over; 1 if mapping gains nothing.

    Mapping gains nothing for methods whose image features are complete in `frozen`. It gains nothing without a GPU
    either: there the samples are as quick one after another, and attention has no mapped form.
    """
    if not isinstance(frozen, States) or frozen.hidden.device.type == "cpu":
        return 1
    return room_for(frozen)


def room_for(frozen: States) -> int:
    """How many samples' passes over these states fit into `MAPPED_BYTES`."""
    hidden = frozen.hidden
    return max(1, MAPPED_BYTES // (hidden.numel() * hidden.element_size() * WORKING_COPIES))


def sample_logits(
    learner: Learner,
    samples: Mapping[str, Tensor],
    count: int,
    views: Tensor | Iterable[Tensor],
    together: int | None = None,
) -> Tensor:
    """Logits (S, N, C), float32 on the CPU, of S = `count` stacked samples, for views uint8 (N, 3, H, W).

    If the views come in portions, one portion is read after the other, and none is kept. `together` samples go into one
    mapped call; by default `samples_together` decides how many.
    """
    whole = [views] if isinstance(views, Tensor) else views
    return torch.cat(list(portion_logits(learner, samples, count, whole, together)), dim=1)


@torch.no_grad()
def portion_logits(
    learner: Learner,
    samples: Mapping[str, Tensor],
    count: int,
    portions: Iterable[Tensor],
    together: int | None = None,
) -> Iterator[Tensor]:
    """The same for portions of views, one after the other: logits (S, n, C) for each. Texts are encoded only once."""
    stacks = {name: stack.to(learner.encoder.device) for name, stack in samples.items()}
    classes = sample_classes(learner, stacks, count)
    for portion in portions:
        chunks = []
        for chunk in portion.split(CHUNK):
            frozen = _frozen(learner, chunk)
            size = samples_together(frozen) if together is None else together
            if size > 1 and stacks:
                logits = _mapped(learner, stacks, classes, frozen, size)
            else:
                logits = one_by_one(learner, stacks, classes, frozen)
            chunks.append(logits.float().cpu())
        yield torch.cat(chunks, dim=1)


def sample_classes(learner: Learner, stacks: Mapping[str, Tensor], count: int) -> list[Mapping[str, Tensor]]:
    """What `Learner.encode_classes` gives for each of `count` stacked samples."""
    return [call("encode_classes") for call in _calls(learner, stacks, count)]


def one_by_one(
    learner: Learner, stacks: Mapping[str, Tensor], classes: Sequence[Mapping[str, Tensor]], frozen: Any
) -> Tensor:
    """The logits (S, B, C) of each sample, with what `sample_classes` and `Learner.frozen` gave."""
    calls = zip(_calls(learner, stacks, len(classes)), classes, strict=True)
    return torch.stack([call("respond", frozen, of_sample).logits for call, of_sample in calls])


@torch.no_grad()
def sample_clouds(learner: Learner, samples: Mapping[str, Tensor], count: int, views: Tensor, space: str) -> Tensor:
    """The points (S, n, d) of a named feature space of every sample, in one pass over views uint8 (N, 3, H, W).

    n is N, or C if the space has a row per class.
    """
    stacks = {name: stack.to(learner.encoder.device) for name, stack in samples.items()}
    frozen = _frozen(learner, views)
    outputs: Iterator[Output] = (
        call("respond", frozen, call("encode_classes")) for call in _calls(learner, stacks, count)
    )
    return torch.stack([output.cloud(space).float().cpu() for output in outputs])


def _calls(learner: Learner, stacks: Mapping[str, Tensor], count: int) -> Iterator[Callable[..., Any]]:
    for index in range(count):
        yield at_sample(learner, {name: stack[index] for name, stack in stacks.items()})


def _frozen(learner: Learner, views: Tensor) -> Any:
    return learner.frozen(learner.encoder.preprocessing.normalize(views.to(learner.encoder.device)))


def _mapped(
    learner: Learner, stacks: dict[str, Tensor], classes: list[Mapping[str, Tensor]], frozen: Any, size: int
) -> Tensor:
    """The logits (S, B, C) in calls of `size` samples each."""

    def respond(sample: dict[str, Tensor], of_sample: dict[str, Tensor]) -> Tensor:
        return at_sample(learner, sample)("respond", frozen, of_sample).logits

    stacked = {name: torch.stack([of_sample[name] for of_sample in classes]) for name in classes[0]}
    return torch.func.vmap(respond, chunk_size=size)(stacks, stacked)
