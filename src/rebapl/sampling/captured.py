"""A step's passes as CUDA graphs: recorded once, then replayed without the CPU's work of launching each kernel.

A graph is a recording: it reads and writes the same memory each time and takes no decisions. So what is captured
is a pure function of tensors of fixed shapes; what it reads besides (parameters, the repulsion's memory) must stay
where it is, and its inputs are copied to where it looks for them. What it returns is overwritten by the next replay.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

EAGER = 2
"""So many steps of a kind run as usual first: libraries set themselves up, which cannot be captured."""

# Elsewhere in the process others may run, but only one may record.
_recording = threading.Lock()


class Capturing:
    """Runs functions of a few kinds, each captured when it has run `EAGER` times as usual.

    Where `memory` changes, the function looks at other tensors than before, and is recorded again. `generators` are
    those that the functions draw from; a replay goes on with their streams.
    """

    def __init__(self, generators: Iterable[torch.Generator] = ()) -> None:
        self.generators = [each for each in generators if each.device.type == "cuda"]
        self._runs: Counter[str] = Counter()
        self._captured: dict[str, tuple[int, _Captured]] = {}
        self._pool: Any = None

    def __call__(self, kind: str, function: Callable[..., Any], *given: Any, memory: int = -1) -> Any:
        """function(*given), as usual or replayed; `given` are tensors and (named) tuples of tensors."""
        self._runs[kind] += 1
        if self._runs[kind] <= EAGER:
            return function(*given)
        recorded = self._captured.get(kind)
        if recorded is None or recorded[0] != memory or not recorded[1].fits(given):
            self._captured.pop(kind, None)
            recorded = (memory, _Captured(function, given, self.generators, self._pool))
            self._captured[kind] = recorded
            self._pool = recorded[1].graph.pool()
        return recorded[1](*given)


class _Captured:
    """One recording, with its own copies of the inputs."""

    def __init__(
        self, function: Callable[..., Any], given: tuple[Any, ...], generators: list[torch.Generator], pool: Any
    ) -> None:
        copies = _map(given, lambda x: x.detach().clone())
        self.inputs = _tensors(copies)
        self.graph = torch.cuda.CUDAGraph()
        for generator in generators:
            self.graph.register_generator_state(generator)
        with _recording, torch.cuda.graph(self.graph, pool=pool, capture_error_mode="thread_local"):
            self.outputs = function(*copies)

    def fits(self, given: tuple[Any, ...]) -> bool:
        return [x.shape for x in _tensors(given)] == [x.shape for x in self.inputs]

    def __call__(self, *given: Any) -> Any:
        for own, x in zip(self.inputs, _tensors(given), strict=True):
            own.copy_(x, non_blocking=True)
        self.graph.replay()
        return self.outputs


def _map(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same tensor or nested (named) tuple of tensors, each changed."""
    if isinstance(value, Tensor):
        return change(value)
    parts = [_map(part, change) for part in value]
    return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)


def _tensors(value: Any) -> list[Tensor]:
    """The tensors of a nested tuple, in order."""
    return [value] if isinstance(value, Tensor) else [tensor for part in value for tensor in _tensors(part)]
