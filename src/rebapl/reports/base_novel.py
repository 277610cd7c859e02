"""Tables of the scores of one run, and of several methods on base and novel classes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from rebapl.reports.tables import Cell, Table, mark_column
from rebapl.runs.results import RunResult

COLUMNS = {"base": "base ↑", "novel": "novel ↑", "hm": "HM ↑", "nll": "NLL ↓", "ece": "ECE ↓"}
_DIGITS = {"nll": 3}
_BEST = {"base": max, "novel": max, "hm": max, "nll": min, "ece": min}


class MethodScores(NamedTuple):
    """Base-to-novel scores of one method on one task, with the seconds that its training took."""

    task: str
    method: str
    scores: Mapping[str, float]
    seconds: float


def by_task(rows: Iterable[MethodScores]) -> dict[str, list[MethodScores]]:
    """The same grouped by their task, in order."""
    groups: dict[str, list[MethodScores]] = {}
    for row in rows:
        groups.setdefault(row.task, []).append(row)
    return groups


def base_novel_table(rows: Sequence[MethodScores], title: str, seconds: bool = True) -> Table:
    """A section per task with its best scores in bold, and with the `seconds` of training unless they are left out."""
    lines: list[list[Cell | str]] = []
    rules = []
    for task, group in by_task(rows).items():
        section: list[list[Cell | str]] = []
        for row in group:
            cells = [Cell(row.scores[name], digits=_DIGITS.get(name, 1)) for name in COLUMNS]
            section.append([task, row.method, *cells, *([Cell(row.seconds, digits=0)] if seconds else [])])
        for column, name in enumerate(COLUMNS, 2):
            mark_column(section, column, _BEST[name])
        lines += section
        rules.append(len(lines))
    columns = ["task", "method", *COLUMNS.values(), *(["s"] if seconds else [])]
    return Table(title, columns, lines, rules=rules, merged=1)


def base_novel_markdown(rows: Sequence[MethodScores]) -> str:
    """The same table in Markdown, without the seconds, which differ each time."""
    return base_novel_table(rows, "", seconds=False).to_markdown(bare=True)


def scores_table(result: RunResult, title: str) -> Table:
    """The scores of one run, a row per test part.

    The harmonic mean of base and novel, or the average over the targets of a transfer, stands below the table.
    """
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
