"""What goes into a run and what comes out of it: batches, samples, states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

Batches = Callable[[int], tuple[Tensor, Tensor]]
"""step → images (B, …), labels (B,): a pure function of the step, so that a resumed run sees the same."""


@dataclass(frozen=True)
class Sample:
    """One θ of the posterior: name → float32 tensor on the CPU, and where in the run it was taken."""

    parameters: dict[str, Tensor]
    cycle: int
    chain: int
    step: int


def copied(tree: Any) -> Any:
    """The same nested dicts and lists, with tensors cloned."""
    if isinstance(tree, Tensor):
        return tree.detach().clone()
    if isinstance(tree, dict):
        return {key: copied(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(copied(value) for value in tree)
    return tree
