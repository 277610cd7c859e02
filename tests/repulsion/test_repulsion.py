"""The term that a training loop adds: its memory, its state, its spaces, and what it refuses."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from small_problem import Problem
from torch import Tensor

from rebapl.errors import UserError
from rebapl.repulsion import DISTANCES, Repulsion, kick, requires_dependence, weights

ALL = list(DISTANCES)
EXPLORING, SAMPLING = SimpleNamespace(exploring=True), SimpleNamespace(exploring=False)


def test_memory_previous_and_all() -> None:
    clouds = [torch.randn(6, 2, generator=torch.Generator().manual_seed(i)) for i in range(5)]
    previous, every = Repulsion("energy", memory="previous"), Repulsion("energy")
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
        ({"size": "cap"}, "Accepted: normalised, fading, capped, absolute"),
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
