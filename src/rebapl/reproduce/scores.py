"""Stored results as cells: over seeds, over data sets, beside the paper's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rebapl.reports.averages import averaged
from rebapl.reports.tables import Cell, Row
from rebapl.reproduce.suites import Choice
from rebapl.reproduce.target import Context

PARTS = ("base", "novel", "hm")
AVERAGE = "average"


def collect(
    context: Context, data: Sequence[str], choices: Sequence[Choice], seeds: Sequence[int] | None = None
) -> dict[str, dict[str, list[dict[str, float]]]]:
    """Label of the choice → data set (and `average`) → base-to-novel scores, one per seed."""
    found: dict[str, dict[str, list[dict[str, float]]]] = {}
    for choice in choices:
        of_choice = {
            name: [
                context.result(context.suite.config(name, choice, seed)).base_novel
                for seed in seeds or context.suite.seeds
            ]
            for name in data
        }
        per_seed = zip(*of_choice.values(), strict=True)
        of_choice[AVERAGE] = [averaged(list(scores), context.hm) for scores in per_seed]
        found[choice.label] = of_choice
    return found


def cells(scores: Sequence[Mapping[str, float]], digits: int = 2) -> dict[str, Cell]:
    """Base, novel and HM over seeds."""
    return {part: Cell.over([each[part] for each in scores], digits) for part in PARTS}


def beside(ours: Cell, theirs: Cell, compared: bool) -> list[Cell]:
    """Ours, the paper's and, where they are of the same data, the difference."""
    return [ours, theirs, *([ours.minus(theirs)] if compared else [])]


def difference_row(after: Sequence[Cell | str], before: Sequence[Cell | str], words: int) -> Row:
    """The row Δ below a row of ReBaPL: its numbers minus those of the method it is on. `words` lead both rows."""
    numbers = [
        one.minus(other) if isinstance(one, Cell) and isinstance(other, Cell) else ""
        for one, other in zip(after[words:], before[words:], strict=True)
    ]
    return [*after[: words - 1], "Δ", *numbers]
