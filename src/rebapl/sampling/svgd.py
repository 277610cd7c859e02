"""Stein variational gradient descent on a learner: particles side by side, moved together.

    θ_i ← θ_i + lr·(T/N)·φ(θ_i),   φ(θ_i) = 1/P Σ_j [ k(θ_j,θ_i)·∇log p(θ_j) + ∇_{θ_j} k(θ_j,θ_i) ]

Liu & Wang 2016. With ∇log p = −(N/T)·∇L the first term moves like SGD on the mean loss L (one particle *is*
SGD); the second pushes apart, more so at a higher temperature. Fixed points of many particles represent
exp(−N·L(θ)/T). Momentum and the cosine schedule act on the whole direction. The kernel compares weights, or
the features that the particles give on the reference images.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from rebapl.errors import UserError
from rebapl.randomness import generator
from rebapl.repulsion import kick, stein_direction, stein_feature_direction, weights
from rebapl.sampling.guard import Guard, NonFiniteError, total_norm
from rebapl.sampling.reference import Reference
from rebapl.sampling.rule import prior_decay
from rebapl.sampling.sample import Batches, Sample, copied
from rebapl.sampling.schedule import CyclicalSchedule
from rebapl.sampling.settings import Inference, Repelling


class SVGD:
    """Moves `inference.chains` particles of `learner`'s parameters through one cycle; each ends as a sample.

    Same arguments and methods as `Chain`. Particle 0 starts as given, the others freshly drawn, all but the
    first kicked so that a deterministic initialisation does not leave them in one place.
    """

    def __init__(
        self,
        learner: nn.Module,
        inference: Inference,
        batches: Batches,
        *,
        num_data: int,
        steps_per_epoch: int,
        seed: int = 0,
        reference: Tensor | None = None,
        check_every: int = 25,
    ) -> None:
        if inference.temperature <= 0:
            raise UserError("svgd needs a temperature above 0: at 0 its particles do not push each other apart")
        if inference.cycles != 1 or inference.samples_per_cycle != 1:
            raise UserError("svgd runs one cycle and each particle ends as one sample; set `chains` for more")
        if inference.center is not None:
            raise UserError(f"svgd has its prior around zero: center is '{inference.center}', leave it out")
        self.learner, self.inference, self.batches = learner, inference, batches
        self.decay = prior_decay(inference.weight_decay, inference.prior_std, num_data)
        self.num_data, self.check_every = num_data, check_every
        self._module = _WithLoss(learner)
        own = {name: p for name, p in learner.named_parameters() if p.requires_grad}
        device = next(iter(own.values())).device
        names = ("restart", "repulsion", "learner")
        self.generators = {name: generator(seed, "svgd", name, device=device) for name in names}
        if hasattr(learner, "noise"):
            learner.noise = self.generators["learner"]  # type: ignore[assignment]
        self.settings = inference.repulsion or Repelling(space="weights")
        self.particles = self._spread(own)
        tensors = [p for particle in self.particles for p in particle.values()]
        self.optimizer = torch.optim.SGD(tensors, lr=inference.lr, momentum=inference.momentum)
        self.schedule = CyclicalSchedule(
            self.optimizer,
            inference.epochs * steps_per_epoch,
            cycles=1,
            exploration=1.0,
            floor=inference.floor,
            granularity=inference.granularity,
            steps_per_epoch=steps_per_epoch,
            warmup_steps=inference.warmup_epochs * steps_per_epoch,
            warmup_lr=inference.warmup_lr,
        )
        space = self.settings.space or getattr(learner, "repels_in", None) or "weights"
        pool = reference if reference is None else reference[: self.settings.pool_size].to(device)
        example = batches(0)[0][:1]
        self.reference = Reference(
            learner,  # type: ignore[arg-type]
            space,
            pool,
            self.settings.reference,
            example,
            self.settings.rows,
        )
        self.guard = Guard(device)
        self.samples: list[Sample] = []
        self.last_loss = math.nan
        self._good: dict[str, Any] | None = None

    @torch.no_grad()
    def _spread(self, own: dict[str, nn.Parameter]) -> list[dict[str, Tensor]]:
        given = {name: p.detach().clone() for name, p in own.items()}
        particles = [{name: p.clone() for name, p in given.items()}]
        for _ in range(self.inference.chains - 1):
            self.learner.reset(self.generators["restart"])  # type: ignore[operator]
            kick(own.values(), self.settings.kick, self.generators["restart"])
            particles.append({name: p.detach().clone() for name, p in own.items()})
        for name, p in own.items():
            p.copy_(given[name])
        return [{name: p.requires_grad_() for name, p in particle.items()} for particle in particles]

    @property
    def steps_done(self) -> int:
        return self.schedule.steps

    @property
    def steps_in_all(self) -> int:
        return self.schedule.steps_per_cycle

    @property
    def done(self) -> bool:
        return self.schedule.done

    def run(self) -> Iterator[Sample]:
        """All particles, at the end."""
        while not self.done:
            self.step()
        yield from self.samples

    def step(self) -> None:
        """Move all particles once, on one mini-batch for all."""
        if self._good is None:
            self._good = self.state_dict()
        now = self.schedule.steps
        images, labels = self.batches(now)
        chosen = self.reference.choose(self.generators["repulsion"])
        losses, clouds, gradients = [], [], []
        for particle in self.particles:
            values = {f"learner.{name}": p for name, p in particle.items()}
            loss, cloud = functional_call(self._module, values, (self.reference, images, labels, chosen))
            retain = cloud is not None
            grads = torch.autograd.grad(loss, list(particle.values()), retain_graph=retain, materialize_grads=True)
            gradients.append(weights(grads) + self.decay * weights(particle.values()))
            losses.append(loss.detach())
            clouds.append(cloud)
        direction = self._direction(torch.cat(gradients).detach(), clouds)
        for particle, row in zip(self.particles, direction, strict=True):
            for p, part in zip(particle.values(), row.split([p.numel() for p in particle.values()]), strict=True):
                p.grad = part.view_as(p)
        self.guard.note(now, loss=torch.stack(losses).sum(), gradient=total_norm([direction]))
        self.optimizer.step()
        self.schedule.step()
        if self.schedule.done or (now + 1) % self.check_every == 0:
            self._check()
            self.last_loss = torch.stack(losses).mean().item()
        if self.schedule.done:
            for place, particle in enumerate(self.particles):
                kept = {name: p.detach().to("cpu", torch.float32, copy=True) for name, p in particle.items()}
                self.samples.append(Sample(kept, cycle=0, chain=place, step=now + 1))

    def _direction(self, gradients: Tensor, clouds: list[Tensor | None]) -> Tensor:
        """−(T/N)·φ (P, d), a descent direction in mean-loss units, from ∇L (P, d)."""
        scale = self.num_data / self.inference.temperature
        if self.reference.space == "weights":
            points = torch.cat([weights(particle.values()) for particle in self.particles]).detach()
            phi = stein_direction(points, -scale * gradients)
        else:
            parameters = [list(particle.values()) for particle in self.particles]
            features = torch.stack([cloud for cloud in clouds if cloud is not None])
            phi = stein_feature_direction(features, parameters, -scale * gradients)
        return -phi / scale

    def _check(self) -> None:
        found = self.guard.first()
        if found is None:
            self._good = self.state_dict()
            return
        assert self._good is not None
        self.guard.clear()
        self.load_state_dict(self._good)
        raise NonFiniteError(*found, good_step=self.schedule.steps)

    def state_dict(self) -> dict[str, Any]:
        state = {
            "particles": [{name: p.detach() for name, p in particle.items()} for particle in self.particles],
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "generators": {name: each.get_state() for name, each in self.generators.items()},
            "samples": [vars(sample).copy() for sample in self.samples],
        }
        return copied(state)

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        state = copied(state)
        for particle, saved in zip(self.particles, state["particles"], strict=True):
            for name, p in particle.items():
                p.copy_(saved[name])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        for name, each in self.generators.items():
            each.set_state(state["generators"][name].cpu())
        self.samples = [Sample(**sample) for sample in state["samples"]]
        self._good = None


class _WithLoss(nn.Module):
    """Loss and cloud in one call, so that `functional_call` exchanges the parameters of both."""

    def __init__(self, learner: nn.Module) -> None:
        super().__init__()
        self.learner = learner

    def forward(
        self, reference: Reference, images: Tensor, labels: Tensor, chosen: tuple[Tensor, ...]
    ) -> tuple[Tensor, Tensor | None]:
        if reference.space == "weights":
            output = self.learner(images)
            return self.learner.loss(output, labels), None  # type: ignore[operator]
        loss, cloud, _ = reference.objective(images, labels, chosen)
        return loss, cloud
