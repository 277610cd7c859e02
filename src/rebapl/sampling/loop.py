"""What all sampling loops share: steps that can be resumed, records, and the return to the last good state."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from rebapl.captured import current
from rebapl.errors import UserError
from rebapl.learnable import Learnable
from rebapl.randomness import generator
from rebapl.repulsion.parameters import total_norm
from rebapl.sampling.diagnostics import Diagnostics, Guard, NonFiniteError, finite
from rebapl.sampling.objective import Batch
from rebapl.sampling.rule import Rule
from rebapl.sampling.schedule import CyclicalSchedule
from rebapl.sampling.settings import Inference

Batches = Callable[[int], tuple[Tensor, Tensor]]
"""step → images (B, …), labels (B,): a pure function of the step, so that a resumed run gets the same batches."""


@runtime_checkable
class Drawing(Protocol):
    """`Batches` that can be drawn inside a captured pass, if `drawable` is true: batches(step) is draw(choices(step)).

    `choices(step)` holds everything that is random in a step, one row per image; it may be on the CPU, in pinned
    memory. It is a new tensor each time, because the device may not have read the previous one yet. `draw` makes images
    and labels from it on the device, by operations that have the same shapes at each step and do not wait.
    """

    @property
    def drawable(self) -> bool: ...

    def choices(self, step: int, /) -> Tensor: ...

    def draw(self, choices: Tensor, /) -> tuple[Tensor, Tensor]: ...


@dataclass(frozen=True)
class Sample:
    """One θ of the posterior (name → float32 tensor on the CPU), and the cycle, chain and step that it comes from."""

    parameters: dict[str, Tensor]
    cycle: int
    chain: int
    step: int


class Loop(ABC):
    """A run of a sampler on a learner, which `rebapl.training` drives without knowing which sampler it is.

    `Chain` describes the arguments. All randomness comes from `seed`. Between two steps, `state_dict()` holds the whole
    state: a run that is restored from it equals an uninterrupted run bit for bit.
    """

    schedule: CyclicalSchedule
    streams: ClassVar[tuple[str, ...]]
    """The names of the random streams. The learner draws from the last one."""

    def __init__(
        self,
        learner: Learnable[Any],
        inference: Inference,
        batches: Batches,
        *,
        num_data: int,
        steps_per_epoch: int,
        seed: int = 0,
        reference: Tensor | None = None,
        anchor: Tensor | None = None,
        held_out: tuple[Tensor, Tensor | None] | None = None,
        record_every: int = 0,
        check_every: int = 25,
        capture: bool | None = None,
        compile: bool | None = None,
    ) -> None:
        self.learner, self.inference, self.batches, self.seed = learner, inference, batches, seed
        self.num_data, self.steps_per_epoch = num_data, steps_per_epoch
        self.record_every, self.check_every = record_every, check_every
        self.held_out, self.capture, self.compile = held_out, capture, compile
        self.parameters: dict[str, nn.Parameter] = {
            name: p for name, p in learner.named_parameters() if p.requires_grad
        }
        if not self.parameters:
            raise UserError("this learner has no parameters to learn")
        self.device = next(iter(self.parameters.values())).device
        self.generators = {name: generator(seed, *name.split("/"), device=self.device) for name in self.streams}
        self.guard, self.diagnostics = Guard(self.device), Diagnostics()
        self.samples: list[Sample] = []
        self.stopped = False  # true if adaptive cycles ended the run
        self.last_loss = math.nan  # that of the last check, so that reading it never waits for the device
        self._good: dict[str, Any] | None = None
        learner.use_noise(self.generators[self.streams[-1]])
        self._build(reference, anchor)

    @abstractmethod
    def _build(self, images: Tensor | None, anchor: Tensor | None) -> None:
        """Make the schedule and the other parts of this sampler; refuse the settings of another sampler."""

    @property
    def steps_in_all(self) -> int:
        """How many steps the whole run has; adaptive cycles may end it sooner."""
        return self.inference.all_epochs * self.steps_per_epoch

    @property
    def done(self) -> bool:
        return self.stopped or self.schedule.done

    def begin_at(self, cycle: int) -> None:
        """Go to the beginning of a cycle that does not depend on those before it; cycles count over all chains."""
        independent = self.inference.independent_cycles
        if independent == 1 or not 0 <= cycle < independent:
            raise UserError(f"cycle {cycle} of this run cannot be sampled by itself: see `independent_cycles`")
        self.schedule.load_state_dict({**self.schedule.state_dict(), "steps": self.schedule.timetable.start_of(cycle)})

    def run(self) -> Iterator[Sample]:
        """Do all steps that remain, and yield each sample as soon as it is stored."""
        while not self.done:
            before = len(self.samples)
            self.step()
            yield from self.samples[before:]

    def step(self) -> None:
        """One iteration. If a number was not finite, the last good state is restored and the error is raised."""
        if self.done:
            raise UserError("this run is over: it has taken all its samples")
        if self._good is None:
            self._good = self.state_dict()
        with current(self.device):
            checked = self._advance(self.schedule.steps)
        if checked:
            self._good = self.state_dict()

    @abstractmethod
    def _advance(self, now: int) -> bool:
        """Do iteration `now`. Return whether its numbers were checked, so that its state is good to return to."""

    def _check_size(self, step: int, batch: Batch) -> None:
        count = len(batch if isinstance(batch, Tensor) else batch[0])
        if count != self.inference.batch:
            raise UserError(
                f"the settings have batches of {self.inference.batch} images, and step {step} was given {count}: "
                "let `batches` give as many, or change `batch`"
            )

    def _records(self, now: int) -> bool:
        """Whether iteration `now` gets a record."""
        return self.record_every > 0 and now % self.record_every == 0

    def _checked(self, now: int, loss: Tensor) -> bool:
        """At a sample and every `check_every` steps, refuse numbers that are not finite; return whether it did so."""
        checking = self.schedule.at_sample or (now + 1) % self.check_every == 0
        if checking:
            self.refuse_what_is_not_finite()
            self.last_loss = loss.item()
            if isinstance(self.schedule.optimizer, Rule):
                self.schedule.optimizer.warn_if_clamped()
        return checking

    def refuse_what_is_not_finite(self) -> None:
        """If a number was not finite, restore the last good state and raise the error. This waits for the device."""
        norm = total_norm(p.detach() for p in self.parameters.values())
        self.guard.note(self.schedule.steps - 1, finite(parameters=norm))
        first = self.guard.first()
        if first is None:
            return
        assert self._good is not None
        self.guard.clear()
        self.load_state_dict(self._good)
        raise NonFiniteError(*first, good_step=self.schedule.steps)

    def rows(self) -> list[dict[str, float]]:
        """The records since the last call, each with its cycle and chain. This waits for the device."""
        rows = []
        for row in self.diagnostics.rows():
            cycle, chain = divmod(self.schedule.timetable.locate(int(row["step"]))[0], self.inference.chains)
            rows.append({**row, "cycle": cycle, "chain": chain})
        self.diagnostics = Diagnostics()
        return rows

    def state_dict(self) -> dict[str, Any]:
        """Everything that the rest of the run depends on: nested dicts and lists of tensors and plain values."""
        changing = {
            "schedule": self.schedule.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.schedule.optimizers],
            "generators": {name: stream.get_state() for name, stream in self.generators.items()},
            **self._own_state(),
        }
        return {**cloned(changing), "samples": [vars(sample).copy() for sample in self.samples]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict` of a run with the same learner and settings."""
        changing = cloned({name: value for name, value in state.items() if name != "samples"})
        self._restore(changing)
        for optimizer, saved in zip(self.schedule.optimizers, changing["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.schedule.load_state_dict(changing["schedule"])
        for name, stream in self.generators.items():
            stream.set_state(changing["generators"][name].cpu())
        self.samples = [Sample(**sample) for sample in state["samples"]]
        self._good = None

    @abstractmethod
    def _own_state(self) -> dict[str, Any]:
        """The part of the state that belongs to this sampler only."""

    @abstractmethod
    def _restore(self, state: dict[str, Any]) -> None:
        """The inverse of `_own_state`."""

    def check_restored(self) -> None:
        """Raise a `ValueError` if the state that was restored cannot belong to this run."""
        steps = self.schedule.steps
        if not isinstance(steps, int) or not 0 <= steps <= self.steps_in_all:
            raise ValueError(f"it was taken after {steps!r} of {self.steps_in_all} steps")
        shapes = {name: p.shape for name, p in self.parameters.items()}
        for sample in self.samples:
            if {name: value.shape for name, value in sample.parameters.items()} != shapes:
                raise ValueError("its samples are of another learner")


def cpu_copy(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A copy of parameters in the form of a sample: float32 on the CPU."""
    return {name: p.detach().to("cpu", torch.float32, copy=True) for name, p in parameters.items()}


@torch.no_grad()
def cloned(tree: Any) -> Any:
    """The same nested dicts and lists, with clones of the tensors."""
    return tree_map_only(Tensor, torch.clone, tree)
