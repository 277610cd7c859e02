"""SGLD against its closed form."""

from __future__ import annotations

import pytest
import torch

from rebapl.sampling import SGLD

from .conftest import assert_variance

N, CHAINS = 50, 20_000


@pytest.mark.parametrize("temperature", [1.0, 0.1])
@pytest.mark.parametrize("step", [0.1, 0.5, 1.5])
def test_stationary_variance_is_the_closed_form(step, temperature):
    curvature = 4.0
    generator = torch.Generator().manual_seed(0)
    theta = torch.nn.Parameter(torch.randn(CHAINS, generator=generator) * (temperature / curvature) ** 0.5)
    sampler = SGLD([theta], lr=step * N / curvature, num_data=N, temperature=temperature, generator=generator)
    for _ in range(150):
        theta.grad = theta.detach() * (curvature / N)
        sampler.step()
    assert_variance(theta, temperature / curvature / (1 - step / 2))


def test_at_temperature_zero_it_is_gradient_descent():
    ours, theirs = (torch.nn.Parameter(torch.arange(4.0)) for _ in range(2))
    a = SGLD([ours], lr=0.1, num_data=N, temperature=0.0, weight_decay=0.01)
    b = torch.optim.SGD([theirs], lr=0.1, weight_decay=0.01)
    for _ in range(10):
        for theta, optimizer in ((ours, a), (theirs, b)):
            optimizer.zero_grad()
            theta.sin().sum().backward()
            optimizer.step()
        assert torch.equal(ours, theirs)
