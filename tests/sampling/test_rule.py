"""Every step rule is a proper torch optimizer; the prior; the estimate of the gradient noise."""

from __future__ import annotations

import copy
import pickle
import warnings

import pytest
import torch

from rebapl.errors import UserError
from rebapl.sampling import SGHMC, SGLD

from .conftest import Z, assert_variance

RULES = {
    "sgld": lambda params, **more: SGLD(params, **{"lr": 0.05, "num_data": 40, **more}),
    **{
        integrator: lambda params, integrator=integrator, **more: SGHMC(
            params, **{"lr": 0.05, "num_data": 40, "integrator": integrator, **more}
        )
        for integrator in ("kdod", "symplectic", "printed", "authors")
    },
}
WITH_NOISE_ESTIMATE = [name for name in RULES if name != "authors"]


def model() -> torch.nn.Module:
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, 2))


def walk(net, sampler, steps, start=0):
    for step in range(start, start + steps):
        x = torch.randn(5, 4, generator=torch.Generator().manual_seed(step))
        sampler.zero_grad()
        net(x).square().mean().backward()
        sampler.step()
    return [p.detach().clone() for p in net.parameters()]


def seeded(seed=7):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("name", RULES)
def test_lr_may_be_a_tensor(name):
    runs = []
    for lr in (0.05, torch.tensor(0.05)):
        net = model()
        sampler = RULES[name](net.parameters(), lr=lr, generator=seeded())
        walk(net, sampler, 5)
        if isinstance(lr, torch.Tensor):
            lr.fill_(0.02)
        else:
            sampler.param_groups[0]["lr"] = 0.02
        runs.append(walk(net, sampler, 5, start=5))
    for a, b in zip(*runs, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("name", RULES)
def test_same_generator_same_path_and_no_other_randomness(name):
    runs = []
    for salt in (0, 1):
        net = model()
        torch.manual_seed(salt)
        runs.append(walk(net, RULES[name](net.parameters(), generator=seeded()), 5))
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))
    net = model()
    other = walk(net, RULES[name](net.parameters(), generator=seeded(8)), 5)
    assert not torch.equal(runs[0][0], other[0])


@pytest.mark.parametrize("name", WITH_NOISE_ESTIMATE)
def test_a_run_restored_from_its_state_dict_goes_on_bit_for_bit(name, tmp_path):
    settings = {"weight_decay": 0.01, "center": "init", "gradient_noise": "estimate"}
    net = model()
    generator = seeded()
    sampler = RULES[name](net.parameters(), generator=generator, **settings)
    walk(net, sampler, 7)
    saved = {"net": net.state_dict(), "sampler": sampler.state_dict(), "generator": generator.get_state()}
    torch.save(saved, tmp_path / "state.pt")
    whole = walk(net, sampler, 7, start=7)

    saved = torch.load(tmp_path / "state.pt")
    net, generator = model(), seeded(99)
    with torch.no_grad():
        net[0].weight.add_(1.0)  # a fresh start elsewhere: the centre must come from the file
    sampler = RULES[name](net.parameters(), generator=generator, **settings)
    net.load_state_dict(saved["net"])
    sampler.load_state_dict(saved["sampler"])
    generator.set_state(saved["generator"])
    assert all(torch.equal(a, b) for a, b in zip(whole, walk(net, sampler, 7, start=7), strict=True))


@pytest.mark.parametrize("name", RULES)
def test_closure_is_evaluated_with_gradients_and_its_loss_returned(name):
    theta = torch.nn.Parameter(torch.ones(3))
    sampler = RULES[name]([theta], temperature=0.0)

    def closure():
        sampler.zero_grad()
        loss = theta.square().sum()
        loss.backward()
        return loss

    assert sampler.step(closure).item() == 3.0
    sampler.step(closure)
    assert (theta < 1).all()


@pytest.mark.parametrize("name", RULES)
def test_parameters_without_a_gradient_are_left_alone(name):
    used, unused = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(3))
    sampler = RULES[name]([used, unused], weight_decay=0.1, generator=seeded())
    used.square().sum().backward()
    sampler.step()
    sampler.step()
    assert torch.equal(unused, torch.ones(3))
    assert (used != 1).all()


def test_groups_have_their_own_settings():
    hot, cold = torch.nn.Parameter(torch.zeros(5000)), torch.nn.Parameter(torch.zeros(5000))
    sampler = SGHMC(
        [{"params": [hot], "temperature": 4.0}, {"params": [cold], "momentum": 0.5}],
        lr=5.0,
        num_data=50,
        generator=seeded(),
    )
    sampler.add_param_group({"params": [torch.nn.Parameter(torch.zeros(2))], "lr": 0.1})
    for _ in range(300):
        for theta in (hot, cold):
            theta.grad = theta.detach() / 50
        sampler.step()
    assert_variance(hot, 4.0)
    assert_variance(cold, 1.0)
    assert [group["lr"] for group in sampler.param_groups] == [5.0, 5.0, 0.1]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda both: pickle.loads(pickle.dumps(both))])
@pytest.mark.parametrize("name", RULES)
def test_a_copy_of_the_optimizer_goes_the_same_way(name, copied):
    net = model()
    sampler = RULES[name](net.parameters(), generator=seeded())
    walk(net, sampler, 2)
    other, twin = copied((net, sampler))
    assert all(torch.equal(a, b) for a, b in zip(walk(net, sampler, 3), walk(other, twin, 3), strict=True))


@pytest.mark.parametrize("prior", [{"weight_decay": 0.5}, {"prior_std": 0.2}, {"prior_std": 0.2, "center": "init"}])
def test_without_data_the_samples_are_the_prior(prior):
    """N = 50, so weight_decay 0.5 is a standard deviation of 0.2 as well; the centre is 3 or 0."""
    theta = torch.nn.Parameter(torch.full((20_000,), 3.0))
    sampler = SGHMC([theta], lr=0.4, num_data=50, momentum=0.5, generator=seeded(), **prior)
    for _ in range(200):
        theta.grad = torch.zeros_like(theta)
        sampler.step()
    center = 3.0 if prior.get("center") else 0.0
    assert_variance(theta - center, 0.04)
    assert abs(theta.mean().item() - center) < Z * 0.2 / 20_000**0.5


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"lr": -1.0}, "lr is -1"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"num_data": 0}, "num_data is 0"),
        ({"weight_decay": 0.1, "prior_std": 1.0}, "give one of them"),
        ({"prior_std": 0.0}, "prior_std is 0"),
        ({"gradient_noise": "auto"}, "'estimate'"),
        ({"gradient_noise": -0.1}, "above 0"),
        ({"center": "zero", "prior_std": 1.0}, "Accepted: init"),
        ({"center": [torch.zeros(2)], "prior_std": 1.0}, "Accepted: init"),
        ({"center": "init"}, "does nothing without a prior"),
    ],
)
def test_bad_values_say_which_are_accepted(settings, says):
    with pytest.raises(UserError, match=says):
        SGLD([torch.nn.Parameter(torch.ones(2))], **{"lr": 0.1, "num_data": 10, **settings})


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", RULES)
def test_parameters_too_coarse_for_small_steps_are_refused(name, dtype):
    """Far from 0, bfloat16 swallows small steps: it sampled .087 of the variance, in silence."""
    fine, coarse = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(3, 2, dtype=dtype))
    with pytest.raises(
        UserError, match=rf"shape \(3, 2\) is {dtype}, too coarse .* keep the learned parameters in float32"
    ):
        RULES[name]([coarse])
    sampler = RULES[name]([fine])
    with pytest.raises(UserError, match="too coarse"):
        sampler.add_param_group({"params": [coarse]})
    assert RULES[name]([torch.nn.Parameter(torch.ones(2, dtype=torch.float64))])


# --- conjugate Bayesian linear regression with mini-batches ------------------------------------------------

N, BATCH, DIM, CHAINS, DECAY = 200, 48, 3, 3000, 0.1


def regression(name: str, steps: int = 350, **settings):
    """`CHAINS` chains, each with its own mini-batches; returns w (CHAINS, DIM), posterior mean and covariance.

    Residuals of size one and a whitened design make the gradient noise the same in all directions, so that
    one V̂ per coordinate says all there is to say.
    """
    generator = seeded(11)
    x = torch.linalg.qr(torch.randn(N, DIM, generator=generator))[0] * N**0.5
    y = x @ torch.tensor([1.0, -2.0, 0.5]) + torch.randn(N, generator=generator).sign()
    precision = x.T @ x + N * DECAY * torch.eye(DIM)
    mean, covariance = torch.linalg.solve(precision, x.T @ y), torch.linalg.inv(precision)
    w = torch.nn.Parameter(mean + torch.randn(CHAINS, DIM, generator=generator) * covariance.diagonal().sqrt())
    sampler = RULES[name]([w], num_data=N, weight_decay=DECAY, generator=generator, **settings)
    for _ in range(steps):
        rows = torch.randint(N, (CHAINS, BATCH), generator=generator)
        batch = x[rows]
        residual = (batch @ w.detach()[:, :, None]).squeeze(-1) - y[rows]
        w.grad = (residual[:, None] @ batch).squeeze(1) / BATCH
        sampler.step()
    per_example = x * (x @ mean - y)[:, None]
    gradient_variance = (per_example - per_example.mean(0)).square().mean(0) / BATCH
    return w.detach(), mean, covariance, gradient_variance, sampler


def check_posterior(w, mean, covariance, bias=0.0):
    error = (covariance.diagonal() / CHAINS).sqrt()
    assert ((w.mean(0) - mean).abs() < Z * error).all()
    found = torch.cov(w.T)
    errors = ((covariance.diagonal()[:, None] * covariance.diagonal() + covariance**2) / CHAINS).sqrt()
    scale = (covariance.diagonal()[:, None] * covariance.diagonal()).sqrt()
    assert ((found - covariance).abs() < Z * errors + bias * scale).all(), found / covariance


@pytest.mark.parametrize("name", ["kdod", "symplectic", "sgld"])
def test_mini_batch_regression_is_the_conjugate_posterior_once_gradient_noise_is_taken_off(name):
    """Remaining bias allowed: 3 % for steps of αλ = 0.02 (SGLD 0.2) and a diagonal noise estimate."""
    w, mean, covariance, _, sampler = regression(name, lr=0.2 if name == "sgld" else 0.02, gradient_noise="estimate")
    bias = 0.03 + (0.11 if name == "sgld" else 0.0)  # SGLD's own: 1/(1−αλ/2), αλ ≈ 0.22
    check_posterior(w, mean, covariance, bias)
    assert sampler.acceptance().item() > 0.99


@pytest.mark.parametrize("name", ["kdod", "symplectic"])
def test_a_constant_gamma_does_the_same_when_it_is_right(name):
    V = regression(name, steps=1, lr=0.02)[3].mean().item()
    w, mean, covariance, _, _ = regression(name, lr=0.02, gradient_noise=0.02 * N * V / 2)
    check_posterior(w, mean, covariance, bias=0.06)  # one γ̂ for three coordinates


@pytest.mark.parametrize("name", ["kdod", "symplectic"])
def test_without_it_mini_batches_heat_the_chain_by_the_known_amount(name):
    w, _, covariance, V, _ = regression(name, lr=0.02)
    injected, noise = (0.19, 0.9025 * 0.02 * N * V) if name == "kdod" else (0.2, 0.02 * N * V)
    heat = 1 + noise / injected
    assert (heat > 1.3).all()
    found = torch.cov(w.T).diagonal() / covariance.diagonal()
    assert ((found - heat).abs() < Z * heat * (2 / CHAINS) ** 0.5 + 0.03 * heat).all(), (found, heat)


def test_warns_once_when_gradient_noise_leaves_no_room():
    with pytest.warns(UserWarning, match="Lower lr") as caught:
        *_, sampler = regression("kdod", steps=100, lr=0.2, gradient_noise="estimate")
    assert len(caught) == 1
    assert sampler.acceptance().item() < 0.3
    with pytest.warns(UserWarning, match="Lower lr"):
        regression("symplectic", steps=2, lr=0.02, gradient_noise=0.2)


def test_gradient_noise_is_not_used_at_temperature_zero():
    paths = []
    for noise in (None, "estimate"):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            paths.append(regression("kdod", steps=20, lr=0.2, temperature=0.0, gradient_noise=noise)[0])
    assert torch.equal(*paths)


@pytest.mark.filterwarnings("ignore:for some coordinates")
def test_a_continued_sampler_goes_on_counting_the_noise_that_was_cut():
    theta = torch.nn.Parameter(torch.zeros(4))
    make = {"lr": 0.5, "num_data": 50, "temperature": 0.1, "gradient_noise": "estimate"}
    sampler, other = (SGHMC([theta], generator=torch.Generator().manual_seed(0), **make) for _ in range(2))
    for step in range(6):
        theta.grad = torch.randn(4, generator=torch.Generator().manual_seed(step))
        sampler.step()
    other.load_state_dict(sampler.state_dict())
    assert 0 <= (share := sampler.acceptance()) < 1
    assert other.acceptance() == share
