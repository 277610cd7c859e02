"""Stein variational gradient descent on a learner: several particles θ_i that move together.

    θ_i ← θ_i + lr·(T/N)·φ(θ_i),   φ(θ_i) = 1/P Σ_j [ k(θ_j,θ_i)·∇log p(θ_j) + ∇_{θ_j} k(θ_j,θ_i) ]

Liu & Wang 2016. With ∇log p = −(N/T)·∇L, the first term moves particles like SGD on the mean loss L (a single particle
*is* SGD). The second term pushes particles apart, more so at a higher temperature. Fixed points of many particles
represent exp(−N·L(θ)/T). Momentum and the cosine schedule act on the whole direction. The kernel compares weights.

A learner may name parameters ψ that all particles share (`shared_parameters`), as APP does for its prior network. They
are not part of θ_i: the kernel does not compare them, and nothing pushes them apart. There is one tensor of each, which
moves by SGD on the mean of the particles' losses,

    ψ ← ψ − lr·(1/P Σ_j ∇_ψ L(θ_j, ψ) + wd·ψ),

so that its step does not grow with the number of particles.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rebapl.errors import UserError
from rebapl.learnable import call_at, shared_names
from rebapl.repulsion import kick, stein_direction, weights
from rebapl.repulsion.parameters import total_norm
from rebapl.sampling.diagnostics import finite
from rebapl.sampling.loop import Loop, Sample, cpu_copy
from rebapl.sampling.rule import prior_decay
from rebapl.sampling.schedule import build_schedule
from rebapl.sampling.settings import SVGDSettings


class SVGD(Loop):
    """Moves particles through one cycle; at its end, each particle becomes a sample.

    A particle is a copy of the learner's parameters. The arguments are those of `Chain`, of which `reference`,
    `anchor`, `held_out`, `capture` and `compile` must be left out. The first particle starts from the learner's current
    parameters. The others start from a fresh initialisation and a kick, so that they do not all start at one point if
    the initialisation is not random. Shared parameters start from their current values, and each sample has a copy of
    them.
    """

    streams = ("svgd/restart", "svgd/learner")

    def _build(self, images: Tensor | None, anchor: Tensor | None) -> None:
        unused: dict[str, object] = {"reference": images, "anchor": anchor, "held_out": self.held_out}
        unused |= {"capture": self.capture or None, "compile": self.compile or None}
        for name, value in unused.items():
            if value is not None:
                raise UserError(f"svgd has no use for `{name}`: leave it out")
        if not isinstance(self.inference.sampler, SVGDSettings):
            raise UserError(f"the sampler is '{self.inference.sampler.kind}': run it with Chain, not with SVGD")
        self.settings = settings = self.inference.sampler
        self.decay = prior_decay(settings.weight_decay, settings.prior_std, self.num_data)
        shared = shared_names(self.learner, self.parameters)
        if len(shared) == len(self.parameters):
            raise UserError("this learner shares all its parameters: there is nothing in which particles could differ")
        self.shared = {
            name: p.detach().clone().requires_grad_() for name, p in self.parameters.items() if name in shared
        }
        self.particles = self._initial_particles()
        tensors = [p for part in (*self.particles, self.shared) for p in part.values()]
        optimizer = torch.optim.SGD(tensors, lr=settings.lr, momentum=settings.momentum)
        stream = self.generators["svgd/restart"]
        self.schedule = build_schedule(self.inference, tensors, self.num_data, self.steps_per_epoch, stream, optimizer)

    @torch.no_grad()
    def _initial_particles(self) -> list[dict[str, Tensor]]:
        """The particles at their starts; the learner's own parameters stay as they are."""
        stream = self.generators["svgd/restart"]
        initial = {name: p.detach().clone() for name, p in self.parameters.items()}
        own = {name: p for name, p in self.parameters.items() if name not in self.shared}
        particles = [{name: initial[name].clone() for name in own}]
        for _ in range(self.settings.particles - 1):
            self.learner.reset(stream)
            kick(own.values(), self.settings.kick, stream)
            particles.append({name: p.detach().clone() for name, p in own.items()})
        for name, p in self.parameters.items():
            p.copy_(initial[name])
        return [{name: p.requires_grad_() for name, p in particle.items()} for particle in particles]

    def _advance(self, now: int) -> bool:
        """Move all particles once, all of them on the same mini-batch."""
        images, labels = self.batches(now)
        self._check_size(now, (images, labels))
        losses, gradients, gradients_of_shared = [], [], []
        for particle in self.particles:
            values = {**particle, **self.shared}
            loss = call_at(self.learner, values, lambda learner: learner.loss(learner(images), labels))
            grads = torch.autograd.grad(loss, [*particle.values(), *self.shared.values()], materialize_grads=True)
            gradients.append(weights(grads[: len(particle)]) + self.decay * weights(particle.values()))
            gradients_of_shared.append(grads[len(particle) :])
            losses.append(loss.detach())
        direction = self._direction(torch.cat(gradients).detach())
        for particle, row in zip(self.particles, direction, strict=True):
            for p, part in zip(particle.values(), row.split([p.numel() for p in particle.values()]), strict=True):
                p.grad = part.view_as(p)
        for p, of_particles in zip(self.shared.values(), zip(*gradients_of_shared, strict=True), strict=True):
            p.grad = torch.stack(of_particles).mean(0) + self.decay * p.detach()
        directions = [direction, *(p.grad for p in self.shared.values() if p.grad is not None)]
        self.guard.note(now, finite(loss=torch.stack(losses).sum(), gradient=total_norm(directions)))
        loss = torch.stack(losses).mean()
        if self._records(now):
            self.diagnostics.before(now, self.schedule.current, loss)
        self.schedule.current.step()
        self.schedule.step()
        checked = self._checked(now, loss)
        if self.schedule.at_sample:
            for chain, particle in enumerate(self.particles):
                parameters = {name: {**particle, **self.shared}[name] for name in self.parameters}
                self.samples.append(Sample(cpu_copy(parameters), cycle=0, chain=chain, step=now + 1))
        return checked

    def _direction(self, gradients: Tensor) -> Tensor:
        """−(T/N)·φ (P, d), a descent direction in mean-loss units, from ∇L (P, d)."""
        scale = self.num_data / self.settings.temperature
        points = torch.cat([weights(particle.values()) for particle in self.particles]).detach()
        return -stein_direction(points, -scale * gradients) / scale

    def _own_state(self) -> dict[str, Any]:
        return {"particles": self.particles, "shared": self.shared}

    @torch.no_grad()
    def _restore(self, state: dict[str, Any]) -> None:
        for tensors, saved in zip((*self.particles, self.shared), (*state["particles"], state["shared"]), strict=True):
            for name, p in tensors.items():
                p.copy_(saved[name])
