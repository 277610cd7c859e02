"""The paper's toy: its figures, and how many chains find both modes."""

from __future__ import annotations

from rebapl.reports.tables import Cell, Row, Table
from rebapl.reproduce import toy as example
from rebapl.reproduce.target import Context, Output

LABELS = ("no repulsion", "repulsion, ξ = 50", "repulsion, ξ = 1000, in both stages")


def toy(context: Context) -> Output:
    """Potentials and fields, trajectories, and the modes that many chains visit."""
    figures, modes = example.figures(runs=context.suite.toy_runs)
    rows: list[Row] = []
    for label, (_, which) in zip(LABELS, modes.items(), strict=True):
        both = 100 * example.visited_both(which)[-1].double().mean().item()
        outside = 100 * (which < 0).double().mean().item()
        rows.append([label, Cell(both, digits=1), Cell(outside, digits=1)])
    cycles, runs = next(iter(modes.values())).shape
    columns = ["cyclical SGLD", "both modes visited, %", "samples in neither, %"]
    note = f"{runs} chains of {cycles} cycles, all begun in the first mode; neither: beyond 3 standard deviations."
    return Output({"toy": Table("The two-mode example", columns, rows, [note])}, figures)
