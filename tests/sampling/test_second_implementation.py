"""Every preset of the chain against a second implementation: nested loops, scalars and one autograd call at a time.

Of the package it uses settings, random streams and distances alone, which have tests of their own. It has no schedule,
no optimizer, no memory, no force object, no shared backward passes and nothing that is captured.
"""

from __future__ import annotations

import math

import pytest
import torch

from rebapl.randomness import derived_seed, generator
from rebapl.repulsion import kick
from rebapl.sampling import PRESETS, Chain, preset
from rebapl.sampling.settings import Cold, Cosine

from .toy import ToyLearner, ToyRecipe, batches, data

N, EPOCH, SEED = 40, 5, 3


def doubled(step, size):
    """The toy's batch in float64, so that rounding explains nothing."""
    images, labels = batches(step, size)
    return images.double(), labels


def gradients(value, parameters):
    found = torch.autograd.grad(value, parameters, retain_graph=True, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for g, p in zip(found, parameters, strict=True)]


def norm(tensors):
    return torch.cat([x.flatten() for x in tensors]).norm().item()


class PlainForce:
    """The force on one chain; `remembered` has a prepared cloud and the ε of each sample."""

    def __init__(self, settings):
        self.settings, self.force = settings, settings.force
        self.usual, self.count, self.evaluations, self.turn, self.slopes = math.nan, 0, 0, 0, []

    def note(self, size):
        self.count += 1
        weight = max(1 / self.count, 0.1)
        self.usual = size if self.count == 1 else (1 - weight) * self.usual + weight * size

    def terms(self, cloud, rows, remembered, loss, parameters):
        """c_s·V_s of each sample."""
        squared = [self.settings.distance.between(cloud, stored.rows(rows))[0] for stored, _ in remembered]
        potentials = [1 / (d2 + epsilon) for d2, (_, epsilon) in zip(squared, remembered, strict=True)]
        if not self.force.relative:
            return [self.force.strength * v for v in potentials]
        pulls = [
            2 * d2.item() ** 0.5 / (d2.item() + eps) ** 2 for d2, (_, eps) in zip(squared, remembered, strict=True)
        ]
        now, count = self.evaluations, len(remembered)
        self.evaluations += 1
        if now == 0:
            self.slopes, self.turn = [0.0] * count, 0
        if now * 4 < count or now in (0, 1, 2, 4, 8) or now % self.force.measure_every == 0:
            self.note(norm(gradients(loss, parameters)))
            for s in [(self.turn + i) % count for i in range(min(4, count))]:
                measured = norm(gradients(potentials[s], parameters)) / pulls[s]
                self.slopes[s] = max(measured, 0.5 * self.slopes[s])
            self.turn = (self.turn + min(4, count)) % count
        greatest = [9 / (8 * 3**0.5) * eps**-1.5 for _, eps in remembered]
        sizes = [slope * bound for slope, bound in zip(self.slopes, greatest, strict=True)]
        return [
            self.settings.every * self.force.fraction * self.usual / size * v if size else 0.0 * v
            for size, v in zip(sizes, potentials, strict=True)
        ]


def plain_samples(inference):
    """All samples of a run, flattened."""
    learner, sampler, settings = ToyLearner().double(), inference.sampler, inference.repulsion
    parameters = [learner.image, learner.text]
    streams = {name: generator(SEED, "chain", name) for name in ("sampler", "restart", "repulsion")}
    pool = data()[0][: inference.pool_size].double()
    anchor = learner(pool).cloud("image").detach()
    forces = [PlainForce(settings) if settings else None for _ in range(inference.chains)]
    remembered, new, ends, samples, step = [], [], {}, [], 0
    for rounds in range(inference.cycles * inference.chains):
        cycle, chain = divmod(rounds, inference.chains)
        if rounds and inference.independent_cycles > 1:
            for name, stream in streams.items():
                stream.manual_seed(derived_seed(SEED, "chain", name, "cycle", rounds))
        if chain == 0 and new:
            remembered, new = ([*remembered, *new] if settings.memory == "all" else new), []
        cold = isinstance(inference.restart, Cold)
        if rounds and (cycle == 0 or cold):
            learner.reset(streams["restart"])
        elif cycle:
            for p, end in zip(parameters, ends[chain], strict=True):
                p.data.copy_(end)
            if inference.restart.kick:
                kick(parameters, inference.restart.kick, streams["restart"])
        force, velocity, old_lr = forces[chain], [torch.zeros_like(p) for p in parameters], None
        if force is not None:
            force.evaluations = 0
        epochs = inference.first_epochs if cycle == 0 and inference.first_epochs else inference.epochs
        total = epochs * EPOCH
        explore = total if inference.optimises else math.ceil(sampler.exploration * total - 1e-9)
        kept, path = inference.samples_per_cycle, []
        if inference.swag:
            explore = math.ceil(inference.swag.start * total - 1e-9)
            kept = min(inference.swag.snapshots, total - explore)
        marks = {explore + (k * (total - explore)) // kept for k in range(1, kept + 1)}
        for t in range(total):
            lr = rate(inference, t, total, rounds if cold else cycle)
            heat = 0.0 if inference.optimises or t < explore else sampler.temperature
            images, labels = doubled(step, inference.batch)
            loss = learner.loss(learner(images), labels)
            beside = [torch.zeros_like(p) for p in parameters]
            objective = loss
            stage = settings is not None and (settings.stage == "both" or t < explore)
            if stage and remembered and t % settings.every == 0:
                rows = torch.randperm(len(pool), generator=streams["repulsion"])[: settings.images]
                cloud = learner(pool[rows]).cloud("image")
                term = sum(force.terms(cloud, rows, remembered, loss, parameters))
                if settings.force.outside:
                    beside = gradients(term, parameters)
                else:
                    objective = loss + term
            elif settings is not None and settings.force.relative:
                force.note(norm(gradients(loss, parameters)))
            decayed = [
                g + sampler.weight_decay * p.detach()
                for g, p in zip(gradients(objective, parameters), parameters, strict=True)
            ]
            moved = one_step(sampler, parameters, decayed, velocity, lr, old_lr, heat, streams["sampler"])
            for p, change, pull in zip(parameters, moved, beside, strict=True):
                p.data += change - pull
            old_lr, step = lr, step + 1
            if t + 1 in marks and inference.swag:
                path.append(torch.cat([p.detach().flatten() for p in parameters]))
            elif t + 1 in marks:
                samples.append(torch.cat([p.detach().flatten() for p in parameters]))
                if settings is not None and cycle < inference.cycles - 1:
                    stored = settings.distance.prepare(
                        learner(pool).cloud("image").detach(), torch.Generator().manual_seed(0)
                    )
                    scale = settings.distance.between(anchor, stored).item()
                    new.append((stored, settings.potential.epsilon * scale))
        samples += swag_samples(path, inference.swag, parameters, streams["sampler"]) if path else []
        ends[chain] = [p.detach().clone() for p in parameters]
    return torch.stack(samples)


def swag_samples(path, swag, parameters, stream):
    """θ̄ + 1/√2·Σ_diag^½·z₁ + 1/√(2(T−1))·D·z₂, with the moments as the paper has them."""
    path = torch.stack(path)
    running = path.cumsum(0) / torch.arange(1, len(path) + 1)[:, None]
    deviations, variance = path - running, path.square().mean(0) - path.mean(0).square()
    samples = []
    for _ in range(swag.samples):
        z2 = torch.randn(len(path), generator=stream).double()
        z1 = torch.cat([torch.randn(p.shape, generator=stream).flatten() for p in parameters]).double()
        low_rank = deviations.T @ z2 / (len(path) - 1) ** 0.5
        samples.append(path.mean(0) + (variance.clamp_min(0).sqrt() * z1 + low_rank) / 2**0.5)
    return samples


def rate(inference, t, total, cycle):
    """The learning rate of iteration t of a cycle; a warm-up comes before a fresh start."""
    curve, base = inference.curve, inference.sampler.lr
    warm = inference.warmup.epochs * EPOCH if inference.warmup and (cycle == 0 or is_cold(inference)) else 0
    if t < warm:
        return inference.warmup.lr
    if not isinstance(curve, Cosine):
        return base
    done = ((t - warm) // EPOCH) * EPOCH if curve.every == "epoch" else t
    return base * max(curve.floor, 0.5 * (1 + math.cos(math.pi * done / total)))


def is_cold(inference):
    return isinstance(inference.restart, Cold)


def one_step(sampler, parameters, grads, velocity, lr, old_lr, heat, stream):
    """How far each parameter moves; `velocity` is torch's momentum buffer, changed in place."""
    noise = [torch.zeros_like(p) for p in parameters]
    if heat:
        flat = torch.randn(sum(p.numel() for p in parameters), generator=stream, dtype=torch.float64)
        parts = flat.split([p.numel() for p in parameters])
        noise = [part.view_as(p) for part, p in zip(parts, parameters, strict=True)]
    if sampler.kind == "sgld":
        return [-lr * g + (2 * lr * heat / N) ** 0.5 * e for g, e in zip(grads, noise, strict=True)]
    moved = []
    for v, g, e in zip(velocity, grads, noise, strict=True):
        if not heat:
            v.mul_(sampler.momentum).add_(g)
            moved.append(-lr * v)
            continue
        v.mul_((old_lr / lr) ** 0.5).add_(g)  # kdod
        first = -0.5 * lr * v
        v.mul_(sampler.momentum).add_(e * (heat * (1 - sampler.momentum**2) / (lr * N)) ** 0.5)
        moved.append(first - 0.5 * lr * v)
    return moved


@pytest.mark.parametrize("name", [name for name in PRESETS if name not in ("svgd", "laplace", "rebapl-authors")])
def test_a_preset_is_what_it_says(name):
    """`rebapl-authors` differs in its noise, tested by its temperature, and in rows; `svgd` has a loop of its own, and
    the draws of `laplace` have tests of their own."""
    recipe = ToyRecipe(lr=0.02, epochs=4, batch=8)
    changes = {"epochs": 4}
    if preset(name, recipe).repulsion is not None:
        changes |= {"repulsion.images": 6, "repulsion.pool": 16, "cycles": 3}
    if name == "rebapl":
        changes |= {"repulsion.every": 2}
    inference = preset(name, recipe, "maple", **changes)
    run = Chain(
        ToyLearner().double(),
        inference,
        lambda step: doubled(step, inference.batch),
        num_data=N,
        steps_per_epoch=EPOCH,
        seed=SEED,
        reference=data()[0].double(),
    )
    found = torch.stack([torch.cat([x.flatten() for x in s.parameters.values()]) for s in run.run()])
    wanted = plain_samples(inference)
    assert found.shape == wanted.shape
    torch.testing.assert_close(found, wanted.float(), rtol=1e-5, atol=1e-6)
