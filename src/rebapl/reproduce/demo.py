"""The demonstration: a few methods on two embedded tasks, with the embedded backbone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure

from rebapl.files import write_atomically, write_json
from rebapl.reports.results import BASE_NOVEL
from rebapl.reports.style import BLACK, BLUE, GREEN, GREY, ORANGE, bare_axes, save_figure
from rebapl.reports.tables import Cell, Table, score_cells
from rebapl.reproduce.suites import Suite, TableRow
from rebapl.runs.results import read_result
from rebapl.runs.run import run
from rebapl.score_columns import headings
from rebapl.training.checkpoint import Progress

TASKS = ("digits", "shapes")
SELECTION = (
    TableRow("zero-shot", "zero-shot"),
    TableRow("tip-adapter-f · mle", "tip-adapter-f", "mle"),
    TableRow("coop · mle", "coop", "mle", {"epochs": 5}),
    TableRow("maple · mle", "maple", "mle", {"epochs": 3}),
    TableRow("maple · ensemble", "maple", "ensemble", {"epochs": 3}),
    TableRow("maple · rebapl", "maple", "rebapl", {"first_epochs": 1, "epochs": 1}),
)
SHOTS, SEED, TEST_IMAGES = 8, 1, 240
REMARK = (
    "One seed on small tasks: this shows what the software does, not what is better. On real tasks an ensemble is at "
    "least as good as rebapl with MaPLe, and rebapl has the better probabilities with MMRL (docs/which-inference.md)."
)
ASIDE = 0.14
"""The distance of the points of base and novel above and below the middle of their row, whose height is 1."""


class MethodScores(NamedTuple):
    """Base-to-novel scores of one method on one task, with the seconds that its training took."""

    task: str
    method: str
    scores: Mapping[str, float]
    seconds: float | None


def run_demo(out: Path, bar: Callable[[str], Progress]) -> Table:
    """Train and score every row of `SELECTION` on every task, base to novel, and return the table.

    `results.json`, `table.md` and `figure.png` are written into `out`, and the runs into the folder `runs` in it, where
    a second call finds them. The stored table leaves out the seconds of training, which differ each time. `bar(title)`
    gives the progress callback of one training.
    """
    suite = Suite("demo", backbone="mini", shots=SHOTS, test_images=TEST_IMAGES)
    rows = []
    for task in TASKS:
        for row in SELECTION:
            folder = run(suite.config(task, row, SEED), runs=out / "runs", progress=bar(f"{task}: {row.label}"))
            result = read_result(folder)
            rows.append(MethodScores(task, row.label, result.base_novel, result.seconds.training))
    table = demo_table(rows)
    stored = replace(table, columns=table.columns[:-1], rows=[row[:-1] for row in table.rows])
    write_json(out / "results.json", [row._asdict() for row in rows])
    write_atomically(out / "table.md", stored.to_markdown(bare=True))
    save_figure(demo_figure(rows), out / "figure.png")
    return table


def demo_table(rows: Sequence[MethodScores]) -> Table:
    """The table of the demonstration: a section per task with its best scores in bold, and the seconds of training."""
    lines: list[list[Cell | str]] = [
        [row.task, row.method, *score_cells(row.scores, *BASE_NOVEL), Cell(row.seconds, digits=0)] for row in rows
    ]
    title = f"base-to-novel, {SHOTS} shots, seed {SEED}, embedded backbone"
    return Table.sectioned(title, ["task", "method", *headings(*BASE_NOVEL), "s"], lines)


def demo_figure(rows: Sequence[MethodScores]) -> Figure:
    """For each task a panel of accuracies (base, novel, harmonic mean) and one of calibration errors.

    In each row, the point of base lies a little above that of novel, so that both are visible if they are equal.
    """
    groups = {task: list(group) for task, group in groupby(rows, lambda row: row.task)}
    methods = max(map(len, groups.values()))
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
    note = f"{SHOTS} images per class, one seed, {TEST_IMAGES} test images per half of the classes"
    figure.supxlabel(note, fontsize=8)
    return figure
