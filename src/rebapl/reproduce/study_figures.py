"""The figures of the studies: curves of the scores of a table (`CurveFigure`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from rebapl.reports.style import BLACK, BOTH_COLUMNS, COLUMN, PAPER_FONTS, bare_axes, line_style
from rebapl.reports.tables import Cell
from rebapl.reproduce.paper import printed

if TYPE_CHECKING:
    from rebapl.reproduce.paper_table import FilledTable

Points = dict[float, str]
"""Position on the horizontal axis → label of the row."""


@dataclass(frozen=True)
class CurveFigure:
    """A figure of a table: curves of scores against the last word of each row, which is a number.

    The words before it name the curve and the panel of the row. A row whose last word is no number becomes a dashed
    horizontal line. The paper's curves are dotted.

    * `labels`: the labels of the horizontal and of the vertical axis. `scores`: the scores that have a curve.
    * `in_words`: whether the points of the rows stand side by side instead, each above the words of its row.
    * `log`: the logarithmic axes: "", "x" or "xy".
    * `aside`: the horizontal distance between the points of several curves, so that they do not cover each other.
    """

    labels: tuple[str, str]
    scores: tuple[str, ...] = ("hm",)
    in_words: bool = False
    log: str = ""
    aside: float = 0.0

    @rc_context(PAPER_FONTS)
    def draw(self, filled: FilledTable) -> Figure:
        """The figure, with its panels side by side. Error bars are one standard deviation."""
        panels: dict[str, dict[str, Points]] = {}
        levels = []
        for index, row in enumerate(filled.rows):
            panel, curve, position = ("", "", index) if self.in_words else ("", "", *row.shown)[-3:]
            try:
                x = float(position)
            except ValueError:
                levels.append(row.label)
            else:
                panels.setdefault(panel, {}).setdefault(curve, {})[x] = row.label
        figure = Figure(figsize=(BOTH_COLUMNS if len(panels) > 1 else COLUMN * 1.3, 2.6), layout="constrained")
        many: Sequence[Axes] = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axes, (title, curves) in zip(many, panels.items(), strict=True):
            self._draw_curves(axes, filled, curves)
            for level in levels:
                height = filled.cell(level, self.scores[0]).value or 0.0
                axes.axhline(height, color=BLACK, ls="--", lw=1, label=printed(level))
            axes.set_title(", ".join(filter(None, (title, _about(filled)))), loc="left")
            axes.set_xlabel(self.labels[0])
            axes.grid(axis="y", alpha=0.3, lw=0.5)
            bare_axes(axes)
        many[0].set_ylabel(self.labels[1])
        handles, labels = many[0].get_legend_handles_labels()
        below = len(labels) <= 8
        place, columns = ("lower center", min(4, len(labels))) if below else ("right center", 1)
        figure.legend(handles, labels, loc=f"outside {place}", ncols=columns, frameon=False)
        return figure

    def _draw_curves(self, axes: Axes, filled: FilledTable, curves: Mapping[str, Points]) -> None:
        for name in self.log:
            axes.set(**{f"{name}scale": "log"})
            getattr(axes, f"{name}axis").set_major_formatter(lambda value, _: f"{value:g}")
        lines = [(name, score, points) for name, points in curves.items() for score in self.scores]
        for index, (name, score, points) in enumerate(lines):
            colour, marker = line_style(index)
            shift = self.aside * (index - (len(lines) - 1) / 2)
            positions = [x * 10**shift if "x" in self.log else x + shift for x in points]
            label = f"{filled.of.words[-2]} = {name}" if name.isdigit() else name or filled.of.scores[score].title
            ours = [filled.cell(row, score) for row in points.values()]
            line = "" if self.in_words else "-"
            _errorbar(axes, positions, ours, color=colour, marker=marker, ls=line, label=label)
            if line and filled.widths[score] > 1:
                theirs = [filled.theirs(row, score) for row in points.values()]
                _errorbar(axes, list(points), theirs, color=colour, marker="", ls=":", label=f"{label}, paper")
        words = {row.label: "\n".join(row.shown) for row in filled.rows}
        ticks = {x: words[row] if self.in_words else f"{x:g}" for *_, points in lines for x, row in points.items()}
        axes.set_xticks(list(ticks), list(ticks.values()))
        axes.xaxis.set_minor_locator(NullLocator())


def _errorbar(axes: Axes, positions: Sequence[float], cells: Sequence[Cell], **style: str) -> None:
    """Draw cells as points, with bars of one standard deviation if they have one.

    Cells without a value are left out. If no cell has a value, nothing is drawn.
    """
    pairs = zip(positions, cells, strict=True)
    points = [(x, cell.value, cell.std or 0.0) for x, cell in pairs if cell.value is not None]
    if points:
        xs, means, errors = zip(*points, strict=True)
        bars = errors if any(errors) else None
        look: dict[str, Any] = {"ms": 3.5, "lw": 1.2, "elinewidth": 0.8, "capsize": 2, **style}
        axes.errorbar(xs, means, yerr=bars, **look)


def _about(filled: FilledTable) -> str:
    """The data set of a figure and the meaning of its error bars; empty for a table without runs."""
    if filled.of.measure is not None:
        return ""
    seeds = len(filled.seeds)
    bars = "one seed" if seeds == 1 else f"bars: ± standard deviation of {seeds} seeds"
    return f"{printed(filled.data[0])}; {bars}"
