"""How strong the force is, by kind: measured, in between, on the saddle, and between several remembered samples."""

from typing import Any

import pytest
import torch
from small_problem import Problem

from rebapl.errors import UserError
from rebapl.repulsion import DISTANCES, Fading, Inverse, Repulsion, squared_distance
from rebapl.repulsion.force import POTENTIALS, Absolute, Capped, Force, Normalised
from rebapl.repulsion.repulsion import AT_ONCE

ALL = list(DISTANCES)


@pytest.mark.parametrize("potential", list(POTENTIALS))
@pytest.mark.parametrize("distance", ALL)
def test_absolute_size_is_strength_times_the_sum(distance: str, potential: str) -> None:
    problem = Problem()
    first = problem.model(problem.pool).detach()
    chosen = POTENTIALS[potential](epsilon=0.5, scale=0.2)
    repulsion = Repulsion(distance, potential=chosen, force=Absolute(strength=0.7))
    repulsion.remember(first)
    repulsion.remember(2 * first)
    repulsion.begin_cycle()
    problem.move(0.5)
    cloud = problem.model(problem.pool)
    squared = torch.stack([squared_distance(cloud, first, distance), squared_distance(cloud, 2 * first, distance)])
    if distance != "sliced":  # which draws other directions for each
        expected = 0.7 * chosen.value(squared, torch.tensor(0.1)).sum()
        torch.testing.assert_close(repulsion(cloud), expected, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(repulsion.state["distance"], squared.detach().min())
        assert not repulsion.state["distance"].requires_grad
    before = squared.detach().sum()
    for p, g in zip(problem.parameters, torch.autograd.grad(repulsion(cloud), problem.parameters), strict=True):
        p.data -= 1e-3 * g / g.norm()
    cloud = problem.model(problem.pool)
    after = squared_distance(cloud, first, distance) + squared_distance(cloud, 2 * first, distance)
    assert after > before  # descent on the term moves away


@pytest.mark.parametrize("distance", ALL)
def test_normalised_is_exact_at_a_measured_step_and_close_between(distance: str) -> None:
    problem = Problem()
    repulsion = problem.repelled(distance, force=Normalised(fraction=0.3, measure_every=5))
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
            assert repulsion.state["usual"].item() == pytest.approx(usual, rel=1e-4)
            assert repulsion.state["norm"].item() == pytest.approx(force, rel=1e-4)
        assert 0.05 < force / problem.gradient_norm(loss) < 1.5
        problem.move(0.02, seed=step)


def test_one_mini_batch_does_not_set_the_size_of_the_force() -> None:
    """Batches of a fitted model: most have no gradient, a few have a large one, and one overflows."""
    problem = Problem()
    repulsion = problem.repelled(force=Normalised(fraction=0.3, measure_every=1))
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
    repulsion = problem.repelled(force=Normalised(fraction=0.3, measure_every=10))
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
    """Text features of ten classes after a short cycle: a d² of 1e-6 is above the rounding error, and 1e-7 is not."""
    generator = torch.Generator().manual_seed(0)
    stored = torch.nn.functional.normalize(torch.randn(points, 64, generator=generator), dim=1)
    repulsion = Repulsion("mmd", force=Normalised(fraction=0.3), anchor=torch.randn(stored.shape, generator=generator))
    repulsion.remember(stored)
    repulsion.begin_cycle()
    theta = (stored + moved * torch.randn(stored.shape, generator=generator)).requires_grad_()
    repulsion(theta, loss=theta.sum(), parameters=[theta])
    assert (repulsion.state["norm"] > 0) == acts
    assert repulsion.state["distance"] < 2e-6
    torch.testing.assert_close(repulsion.state["norm"], (0.3 * acts) * repulsion.state["usual"])


def between_two(force: Force, places: tuple[float, ...]) -> list[float]:
    """The force at some places on a line (positive: to the right), with samples at −1 and 1 and with ∇loss = 1."""
    repulsion = Repulsion("paired", force=force, potential=Inverse(epsilon=0.3, scale=1.0))
    for place in (-1.0, 1.0):
        repulsion.remember(torch.tensor([[place]]))
    repulsion.begin_cycle()
    found = []
    for place in places:
        theta = torch.tensor([[place]], requires_grad=True)
        term = repulsion(theta, loss=theta.sum(), parameters=[theta])
        found.append(-torch.autograd.grad(term, theta)[0].item())
    return found


@pytest.mark.parametrize("force", [Fading(measure_every=2), Normalised(measure_every=2)], ids=lambda force: force.kind)
def test_forces_that_cancel_are_not_magnified(force: Force) -> None:
    """Between two remembered samples the net force is nearly 0, both at the step that measures and later.

    If the net force were scaled as a whole, a force of nearly 0 would get the full size.
    """
    forces = between_two(force, (0.0, 1e-3, 1e-3, 0.0, -1e-3))
    assert max(map(abs, forces)) < 0.01


def test_where_cancelling_forces_were_measured_the_next_ones_are_right() -> None:
    """With d = |θ − θ_s| every slope is 1: a fading force is Σ_s ±u_s, u = |dV/dd|/B, wherever it was measured."""

    def share(d: float) -> float:
        return 2 * d / (d * d + 0.3) ** 2 / (9 / (8 * 3**0.5) * 0.3**-1.5)

    places = (1e-4, 0.5, 0.9, -0.9, 1.3)
    wanted = [share(abs(x + 1)) * (1 if x > -1 else -1) + share(abs(x - 1)) * (1 if x > 1 else -1) for x in places]
    assert between_two(Fading(measure_every=3), places) == pytest.approx(wanted, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("others", [0, 1, 3, 9])
def test_near_one_of_many_remembered_samples_the_force_is_whole(others: int) -> None:
    """Where |dV/dd| of one sample is greatest, and all others are far away, the force is the fraction of ∇loss.

    Sized as a whole it was 1/S of that. The others' own share at ten times the distance is below .002 each.
    """
    repulsion = Repulsion("paired", force=Fading(fraction=0.4, measure_every=1), potential=Inverse(scale=1.0))
    near = (0.3 / 3) ** 0.5  # the place of the greatest slope for ε = .3
    for place in [0.0] + [20.0 * (1 + i) for i in range(others)]:
        repulsion.remember(torch.tensor([[place, 0.0]]))
    repulsion.begin_cycle()
    for _ in range(4):  # measured in turn
        theta = torch.tensor([[near, 0.0]], requires_grad=True)
        loss = 5 * theta[0, 1]
        (force,) = torch.autograd.grad(repulsion(theta, loss=loss, parameters=[theta]), theta)
    assert force.norm().item() == pytest.approx(0.4 * 5, rel=0.01)


@pytest.mark.parametrize("measure_every", [1, 10, 1000])
@pytest.mark.parametrize("count", [10, 30])
def test_of_many_remembered_samples_all_slopes_are_measured_in_the_first_steps(count: int, measure_every: int) -> None:
    """The first steps of a cycle measure four samples each, until all of them are measured."""
    problem = Problem()
    repulsion = problem.repulsion("energy", force=Fading(measure_every=measure_every))
    for seed in range(count):
        problem.move(0.3, seed)
        repulsion.remember(problem.model(problem.pool))
    repulsion.begin_cycle()
    problem.move(0.3, 99)
    measured, used = [], []
    for _ in range(9):
        term = repulsion(problem.model(problem.pool), loss=problem.loss(), parameters=problem.parameters)
        assert term.isfinite()
        measured.append(int((repulsion.state["slope"] > 0).sum()))
        used.append(int((repulsion.state["held"] > 0).sum()))
    assert measured == used == [min(AT_ONCE * step, count) for step in range(1, 10)]
    repulsion.begin_cycle()  # and the next cycle measures all of them anew
    repulsion(problem.model(problem.pool), loss=problem.loss(), parameters=problem.parameters)
    assert int((repulsion.state["slope"] > 0).sum()) == AT_ONCE


@pytest.mark.parametrize(("strength", "limited"), [(1e-3, False), (1e6, True)])
def test_capped_limits_only_what_is_too_large(strength: float, limited: bool) -> None:
    problem = Problem()
    repulsion = problem.repelled(force=Capped(cap=0.5, strength=strength))
    absolute = problem.repelled(force=Absolute(strength=strength))
    problem.move(0.1)
    loss, cloud = problem.loss(), problem.model(problem.pool)
    term = repulsion(cloud, loss=loss, parameters=problem.parameters)
    if limited:
        assert problem.gradient_norm(term) == pytest.approx(0.5 * problem.gradient_norm(loss), rel=1e-4)
    else:
        torch.testing.assert_close(term, absolute(cloud))


EACH = [Normalised(measure_every=3), Fading(measure_every=3), Capped(strength=1e3, measure_every=3)]


@pytest.mark.parametrize("force", [*EACH, Absolute(strength=1e3)], ids=lambda force: force.kind)
@pytest.mark.parametrize("distance", ALL)
def test_on_the_saddle_of_a_warm_restart_nothing_blows_up(distance: str, force: Force) -> None:
    problem = Problem()
    repulsion = problem.repelled(distance, force=force, potential=Inverse(epsilon=1.0))
    for step in range(7):
        loss = problem.loss()
        term = repulsion(problem.model(problem.pool), loss=loss, parameters=problem.parameters)
        found = problem.gradient_norm(term)
        assert term.isfinite()
        if force.relative:
            assert found <= 1.5 * problem.gradient_norm(loss)
        if step == 0:
            assert found <= 0.01 * problem.gradient_norm(loss)
            problem.move(0.01)
    assert found > 0


def test_an_ordinary_step_has_no_backward_pass_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem()
    repulsion = problem.repelled(force=Fading(measure_every=4))
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
    repulsion.begin_cycle()
    assert passes() == 2


@pytest.mark.parametrize(("squared", "share"), [(1 / 3, 1.0), (1.93, 0.5), (8.47, 0.1), (0.01, 0.303)])
def test_fading_is_the_fraction_where_the_force_is_greatest_and_less_elsewhere(squared: float, share: float) -> None:
    """With the inverse potential the force is √u/(1+u)² of u = d²/ε, up to a factor; its greatest value is at u = ⅓."""
    theta = torch.zeros(1, 2, requires_grad=True)
    repulsion = Repulsion("paired", force=Fading(fraction=0.4), potential=Inverse(epsilon=2.0, scale=1.0))
    repulsion.remember(torch.tensor([[(2.0 * squared) ** 0.5, 0.0]]))
    repulsion.begin_cycle()
    loss = (theta * torch.tensor([3.0, 4.0])).sum()
    (force,) = torch.autograd.grad(repulsion(theta, loss=loss, parameters=[theta]), theta)
    assert force.norm().item() == pytest.approx(0.4 * 5 * share, rel=0.01)


@pytest.mark.parametrize("samples", [1, AT_ONCE, AT_ONCE + 2])
def test_the_gradients_of_a_measuring_step_are_those_of_loss_and_term(samples: int) -> None:
    problem = Problem()
    repulsion = problem.repulsion("wasserstein", force=Fading(measure_every=1), every=4)
    for seed in range(samples):
        problem.move(0.2, seed=seed)
        repulsion.remember(problem.model(problem.pool))
    repulsion.begin_cycle()
    problem.move(0.2, seed=99)
    for _ in range(3):  # so that all of them have a slope, and other ones are measured each time
        kind, state = repulsion.plan(torch.device("cpu"))
        loss, cloud = problem.loss(), problem.model(problem.pool)
        term = repulsion.term(kind, state, cloud, None, loss, problem.parameters)
        repulsion.keep(term.state)
        assert len(term.of_samples) == min(samples, AT_ONCE)
        wanted = [torch.autograd.grad(value, problem.parameters, retain_graph=True) for value in (loss, term.value)]
        torch.testing.assert_close([term.of_loss, term.gradient(problem.parameters)], wanted, rtol=1e-4, atol=1e-6)
    assert repulsion.state["norm"] > 0


def test_a_force_with_a_tolerance_yields_as_the_loss_rises() -> None:
    """The remaining share is 1 − (ℓ − ℓ₁)/δ, limited to 0 and 1; ℓ₁ is the level at the end of the first cycle."""

    def size(after: float, tolerance: float | None) -> float:
        problem = Problem()
        repulsion = problem.repulsion(force=Fading(tolerance=tolerance))
        for _ in range(200):
            repulsion.note_loss(torch.tensor(0.5))
        repulsion.remember(problem.model(problem.pool))
        repulsion.begin_cycle()
        problem.move(0.3)
        for _ in range(200):  # the running mean has arrived
            repulsion.note_loss(torch.tensor(after))
        return problem.gradient_norm(
            repulsion(problem.model(problem.pool), loss=problem.loss(), parameters=problem.parameters)
        )

    whole = size(9.0, None)
    assert whole > 0
    assert size(0.4, 0.2) == pytest.approx(whole)
    assert size(0.5, 0.2) == pytest.approx(whole)
    assert size(0.55, 0.2) == pytest.approx(0.75 * whole, rel=1e-4)
    assert size(0.65, 0.2) == pytest.approx(0.25 * whole, rel=1e-4)
    assert size(0.9, 0.2) == 0.0


def test_a_force_with_a_tolerance_must_be_told_the_loss() -> None:
    problem = Problem()
    repulsion = problem.repelled(force=Fading(tolerance=0.1))
    with pytest.raises(UserError, match=r"call repulsion.note_loss\(loss\) at every step, from the first cycle on"):
        repulsion(problem.model(problem.pool), loss=problem.loss(), parameters=problem.parameters)
