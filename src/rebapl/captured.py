"""Passes as CUDA graphs: recorded once, then replayed without the CPU's work of launching each kernel.

A graph is a recording: it reads and writes the same memory each time and takes no decisions. So only a pure function of
tensors of fixed shapes can be captured. Its inputs are copied to where the recording reads them; other tensors that it
reads (parameters, the repulsion's memory) must stay where they are. The next replay overwrites the outputs of the last.

The environment variable REBAPL_EAGER=1 turns this off, and compilation with it: everything then runs operation by
operation, in training and in answering.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from rebapl.errors import first_line

EAGER = 2
"""The first calls of a kind run as usual: libraries set themselves up in them, which cannot be captured."""

# Elsewhere in the process others may run, but only one may record.
_recording = threading.Lock()
_replaying = threading.Lock()
# By GPU: where passes are recorded, where their branches are, and the end of the last replay. For each stream that it
# meets the library of matrix products keeps working memory (64 MiB on an H200), so there are few.
_streams: defaultdict[int, torch.cuda.Stream] = defaultdict(torch.cuda.Stream)
_branches: defaultdict[int, torch.cuda.Stream] = defaultdict(torch.cuda.Stream)
_turns: defaultdict[int, torch.cuda.Event] = defaultdict(torch.cuda.Event)
# Where the recording that is under way began, for its branches.
_began: ContextVar[torch.cuda.Event | None] = ContextVar("began", default=None)


def accelerated(device: torch.device | str) -> bool:
    """Whether passes on this device are captured, and compiled where that pays: on a GPU, unless REBAPL_EAGER is set.

    >>> accelerated("cpu")
    False
    """
    return torch.device(device).type == "cuda" and os.environ.get("REBAPL_EAGER", "0") in ("", "0")


def current(device: torch.device | str) -> AbstractContextManager[Any]:
    """Inside, a GPU is the current one, for which passes are recorded and memory is pinned; a CPU needs nothing.

    A process begins with its first GPU as the current one, and so does each of its threads.
    """
    return torch.cuda.device(device) if torch.device(device).type == "cuda" else nullcontext()


def recording() -> bool:
    """Whether this thread is recording a graph."""
    return _began.get() is not None


def beside(make: Callable[[], Mapping[str, Tensor]]) -> Mapping[str, Tensor]:
    """The tensors by name that `make` gives, computed beside the caller's next operations while a graph is recorded.

    They are then computed on another stream, so that a replay runs both branches, forward and backward, at the same
    time; the first access waits for them. That stream begins where the recording began, so `make` may use parameters
    and the inputs of the graph, and nothing that was computed in it before. Otherwise they are computed at once.
    """
    began = _began.get()
    return make() if began is None else _Branch(make, began)


class _Branch(Mapping[str, Tensor]):
    """Tensors by name that are computed on the second stream of a recording."""

    def __init__(self, make: Callable[[], Mapping[str, Tensor]], began: torch.cuda.Event) -> None:
        self._stream: torch.cuda.Stream | None = _branches[torch.cuda.current_device()]
        self._stream.wait_event(began)
        with torch.cuda.stream(self._stream):
            self._made = make()

    def _joined(self) -> Mapping[str, Tensor]:
        if self._stream is not None:
            here = torch.cuda.current_stream()
            here.wait_stream(self._stream)
            for tensor in self._made.values():
                tensor.record_stream(here)
            self._stream = None
        return self._made

    def __getitem__(self, name: str) -> Tensor:
        return self._joined()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._joined())

    def __len__(self) -> int:
        return len(self._made)


class Capturing:
    """Runs functions of a few kinds, each captured when it has run `EAGER` times as usual.

    Where `memory` changes, the function looks at other tensors than before, and is recorded again. `generators` are
    those that the functions draw from; a replay goes on with their streams. If a function cannot be recorded, a warning
    says so once, and all functions run as usual from then on.
    """

    def __init__(self, generators: Iterable[torch.Generator] = ()) -> None:
        self.generators = [each for each in generators if each.device.type == "cuda"]
        self.failed = False
        self._runs: Counter[str] = Counter()
        self._captured: dict[str, tuple[int, _Captured]] = {}
        self._pool: Any = None

    def __call__(self, kind: str, function: Callable[..., Any], *given: Any, memory: int = -1) -> Any:
        """function(*given), as usual or replayed; `given` are tensors, and tuples and dictionaries of tensors.

        Tensors in the CPU's memory must be pinned. A recording has copies of them on the GPU; the function must take
        either.
        """
        self._runs[kind] += 1
        if self.failed or self._runs[kind] <= EAGER:
            return function(*given)
        recorded = self._captured.get(kind)
        if recorded is None or recorded[0] != memory or not recorded[1].fits(given):
            self._captured.pop(kind, None)
            try:
                recorded = (memory, _Captured(function, given, self.generators, self._pool))
            except (RuntimeError, NotImplementedError) as error:
                self._give_up(error)
                return function(*given)
            self._captured[kind] = recorded
            self._pool = recorded[1].graph.pool()
        return recorded[1](*given)

    def forget(self) -> None:
        """Record everything again: what the recordings look at has been replaced by other tensors."""
        self._captured.clear()
        self._pool = None  # no recording holds it any more, so the next cannot share it

    def _give_up(self, error: Exception) -> None:
        """Run as usual from now on. An error that has nothing to do with recording comes again, and is then raised.

        A recording that an error breaks off ends with an error of its own, so the first one is told.
        """
        self.failed = True
        self._captured.clear()
        first: BaseException = error
        while first.__context__ is not None:
            first = first.__context__
        warnings.warn(
            "a pass could not be captured as a CUDA graph and runs operation by operation, which is slower "
            f"({first_line(first)})",
            RuntimeWarning,
            stacklevel=3,
        )


class _Captured:
    """One recording, with its own copies of the inputs."""

    def __init__(
        self, function: Callable[..., Any], given: tuple[Any, ...], generators: list[torch.Generator], pool: Any
    ) -> None:
        copies = tree_map(_copy, given)
        self.inputs: list[Tensor] = tree_leaves(copies)
        self.graph = torch.cuda.CUDAGraph()
        for generator in generators:
            self.graph.register_generator_state(generator)
        # Gradients are asked for, not accumulated, so it does not matter on which stream that would happen.
        torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)
        with _recording:
            # torch's own stream for recording is one of the GPU that recorded first.
            stream = _streams[torch.cuda.current_device()]
            with torch.cuda.graph(self.graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
                began = torch.cuda.Event()
                began.record()
                token = _began.set(began)
                try:
                    self.outputs = function(*copies)
                finally:
                    _began.reset(token)

    def fits(self, given: tuple[Any, ...]) -> bool:
        return [x.shape for x in tree_leaves(given)] == [x.shape for x in self.inputs]

    def __call__(self, *given: Any) -> Any:
        # Graphs that were recorded on one stream share the working memory of libraries, so they take turns on a GPU,
        # whatever streams they are replayed on.
        with _replaying:
            stream = torch.cuda.current_stream()
            turn = _turns[stream.device_index]
            stream.wait_event(turn)
            for own, x in zip(self.inputs, tree_leaves(given), strict=True):
                own.copy_(x, non_blocking=True)
            self.graph.replay()
            turn.record(stream)
        return self.outputs


def _copy(x: Tensor) -> Tensor:
    """A copy on the GPU: what is on the CPU travels there, and again at each replay."""
    return x.detach().to(x.device if x.is_cuda else "cuda", non_blocking=True, copy=True)
