"""Cycles of a cosine step size, each split into exploring and sampling, and the optimizers whose lr they set."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler

from rebapl.errors import UserError
from rebapl.sampling.rule import Rule, prior_decay
from rebapl.sampling.settings import (
    SCHEDULED,
    AdamWSettings,
    Cold,
    Cosine,
    Inference,
    LangevinSettings,
    SGDSettings,
    SGHMCSettings,
    Warm,
)
from rebapl.sampling.sghmc import SGHMC
from rebapl.sampling.sgld import SGLD
from rebapl.settings import Settings, refuse
from rebapl.wording import number_of


class Timetable(Settings):
    """The cycles of a run, and the stages of each. `CyclicalSchedule` describes the settings."""

    steps_per_cycle: int = Field(ge=1)
    cycles: int | None = Field(default=None, ge=1)
    exploration: float = Field(default=0.4, ge=0, le=1)
    samples_per_cycle: int = 1
    first_steps: int | None = Field(default=None, ge=1)
    first_cycles: int = 1
    floor: float = Field(default=0.05, ge=0, le=1)
    granularity: Literal["step", "epoch"] = "step"
    steps_per_epoch: int | None = None
    warmup_steps: int = 0
    warmup_lr: float = 1e-5
    warmup_cycles: int = 1
    keep_momentum: bool = False
    burn_in: float = Field(default=0.0, ge=0, le=1)

    @model_validator(mode="after")
    def _consistent(self) -> Timetable:
        first, others, epoch = self.steps(0), self.steps_per_cycle, self.steps_per_epoch
        if not 0 <= self.warmup_steps < first:
            refuse(
                "warmup_steps", f"is {self.warmup_steps}: accepted are 0 to {first - 1}, fewer than a cycle's {first}"
            )
        if self.granularity == "epoch" and (not epoch or others % epoch or first % epoch):
            refuse("granularity", f"'epoch' needs steps_per_epoch dividing the steps of cycles ({first}, {others})")
        stage = min(steps - stage_steps(self.exploration, steps) for steps in (first, others))
        if not 1 <= self.samples_per_cycle <= max(stage, 1):
            refuse(
                "samples_per_cycle",
                f"is {self.samples_per_cycle}; the sampling stage of a cycle has {stage} iterations: "
                f"accepted from 1 to {max(stage, 1)}",
            )
        return self

    def steps(self, cycle: int) -> int:
        """The number of iterations of a cycle."""
        return self.first_steps if self.first_steps and cycle < self.first_cycles else self.steps_per_cycle

    def locate(self, step: int) -> tuple[int, int]:
        """The cycle to which iteration `step` belongs, and the number of iterations of that cycle before it."""
        steps_of_first = self.start_of(self.first_cycles)
        if step < steps_of_first:
            return divmod(step, self.steps(0))
        cycle, within = divmod(step - steps_of_first, self.steps_per_cycle)
        return cycle + self.first_cycles, within

    def start_of(self, cycle: int) -> int:
        """The number of iterations before a cycle; the inverse of `locate`."""
        first = min(cycle, self.first_cycles)
        return first * self.steps(0) + (cycle - first) * self.steps_per_cycle

    def marks_sample(self, step: int) -> bool:
        """Whether iteration `step` ends with a sample. Samples are evenly spaced over the sampling stage of a cycle."""
        cycle, before = self.locate(step)
        total, samples = self.steps(cycle), self.samples_per_cycle
        explore = stage_steps(self.exploration, total)
        return any(before + 1 == explore + k * (total - explore) // samples for k in range(1, samples + 1))

    def explores(self, cycle: int, within: int) -> bool:
        """Whether an iteration belongs to the exploration."""
        return within < stage_steps(self.exploration, self.steps(cycle))

    def lr(self, base: float, cycle: int, within: int) -> float:
        """The learning rate of an iteration: `warmup_lr`, or base·max(floor, ½(1 + cos πρ))."""
        warmup = self.warmup_steps if cycle < self.warmup_cycles else 0
        if within < warmup:
            return self.warmup_lr
        if self.granularity == "epoch" and self.steps_per_epoch:
            within = (within - warmup) // self.steps_per_epoch * self.steps_per_epoch
        return base * max(self.floor, 0.5 * (1 + math.cos(math.pi * within / self.steps(cycle))))


def stage_steps(share: float, total: int) -> int:
    """The number of t = 1..total with (t−1)/total < share, even if rounding makes share·total slightly too large."""
    return math.ceil(share * total - 1e-9)


class CyclicalSchedule(LRScheduler):
    """lr_t = lr·max(floor, ½(1 + cos πρ)),  ρ = (t−1)/T_c,  t = 1..T_c in each cycle

    Zhang et al., "Cyclical Stochastic Gradient MCMC", 2020. While ρ < `exploration`, the temperature is 0 (no injected
    noise); afterwards it is the optimizer's own. The settings have the defaults of `Timetable`:

    * `steps_per_cycle`: the number of iterations of a cycle. The first `first_cycles` cycles have `first_steps`
      iterations instead (None: as many as the others).
    * `cycles`: the number of cycles (None: without end).
    * `exploration`: the share of a cycle without injected noise. In the rest of the cycle, `samples_per_cycle` samples
      are marked, evenly spaced, the last at the cycle's end.
    * `burn_in`: the share of the exploration, counted from its start, in which another optimiser makes the steps.
    * `floor`: the share of lr below which the cosine does not fall; 1 is a constant lr, 0 the plain cosine.
    * `granularity`: with "step", ρ moves at each iteration. With "epoch", it moves once per epoch of `steps_per_epoch`
      iterations, as in published baselines.
    * `warmup_steps`: each of the first `warmup_cycles` cycles begins with this number of iterations at `warmup_lr`.
      Meanwhile ρ moves on ("step"), or it does not move, and so does not reach 1 ("epoch", as in published baselines).
    * `keep_momentum`: keep the momentum from one cycle to the next; without this, each cycle starts with momentum zero.

    Call `step()` after the optimizer's step. Then `at_sample` and `at_cycle_end` describe the iteration that was just
    done. `cycle`, `within` (the number of iterations of this cycle that are done), `exploring`, `at_cycle_start`,
    `done` and the optimizer's lr and temperature describe the next iteration. `steps` is the number of iterations done
    in all.

    `burn_in_optimizer`, an optimiser of the same parameters, makes the steps of the `burn_in`; its state is cleared
    after each cycle, and its lr follows the curve. Step `schedule.current`, which is the optimiser whose turn it is. A
    sampler with a mass matrix computes it from this optimiser, which must be an AdamW, when the burn-in ends.

    It is a scheduler of torch like any other (`get_last_lr`, `last_epoch`, which counts steps) and works on any torch
    optimizer. If the optimizer has no temperature, only its learning rate is set.

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
        burn_in_optimizer: torch.optim.Optimizer | None = None,
        **settings: Any,
    ) -> None:
        self.timetable = Timetable(steps_per_cycle=steps_per_cycle, **settings)
        if (self.timetable.burn_in > 0) != (burn_in_optimizer is not None):
            raise UserError("burn_in (a share above 0) and burn_in_optimizer go together: give both or none")
        self.optimizer, self._burn_in_optimizer = optimizer, burn_in_optimizer
        self.optimizers = [optimizer] if burn_in_optimizer is None else [optimizer, burn_in_optimizer]
        groups = [group for each in self.optimizers for group in each.param_groups]
        self._base = [float(group["lr"]) for group in groups]
        self._temperatures = [group.get("temperature") for group in groups]
        self.done = False
        super().__init__(optimizer)  # it calls step() once, which sets the first learning rate

    @property
    def lr(self) -> float:
        """The learning rate of the first group of the optimizer whose turn it is."""
        return float(self.current.param_groups[0]["lr"])

    def step(self, epoch: int | None = None) -> None:
        """Go on to the next iteration. Torch's own schedulers also accept an epoch, which is refused here."""
        if epoch is not None:
            raise UserError("a schedule goes on by one iteration: call step() without an epoch")
        if self.done:
            raise UserError(f"the schedule's {self.timetable.cycles} cycles are over; ask for more with `cycles`")
        self._go_to(self.last_epoch + 1)
        adamw = self._burn_in_optimizer
        if self.at_cycle_end:
            if adamw is not None:
                adamw.state.clear()
            keep_momentum = self.timetable.keep_momentum
            if isinstance(self.optimizer, Rule):
                self.optimizer.restart(keep_momentum)
            elif not keep_momentum:
                self.optimizer.state.clear()
        elif adamw is not None and isinstance(self.optimizer, Rule) and self.within == self._burn_in_steps:
            self.optimizer.freeze_mass(adamw)

    def _go_to(self, step: int) -> None:
        """Set everything that describes the iteration `step`, which comes next, and the iteration before it."""
        table = self.timetable
        self.last_epoch = self.steps = step
        self.cycle, self.within = table.locate(step)
        total = table.steps(self.cycle)
        self.exploring = table.explores(self.cycle, self.within)
        self.done = table.cycles is not None and self.cycle >= table.cycles
        self.at_cycle_start = self.within == 0
        self.at_cycle_end = step > 0 and self.within == 0
        self.at_sample = step > 0 and table.marks_sample(step - 1)
        self._burn_in_steps = stage_steps(table.burn_in * table.exploration, total)
        burns_in = self._burn_in_optimizer is not None and self.within < self._burn_in_steps
        self.current = self.optimizers[-1] if burns_in else self.optimizer
        groups = [group for each in self.optimizers for group in each.param_groups]
        for group, base, temperature in zip(groups, self._base, self._temperatures, strict=True):
            lr = table.lr(base, self.cycle, self.within)
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(lr)
            else:
                group["lr"] = lr
            if temperature is not None:
                group["temperature"] = 0.0 if self.exploring else temperature
        self._last_lr = [float(group["lr"]) for group in self.optimizer.param_groups]

    def get_lr(self) -> list[float | Tensor]:
        """The learning rates of the next iteration, one per group of the optimizer."""
        return list(self._last_lr)

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "lrs": list(self._base), "temperatures": list(self._temperatures)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the iteration at which `state_dict` was called. The optimizers have states of their own."""
        self._base, self._temperatures = list(state["lrs"]), list(state["temperatures"])
        self._go_to(state["steps"])


def build_optimizer(
    inference: Inference, parameters: list[Any], num_data: int, generator: torch.Generator
) -> torch.optim.Optimizer:
    """The optimizer that `inference.sampler` names. SGD is built as SGHMC at temperature 0, whose step is the same."""
    sampler = inference.sampler
    own: dict[str, Any] = {name: getattr(sampler, name) for name in type(sampler).model_fields if name not in SCHEDULED}
    if isinstance(sampler, AdamWSettings):
        return torch.optim.AdamW(parameters, **own)
    if isinstance(sampler, SGDSettings):
        return SGHMC(parameters, **own, num_data=num_data, temperature=0.0)
    rule = SGHMC if isinstance(sampler, SGHMCSettings) else SGLD
    return rule(parameters, **own, num_data=num_data, generator=generator)


def build_burn_in(sampler: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """The AdamW of the first part of each cycle, for the parameters of a sampler with one group.

    Its decoupled weight decay is the sampler's prior. AdamW decays towards zero; where the prior has a centre θ₀, each
    step then adds θ₀'s share of the decay, θ ← θ + lr·wd·θ₀.
    """
    (prior,) = sampler.param_groups
    decay = prior_decay(prior["weight_decay"], prior["prior_std"], prior["num_data"])
    adamw = torch.optim.AdamW(prior["params"], lr=prior["lr"], weight_decay=decay)

    @torch.no_grad()
    def pull(adamw: torch.optim.Optimizer, *_: Any) -> None:
        (group,) = adamw.param_groups
        for p in group["params"]:
            if p.grad is not None:
                p.add_(sampler.state[p]["center"], alpha=float(group["lr"]) * group["weight_decay"])

    if prior["center"] is not None:
        adamw.register_step_post_hook(pull)
    return adamw


def build_timetable(inference: Inference, steps_per_epoch: int) -> Timetable:
    """The timetable of a whole run. It counts each cycle of each chain as a cycle of its own, one after the other."""
    sampler, curve, warmup, restart = inference.sampler, inference.curve, inference.warmup, inference.restart
    langevin = sampler if isinstance(sampler, LangevinSettings) else None
    exploration, marks = 1.0 if langevin is None else langevin.exploration, inference.samples_per_cycle
    if (swag := inference.swag) is not None:  # the schedule marks its snapshots, not samples
        shortest = min(inference.epochs, inference.first_epochs or inference.epochs) * steps_per_epoch
        stage = shortest - stage_steps(swag.start, shortest)
        if not stage:
            cycle = number_of(shortest, "step")
            refuse("swag", f"has no step for a snapshot in cycles of {cycle}: more epochs are needed")
        exploration, marks = swag.start, min(swag.snapshots, stage)
    rounds = inference.cycles * inference.chains
    return Timetable(
        steps_per_cycle=inference.epochs * steps_per_epoch,
        cycles=rounds,
        exploration=exploration,
        samples_per_cycle=marks,
        first_steps=None if inference.first_epochs is None else inference.first_epochs * steps_per_epoch,
        first_cycles=inference.chains,
        floor=curve.floor if isinstance(curve, Cosine) else 1.0,
        granularity=curve.every if isinstance(curve, Cosine) else "step",
        steps_per_epoch=steps_per_epoch,
        warmup_steps=0 if warmup is None else warmup.epochs * steps_per_epoch,
        warmup_lr=0.0 if warmup is None else warmup.lr,
        warmup_cycles=rounds if isinstance(restart, Cold) else inference.chains,
        keep_momentum=isinstance(restart, Warm) and restart.keep_momentum,
        burn_in=0.0 if langevin is None else langevin.burn_in,
    )


def build_schedule(
    inference: Inference,
    parameters: list[Any],
    num_data: int,
    steps_per_epoch: int,
    generator: torch.Generator,
    optimizer: torch.optim.Optimizer | None = None,
) -> CyclicalSchedule:
    """The schedule of a whole run (see `build_timetable`) with the optimizers whose learning rates it sets."""
    table = build_timetable(inference, steps_per_epoch)
    optimizer = optimizer or build_optimizer(inference, parameters, num_data, generator)
    burn_in = build_burn_in(optimizer) if table.burn_in else None
    return CyclicalSchedule(optimizer, burn_in_optimizer=burn_in, **dict(table))
