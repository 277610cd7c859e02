"""The GPU's assignment against SciPy's: the same least cost, by whatever way it runs here."""

import pytest
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from rebapl.repulsion.wasserstein import LARGEST, assigned, solved_on_device

SIZES = [1, 2, 3, 7, 32, 33, 100]


def problems(n: int) -> Tensor:
    """Random costs, distances in the plane, many ties, all costs equal, a huge range of costs: (5, n, n)."""
    generator = torch.Generator().manual_seed(n)
    random = torch.rand(n, n, generator=generator)
    points = torch.randn(2, n, 2, generator=generator)
    ties = (4 * torch.rand(n, n, generator=generator)).round()
    ranges = (15 * torch.randn(n, n, generator=generator)).exp()
    return torch.stack([random, torch.cdist(*points).square(), ties, torch.ones(n, n), ranges])


def check(costs: Tensor, found: Tensor) -> None:
    for cost, columns in zip(costs.double(), found.cpu(), strict=True):
        assert sorted(columns.tolist()) == list(range(len(cost)))
        least = cost.numpy()[linear_sum_assignment(cost.numpy())].sum()
        assert cost.gather(1, columns[:, None]).sum().item() == pytest.approx(least, rel=1e-9)


@pytest.mark.parametrize("n", SIZES)
def test_the_host_solves_every_problem_of_a_stack(n: int) -> None:
    check(problems(n), assigned(problems(n)))


@pytest.mark.gpu
@pytest.mark.parametrize("n", [*SIZES, LARGEST])
def test_the_kernel_finds_the_least_cost(n: int) -> None:
    assert solved_on_device(n, torch.device("cuda"))
    check(problems(n), assigned(problems(n).cuda()))


@pytest.mark.gpu
def test_the_kernel_ends_on_costs_that_are_not_finite_and_can_be_captured() -> None:
    costs = problems(32).cuda()
    costs[0, 3], costs[1, :, 4], costs[2] = float("inf"), float("nan"), float("inf")
    assert assigned(costs).sort(1).values.tolist() == [list(range(32))] * 5
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = assigned(costs)
    costs.copy_(problems(32).flip(0))
    graph.replay()
    check(problems(32).flip(0), found)


def test_large_problems_and_other_devices_are_left_to_the_host() -> None:
    assert not solved_on_device(LARGEST + 1, torch.device("cuda"))
    assert not solved_on_device(2, torch.device("cpu"))
