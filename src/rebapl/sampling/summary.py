"""The samples of a cycle: its parameters at the marks of the schedule, or one of two summaries of its path.

A summary is an average over epochs, or a Gaussian from which samples are drawn (see `swag`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rebapl.sampling.schedule import CyclicalSchedule
from rebapl.sampling.settings import Averaging

Parameters = Mapping[str, Tensor]


class Summary:
    """The rule that makes the samples of a cycle from its path; here they are the parameters at the marks, as they are.

    `state` is what was noted in this cycle so far.
    """

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Begin a cycle."""
        self.state: dict[str, Any] = {}

    def samples_after(self, parameters: Parameters, schedule: CyclicalSchedule) -> list[Parameters]:
        """Note the parameters after an iteration, and return the samples that are to be stored now.

        `schedule` describes this iteration: its `step` has been called.
        """
        return [parameters] if schedule.at_sample else []


def epoch_weights(epochs: int, mean: float, std: float) -> list[float]:
    """w_e ∝ exp(−(e−mean)²/(2·std²)) for e = 1..epochs, summing to one.

    >>> [round(w, 3) for w in epoch_weights(3, mean=2, std=1)]
    [0.274, 0.452, 0.274]
    """
    raw = [math.exp(-((epoch - mean) ** 2) / (2 * std**2)) for epoch in range(1, epochs + 1)]
    return [w / sum(raw) for w in raw]


class EpochAverage(Summary):
    """Σ_e w_e·θ_e over one cycle, with θ_e the parameters at the end of epoch e (PromptSRC, Khattak et al. 2023)."""

    def __init__(self, averaging: Averaging, epochs: int, steps_per_epoch: int) -> None:
        super().__init__()
        self.weights = epoch_weights(epochs, averaging.mean, averaging.std)
        self.steps_per_epoch = steps_per_epoch

    @torch.no_grad()
    def samples_after(self, parameters: Parameters, schedule: CyclicalSchedule) -> list[Parameters]:
        epochs, within = divmod(schedule.steps, self.steps_per_epoch)
        if within == 0:  # an epoch has just ended
            weight = self.weights[(epochs - 1) % len(self.weights)]
            for name, value in parameters.items():
                term = value.detach().float() * weight
                self.state[name] = self.state[name] + term if name in self.state else term
        return [self.state] if schedule.at_cycle_end else []
