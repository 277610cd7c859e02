"""Functions of tensors that `torch.compile` makes quicker, where a run is long enough to earn what compiling costs.

Compiling takes seconds for each new shape, and less when PyTorch's own cache on disk has it from an earlier run. So a
function made here runs as usual, unless somebody who calls it again and again asks for the compiled form:

    with compiling():
        function(x)

If it cannot be compiled, a warning says so once, and it runs as usual from then on. REBAPL_EAGER=1 turns this off; see
`captured`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch

from rebapl.errors import first_line

_wanted: ContextVar[bool] = ContextVar("compiling", default=False)

SHAPES = 128
"""The most shapes and modes of one function that are compiled in a process."""


@contextmanager
def compiling(wanted: bool = True) -> Iterator[None]:
    """Inside, functions that can be compiled are, if `wanted`."""
    token = _wanted.set(wanted)
    try:
        yield
    finally:
        _wanted.reset(token)


def is_compiling() -> bool:
    """Whether functions that can be compiled are, here and now."""
    return _wanted.get()


@dataclass
class Compiled:
    """A pure function of tensors (and plain values, of which each combination is compiled for itself)."""

    function: Callable[..., Any]
    failed: bool = False
    _fast: Callable[..., Any] | None = None

    def __call__(self, *given: Any) -> Any:
        if self.failed or not _wanted.get():
            return self.function(*given)
        try:
            if self._fast is None:
                _prepare()
                self._fast = torch.compile(self.function, dynamic=False, fullgraph=True)
            return self._fast(*given)
        except RuntimeError as error:  # an error that is not the compiler's comes again, and is then raised
            self.failed = True
            warnings.warn(
                f"a part of the model could not be compiled and runs as usual, which is slower ({first_line(error)})",
                RuntimeWarning,
                stacklevel=2,
            )
        return self.function(*given)


def _prepare() -> None:
    """Set what PyTorch's compiler must know of all that is compiled here, backward passes included."""
    # Buffers that a backward pass may reuse would forbid a second one, and norms are measured with several.
    torch._functorch.config.donated_buffer = False
    torch._dynamo.config.recompile_limit = max(SHAPES, torch._dynamo.config.recompile_limit)
