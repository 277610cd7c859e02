"""How strong the force is: absolute, capped, normalised, fading; measured, in between, and on the saddle."""

from typing import Any

import pytest
import torch
from small_problem import Problem

from rebapl.repulsion import DISTANCES, POTENTIALS, Repulsion, squared_distance

ALL = list(DISTANCES)


@pytest.mark.parametrize("potential", list(POTENTIALS))
@pytest.mark.parametrize("metric", ALL)
def test_absolute_size_is_strength_times_the_sum(metric: str, potential: str) -> None:
    problem = Problem()
    first = problem.model(problem.pool).detach()
    repulsion = Repulsion(metric, potential=potential, size="absolute", strength=0.7, epsilon=0.5, scale=0.2)
    repulsion.remember(first)
    repulsion.remember(2 * first)
    repulsion.new_cycle()
    problem.move(0.5)
    cloud = problem.model(problem.pool)
    squared = torch.stack([squared_distance(cloud, first, metric), squared_distance(cloud, 2 * first, metric)])
    if metric != "sliced":  # which draws other directions for each
        expected = 0.7 * POTENTIALS[potential].value(squared, torch.tensor(0.1)).sum()
        torch.testing.assert_close(repulsion(cloud), expected, rtol=1e-4, atol=1e-6)
        assert repulsion.distance is not None
        torch.testing.assert_close(repulsion.distance, squared.detach().min())
        assert not repulsion.distance.requires_grad
    before = squared.detach().sum()
    for p, g in zip(problem.parameters, torch.autograd.grad(repulsion(cloud), problem.parameters), strict=True):
        p.data -= 1e-3 * g / g.norm()
    cloud = problem.model(problem.pool)
    after = squared_distance(cloud, first, metric) + squared_distance(cloud, 2 * first, metric)
    assert after > before  # descent on the term moves away


@pytest.mark.parametrize("metric", ALL)
def test_normalised_is_exact_at_a_measured_step_and_close_between(metric: str) -> None:
    problem = Problem()
    repulsion = problem.repelled(metric=metric, size="normalised", fraction=0.3, measure_every=5)
    problem.move(0.05)
    measured: list[float] = []
    for step in range(10):
        rows = repulsion.choose(16, 12, torch.Generator().manual_seed(0))
        loss, cloud = problem.loss(), problem.model(problem.pool[rows])
        term = repulsion(cloud, rows, loss=loss, parameters=iter(problem.parameters))
        force = problem.gradient_norm(term)
        if step in (0, 1, 2, 4, 5):
            measured.append(problem.gradient_norm(loss))
            usual = sum(measured) / len(measured)
            assert force == pytest.approx(0.3 * usual, rel=1e-4)
            assert repulsion.norms is not None
            assert [n.item() for n in repulsion.norms] == pytest.approx([usual, force], rel=1e-4)
        assert 0.05 < force / problem.gradient_norm(loss) < 1.5
        problem.move(0.02, seed=step)


def test_one_mini_batch_does_not_set_the_size_of_the_force() -> None:
    """Batches of a fitted model: most have no gradient, a few a large one; one even overflows."""
    problem = Problem()
    repulsion = problem.repelled(size="normalised", fraction=0.3, measure_every=1)
    problem.move(0.1)
    unit = problem.gradient_norm(problem.loss())
    forces = []
    for size in (1.0, 1.0, 0.0, 0.0, float("inf"), 0.0, 4.0, 0.0, 0.0, 0.0):
        cloud = problem.model(problem.pool)
        term = repulsion(cloud, loss=problem.loss() * size, parameters=problem.parameters)
        forces.append(problem.gradient_norm(term) / unit)
    assert forces[0] == pytest.approx(0.3, rel=1e-4)
    assert all(0.05 < force < 0.5 for force in forces), forces


def test_the_force_begins_right_after_a_start_on_the_saddle() -> None:
    """A step that begins exactly at a stored sample has no direction; the next ones must not wait for it."""
    problem = Problem()
    repulsion = problem.repelled(size="normalised", fraction=0.3, measure_every=10)
    forces = []
    for step in range(4):
        loss = problem.loss()
        term = repulsion(problem.model(problem.pool), loss=loss, parameters=problem.parameters)
        forces.append(problem.gradient_norm(term) / problem.gradient_norm(loss))
        problem.move(0.02, seed=step)
    assert forces[0] == 0
    assert all(0.1 < force < 1 for force in forces[1:]), forces


@pytest.mark.parametrize(("points", "moved", "acts"), [(10, 5e-4, True), (10, 1e-5, False), (64, 4e-4, False)])
def test_samples_a_little_apart_repel_and_those_apart_by_rounding_do_not(points: int, moved: float, acts: bool) -> None:
    """Text features of ten classes after a short cycle: d² is 1e-6, some units of rounding; at 1e-7 it is nothing."""
    generator = torch.Generator().manual_seed(0)
    stored = torch.nn.functional.normalize(torch.randn(points, 64, generator=generator), dim=1)
    repulsion = Repulsion("mmd", size="normalised", fraction=0.3)
    repulsion.remember(stored)
    repulsion.new_cycle()
    theta = (stored + moved * torch.randn(stored.shape, generator=generator)).requires_grad_()
    repulsion(theta, loss=theta.sum(), parameters=[theta])
    assert repulsion.norms is not None
    assert repulsion.distance is not None
    assert (repulsion.norms[1] > 0) == acts
    assert repulsion.distance < 2e-6
    torch.testing.assert_close(repulsion.norms[1], (0.3 * acts) * repulsion.norms[0])


def test_between_measurements_the_force_follows_the_distance() -> None:
    """Measured just off the saddle, where ∇V is tiny: a fixed ratio would be 30 times too large a little later."""
    problem = Problem()
    repulsion = problem.repelled(metric="wasserstein", size="normalised", fraction=0.3, measure_every=100)
    problem.move(0.01)
    assert repulsion.norms is None
    repulsion(problem.model(problem.pool), loss=problem.loss(), parameters=problem.parameters)
    with torch.no_grad():
        for p in problem.parameters:
            p.add_(0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(7)))
    loss = problem.loss()
    term = repulsion(problem.model(problem.pool), loss=loss, parameters=problem.parameters)
    assert 0.05 < problem.gradient_norm(term) / problem.gradient_norm(loss) < 1.0


def test_forces_that_cancel_when_measured_are_not_magnified_afterwards() -> None:
    """Between two stored samples the forces cancel; the next step is no longer between them."""
    repulsion = Repulsion("paired", size="normalised", fraction=0.3, scale=1.0, measure_every=2)
    for place in (-1.0, 1.0):
        repulsion.remember(torch.tensor([[place]]))
    repulsion.new_cycle()
    forces = []
    for place in (0.5, 0.5, 1e-4, 0.5):
        theta = torch.tensor([[place]], requires_grad=True)
        term = repulsion(theta, loss=theta.sum(), parameters=[theta])
        forces.append(torch.autograd.grad(term, theta)[0].abs().item())
    assert forces[:3] == pytest.approx([0.3, 0.3, 0.3], rel=1e-3)
    assert forces[3] <= 0.61


@pytest.mark.parametrize(("strength", "limited"), [(1e-3, False), (1e6, True)])
def test_capped_limits_only_what_is_too_large(strength: float, limited: bool) -> None:
    problem = Problem()
    repulsion = problem.repelled(metric="mmd", size="capped", cap=0.5, strength=strength)
    absolute = problem.repelled(metric="mmd", size="absolute", strength=strength)
    problem.move(0.1)
    loss, cloud = problem.loss(), problem.model(problem.pool)
    term = repulsion(cloud, loss=loss, parameters=problem.parameters)
    if limited:
        assert problem.gradient_norm(term) == pytest.approx(0.5 * problem.gradient_norm(loss), rel=1e-4)
    else:
        torch.testing.assert_close(term, absolute(cloud))


@pytest.mark.parametrize("size", ["normalised", "fading", "capped", "absolute"])
@pytest.mark.parametrize("metric", ALL)
def test_on_the_saddle_of_a_warm_restart_nothing_blows_up(metric: str, size: str) -> None:
    problem = Problem()
    repulsion = problem.repelled(metric=metric, size=size, strength=1e3, epsilon=1.0, measure_every=3)
    for step in range(7):
        loss = problem.loss()
        term = repulsion(problem.model(problem.pool), loss=loss, parameters=problem.parameters)
        force = problem.gradient_norm(term)
        assert term.isfinite()
        if size != "absolute":
            assert force <= 1.5 * problem.gradient_norm(loss)
        if step == 0:
            assert force <= 0.01 * problem.gradient_norm(loss)
            problem.move(0.01)
    assert force > 0


def test_an_ordinary_step_has_no_backward_pass_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem()
    repulsion = problem.repelled(measure_every=4)
    problem.move(0.1)
    real, calls = torch.autograd.grad, 0

    def counting(*given: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        return real(*given, **named)

    def passes() -> int:
        before = calls
        repulsion(problem.model(problem.pool), loss=problem.loss(), parameters=problem.parameters)
        return calls - before

    monkeypatch.setattr(torch.autograd, "grad", counting)
    assert [passes() for _ in range(13)] == [2, 2, 2, 0, 2, 0, 0, 0, 2, 0, 0, 0, 2]
    assert passes() == 0
    repulsion.new_cycle()
    assert passes() == 2


@pytest.mark.parametrize(("squared", "share"), [(1 / 3, 1.0), (1.93, 0.5), (8.47, 0.1), (0.01, 0.303)])
def test_fading_is_the_fraction_where_the_force_is_greatest_and_less_elsewhere(squared: float, share: float) -> None:
    """With the inverse potential the force is √u/(1+u)² of u = d²/ε, up to a factor; its greatest value is at u = ⅓."""
    theta = torch.zeros(1, 2, requires_grad=True)
    repulsion = Repulsion("paired", size="fading", fraction=0.4, epsilon=2.0, scale=1.0)
    repulsion.remember(torch.tensor([[(2.0 * squared) ** 0.5, 0.0]]))
    repulsion.new_cycle()
    loss = (theta * torch.tensor([3.0, 4.0])).sum()
    (force,) = torch.autograd.grad(repulsion(theta, loss=loss, parameters=[theta]), theta)
    assert force.norm().item() == pytest.approx(0.4 * 5 * share, rel=0.01)
