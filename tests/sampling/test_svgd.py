"""Stein variational gradient descent beside the loop."""

from __future__ import annotations

import pytest
import torch

from rebapl.errors import UserError
from rebapl.sampling import SVGD, Inference, NonFiniteError

from .toy import ToyLearner, batches, data

SAMPLER = {"kind": "svgd", "lr": 0.05, "particles": 4, "temperature": 1.0}
BASE = {"epochs": 4, "batch": 8}


def svgd(learner=None, seed=0, curve="cosine", **changes):
    """With changes of the sampler's settings."""
    options = {"num_data": 40, "steps_per_epoch": 5, "reference": data()[0], "seed": seed}
    inference = Inference(sampler={**SAMPLER, **changes}, curve=curve, **BASE)
    return SVGD(learner or ToyLearner(), inference, batches, **options)


def values(samples):
    return torch.stack([torch.cat([x.flatten() for x in sample.parameters.values()]) for sample in samples])


class Quadratic(torch.nn.Module):
    """Mean loss ½·λ·‖θ‖²/N, whatever the data: the posterior is N(0, 1/λ)."""

    def __init__(self, curvature, num_data, width):
        super().__init__()
        self.theta = torch.nn.Parameter(torch.zeros(width))
        self.scale = curvature / num_data

    repels_in = None

    def use_noise(self, generator):
        """It draws nothing."""

    @torch.no_grad()
    def reset(self, generator):
        self.theta.copy_(torch.randn(self.theta.shape, generator=generator))

    def forward(self, images):
        return 0.5 * self.scale * self.theta.square().sum() + 0 * images.sum()

    def loss(self, output, labels):
        return output + 0 * labels.sum()


def test_particles_spread_to_the_posterior_of_a_gaussian():
    """50 particles in one dimension on N(0, 1/4): Stein's identity makes the variance right up to O(1/P)."""
    sampler = {**SAMPLER, "lr": 1.0, "particles": 50, "momentum": 0.5}
    inference = Inference(sampler=sampler, curve="constant", epochs=60, batch=8)
    run = SVGD(Quadratic(4.0, 10, 1), inference, batches, num_data=10, steps_per_epoch=5)
    theta = values(run.run())
    assert abs(theta.mean().item()) < 0.05
    assert theta.var().item() == pytest.approx(0.25, rel=0.12)


def test_one_particle_is_sgd():
    (sample,) = svgd(particles=1, curve="constant").run()
    other = ToyLearner()
    sgd = torch.optim.SGD([other.image, other.text], lr=0.05, momentum=0.9)
    for step in range(20):
        x, y = batches(step)
        sgd.zero_grad()
        other.loss(other(x), y).backward()
        sgd.step()
    torch.testing.assert_close(sample.parameters["image"], other.image.detach())


@pytest.mark.parametrize("space", ["weights", "image", "text"])
def test_every_kernel_space_gives_as_many_samples_as_particles_and_trains_them(space):
    run = svgd(space=space, **({"images": 6, "pool": 16} if space == "image" else {}))
    samples = list(run.run())
    assert len(samples) == 4
    assert len(values(samples).unique(dim=0)) == 4
    x, y = data()
    for sample in samples:
        fresh, trained = ToyLearner(), ToyLearner()
        trained.load_state_dict({**trained.state_dict(), **sample.parameters})
        assert trained.loss(trained(x), y) < fresh.loss(fresh(x), y)


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path):
    whole = values(svgd().run())
    first = svgd()
    for _ in range(7):
        first.step()
    torch.save(first.state_dict(), tmp_path / "state.pt")
    second = svgd(ToyLearner(9), seed=8)
    second.load_state_dict(torch.load(tmp_path / "state.pt"))
    assert torch.equal(values(second.run()), whole)


def test_a_stochastic_learner_draws_from_the_runs_own_stream():
    class Noisy(ToyLearner):
        def use_noise(self, generator):
            self.noise = generator

        def forward(self, images):
            return super().forward(images + 0.1 * torch.randn(images.shape, generator=self.noise))

    whole = values(svgd(Noisy()).run())
    first = svgd(Noisy())
    for _ in range(7):
        first.step()
    second = svgd(Noisy())
    second.load_state_dict(first.state_dict())
    assert torch.equal(values(second.run()), whole)
    assert not torch.equal(values(svgd(Noisy(), seed=1).run()), whole)


def test_the_learner_itself_is_left_as_it_was():
    learner = ToyLearner()
    list(svgd(learner).run())
    assert torch.equal(learner.image, ToyLearner().image)


def test_divergence_stops_it():
    with pytest.raises(NonFiniteError, match="lower"):
        list(svgd(lr=1e30, curve="constant").run())


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"temperature": 0.0}, r"sampler\.temperature is 0\.0: it must be above 0"),
        ({"center": "init"}, r"sampler\.center: the sampler is 'svgd', and this is a setting of sghmc and sgld"),
        ({"images": 6}, r"sampler\.images does nothing in the space 'weights' without images"),
        ({"space": "image"}, "needs reference images: .* set `images`"),
        ({"space": "text", "images": 6}, "a point per class and compares no images"),
    ],
)
def test_bad_settings_say_what_is_accepted(changes, says):
    with pytest.raises(UserError, match=says):
        svgd(**changes)


@pytest.mark.parametrize(
    "more",
    [
        {"cycles": 2, "restart": "cold"},
        {"chains": 2},
        {"averaging": {"mean": 1.0, "std": 1.0}},
        {"cycles": 2, "restart": "cold", "repulsion": {}},
    ],
)
def test_what_particles_cannot_do_is_refused(more):
    with pytest.raises(UserError, match="does not go with svgd, whose particles move together once"):
        Inference(sampler=SAMPLER, **BASE, **more)


def test_another_sampler_is_not_run_as_particles():
    inference = Inference(sampler={"kind": "sgd", "lr": 0.1}, **BASE)
    with pytest.raises(UserError, match="the sampler is 'sgd': run it with Chain, not with SVGD"):
        SVGD(ToyLearner(), inference, batches, num_data=40, steps_per_epoch=5)
