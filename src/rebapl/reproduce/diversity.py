"""How far apart the samples are, with and without repulsion: the paper's heat maps."""

from __future__ import annotations

import statistics

from rebapl.errors import UserError
from rebapl.reports.tables import Cell, Row, Table
from rebapl.reproduce import pictures
from rebapl.reproduce.paper import printed
from rebapl.reproduce.rows import seeds_note
from rebapl.reproduce.suites import Choice, Suite
from rebapl.reproduce.target import Context, Output, over_seeds
from rebapl.runs.config import RunConfig


def _choices(suite: Suite) -> list[Choice]:
    return [suite.rebapl("maple", "with repulsion"), suite.rebapl("maple", "without repulsion", repulsion=None)]


def diversity_runs(suite: Suite) -> list[RunConfig]:
    return over_seeds(suite, [suite.place("diversity")], _choices(suite))


def diversity(context: Context) -> Output:
    """The matrices of the first seed as heat maps, and the averages of every seed as a table."""
    suite, data = context.suite, context.suite.place("diversity")
    rows: list[Row] = []
    first = {}
    stored = {}
    for choice in _choices(suite):
        records = [context.result(suite.config(data, choice, seed)).diversity for seed in suite.seeds]
        known = [record for record in records if record is not None]
        if not known:
            raise UserError(f"{suite.inference} keeps one sample: there are no distances between samples")
        first[choice.label] = known[0]
        stored[choice.label] = [record.as_json() for record in known]
        rows.append(
            [
                choice.label,
                Cell.over([record.mean_distance for record in known], 3),
                Cell.over([100 * record.mean_disagreement for record in known]),
                Cell.over([record.effective_by_answers for record in known]),
            ]
        )
    images = statistics.mode(record["images"] for records in stored.values() for record in records)
    columns = ["MaPLe + ReBaPL", "mean Wasserstein-2", "different answers, %", "effective samples"]
    notes = [f"Over {images} test images of the base classes, pairs of different samples.", seeds_note(suite.seeds)]
    table = Table(f"Diversity of the samples on {printed(data)}", columns, rows, context.notes(*notes))
    figure = pictures.heat_maps({label: record.distance for label, record in first.items()}, printed(data), images)
    return Output({"diversity": table}, {"diversity": figure}, {"records": stored})
