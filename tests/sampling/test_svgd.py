"""Stein variational gradient descent beside the loop."""

from __future__ import annotations

import pytest
import torch

from rebapl.errors import UserError
from rebapl.sampling import SVGD, Inference, NonFiniteError, Repelling

from .toy import ToyLearner, batches, data

BASE = {"lr": 0.05, "epochs": 4, "batch": 8, "sampler": "svgd", "chains": 4, "temperature": 1.0}


def svgd(learner=None, seed=0, **changes):
    options = {"num_data": 40, "steps_per_epoch": 5, "reference": data()[0], "seed": seed}
    return SVGD(learner or ToyLearner(), Inference(**{**BASE, **changes}), batches, **options)


def values(samples):
    return torch.stack([torch.cat([x.flatten() for x in sample.parameters.values()]) for sample in samples])


class Quadratic(torch.nn.Module):
    """Mean loss ½·λ·‖θ‖²/N, whatever the data: the posterior is N(0, 1/λ)."""

    def __init__(self, curvature, num_data, width):
        super().__init__()
        self.theta = torch.nn.Parameter(torch.zeros(width))
        self.scale = curvature / num_data

    @torch.no_grad()
    def reset(self, generator):
        self.theta.copy_(torch.randn(self.theta.shape, generator=generator))

    def forward(self, images):
        return 0.5 * self.scale * self.theta.square().sum() + 0 * images.sum()

    def loss(self, output, labels):
        return output + 0 * labels.sum()


def test_particles_spread_to_the_posterior_of_a_gaussian():
    """50 particles in one dimension on N(0, 1/4): Stein's identity makes the variance right up to O(1/P)."""
    inference = Inference(**{**BASE, "lr": 1.0, "epochs": 60, "chains": 50, "momentum": 0.5, "floor": 1.0})
    run = SVGD(Quadratic(4.0, 10, 1), inference, batches, num_data=10, steps_per_epoch=5)
    theta = values(run.run())
    assert abs(theta.mean().item()) < 0.05
    assert theta.var().item() == pytest.approx(0.25, rel=0.12)


def test_one_particle_is_sgd():
    (sample,) = svgd(chains=1, floor=1.0).run()
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
    run = svgd(repulsion=Repelling(space=space, reference=6, pool=16))
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
        noise = None

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
        list(svgd(lr=1e30, floor=1.0).run())


@pytest.mark.parametrize(
    ("changes", "says"), [({"temperature": 0.0}, "above 0"), ({"cycles": 2}, "one cycle"), ({"center": "init"}, "zero")]
)
def test_bad_settings_say_what_is_accepted(changes, says):
    with pytest.raises(UserError, match=says):
        svgd(**changes)
