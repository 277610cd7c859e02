"""The figures of the studies, in the manner of the paper's. Each function draws the cells and lists it is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from string import ascii_lowercase
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from rebapl.reports.figures import heat_map
from rebapl.reports.style import (
    BLACK,
    BLUE,
    BOTH_COLUMNS,
    COLUMN,
    ORANGE,
    PAPER_FONTS,
    VERMILION,
    bare_axes,
    line_style,
)
from rebapl.reports.tables import Cell


def distance_name(metric: str) -> str:
    """The name of a distance as a reader knows it; one that was registered elsewhere has its own.

    >>> distance_name("mmd"), distance_name("mean-shift")
    ('MMD', 'mean-shift')
    """
    return {"mmd": "MMD", "wasserstein": "Wasserstein", "sinkhorn": "Sinkhorn"}.get(metric, metric)


def strengths(
    scores: Mapping[tuple[str, int, float], Mapping[str, Cell]], baseline: Cell, data: str, seeds: Sequence[int]
) -> Figure:
    """Harmonic mean against ξ: a panel per distance, a line per number of reference images."""
    metrics = list(dict.fromkeys(metric for metric, _, _ in scores))
    counts = list(dict.fromkeys(count for _, count, _ in scores))
    values = list(dict.fromkeys(value for _, _, value in scores))
    with rc_context(PAPER_FONTS):
        figure = Figure(figsize=(BOTH_COLUMNS if len(metrics) > 1 else COLUMN, 2.5), layout="constrained")
        panels = figure.subplots(1, len(metrics), sharey=True, squeeze=False)[0]
        for axes, metric in zip(panels, metrics, strict=True):
            for index, count in enumerate(counts):
                aside = [x * 10 ** (0.1 * (index - (len(counts) - 1) / 2)) for x in values]  # points that coincide
                _line(axes, aside, [scores[metric, count, x]["hm"] for x in values], line_style(index), f"$n={count}$")
            _dashed(axes, baseline, "MaPLe")
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(FixedLocator(values))
            axes.xaxis.set_minor_locator(NullLocator())
            axes.set_title(f"{distance_name(metric)}, {data}; {_spread(seeds)}", loc="left")
            _plain(axes, r"repulsion strength $\xi$")
        panels[0].set_ylabel("harmonic mean (%)")
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    return figure


def cycles(
    ours: Mapping[int, Cell], baseline: Cell, data: str, seeds: Sequence[int], paper: Mapping[str, Any] | None = None
) -> Figure:
    """Harmonic mean against the number of cycles, over the dashed line of MaPLe; with the paper's numbers, if given."""
    with rc_context(PAPER_FONTS):
        figure = Figure(figsize=(COLUMN, 2.5), layout="constrained")
        axes = figure.subplots()
        _line(axes, list(ours), list(ours.values()), (BLUE, "o"), "MaPLe + ReBaPL")
        _dashed(axes, baseline, "MaPLe")
        if paper is not None:
            points = {int(count): value for count, value in paper["hm"].items()}
            axes.plot(list(points), list(points.values()), "D", color="white", mec=VERMILION, ms=5, label="paper, ≈")
        axes.set_title(f"{data}; {_spread(seeds)}", loc="left")
        axes.xaxis.set_major_locator(FixedLocator(list(ours)))
        _plain(axes, "number of cycles $C$", "harmonic mean (%)")
        axes.legend(frameon=False, loc="best")
    return figure


def overfitting(names: Sequence[str], scores: Sequence[Mapping[str, Cell]], data: str, seeds: Sequence[int]) -> Figure:
    """Base, novel and their harmonic mean, a point each per way of training."""
    parts = (("base", BLUE, "o"), ("novel", ORANGE, "s"), ("hm", BLACK, "D"))
    with rc_context(PAPER_FONTS):
        figure = Figure(figsize=(COLUMN * 1.25, 2.6), layout="constrained")
        axes = figure.subplots()
        middles = np.arange(len(names))
        for shift, (part, colour, marker) in zip((-0.28, 0.0, 0.28), parts, strict=True):
            cells, label = [each[part] for each in scores], "harmonic mean" if part == "hm" else part
            _line(axes, (middles + shift).tolist(), cells, (colour, marker), label, joined=False)
            for middle, cell in zip(middles, cells, strict=True):
                axes.annotate(
                    f"{cell.value:.1f}",
                    (middle + shift, cell.value or 0.0),
                    (5, 0),
                    textcoords="offset points",
                    va="center",
                    fontsize=6.5,
                )
        axes.set_xticks(middles, names)
        axes.set_xlim(-0.5, len(names) - 0.4)
        axes.margins(y=0.12)
        axes.set_title(f"{data}; {_spread(seeds)}", loc="left")
        _plain(axes, y="accuracy (%)")
        figure.legend(loc="outside lower center", ncols=3, frameon=False)
    return figure


def heat_maps(matrices: Mapping[str, Sequence[Sequence[float]]], data: str, images: int, seed: int) -> Figure:
    """Distances between the samples of each cycle in the run of one seed, side by side on one colour scale."""
    arrays = {label: np.array(matrix) for label, matrix in matrices.items()}
    highest = max(array.max() for array in arrays.values()) or 1.0
    with rc_context(PAPER_FONTS):
        figure = Figure(figsize=(BOTH_COLUMNS * 0.8, 2.9), layout="constrained")
        panels = figure.subplots(1, len(arrays), squeeze=False)[0]
        for letter, axes, (label, array) in zip(ascii_lowercase, panels, arrays.items(), strict=False):
            picture = heat_map(axes, array, "{:.3f}", dark_up_to=highest * 0.6, ticks=10, numbered=8, highest=highest)
            pairs = array.sum() / max(1, len(array) * (len(array) - 1))
            axes.set_title(f"({letter}) {label}: mean {pairs:.3f}", loc="left")
            axes.set_xlabel("cycle")
        panels[0].set_ylabel("cycle")
        label = f"Wasserstein-2, {images} images of {data}, seed {seed}"
        figure.colorbar(picture, ax=list(panels), shrink=0.9, label=label)
    return figure


def overhead(milliseconds: Mapping[str, Mapping[int, float]], paper: Mapping[str, Mapping[int, float]]) -> Figure:
    """Time of each distance against the number of points; the paper's times are dotted."""
    with rc_context(PAPER_FONTS):
        figure = Figure(figsize=(COLUMN * 1.3, 2.7), layout="constrained")
        axes = figure.subplots()
        counts: list[int] = []
        for index, (metric, times) in enumerate(milliseconds.items()):
            counts, (colour, marker), name = list(times), line_style(index), distance_name(metric)
            axes.plot(counts, list(times.values()), color=colour, marker=marker, ms=3.5, lw=1.2, label=name)
            if metric in paper:
                theirs = paper[metric]
                axes.plot(list(theirs), list(theirs.values()), ":", color=colour, lw=1.2, label=f"{name}, paper")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.xaxis.set_major_locator(FixedLocator(counts))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        _plain(axes, "points $n$ in each cloud", "milliseconds per comparison\nof two clouds")
        figure.legend(loc="outside right center", frameon=False)
    return figure


def latency(milliseconds: Mapping[str, Mapping[int, float]], images: int, paper: Mapping[int, float]) -> Figure:
    """Time of one prediction of so many images against the number of cycles; the paper's, on four L4, are dotted."""
    with rc_context(PAPER_FONTS):
        figure = Figure(figsize=(COLUMN * 1.3, 2.5), layout="constrained")
        axes = figure.subplots()
        counts: list[int] = []
        for index, (where, times) in enumerate(milliseconds.items()):
            counts, (colour, marker) = list(times), line_style(index)
            axes.plot(counts, list(times.values()), color=colour, marker=marker, ms=3.5, lw=1.2, label=where)
        if paper:
            axes.plot(list(paper), list(paper.values()), ":", color=BLACK, lw=1.2, label="paper, 4 × L4")
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_locator(FixedLocator(counts))
        _plain(axes, "number of cycles $C$", f"milliseconds per prediction\nof {images} images")
        axes.legend(frameon=False)
    return figure


def _spread(seeds: Sequence[int]) -> str:
    """What the bars of a figure over these seeds are."""
    return "one seed" if len(seeds) == 1 else f"bars: ± standard deviation of {len(seeds)} seeds"


def _line(
    axes: Axes,
    x: Sequence[float],
    cells: Sequence[Cell],
    style: tuple[str, str],
    label: str,
    *,
    joined: bool = True,
) -> None:
    """A line of means in a colour and a marker, with bars of one standard deviation where there are several seeds."""
    means, errors = [cell.value or 0.0 for cell in cells], [cell.std or 0.0 for cell in cells]
    bars = errors if any(errors) else None
    kind: dict[str, Any] = {"color": style[0], "marker": style[1], "label": label, "ls": "-" if joined else ""}
    axes.errorbar(x, means, yerr=bars, ms=3.5, lw=1.2, elinewidth=0.8, capsize=2, **kind)


def _dashed(axes: Axes, cell: Cell, label: str) -> None:
    if cell.value is not None:
        axes.axhline(cell.value, color=BLACK, ls="--", lw=1, label=label)


def _plain(axes: Axes, x: str = "", y: str = "") -> None:
    """Axes with these labels, a light grid, and no frame above or to the right."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(axis="y", alpha=0.3, lw=0.5)
    axes.set_axisbelow(True)
    bare_axes(axes)
