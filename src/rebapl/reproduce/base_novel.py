"""Base-to-novel on all data sets: every method (the paper's first table), and the repulsion (its fourth)."""

from __future__ import annotations

from rebapl.reports.tables import Cell, Row, Table
from rebapl.reproduce.paper import printed
from rebapl.reproduce.rows import (
    HM_NOTE,
    ORIENTATION,
    mark_rows,
    paper_average,
    quoted,
    sections,
    seeds_note,
    three,
    with_paper,
)
from rebapl.reproduce.scores import AVERAGE, PARTS, cells, collect
from rebapl.reproduce.suites import ELEVEN, Choice, Suite
from rebapl.reproduce.target import Context, Output, over_seeds
from rebapl.runs.config import RunConfig


def table1_runs(suite: Suite) -> list[RunConfig]:
    return over_seeds(suite, suite.data, suite.choices())


def table1(context: Context) -> Output:
    """Base-to-novel, a section per data set after that of their average."""
    suite, choices = context.suite, context.suite.choices()
    found = collect(context, suite.data, choices)
    columns, groups = three(True, suite.compared)
    numbers = {}
    for label, per_data in found.items():
        for name, scores in per_data.items():
            average = name == AVERAGE
            theirs = paper_average(label, suite.data, context.hm) if average else quoted("table1", label, name)
            numbers[name, label] = with_paper(cells(scores), theirs, suite.compared)
    rows, rules = sections([AVERAGE, *suite.data], list(found), numbers, len(columns) // 3)
    notes = [HM_NOTE[context.hm], seeds_note(suite.seeds), *([] if suite.compared else [ORIENTATION])]
    table = Table(
        "Table 1: base-to-novel generalisation, accuracy in %",
        ["data set", "method", *columns],
        rows,
        context.notes(*notes),
        [("", 2), *groups],
        rules,
        merged=1,
    )
    return Output({"table1": table}, data={"scores": found, "hm": context.hm})


def table4_choices(suite: Suite) -> list[Choice]:
    """MaPLe, and ReBaPL on it without repulsion and with each distance."""
    return [
        Choice("maple", "maple"),
        suite.rebapl("maple", "none", repulsion=None),
        *(_metric(suite, name) for name in ("wasserstein", "mmd")),
    ]


def _metric(suite: Suite, name: str) -> Choice:
    return suite.rebapl("maple", name, **{"repulsion.metric": name})


TABLE4_LABELS = {
    "maple": "MaPLe",
    "none": "+ ReBaPL (no repulsion)",
    "wasserstein": "+ ReBaPL (Wasserstein)",
    "mmd": "+ ReBaPL (MMD)",
}


def table4_runs(suite: Suite) -> list[RunConfig]:
    return over_seeds(suite, suite.data, table4_choices(suite))


def table4(context: Context) -> Output:
    """The ablation of the repulsion: the average, beside the paper's, and every data set."""
    suite = context.suite
    found = collect(context, suite.data, table4_choices(suite))
    compared = suite.compared and set(suite.data) == set(ELEVEN)
    columns, groups = three(True, compared)
    rows: list[Row] = []
    rules = []
    for name in (AVERAGE, *suite.data):
        section: list[list[Cell | str]] = []
        for label, per_data in found.items():
            theirs = quoted("table4", label) if name == AVERAGE else dict.fromkeys(PARTS, Cell(None))
            numbers = with_paper(cells(per_data[name]), theirs, compared)
            section.append([printed(name), TABLE4_LABELS[label], *numbers])
        mark_rows(section, 2, len(columns) // 3)
        rows += section
        rules.append(len(rows))
    notes = [HM_NOTE[context.hm], seeds_note(suite.seeds), *([] if compared else [ORIENTATION])]
    title = "Table 4: repulsion in ReBaPL, accuracy in %"
    table = Table(
        title, ["data set", "method", *columns], rows, context.notes(*notes), [("", 2), *groups], rules, merged=1
    )
    return Output({"table4": table}, data={"scores": found, "hm": context.hm})
