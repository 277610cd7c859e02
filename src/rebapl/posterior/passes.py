"""The passes of a bound posterior. Texts are encoded once. The CPU waits for the GPU only when an answer is needed, or
when too many passes are running.

`Passes` works on one device and `Spread` on several.

On a GPU, a pass is captured as a CUDA graph for each number of images, and replayed. To keep these numbers few, a pass
is filled up with black images to a power of two, and their answers are thrown away. A pass begins when its images have
been copied to pinned memory. They travel to the GPU while it still works on the images before them, and the logits come
back to pinned memory in the same way. The CPU waits only where an answer is needed, or where `IN_FLIGHT` passes have
begun and have not ended.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import cached_property
from itertools import cycle
from typing import Any, TypeVar

import torch
from torch import Tensor

from rebapl.backbones.features import AT_ONCE
from rebapl.captured import Capturing, accelerated, current
from rebapl.compiled import compiling, is_compiling
from rebapl.learners import Learner
from rebapl.posterior.per_sample import AtSamples

CHUNK = AT_ONCE
"""The number of images in one pass. Stored features are encoded in passes of the same size, and so agree to the bit."""

IN_FLIGHT = 4
"""The largest number of passes that have begun and not ended; their images are in pinned memory."""

COMPILED_FROM = 200_000
"""The layers of passes of `CHUNK` images are compiled after this number of images times samples.

Compiling costs some ten seconds, about half of what these passes took on an H200, and saves a quarter of the time from
then on. A caller who knows that many more images will come can compile earlier: `with compiling(): …`.
"""

LARGEST = 2000
"""A pass through more layers than this is not captured: it keeps a GPU busy anyway, and its graph would be large.

Each call of the learner, for one sample or for several at once, counts as one walk through the image tower.
"""

Label = TypeVar("Label")

Finish = Callable[[], Tensor]
"""Waits for a pass that has begun, and returns its logits (S, n, C), float32 on the CPU."""


class Passes:
    """The passes of S = `count` stacked `samples` through a bound learner, on the device of its backbone.

    What the passes share is computed once, when it is first needed. Several threads may use it at the same time. All
    memory is freed with this object; a copy of it starts without any.
    """

    def __init__(self, learner: Learner, samples: Mapping[str, Tensor], count: int) -> None:
        self.learner, self.samples, self.count = learner, samples, count
        self._lock = threading.RLock()
        self._capturing = Capturing() if accelerated(self.device) else None
        self._large = set[str]()  # the kinds of passes that are too large to be captured
        self._full = 0  # the number of images so far in passes of CHUNK images
        self._in_flight: deque[torch.cuda.Event] = deque()
        self._sending: torch.cuda.Stream | None = None
        self._working: torch.cuda.Stream | None = None

    def __reduce__(self) -> Any:
        return Passes, (self.learner, self.samples, self.count)

    @property
    def device(self) -> torch.device:
        return self.learner.encoder.device

    def begin(self, views: Tensor) -> Finish:
        """Begin the passes of views uint8 (n, 3, H, W)."""
        if not len(views):
            return lambda: torch.empty(self.count, 0, len(self.learner.class_names))
        begun = [self._begin(chunk) for chunk in views.split(CHUNK)]
        return lambda: torch.cat([finish() for finish in begun], dim=1)

    @torch.inference_mode(False)  # the encoded texts are used later, by callers in either mode
    @torch.no_grad()
    def clouds(self, views: Tensor, *spaces: str) -> list[Tensor]:
        """The points (S, n, d) of every sample in feature spaces, for a few views.

        n is the number of views, or of classes in a space such as `text`; see `AtSamples.points`.
        """
        with self._lock:
            points = self._at_samples.points(views.to(self.device), spaces)
            return [points[space].cpu() for space in spaces]

    @torch.inference_mode(False)  # the encoded texts are used later, by callers in either mode
    @torch.no_grad()
    def _begin(self, views: Tensor) -> Finish:
        """Begin one pass of at most `CHUNK` views."""
        with self._lock, current(self.device):
            if self.device.type == "cuda":
                self._take_turn()
            samples, count = self._at_samples, len(views)
            if self._capturing is None:
                logits = samples.points(self._send(views, count), ("logits",))["logits"]
            else:
                size = filled_up(count)
                self._full += size if size == CHUNK else 0
                earned = size == CHUNK and self._full * self.count >= COMPILED_FROM
                with compiling(earned or is_compiling()):
                    logits = self._replay(samples, self._capturing, self._send(views, size))
            return self._fetch(logits, count)

    def _take_turn(self) -> None:
        """Wait until fewer than `IN_FLIGHT` passes run, and for passes on another stream, which use the same memory."""
        while len(self._in_flight) >= IN_FLIGHT:
            self._in_flight.popleft().synchronize()
        stream = torch.cuda.current_stream()
        if self._working is not None and self._working != stream:
            stream.wait_stream(self._working)
        self._working = stream

    @cached_property
    def _at_samples(self) -> AtSamples:
        """The samples on the device, with their texts encoded."""
        on_device = {name: stack.to(self.device) for name, stack in self.samples.items()}
        with compiling(False):  # texts are encoded once
            return AtSamples(self.learner, on_device, self.count)

    def _replay(self, samples: AtSamples, capturing: Capturing, pixels: Tensor) -> Tensor:
        """The logits of a pass, which the next pass of this posterior may overwrite."""

        def answer(pixels: Tensor) -> Tensor:
            return samples.points(pixels, ("logits",))["logits"]

        kind = f"{tuple(pixels.shape)} {pixels.dtype}{' compiled' * is_compiling()}"
        if kind in self._large:
            return answer(pixels)
        before = samples.calls
        logits: Tensor = capturing(kind, answer, pixels)
        if (samples.calls - before) * len(self.learner.encoder.vision.layers) > LARGEST:
            self._large.add(kind)
        return logits

    def _send(self, views: Tensor, size: int) -> Tensor:
        """Views on the device, filled up to `size` images."""
        if self.device.type != "cuda" or views.device.type == "cuda":
            return _fill_up(views, size).to(self.device)
        pinned = _fill_up(views, size, pinned=True)
        if self._sending is None:
            self._sending = torch.cuda.Stream()
        with torch.cuda.stream(self._sending):
            pixels = pinned.to(self.device, non_blocking=True)
        working = torch.cuda.current_stream()
        working.wait_stream(self._sending)
        pixels.record_stream(working)
        return pixels

    def _fetch(self, logits: Tensor, count: int) -> Finish:
        """Begin to copy the logits of the first `count` images back to the CPU."""
        if self.device.type != "cuda":
            on_cpu = logits[:, :count].cpu().clone()  # the next captured pass overwrites `logits`
            return lambda: on_cpu
        pinned = torch.empty(logits.shape, pin_memory=True)
        pinned.copy_(logits, non_blocking=True)
        ended = torch.cuda.Event()
        ended.record()
        self._in_flight.append(ended)

        def finish() -> Tensor:
            ended.synchronize()
            return pinned[:, :count]

        return finish


class Spread:
    """As `Passes`, with one learner for each device: the same posterior on copies of its backbone.

    Images are split over the devices, because then nothing is computed twice. If there are fewer images than devices,
    the samples are split instead. The numbers are those of one device, up to rounding.
    """

    def __init__(self, learners: Sequence[Learner], samples: Mapping[str, Tensor], count: int) -> None:
        self.learners, self.samples, self.count = learners, samples, count
        self._whole = [Passes(learner, samples, count) for learner in learners]
        self._threads = [ThreadPoolExecutor(1) for _ in learners]  # the threads end with this object

    def __reduce__(self) -> Any:
        return Spread, (self.learners, self.samples, self.count)

    def begin(self, views: Tensor) -> Finish:
        """Begin the passes of views uint8 (n, 3, H, W), on all devices; see `Passes.begin`."""
        if len(views) < len(self.learners) and self.count > 1:
            dim, work = 0, [(passes, views) for passes in self._shares]
        else:
            size = min(CHUNK, math.ceil(len(views) / len(self.learners)) or 1)
            dim, work = 1, list(zip(cycle(self._whole), views.split(size), strict=False))
        begun = [
            thread.submit(copy_context().run, passes.begin, some)  # the context says whether to compile
            for thread, (passes, some) in zip(cycle(self._threads), work, strict=False)
        ]
        return lambda: torch.cat([future.result()() for future in begun], dim=dim)

    def clouds(self, views: Tensor, *spaces: str) -> list[Tensor]:
        """As `Passes.clouds`, on the first device."""
        return self._whole[0].clouds(views, *spaces)

    @cached_property
    def _shares(self) -> list[Passes]:
        """The samples in nearly equal shares, one per device, or one per sample if there are fewer samples."""
        shares = zip(self.learners, torch.arange(self.count).tensor_split(len(self.learners)), strict=True)
        return [
            Passes(learner, {name: stack[some] for name, stack in self.samples.items()}, len(some))
            for learner, some in shares
            if len(some)
        ]


def filled_up(images: int) -> int:
    """The number of images that a pass is filled up to: the next power of two.

    >>> [filled_up(images) for images in (1, 3, 200, 256)]
    [1, 4, 256, 256]
    """
    return 1 << (images - 1).bit_length()


def _fill_up(views: Tensor, size: int, pinned: bool = False) -> Tensor:
    """The views followed by black images, `size` in all; in pinned memory on the CPU if `pinned`."""
    if len(views) == size and not pinned:
        return views
    device = "cpu" if pinned else views.device
    filled = torch.empty((size, *views.shape[1:]), dtype=views.dtype, device=device, pin_memory=pinned)
    if pinned:  # by numpy: torch would divide the copy among threads, whose cores may be busy decoding the next images
        filled.numpy()[: len(views)] = views.numpy()
    else:
        filled[: len(views)] = views
    filled[len(views) :] = 0
    return filled


def in_order(
    portions: Iterable[tuple[Label, Tensor]], begin: Callable[[Tensor], Finish], ahead: int
) -> Iterator[tuple[Label, Tensor]]:
    """The logits of portions (label, views), in their order and with their labels.

    The logits of a portion are waited for when the `ahead` portions after it have begun. If a portion fails, the
    portions before it are yielded first, and then its error is raised.
    """
    begun: deque[tuple[Label, Finish]] = deque()
    error: Exception | None = None
    remaining = iter(portions)
    while error is None:
        try:
            label, views = next(remaining)
            begun.append((label, begin(views)))
        except StopIteration:
            break
        except Exception as raised:
            error = raised
        else:
            if len(begun) > ahead:
                earlier, finish = begun.popleft()
                yield earlier, finish()
    for label, finish in begun:
        yield label, finish()
    if error is not None:
        raise error
