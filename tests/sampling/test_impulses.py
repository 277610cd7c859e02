"""A force at every k-th step, as an impulse k times as strong, samples the same density (multiple time stepping)."""

from __future__ import annotations

import pytest
import torch

from rebapl.errors import UserError
from rebapl.repulsion import Fading, Inverse, Repulsion
from rebapl.repulsion.force import Absolute
from rebapl.sampling import SGHMC
from rebapl.sampling.settings import Repelling

from .test_force_in_the_loop import EPSILON, STEPS, chain, start_beside_the_sample

CHAINS, N, STRENGTH = 20_000, 10, 0.05


def potential(theta):
    """V between each chain and one remembered sample at 0.5."""
    return Inverse(epsilon=0.3, scale=1.0).value((theta - 0.5).square(), torch.tensor(0.3))


def quantiles(shares):
    """The quantiles of the exact density exp(−N·(½θ²/N + strength·V)), by quadrature."""
    grid = torch.linspace(-8, 8, 200_001, dtype=torch.float64)
    log = -0.5 * grid.square() - N * STRENGTH * potential(grid)
    mass = (log - log.max()).exp()
    cumulative = mass.cumsum(0) / mass.sum()
    return grid[torch.searchsorted(cumulative, shares)]


def sampled(every, integrator, steps=400):
    generator = torch.Generator().manual_seed(7)
    theta = torch.nn.Parameter(torch.randn(CHAINS, generator=generator, dtype=torch.float64))
    sampler = SGHMC([theta], lr=0.01 * N, momentum=0.9, num_data=N, integrator=integrator, generator=generator)
    for step in range(steps):
        theta.grad = theta.detach() / N
        if every and step % every == 0:
            point = theta.detach().requires_grad_()
            (force,) = torch.autograd.grad(every * STRENGTH * potential(point).sum(), point)
            theta.grad = theta.grad + force
        sampler.step()
    return theta.detach()


@pytest.mark.parametrize("integrator", ["kdod", "symplectic"])
@pytest.mark.parametrize("every", [1, 4])
def test_impulses_sample_the_density_that_a_force_at_every_step_samples(every, integrator):
    """The greatest gap between the empirical and the exact distribution at nine quantiles.

    Kolmogorov's bound: with 20 000 draws a gap above 0.0165 is a false alarm in 1 of 27 000. On top of it 0.005 are
    allowed for the length of the step.
    """
    shares = torch.linspace(0.1, 0.9, 9, dtype=torch.float64)
    wanted = quantiles(shares)
    found = (sampled(every, integrator)[:, None] <= wanted).double().mean(0)
    assert (found - shares).abs().max() < 0.0165 + 0.005


def test_the_density_is_another_without_the_force():
    """Without the force, the gap is ten times the bound of the test above, so that test can fail."""
    shares = torch.linspace(0.1, 0.9, 9, dtype=torch.float64)
    found = (sampled(0, "kdod")[:, None] <= quantiles(shares)).double().mean(0)
    assert (found - shares).abs().max() > 0.1


def test_an_impulse_is_k_times_the_force_and_acts_at_every_kth_step_of_a_cycle():
    strength, every = 0.01, 3
    run = chain({"kind": "sgd", "lr": 1e-3, "momentum": 0.0}, Absolute(strength=strength), every=every)
    start_beside_the_sample(run)
    sample = run.samples[0].parameters["theta"][1]
    for within in range(STEPS - 1):
        theta = run.learner.theta.detach()[1].clone()
        images, _ = run.batches(run.schedule.steps)
        run.step()
        away = theta - sample
        wanted = -every * strength * 2 * away / (away.square() + EPSILON) ** 2 if within % every == 0 else 0.0
        found = (run.learner.theta.grad - images.mean(0))[1]
        assert found.item() == pytest.approx(float(wanted), rel=1e-3, abs=1e-6)


def test_the_log_has_distances_between_impulses():
    run = chain({"kind": "sgd", "lr": 1e-3}, Fading(), every=4)
    run.record_every = 5
    start_beside_the_sample(run)
    run.rows()
    while not run.done:
        run.step()
    assert all("distance" in row for row in run.rows())


def test_what_cannot_be_is_refused():
    with pytest.raises(UserError, match="every is 0: it must be at least 1"):
        Repulsion("paired", every=0)
    repulsion = Repulsion("paired", every=2, anchor=torch.zeros(1, 3))
    with pytest.raises(UserError, match="say at which step of the cycle"):
        repulsion.acts(exploring=True)
    sampler = {"kind": "sghmc", "lr": 1e-3, "gradient_noise": "estimate"}
    with pytest.raises(UserError, match="would take such impulses for noise"):
        chain(sampler, Fading(), every=2)
    assert Repelling().every == 1
