"""Rows of accuracies: ours beside the paper's, Δ rows, what stands below a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rebapl.reports.averages import CONVENTIONS, averaged
from rebapl.reports.tables import Cell, Row, mark_column
from rebapl.reproduce.paper import paper, printed, quote
from rebapl.reproduce.scores import AVERAGE, PARTS, beside, difference_row

ORIENTATION = "paper: its average over 11 data sets with CLIP ViT-B/16, to look at, not to compare with."
OF_THESE = "the average of the paper's rows of these data sets"
HM_NOTE = {
    CONVENTIONS[0]: "HM over data sets: of the two averages (--hm average gives the average of the data sets' HMs).",
    CONVENTIONS[1]: "HM over data sets: the average of the data sets' HMs (--hm of-averages gives that of the "
    "averages). The paper's own average is of the averages unless a footnote says otherwise.",
}


def seeds_note(seeds: Sequence[int]) -> str:
    """Which seeds a table is of."""
    if len(seeds) == 1:
        return f"Seed {seeds[0]} alone."
    return f"Mean ± standard deviation of seeds {', '.join(map(str, seeds))}."


def three(paper: bool, difference: bool) -> tuple[list[str], list[tuple[str, int]]]:
    """The columns under base, novel and HM, and their headings; without the paper's there are only these three."""
    if not paper:
        return ["base", "novel", "HM"], [("", 3)]
    names = ["ours", "paper", *(["diff."] if difference else [])]
    return names * 3, [(heading, len(names)) for heading in ("base", "novel", "HM")]


def with_paper(ours: Mapping[str, Cell], theirs: Mapping[str, Cell] | None, difference: bool) -> list[Cell]:
    """The cells of one row: of each of base, novel and HM ours, and the paper's and the difference where asked for."""
    row: list[Cell] = []
    for part in PARTS:
        row += [ours[part]] if theirs is None else beside(ours[part], theirs[part], difference)
    return row


def paper_average(label: str, data: Sequence[str], convention: str) -> dict[str, Cell]:
    """The paper's average of its first table: as printed for its eleven data sets (and beside data it does not have);
    for some of them the average of those rows."""
    rows = paper()["tables"]["table1"]["rows"].get(label, {})
    eleven = [name for name in rows if name != AVERAGE]
    if not set(data) < set(eleven):
        return quoted("table1", label, AVERAGE)
    per_data = [dict(zip(PARTS, rows[name], strict=True)) for name in data]
    averages = averaged(per_data, convention)
    return {part: Cell(averages[part], notes=(OF_THESE, *_slips(label, part, data))) for part in PARTS}


def _slips(label: str, part: str, data: Sequence[str]) -> dict[str, None]:
    """The slips in what an average of the paper's rows is made of; that of HM is made of all."""
    parts = PARTS if part == "hm" else (part,)
    return dict.fromkeys(note for name in data for each in parts for note in quote("table1", label, each, name).notes)


def quoted(table: str, row: str, data: str | None = None) -> dict[str, Cell]:
    """Base, novel and HM of the paper's row."""
    return {part: quote(table, row, part, data) for part in PARTS}


def mark_rows(rows: list[list[Cell | str]], first: int, step: int) -> None:
    """Mark the best of every `step`-th column of these rows, from `first` on."""
    for place in range(first, len(rows[0]), step):
        mark_column(rows, place)


def sections(
    names: Sequence[str], labels: Sequence[str], numbers: Mapping[tuple[str, str], list[Cell]], step: int
) -> tuple[list[Row], list[int]]:
    """A section per data set: a row per method, the best marked, and a row Δ after each that is ReBaPL."""
    rows: list[Row] = []
    rules = []
    for name in names:
        section: list[list[Cell | str]] = [[printed(name), printed(label), *numbers[name, label]] for label in labels]
        mark_rows(section, 2, step)
        by_label = dict(zip(labels, section, strict=True))
        for label in labels:
            rows.append(by_label[label])
            method = label.removesuffix(" + rebapl")
            if method != label and method in by_label:
                rows.append(difference_row(by_label[label], by_label[method], 2))
        rules.append(len(rows))
    return rows, rules
