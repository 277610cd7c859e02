"""The figures of the toy example. Every function draws potentials and tensors that its caller computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, ListedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from torch import Tensor

from rebapl.evaluation.scores import proportion_interval
from rebapl.reports.style import BLACK, BLUE, BOTH_COLUMNS, LIGHT_GREY, ORANGE, PAPER_FONTS, VERMILION, bare_axes

STYLES = ((BLACK, "-"), (BLUE, "-"), (VERMILION, "--"))  # one per setting, in order
Window = tuple[float, float, float, float]
NEAR: Window = (-3.4, 3.4, -2.5, 2.5)  # the drawn part of the plane
FAR: Window = (-3.5, 5.3, -2.8, 2.8)
Potential = Callable[[Tensor], Tensor]


def _light(name: str, low: float, high: float) -> LinearSegmentedColormap:
    """Part of a single-hue map whose lightness is monotone, so that it reads in grey as well."""
    return LinearSegmentedColormap.from_list(name, colormaps[name](np.linspace(low, high, 256)))


LOW_IS_DARK = _light("Blues_r", 0.25, 1.0)
HIGH_IS_DARK = _light("Oranges", 0.0, 0.75)


def fields(density: Potential, repulsion: Potential, strength: float, stored: Tensor, means: Tensor) -> Figure:
    """(a) U, (b) V around the stored sample, (c) U + strength·V; arrows are the drift, minus the gradient."""
    panels: list[tuple[str, str, Potential, Any, np.ndarray]] = [
        (r"(a) $U=-\log p$ and its drift $-\nabla U$", "$U$", density, LOW_IS_DARK, np.arange(1, 14)),
        (r"(b) $V$ and the force $F=-\nabla V$", "$V$", repulsion, HIGH_IS_DARK, np.linspace(0, 1, 11)),
        (
            rf"(c) $U+\xi V$ and its drift, $\xi={strength:g}$",
            r"$U+\xi V$",
            lambda theta: density(theta) + strength * repulsion(theta),
            LOW_IS_DARK,
            np.arange(4, 41, 3),
        ),
    ]
    with rc_context(PAPER_FONTS):
        figure = Figure(figsize=(BOTH_COLUMNS, 2.7), layout="constrained")
        for axes, (title, height, potential, colours, levels) in zip(
            figure.subplots(1, 3, sharey=True), panels, strict=True
        ):
            filled = _background(axes, potential, colours, levels, NEAR)
            _arrows(axes, potential, NEAR)
            axes.plot(*means.T.numpy(), "x", color=BLACK, ms=5, mew=1.4, label=r"modes $\mu_1$, $\mu_2$ of the target")
            _star(axes, stored)
            _plane(axes, title, NEAR)
            bar = figure.colorbar(filled, ax=axes, location="bottom", aspect=30, pad=0.03, ticks=levels[::3])
            bar.set_label(height)
            bar.ax.tick_params(width=0.5)
            bar.ax.spines["outline"].set_linewidth(0.5)
        figure.axes[0].set_ylabel(r"$\theta_2$")
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    return figure


def trajectories(
    density: Potential, stored: Tensor, journeys: Sequence[tuple[str, Tensor, list[bool], Tensor]]
) -> Figure:
    """A panel per setting: the path of one cycle, the stored sample that repels it, and where other seeds end."""
    with rc_context(PAPER_FONTS):
        figure = Figure(figsize=(BOTH_COLUMNS, 2.2), layout="constrained")
        panels = figure.subplots(1, len(journeys), sharey=True)
        for letter, axes, (title, path, exploring, ends) in zip("abcdef", panels, journeys, strict=False):
            _background(axes, density, LOW_IS_DARK, np.arange(1, 14), FAR)
            _star(axes, stored)
            turn = sum(exploring)
            points = path.numpy()
            axes.plot(*points[: turn + 1].T, color=ORANGE, lw=1.3)
            axes.plot(*points[turn:].T, color=VERMILION, lw=0.6)
            axes.plot(*ends.T.numpy(), ".", color=BLACK, ms=2.5, alpha=0.7, mew=0)
            axes.plot(*points[0], "s", color="white", mec=BLACK, ms=4, mew=1)
            axes.plot(*points[-1], "o", color="white", mec=BLACK, ms=5, mew=1, zorder=6)
            _plane(axes, f"({letter}) {title}", FAR)
        panels[0].set_ylabel(r"$\theta_2$")
        figure.legend(
            handles=[
                _mark("*", BLUE, "white", 10, r"stored $\theta'$"),
                _mark("s", "white", BLACK, 4, "start"),
                Line2D([], [], color=ORANGE, lw=1.5, label="exploration"),
                Line2D([], [], color=VERMILION, lw=1, label="sampling"),
                _mark("o", "white", BLACK, 5, "sample"),
                _mark(".", BLACK, BLACK, 4, f"samples of {len(journeys[0][3])} other seeds"),
            ],
            loc="outside lower center",
            ncols=6,
            frameon=False,
            handletextpad=0.5,
            columnspacing=1.2,
        )
    return figure


def modes(modes: Mapping[str, Tensor], visited: Mapping[str, Tensor], shown: int = 30) -> Figure:
    """Above: the mode of each cycle's sample in some runs. Below: shares of all runs, with 95 % intervals."""
    with rc_context(PAPER_FONTS):
        figure = Figure(figsize=(BOTH_COLUMNS, 4.2), layout="constrained")
        upper, lower = figure.subfigures(2, 1, height_ratios=[1, 1.15], squeeze=False)[:, 0]
        rasters = upper.subplots(1, len(modes), sharey=True)
        for letter, axes, (label, which) in zip("abc", rasters, modes.items(), strict=True):
            cycles = len(which)
            axes.imshow(
                which[:, :shown].T.numpy() + 1,
                cmap=ListedColormap([LIGHT_GREY, BLUE, ORANGE]),
                vmin=0,
                vmax=2,
                aspect="auto",
                interpolation="nearest",
                extent=(0.5, cycles + 0.5, shown + 0.5, 0.5),
            )
            axes.set_title(f"({letter}) {label}", loc="left")
            axes.set_xlabel("cycle")
            axes.set_xticks(range(1, cycles + 1))
            axes.set_yticks([1, 10, 20, 30])
        rasters[0].set_ylabel("run")
        upper.legend(
            handles=[
                Patch(color=BLUE, label="sample in the first mode"),
                Patch(color=ORANGE, label="in the second mode"),
                Patch(color=LIGHT_GREY, label="in neither (beyond 3 standard deviations)"),
            ],
            loc="outside lower center",
            ncols=3,
            frameon=False,
        )
        left, right = lower.subplots(1, 2)
        for (label, which), style in zip(modes.items(), STYLES, strict=True):
            _share(left, label, style, visited[label])
            _share(right, label, style, which >= 0)
        left.set_title("(d) runs whose samples lie in both modes so far", loc="left")
        right.set_title("(e) samples that lie in a mode at all", loc="left")
        runs = next(iter(modes.values())).shape[1]
        for axes in (left, right):
            axes.set_xlabel("cycle")
            axes.set_ylabel(f"share of {runs} runs, 95 % band")
            axes.set_ylim(-0.03, 1.03)
        bare_axes(left, right)
        right.legend(frameon=False, loc="center right")
    return figure


def _mark(marker: str, face: str, edge: str, size: float, label: str) -> Line2D:
    return Line2D([], [], ls="", marker=marker, color=face, mec=edge, ms=size, label=label)


def _grid(count: int, window: Window, margin: float = 0.0) -> tuple[np.ndarray, np.ndarray, Tensor]:
    left, right, bottom, top = window
    rows = round(count * (top - bottom) / (right - left))
    x, y = np.meshgrid(
        np.linspace(left + margin, right - margin, count), np.linspace(bottom + margin, top - margin, rows)
    )
    return x, y, torch.from_numpy(np.stack([x, y], -1)).float()


def _background(axes: Axes, potential: Potential, colours: Any, levels: np.ndarray, window: Window) -> Any:
    x, y, points = _grid(160, window)
    values = potential(points).numpy()
    filled = axes.contourf(
        x, y, values, levels=levels, cmap=colours, extend="max" if values.max() > levels[-1] else "neither"
    )
    axes.contour(x, y, values, levels=levels, colors="white", linewidths=0.4)
    return filled


def _arrows(axes: Axes, potential: Potential, window: Window) -> None:
    x, y, points = _grid(15, window, margin=0.22)
    points.requires_grad_()
    (gradient,) = torch.autograd.grad(potential(points).sum(), points)
    drift = -gradient.numpy()
    size = np.linalg.norm(drift, axis=-1, keepdims=True)
    drift = drift / size * (size / size.max()) ** 0.4  # long and short ones must both be seen
    axes.quiver(x, y, drift[..., 0], drift[..., 1], color=BLACK, alpha=0.75, pivot="mid", scale=15, width=0.006)


def _star(axes: Axes, stored: Tensor) -> None:
    axes.plot(*stored.numpy(), "*", color=BLUE, mec="white", ms=12, mew=0.8, zorder=5, label=r"stored sample $\theta'$")


def _plane(axes: Axes, title: str, window: Window) -> None:
    axes.set_title(title, loc="left")
    axes.axis(window)
    axes.set_aspect("equal")
    axes.set_xlabel(r"$\theta_1$")
    axes.set_xticks([-2, 0, 2, 4] if window[1] > 4 else [-2, 0, 2])
    axes.set_yticks([-2, 0, 2])


def _share(axes: Axes, label: str, style: tuple[str, str], happened: Tensor) -> None:
    colour, line = style
    cycles, runs = happened.shape
    share = happened.double().mean(1).numpy()
    low, high = zip(*(proportion_interval(count, runs) for count in happened.sum(1).tolist()), strict=True)
    x = np.arange(1, cycles + 1)
    axes.fill_between(x, low, high, color=colour, alpha=0.2, lw=0)
    axes.plot(x, share, line, color=colour, marker="o", ms=2.5, lw=1.3, label=label)
    axes.set_xticks(x)
