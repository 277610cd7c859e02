"""Stein's direction against a double loop, and what its particles do on a Gaussian."""

import math

import pytest
import torch
from torch import Tensor

from rebapl.repulsion import stein_direction
from rebapl.repulsion.stein import median_bandwidth


def particles(count: int, d: int, seed: int = 0) -> Tensor:
    return torch.randn(count, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_direction_matches_a_double_loop() -> None:
    theta, gradients = particles(6, 3), particles(6, 3, seed=1)
    pairs = torch.tensor([(theta[i] - theta[j]).square().sum() for i in range(6) for j in range(i)])
    h = pairs.median() / math.log(7)
    torch.testing.assert_close(median_bandwidth(theta), h.double())
    expected = torch.zeros_like(theta)
    for i in range(6):
        for j in range(6):
            moving = theta[j].clone().requires_grad_()
            k = torch.exp(-(moving - theta[i]).square().sum() / h)
            expected[i] += (k.detach() * gradients[j] + torch.autograd.grad(k, moving)[0]) / 6
    torch.testing.assert_close(stein_direction(theta, gradients), expected)


@pytest.mark.parametrize("d", [1, 2])
def test_particles_settle_on_a_gaussian(d: int) -> None:
    """Deterministic from its start, so no false alarms. SVGD is known to fall a little short in variance."""
    mean = torch.tensor([1.5, -2.0], dtype=torch.float64)[:d]
    std = torch.tensor([0.5, 2.0], dtype=torch.float64)[:d]
    theta = particles(60, d) * 0.1 - 3
    for _ in range(1500):
        theta = theta + 0.2 * stein_direction(theta, -(theta - mean) / std.square())
    torch.testing.assert_close(theta.mean(0), mean, atol=0.02, rtol=0)
    ratio = theta.var(0) / std.square()
    assert ((ratio > 0.8) & (ratio < 1.1)).all(), ratio


def test_coincident_particles_and_one_alone() -> None:
    together = torch.ones(3, 2, dtype=torch.float64)
    torch.testing.assert_close(stein_direction(together, together), together)
    alone = particles(1, 4)
    torch.testing.assert_close(stein_direction(alone, 2 * alone), 2 * alone)
