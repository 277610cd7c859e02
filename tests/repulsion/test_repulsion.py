"""The term that a training loop adds: its size, its memory, its state, and what happens on the saddle."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rebapl.errors import UserError
from rebapl.repulsion import DISTANCES, POTENTIALS, Repulsion, kick, requires_dependence, squared_distance, weights

ALL = list(DISTANCES)
EXPLORING, SAMPLING = SimpleNamespace(exploring=True), SimpleNamespace(exploring=False)


class Problem:
    """A small network on 24 points, its loss, and its features on a pool of 16: any model, no prompts."""

    def __init__(self, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 5))
        with torch.no_grad():
            for p in self.model.parameters():
                p.copy_(torch.randn(p.shape, generator=generator))
        self.x, self.pool = torch.randn(24, 3, generator=generator), torch.randn(16, 3, generator=generator)
        self.y = torch.randint(5, (24,), generator=generator)
        self.parameters = list(self.model.parameters())

    def loss(self) -> Tensor:
        return nn.functional.cross_entropy(self.model(self.x), self.y)

    def gradient_norm(self, value: Tensor) -> float:
        found = torch.autograd.grad(value, self.parameters, retain_graph=True)
        return torch.cat([g.flatten() for g in found]).norm().item()

    def move(self, scale: float, seed: int = 1) -> None:
        kick(self.parameters, scale, torch.Generator().manual_seed(seed))

    def repelled(self, **settings: Any) -> Repulsion:
        """A repulsion that remembers where the model is now."""
        repulsion = Repulsion(**settings)
        repulsion.remember(self.model(self.pool))
        repulsion.new_cycle()
        return repulsion


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
    ratios = []
    for step in range(10):
        rows = repulsion.choose(16, 12, torch.Generator().manual_seed(0))
        loss, cloud = problem.loss(), problem.model(problem.pool[rows])
        term = repulsion(cloud, rows, loss=loss, parameters=iter(problem.parameters))
        ratios.append(problem.gradient_norm(term) / problem.gradient_norm(loss))
        assert repulsion.norms is not None
        if step % 5 == 0:
            assert [n.item() for n in repulsion.norms] == pytest.approx(
                [problem.gradient_norm(loss), problem.gradient_norm(term)], rel=1e-4
            )
        problem.move(0.02, seed=step)
    assert ratios[0] == pytest.approx(0.3, rel=1e-4)
    assert ratios[5] == pytest.approx(0.3, rel=1e-4)
    assert all(0.05 < r < 1.5 for r in ratios), ratios


def test_between_measurements_the_force_follows_the_distance() -> None:
    """Measured just off the saddle, where ∇V is tiny: a fixed ratio would be 30 times too large a little later."""
    problem = Problem()
    repulsion = problem.repelled(metric="wasserstein", fraction=0.3, measure_every=100)
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
    repulsion = Repulsion("paired", fraction=0.3, scale=1.0, measure_every=2)
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


@pytest.mark.parametrize("size", ["normalised", "capped", "absolute"])
@pytest.mark.parametrize("metric", ALL)
def test_on_the_saddle_of_a_warm_restart_nothing_blows_up(metric: str, size: str) -> None:
    problem = Problem()
    repulsion = problem.repelled(metric=metric, size=size, strength=1e3, measure_every=3)
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
    assert [passes() for _ in range(9)] == [2, 0, 0, 0, 2, 0, 0, 0, 2]
    assert passes() == 0
    repulsion.new_cycle()
    assert passes() == 2


def test_memory_previous_and_all() -> None:
    clouds = [torch.randn(6, 2, generator=torch.Generator().manual_seed(i)) for i in range(5)]
    previous, every = Repulsion("energy"), Repulsion("energy", memory="all")
    for repulsion in (previous, every):
        repulsion.remember(clouds[0])
        assert not repulsion.active(EXPLORING)  # a sample does not repel its own cycle
        repulsion.new_cycle()
        assert repulsion.active(EXPLORING)
        assert not repulsion.active(SAMPLING)
        for cloud in clouds[1:4]:
            repulsion.remember(cloud)
        assert len(repulsion) == 1
        repulsion.new_cycle()
    assert (len(previous), len(every)) == (3, 4)
    previous.new_cycle()
    assert len(previous) == 3  # nothing new: the memory stays
    assert Repulsion(stage="both").active(SAMPLING) is False
    both = Repulsion(stage="both", metric="energy")
    both.remember(clouds[0])
    both.new_cycle()
    assert both.active(SAMPLING)


def test_a_schedule_that_counts_cycles_begins_them() -> None:
    repulsion = Repulsion("paired")
    schedule = SimpleNamespace(exploring=True, cycle=0)
    assert not repulsion.active(schedule)
    repulsion.remember(torch.eye(3))
    assert not repulsion.active(schedule)
    schedule.cycle = 1
    assert repulsion.active(schedule)
    repulsion.new_cycle()  # called by hand as well: no harm
    assert repulsion.active(schedule)


def test_what_is_remembered_is_a_detached_copy() -> None:
    theta = torch.eye(3, requires_grad=True)
    repulsion = Repulsion("paired", size="absolute")
    repulsion.remember(theta)
    with torch.no_grad():
        theta.add_(1)
    repulsion.new_cycle()
    repulsion(theta)
    assert repulsion.distance is not None
    assert repulsion.distance.item() == pytest.approx(3)


@pytest.mark.parametrize("metric", ALL)
def test_state_goes_round_bit_for_bit(metric: str) -> None:
    problem = Problem()
    repulsion = problem.repelled(metric=metric, memory="all", measure_every=4)
    problem.move(0.1)
    repulsion(problem.model(problem.pool), loss=problem.loss(), parameters=problem.parameters)
    repulsion.remember(problem.model(problem.pool))
    state = repulsion.state_dict()
    assert all(isinstance(v, (Tensor, int, str)) for v in state.values())
    other = Repulsion(metric, memory="all", measure_every=4)
    other.load_state_dict(state)
    problem.move(0.1)
    for _ in range(2):
        terms = []
        for r in (repulsion, other):
            terms.append(r(problem.model(problem.pool), loss=problem.loss(), parameters=problem.parameters))
            r.remember(problem.model(problem.pool))
            r.new_cycle()
        assert torch.equal(*terms)
    assert len(other) == 4
    with pytest.raises(UserError, match=f"saved memory is for metric '{metric}', not"):
        Repulsion("paired" if metric != "paired" else "mmd").load_state_dict(state)


def test_weight_space_is_paired_on_one_row() -> None:
    problem = Problem()
    repulsion = Repulsion("paired", size="absolute")
    start = weights(problem.parameters)
    repulsion.remember(start)
    repulsion.new_cycle()
    problem.move(0.1)
    moved = weights(problem.parameters)
    repulsion(moved).backward()
    assert repulsion.distance is not None
    assert repulsion.distance.item() == pytest.approx((moved - start).square().sum().item(), rel=1e-5)
    assert all(p.grad is not None and p.grad.norm() > 0 for p in problem.parameters)


def test_half_precision_features_keep_their_gradient() -> None:
    cloud = torch.randn(8, 4, generator=torch.Generator().manual_seed(0)).half().requires_grad_()
    repulsion = Repulsion("mmd", size="absolute")
    repulsion.remember(cloud)
    repulsion.new_cycle()
    repulsion(cloud + 0.1).backward()
    assert cloud.grad is not None
    assert cloud.grad.dtype == torch.float16
    assert cloud.grad.isfinite().all()
    assert cloud.grad.norm() > 0


def test_choose_is_random_without_repetition() -> None:
    rows = Repulsion.choose(100, 30, torch.Generator().manual_seed(0))
    assert len(set(rows.tolist())) == 30
    assert torch.equal(rows, Repulsion.choose(100, 30, torch.Generator().manual_seed(0)))
    assert sorted(Repulsion.choose(5, 30, torch.Generator()).tolist()) == [0, 1, 2, 3, 4]


def test_features_that_do_not_depend_on_theta_are_refused() -> None:
    problem = Problem()
    repulsion = problem.repelled(size="absolute")
    with pytest.raises(UserError, match="do not depend on the learned parameters"):
        repulsion(problem.pool.new_ones(16, 5))
    stranger = torch.ones(3, requires_grad=True)
    requires_dependence(problem.model(problem.pool), problem.parameters)
    with pytest.raises(UserError, match="do not depend on the learned parameters"):
        requires_dependence(problem.model(problem.pool), [stranger])


def test_kick_is_relative_and_reproducible() -> None:
    large, small = torch.full((1000,), 50.0), torch.full((1000,), -0.02)
    kick([large, small], 0.01, torch.Generator().manual_seed(0))
    # sample standard deviation of 1000 normals: within 10 % but for one run in 10⁵
    assert (large - 50).std().item() == pytest.approx(0.5, rel=0.1)
    assert (small + 0.02).std().item() == pytest.approx(2e-4, rel=0.1)
    again = torch.full((1000,), 50.0)
    kick([again], 0.01, torch.Generator().manual_seed(0))
    assert torch.equal(again, large)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"metric": "mdm"}, r"unknown metric 'mdm': did you mean 'mmd'\?"),
        ({"potential": "inv"}, "Accepted: inverse, log"),
        ({"size": "cap"}, "Accepted: normalised, capped, absolute"),
        ({"memory": "last"}, "Accepted: previous, all"),
        ({"stage": "sampling"}, "Accepted: exploration, both"),
        ({"fraction": -0.1}, "fraction must be a number of at least 0; got -0.1"),
        ({"strength": float("nan")}, "strength must be a number of at least 0; got nan"),
        ({"epsilon": 0}, "epsilon must be a positive number; got 0"),
        ({"scale": -1.0}, "scale must be a positive number; got -1"),
        ({"measure_every": 0}, "measure_every must be at least 1 step; got 0"),
        ({"metric": "mmd", "projections": 5}, "metric 'mmd' has no option 'projections'; it takes bandwidth"),
    ],
)
def test_bad_settings_are_refused_at_once(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Repulsion(**settings)


def test_bad_calls_say_what_to_do() -> None:
    problem = Problem()
    with pytest.raises(UserError, match=r"nothing is remembered yet; .*new_cycle"):
        Repulsion()(problem.model(problem.pool))
    with pytest.raises(UserError, match=r"loss=loss, parameters=.* or use size='absolute'"):
        problem.repelled(size="capped")(problem.model(problem.pool))
    with pytest.raises(UserError, match="cannot choose 0 of 5"):
        Repulsion.choose(5, 0, torch.Generator())
    repulsion = Repulsion("paired")
    repulsion.remember(torch.eye(3))
    repulsion.remember(torch.eye(4))
    with pytest.raises(UserError, match=r"same reference points; got shapes \[\(3, 3\), \(4, 4\)\]"):
        repulsion.new_cycle()
