"""Functions of tensors that `torch.compile` makes faster, for runs that are long enough to make up for compiling.

Compiling takes seconds for each new shape, and less when PyTorch's own cache on disk has it from an earlier run. So a
`Compiled` function runs uncompiled unless the caller, who will call it many times, turns compilation on:

    with compiling():
        function(x)

If the function cannot be compiled, a warning says so once, and it runs uncompiled from then on. REBAPL_EAGER=1 turns
compilation off; see `captured`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch

from rebapl.errors import warn_slower

_wanted: ContextVar[bool] = ContextVar("compiling", default=False)

SHAPES = 128
"""For how many combinations of shapes and modes one function is compiled in a process, at most."""


@contextmanager
def compiling(wanted: bool = True) -> Iterator[None]:
    """Run `Compiled` functions in their compiled form inside `with`, if `wanted`."""
    token = _wanted.set(wanted)
    try:
        yield
    finally:
        _wanted.reset(token)


def is_compiling() -> bool:
    """Whether this code runs inside `compiling()`."""
    return _wanted.get()


@dataclass
class Compiled:
    """A pure function of tensors and plain values; each combination of plain values is compiled separately."""

    function: Callable[..., Any]
    failed: bool = False
    _fast: Callable[..., Any] | None = None

    def __call__(self, *arguments: Any) -> Any:
        if self.failed or not _wanted.get():
            return self.function(*arguments)
        try:
            if self._fast is None:
                _prepare()
                self._fast = torch.compile(self.function, dynamic=False, fullgraph=True)
            return self._fast(*arguments)
        except RuntimeError as error:  # if it is not the compiler's error, the uncompiled call below raises it again
            self.failed = True
            warn_slower("a part of the model could not be compiled and runs as usual", error)
        return self.function(*arguments)


def _prepare() -> None:
    """Set the options of PyTorch's compiler that all functions here need, also in their backward passes."""
    # A backward pass that reuses buffers cannot be run a second time, and measuring norms takes several of them.
    torch._functorch.config.donated_buffer = False
    torch._dynamo.config.recompile_limit = max(SHAPES, torch._dynamo.config.recompile_limit)
