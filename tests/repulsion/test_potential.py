"""The potential: its force against autograd, the bound, and the scale of ε."""

import pytest
import torch

from rebapl.errors import UserError
from rebapl.repulsion import DISTANCES, POTENTIALS
from rebapl.repulsion.potential import get_potential, natural_scale

NAMES = list(POTENTIALS)


@pytest.mark.parametrize("name", NAMES)
def test_force_is_the_derivative_in_d(name: str) -> None:
    d = torch.linspace(0.01, 5, 50, dtype=torch.float64, requires_grad=True)
    epsilon = torch.tensor(0.3, dtype=torch.float64)
    (slope,) = torch.autograd.grad(POTENTIALS[name].value(d.square(), epsilon).sum(), d)
    assert (slope < 0).all()  # V falls with distance: the force −dV/dd pushes apart
    torch.testing.assert_close(POTENTIALS[name].force(d.detach().square(), epsilon), -slope)


@pytest.mark.parametrize("epsilon", [1e-6, 0.02, 1.0, 40.0])
@pytest.mark.parametrize("name", NAMES)
def test_the_bound_is_the_largest_force(name: str, epsilon: float) -> None:
    eps = torch.tensor(epsilon, dtype=torch.float64)
    squared = eps * torch.logspace(-4, 4, 20001, dtype=torch.float64)
    largest = POTENTIALS[name].force(squared, eps).max()
    bound = POTENTIALS[name].bound(eps)
    assert largest <= bound * (1 + 1e-12)
    assert largest > bound * (1 - 1e-6)


def test_the_inverse_bound_is_the_published_number() -> None:
    assert get_potential("inverse").bound(torch.tensor(1e-6, dtype=torch.float64)).item() == pytest.approx(
        0.65e9, rel=1e-3
    )


@pytest.mark.parametrize("metric", list(DISTANCES))
def test_scale_is_squared_distance_of_two_halves(metric: str) -> None:
    cloud = torch.randn(40, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    distance = DISTANCES[metric]
    seed = torch.Generator().manual_seed(3)
    scale = natural_scale(distance, distance.prepare(cloud), seed)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(3))
    halves = distance.between(cloud[order[:20]], distance.prepare(cloud).rows(order[20:]))
    assert scale.item() == pytest.approx(halves.item())
    # and it follows the units of the features: squared, or linear for energy; MMD has none of its own
    power = {"mmd": 0, "energy": 1}.get(metric, 2)
    tripled = natural_scale(distance, distance.prepare(3 * cloud), torch.Generator().manual_seed(3))
    assert tripled.item() == pytest.approx(3**power * scale.item(), rel=1e-9)


def test_scale_of_an_odd_number_and_of_one_point() -> None:
    paired = DISTANCES["paired"]
    generator = torch.Generator().manual_seed(0)
    assert natural_scale(paired, paired.prepare(torch.eye(5)), generator).item() == pytest.approx(2)
    assert natural_scale(paired, paired.prepare(torch.tensor([[3.0, 4.0]])), generator).item() == pytest.approx(25)


def test_no_scale_and_unknown_names_are_refused() -> None:
    paired = DISTANCES["paired"]
    with pytest.raises(UserError, match=r"no scale for epsilon .*give one with scale="):
        natural_scale(paired, paired.prepare(torch.ones(6, 2)), torch.Generator())
    with pytest.raises(UserError, match=r"unknown potential 'inverted': did you mean 'inverse'\?"):
        get_potential("inverted")
