"""Stein variational gradient descent on a learner: particles side by side, moved together.

    θ_i ← θ_i + lr·(T/N)·φ(θ_i),   φ(θ_i) = 1/P Σ_j [ k(θ_j,θ_i)·∇log p(θ_j) + ∇_{θ_j} k(θ_j,θ_i) ]

Liu & Wang 2016. With ∇log p = −(N/T)·∇L the first term moves like SGD on the mean loss L (one particle *is*
SGD); the second pushes apart, more so at a higher temperature. Fixed points of many particles represent
exp(−N·L(θ)/T). Momentum and the cosine schedule act on the whole direction. The kernel compares weights, or
the features that the particles give on the reference images.

A learner may name parameters that all particles share (`shared_parameters`; APP's prior network is such). They are no
part of the points θ_i: the kernel does not compare them and nothing pushes them apart. Of them there is one tensor,
which moves by SGD on the mean of the particles' losses,

    ψ ← ψ − lr·(1/P Σ_j ∇_ψ L(θ_j, ψ) + wd·ψ),

so that its step does not grow with the number of particles.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from rebapl.errors import UserError
from rebapl.learnable import Learnable, shared_names
from rebapl.repulsion import kick, stein_direction, stein_feature_direction, weights
from rebapl.sampling.building import build_schedule
from rebapl.sampling.guard import total_norm
from rebapl.sampling.loop import Batches, Loop, Sample, copied, kept
from rebapl.sampling.reference import Reference
from rebapl.sampling.rule import prior_decay
from rebapl.sampling.settings import Inference, SVGDSettings, pool_size


class SVGD(Loop):
    """Moves `particles` of `learner`'s parameters through one cycle; each ends as a sample. Arguments of `Chain`; of
    these, `reference` is the pool of images where the kernel compares features, and the three below it have nothing to
    do here: they are refused unless they are None.

    Particle 0 starts as given, the others freshly drawn, all but the first kicked so that a deterministic
    initialisation does not leave them at one point. What they share starts as given. Each sample has its copy of it.
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
    ) -> None:
        for name, given in (("anchor", anchor), ("held_out", held_out), ("capture", capture or None)):
            if given is not None:
                raise UserError(f"svgd has no use for `{name}`: leave it out")
        if not isinstance(inference.sampler, SVGDSettings):
            raise UserError(f"the sampler is '{inference.sampler.kind}': run it with Chain, not with SVGD")
        super().__init__(
            learner,
            inference,
            batches,
            num_data=num_data,
            steps_per_epoch=steps_per_epoch,
            seed=seed,
            streams=("svgd/restart", "svgd/repulsion", "svgd/learner"),
            record_every=record_every,
            check_every=check_every,
        )
        learner.use_noise(self.generators["svgd/learner"])
        self.settings = inference.sampler
        self.decay = prior_decay(self.settings.weight_decay, self.settings.prior_std, num_data)
        self._module = _WithLoss(learner)
        common = shared_names(learner, self.parameters)
        if len(common) == len(self.parameters):
            raise UserError("this learner shares all its parameters: there is nothing in which particles could differ")
        self.shared = {
            name: p.detach().clone().requires_grad_() for name, p in self.parameters.items() if name in common
        }
        self.particles = self._spread()
        tensors = [p for part in (*self.particles, self.shared) for p in part.values()]
        self.optimizer = torch.optim.SGD(tensors, lr=self.settings.lr, momentum=self.settings.momentum)
        stream = self.generators["svgd/restart"]
        self.schedule = build_schedule(inference, tensors, num_data, steps_per_epoch, stream, self.optimizer)
        size = pool_size(self.settings.images, self.settings.pool)
        pool = None if reference is None else reference[:size].to(self.device)
        example = batches(0)[0][:1]
        self.reference = Reference(learner, self.settings.space, pool, self.settings.images, example)

    @torch.no_grad()
    def _spread(self) -> list[dict[str, Tensor]]:
        stream = self.generators["svgd/restart"]
        given = {name: p.detach().clone() for name, p in self.parameters.items()}
        own = {name: p for name, p in self.parameters.items() if name not in self.shared}
        particles = [{name: given[name].clone() for name in own}]
        for _ in range(self.settings.particles - 1):
            self.learner.reset(stream)
            kick(own.values(), self.settings.kick, stream)
            particles.append({name: p.detach().clone() for name, p in own.items()})
        for name, p in self.parameters.items():
            p.copy_(given[name])
        return [{name: p.requires_grad_() for name, p in particle.items()} for particle in particles]

    def _advance(self, now: int) -> bool:
        """Move all particles once, on one mini-batch for all."""
        images, labels = self._batch(now)
        chosen = self.reference.choose(self.generators["svgd/repulsion"])
        losses, clouds, gradients, common = [], [], [], []
        for particle in self.particles:
            values = {f"learner.{name}": p for name, p in {**particle, **self.shared}.items()}
            loss, cloud = functional_call(self._module, values, (self.reference, images, labels, chosen))
            retain = cloud is not None
            wanted = [*particle.values(), *self.shared.values()]
            grads = torch.autograd.grad(loss, wanted, retain_graph=retain, materialize_grads=True)
            gradients.append(weights(grads[: len(particle)]) + self.decay * weights(particle.values()))
            common.append(grads[len(particle) :])
            losses.append(loss.detach())
            clouds.append(cloud)
        direction = self._direction(torch.cat(gradients).detach(), clouds)
        for particle, row in zip(self.particles, direction, strict=True):
            for p, part in zip(particle.values(), row.split([p.numel() for p in particle.values()]), strict=True):
                p.grad = part.view_as(p)
        for p, of_particles in zip(self.shared.values(), zip(*common, strict=True), strict=True):
            p.grad = torch.stack(of_particles).mean(0) + self.decay * p.detach()
        moved = [direction, *(p.grad for p in self.shared.values() if p.grad is not None)]
        self.guard.note(now, loss=torch.stack(losses).sum(), gradient=total_norm(moved))
        if self.record_every > 0 and now % self.record_every == 0:
            mean = torch.stack(losses).mean()
            self._records.append({"step": now, "cycle": 0, "lr": self.schedule.lr, "loss": mean})
        self.optimizer.step()
        self.schedule.step()
        checking = self.schedule.done or (now + 1) % self.check_every == 0
        if checking:
            self.refuse_what_is_not_finite()
            self.last_loss = torch.stack(losses).mean().item()
        if self.schedule.done:
            for chain, particle in enumerate(self.particles):
                whole = {name: {**particle, **self.shared}[name] for name in self.parameters}
                self.samples.append(Sample(kept(whole), cycle=0, chain=chain, step=now + 1))
        return checking

    def _direction(self, gradients: Tensor, clouds: list[Tensor | None]) -> Tensor:
        """−(T/N)·φ (P, d), a descent direction in mean-loss units, from ∇L (P, d)."""
        scale = self.num_data / self.settings.temperature
        if self.reference.space == "weights":
            points = torch.cat([weights(particle.values()) for particle in self.particles]).detach()
            phi = stein_direction(points, -scale * gradients)
        else:
            parameters = [list(particle.values()) for particle in self.particles]
            features = torch.stack([cloud for cloud in clouds if cloud is not None])
            phi = stein_feature_direction(features, parameters, -scale * gradients)
        return -phi / scale

    def rows(self) -> list[dict[str, float]]:
        """The mean loss of the particles, of the steps recorded since the last call."""
        rows = [{name: float(value) for name, value in record.items()} for record in self._records]
        self._records = []
        return rows

    def state_dict(self) -> dict[str, Any]:
        """The particles, their momentum, and everything else that the rest of the run depends on."""
        state = {
            **self._common_state(),
            "particles": [{name: p.detach() for name, p in particle.items()} for particle in self.particles],
            "shared": {name: p.detach() for name, p in self.shared.items()},
            "optimizer": self.optimizer.state_dict(),
        }
        return {**copied(state), "samples": [vars(sample).copy() for sample in self.samples]}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict` of a run with the same learner and settings."""
        state = {**state, **copied({key: value for key, value in state.items() if key != "samples"})}
        parts = zip((*self.particles, self.shared), (*state["particles"], state.get("shared", {})), strict=True)
        for tensors, saved in parts:
            for name, p in tensors.items():
                p.copy_(saved[name])
        self.optimizer.load_state_dict(state["optimizer"])
        self._load_common_state(state)


class _WithLoss(nn.Module):
    """Loss and cloud in one call, so that `functional_call` exchanges the parameters of both."""

    def __init__(self, learner: Learnable[Any]) -> None:
        super().__init__()
        self.learner: Any = learner  # a module: its parameters are this module's

    def forward(
        self, reference: Reference, images: Tensor, labels: Tensor, chosen: tuple[Tensor, ...]
    ) -> tuple[Tensor, Tensor | None]:
        if reference.space == "weights":
            output = self.learner(images)
            return self.learner.loss(output, labels), None
        loss, cloud, _ = reference.objective(images, labels, chosen)
        return loss, cloud
