"""Results as tables and figures for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from rebapl.files import write_atomically
from rebapl.reports.tables import Cell, Table, mark_column
from rebapl.runs.results import RunResult

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


def _by_task(rows: Iterable[Row]) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.task, []).append(row)
    return groups


def base_novel_table(rows: Sequence[Row], title: str, seconds: bool = True) -> Table:
    """A section per task, its best in bold; perhaps with the `seconds` of training."""
    lines: list[list[Cell | str]] = []
    rules = []
    for task, group in _by_task(rows).items():
        section: list[list[Cell | str]] = []
        for row in group:
            cells = [Cell(row.scores[name], digits=_DIGITS.get(name, 1)) for name in COLUMNS]
            section.append([task, row.method, *cells, *([Cell(row.seconds, digits=0)] if seconds else [])])
        for place, name in enumerate(COLUMNS, 2):
            mark_column(section, place, _BEST[name])
        lines += section
        rules.append(len(lines))
    columns = ["task", "method", *COLUMNS.values(), *(["s"] if seconds else [])]
    return Table(title, columns, lines, rules=rules, merged=1)


def scores_table(result: RunResult, title: str) -> Table:
    """The scores of one run: a row per test part; below, the harmonic mean or the average over targets, if any."""
    digits = {"accuracy": 2, "nll": 4, "ece": 2, "images": 0}
    rows: list[list[Cell | str]] = [
        [name, *(Cell(getattr(part, key), digits=count) for key, count in digits.items())]
        for name, part in result.parts.items()
    ]
    notes = []
    if result.has_base_novel:
        notes = [f"harmonic mean {result.base_novel['hm']:.2f}"]
    targets = [part.accuracy for name, part in result.parts.items() if name not in ("test", "base", "novel")]
    if targets:
        notes = [f"average accuracy over targets {sum(targets) / len(targets):.2f}"]
    return Table(title, ["classes", "accuracy ↑", "NLL ↓", "ECE ↓", "images"], rows, notes)


def base_novel_markdown(rows: Sequence[Row]) -> str:
    """The same table in Markdown, without what differs each time: the seconds."""
    return base_novel_table(rows, "", seconds=False).to_markdown(bare=True)


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
