"""Passes as CUDA graphs: recorded once, then replayed without the CPU's work of launching each kernel.

A graph is a recording: it reads and writes the same memory each time and takes no decisions. So only a pure function of
tensors of fixed shapes can be captured. Its inputs are copied to the memory that the recording reads. Other tensors
that it reads (parameters, the repulsion's memory) must stay at their addresses. Each replay overwrites the outputs of
the replay before it.

The environment variable REBAPL_EAGER=1 turns off this and compilation: everything then runs operation by operation, in
training and in prediction.
"""

from __future__ import annotations

import os
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from rebapl.errors import warn_slower

EAGER = 2
"""How many calls of a function run without a recording first: libraries set themselves up in them, which cannot be
captured."""

# Other threads may compute meanwhile, but only one thread of the process may record.
_recording = threading.Lock()
_replaying = threading.Lock()
# For each GPU: the stream on which passes are recorded, the stream of their branches, and the end of the last replay.
# The library of matrix products keeps working memory (64 MiB on an H200) for each stream on which it has been called,
# so all recordings share these two streams.
_streams: defaultdict[int, torch.cuda.Stream] = defaultdict(torch.cuda.Stream)
_branches: defaultdict[int, torch.cuda.Stream] = defaultdict(torch.cuda.Stream)
_turns: defaultdict[int, torch.cuda.Event] = defaultdict(torch.cuda.Event)
# The beginning of the current recording, from which its branches start; None outside of a recording.
_began: ContextVar[torch.cuda.Event | None] = ContextVar("began", default=None)


def accelerated(device: torch.device | str) -> bool:
    """Whether passes on this device are captured, and compiled where that pays: on a GPU, unless REBAPL_EAGER is set.

    >>> accelerated("cpu")
    False
    """
    return torch.device(device).type == "cuda" and os.environ.get("REBAPL_EAGER", "0") in ("", "0")


def current(device: torch.device | str) -> AbstractContextManager[Any]:
    """Make a GPU the current one inside `with`: passes are recorded and memory is pinned for the current GPU.

    Without this, the first GPU is the current one in each thread of a process. For a CPU, nothing is done.
    """
    return torch.cuda.device(device) if torch.device(device).type == "cuda" else nullcontext()


def recording() -> bool:
    """Whether this thread is recording a graph."""
    return _began.get() is not None


def beside(make: Callable[[], Mapping[str, Tensor]]) -> Mapping[str, Tensor]:
    """The tensors that `make` returns, by name, computed in parallel with the caller's next operations.

    This is so while a graph is recorded. `make` then runs on another stream, so that a replay runs both branches,
    forward and backward, at the same time; the first access to a tensor waits for them. That stream begins where the
    recording began, so `make` may use parameters and the inputs of the graph, but nothing that was computed earlier in
    the recording. Outside of a recording, `make` simply runs at once.
    """
    began = _began.get()
    return make() if began is None else _Branch(make, began)


class _Branch(Mapping[str, Tensor]):
    """Tensors by name that are computed on the second stream of a recording."""

    def __init__(self, make: Callable[[], Mapping[str, Tensor]], began: torch.cuda.Event) -> None:
        self._stream: torch.cuda.Stream | None = _branches[torch.cuda.current_device()]
        self._stream.wait_event(began)
        with torch.cuda.stream(self._stream):
            self._tensors = make()

    def _joined(self) -> Mapping[str, Tensor]:
        if self._stream is not None:
            here = torch.cuda.current_stream()
            here.wait_stream(self._stream)
            for tensor in self._tensors.values():
                tensor.record_stream(here)
            self._stream = None
        return self._tensors

    def __getitem__(self, name: str) -> Tensor:
        return self._joined()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._joined())

    def __len__(self) -> int:
        return len(self._tensors)


class Capturing:
    """Calls functions of a few kinds. Each is captured after it has run `EAGER` times without a recording.

    `generators` are the random streams that the functions draw from; a replay draws on from where these streams are. If
    a function cannot be recorded, a warning says so once, and all functions run without recordings from then on.
    """

    def __init__(self, generators: Iterable[torch.Generator] = ()) -> None:
        self.generators = [generator for generator in generators if generator.device.type == "cuda"]
        self.failed = False
        self._runs: Counter[str] = Counter()
        self._captured: dict[str, tuple[int, _Captured]] = {}
        self._pool: Any = None

    def __call__(self, kind: str, function: Callable[..., Any], *inputs: Any, memory: int = -1) -> Any:
        """function(*inputs), called or replayed; the inputs are tensors, or tuples and dictionaries of tensors.

        `memory` numbers the other tensors that the function reads: when they are replaced, the caller gives another
        number, and the function is recorded again. Input tensors in the CPU's memory must be pinned. A recording has
        copies of them on the GPU, so the function must accept tensors on the CPU and on the GPU.
        """
        self._runs[kind] += 1
        if self.failed or self._runs[kind] <= EAGER:
            return function(*inputs)
        recorded = self._captured.get(kind)
        if recorded is None or recorded[0] != memory or not recorded[1].fits(inputs):
            self._captured.pop(kind, None)
            try:
                recorded = (memory, _Captured(function, inputs, self.generators, self._pool))
            except (RuntimeError, NotImplementedError) as error:
                self._give_up(error)
                return function(*inputs)
            self._captured[kind] = recorded
            self._pool = recorded[1].graph.pool()
        return recorded[1](*inputs)

    def forget(self) -> None:
        """Drop all recordings, because the tensors that they read have been replaced; later calls record again."""
        self._captured.clear()
        self._pool = None  # no recording holds it any more, so the next cannot share it

    def _give_up(self, error: Exception) -> None:
        """Run without recordings from now on, and warn.

        If the error has nothing to do with recording, the call without a recording raises it again. When an error ends
        a recording early, ending the recording raises a second error; the warning shows the first one.
        """
        self.failed = True
        self._captured.clear()
        first: BaseException = error
        while first.__context__ is not None:
            first = first.__context__
        warn_slower("a pass could not be captured as a CUDA graph and runs operation by operation", first)


class _Captured:
    """One recording, with its own copies of the inputs."""

    def __init__(
        self, function: Callable[..., Any], inputs: tuple[Any, ...], generators: list[torch.Generator], pool: Any
    ) -> None:
        copies = tree_map(_copy, inputs)
        self.inputs: list[Tensor] = tree_leaves(copies)
        self.graph = torch.cuda.CUDAGraph()
        for generator in generators:
            self.graph.register_generator_state(generator)
        # Gradients come from torch.autograd.grad and are not accumulated, so the stream of accumulation is irrelevant.
        torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)
        with _recording:
            # torch's own stream for recording belongs to the GPU that recorded first.
            stream = _streams[torch.cuda.current_device()]
            with torch.cuda.graph(self.graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
                began = torch.cuda.Event()
                began.record()
                token = _began.set(began)
                try:
                    self.outputs = function(*copies)
                finally:
                    _began.reset(token)

    def fits(self, inputs: tuple[Any, ...]) -> bool:
        return [x.shape for x in tree_leaves(inputs)] == [x.shape for x in self.inputs]

    def __call__(self, *inputs: Any) -> Any:
        # Graphs that were recorded on one stream share the working memory of libraries. So only one of them may run at
        # a time on a GPU, even if they are replayed on different streams.
        with _replaying:
            stream = torch.cuda.current_stream()
            turn = _turns[stream.device_index]
            stream.wait_event(turn)
            for own, x in zip(self.inputs, tree_leaves(inputs), strict=True):
                own.copy_(x, non_blocking=True)
            self.graph.replay()
            turn.record(stream)
        return self.outputs


def _copy(x: Tensor) -> Tensor:
    """A copy on the GPU, also of a tensor on the CPU, which is copied there again at each replay."""
    return x.detach().to(x.device if x.is_cuda else "cuda", non_blocking=True, copy=True)
