"""The paper's two-mode example (its appendix "Toy Example"), run and drawn.

    U(θ) = −log(½ N(θ | μ₁, Σ₁) + ½ N(θ | μ₂, Σ₂)),    V(θ, θ′) = 1/(‖θ−θ′‖² + ε),    θ in the plane

The paper prints the density itself as the potential U; a sampler needs its negative logarithm. Arrows in the figures
are the drift −∇, the direction in which θ is moved (a caption of the paper has the opposite sign). Every run is
cyclical SGLD with warm restarts: each cycle starts, with a small kick, where the last one ended.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from rebapl.randomness import generator
from rebapl.reports.style import save_for_paper
from rebapl.reports.tables import Cell, Row, Table
from rebapl.reproduce import toy_figures
from rebapl.reproduce.paper_table import Context, Product
from rebapl.repulsion import Inverse, kick
from rebapl.repulsion.repulsion import Stage
from rebapl.sampling import SGLD, CyclicalSchedule

MEANS = torch.tensor([[-1.5, -0.6], [1.5, 0.6]])
COVARIANCES = torch.tensor([[[0.30, 0.05], [0.05, 0.25]], [[0.25, -0.08], [-0.08, 0.32]]])
_PRECISIONS = torch.linalg.inv(COVARIANCES)
_NORMALISERS = torch.log(2 * 2 * torch.pi * torch.linalg.det(COVARIANCES).sqrt())
EPSILON = 1.0
IN_MODE = 3.0  # in standard deviations: holds 98.9 % of a mode in the plane


@dataclass(frozen=True)
class Setting:
    """One way to sample the toy: how strong the repulsion is, and in which stage it acts.

    `label` is for figures, `name` for the table.
    """

    label: str
    name: str
    strength: float
    stage: Stage = "exploration"


# Too strong a repulsion also acts while sampling, as in the paper's update: there no later drift makes it good.
SETTINGS = (
    Setting("no repulsion", "no repulsion", 0.0),
    Setting(r"repulsion, $\xi=50$", "repulsion, ξ = 50", 50.0),
    Setting(r"$\xi=1000$, in both stages", "repulsion, ξ = 1000, in both stages", 1000.0, stage="both"),
)


def density_potential(theta: Tensor) -> Tensor:
    """U at points (…, 2); shape (…)."""
    return -torch.logsumexp(_log_modes(theta), dim=-1)


def repulsive_potential(theta: Tensor, stored: Tensor) -> Tensor:
    """V between points (…, 2) and their stored ones; shape (…)."""
    return Inverse().value((theta - stored).square().sum(-1), torch.tensor(EPSILON))


def mode_of(theta: Tensor) -> Tensor:
    """In which mode points (…, 2) lie: 0, 1, or −1 for neither; shape (…)."""
    distances = _mahalanobis(theta).sqrt()
    nearest, index = distances.min(dim=-1)
    return torch.where(nearest <= IN_MODE, index, -1)


def _mahalanobis(theta: Tensor) -> Tensor:
    shift = theta[..., None, :] - MEANS
    return torch.einsum("...mi,mij,...mj->...m", shift, _PRECISIONS, shift)


def _log_modes(theta: Tensor) -> Tensor:
    return -0.5 * _mahalanobis(theta) - _NORMALISERS


@dataclass
class Chains:
    """What R chains did: their sample of each cycle (cycles, R, 2), and every point on the way (steps, R, 2)."""

    samples: Tensor
    path: Tensor
    exploring: list[bool]


def repulsion_term(setting: Setting, theta: Tensor, stored: Tensor) -> Tensor:
    """strength · Σ V, the term that repels points (R, 2) from their stored ones.

    For one chain it is what `Repulsion` gives in weight space; here R chains have a stored sample each.
    """
    return setting.strength * repulsive_potential(theta, stored).sum()


def run_chains(
    setting: Setting,
    start: Tensor,
    *,
    seed: int,
    cycles: int = 10,
    steps: int = 200,
    lr: float = 0.02,
    temperature: float = 1.0,
    stored: Tensor | None = None,
) -> Chains:
    """Cyclical SGLD from `start` (R, 2), R chains side by side; `stored` (R, 2) repels already in the first cycle.

    From then on each chain is repelled by its own sample of the cycle before.
    """
    theta = torch.nn.Parameter(start.clone())
    sampler = SGLD([theta], lr=lr, num_data=1, temperature=temperature, generator=generator(seed, "toy", "noise"))
    schedule = CyclicalSchedule(sampler, steps, exploration=0.5, cycles=cycles)
    kicks = generator(seed, "toy", "kick")
    samples, path, exploring = [], [theta.detach().clone()], []
    while not schedule.done:
        if schedule.at_cycle_start:
            kick([theta], 0.02, kicks)
        exploring.append(schedule.exploring)
        loss = density_potential(theta).sum()
        if stored is not None and (schedule.exploring or setting.stage == "both"):
            loss = loss + repulsion_term(setting, theta, stored)
        sampler.zero_grad()
        loss.backward()
        sampler.step()
        schedule.step()
        path.append(theta.detach().clone())
        if schedule.at_sample:
            stored = path[-1]
            samples.append(stored)
    return Chains(torch.stack(samples), torch.stack(path), exploring)


def one_chain(strength: float, temperature: float, cycles: int, seed: int) -> dict[str, Any]:
    """One chain from the first mode as plain values, for whoever draws it: its path, its samples, the modes."""
    setting = Setting("", "", strength)
    chain = run_chains(setting, MEANS[:1], seed=seed, cycles=cycles, steps=100, temperature=temperature)
    samples = chain.samples[:, 0]
    return {
        "path": [[round(x, 3) for x in point] for point in chain.path[:, 0].tolist()],
        "exploring": chain.exploring,
        "samples": samples.tolist(),
        "modes": mode_of(samples).tolist(),
        "means": MEANS.tolist(),
        "covariances": COVARIANCES.tolist(),
    }


def run_many(setting: Setting, *, seed: int, runs: int = 400, cycles: int = 10) -> Tensor:
    """In which mode the samples of many independent runs lie, (cycles, runs); all start in the first mode."""
    start = MEANS[0] + 0.1 * torch.randn(runs, 2, generator=generator(seed, "toy", "start"))
    return mode_of(run_chains(setting, start, seed=seed, cycles=cycles).samples)


def visited_both(modes: Tensor) -> Tensor:
    """Which runs have had a sample in both modes by each cycle: modes (cycles, runs) → booleans (cycles, runs)."""
    return ((modes == 0).cumsum(0) > 0) & ((modes == 1).cumsum(0) > 0)


def _journeys(setting: Setting, stored: Tensor, seed: int, others: int = 60) -> tuple[Chains, Tensor]:
    """One cycle, as in the paper from a start between the stored sample and the barrier: a run, and others' ends."""
    start = (MEANS[0] + 0.3 * (MEANS[1] - MEANS[0]))[None]
    slow: dict[str, Any] = {"seed": seed, "cycles": 1, "steps": 800, "lr": 0.005}  # small steps: a path to be seen
    many = run_chains(setting, start.expand(others, 2), stored=stored.expand(others, 2), **slow)
    return run_chains(setting, start, stored=stored, **(slow | {"seed": seed + 3})), many.samples[-1]


def figures(seed: int = 1, runs: int = 400) -> tuple[dict[str, Figure], dict[str, Tensor]]:
    """Runs the example; its three figures by name, and by setting the modes (cycles, runs) that samples were in."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        stored = run_chains(SETTINGS[0], MEANS[:1], seed=seed, cycles=1).samples[0]
        journeys = [(s, *_journeys(s, stored, seed)) for s in SETTINGS]
        modes = {s.label: run_many(s, seed=seed, runs=runs) for s in SETTINGS}
    finally:
        torch.set_num_threads(threads)
    repulsion = partial(repulsive_potential, stored=stored[0])
    drawn = {
        "toy_fields": toy_figures.fields(density_potential, repulsion, SETTINGS[1].strength, stored[0], MEANS),
        "toy_trajectories": toy_figures.trajectories(
            density_potential,
            stored[0],
            [(s.label, one.path[:, 0], one.exploring, ends) for s, one, ends in journeys],
        ),
        "toy_modes": toy_figures.modes(modes, {label: visited_both(m) for label, m in modes.items()}),
    }
    return drawn, modes


def draw_toy(out: Path, seed: int = 1) -> list[Path]:
    """Runs the example and draws its three figures into the folder `out`, as PNG and PDF; returns their paths."""
    return [path for name, figure in figures(seed)[0].items() for path in save_for_paper(figure, out, name)]


def toy(_: Context) -> Product:
    """The figures of the example, and a table of how many chains find both modes."""
    drawn, modes = figures()
    rows: list[Row] = []
    for setting in SETTINGS:
        which = modes[setting.label]
        both = 100 * visited_both(which)[-1].double().mean().item()
        outside = 100 * (which < 0).double().mean().item()
        rows.append([setting.name, Cell(both, digits=1), Cell(outside, digits=1)])
    cycles, runs = modes[SETTINGS[0].label].shape
    columns = ["cyclical SGLD", "both modes visited, %", "samples in neither, %"]
    note = f"{runs} chains of {cycles} cycles, all begun in the first mode; neither: beyond 3 standard deviations."
    return Product({"toy": Table("The two-mode example", columns, rows, [note])}, drawn)
