"""The numbers that the paper prints, read from `paper.json`. Known errors of the paper become footnotes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from rebapl.data.task import SOURCE
from rebapl.evaluation.scores import average_over_data
from rebapl.reports.tables import Cell
from rebapl.runs.config import data_name

AVERAGE = "average"
OF_THESE = "the average of the paper's numbers of these data sets"


@cache
def paper() -> dict[str, Any]:
    """The content of `paper.json`: `tables`, and the printed names of methods (`names`) and of data sets (`data`)."""
    return json.loads((resources.files("rebapl.reproduce") / "paper.json").read_text(encoding="utf-8"))


def paper_table(name: str) -> dict[str, Any]:
    """One table of the paper; an empty table if the paper has none of that name."""
    return paper()["tables"].get(name, {"rows": {}, "columns": [], "slips": []})


def quote(table: str, row: str, column: str, data: str | None = None) -> Cell:
    """One number of a table; a dash if the paper has none. `data` is the data set, in tables 1, 2 and 3.

    >>> str(quote("table1", "maple", "hm", "dtd")), str(quote("table2", "mmrl + rebapl", "accuracy", "eurosat"))
    ('67.36', '52.97')
    >>> quote("table1", "promptsrc", "base", "sun397").notes
    ("the paper's SUN397 row of PromptSRC repeats its EuroSAT row",)
    """
    section = paper_table(table)
    columns, numbers = section["columns"], section["rows"].get(row)
    if isinstance(numbers, dict):
        numbers = numbers.get(data)
    numbers = numbers if isinstance(numbers, list) else [numbers]
    value = dict(zip(columns, numbers, strict=False)).get(column)
    notes = tuple(
        slip["note"]
        for slip in section["slips"]
        if value is not None and (slip["row"], slip["data"]) == (row, data) and column in slip.get("columns", columns)
    )
    return Cell(value, digits=section.get("digits", 2), notes=notes)


def quote_section(table: str, row: str, column: str, section: str, data: Sequence[str], convention: str) -> Cell:
    """The paper's number for a section of a table: a data set, or the average over the data sets `data`.

    If `data` are only some of the data sets of the paper's average, the average is computed from its rows of these. For
    all of them, and for data sets that the paper does not have, it is the average that the paper prints. If the paper
    has one row for all data sets together, only the section of the average has numbers.
    """
    by_data, columns = paper_table(table)["rows"].get(row, {}), paper_table(table)["columns"]
    if not isinstance(by_data, dict):
        return quote(table, row, column) if section == AVERAGE else Cell(None)
    averaged = [name for name in by_data if name != AVERAGE and (table == "table1" or name != SOURCE)]
    if (
        column not in columns
        or section != AVERAGE
        or not averaged
        or (AVERAGE in by_data and not set(data) < set(averaged))
    ):
        return quote(table, row, column, section)
    names = data if set(data) <= set(averaged) else averaged
    per_data = [{part: quote(table, row, part, name).value or 0.0 for part in columns} for name in names]
    value = average_over_data(per_data, convention)[column]
    parts = columns if column == "hm" else [column]  # the average HM follows from all three parts
    slips = dict.fromkeys(note for name in names for part in parts for note in quote(table, row, part, name).notes)
    return Cell(value, notes=(OF_THESE, *slips))


def printed(name: str) -> str:
    """The name of a method or of a data set as the paper prints it. A name that the paper does not have stays as it is.

    The path of a user's own images is printed as the name of that folder or file.

    >>> printed("oxford_flowers"), printed("maple + rebapl"), printed("digits"), printed("data/photos")
    ('Flowers102', 'MaPLe + ReBaPL', 'digits', 'photos')
    """
    known = paper()["names"].get(name) or paper()["data"].get(name)
    return known or (data_name(name) if Path(name).name != name else name)
