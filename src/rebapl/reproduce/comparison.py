"""Our stored results beside the paper's figures: as cells, as rows, and as sections of a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rebapl.evaluation.scores import HM_CONVENTIONS, average_over_data
from rebapl.reports.tables import Cell, Row, mark_column
from rebapl.reproduce.paper import paper, printed, quote
from rebapl.reproduce.suites import Choice
from rebapl.reproduce.target import Context

PARTS = ("base", "novel", "hm")
AVERAGE = "average"
ORIENTATION = "paper: its average over 11 data sets with CLIP ViT-B/16, to look at, not to compare with."
OF_THESE = "the average of the paper's rows of these data sets"
HM_NOTE = {
    HM_CONVENTIONS[0]: "HM over data sets: of the two averages (--hm average gives the average of the data sets' HMs).",
    HM_CONVENTIONS[1]: "HM over data sets: the average of the data sets' HMs (--hm of-averages gives that of the "
    "averages). The paper's own average is of the averages unless a footnote says otherwise.",
}


def collect(
    context: Context, data: Sequence[str], choices: Sequence[Choice], seeds: Sequence[int] | None = None
) -> dict[str, dict[str, list[dict[str, float]]]]:
    """Label of the choice → data set (and `average`) → base, novel, HM, NLL and ECE of the stored runs, one per seed.

    Where nothing is learned there is one run.
    """
    found: dict[str, dict[str, list[dict[str, float]]]] = {}
    for choice in choices:
        of_choice = {
            name: [
                context.result(context.suite.config(name, choice, seed)).base_novel
                for seed in context.suite.seeds_of(choice, seeds)
            ]
            for name in data
        }
        per_seed = zip(*of_choice.values(), strict=True)
        of_choice[AVERAGE] = [average_over_data(list(scores), context.hm) for scores in per_seed]
        found[choice.label] = of_choice
    return found


def cells(scores: Sequence[Mapping[str, float]], digits: int = 2) -> dict[str, Cell]:
    """Base, novel and HM, each with mean and deviation over seeds."""
    return {part: Cell.over([each[part] for each in scores], digits) for part in PARTS}


def seeds_note(seeds: Sequence[int], choices: Sequence[Choice] = ()) -> str:
    """The remark that says which seeds a table is of, and which rows have no randomness."""
    if len(seeds) == 1:
        return f"Seed {seeds[0]} alone."
    fixed = [printed(choice.label) for choice in choices if not choice.learns]
    once = f" Nothing is random in {', '.join(fixed)}: one run." if fixed else ""
    return f"Mean ± standard deviation of seeds {', '.join(map(str, seeds))}.{once}"


def opposite(what: str, ours: Cell, theirs: Cell) -> list[str]:
    """A sentence where a difference has the other sign than the paper's, as both are shown; else none.

    >>> opposite("MaPLe + ReBaPL minus MaPLe, HM", Cell(-0.3, signed=True), Cell(1.15, signed=True))
    ['MaPLe + ReBaPL minus MaPLe, HM: -0.30 here, +1.15 in the paper.']
    >>> opposite("MaPLe + ReBaPL minus MaPLe, HM", Cell(0.3, signed=True), Cell(1.15, signed=True))
    []
    """
    return [f"{what}: {ours} here, {theirs} in the paper."] if ours.sign * theirs.sign < 0 else []


def opposites(
    ours: Mapping[str, Cell],
    theirs: Mapping[str, Cell],
    pairs: Sequence[tuple[str, str]],
    what: str,
    named: Callable[[str], str] = printed,
) -> list[str]:
    """The `opposite` of `what`, for the differences between pairs of rows; `named` is what a row is called."""
    return [
        sentence
        for one, other in pairs
        for sentence in opposite(
            f"{named(one)} minus {named(other)}, {what}",
            ours[one].minus(ours[other]),
            theirs[one].minus(theirs[other]),
        )
    ]


def gain_pairs(labels: Sequence[str]) -> list[tuple[str, str]]:
    """The rows of ReBaPL, each with the row of the method that it is on."""
    return [(label, label.removesuffix(" + rebapl")) for label in labels if label.endswith(" + rebapl")]


def learning_pairs(labels: Sequence[str]) -> list[tuple[str, str]]:
    """All rows but that of zero-shot, each with it; none if it is not among them."""
    return [(label, "zero-shot") for label in labels if label != "zero-shot" and "zero-shot" in labels]


def score_columns(paper: bool, difference: bool) -> tuple[list[str], list[tuple[str, int]]]:
    """The names of the columns for base, novel and HM, and the headings above them.

    Each of the three has a column, or with `paper` two (ours and the paper's), or with `difference` three.
    """
    if not paper:
        return ["base", "novel", "HM"], [("", 3)]
    names = ["ours", "paper", *(["diff."] if difference else [])]
    return names * 3, [(heading, len(names)) for heading in ("base", "novel", "HM")]


def score_cells(ours: Mapping[str, Cell], theirs: Mapping[str, Cell] | None, difference: bool) -> list[Cell]:
    """The cells of one row below `score_columns`; without `theirs`, the paper's, there are only ours."""
    row: list[Cell] = []
    for part in PARTS:
        row += [ours[part]] if theirs is None else compared_cells(ours[part], theirs[part], difference)
    return row


def compared_cells(ours: Cell, theirs: Cell, difference: bool = True) -> list[Cell]:
    """Ours, the paper's and, unless they are of different data, the difference."""
    return [ours, theirs, *([ours.minus(theirs)] if difference else [])]


def quoted(table: str, row: str, data: str | None = None) -> dict[str, Cell]:
    """Base, novel and HM of a row of the paper."""
    return {part: quote(table, row, part, data) for part in PARTS}


def paper_average(label: str, data: Sequence[str], convention: str) -> dict[str, Cell]:
    """The paper's average, in its first table, over these data sets.

    For some of its eleven data sets it is the average of their rows. For all eleven, and for data sets that the paper
    does not have, it is the average as printed.
    """
    rows = paper()["tables"]["table1"]["rows"].get(label, {})
    eleven = [name for name in rows if name != AVERAGE]
    if not set(data) < set(eleven):
        return quoted("table1", label, AVERAGE)
    per_data = [dict(zip(PARTS, rows[name], strict=True)) for name in data]
    averages = average_over_data(per_data, convention)
    return {part: Cell(averages[part], notes=(OF_THESE, *_slips(label, part, data))) for part in PARTS}


def _slips(label: str, part: str, data: Sequence[str]) -> dict[str, None]:
    """The known slips in the figures that an average is made of. The average HM is made of all three parts."""
    parts = PARTS if part == "hm" else (part,)
    return dict.fromkeys(note for name in data for each in parts for note in quote("table1", label, each, name).notes)


def mark_columns(rows: list[list[Cell | str]], first: int, step: int) -> None:
    """Mark the best of every `step`-th column of these rows, from column `first` on."""
    for column in range(first, len(rows[0]), step):
        mark_column(rows, column)


def sections(
    names: Sequence[str], labels: Sequence[str], numbers: Mapping[tuple[str, str], list[Cell]], step: int
) -> tuple[list[Row], list[int]]:
    """A section per data set: a row per method with the best marked, and a row Δ below each row of ReBaPL.

    Returns the rows, and the numbers of the rows that end a section.
    """
    rows: list[Row] = []
    rules = []
    for name in names:
        section: list[list[Cell | str]] = [[printed(name), printed(label), *numbers[name, label]] for label in labels]
        mark_columns(section, 2, step)
        by_label = dict(zip(labels, section, strict=True))
        for label in labels:
            rows.append(by_label[label])
            method = label.removesuffix(" + rebapl")
            if method != label and method in by_label:
                rows.append(_difference_row(by_label[label], by_label[method]))
        rules.append(len(rows))
    return rows, rules


def _difference_row(after: Sequence[Cell | str], before: Sequence[Cell | str]) -> Row:
    """The row Δ below a row of ReBaPL: its numbers minus those of the method that ReBaPL is on."""
    numbers = [
        one.minus(other) if isinstance(one, Cell) and isinstance(other, Cell) else ""
        for one, other in zip(after[2:], before[2:], strict=True)
    ]
    return [after[0], "Δ", *numbers]
