"""The two-mode example: what repulsion changes, and that its figures are drawn."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from scipy.stats import fisher_exact, multivariate_normal

from rebapl.reports.tables import Cell
from rebapl.reproduce import toy, toy_figures
from rebapl.reproduce.paper_table import Context
from rebapl.reproduce.suites import MINI
from rebapl.reproduce.targets import PAPER_TARGETS
from rebapl.repulsion import Inverse, Repulsion, weights
from rebapl.repulsion.force import Absolute

NONE, GOOD, TOO_STRONG = toy.SETTINGS


def test_the_potential_is_minus_the_log_of_the_density() -> None:
    points = torch.randn(20, 2, generator=torch.Generator().manual_seed(0)) * 2
    density = sum(
        0.5 * multivariate_normal(m.numpy(), c.numpy()).pdf(points.numpy())
        for m, c in zip(toy.MEANS, toy.COVARIANCES, strict=True)
    )
    np.testing.assert_allclose(toy.density_potential(points), -np.log(density), rtol=1e-4)


def test_points_are_told_apart_by_mode() -> None:
    points = torch.cat([toy.MEANS, torch.tensor([[0.0, 3.0]])])
    assert toy.mode_of(points).tolist() == [0, 1, -1]


@pytest.mark.parametrize("strength", [50.0, 1000.0])
def test_the_term_of_the_toy_is_the_package_s_repulsion(strength: float) -> None:
    """The toy has a closed form for many chains; `Repulsion` knows one: the same value, the same force."""
    repulsion = Repulsion(
        "paired",
        force=Absolute(strength=strength),
        potential=Inverse(epsilon=toy.EPSILON, scale=1.0),
        memory="previous",
    )
    theta, stored = torch.tensor([[-1.1, -0.2]], requires_grad=True), torch.tensor([[-1.5, -0.5]])
    repulsion.remember(weights([stored]))
    repulsion.begin_cycle()
    terms = [repulsion(weights([theta])), toy.repulsion_term(toy.Setting("", strength), theta, stored)]
    torch.testing.assert_close(*terms)
    torch.testing.assert_close(*(torch.autograd.grad(term, theta) for term in terms))


def test_a_chain_is_repelled_in_the_exploration_by_its_last_sample() -> None:
    """With steps of no noise and no size, only the kick and the force move it: none in the first cycle."""
    start = toy.MEANS[:1] + 0.5
    without, repelled = (
        toy.run_chains(setting, start, seed=2, cycles=2, steps=10, temperature=0.0).path for setting in (NONE, GOOD)
    )
    assert torch.equal(without[:11], repelled[:11])
    assert not torch.equal(without[11:], repelled[11:])


def test_repulsion_visits_the_second_mode_more_often() -> None:
    """Fisher's exact test, one-sided, 100 runs each. If both shares were equal this would pass once in 10⁶ seeds;
    with the shares measured over 400 runs (about 0.86 and 0.01 at cycle 5) it fails less than once in 10⁹."""
    none, good = (toy.visited_both(toy.run_many(s, seed=5, runs=100, cycles=5))[-1].sum().item() for s in (NONE, GOOD))
    assert fisher_exact([[good, 100 - good], [none, 100 - none]], alternative="greater").pvalue < 1e-6
    assert good > 60


def test_far_too_strong_a_repulsion_leaves_the_modes() -> None:
    """Measured over 400 runs: 0.97 of these samples lie in a mode with the good setting, 0.27 with the strong one.

    Of 200 samples, binomial: fewer than 0.9 or more than 0.5 of them come by chance less than once in 10⁵ seeds.
    """
    good, strong = ((toy.run_many(s, seed=6, runs=100, cycles=3)[1:] >= 0).double().mean() for s in (GOOD, TOO_STRONG))
    assert good > 0.9
    assert strong < 0.5


@pytest.fixture(scope="module")
def drawn() -> tuple[dict[str, Figure], dict[str, torch.Tensor]]:
    return toy_figures.figures(runs=20)


def test_figures_are_saved(drawn: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last stands for all three: the others take seconds to save."""
    asked = []
    figures = dict.fromkeys(drawn[0], [*drawn[0].values()][-1])
    monkeypatch.setattr(toy_figures, "figures", lambda seed: asked.append(seed) or (figures, drawn[1]))
    paths = toy_figures.draw_toy(tmp_path, seed=3)
    assert asked == [3]
    assert {p.name for p in paths} == {
        f"toy_{name}.{kind}" for name in ("fields", "trajectories", "modes") for kind in ("png", "pdf")
    }
    for path in paths:
        assert path.read_bytes().startswith(b"%PDF" if path.suffix == ".pdf" else b"\x89PNG")
        assert path.stat().st_size > 10_000


def test_the_target_has_the_figures_and_counts_the_modes(drawn: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toy_figures, "figures", lambda: drawn)
    product = PAPER_TARGETS["toy"].make(Context(MINI, Path(), devices=["cpu"]))
    assert product.figures == drawn[0]
    table = product.table
    assert table.notes[0].startswith("20 chains of 10 cycles")
    shares = [[cell.value for cell in row[1:] if isinstance(cell, Cell)] for row in table.rows]
    for setting, (both, neither) in zip(toy.SETTINGS, shares, strict=True):
        modes = drawn[1][setting.name]
        visited = [{0, 1} <= set(chain) for chain in modes.T.tolist()]
        assert both == pytest.approx(100 * np.mean(visited))
        assert neither == pytest.approx(100 * (modes == -1).double().mean().item())
    assert shares[1][0] > shares[0][0] + 50
