"""The figures and the table of the two-mode example.

Arrows show the drift, the negative gradient of the potential, along which θ moves. (A caption of the paper has the
opposite sign.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from rebapl.evaluation.scores import proportion_interval
from rebapl.reports.style import BLACK, BLUE, BOTH_COLUMNS, ORANGE, PAPER_FONTS, VERMILION, bare_axes, save_for_paper
from rebapl.reports.tables import Cell, Row, Table
from rebapl.reproduce import toy
from rebapl.reproduce.paper_table import Context, Product
from rebapl.reproduce.toy import MEANS, SETTINGS, density_potential
from rebapl.runs.machine import computing_with

WINDOW = (-3.5, 5.3, -2.8, 2.8)
"""The part of the plane that is drawn: left, right, bottom, top."""

LEVELS = np.arange(1, 14)
"""The values of U at which its colour changes."""

OTHERS = 60
"""The number of other chains whose samples are drawn in the panel of one chain's path."""

Potential = Callable[[Tensor], Tensor]


def draw_toy(out: Path, seed: int = 1) -> list[Path]:
    """Run the example and draw its three figures into the folder `out`, as PNG and PDF; returns their paths."""
    return [path for name, figure in figures(seed)[0].items() for path in save_for_paper(figure, out, name)]


def toy_target(_: Context) -> Product:
    """The figures of the example, and a table of how many chains find both modes."""
    drawn, modes = figures()
    rows: list[Row] = []
    for name, of_samples in modes.items():
        both = 100 * toy.visited_both(of_samples)[-1].double().mean().item()
        outside = 100 * (of_samples < 0).double().mean().item()
        rows.append([name, Cell(both, digits=1), Cell(outside, digits=1)])
    cycles, runs = next(iter(modes.values())).shape
    columns = ["cyclical SGLD", "both modes visited, %", "samples in neither, %"]
    note = f"{runs} chains of {cycles} cycles, all begun in the first mode; neither: beyond 3 standard deviations."
    return Product(Table("The two-mode example", columns, rows, [note]), drawn)


def figures(seed: int = 1, runs: int = 400) -> tuple[dict[str, Figure], dict[str, Tensor]]:
    """Run the example. Returns its three figures by name and, for each setting, the modes (cycles, runs) of samples."""
    with computing_with(1):
        stored = toy.run_chains(SETTINGS[0], MEANS[:1], seed=seed, cycles=1).samples[0]
        paths = {setting.name: _one_cycle(setting, stored, seed) for setting in SETTINGS}
        modes = {setting.name: toy.run_many(setting, seed=seed, runs=runs) for setting in SETTINGS}
    drawn = {
        "toy_fields": fields(stored[0], SETTINGS[1].strength),
        "toy_trajectories": trajectories(stored[0], paths),
        "toy_modes": visits(modes),
    }
    return drawn, modes


def _one_cycle(setting: toy.Setting, stored: Tensor, seed: int) -> tuple[toy.Chains, Tensor]:
    """One cycle of one chain, and the samples (OTHERS, 2) of other chains.

    As in the paper, the chains start between the stored sample and the barrier.
    """
    start = (MEANS[0] + 0.3 * (MEANS[1] - MEANS[0]))[None]
    slow: dict[str, Any] = {"cycles": 1, "steps": 800, "lr": 0.005}  # with small steps, the path can be followed
    others = toy.run_chains(setting, start.expand(OTHERS, 2), stored=stored.expand(OTHERS, 2), seed=seed, **slow)
    return toy.run_chains(setting, start, stored=stored, seed=seed + 3, **slow), others.samples[-1]


@rc_context(PAPER_FONTS)
def fields(stored: Tensor, strength: float) -> Figure:
    """Three panels: (a) U, (b) V around the stored sample, (c) U + strength·V, each with its drift."""
    repulsion = partial(toy.repulsive_potential, stored=stored)
    panels: dict[str, tuple[str, Potential, str, np.ndarray]] = {
        r"$U=-\log p$ and its drift $-\nabla U$": ("$U$", density_potential, "Blues_r", LEVELS),
        r"$V$ and the force $F=-\nabla V$": ("$V$", repulsion, "Oranges", np.linspace(0, 1, 11)),
        rf"$U+\xi V$ and its drift, $\xi={strength:g}$": (
            r"$U+\xi V$",
            lambda theta: density_potential(theta) + strength * repulsion(theta),
            "Blues_r",
            np.arange(4, 41, 3),
        ),
    }
    figure, many = _planes(panels, 2.7)
    for axes, (symbol, potential, colours, levels) in zip(many, panels.values(), strict=True):
        contours = _background(axes, potential, colours, levels)
        _arrows(axes, potential)
        axes.plot(*MEANS.T.numpy(), "x", color=BLACK, ms=5, mew=1.4, label=r"modes $\mu_1$, $\mu_2$ of the target")
        _star(axes, stored)
        figure.colorbar(contours, ax=axes, location="bottom", aspect=30, pad=0.03, ticks=levels[::3], label=symbol)
    _legend_below(figure, many[0])
    return figure


@rc_context(PAPER_FONTS)
def trajectories(stored: Tensor, paths: Mapping[str, tuple[toy.Chains, Tensor]]) -> Figure:
    """A panel per setting: one chain's path in one cycle, the stored sample that repels it, and others' samples."""
    figure, many = _planes(paths, 2.4)
    for axes, (chain, others) in zip(many, paths.values(), strict=True):
        _background(axes, density_potential, "Blues_r", LEVELS)
        turn, points = sum(chain.exploring), chain.path[:, 0].numpy()
        _star(axes, stored)
        axes.plot(*points[0], "s", color="white", mec=BLACK, ms=4, mew=1, zorder=6, label="start")
        axes.plot(*points[: turn + 1].T, color=ORANGE, lw=1.3, label="exploration")
        axes.plot(*points[turn:].T, color=VERMILION, lw=0.6, label="sampling")
        axes.plot(*points[-1], "o", color="white", mec=BLACK, ms=5, mew=1, zorder=6, label="sample")
        label = f"samples of {len(others)} other seeds"
        axes.plot(*others.T.numpy(), ".", color=BLACK, ms=2.5, alpha=0.7, mew=0, label=label)
    _legend_below(figure, many[0])
    return figure


@rc_context(PAPER_FONTS)
def visits(modes: Mapping[str, Tensor]) -> Figure:
    """The shares of chains that have visited both modes by each cycle, and that are in a mode, with 95 % intervals."""
    figure = Figure(figsize=(BOTH_COLUMNS, 2.5), layout="constrained")
    left, right = many = figure.subplots(1, 2, sharey=True)
    styles = ((BLACK, "-"), (BLUE, "-"), (VERMILION, "--"))
    for (name, of_samples), (colour, line) in zip(modes.items(), styles, strict=True):
        cycles, runs = of_samples.shape
        for axes, counted in ((left, toy.visited_both(of_samples)), (right, of_samples >= 0)):
            x, counts = np.arange(1, cycles + 1), counted.sum(1).tolist()
            low, high = zip(*(proportion_interval(count, runs) for count in counts), strict=True)
            axes.fill_between(x, low, high, color=colour, alpha=0.2, lw=0)
            axes.plot(x, np.array(counts) / runs, line, color=colour, marker="o", ms=2.5, lw=1.3, label=name)
            axes.set(xlabel="cycle", xticks=x, ylim=(-0.03, 1.03))
    left.set_ylabel(f"share of {runs} chains, 95 % band")
    left.set_title("(a) chains whose samples lie in both modes so far", loc="left")
    right.set_title("(b) chains whose sample lies in a mode at all", loc="left")
    bare_axes(*many)
    _legend_below(figure, left)
    return figure


def _planes(titles: Sequence[str] | Mapping[str, Any], height: float) -> tuple[Figure, list[Axes]]:
    """A figure with a panel of the plane for each title."""
    figure = Figure(figsize=(BOTH_COLUMNS, height), layout="constrained")
    many = list(figure.subplots(1, len(titles), sharey=True))
    for letter, axes, title in zip("abc", many, titles, strict=True):
        axes.set_title(f"({letter}) {title}", loc="left")
        axes.set(aspect="equal", xlabel=r"$\theta_1$", xticks=[-2, 0, 2, 4], yticks=[-2, 0, 2])
        axes.axis(WINDOW)
    many[0].set_ylabel(r"$\theta_2$")
    return figure, many


def _legend_below(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(3, len(labels)), frameon=False)


def _grid(count: int, margin: float = 0.0) -> tuple[np.ndarray, np.ndarray, Tensor]:
    """A grid over the window with `count` columns: its x, its y, and its points as a tensor (rows, columns, 2)."""
    left, right, bottom, top = WINDOW
    rows = round(count * (top - bottom) / (right - left))
    xs, ys = np.linspace(left + margin, right - margin, count), np.linspace(bottom + margin, top - margin, rows)
    x, y = np.meshgrid(xs, ys)
    return x, y, torch.from_numpy(np.stack([x, y], -1)).float()


def _background(axes: Axes, potential: Potential, colours: str, levels: np.ndarray) -> Any:
    x, y, points = _grid(160)
    values = potential(points).numpy()
    axes.contour(x, y, values, levels=levels, colors="white", linewidths=0.4)
    extend = "max" if values.max() > levels[-1] else "neither"
    return axes.contourf(x, y, values, levels=levels, cmap=colours, extend=extend, alpha=0.75, zorder=0)


def _arrows(axes: Axes, potential: Potential) -> None:
    x, y, points = _grid(17, margin=0.25)
    points.requires_grad_()
    (gradient,) = torch.autograd.grad(potential(points).sum(), points)
    drift = -gradient.numpy()
    size = np.linalg.norm(drift, axis=-1, keepdims=True)
    drift = drift / size * (size / size.max()) ** 0.4  # so that both the longest and the shortest arrow are visible
    axes.quiver(x, y, drift[..., 0], drift[..., 1], color=BLACK, alpha=0.75, pivot="mid", scale=17, width=0.006)


def _star(axes: Axes, stored: Tensor) -> None:
    axes.plot(*stored.numpy(), "*", color=BLUE, mec="white", ms=12, mew=0.8, zorder=5, label=r"stored sample $\theta'$")
