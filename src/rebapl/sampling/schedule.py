"""Cycles of a cosine step size, each split into exploring and sampling."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from rebapl.errors import UserError
from rebapl.sampling.rule import Rule


class CyclicalSchedule(LRScheduler):
    """lr_t = lr·max(floor, ½(1 + cos πρ)),  ρ = (t−1)/T_c,  t = 1..T_c in each cycle

    Zhang et al., "Cyclical Stochastic Gradient MCMC", 2020. While ρ < `exploration` the temperature is 0 (no
    injected noise); afterwards it is the optimizer's own, and `samples_per_cycle` samples are marked, evenly
    spaced, the last at the cycle's end. Momentum starts each cycle at zero unless `keep_momentum`.

    Call `step()` after the optimizer's step. Then `at_sample` and `at_cycle_end` describe the iteration that was just
    done. `exploring`, `burning_in`, `cycle`, `at_cycle_start`, `done` and the optimizer's lr and temperature describe
    the iteration to come.

    * `first_steps`: the number of iterations of the first `first_cycles` cycles (None: as many as the others have).
    * `floor`: share of lr below which the cosine does not go; 1 is a constant lr, 0 the plain cosine.
    * `granularity="epoch"` with `steps_per_epoch`: ρ moves once per epoch, as published baselines do.
    * `warmup_steps`: each of the first `warmup_cycles` cycles begins with this number of iterations at `warmup_lr`.
      Meanwhile the cosine's clock runs ("step"), or stands still and does not come to its end ("epoch", as published).
    * `burn_in`, `burn_in_optimizer`: this share at the start of each cycle belongs to another optimiser (of
      the same parameters), started afresh; `schedule.current` is the one to step. Its lr follows the curve.
      No longer than the exploration: afterwards the sampler has to move. A sampler with a mass matrix takes it from
      this optimiser, an AdamW, when the burn-in ends.

    It is a scheduler of torch like any other (`get_last_lr`, `last_epoch`, which counts steps) and works on any torch
    optimizer; those without a temperature only get the learning rate.

    >>> weight = torch.nn.Parameter(torch.zeros(1))
    >>> sgd = torch.optim.SGD([weight], lr=1.0)
    >>> schedule = CyclicalSchedule(sgd, steps_per_cycle=4, exploration=0.5, floor=0.1)
    >>> for _ in range(4):
    ...     print(round(schedule.lr, 3), schedule.exploring)
    ...     schedule.current.step()
    ...     schedule.step()
    1.0 True
    0.854 True
    0.5 False
    0.146 False
    >>> schedule.at_sample, schedule.cycle
    (True, 1)
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        steps_per_cycle: int,
        *,
        exploration: float = 0.4,
        cycles: int | None = None,
        samples_per_cycle: int = 1,
        first_steps: int | None = None,
        first_cycles: int = 1,
        floor: float = 0.05,
        granularity: str = "step",
        steps_per_epoch: int | None = None,
        warmup_steps: int = 0,
        warmup_lr: float = 1e-5,
        warmup_cycles: int = 1,
        keep_momentum: bool = False,
        burn_in: float = 0.0,
        burn_in_optimizer: torch.optim.Optimizer | None = None,
    ) -> None:
        first = steps_per_cycle if first_steps is None else first_steps
        for name, count in (("steps_per_cycle", steps_per_cycle), ("first_steps", first)):
            if count < 1:
                raise UserError(f"{name} is {count}; it must be at least 1")
        if cycles is not None and cycles < 1:
            raise UserError(f"cycles is {cycles}; it must be at least 1, or None for no end")
        if not 0 <= warmup_steps < first:
            raise UserError(
                f"the warm-up has {warmup_steps} iterations; accepted: from 0 to {first - 1}, fewer than a "
                f"cycle's {first}"
            )
        for name, share in (("exploration", exploration), ("floor", floor), ("burn_in", burn_in)):
            if not 0 <= share <= 1:
                raise UserError(f"{name} is {share}; it is a share, from 0 to 1")
        if granularity not in ("step", "epoch"):
            raise UserError(f"granularity is '{granularity}'; accepted: step, epoch")
        if granularity == "epoch" and (
            not steps_per_epoch or steps_per_cycle % steps_per_epoch or first % steps_per_epoch
        ):
            raise UserError(
                f"granularity 'epoch' needs steps_per_epoch dividing the cycles' steps ({steps_per_cycle}"
                f"{'' if first_steps is None else f' and {first}'}); given: {steps_per_epoch}"
            )
        if (burn_in > 0) != (burn_in_optimizer is not None):
            raise UserError("burn_in (a share above 0) and burn_in_optimizer go together: give both or none")
        if burn_in > exploration:
            raise UserError(
                f"burn_in is {burn_in}; it is part of the exploration, which is {exploration}: at most that"
            )
        self.steps_per_cycle, self.cycles = steps_per_cycle, cycles
        self.floor = floor
        self._per_epoch = granularity == "epoch"
        self._epoch = steps_per_epoch if self._per_epoch and steps_per_epoch else 1
        self._warmup = (warmup_steps, warmup_lr, warmup_cycles)
        self._keep_momentum = keep_momentum
        self.first_cycles = first_cycles
        self._first, self._others = (
            _Cycle.of(steps, exploration, burn_in, samples_per_cycle) for steps in (first, steps_per_cycle)
        )
        self._burner = burn_in_optimizer
        self.optimizer = optimizer
        groups = [group for each in self.optimizers for group in each.param_groups]
        self._base = [float(group["lr"]) for group in groups]
        self._temperatures = [group.get("temperature") for group in groups]
        self.last_epoch = -1
        super().__init__(optimizer)  # it calls step() once, which sets the first learning rate

    @property
    def steps(self) -> int:
        """How many iterations are done."""
        return self.last_epoch

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """The main optimizer, and that of the burn-in if there is one."""
        return [self.optimizer] if self._burner is None else [self.optimizer, self._burner]

    def locate(self, step: int) -> tuple[int, int]:
        """The cycle that iteration `step` belongs to, and how many iterations of that cycle come before it."""
        long = self._first.steps * self.first_cycles
        if step < long:
            return divmod(step, self._first.steps)
        cycle, within = divmod(step - long, self._others.steps)
        return cycle + self.first_cycles, within

    def start_of(self, cycle: int) -> int:
        """How many iterations come before a cycle; the inverse of `locate`."""
        long = min(cycle, self.first_cycles)
        return long * self._first.steps + (cycle - long) * self._others.steps

    def _of_cycle(self, cycle: int) -> _Cycle:
        return self._first if cycle < self.first_cycles else self._others

    @property
    def cycle(self) -> int:
        """The cycle that the next iteration belongs to, from 0."""
        return self.locate(self.steps)[0]

    @property
    def within(self) -> int:
        """How many iterations of this cycle are done: t−1."""
        return self.locate(self.steps)[1]

    @property
    def done(self) -> bool:
        return self.cycles is not None and self.cycle >= self.cycles

    @property
    def exploring(self) -> bool:
        return self.within < self._of_cycle(self.cycle).explore

    @property
    def burning_in(self) -> bool:
        return self.within < self._of_cycle(self.cycle).burn

    @property
    def _burn_in_ends(self) -> bool:
        return self.within == self._of_cycle(self.cycle).burn

    @property
    def at_cycle_start(self) -> bool:
        return self.within == 0

    @property
    def at_cycle_end(self) -> bool:
        return self.steps > 0 and self.within == 0

    @property
    def at_sample(self) -> bool:
        if self.steps == 0:
            return False
        cycle, before = self.locate(self.steps - 1)
        return before + 1 in self._of_cycle(cycle).marks

    @property
    def current(self) -> torch.optim.Optimizer:
        """The optimizer whose turn it is."""
        return self._burner if self._burner is not None and self.burning_in else self.optimizer

    @property
    def lr(self) -> float:
        """The learning rate of the first group of the optimizer whose turn it is."""
        return float(self.current.param_groups[0]["lr"])

    def step(self, epoch: int | None = None) -> None:  # noqa: ARG002 (torch's own schedulers have it)
        """On to the next iteration."""
        if self.last_epoch >= 0 and self.done:
            raise UserError(f"the schedule's {self.cycles} cycles are over; ask for more with `cycles`")
        self.last_epoch += 1
        if self.last_epoch > 0 and self.at_cycle_start:
            self._restart()
        elif self._burner is not None and isinstance(self.optimizer, Rule) and self._burn_in_ends:
            self.optimizer.freeze_mass(self._burner)
        self._apply()

    def get_lr(self) -> list[float | torch.Tensor]:
        """The learning rates of the next iteration, one per group of the optimizer."""
        return [self._lr(base) for base in self._base[: len(self.optimizer.param_groups)]]

    def _restart(self) -> None:
        if self._burner is not None:
            self._burner.state.clear()
        if self._keep_momentum:
            return
        if isinstance(self.optimizer, Rule):
            self.optimizer.restart()
        else:
            self.optimizer.state.clear()

    def factor(self) -> float:
        """max(floor, ½(1 + cos πρ)) for the next iteration."""
        warmup_steps, _, warmup_cycles = self._warmup
        waited = warmup_steps if self._per_epoch and self.cycle < warmup_cycles else 0
        epochs = max(self.within - waited, 0) // self._epoch
        return max(self.floor, 0.5 * (1 + math.cos(math.pi * epochs * self._epoch / self._of_cycle(self.cycle).steps)))

    def _lr(self, base: float) -> float:
        warmup_steps, warmup_lr, warmup_cycles = self._warmup
        warming = self.within < warmup_steps and self.cycle < warmup_cycles
        return warmup_lr if warming else base * self.factor()

    def _apply(self) -> None:
        groups = [group for each in self.optimizers for group in each.param_groups]
        for group, base, temperature in zip(groups, self._base, self._temperatures, strict=True):
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(self._lr(base))
            else:
                group["lr"] = self._lr(base)
            if temperature is not None:
                group["temperature"] = 0.0 if self.exploring else temperature
        self._last_lr = [float(group["lr"]) for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "lrs": list(self._base), "temperatures": list(self._temperatures)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state_dict` was taken. Load the optimizers' states as well."""
        self.last_epoch = state["steps"]
        self._base, self._temperatures = list(state["lrs"]), list(state["temperatures"])
        self._apply()


@dataclass(frozen=True)
class _Cycle:
    """The iterations of a cycle: all, those that explore, those that burn in, and after which a sample is kept."""

    steps: int
    explore: int
    burn: int
    marks: frozenset[int]

    @classmethod
    def of(cls, steps: int, exploration: float, burn_in: float, samples: int) -> _Cycle:
        explore = _steps(exploration, steps)
        return cls(steps, explore, _steps(burn_in, steps), frozenset(_sample_marks(explore, steps, samples)))


def _steps(share: float, total: int) -> int:
    """How many t have (t−1)/total < share, safe against 0.1·30 = 3.0000000000000004."""
    return math.ceil(share * total - 1e-9)


def _sample_marks(explore: int, total: int, samples: int) -> set[int]:
    """After which iterations of a cycle to keep a sample: evenly spaced over the sampling stage."""
    stage = total - explore
    if samples < 1 or samples > max(stage, 1):
        raise UserError(
            f"samples_per_cycle is {samples}; the sampling stage of a cycle has {stage} iterations: "
            f"accepted from 1 to {max(stage, 1)}"
        )
    return {explore + (k * stage) // samples for k in range(1, samples + 1)}
