"""At equilibrium, the records of steps have their theoretical values."""

from __future__ import annotations

import math

import pytest
import torch

from rebapl.sampling import SGHMC, SGLD, CyclicalSchedule
from rebapl.sampling.diagnostics import Diagnostics

from .conftest import Z

N, CHAINS, T = 50, 20_000, 0.3


@pytest.mark.parametrize("center", [None, "init"])
def test_both_temperatures_read_the_temperature(center):
    """The kinetic is a mean of χ²₁; so is the configurational, θ·∇U of a Gaussian. Standard error T·sqrt(2/n)."""
    generator = torch.Generator().manual_seed(0)
    theta = torch.nn.Parameter(torch.full((CHAINS,), 2.0))
    # the prior alone is the target: N·L = ½·λ·(θ−θ₀)², λ = N·wd
    sampler = SGHMC(
        [theta], lr=0.02 * N / 5.0, num_data=N, temperature=T, weight_decay=0.1, center=center, generator=generator
    )
    record = Diagnostics()
    for step in range(400):
        theta.grad = torch.zeros_like(theta)
        if step == 399:
            record.before(step, sampler, theta.sum())
        sampler.step()
    record.after(sampler)
    (row,) = record.rows()
    error = Z * T * (2 / CHAINS) ** 0.5
    assert abs(row["kinetic_temperature"] - T) < error
    assert abs(row["configurational_temperature"] - T) < error
    assert row["temperature"] == T
    assert row["acceptance"] == 1.0


def test_a_record_is_complete_without_gradients_and_where_no_noise_is_due():
    theta = torch.nn.Parameter(torch.ones(3))
    sampler, record = SGHMC([theta], lr=0.1, num_data=5, gradient_noise="estimate"), Diagnostics()
    for step, temperature in enumerate((1.0, 1.0, 0.0)):
        sampler.param_groups[0]["temperature"] = temperature
        theta.grad = torch.ones(3)
        record.before(step, sampler, theta.sum())
        sampler.step()
        record.after(sampler)
    assert [row["acceptance"] for row in record.rows()] == [1.0, 1.0, 1.0]
    theta.grad = None
    record.before(3, sampler, theta.sum())
    assert record.rows()[3]["gradient_norm"] == 0.0
    assert math.isnan(record.rows()[3]["configurational_temperature"])


def test_it_works_on_any_optimizer_and_keeps_the_lr_of_the_step():
    theta = torch.nn.Parameter(torch.ones(3))
    for optimizer in (torch.optim.AdamW([theta], lr=1.0), SGLD([theta], lr=torch.tensor(1.0), num_data=5)):
        schedule, record = CyclicalSchedule(optimizer, 4, floor=0.0), Diagnostics()
        for step in range(3):
            theta.grad = torch.ones(3)
            record.before(step, optimizer, theta.sum())
            optimizer.step()
            record.after(optimizer)
            schedule.step()
        rows = record.rows()
        assert [row["lr"] for row in rows] == pytest.approx([1.0, 0.8536, 0.5], abs=1e-4)
        assert rows[0]["gradient_norm"] == pytest.approx(3**0.5)
