"""Figures of results: base-to-novel scores by method, and how far apart the samples of a posterior are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rebapl.reports.base_novel import MethodScores, by_task
from rebapl.reports.style import BLACK, BLUE, GREEN, GREY, ORANGE, bare_axes, save_figure
from rebapl.runs.results import DiversityRecord

ASIDE = 0.14
"""How far the points of base and novel lie above and below the middle of their row, whose height is 1."""

NUMBERED = 12
"""A heat map of at most so many samples has its numbers written in its cells."""


def base_novel_figure(rows: Sequence[MethodScores], path: Path, note: str) -> Path:
    """A panel per task: accuracy on base and novel classes with their harmonic mean, and the calibration error.

    In each row base is a little higher than novel, so that both are seen where they are equal. `note` says what the
    numbers are of.
    """
    groups = by_task(rows)
    methods = max(len(group) for group in groups.values())
    figure = Figure(figsize=(8, 1.1 + len(groups) * (0.55 + 0.32 * methods)), layout="constrained")
    axes = figure.subplots(len(groups), 2, squeeze=False, width_ratios=(2, 1), sharex="col")
    for (accuracy, error), (task, group) in zip(axes, groups.items(), strict=True):
        heights = range(len(group) - 1, -1, -1)
        for height, row in zip(heights, group, strict=True):
            base, novel, hm, ece = (row.scores[name] for name in ("base", "novel", "hm", "ece"))
            accuracy.plot([novel, base], [height - ASIDE, height + ASIDE], color=GREY, linewidth=2, zorder=1)
            accuracy.scatter(base, height + ASIDE, color=BLUE, s=45, zorder=2, label="base")
            accuracy.scatter(novel, height - ASIDE, color=ORANGE, s=45, marker="s", zorder=2, label="novel")
            accuracy.scatter(hm, height, color=BLACK, s=260, marker="|", zorder=1, label="harmonic mean")
            error.barh(height, ece, color=GREEN, height=0.6)
            offset = {"xytext": (3, 0), "textcoords": "offset points"}
            error.annotate(f"{ece:.1f}", (ece, height), **offset, va="center", fontsize=8)
        accuracy.set_title(task, loc="left", fontweight="bold")
        accuracy.set_yticks(list(heights), [row.method for row in group])
        accuracy.set_ylim(-0.6, len(group) - 0.4)
        accuracy.grid(axis="x", alpha=0.3)
        error.set_yticks([])
        error.set_ylim(-0.6, len(group) - 0.4)
        error.margins(x=0.18)
        bare_axes(accuracy, error)
    axes[-1][0].set_xlabel("accuracy (%)")
    axes[-1][1].set_xlabel("calibration error (%)")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles[:3], labels[:3], loc="outside upper right", ncols=3, frameon=False)
    figure.supxlabel(note, fontsize=8)
    return save_figure(figure, path)


def diversity_figure(record: DiversityRecord, path: Path) -> Path:
    """The heat maps of the pairwise distances and disagreements of the samples, side by side."""
    panels = (
        (np.array(record.distance), f"Wasserstein-2 in '{record.space}' features", "{:.2f}"),
        (100 * np.array(record.disagreement), "different answers (%)", "{:.0f}"),
    )
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    for axes, (matrix, title, form) in zip(figure.subplots(1, 2), panels, strict=True):
        picture = heat_map(axes, matrix, form, dark_up_to=matrix.max() / 2, ticks=NUMBERED, numbered=NUMBERED)
        figure.colorbar(picture, ax=axes, shrink=0.85, label=title)
        axes.set_title(f"{title}, {record.images} test images", fontsize=9)
        axes.set_xlabel("sample")
        axes.set_ylabel("sample")
    return save_figure(figure, path)


def heat_map(
    axes: Axes,
    matrix: np.ndarray,
    form: str,
    *,
    dark_up_to: float,
    ticks: int,
    numbered: int,
    highest: float | None = None,
) -> Any:
    """Draw a matrix (S, S) as colours from 0 to `highest`, rows and columns counted from 1 with about so many `ticks`.

    Where S is at most `numbered`, its values are written in as `form` says: white on cells up to `dark_up_to`.
    """
    picture = axes.imshow(matrix, cmap="viridis", vmin=0, vmax=highest)
    count = len(matrix)
    indices = range(0, count, max(1, count // ticks))
    axes.set_xticks(indices, [str(index + 1) for index in indices])
    axes.set_yticks(indices, [str(index + 1) for index in indices])
    for (row, column), value in np.ndenumerate(matrix) if count <= numbered else ():
        shade = "white" if value <= dark_up_to else "black"
        axes.text(column, row, form.format(value), ha="center", va="center", color=shade, fontsize=7)
    return picture
