"""The pieces that the sections of a report are made of: tables, tiles, and how numbers are written."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from rebapl.evaluation.intervals import Interval
from rebapl.reports.charts import Figure
from rebapl.reports.pictures import Card
from rebapl.reports.tables import EMPTY, Cell, Table


class Shown(NamedTuple):
    """A cell of a table: its text, what stands small below it, and its shade from 0 to 1 in a heat map."""

    text: str
    small: str = ""
    share: float = 0.0
    best: bool = False


class PageTable(NamedTuple):
    """A table of the page. The first cell of a row is its heading; `numeric` columns are set to the right.

    A `heat` map is coloured by the shares of its cells.
    """

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Shown]]
    numeric: Sequence[bool] = ()
    notes: Sequence[str] = ()
    heat: bool = False

    @property
    def turned(self) -> bool:
        """Whether the names of the columns are too long to stand upright over a heat map."""
        return max(map(len, self.columns[1:]), default=0) > 4


class Tile(NamedTuple):
    """A number that stands out at the top."""

    label: str
    value: str
    more: str = ""


@dataclasses.dataclass(frozen=True)
class Section:
    """A section of the page. `folded` tables are opened by a click; `missing` says why something is not there."""

    id: str
    title: str
    intro: str = ""
    facts: Sequence[tuple[str, str]] = ()
    tables: Sequence[PageTable] = ()
    figures: Sequence[Figure] = ()
    cards: Sequence[Card] = ()
    missing: Sequence[str] = ()
    folded: Sequence[tuple[str, PageTable]] = ()


def page_table(table: Table) -> PageTable:
    """A table of results as the page shows it."""
    numeric = [any(isinstance(row[column], Cell) for row in table.rows) for column in range(len(table.columns))]
    rows = [[Shown(str(cell), best=isinstance(cell, Cell) and cell.best) for cell in row] for row in table.rows]
    return PageTable(table.title, table.columns, rows, numeric, [note for note in table.remarks() if note])


def in_bytes(count: float) -> str:
    """A number of bytes in the unit that suits it.

    >>> in_bytes(2_500_000)
    '2.38 MiB'
    """
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.2f} GiB"


def ends_of(interval: Interval, digits: int = 2) -> str:
    """The two ends of an interval, as they stand below a score."""
    return f"{interval.low:.{digits}f} – {interval.high:.{digits}f}"


def rounded(value: float | None, digits: int) -> Shown:
    """A number with so many digits, or a dash."""
    return Shown(EMPTY if value is None else f"{value:.{digits}f}")
