"""Stein variational gradient descent."""

from __future__ import annotations

import math

import pytest
import torch

from rebapl.errors import UserError
from rebapl.sampling import SVGD, Inference, NonFiniteError

from .toy import ToyLearner, batches, data

SAMPLER = {"kind": "svgd", "lr": 0.05, "particles": 4, "temperature": 1.0}
BASE = {"epochs": 4, "batch": 8}


def svgd(learner=None, seed=0, curve="cosine", **changes):
    """The loop, with changed settings of the sampler."""
    options = {"num_data": 40, "steps_per_epoch": 5, "seed": seed}
    inference = Inference(sampler={**SAMPLER, **changes}, curve=curve, **BASE)
    return SVGD(learner or ToyLearner(), inference, batches, **options)


def values(samples):
    return torch.stack([torch.cat([x.flatten() for x in sample.parameters.values()]) for sample in samples])


def test_every_particle_is_trained_and_becomes_a_sample():
    samples = list(svgd().run())
    assert len(samples) == 4
    assert len(values(samples).unique(dim=0)) == 4
    x, y = data()
    for sample in samples:
        fresh, trained = ToyLearner(), ToyLearner()
        trained.load_state_dict({**trained.state_dict(), **sample.parameters})
        assert trained.loss(trained(x), y) < fresh.loss(fresh(x), y)


class Sharing(ToyLearner):
    """A learner whose particles share the matrix of the image features."""

    shared_parameters = frozenset({"image"})


class Noisy(ToyLearner):
    """A learner that adds noise to its images, drawn from the stream of the run."""

    def use_noise(self, generator):
        self.noise = generator

    def forward(self, images):
        return super().forward(images + 0.1 * torch.randn(images.shape, generator=self.noise))


@pytest.mark.parametrize("learner", [ToyLearner, Sharing])
def test_one_particle_is_sgd(learner):
    (sample,) = svgd(learner(), particles=1, curve="constant").run()
    other = ToyLearner()
    sgd = torch.optim.SGD([other.image, other.text], lr=0.05, momentum=0.9)
    for step in range(20):
        x, y = batches(step)
        sgd.zero_grad()
        other.loss(other(x), y).backward()
        sgd.step()
    for name, value in sample.parameters.items():
        torch.testing.assert_close(value, getattr(other, name).detach())


@pytest.mark.parametrize("learner", [ToyLearner, Sharing, Noisy])
def test_a_resumed_run_equals_an_uninterrupted_one(learner, tmp_path):
    whole = values(svgd(learner()).run())
    first = svgd(learner())
    for _ in range(7):
        first.step()
    torch.save(first.state_dict(), tmp_path / "state.pt")
    second = svgd(learner(9), seed=8)
    second.load_state_dict(torch.load(tmp_path / "state.pt"))
    assert torch.equal(values(second.run()), whole)
    assert not torch.equal(values(svgd(learner(), seed=1).run()), whole)


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


@pytest.mark.parametrize("name", ["reference", "anchor", "held_out", "capture", "compile"])
def test_an_argument_that_particles_do_not_use_is_refused(name):
    value = {"held_out": data(), "capture": True, "compile": True}.get(name, data()[0])
    inference = Inference(sampler=SAMPLER, **BASE)
    with pytest.raises(UserError, match=f"svgd has no use for `{name}`: leave it out"):
        SVGD(ToyLearner(), inference, batches, num_data=40, steps_per_epoch=5, **{name: value})


def slow_step(texts, image, x, y, lr, num_data, temperature, decay):
    """The first step, at which momentum is zero, by the equations, one number at a time, in double precision."""
    count = len(texts)
    points = [text.double().flatten() for text in texts]
    at, shared = [], []
    for text in texts:
        own, common = (z.double().clone().requires_grad_() for z in (text, image))
        loss = torch.nn.functional.cross_entropy(torch.tanh(x.double() @ common) @ own.T, y)
        loss.backward()
        at.append((own.grad + decay * own.detach()).flatten())
        shared.append(common.grad)
    squares = [[float(((a - b) ** 2).sum()) for b in points] for a in points]
    pairs = sorted(squares[i][j] for i in range(count) for j in range(i + 1, count))
    width = pairs[(len(pairs) - 1) // 2] / math.log(count + 1)
    moved = []
    for i in range(count):
        phi = torch.zeros_like(points[i])
        for j in range(count):
            kernel = math.exp(-squares[j][i] / width)
            log_density = -num_data / temperature * at[j]
            phi += kernel * log_density + kernel * 2 * (points[i] - points[j]) / width
        moved.append((points[i] + lr * temperature / num_data * phi / count).view_as(texts[i]))
    step = sum(shared) / count + decay * image.double()
    return moved, image.double() - lr * step


def test_one_step_with_a_shared_part_is_that_of_a_slow_second_implementation():
    run = svgd(Sharing(), curve="constant", weight_decay=0.1, temperature=2.0)
    texts = [particle["text"].detach().clone() for particle in run.particles]
    assert [set(particle) for particle in run.particles] == [{"text"}] * 4
    expected, image = slow_step(texts, run.shared["image"].detach().clone(), *batches(0), 0.05, 40, 2.0, 0.1)
    run.step()
    for particle, text in zip(run.particles, expected, strict=True):
        torch.testing.assert_close(particle["text"].detach().double(), text, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(run.shared["image"].detach().double(), image, rtol=1e-5, atol=1e-6)


def test_every_sample_has_its_copy_of_what_is_shared():
    samples = list(svgd(Sharing()).run())
    first, *others = (sample.parameters for sample in samples)
    assert list(first) == ["image", "text"], "in the learner's order"
    assert not torch.equal(first["image"], Sharing().image.detach()), "it has learned"
    for other in others:
        assert torch.equal(other["image"], first["image"])
        assert other["image"].data_ptr() != first["image"].data_ptr()
        assert not torch.allclose(other["text"], first["text"])


@pytest.mark.parametrize(
    ("names", "says"), [({"imag"}, "has 'imag', and its parameters are image, text"), ({"image", "text"}, "shares all")]
)
def test_what_cannot_be_shared_is_refused(names, says):
    learner = ToyLearner()
    learner.shared_parameters = frozenset(names)
    with pytest.raises(UserError, match=says):
        svgd(learner)
