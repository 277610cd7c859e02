"""Transfers: trained on one data set, tested on others (the paper's second and third table)."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from rebapl.data.task import SOURCE
from rebapl.errors import UserError
from rebapl.reports.tables import Cell, Table
from rebapl.reproduce.paper import paper, printed, quote
from rebapl.reproduce.rows import sections, seeds_note
from rebapl.reproduce.scores import AVERAGE, beside
from rebapl.reproduce.suites import Suite
from rebapl.reproduce.target import Context, Output, over_seeds
from rebapl.runs.config import RunConfig

TRANSFERRED = ("promptsrc", "maple", "mmrl")


def transfer_runs(protocol: str) -> Callable[[Suite], list[RunConfig]]:
    def runs(suite: Suite) -> list[RunConfig]:
        return over_seeds(suite, [_source(suite, protocol)], suite.choices(_transferred(suite)), protocol)

    return runs


def _transferred(suite: Suite) -> list[str]:
    methods = [method for method in suite.methods if method in TRANSFERRED]
    if not methods:
        raise UserError(f"transfers are of {', '.join(TRANSFERRED)}: name one of them with --methods")
    return methods


def _source(suite: Suite, protocol: str) -> str:
    targets = suite.cross if protocol == "cross-dataset" else suite.shifted
    if suite.source is None or not targets:
        needed = "two of the data sets" if protocol == "cross-dataset" else "ImageNet and one of its variants"
        raise UserError(f"{protocol} needs {needed} below --root: `rebapl data list` names them")
    return suite.source


def transfer(context: Context, number: int, protocol: str, title: str) -> Output:
    """The source and the targets, a section each; for cross-dataset the average over targets as well."""
    suite, name = context.suite, f"table{number}"
    source = _source(suite, protocol)
    choices = suite.choices(_transferred(suite))
    targets = list(suite.cross if protocol == "cross-dataset" else suite.shifted)
    scores: dict[str, dict[str, list[float]]] = {}
    for choice in choices:
        results = [context.result(suite.config(source, choice, seed, protocol)) for seed in suite.seeds]
        of_choice = {part: [each.parts[part].accuracy for each in results] for part in ("test", *targets)}
        of_choice[source] = of_choice.pop("test")
        of_choice[AVERAGE] = [statistics.fmean(of) for of in zip(*(of_choice[t] for t in targets), strict=True)]
        scores[choice.label] = of_choice
    places = [source, *targets, AVERAGE]
    numbers = {}
    for label, of_choice in scores.items():
        for place in places:
            ours = Cell.over(of_choice[place])
            theirs = _paper(name, label, place, targets) if place in (*targets, AVERAGE, SOURCE) else Cell(None)
            numbers[place, label] = beside(ours, theirs, True) if suite.compared else [ours]
    rows, rules = sections(places, list(scores), numbers, 3)
    columns = ["ours", "paper", "diff."] if suite.compared else ["accuracy"]
    notes = [f"Trained on {printed(source)}, all classes; average: of the targets.", seeds_note(suite.seeds)]
    if suite.compared and source != SOURCE:
        notes.append(f"The paper's figures are trained on {printed(SOURCE)}.")
    table = Table(
        f"Table {number}: {title}, accuracy in %",
        ["data set", "method", *columns],
        rows,
        context.notes(*notes),
        rules=rules,
        merged=1,
    )
    return Output({name: table}, data={"scores": scores})


def _paper(table: str, label: str, place: str, targets: Sequence[str]) -> Cell:
    """The paper's figure; its average is that of these targets, as printed where they are all of its own."""
    section = paper()["tables"][table]
    theirs = [name for name in section["columns"][1:] if name != AVERAGE]
    if place != AVERAGE or (AVERAGE in section["columns"] and set(targets) == set(theirs)):
        return quote(table, label, place)
    known = [quote(table, label, target).value for target in targets]
    values = [value for value in known if value is not None]
    if not values or len(values) < len(known):
        return Cell(None)
    return Cell(statistics.fmean(values), notes=("the average of the paper's figures of these targets",))
