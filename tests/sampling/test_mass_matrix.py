"""A mass matrix changes how fast a sampler moves in each direction, not the density that it samples."""

import math

import pytest
import torch
from torch import Tensor

from rebapl import SGHMC, SGLD, CyclicalSchedule
from rebapl.errors import UserError
from rebapl.sampling.mass_matrix import inverse_mass_of_adamw, inverse_mass_of_gradients
from rebapl.sampling.rule import Rule

CURVATURES = torch.tensor([0.01, 1.0, 100.0], dtype=torch.float64)
"""Of N·L."""
N = 50


def sampler(kind: type[Rule], theta: Tensor, inverse_mass: Tensor, seed: int = 0, **options: object) -> Rule:
    """A sampler whose mass matrix is given."""
    made = kind(
        [theta],
        num_data=N,
        mass_matrix="diagonal",
        generator=torch.Generator().manual_seed(seed),
        **options,  # type: ignore[arg-type]
    )
    made.state[theta]["inverse_mass"] = inverse_mass.expand_as(theta).clone()
    return made


def on_quadratic(rule: Rule, theta: Tensor, steps: int, curvatures: Tensor = CURVATURES) -> Tensor:
    """The path (steps, chains, d) on N·L = ½ Σ λ_i θ_i²."""
    path = torch.empty(steps, *theta.shape, dtype=theta.dtype)
    for step in range(steps):
        theta.grad = curvatures * theta.detach() / N
        rule.step()
        path[step] = theta.detach()
    return path


# Chains begin in the stationary density and stay in it: the mean of z² over chains and steps has a standard error below
# 1.5 % (2 000 independent chains give sqrt(2/2000) = 3.2 %, and each mixes many times), so 6 % fail less than once in
# ten thousand runs.
@pytest.mark.parametrize(
    ("inverse_mass", "temperature"),
    [([1.0, 1.0, 1.0], 1.0), ([100.0, 1.0, 0.01], 1.0), ([100.0, 1.0, 0.01], 0.01), ([3.0, 0.2, 0.05], 4.0)],
)
def test_sghmc_has_the_same_stationary_variance_for_every_mass(inverse_mass: list[float], temperature: float) -> None:
    """The variance is T/λ, and the kinetic temperature T, exactly; different coordinates are independent.

    The covariances are 0: the mean product of two of three coordinates of variance 1 has a standard error below
    2.3 % (that of 2 000 independent pairs), and 10 % fails less than once in ten thousand runs.
    """
    mass = torch.tensor(inverse_mass, dtype=torch.float64)
    chains = 2000
    start = torch.randn(chains, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    theta = torch.nn.Parameter(start * (temperature / CURVATURES).sqrt())
    lr = N / (mass * CURVATURES).max().item()  # α·P·λ is at most 1; stable below 4
    rule = sampler(SGHMC, theta, mass, lr=lr, momentum=0.8, temperature=temperature)
    path = on_quadratic(rule, theta, 400)[100:] * (CURVATURES / temperature).sqrt()
    covariance = torch.einsum("tci,tcj->ij", path, path) / (len(path) * chains)
    assert torch.allclose(covariance.diagonal(), torch.ones(3, dtype=torch.float64), atol=0.06)
    assert (covariance - covariance.diagonal().diag()).abs().max() < 0.1
    assert rule.kinetic_temperature().item() == pytest.approx(temperature, rel=0.06)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("integrator", "formula"),
    [
        ("symplectic", lambda a, eta: 1 / (1 - a / (2 * (2 - eta)))),
        ("printed", lambda a, eta: 2 * eta * (2 - eta + a) / ((eta - a) * (4 - 2 * eta + a))),
    ],
)
@pytest.mark.parametrize("temperature", [1.0, 0.01])
def test_the_other_integrators_keep_their_formulas_with_the_curvature_times_the_mass(
    integrator, formula, temperature
) -> None:
    """a is α·P_i·λ_i, here one value for all coordinates. The tolerance is that of the test above."""
    a, eta = 0.06, 0.2
    mass = 1 / CURVATURES
    wanted = temperature * formula(a, eta)
    start = torch.randn(2000, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    theta = torch.nn.Parameter(start * (wanted / CURVATURES).sqrt())
    options = {"lr": a * N, "momentum": 1 - eta, "integrator": integrator, "temperature": temperature}
    path = on_quadratic(sampler(SGHMC, theta, mass, **options), theta, 600)
    variances = path[100:].square().mean(dim=(0, 1)) * CURVATURES / wanted
    assert torch.allclose(variances, torch.ones(3, dtype=torch.float64), atol=0.06)


@pytest.mark.parametrize("temperature", [1.0, 0.01])
def test_sgld_has_its_stationary_variance_with_a_mass(temperature: float) -> None:
    mass = torch.tensor([100.0, 1.0, 0.01], dtype=torch.float64)
    start = torch.randn(2000, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    theta = torch.nn.Parameter(start * (temperature / CURVATURES).sqrt())
    lr = 0.5 * N  # α·P·λ = 0.5 in every direction
    path = on_quadratic(sampler(SGLD, theta, mass, lr=lr, temperature=temperature), theta, 300)
    variances = path[100:].square().mean(dim=(0, 1)) * CURVATURES / temperature
    assert torch.allclose(variances, torch.full((3,), 1 / (1 - 0.25), dtype=torch.float64), atol=0.08)


def autocorrelation_time(path: Tensor) -> float:
    """1 + 2·Σ_k ρ_k of paths (steps, chains) about their known mean 0, summed until ρ falls below 0.05."""
    scale, total = path.square().mean().item(), 1.0
    for lag in range(1, len(path) // 2):
        rho = (path[lag:] * path[:-lag]).mean().item() / scale
        if rho < 0.05:
            break
        total += 2 * rho
    return total


def test_mixing_on_a_condition_number_of_ten_thousand_improves_tenfold() -> None:
    """Effective samples per step in the flattest direction, with P = 1 and with the P that the sampler measures.

    While exploring at temperature 0 it gets the gradients of single images: their variance is the Fisher information,
    which is the curvature λ/N. The sampling that follows has exact gradients. With P the 64 chains together give more
    than 1 000 independent values in the flattest direction, so that a mean square 25 % away from 1 would be five
    standard errors.
    """
    times, stream = [], torch.Generator().manual_seed(3)
    for mass_matrix in (None, "diagonal"):
        start = torch.randn(64, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        theta = torch.nn.Parameter(start / CURVATURES.sqrt())
        rule = SGHMC(
            [theta],
            lr=0.5 * N / CURVATURES.max().item(),
            num_data=N,
            mass_matrix=mass_matrix,
            generator=torch.Generator().manual_seed(2),
        )
        exploration = 400
        schedule = CyclicalSchedule(rule, steps_per_cycle=3000, exploration=exploration / 3000, floor=1.0)
        for _ in range(exploration):
            drawn = torch.randn(64, 3, dtype=torch.float64, generator=stream)
            theta.grad = CURVATURES * theta.detach() / N + (CURVATURES / N).sqrt() * drawn
            rule.step()
            schedule.step()
        assert rule.param_groups[0]["temperature"] == 1.0
        path = on_quadratic(rule, theta, 2500)[500:, :, 0] * CURVATURES[0].sqrt()
        times.append(autocorrelation_time(path))
    assert times[0] > 10 * times[1]
    assert path.square().mean().item() == pytest.approx(1, abs=0.25)
    mass = rule.inverse_mass(theta)
    assert ((mass * CURVATURES).amax(1) / (mass * CURVATURES).amin(1) < 1000).all()


def test_without_noise_the_step_is_that_of_sgd_with_momentum_on_preconditioned_gradients() -> None:
    mass = torch.tensor([100.0, 1.0, 0.01])
    ours, theirs = (torch.nn.Parameter(torch.tensor([1.0, -2.0, 3.0])) for _ in range(2))
    rule = sampler(SGHMC, ours, mass, lr=0.1, momentum=0.9, temperature=0.0)
    sgd = torch.optim.SGD([theirs], lr=0.1, momentum=0.9)
    stream = torch.Generator().manual_seed(3)
    for _ in range(20):
        gradient = torch.randn(3, generator=stream)
        ours.grad, theirs.grad = gradient.clone(), mass * gradient
        rule.step()
        sgd.step()
        assert torch.equal(ours, theirs)


def test_the_mass_of_adamw_makes_steps_as_long_as_its_own() -> None:
    theta = torch.nn.Parameter(torch.zeros(1000))
    adamw = torch.optim.AdamW([theta], lr=1e-3, weight_decay=0.0)
    scales = torch.logspace(-2, 2, 1000)
    for _ in range(50):
        theta.grad = scales.clone()  # constant gradients: AdamW moves by lr in every coordinate
        adamw.step()
    mass = inverse_mass_of_adamw(adamw, momentum=0.9, damping=1e-9)[theta]
    # with momentum the sampler's step adds up to P·g/(1−momentum)
    assert torch.allclose(mass * scales / (1 - 0.9), torch.ones(1000), rtol=1e-3)


def test_the_mass_of_gradients_keeps_the_length_of_a_step() -> None:
    moments = [torch.logspace(-6, 2, 50), torch.rand(4, 5, generator=torch.Generator().manual_seed(0))]
    masses = inverse_mass_of_gradients(moments)
    after = sum((p.square() * v).sum() for p, v in zip(masses, moments, strict=True))
    assert after.item() == pytest.approx(sum(v.sum().item() for v in moments), rel=1e-5)  # type: ignore[union-attr]
    assert masses[0][0] / masses[0][-1] > 100  # flat directions go further


def test_coordinates_without_any_gradient_stay_bounded() -> None:
    (mass,) = inverse_mass_of_gradients([torch.tensor([0.0, 1.0, 4.0])])
    assert mass.isfinite().all()


def test_without_any_gradient_the_mass_is_one() -> None:
    """Neither does the sampler stand still (P = 0), nor does its first noise throw θ away (P without bound)."""
    (mass,) = inverse_mass_of_gradients([torch.zeros(3)])
    assert torch.equal(mass, torch.ones(3))
    theta = torch.nn.Parameter(torch.zeros(2))
    adamw = torch.optim.AdamW([theta], lr=1e-3)
    for _ in range(20):
        theta.grad = torch.zeros(2)
        adamw.step()
    assert torch.equal(inverse_mass_of_adamw(adamw)[theta], torch.ones(2))


def test_the_epsilon_of_adamw_bounds_the_mass_as_it_bounds_its_step() -> None:
    theta = torch.nn.Parameter(torch.zeros(1))
    adamw = torch.optim.AdamW([theta], lr=1.0, weight_decay=0.0)
    for _ in range(50):
        before = theta.detach().clone()
        theta.grad = torch.tensor([1e-10])
        adamw.step()
    step = (before - theta.detach()).item()
    assert step == pytest.approx(1e-10 / 1.01e-8, rel=1e-3)
    assert inverse_mass_of_adamw(adamw)[theta].item() * 1e-10 == pytest.approx(step, rel=0.02)


def test_few_gradients_of_one_parameter_give_it_no_mass_matrix_whatever_the_others_had() -> None:
    rare, common = (torch.nn.Parameter(torch.zeros(2)) for _ in range(2))
    adamw = torch.optim.AdamW([rare, common], lr=1e-3)
    rule = SGHMC([rare, common], lr=1e-3, num_data=N, mass_matrix="diagonal", temperature=0.0)
    for step in range(30):
        rare.grad = torch.tensor([1e-6, 1e-6]) if step == 0 else None
        common.grad = torch.tensor([1.0, 4.0])
        adamw.step()
        rule.step()
    rule.freeze_mass()
    for masses in (inverse_mass_of_adamw(adamw), {p: rule.inverse_mass(p) for p in (rare, common)}):
        assert torch.equal(masses[rare], torch.ones(2))
        assert masses[common][0] > 3 * masses[common][1]


def test_a_group_whose_first_gradient_comes_while_sampling_has_a_mass_of_one() -> None:
    first, late = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    groups = [{"params": [first]}, {"params": [late]}]
    rule = SGHMC(groups, lr=0.01, num_data=N, mass_matrix="diagonal", temperature=0.1)
    adamw = torch.optim.AdamW([first, late], lr=0.01)
    schedule = CyclicalSchedule(rule, steps_per_cycle=40, exploration=0.5, burn_in=1.0, burn_in_optimizer=adamw)
    for step in range(30):
        first.grad = torch.tensor([1.0, 10.0])
        late.grad = torch.ones(2) if step >= 25 else None
        schedule.current.step()
        schedule.step()
    assert rule.inverse_mass(first)[0] > 5 * rule.inverse_mass(first)[1]
    assert torch.equal(rule.inverse_mass(late), torch.ones(2))
    assert not torch.equal(late, torch.ones(2))


def explored(steps: int) -> tuple[torch.nn.Parameter, SGHMC, CyclicalSchedule]:
    """A sampler of cycles of twenty steps, the first half of which explores, after some of its steps."""
    theta = torch.nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
    rule = SGHMC(
        [theta],
        lr=0.01,
        num_data=N,
        temperature=0.01,
        mass_matrix="diagonal",
        generator=torch.Generator().manual_seed(0),
    )
    schedule = CyclicalSchedule(rule, steps_per_cycle=20, exploration=0.5)
    go_on(theta, rule, schedule, steps)
    return theta, rule, schedule


def go_on(theta: torch.nn.Parameter, rule: SGHMC, schedule: CyclicalSchedule, steps: int) -> None:
    for _ in range(steps):
        theta.grad = CURVATURES.float() * theta.detach() / N
        rule.step()
        schedule.step()


def test_it_is_measured_while_exploring_frozen_while_sampling_and_measured_anew_in_the_next_cycle() -> None:
    theta, rule, schedule = explored(10)
    assert "inverse_mass" not in rule.state[theta]
    go_on(theta, rule, schedule, 1)
    first = rule.state[theta]["inverse_mass"].clone()
    go_on(theta, rule, schedule, 8)
    assert torch.equal(rule.state[theta]["inverse_mass"], first)
    go_on(theta, rule, schedule, 1)  # the cycle ends
    assert "inverse_mass" not in rule.state[theta]
    assert "second_moment" not in rule.state[theta]
    go_on(theta, rule, schedule, 11)
    assert not torch.equal(rule.state[theta]["inverse_mass"], first)


def test_a_momentum_that_is_kept_does_not_keep_the_mass_of_another_cycle() -> None:
    theta = torch.nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
    rule = SGHMC([theta], lr=0.01, num_data=N, temperature=0.01, mass_matrix="diagonal")
    schedule = CyclicalSchedule(rule, steps_per_cycle=40, exploration=0.5, keep_momentum=True)
    masses = []
    for slope in (0.01, 1.0):
        for within in range(40):
            theta.grad = torch.tensor([1.0, slope, slope])
            rule.step()
            if within == 39:
                masses.append(rule.inverse_mass(theta).clone())
                momentum = rule.state[theta]["momentum_buffer"].clone()
            schedule.step()
        assert torch.equal(rule.state[theta]["momentum_buffer"], momentum)
    assert masses[0][1] > 10 * masses[0][0]
    assert masses[1][1] == pytest.approx(masses[1][0].item(), rel=1e-4)


def test_a_burn_in_hands_its_second_moments_over() -> None:
    theta = torch.nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
    rule = SGHMC([theta], lr=0.01, num_data=N, mass_matrix="diagonal", momentum=0.9)
    adamw = torch.optim.AdamW([theta], lr=0.01)
    schedule = CyclicalSchedule(
        rule, steps_per_cycle=20, exploration=0.5, burn_in=1.0, burn_in_optimizer=adamw, cycles=2
    )
    for _ in range(10):
        theta.grad = CURVATURES.float() * theta.detach() / N
        schedule.current.step()
        schedule.step()
    expected = inverse_mass_of_adamw(adamw, momentum=0.9)[theta]
    assert torch.equal(rule.state[theta]["inverse_mass"], expected)


def test_the_noise_of_mini_batches_counts_in_the_units_of_the_mass() -> None:
    """With `gradient_noise="estimate"` the variance stays T/λ although mini-batches bring noise of their own.

    The standard error of the mean over 4 000 chains that mix many times is below 2 %; 8 % fail less than once in ten
    thousand runs.
    """
    mass = torch.tensor([10.0, 1.0, 0.1], dtype=torch.float64)
    curvatures = torch.tensor([0.1, 1.0, 10.0], dtype=torch.float64)
    theta = torch.nn.Parameter(torch.randn(4000, 3, dtype=torch.float64) / curvatures.sqrt())
    rule = sampler(SGHMC, theta, mass, lr=0.1 * N, momentum=0.7, gradient_noise="estimate")
    noise = (0.0012 * curvatures).sqrt()  # lr·N·P·V is 0.3 where the friction removes 0.51
    stream, kept = torch.Generator().manual_seed(4), []
    for step in range(600):
        drawn = torch.randn(4000, 3, dtype=torch.float64, generator=stream)
        theta.grad = curvatures * theta.detach() / N + noise * drawn
        rule.step()
        if step >= 300:
            kept.append(theta.detach().clone())
    variances = torch.stack(kept).square().mean(dim=(0, 1)) * curvatures
    assert torch.allclose(variances, torch.ones(3, dtype=torch.float64), atol=0.08)


def test_what_cannot_be_is_refused() -> None:
    theta = torch.nn.Parameter(torch.ones(2))
    with pytest.raises(UserError, match="mass_matrix is 'full'"):
        SGHMC([theta], lr=0.1, num_data=N, mass_matrix="full")
    with pytest.raises(UserError, match="does not go with the integrator 'authors'"):
        SGHMC([theta], lr=0.1, num_data=N, mass_matrix="diagonal", integrator="authors")
    rule = SGLD([theta], lr=0.1, num_data=N, mass_matrix="diagonal")
    theta.grad = torch.ones(2)
    with pytest.raises(UserError, match="steps at temperature 0"):
        rule.step()
    with pytest.raises(UserError, match="no step yet"):
        inverse_mass_of_adamw(torch.optim.AdamW([theta]))
    with pytest.raises(UserError, match="SGD has none"):
        inverse_mass_of_adamw(torch.optim.SGD([theta], lr=0.1))
    assert math.isfinite(theta.sum().item())


@pytest.mark.parametrize("gradients", [9, 10])
def test_few_gradients_make_no_mass_matrix(gradients: int) -> None:
    """If these gradients happened to be small, the first large gradient would throw the parameters far."""
    theta = torch.nn.Parameter(torch.zeros(2))
    adamw = torch.optim.AdamW([theta], lr=1e-3)
    rule = SGHMC([theta], lr=1e-3, num_data=N, mass_matrix="diagonal", momentum=0.9, temperature=0.0)
    for _ in range(gradients):
        theta.grad = torch.tensor([1e-3, 0.0])
        adamw.step()
        rule.step()
    rule.freeze_mass()
    for mass in (inverse_mass_of_adamw(adamw)[theta], rule.inverse_mass(theta)):
        assert torch.equal(mass, torch.ones(2)) == (gradients < 10)


def test_a_group_that_never_had_a_gradient_keeps_no_other_from_its_mass_matrix() -> None:
    used, unused = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    groups = [{"params": [used]}, {"params": [unused]}]
    rule = SGHMC(groups, lr=0.1, num_data=10, temperature=0.0, mass_matrix="diagonal")
    for temperature in [0.0] * 20 + [1.0]:
        for group in rule.param_groups:
            group["temperature"] = temperature
        used.grad = torch.tensor([1.0, 10.0])
        rule.step()
    assert rule.inverse_mass(used)[0] > 5 * rule.inverse_mass(used)[1]
    assert torch.equal(rule.inverse_mass(unused), torch.ones(2))
