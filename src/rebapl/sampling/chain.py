"""The one loop: any learner through cycles of exploring and sampling (Algorithm 1 of the ReBaPL paper).

    for cycle c = 1..C, and each chain k side by side:
        restart: warm from the chain's last θ (with a kick off the saddle), or cold from a fresh start
        for iteration t = 1..T_c:
            set lr (cosine) and temperature (0 while exploring)
            L = mean loss of the batch + Σ_s c_s·V(θ, earlier sample s), the sum k-fold at every k-th step
            one step of the sampler on exp(−N·L/T)
            keep θ where the schedule marks a sample, and its features on the reference pool

Chains meet only through samples of *earlier* cycles. So running them one after the other inside a cycle is
the same as running them at once, and needs the memory of one. Cold cycles without a force do not meet at all: each has
random streams of its own, so that it can be sampled elsewhere, see `begin_at`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rebapl.captured import Capturing, accelerated
from rebapl.errors import UserError
from rebapl.learnable import Learnable
from rebapl.repulsion import Repulsion, kick
from rebapl.sampling.adaptive import worth_another_cycle
from rebapl.sampling.building import build_repulsion, build_schedule
from rebapl.sampling.diagnostics import Diagnostics
from rebapl.sampling.gradients import Gradient, Gradients, StepPasses
from rebapl.sampling.guard import total_norm
from rebapl.sampling.loop import Batch, Batches, Drawing, Loop, Sample, copied, kept
from rebapl.sampling.reference import Reference, evaluating
from rebapl.sampling.settings import Cold, Inference, Repelling, Warm, pool_size

COMPILED_FROM = 10_000
"""Compiling costs some ten seconds and saves one or two milliseconds a step: runs with so many steps have it."""


class Chain(Loop):
    """Runs `learner` as `inference` says. `run()` yields samples; `step()` is one iteration. Arguments of `Loop`, and

    * `reference`: pool of un-augmented training images for the repulsion (its first `pool` are used).
    * `anchor`: the features on that pool of the model before anything is learned, which give the repulsion's ε its
      scale; None: those of the parameters as they are now.
    * `held_out`: images and labels (or None) for adaptive cycles.
    * `capture`: replay forward and backward passes as CUDA graphs, which is several times faster for small
      batches; None: on a GPU. Batches must then have one shape. They are drawn in the pass where they can be
      (`Drawing`).
    * `compile`: compile the layers of the backbone; None: on a GPU, where the run is long enough to earn it.
    """

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
        if inference.sampler.kind == "svgd":
            raise UserError("the sampler 'svgd' moves particles together: run it with SVGD, not with Chain")
        if inference.adaptive is not None and held_out is None:
            raise UserError("adaptive cycles need held-out images: give held_out=(images, labels or None)")
        if held_out is not None and len(held_out[0]) == 0:
            raise UserError("held_out has no images: without any, leave `adaptive` and `held_out` out")
        super().__init__(
            learner,
            inference,
            batches,
            num_data=num_data,
            steps_per_epoch=steps_per_epoch,
            seed=seed,
            streams=("chain/sampler", "chain/restart", "chain/repulsion", "chain/learner"),
            record_every=record_every,
            check_every=check_every,
        )
        learner.use_noise(self.generators["chain/learner"])
        self.held_out = held_out
        tensors = list(self.parameters.values())
        self.schedule = build_schedule(inference, tensors, num_data, steps_per_epoch, self.generators["chain/sampler"])
        self.repulsion: Repulsion | None = None
        if inference.repulsion is not None:
            self.reference = self._reference(inference.repulsion, reference)
            self.repulsion = self._repulsion(inference.repulsion, anchor)
        average = inference.averaging
        self.average = None if average is None else EpochAverage(inference.epochs, average.mean, average.std)
        self.diagnostics = Diagnostics()
        wanted = accelerated(self.device) if capture is None else capture
        capturing = Capturing([self.generators["chain/learner"]]) if wanted else None
        if compile is None:
            compile = accelerated(self.device) and inference.all_epochs * steps_per_epoch >= COMPILED_FROM
        self.drawing = batches if wanted and isinstance(batches, Drawing) and batches.drawable else None
        self.passes = StepPasses(learner, list(tensors), capturing, compile, self.drawing)
        self.stopped = False
        self._ends: dict[int, dict[str, Tensor]] = {}
        self._predictions: list[Tensor] = []

    def _reference(self, settings: Repelling, pool: Tensor | None) -> Reference:
        space = settings.space or self.learner.repels_in
        if space is None:
            raise UserError("this learner names no feature space to repel in: set the repulsion's `space`")
        if pool is not None:
            pool = pool[: pool_size(settings.images, settings.pool)].to(self.device)
        return Reference(self.learner, space, pool, settings.images, self.batches(0)[0][:1], settings.rows)

    def _repulsion(self, settings: Repelling, anchor: Tensor | None) -> Repulsion:
        # a distance that cannot work on such clouds says so now, not when the first cycle is over
        stream = torch.Generator().manual_seed(0)
        first, second = (torch.randn(self.reference.shape, generator=stream) for _ in range(2))
        build_repulsion(settings, stream, first).remember(second)
        if anchor is None and settings.potential.scale is None:
            with evaluating(self.learner):
                anchor = self.reference.stored()
        elif anchor is not None:
            anchor = anchor[: self.reference.shape[0]]
        return build_repulsion(settings, self.generators["chain/repulsion"], anchor)

    @property
    def cycle(self) -> int:
        """The cycle c of the next iteration, from 0."""
        return self.schedule.cycle // self.inference.chains

    @property
    def chain(self) -> int:
        """The chain k of the next iteration, from 0."""
        return self.schedule.cycle % self.inference.chains

    @property
    def exploring(self) -> bool:
        return self.schedule.exploring

    @property
    def done(self) -> bool:
        return self.stopped or self.schedule.done

    def _advance(self, now: int) -> bool:
        """One iteration of Algorithm 1."""
        batch = self._given(now)
        if self.schedule.at_cycle_start:
            self._begin_cycle()
        cycle, chain, optimizer = self.cycle, self.chain, self.schedule.current
        found = self._gradients(batch)
        if self.repulsion is not None:
            self.repulsion.note_loss(found.loss)
        for p, grad in zip(self.parameters.values(), found.grads, strict=True):
            p.grad = grad
        self.guard.take(now, found.finite)
        recording = self.record_every > 0 and now % self.record_every == 0
        if recording:
            active = self.repulsion is not None and self.repulsion.active(self.exploring)
            self.diagnostics.before(now, optimizer, found.loss, self.repulsion if active else None)
        self._move(optimizer, found.beside)
        if recording:
            self.diagnostics.after(optimizer)
        self.schedule.step()
        if self.average is not None and (now + 1) % self.steps_per_epoch == 0:
            epoch = (now // self.steps_per_epoch) % self.inference.epochs
            self.average.add(epoch, self.parameters)
        checking = self.schedule.at_sample or (now + 1) % self.check_every == 0
        if checking:
            self.refuse_what_is_not_finite()
            self.last_loss = found.loss.item()
        if self.schedule.at_sample:
            self._keep(cycle, chain)
        if self.schedule.at_cycle_end:
            self._end_cycle(cycle, chain)
        return checking

    def _begin_cycle(self) -> None:
        """The start θ of this cycle and chain: as given, the chain's last with a kick, or drawn anew."""
        self._own_streams(self.schedule.cycle)
        first = self.cycle == 0 and self.chain == 0
        restart = self.inference.restart
        if not first and (self.cycle == 0 or isinstance(restart, Cold)):
            with torch.no_grad():
                self.learner.reset(self.generators["chain/restart"])
        elif self.cycle > 0:
            assert isinstance(restart, Warm)
            self._set(self._ends[self.chain])
            if restart.kick > 0:
                kick(self.parameters.values(), restart.kick, self.generators["chain/restart"])
        if self.average is not None:
            self.average.restart()
        if self.repulsion is not None and self.chain == 0:
            self.repulsion.begin_cycle()

    @property
    def _decoupled(self) -> bool:
        """Whether an adaptive optimiser moves θ, which would rescale a force that goes through it."""
        return isinstance(self.schedule.current, torch.optim.AdamW)

    def _given(self, step: int) -> Batch:
        if self.drawing is None:
            return self._batch(step)
        choices = self.drawing.choices(step)
        self._check_size(step, len(choices))
        return choices

    def _gradients(self, batch: Batch) -> Gradients:
        """One pass forward and backward, with the repulsion's term where it acts."""
        if self.repulsion is None or not self.repulsion.acts(self.exploring, self.schedule.within):
            return self.passes.plain(batch)
        return self.passes.repelled(
            batch,
            self.repulsion,
            self.reference,
            self.generators["chain/repulsion"],
            exploring=self.exploring,
            decoupled=self._decoupled,
            memory=self.cycle,
        )

    @torch.no_grad()
    def _move(self, optimizer: torch.optim.Optimizer, beside: Gradient) -> None:
        """The optimizer's step, and beside it the force that does not go through it.

        An adaptive optimiser rescales whatever gradient it is given. So, as AdamW does with weight decay, the force is
        decoupled from it: θ ← θ − lr·∇term, the term sized so that ‖Δθ_force‖ = fraction·share·‖the optimiser's step‖.
        """
        watched = self._decoupled and self.repulsion is not None
        before = [p.detach().clone() for p in self.parameters.values()] if watched else []
        optimizer.step()
        if watched and self.repulsion is not None:
            moved = [p - old for p, old in zip(self.parameters.values(), before, strict=True)]
            lr = optimizer.param_groups[0]["lr"]
            self.repulsion.note_step(total_norm(moved) / lr if lr else torch.zeros((), device=self.device))
        scale = optimizer.param_groups[0]["lr"] if self._decoupled and not self._printed else 1.0
        for p, grad in zip(self.parameters.values(), beside, strict=False):
            if grad is not None:
                p.add_(grad, alpha=-float(scale))

    @property
    def _printed(self) -> bool:
        return self.repulsion is not None and self.repulsion.force.outside

    def _keep(self, cycle: int, chain: int) -> None:
        """Take the current θ (or the average over epochs) as a sample, and remember its features."""
        current = {name: p.detach().clone() for name, p in self.parameters.items()}
        if self.average is not None:
            self._set(self.average.sums)
        self.samples.append(Sample(kept(self.parameters), cycle, chain, self.schedule.steps))
        with evaluating(self.learner):
            if self.repulsion is not None and cycle < self.inference.cycles - 1:  # nothing comes after the last
                self.repulsion.remember(self.reference.stored())
            if self.held_out is not None and self.inference.adaptive is not None:
                self._predictions.append(self._predict(self.held_out[0]))
        self._set(current)

    def _end_cycle(self, cycle: int, chain: int) -> None:
        if isinstance(self.inference.restart, Warm):
            self._ends[chain] = {name: p.detach().clone() for name, p in self.parameters.items()}
        rule, per_cycle = self.inference.adaptive, self.inference.chains * self.inference.samples_per_cycle
        if rule is not None and self.held_out is not None and len(self._predictions) == per_cycle * (cycle + 1):
            labels = None if self.held_out[1] is None else self.held_out[1].cpu()
            cycles = list(torch.stack(self._predictions).split(per_cycle))
            self.stopped = not worth_another_cycle(cycles, labels, rule)

    def _predict(self, images: Tensor, chunk: int = 64) -> Tensor:
        """Class probabilities (M, C), on the CPU."""
        logits = [self.learner(part.to(self.device)).logits.float() for part in images.split(chunk)]
        return torch.cat(logits).softmax(-1).cpu()

    @torch.no_grad()
    def _set(self, values: dict[str, Tensor]) -> None:
        for name, p in self.parameters.items():
            p.copy_(values[name])

    def rows(self) -> list[dict[str, float]]:
        """The records since the last call, with the cycle and the chain of each."""
        rows = []
        for row in self.diagnostics.rows():
            cycle, chain = divmod(self.schedule.locate(int(row["step"]))[0], self.inference.chains)
            rows.append({**row, "cycle": cycle, "chain": chain})
        self.diagnostics.clear()
        return rows

    def state_dict(self) -> dict[str, Any]:
        """Everything that the rest of the run depends on: nested dicts and lists of tensors and plain values."""
        state: dict[str, Any] = {
            **self._common_state(),
            "parameters": self.parameters,
            "optimizers": [each.state_dict() for each in self.schedule.optimizers],
            "repulsion": None if self.repulsion is None else self.repulsion.state_dict(),
            "average": None if self.average is None else self.average.sums,
            "ends": {str(chain): end for chain, end in self._ends.items()},
            "stopped": self.stopped,
        }
        state = copied(state)
        state["samples"] = [vars(sample).copy() for sample in self.samples]  # never changed, so not copied
        state["predictions"] = list(self._predictions)
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict` of a chain with the same learner and settings."""
        state = {**state, **copied({k: v for k, v in state.items() if k not in ("samples", "predictions")})}
        self._set(state["parameters"])
        for optimizer, saved in zip(self.schedule.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self._load_common_state(state)
        if self.repulsion is not None:
            self.repulsion.load_state_dict(state["repulsion"])
        if self.passes.capturing is not None:
            self.passes.capturing.forget()
        if self.average is not None:
            self.average.sums = {name: total.to(self.device) for name, total in state["average"].items()}
        self._ends = {int(chain): end for chain, end in state["ends"].items()}
        self.stopped = state["stopped"]
        self._predictions = list(state["predictions"])


def epoch_weights(epochs: int, mean: float, std: float) -> list[float]:
    """w_e ∝ exp(−(e−mean)²/(2·std²)) for e = 1..epochs, summing to one.

    >>> [round(w, 3) for w in epoch_weights(3, mean=2, std=1)]
    [0.274, 0.452, 0.274]
    """
    raw = [math.exp(-((epoch - mean) ** 2) / (2 * std**2)) for epoch in range(1, epochs + 1)]
    return [w / sum(raw) for w in raw]


class EpochAverage:
    """Σ_e w_e·θ_e over one cycle, θ_e the parameters at the end of epoch e (PromptSRC, Khattak et al. 2023)."""

    def __init__(self, epochs: int, mean: float, std: float) -> None:
        self.weights = epoch_weights(epochs, mean, std)
        self.sums: dict[str, Tensor] = {}

    def restart(self) -> None:
        self.sums = {}

    @torch.no_grad()
    def add(self, epoch: int, parameters: Mapping[str, Tensor]) -> None:
        """Count the parameters at the end of epoch `epoch`, from 0."""
        for name, value in parameters.items():
            term = value.detach().float() * self.weights[epoch]
            self.sums[name] = self.sums[name] + term if name in self.sums else term
