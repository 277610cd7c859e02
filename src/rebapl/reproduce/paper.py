"""The numbers that the paper prints, read from `paper.json`, with their known slips as footnotes."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any

from rebapl.reports.tables import Cell


@cache
def paper() -> dict[str, Any]:
    """The whole of `paper.json`: `tables`, `text`, printed names of methods (`names`) and of data sets (`data`)."""
    return json.loads((resources.files("rebapl.reproduce") / "paper.json").read_text(encoding="utf-8"))


def quote(table: str, row: str, column: str, data: str | None = None, digits: int = 2) -> Cell:
    """One number of a table, a dash where the paper has none. `data` names the data set, which only table 1 needs.

    >>> str(quote("table1", "maple", "hm", "dtd")), str(quote("table2", "mmrl + rebapl", "eurosat"))
    ('67.36', '52.97')
    >>> quote("table1", "promptsrc", "base", "sun397").notes
    ("the paper's SUN397 row of PromptSRC repeats its EuroSAT row",)
    """
    section = paper()["tables"][table]
    found: Any = section["rows"].get(row, {})
    if isinstance(found, dict) and data is not None:
        found = found.get(data, {})
    if isinstance(found, list):
        found = dict(zip(section["columns"], found, strict=True))
    value = found.get(column)
    notes = tuple(
        slip["note"]
        for slip in section["slips"]
        if value is not None
        and (slip["row"], slip["data"]) == (row, data)
        and column in slip.get("columns", section["columns"])
    )
    return Cell(value, digits=digits, notes=notes)


def from_text(what: str) -> dict[str, Any]:
    """The numbers that the paper gives only in its text, of `cycles`, `efficiency` or `overfitting`.

    >>> from_text("cycles")["hm"]["3"]
    70.5
    """
    return paper()["text"][what]


def printed(name: str) -> str:
    """A method's or data set's name as the paper prints it; other names stay as they are.

    >>> printed("oxford_flowers"), printed("maple + rebapl"), printed("digits")
    ('Flowers102', 'MaPLe + ReBaPL', 'digits')
    """
    return paper()["names"].get(name) or paper()["data"].get(name) or name
