"""A stand-in for CUDA graphs on a CPU: passes are "recorded", and each "replay" writes into the same memory."""

from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor

from rebapl import captured
from rebapl.posterior import passes


class Replaying:
    """A recording. It copies its inputs, and each replay overwrites the outputs of the last one."""

    made: list[tuple[int, ...]] = []

    def __init__(self, function: Callable[..., Tensor], given: tuple[Tensor, ...], *_: Any) -> None:
        self.function, self.inputs, self.graph = function, [x.clone() for x in given], self
        self.outputs = function(*self.inputs)
        self.made.append(tuple(given[0].shape))

    def pool(self) -> None:
        return None

    def fits(self, given: tuple[Tensor, ...]) -> bool:
        return [x.shape for x in given] == [x.shape for x in self.inputs]

    def __call__(self, *given: Tensor) -> Tensor:
        for own, x in zip(self.inputs, given, strict=True):
            own.copy_(x)
        return self.outputs.copy_(self.function(*self.inputs))


def stand_in(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Capture passes on the CPU with the stand-in. The shapes of recorded inputs are added to the returned list."""
    monkeypatch.setattr(passes, "accelerated", lambda _: True)
    monkeypatch.setattr(captured, "_Captured", Replaying)
    monkeypatch.setattr(Replaying, "made", [])
    return Replaying.made
