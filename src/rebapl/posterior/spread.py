"""The passes of a posterior on several devices at once, a thread for each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import cached_property
from itertools import cycle
from typing import Any

import torch
from torch import Tensor

from rebapl.learners import Learner
from rebapl.posterior.passes import CHUNK, Finish, Passes


class Spread:
    """As `Passes`, but with one learner for each device: the same posterior, on copies of its backbone.

    Images are split over the devices, because then nothing is computed twice. Where there are fewer images than
    devices, the samples are split instead. The numbers are those of one device, up to rounding.
    """

    def __init__(self, learners: Sequence[Learner], samples: Mapping[str, Tensor], count: int) -> None:
        self.learners, self.samples, self.count = learners, samples, count
        self._whole = [Passes(learner, samples, count) for learner in learners]
        self._threads = [ThreadPoolExecutor(1) for _ in learners]  # they end with this object

    def __reduce__(self) -> Any:
        return Spread, (self.learners, self.samples, self.count)

    @property
    def ahead(self) -> int:
        """As `Passes.ahead`."""
        return 1

    @property
    def device_count(self) -> int:
        """How many devices share the work."""
        return len(self.learners)

    def begin(self, views: Tensor, together: int | None = None) -> Finish:
        """Begin the passes of views uint8 (n, 3, H, W), on all devices; see `Passes.begin`."""
        if len(views) < self.device_count and self.count > 1:
            by, given = 0, [(passes, views) for passes in self._shares]
        else:
            each = min(CHUNK, math.ceil(len(views) / self.device_count) or 1)
            by, given = 1, list(zip(cycle(self._whole), views.split(each), strict=False))
        begun = [
            thread.submit(copy_context().run, passes.begin, some, together)  # it says whether to compile
            for thread, (passes, some) in zip(cycle(self._threads), given, strict=False)
        ]
        return lambda: torch.cat([each.result()() for each in begun], dim=by)

    def clouds(self, views: Tensor, *spaces: str) -> list[Tensor]:
        """As `Passes.clouds`, on the first device."""
        return self._whole[0].clouds(views, *spaces)

    @cached_property
    def _shares(self) -> list[Passes]:
        """The samples in nearly equal shares, one for each device as far as they go."""
        shares, first = [], 0
        for index, learner in enumerate(self.learners):
            last = self.count * (index + 1) // self.device_count
            if last > first:
                some = {name: stack[first:last] for name, stack in self.samples.items()}
                shares.append(Passes(learner, some, last - first))
            first = last
        return shares
