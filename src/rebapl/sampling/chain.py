"""The one loop: any learner through cycles of exploring and sampling (Algorithm 1 of the ReBaPL paper).

    for cycle c = 1..C, and each chain k side by side:
        restart: warm from the chain's last θ (with a kick off the saddle), or cold from a fresh start
        for iteration t = 1..T_c:
            set lr (cosine) and temperature (0 while exploring)
            L = mean loss of the batch + strength·Σ V(θ, earlier samples)
            one step of the sampler on exp(−N·L/T)
            keep θ where the schedule marks a sample, and its features on the reference pool

Chains meet only through samples of *earlier* cycles. So running them one after the other inside a cycle is
the same as running them at once, and needs the memory of one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from rebapl.errors import UserError
from rebapl.randomness import generator
from rebapl.repulsion import Repulsion, kick
from rebapl.sampling.adaptive import worth_another_cycle
from rebapl.sampling.averaging import EpochAverage
from rebapl.sampling.building import build_schedule
from rebapl.sampling.captured import Capturing
from rebapl.sampling.diagnostics import Diagnostics
from rebapl.sampling.guard import Guard, NonFiniteError, total_norm
from rebapl.sampling.passes import Gradients, Passes
from rebapl.sampling.reference import Learnable, Reference, evaluating
from rebapl.sampling.sample import Batches, Sample, copied
from rebapl.sampling.settings import Inference


class Chain:
    """Runs `learner` as `inference` says. `run()` yields samples; `step()` is one iteration.

    * `batches(step)` gives the mini-batch of a step; `steps_per_epoch` of them are an epoch.
    * `num_data`: number of training examples, N.
    * `reference`: pool of un-augmented training images for the repulsion (its first `pool` are used).
    * `held_out`: images and labels (or None) for adaptive cycles.
    * `record_every`: every how many steps `diagnostics` gets a record; 0 is never.
    * `check_every`: every how many steps the numbers are checked for being finite, which waits for the device.
    * `capture`: replay forward and backward passes as CUDA graphs, which is several times faster for small
      batches; None: on a GPU. Batches must then have one shape.

    All randomness comes from `seed`. `state_dict()` between two steps holds everything: a run restored from it
    equals an uninterrupted one bit for bit.
    """

    def __init__(
        self,
        learner: Learnable,
        inference: Inference,
        batches: Batches,
        *,
        num_data: int,
        steps_per_epoch: int,
        seed: int = 0,
        reference: Tensor | None = None,
        held_out: tuple[Tensor, Tensor | None] | None = None,
        record_every: int = 0,
        check_every: int = 25,
        capture: bool | None = None,
    ) -> None:
        if inference.sampler == "svgd":
            raise UserError("sampler 'svgd' moves particles together: run it with SVGD, not with Chain")
        if inference.adaptive is not None and held_out is None:
            raise UserError("adaptive cycles need held-out images: give held_out=(images, labels or None)")
        if held_out is not None and len(held_out[0]) == 0:
            raise UserError("held_out has no images: without any, leave `adaptive` and `held_out` out")
        self.learner, self.inference, self.batches = learner, inference, batches
        self.parameters = {name: p for name, p in learner.named_parameters() if p.requires_grad}
        if not self.parameters:
            raise UserError("this learner has no parameters to learn")
        self.device = next(iter(self.parameters.values())).device
        self.steps_per_epoch = steps_per_epoch
        self.held_out = held_out
        self.record_every, self.check_every = record_every, check_every
        names = ("sampler", "restart", "repulsion", "learner")
        self.generators = {name: generator(seed, "chain", name, device=self.device) for name in names}
        if hasattr(learner, "noise"):
            learner.noise = self.generators["learner"]
        self.schedule = build_schedule(
            inference, list(self.parameters.values()), num_data, steps_per_epoch, self.generators["sampler"]
        )
        self.repulsion: Repulsion | None = None
        if inference.repulsion is not None:
            self.repulsion = inference.repulsion.build(self.generators["repulsion"])
            self.reference = self._reference(reference)
        self.average = EpochAverage(inference.epochs, *inference.averaging) if inference.averaging else None
        self.diagnostics = Diagnostics()
        self.guard = Guard(self.device)
        wanted = self.device.type == "cuda" if capture is None else capture
        capturing = Capturing([self.generators["learner"]]) if wanted else None
        self.passes = Passes(learner, list(self.parameters.values()), capturing)
        self.samples: list[Sample] = []
        self.stopped = False
        self.last_loss = math.nan  # as of the last check, so that looking at it never waits
        self._ends: dict[int, dict[str, Tensor]] = {}
        self._predictions: list[Tensor] = []
        self._good: dict[str, Any] | None = None

    def _reference(self, pool: Tensor | None) -> Reference:
        settings = self.inference.repulsion
        assert settings is not None
        space = settings.space or getattr(self.learner, "repels_in", None)
        if space is None:
            raise UserError("this learner names no feature space to repel in: set the repulsion's `space`")
        pool = pool if pool is None else pool[: settings.pool_size].to(self.device)
        reference = Reference(self.learner, space, pool, settings.reference, self.batches(0)[0][:1], settings.rows)
        # a metric that cannot work on such clouds says so now, not when the first cycle is over
        stream = torch.Generator().manual_seed(0)
        settings.build(stream).remember(torch.randn(reference.shape, generator=stream))
        return reference

    @property
    def cycle(self) -> int:
        """The cycle c of the next iteration, from 0."""
        return self.schedule.cycle // self.inference.chains

    @property
    def chain(self) -> int:
        """The chain k of the next iteration, from 0."""
        return self.schedule.cycle % self.inference.chains

    @property
    def steps_done(self) -> int:
        return self.schedule.steps

    @property
    def steps_in_all(self) -> int:
        """How many steps the whole run has; adaptive cycles may end it sooner."""
        return self.schedule.steps_per_cycle * self.inference.cycles * self.inference.chains

    @property
    def exploring(self) -> bool:
        return self.schedule.exploring

    @property
    def done(self) -> bool:
        return self.stopped or self.schedule.done

    def run(self) -> Iterator[Sample]:
        """All samples that are still to come, as they are taken."""
        while not self.done:
            sample = self.step()
            if sample is not None:
                yield sample

    def step(self) -> Sample | None:
        """One iteration of Algorithm 1; the sample, if one is taken after it."""
        if self._good is None:
            self._good = self.state_dict()
        if self.schedule.at_cycle_start:
            self._begin_cycle()
        now, cycle, chain = self.schedule.steps, self.cycle, self.chain
        optimizer = self.schedule.optimizer
        loss, grads, force, _ = self._gradients(*self.batches(now))
        for p, grad in zip(self.parameters.values(), grads, strict=True):
            p.grad = grad
        self._note(now, loss, force)
        recording = self.record_every > 0 and now % self.record_every == 0
        if recording:
            self.diagnostics.before(now, optimizer, loss, None if force is None else self.repulsion)
        optimizer.step()
        if recording:
            self.diagnostics.after(optimizer)
        self.schedule.step()
        if self.average is not None and (now + 1) % self.steps_per_epoch == 0:
            epoch = (now // self.steps_per_epoch) % self.inference.epochs
            self.average.add(epoch, self.parameters)
        checking = self.schedule.at_sample or (now + 1) % self.check_every == 0
        if checking:
            self._check(now)
            self.last_loss = loss.item()
        sample = self._keep(cycle, chain) if self.schedule.at_sample else None
        if self.schedule.at_cycle_end:
            self._end_cycle(cycle, chain)
        if checking:
            self._good = self.state_dict()
        return sample

    def _begin_cycle(self) -> None:
        """The start θ of this cycle and chain: as given, the chain's last with a kick, or drawn anew."""
        first = self.cycle == 0 and self.chain == 0
        if not first and (self.cycle == 0 or self.inference.restart == "cold"):
            with torch.no_grad():
                self.learner.reset(self.generators["restart"])
        elif self.cycle > 0:
            self._set(self._ends[self.chain])
            if self.repulsion is not None:
                kick(self.parameters.values(), self.repulsion.kick, self.generators["restart"])
        if self.average is not None:
            self.average.restart()

    def _gradients(self, images: Tensor, labels: Tensor) -> Gradients:
        """One pass forward and backward, with the repulsion's term where it acts."""
        if self.repulsion is None or not self.repulsion.active(self):
            return self.passes.plain(images, labels)
        stream = self.generators["repulsion"]
        return self.passes.repelled(images, labels, self.repulsion, self.reference, stream, memory=self.cycle)

    def _keep(self, cycle: int, chain: int) -> Sample:
        """Take the current θ (or the average over epochs) as a sample, and remember its features."""
        current = {name: p.detach().clone() for name, p in self.parameters.items()}
        if self.average is not None:
            self._set(self.average.sums)
        kept = {name: p.detach().to("cpu", torch.float32, copy=True) for name, p in self.parameters.items()}
        self.samples.append(Sample(kept, cycle, chain, self.schedule.steps))
        with evaluating(self.learner):
            if self.repulsion is not None:
                self.repulsion.remember(self.reference.stored())
            if self.held_out is not None and self.inference.adaptive is not None:
                self._predictions.append(self._predict(self.held_out[0]))
        self._set(current)
        return self.samples[-1]

    def _end_cycle(self, cycle: int, chain: int) -> None:
        if self.inference.restart == "warm":
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

    def _note(self, step: int, loss: Tensor, force: Tensor | None) -> None:
        grads = [p.grad for p in self.parameters.values() if p.grad is not None]
        terms = {"loss": loss, "gradient": total_norm(grads)}
        if force is not None and self.repulsion is not None:
            terms["repulsion"] = force
            if self.repulsion.norms is not None:
                terms["force"] = self.repulsion.norms[1]
        self.guard.note(step, **terms)

    def _check(self, step: int) -> None:
        """If anything was not finite, go back to the last good state and stop."""
        self.guard.note(step, parameters=total_norm([p.detach() for p in self.parameters.values()]))
        found = self.guard.first()
        if found is None:
            return
        assert self._good is not None
        self.guard.clear()
        self.load_state_dict(self._good)
        raise NonFiniteError(*found, good_step=self.schedule.steps)

    def state_dict(self) -> dict[str, Any]:
        """Everything that the rest of the run depends on: nested dicts and lists of tensors and plain values."""
        schedule = self.schedule
        state: dict[str, Any] = {
            "parameters": self.parameters,
            "optimizers": [each.state_dict() for each in schedule.optimizers],
            "schedule": schedule.state_dict(),
            "generators": {name: each.get_state() for name, each in self.generators.items()},
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
        self.schedule.load_state_dict(state["schedule"])
        for name, stream in self.generators.items():
            stream.set_state(state["generators"][name].cpu())
        if self.repulsion is not None:
            self.repulsion.load_state_dict(state["repulsion"])
        if self.average is not None:
            self.average.sums = {name: total.to(self.device) for name, total in state["average"].items()}
        self._ends = {int(chain): end for chain, end in state["ends"].items()}
        self.stopped = state["stopped"]
        self.samples = [Sample(**sample) for sample in state["samples"]]
        self._predictions = list(state["predictions"])
        self._good = None
