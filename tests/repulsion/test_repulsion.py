"""The term that a training loop adds: its memory, its state, its spaces, and what it refuses."""

from typing import Any

import pytest
import torch
from small_problem import Problem
from torch import Tensor
from torch.utils._pytree import tree_leaves

from rebapl.errors import UserError
from rebapl.repulsion import DISTANCES, MMD, Fading, Inverse, Repulsion, kick, requires_dependence, weights
from rebapl.repulsion.force import Absolute, Log

ALL = list(DISTANCES)


def test_memory_previous_and_all() -> None:
    clouds = [torch.randn(6, 2, generator=torch.Generator().manual_seed(i)) for i in range(5)]
    given = {"anchor": clouds[4] + 1}
    previous, every = Repulsion("energy", memory="previous", **given), Repulsion("energy", **given)
    for repulsion in (previous, every):
        repulsion.begin_cycle()
        assert not repulsion.acts(exploring=True)  # nothing is remembered
        repulsion.remember(clouds[0])
        assert not repulsion.acts(exploring=True)  # a sample does not repel its own cycle
        repulsion.begin_cycle()
        assert repulsion.acts(exploring=True)
        assert not repulsion.acts(exploring=False)
        for cloud in clouds[1:4]:
            repulsion.remember(cloud)
        assert len(repulsion) == 1
        repulsion.begin_cycle()
    assert (len(previous), len(every)) == (3, 4)
    previous.begin_cycle()
    assert len(previous) == 3  # nothing new: the memory stays
    assert Repulsion(stage="both").acts(exploring=False) is False
    both = Repulsion("energy", stage="both", **given)
    both.remember(clouds[0])
    both.begin_cycle()
    assert both.acts(exploring=False)


def same(a: Any, b: Any) -> bool:
    """Whether nested dicts of tensors and plain values are equal."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return torch.equal(a, b) if isinstance(a, Tensor) else a == b


def distance_of(repulsion: Repulsion) -> float:
    """d² to the nearest remembered sample at the last step."""
    assert not repulsion.state["distance"].requires_grad
    return repulsion.state["distance"].item()


def test_what_is_remembered_is_a_detached_copy() -> None:
    theta = torch.eye(3, requires_grad=True)
    repulsion = Repulsion("paired", force=Absolute(strength=1.0), anchor=torch.zeros(3, 3))
    repulsion.remember(theta)
    with torch.no_grad():
        theta.add_(1)
    repulsion.begin_cycle()
    repulsion(theta)
    assert distance_of(repulsion) == pytest.approx(3)


@pytest.mark.parametrize("distance", ALL)
def test_state_goes_round_bit_for_bit(distance: str) -> None:
    problem = Problem()
    settings = {"memory": "all", "force": Fading(measure_every=4)}
    repulsion = problem.repelled(distance, **settings)
    problem.move(0.1)
    repulsion(problem.model(problem.pool), loss=problem.loss(), parameters=problem.parameters)
    repulsion.remember(problem.model(problem.pool))
    state = repulsion.state_dict()
    assert all(isinstance(leaf, Tensor | int | str) for leaf in tree_leaves(state))
    other = problem.repulsion(distance, **settings)
    other.load_state_dict(state)
    problem.move(0.1)
    for _ in range(2):
        terms = []
        for r in (repulsion, other):
            terms.append(r(problem.model(problem.pool), loss=problem.loss(), parameters=problem.parameters))
            r.remember(problem.model(problem.pool))
            r.begin_cycle()
        assert torch.equal(*terms)
    assert len(other) == 4
    with pytest.raises(UserError, match=f"saved memory is for the distance '{distance}', not"):
        Repulsion("paired" if distance != "paired" else "mmd").load_state_dict(state)


def test_weight_space_is_paired_on_one_row() -> None:
    problem = Problem()
    start = weights(problem.parameters)
    repulsion = Repulsion("paired", force=Absolute(strength=1.0), anchor=start + 1)
    repulsion.remember(start)
    repulsion.begin_cycle()
    problem.move(0.1)
    moved = weights(problem.parameters)
    repulsion(moved).backward()
    assert distance_of(repulsion) == pytest.approx((moved - start).square().sum().item(), rel=1e-5)
    assert all(p.grad is not None and p.grad.norm() > 0 for p in problem.parameters)


def test_half_precision_features_keep_their_gradient() -> None:
    cloud = torch.randn(8, 4, generator=torch.Generator().manual_seed(0)).half().requires_grad_()
    repulsion = Repulsion("mmd", force=Absolute(strength=1.0), anchor=cloud.detach() + 1)
    repulsion.remember(cloud)
    repulsion.begin_cycle()
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
    repulsion = problem.repelled(force=Absolute(strength=1.0))
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


def test_pieces_are_objects_kinds_by_name_or_mappings() -> None:
    one = Repulsion(MMD(bandwidth=2.0), potential=Log(epsilon=0.1), force=Fading(fraction=0.5))
    other = Repulsion(
        {"kind": "mmd", "bandwidth": 2.0},
        potential={"kind": "log", "epsilon": 0.1},
        force={"kind": "fading", "fraction": 0.5},
    )
    assert (one.distance, one.potential, one.force) == (other.distance, other.potential, other.force)
    plain = Repulsion()
    assert (plain.distance, plain.potential, plain.force) == (MMD(), Inverse(), Fading())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"potential": "inv"}, "Accepted: inverse, log"),
        ({"force": "cap"}, "Accepted: fading, absolute, capped, normalised, printed"),
        ({"memory": "last"}, "Accepted: all, previous"),
        ({"stage": "sampling"}, "Accepted: exploration, both"),
        ({"force": {"kind": "fading", "fraction": -0.1}}, r"fraction is -0\.1: it must be at least 0"),
        ({"force": {"kind": "absolute", "strength": float("nan")}}, "strength is nan: it must be a finite number"),
        ({"force": "absolute"}, "strength is missing: it has no default"),
        ({"potential": {"kind": "inverse", "epsilon": 0}}, "epsilon is 0: it must be above 0"),
        ({"potential": {"kind": "log", "scale": -1.0}}, r"scale is -1\.0: it must be above 0"),
        ({"force": {"kind": "fading", "measure_every": 0}}, "measure_every is 0: it must be at least 1"),
    ],
)
def test_bad_settings_are_refused_at_once(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Repulsion(**settings)


def test_bad_calls_say_what_to_do() -> None:
    problem = Problem()
    with pytest.raises(UserError, match=r"nothing is remembered yet; .*begin_cycle"):
        Repulsion()(problem.model(problem.pool))
    with pytest.raises(
        UserError, match=r"a force that is 'capped' .*loss=loss, parameters=.* or take an absolute force"
    ):
        problem.repelled(force={"kind": "capped", "strength": 1.0})(problem.model(problem.pool))
    with pytest.raises(UserError, match="a printed force moves θ beside the step"):
        problem.repelled(force={"kind": "printed", "strength": 1.0})(problem.model(problem.pool))
    with pytest.raises(UserError, match="cannot choose 0 of 5"):
        Repulsion.choose(5, 0, torch.Generator())
    repulsion = Repulsion("paired", potential={"kind": "inverse", "scale": 1.0})
    repulsion.remember(torch.eye(3))
    repulsion.remember(torch.eye(4))
    with pytest.raises(UserError, match=r"same reference points; got shapes \[\(3, 3\), \(4, 4\)\]"):
        repulsion.begin_cycle()
