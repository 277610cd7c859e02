"""The table of a run's scores on corrupted test images."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from rebapl.data.corruptions import CORRUPTIONS, SEVERITIES
from rebapl.reports.tables import Cell, Row, Table
from rebapl.runs.results import RunResult, Scores

MEANS = {"accuracy": "accuracy ↑", "nll": "NLL ↓", "ece": "ECE ↓", "aurc": "AURC ↓"}
"""The scores that are averaged over severities, and the names of their columns."""


def corruption_table(result: RunResult) -> Table:
    """A row for each corruption: its accuracy at each severity, and the means of the scores over the severities.

    The last row has the means over the corruptions. They are plain means: unlike the mCE of ImageNet-C, they are not
    divided by the errors of a reference network.
    """
    found = [(name, result.corruptions[name]) for name in CORRUPTIONS if name in result.corruptions]
    rows: list[Row] = [[name, *_cells([by_severity])] for name, by_severity in found]
    if len(found) > 1:
        rows.append(["mean", *_cells([by_severity for _, by_severity in found])])
    columns = ["corruption", *(f"@{severity}" for severity in SEVERITIES), *MEANS.values()]
    notes = ["@1 to @5 are the accuracy at each severity; the other columns are means over the severities"]
    return Table("Corrupted test images", columns, rows, notes, rules=[len(found)] if len(found) > 1 else [])


def _cells(corruptions: Sequence[dict[str, Scores]]) -> list[Cell]:
    """The numbers of a row, averaged over some corruptions, each of which weighs the same."""
    at = [[found[key].accuracy for found in corruptions if key in found] for key in map(str, SEVERITIES)]
    means = [
        statistics.fmean(statistics.fmean(getattr(each, name) for each in found.values()) for found in corruptions)
        for name in MEANS
    ]
    return [
        *(Cell(statistics.fmean(values) if values else None, digits=1) for values in at),
        *(Cell(value, digits=3 if name == "nll" else 1) for name, value in zip(MEANS, means, strict=True)),
    ]
