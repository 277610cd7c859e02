"""The paper's four numbered tables: base-to-novel (1), transfers to other data sets (2, 3), the repulsion (4)."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial

from rebapl.data.task import SOURCE
from rebapl.errors import UserError
from rebapl.reports.tables import Cell, Row, Table
from rebapl.reproduce.comparison import (
    AVERAGE,
    HM_NOTE,
    ORIENTATION,
    PARTS,
    cells,
    collect,
    compared_cells,
    gain_pairs,
    learning_pairs,
    mark_columns,
    opposites,
    paper_average,
    quoted,
    score_cells,
    score_columns,
    sections,
    seeds_note,
)
from rebapl.reproduce.paper import paper, printed, quote
from rebapl.reproduce.suites import ELEVEN, Choice, Suite
from rebapl.reproduce.target import Context, Product, over_seeds
from rebapl.runs.config import RunConfig

TRANSFERRED = ("promptsrc", "maple", "mmrl")
"""The methods of the second and third table."""


def table1_runs(suite: Suite) -> list[RunConfig]:
    return over_seeds(suite, suite.data, suite.choices())


def table1(context: Context) -> Product:
    """Table 1: the average over data sets, then a section per data set."""
    suite, choices = context.suite, context.suite.choices()
    found = collect(context, suite.data, choices)
    columns, groups = score_columns(True, suite.compared)
    numbers = {}
    for label, per_data in found.items():
        for name, scores in per_data.items():
            average = name == AVERAGE
            theirs = paper_average(label, suite.data, context.hm) if average else quoted("table1", label, name)
            numbers[name, label] = score_cells(cells(scores), theirs, suite.compared)
    rows, rules = sections([AVERAGE, *suite.data], list(found), numbers, len(columns) // 3)
    notes = [HM_NOTE[context.hm], seeds_note(suite.seeds, choices), *([] if suite.compared else [ORIENTATION])]
    table = Table(
        "Table 1: base-to-novel generalisation, accuracy in %",
        ["data set", "method", *columns],
        rows,
        context.notes(*notes),
        [("", 2), *groups],
        rules,
        merged=1,
    )
    against = []
    for part, title in zip(PARTS, ("base", "novel", "HM"), strict=True):
        ours = {label: cells(per_data[AVERAGE])[part] for label, per_data in found.items()}
        of_paper = {label: paper_average(label, suite.data, context.hm)[part] for label in found}
        pairs = [*gain_pairs(list(found)), *(learning_pairs(list(found)) if part == "hm" else ())]
        against += opposites(ours, of_paper, pairs, f"average {title}")
    return Product({"table1": table}, data={"scores": found, "hm": context.hm}, opposite=against)


def transfer_runs(protocol: str, suite: Suite) -> list[RunConfig]:
    return over_seeds(suite, [_source(suite, protocol)], suite.choices(_transferred(suite)), protocol)


def _transferred(suite: Suite) -> list[str]:
    """The methods that are transferred: the paper's three, or those that a user asked for."""
    return list(suite.asked or TRANSFERRED)


def _source(suite: Suite, protocol: str) -> str:
    """The data set that a transfer is trained on; refuses a suite that has none, or no targets."""
    targets = suite.cross if protocol == "cross-dataset" else suite.shifted
    if suite.source is None or not targets:
        needed = "two of the data sets" if protocol == "cross-dataset" else "ImageNet and one of its variants"
        raise UserError(f"{protocol} needs {needed} below --root: `rebapl data list` names them")
    return suite.source


def transfer(number: int, protocol: str, title: str, context: Context) -> Product:
    """Table 2 or 3: a section for the source, for each target, and for the average over the targets."""
    suite, name = context.suite, f"table{number}"
    source = _source(suite, protocol)
    choices = suite.choices(_transferred(suite))
    targets = list(suite.cross if protocol == "cross-dataset" else suite.shifted)
    scores: dict[str, dict[str, list[float]]] = {}
    for choice in choices:
        results = [context.result(suite.config(source, choice, seed, protocol)) for seed in suite.seeds_of(choice)]
        of_choice = {part: [each.parts[part].accuracy for each in results] for part in ("test", *targets)}
        of_choice[source] = of_choice.pop("test")
        of_choice[AVERAGE] = [statistics.fmean(of) for of in zip(*(of_choice[t] for t in targets), strict=True)]
        scores[choice.label] = of_choice
    tested = [source, *targets, AVERAGE]
    numbers = {}
    for label, of_choice in scores.items():
        for data in tested:
            ours = Cell.over(of_choice[data])
            theirs = _paper_transfer(name, label, data, targets) if data in (*targets, AVERAGE, SOURCE) else Cell(None)
            numbers[data, label] = compared_cells(ours, theirs) if suite.compared else [ours]
    rows, rules = sections(tested, list(scores), numbers, 3)
    columns = ["ours", "paper", "diff."] if suite.compared else ["accuracy"]
    notes = [f"Trained on {printed(source)}, all classes; average: of the targets.", seeds_note(suite.seeds, choices)]
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
    theirs_all = [column for column in paper()["tables"][name]["columns"][1:] if column != AVERAGE]
    against = opposites(
        {label: Cell.over(of_choice[AVERAGE]) for label, of_choice in scores.items()},
        {label: _paper_transfer(name, label, AVERAGE, theirs_all) for label in scores},
        gain_pairs(list(scores)),
        "average of the targets",
    )
    return Product({name: table}, data={"scores": scores}, opposite=against)


def _paper_transfer(table: str, label: str, data: str, targets: Sequence[str]) -> Cell:
    """The paper's number on a data set, or its average over these targets (as printed, if they are all it has)."""
    section = paper()["tables"][table]
    theirs = [name for name in section["columns"][1:] if name != AVERAGE]
    if data != AVERAGE or (AVERAGE in section["columns"] and set(targets) == set(theirs)):
        return quote(table, label, data)
    known = [quote(table, label, target).value for target in targets]
    values = [value for value in known if value is not None]
    if not values or len(values) < len(known):
        return Cell(None)
    return Cell(statistics.fmean(values), notes=("the average of the paper's figures of these targets",))


table2_runs, table3_runs = (partial(transfer_runs, protocol) for protocol in ("cross-dataset", "domain-generalization"))
table2 = partial(transfer, 2, "cross-dataset", "cross-data-set transfer")
table3 = partial(transfer, 3, "domain-generalization", "domain generalisation")


def table4_choices(suite: Suite) -> list[Choice]:
    """MaPLe, and ReBaPL on it without repulsion and with each distance."""
    return [
        Choice("maple", "maple", "mle"),
        suite.rebapl("maple", "none", repulsion=None),
        *(_metric(suite, name) for name in ("wasserstein", "mmd")),
    ]


def _metric(suite: Suite, name: str) -> Choice:
    return suite.rebapl("maple", name, **{"repulsion.distance": name})


TABLE4_LABELS = {
    "maple": "MaPLe",
    "none": "+ ReBaPL (no repulsion)",
    "wasserstein": "+ ReBaPL (Wasserstein)",
    "mmd": "+ ReBaPL (MMD)",
}


def table4_runs(suite: Suite) -> list[RunConfig]:
    return over_seeds(suite, suite.data, table4_choices(suite))


def table4(context: Context) -> Product:
    """Table 4: the average over data sets beside the paper's, then a section per data set."""
    suite = context.suite
    found = collect(context, suite.data, table4_choices(suite))
    compared = suite.compared and set(suite.data) == set(ELEVEN)
    columns, groups = score_columns(True, compared)
    rows: list[Row] = []
    rules = []
    for name in (AVERAGE, *suite.data):
        section: list[list[Cell | str]] = []
        for label, per_data in found.items():
            theirs = quoted("table4", label) if name == AVERAGE else dict.fromkeys(PARTS, Cell(None))
            numbers = score_cells(cells(per_data[name]), theirs, compared)
            section.append([printed(name), TABLE4_LABELS[label], *numbers])
        mark_columns(section, 2, len(columns) // 3)
        rows += section
        rules.append(len(rows))
    notes = [HM_NOTE[context.hm], seeds_note(suite.seeds), *([] if compared else [ORIENTATION])]
    title = "Table 4: repulsion in ReBaPL, accuracy in %"
    table = Table(
        title, ["data set", "method", *columns], rows, context.notes(*notes), [("", 2), *groups], rules, merged=1
    )
    against = opposites(
        {label: cells(per_data[AVERAGE])["hm"] for label, per_data in found.items()},
        {label: quoted("table4", label)["hm"] for label in found},
        [("none", "maple"), ("wasserstein", "none"), ("mmd", "none")],
        "average HM",
        TABLE4_LABELS.__getitem__,
    )
    return Product({"table4": table}, data={"scores": found, "hm": context.hm}, opposite=against)
