"""Results as tables and figures for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.table import Table

from rebapl.files import write_atomically

COLUMNS = {"base": "base ↑", "novel": "novel ↑", "hm": "HM ↑", "nll": "NLL ↓", "ece": "ECE ↓"}
_DIGITS = {"nll": 3}
_BEST = {"base": max, "novel": max, "hm": max, "nll": min, "ece": min}
_BLUE, _ORANGE, _BLACK, _GREEN = "#0072B2", "#E69F00", "#000000", "#009E73"  # Okabe–Ito: safe for colour-blind eyes


class Row(NamedTuple):
    """Base-to-novel scores of one method on one task, with the seconds it took to train."""

    task: str
    method: str
    scores: Mapping[str, float]
    seconds: float


def _cell(column: str, value: float) -> str:
    return f"{value:.{_DIGITS.get(column, 1)}f}"


def _cells(row: Row, group: Sequence[Row], mark: str) -> list[str]:
    """The scores of a row as text; those that are the best of its group, as shown, in `mark`."""
    cells = []
    for column, better in _BEST.items():
        best = _cell(column, better(each.scores[column] for each in group))
        cell = _cell(column, row.scores[column])
        cells.append(mark.format(cell) if cell == best else cell)
    return cells


def _by_task(rows: Iterable[Row]) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.task, []).append(row)
    return groups


def base_novel_table(rows: Sequence[Row], title: str) -> Table:
    """The table for a terminal; the best of each task in bold."""
    table = Table(title=title, title_justify="left", caption_justify="left")
    table.add_column("task", no_wrap=True)
    table.add_column("method", no_wrap=True)
    for name in (*COLUMNS.values(), "s"):
        table.add_column(name, justify="right", no_wrap=True)
    for task, group in _by_task(rows).items():
        for index, row in enumerate(group):
            cells = (*_cells(row, group, "[bold]{}[/bold]"), f"{row.seconds:.0f}")
            table.add_row(task if index == 0 else "", row.method, *cells, end_section=row is group[-1])
    return table


def scores_table(results: Mapping[str, Any], title: str) -> Table:
    """The scores of one run: a row per test part; below, the harmonic mean or the average over targets, if any."""
    table = Table(title=title, title_justify="left", caption_justify="left")
    for name in ("classes", "accuracy ↑", "NLL ↓", "ECE ↓", "images"):
        table.add_column(name, justify="left" if name == "classes" else "right")
    for name, part in results["parts"].items():
        table.add_row(name, f"{part['accuracy']:.2f}", f"{part['nll']:.4f}", f"{part['ece']:.2f}", f"{part['images']}")
    if "base_to_novel" in results:
        table.caption = f"harmonic mean {results['base_to_novel']['hm']:.2f}"
    targets = [part["accuracy"] for name, part in results["parts"].items() if name not in ("test", "base", "novel")]
    if targets:
        table.caption = f"average accuracy over targets {sum(targets) / len(targets):.2f}"
    return table


def base_novel_markdown(rows: Sequence[Row]) -> str:
    """The same table in Markdown."""
    lines = ["| task | method | " + " | ".join(COLUMNS.values()) + " |", "|---|---|" + "---:|" * len(COLUMNS)]
    for task, group in _by_task(rows).items():
        for row in group:
            lines.append(f"| {task} | {row.method} | " + " | ".join(_cells(row, group, "**{}**")) + " |")
    return "\n".join(lines) + "\n"


def base_novel_figure(rows: Sequence[Row], path: Path) -> Path:
    """Per task: accuracy on base and novel classes with their harmonic mean, and calibration beside it."""
    groups = _by_task(rows)
    methods = max(len(group) for group in groups.values())
    figure = Figure(figsize=(8, 1.1 + len(groups) * (0.55 + 0.32 * methods)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(groups), 2, squeeze=False, width_ratios=(2, 1), sharex="col")
    for (accuracy, error), (task, group) in zip(axes, groups.items(), strict=True):
        heights = range(len(group) - 1, -1, -1)
        for height, row in zip(heights, group, strict=True):
            base, novel, hm = (row.scores[name] for name in ("base", "novel", "hm"))
            accuracy.plot([novel, base], [height, height], color="#999999", linewidth=2, zorder=1)
            accuracy.scatter(base, height, color=_BLUE, s=45, zorder=2, label="base")
            accuracy.scatter(novel, height, color=_ORANGE, s=45, marker="s", zorder=2, label="novel")
            accuracy.scatter(hm, height, color=_BLACK, s=90, marker="|", zorder=3, label="harmonic mean")
            error.barh(height, row.scores["ece"], color=_GREEN, height=0.6)
            error.annotate(
                f"{row.scores['ece']:.1f}",
                (row.scores["ece"], height),
                xytext=(3, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
            )
        accuracy.set_title(task, loc="left", fontweight="bold")
        accuracy.set_yticks(list(heights), [row.method for row in group])
        accuracy.set_ylim(-0.6, len(group) - 0.4)
        accuracy.grid(axis="x", alpha=0.3)
        error.set_yticks([])
        error.set_ylim(-0.6, len(group) - 0.4)
        error.margins(x=0.18)
        for ax in (accuracy, error):
            ax.spines[["top", "right"]].set_visible(False)
    axes[-1][0].set_xlabel("accuracy (%)")
    axes[-1][1].set_xlabel("calibration error (%)")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles[:3], labels[:3], loc="outside upper right", ncols=3, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=160)
    return path


def write_base_novel(rows: Sequence[Row], folder: Path) -> None:
    """The Markdown table and the figure of these rows, in a folder."""
    write_atomically(folder / "table.md", base_novel_markdown(rows))
    base_novel_figure(rows, folder / "figure.png")
