"""The one loop: it takes any learner through cycles of exploring and sampling (Algorithm 1 of the ReBaPL paper).

    for each cycle c = 1..C, and in it for each chain k:
        restart: warm from the chain's last θ (with a kick off the saddle), or cold from a fresh initialisation
        for each iteration t = 1..T_c:
            set lr (cosine) and temperature (0 while exploring)
            L = mean loss of the batch + Σ_s c_s·V(θ, earlier sample s); with `every` = m, the sum is computed at every
                m-th step and multiplied by m there
            one step of the sampler on exp(−N·L/T)
            where the schedule marks a sample: store θ (or draws around it: `laplace`), and its features on the pool

Chains affect each other only through samples of *earlier* cycles. So running them one after the other inside a cycle is
the same as running them at once, and needs the memory of one chain. Cold cycles without a force do not affect each
other at all. Each of them has random streams of its own, so that another process can sample it; see `begin_at`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from rebapl.captured import Capturing, accelerated
from rebapl.compiled import compiling, is_compiling
from rebapl.errors import UserError
from rebapl.randomness import derived_seed, generator
from rebapl.repulsion import Repulsion, kick
from rebapl.repulsion.parameters import total_norm
from rebapl.sampling.adaptive import worth_another_cycle
from rebapl.sampling.laplace import draws
from rebapl.sampling.loop import Drawing, Loop, Sample, cpu_copy
from rebapl.sampling.objective import PORTION, Batch, Gradients, Objective, ReferencePool, evaluating
from rebapl.sampling.schedule import build_schedule
from rebapl.sampling.settings import Cold, Repelling, Warm
from rebapl.sampling.summary import EpochAverage, Summary
from rebapl.sampling.swag import GaussianPath

COMPILED_FROM = 10_000
"""The least number of steps of a run whose layers are compiled. Compiling costs some ten seconds and saves one or two
milliseconds a step."""


class Chain(Loop):
    """Samples the parameters of `learner` as `inference` says. `run()` yields samples; `step()` is one iteration.

    * `batches(step)` returns the mini-batch of a step, with `inference.batch` images.
    * `steps_per_epoch`: the number of steps in an epoch.
    * `num_data`: number of training examples, N.
    * `reference`: the pool of un-augmented training images on which samples are compared. If there are more of them
      than `inference.pool_size`, the first ones are used.
    * `anchor`: the features on that pool of the model before it learned anything; they set the scale of the repulsion's
      ε. None: the features at the current parameters.
    * `held_out`: images, and their labels or None, for adaptive cycles.
    * `record_every`: the number of steps between two records for `rows`; 0: no records.
    * `check_every`: the number of steps between two checks that all numbers are finite. A check waits for the device.
    * `capture`: replay forward and backward passes as CUDA graphs, which is several times faster for small batches;
      None: on a GPU. All batches must then have the same shape. If `batches` is a `Drawing`, batches are drawn inside
      the pass.
    * `compile`: compile the layers of the backbone; None: on a GPU, if the run is long enough for it to pay, and
      inside `rebapl.compiled.compiling()`.
    """

    streams = ("chain/sampler", "chain/restart", "chain/repulsion", "chain/learner")

    def _build(self, images: Tensor | None, anchor: Tensor | None) -> None:
        inference, held_out = self.inference, self.held_out
        if inference.sampler.kind == "svgd":
            raise UserError("the sampler 'svgd' moves particles together: run it with SVGD, not with Chain")
        if inference.adaptive is not None and held_out is None:
            raise UserError("adaptive cycles need held-out images: give held_out=(images, labels or None)")
        if held_out is not None and len(held_out[0]) == 0:
            raise UserError("held_out has no images: without any, leave `adaptive` and `held_out` out")
        tensors: list[Tensor] = list(self.parameters.values())
        self.schedule = build_schedule(
            inference, tensors, self.num_data, self.steps_per_epoch, self.generators["chain/sampler"]
        )
        self.reference: ReferencePool | None = None
        self.repulsions: list[Repulsion] = []
        if inference.repulsion is not None:
            settings = inference.repulsion
            space = settings.space or self.learner.repels_in
            if space is None:
                raise UserError("this learner names no feature space to repel in: set the repulsion's `space`")
            if images is not None:
                images = images[: inference.pool_size].to(self.device)
            example = self.batches(0)[0][:1]
            self.reference = ReferencePool(self.learner, space, images, settings.images, example, settings.rows)
            first = self._repulsion(settings, self.reference, anchor)
            self.repulsions = [first, *(first.beside() for _ in range(inference.chains - 1))]
        self.summary = Summary()
        if inference.averaging is not None:
            self.summary = EpochAverage(inference.averaging, inference.epochs, self.steps_per_epoch)
        elif inference.swag is not None:
            self.summary = GaussianPath(inference.swag.samples, self.generators["chain/sampler"])
        captures = accelerated(self.device) if self.capture is None else self.capture
        self.capturing = Capturing([self.generators["chain/learner"]]) if captures else None
        pays = accelerated(self.device) and self.steps_in_all >= COMPILED_FROM
        self.compiles = pays if self.compile is None else self.compile
        self.drawing: Drawing | None = None
        if captures and isinstance(self.batches, Drawing) and self.batches.drawable:
            self.drawing = self.batches
        draw = None if self.drawing is None else self.drawing.draw
        self.objective = Objective(self.learner, tensors, self.reference, draw)
        self._ends: dict[int, dict[str, Tensor]] = {}
        self._predictions: list[Tensor] = []

    def _repulsion(self, settings: Repelling, reference: ReferencePool, anchor: Tensor | None) -> Repulsion:
        # try the distance on clouds of this shape: if it cannot work on them, it says so now, not after the first cycle
        stream = torch.Generator().manual_seed(0)
        first, second = (torch.randn(reference.shape, generator=stream) for _ in range(2))
        Repulsion(settings, anchor=first, generator=stream).remember(second)
        if anchor is None and settings.potential.scale is None:
            with evaluating(self.learner):
                anchor = reference.stored()
        elif anchor is not None:
            anchor = anchor[: reference.shape[0]]
        return Repulsion(settings, anchor=anchor, generator=self.generators["chain/repulsion"])

    @property
    def cycle(self) -> int:
        """The cycle c of the next iteration, from 0."""
        return self.schedule.cycle // self.inference.chains

    @property
    def chain(self) -> int:
        """The chain k of the next iteration, from 0."""
        return self.schedule.cycle % self.inference.chains

    @property
    def repulsion(self) -> Repulsion | None:
        """The repulsion of that chain, with its state; None without repulsion."""
        return self.repulsions[self.chain] if self.repulsions else None

    def _advance(self, now: int) -> bool:
        """One iteration of Algorithm 1: restart, batch, loss and force, step, keep."""
        if self.schedule.at_cycle_start:
            self._restart()
        cycle, chain = self.cycle, self.chain
        batch: Batch = self.batches(now) if self.drawing is None else self.drawing.choices(now)
        self._check_size(now, batch)
        gradients = self._gradients(batch)
        self._move(now, gradients)
        self.schedule.step()
        checked = self._checked(now, gradients.loss)
        for sample in self.summary.samples_after(self.parameters, self.schedule):
            self._keep(cycle, chain, sample)
        if self.schedule.at_cycle_end:
            self._end_cycle(cycle, chain)
        return checked

    def _checked(self, now: int, loss: Tensor) -> bool:
        checked = super()._checked(now, loss)
        if checked:
            for force in self.repulsions:
                force.warn_if_unsettled()
        return checked

    def _restart(self) -> None:
        """Set θ to where this cycle and chain start: as it is, the chain's last θ with a kick, or drawn anew."""
        if self.schedule.cycle > 0 and self.inference.independent_cycles > 1:  # this cycle has streams of its own
            for name, stream in self.generators.items():
                stream.manual_seed(derived_seed(self.seed, *name.split("/"), "cycle", self.schedule.cycle))
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
        self.summary.restart()
        if self.repulsion is not None:
            self.repulsion.begin_cycle(recall=self.chain == 0)

    def _gradients(self, batch: Batch) -> Gradients:
        """Loss and force: one forward and backward pass, which is captured if that is possible."""
        force, kind, state = self.repulsion, "plain", dict[str, Tensor]()
        if force is not None:
            acts = force.acts(self.schedule.exploring, self.schedule.within)
            kind, state = force.plan(self.device, self.schedule.exploring, acts)
        chosen: tuple[Tensor, ...] = ()
        capturing, memory, decoupled = self.capturing, -1, False
        if force is not None and kind != "plain":
            assert self.reference is not None
            chosen = self.reference.choose(self.generators["chain/repulsion"])
            if force.distance.waits(self.reference.points, self.device):
                capturing = None
            memory, decoupled = self.cycle, self._decoupled
        run_pass = partial(self.objective.gradients, force, kind, decoupled)
        with compiling(self.compiles or (self.compile is None and is_compiling())):
            if capturing is None:
                gradients = run_pass(batch, chosen, state)
            else:
                name = f"{kind}, decoupled" if decoupled else kind
                gradients = capturing(name, run_pass, batch, chosen, state, memory=memory)
        if force is not None:
            force.keep(gradients.state)
        return gradients

    @property
    def _decoupled(self) -> bool:
        """Whether an adaptive optimiser moves θ now. It would rescale a force that went through it."""
        return isinstance(self.schedule.current, torch.optim.AdamW)

    @torch.no_grad()
    def _move(self, now: int, gradients: Gradients) -> None:
        """Make the optimizer's step, and move θ by a force that does not go through this step.

        An adaptive optimiser rescales every gradient that it receives. So, as AdamW does with weight decay, the force
        is decoupled from it: θ ← θ − lr·∇term, the term sized so that ‖Δθ_force‖ = fraction·share·‖the optimiser's
        step‖. A printed force moves θ by the same amount at every lr.
        """
        optimizer, force, parameters = self.schedule.current, self.repulsion, list(self.parameters.values())
        for p, grad in zip(parameters, gradients.through, strict=True):
            p.grad = grad
        self.guard.note(now, gradients.finite)
        if self._records(now):
            active = force is not None and force.active(self.schedule.exploring)
            self.diagnostics.before(now, optimizer, gradients.loss, force if active else None)
        lr = optimizer.param_groups[0]["lr"]
        if force is not None and self._decoupled:
            before = [p.detach().clone() for p in parameters]
            optimizer.step()
            moved = total_norm(p - old for p, old in zip(parameters, before, strict=True))
            force.keep({"moved": moved / lr if lr else torch.zeros_like(moved)})
        else:
            optimizer.step()
        printed = force is not None and force.force.outside
        for p, grad in zip(parameters, gradients.beside, strict=False):
            if grad is not None:
                p.add_(grad, alpha=-1.0 if printed else -float(lr))
        if self._records(now):
            self.diagnostics.after(optimizer)

    def _keep(self, cycle: int, chain: int, sample: Mapping[str, Tensor]) -> None:
        """Store a sample, and remember its features for the repulsion. Afterwards θ is what it was."""
        current = {name: p.detach().clone() for name, p in self.parameters.items()}
        self._set(sample)
        if self.inference.laplace is None:
            stored = [cpu_copy(self.parameters)]
        else:  # draws around θ, from a stream that belongs to this cycle and chain alone
            stored = draws(
                self.learner,
                self.parameters,
                (self.batches(step)[0] for step in range(self.steps_per_epoch)),
                self.inference.laplace,
                images=self.inference.batch * self.steps_per_epoch,
                num_data=self.num_data,
                decay=self.inference.sampler.weight_decay,
                stream=generator(self.seed, "chain", "laplace", cycle, chain),
            )
        self.samples += [Sample(parameters, cycle, chain, self.schedule.steps) for parameters in stored]
        with evaluating(self.learner):
            if self.reference is not None and cycle < self.inference.cycles - 1:  # the last cycle's samples repel none
                self.repulsions[chain].remember(self.reference.stored())
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

    def _predict(self, images: Tensor) -> Tensor:
        """Class probabilities (M, C), on the CPU."""
        logits = [self.learner(part.to(self.device)).logits.float() for part in images.split(PORTION)]
        return torch.cat(logits).softmax(-1).cpu()

    @torch.no_grad()
    def _set(self, values: Mapping[str, Tensor]) -> None:
        for name, p in self.parameters.items():
            p.copy_(values[name])

    def _own_state(self) -> dict[str, Any]:
        return {
            "parameters": self.parameters,
            "repulsions": [force.state_dict(memory=chain == 0) for chain, force in enumerate(self.repulsions)],
            "summary": self.summary.state,
            "ends": {str(chain): end for chain, end in self._ends.items()},
            "stopped": self.stopped,
            "predictions": self._predictions,
        }

    def _restore(self, state: dict[str, Any]) -> None:
        self._set(state["parameters"])
        for repulsion, saved in zip(self.repulsions, state["repulsions"], strict=True):
            repulsion.load_state_dict(saved)
        if self.capturing is not None:
            self.capturing.forget()
        self.summary.state = tree_map(lambda leaf: leaf.to(self.device), state["summary"])
        self._ends = {int(chain): end for chain, end in state["ends"].items()}
        self.stopped = state["stopped"]
        self._predictions = list(state["predictions"])
