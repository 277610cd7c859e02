"""The optimizers that are built from settings: their class, their prior, and the centre of the prior."""

from __future__ import annotations

import copy

import pytest
import torch

from rebapl.sampling import SGHMC, SGLD, Inference
from rebapl.sampling.schedule import build_burn_in, build_optimizer

N = 50


def burner(start: torch.Tensor, **prior):
    """A parameter, its sampler, and the burn-in of this sampler."""
    theta = torch.nn.Parameter(start.clone())
    sampler = SGHMC([theta], lr=0.1, num_data=N, **prior)
    return theta, sampler, build_burn_in(sampler)


PRIORS = [
    {"weight_decay": 0.5},
    {"prior_std": 0.2},  # 1/(N·std²) = 0.5
    {"weight_decay": 0.5, "center": "init"},
    {"prior_std": 0.2, "center": "init"},
]


@pytest.mark.parametrize("prior", [*PRIORS, {}])
def test_with_a_loss_it_is_adamw_by_hand(prior):
    """θ ← θ − lr·(wd·(θ − θ₀) + m̂/(√v̂ + 1e-8)), with Adam's usual averages (.9, .999)."""
    start = torch.tensor([2.0, -1.0, 0.5], dtype=torch.float64)
    theta, _, adamw = burner(start, **prior)
    decay = 0.5 if prior else 0.0
    center = start if prior.get("center") else torch.zeros(3, dtype=torch.float64)
    x, m, v = start.clone(), torch.zeros(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    for t in range(1, 8):
        g = torch.cos(x * t)
        theta.grad = g.clone()
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        x = x - 0.1 * (decay * (x - center) + m / (1 - 0.9**t) / ((v / (1 - 0.999**t)).sqrt() + 1e-8))
        adamw.step()
        torch.testing.assert_close(theta.detach(), x)


def test_a_parameter_without_a_gradient_is_not_pulled():
    theta, _, adamw = burner(torch.ones(2), prior_std=0.2, center="init")
    with torch.no_grad():
        theta += 3.0
    adamw.step()
    assert torch.equal(theta.detach(), torch.full((2,), 4.0))


def test_a_restored_burn_in_pulls_to_where_the_first_one_began():
    theta, sampler, adamw = burner(torch.ones(2), prior_std=0.2, center="init")
    other, restored_sampler, restored = burner(torch.full((2,), 7.0), prior_std=0.2, center="init")
    restored.load_state_dict(copy.deepcopy(adamw.state_dict()))
    restored_sampler.load_state_dict(copy.deepcopy(sampler.state_dict()))
    with torch.no_grad():
        other.copy_(theta)
    for p, optimizer in ((theta, adamw), (other, restored)):
        p.grad = torch.zeros(2)
        with torch.no_grad():
            p.add_(1.0)
        optimizer.step()
    assert torch.equal(theta, other)


@pytest.mark.parametrize(
    ("sampler", "kind"),
    [
        ({"kind": "sgd", "lr": 0.1}, SGHMC),
        ({"kind": "sghmc", "lr": 0.1}, SGHMC),
        ({"kind": "sgld", "lr": 0.1}, SGLD),
        ({"kind": "adamw", "lr": 0.1}, torch.optim.AdamW),
    ],
)
def test_each_sampler_is_its_optimizer(sampler, kind):
    theta = torch.nn.Parameter(torch.ones(2))
    optimizer = build_optimizer(Inference(sampler=sampler, epochs=1, batch=1), [theta], N, torch.Generator())
    assert type(optimizer) is kind
    if kind is SGHMC:
        assert optimizer.param_groups[0]["temperature"] == (0.0 if sampler["kind"] == "sgd" else 1.0)
