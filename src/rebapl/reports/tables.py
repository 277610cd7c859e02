"""One kind of table for all results: for a terminal, Markdown, CSV (unrounded) and LaTeX."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import rich.table
from rich.markup import escape

from rebapl.errors import printable
from rebapl.files import write_atomically

EMPTY = "–"
_LATEX = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "–": "--",
    "±": r"$\pm$",
    "−": "$-$",
    "×": r"$\times$",
    "·": r"$\cdot$",
    "Δ": r"$\Delta$",
    "ξ": r"$\xi$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "≈": r"$\approx$",
    "²": "$^2$",
    "…": r"\ldots{}",
}


@dataclass(frozen=True)
class Cell:
    """A number, unrounded, and how it is shown: `digits` after the point, ± `std`, `signed` for differences (green
    above zero, red below), `best` in bold. Each of `notes` becomes a numbered footnote of the table. A `value` of
    None is shown as a dash.

    >>> str(Cell(81.234, 0.456)), str(Cell(-0.5, signed=True)), str(Cell(None))
    ('81.23 ± 0.46', '-0.50', '–')
    """

    value: float | None
    std: float | None = None
    digits: int = 2
    signed: bool = False
    best: bool = False
    notes: tuple[str, ...] = ()

    @classmethod
    def over(cls, values: Sequence[float], digits: int = 2) -> Cell:
        """The mean and the standard deviation (n − 1) of several runs; of one run no deviation, of none a dash.

        >>> str(Cell.over([80.0, 82.0])), str(Cell.over([80.0])), str(Cell.over([]))
        ('81.00 ± 1.41', '80.00', '–')
        """
        if not values:
            return cls(None, digits=digits)
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None, digits)

    def minus(self, other: Cell) -> Cell:
        """The difference of two values as a signed cell; a dash where one is missing.

        >>> str(Cell(81.0).minus(Cell(80.5)))
        '+0.50'
        """
        if self.value is None or other.value is None:
            return Cell(None, digits=self.digits, signed=True)
        return Cell(self.value - other.value, digits=self.digits, signed=True)

    def __str__(self) -> str:
        if self.value is None:
            return EMPTY
        text = f"{self.value:+.{self.digits}f}" if self.signed else f"{self.value:.{self.digits}f}"
        if self.signed and float(text) == 0:
            text = text[1:]
        return text if self.std is None else f"{text} ± {self.std:.{self.digits}f}"

    @property
    def sign(self) -> int:
        """1 for a gain, −1 for a loss, 0 where none is shown."""
        if not self.signed or self.value is None or float(str(self)) == 0:
            return 0
        return 1 if self.value > 0 else -1


Row = Sequence["Cell | str"]


def mark_best(cells: Sequence[Cell], better: Callable[..., float] = max) -> list[Cell]:
    """The same cells with the best, as shown, marked; all that look alike.

    >>> [cell.best for cell in mark_best([Cell(80.001), Cell(80.0), Cell(79.0), Cell(None)])]
    [True, True, False, False]
    """
    known = [cell.value for cell in cells if cell.value is not None]
    if not known:
        return list(cells)
    best = f"{better(known):.{cells[0].digits}f}"
    return [
        replace(cell, best=cell.value is not None and f"{cell.value:.{cells[0].digits}f}" == best) for cell in cells
    ]


def mark_column(rows: Sequence[list[Cell | str]], column: int, better: Callable[..., float] = max) -> None:
    """Mark the best of one column, by its index, of these rows. Every row must have a cell there."""
    marked = mark_best([cell for row in rows if isinstance(cell := row[column], Cell)], better)
    for row, cell in zip(rows, marked, strict=True):
        row[column] = cell


@dataclass(frozen=True)
class Table:
    """Rows of numbers and words under named columns.

    `groups` are headings over the columns, (heading, number of columns) in order, "" for none; `rules` are the numbers
    of rows after which a line is drawn, counted from 1; `notes` are remarks below, before the cells' own footnotes.
    Where the words of a row's first `merged` columns repeat those above, a terminal and LaTeX leave them out.

    >>> table = Table("scores", ["method", "base"], [["maple", Cell(81.0, notes=("one seed",))]])
    >>> print(table.to_markdown(), end="")
    **scores**
    <BLANKLINE>
    | method | base |
    |---|---:|
    | maple | 81.00 [1] |
    <BLANKLINE>
    [1] one seed
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Row]
    notes: Sequence[str] = ()
    groups: Sequence[tuple[str, int]] = ()
    rules: Sequence[int] = ()
    merged: int = 0

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"table '{self.title}': a row of {len(row)} cells under {len(self.columns)} columns")
        if self.groups and sum(count for _, count in self.groups) != len(self.columns):
            raise ValueError(f"table '{self.title}': the groups do not cover {len(self.columns)} columns")

    @property
    def footnotes(self) -> list[str]:
        """The cells' notes, each once, in the order of reading."""
        cells = (cell for row in self.rows for cell in row if isinstance(cell, Cell))
        return list(dict.fromkeys(note for cell in cells for note in cell.notes))

    def remarks(self) -> list[str]:
        """All lines below the table."""
        return [*self.notes, *(f"[{number}] {note}" for number, note in enumerate(self.footnotes, 1))]

    def full_columns(self) -> list[str]:
        """The columns' names with their group's in front."""
        return [f"{heading} {name}".strip() for heading, name in zip(self._headings(), self.columns, strict=True)]

    def _headings(self) -> list[str]:
        return [heading for heading, count in self.groups for _ in range(count)] or [""] * len(self.columns)

    def _marks(self, cell: Cell | str) -> list[int]:
        return [self.footnotes.index(note) + 1 for note in cell.notes] if isinstance(cell, Cell) else []

    def _numeric(self) -> list[bool]:
        return [any(isinstance(row[column], Cell) for row in self.rows) for column in range(len(self.columns))]

    def _without_repeats(self) -> list[Row]:
        shown: list[Row] = []
        before: list[Cell | str] = []
        for row in self.rows:
            same = 0
            while same < self.merged and list(row[: same + 1]) == before[: same + 1]:
                same += 1
            shown.append([*[""] * same, *row[same:]])
            before = list(row)
        return shown

    def to_rich(self, bare: bool = False) -> rich.table.Table:
        """For a terminal, with the title above and the remarks below; `bare` leaves these to the caller."""
        table = rich.table.Table(title_justify="left", caption_justify="left")
        if not bare:
            table.title, table.caption = escape(printable(self.title)), escape("\n".join(self.remarks())) or None
        before = ""
        for heading, name, right in zip(self._headings(), self.columns, self._numeric(), strict=True):
            shown = "" if heading == before else heading
            before = heading
            header = escape(f"{shown}\n{name}" if any(self._headings()) else name)
            table.add_column(header, justify="right" if right else "left", no_wrap=True)
        for number, row in enumerate(self._without_repeats(), 1):
            table.add_row(*(self._rich_cell(cell) for cell in row), end_section=number in self.rules)
        return table

    def _rich_cell(self, cell: Cell | str) -> str:
        if isinstance(cell, str):
            return escape(printable(cell))
        text = escape(_marked(str(cell), self._marks(cell), " [{}]"))
        if cell.best:
            return f"[bold]{text}[/bold]"
        colour = {1: "green", -1: "red"}.get(cell.sign)
        return f"[{colour}]{text}[/{colour}]" if colour else text

    def to_markdown(self, bare: bool = False) -> str:
        """The title in bold, the table, and the remarks below; `bare` is the table alone."""
        lines = [] if bare else [f"**{self.title}**", ""]
        lines.append("| " + " | ".join(map(_piped, self.full_columns())) + " |")
        lines.append("|" + "".join("---:|" if right else "---|" for right in self._numeric()))
        for row in self.rows:
            lines.append("| " + " | ".join(self._markdown_cell(cell) for cell in row) + " |")
        for remark in () if bare else self.remarks():
            lines += ["", remark]
        return "\n".join(lines) + "\n"

    def _markdown_cell(self, cell: Cell | str) -> str:
        if isinstance(cell, str):
            return _piped(cell)
        return _marked(f"**{cell}**" if cell.best else str(cell), self._marks(cell), " [{}]")

    def to_csv(self) -> str:
        """Unrounded; a column that has deviations is followed by one with them, and notes stand last, in words."""
        spread = [
            any(isinstance(row[index], Cell) and row[index].std is not None for row in self.rows)  # type: ignore[union-attr]
            for index in range(len(self.columns))
        ]
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        header = [
            name
            for column, more in zip(self.full_columns(), spread, strict=True)
            for name in ((column, f"{column} std") if more else (column,))
        ]
        writer.writerow([*header, "notes"] if self.footnotes else header)
        for row in self.rows:
            line: list[str] = []
            for cell, more in zip(row, spread, strict=True):
                value, std = (cell, "") if isinstance(cell, str) else (_plain(cell.value), _plain(cell.std))
                line += [value, std] if more else [value]
            notes = dict.fromkeys(note for cell in row if isinstance(cell, Cell) for note in cell.notes)
            writer.writerow([*line, "; ".join(notes)] if self.footnotes else line)
        return text.getvalue()

    def to_latex(self) -> str:
        """A `table` that needs the packages booktabs and xcolor."""
        shape = "".join("r" if right else "l" for right in self._numeric())
        lines = [r"\begin{table}", r"\centering", rf"\caption{{{latex(self.title)}}}", rf"\begin{{tabular}}{{{shape}}}"]
        lines.append(r"\toprule")
        if any(self._headings()):
            spans = (
                rf"\multicolumn{{{count}}}{{c}}{{{latex(heading)}}}" if heading else "&" * (count - 1)
                for heading, count in self.groups
            )
            lines.append(" & ".join(spans) + r" \\")
        lines.append(" & ".join(map(latex, self.columns)) + r" \\")
        lines.append(r"\midrule")
        for number, row in enumerate(self._without_repeats(), 1):
            lines.append(" & ".join(self._latex_cell(cell) for cell in row) + r" \\")
            if number in self.rules and number < len(self.rows):
                lines.append(r"\midrule")
        lines += [r"\bottomrule", r"\end{tabular}"]
        lines += [rf"\par\footnotesize {latex(remark)}" for remark in self.remarks()]
        return "\n".join([*lines, r"\end{table}"]) + "\n"

    def _latex_cell(self, cell: Cell | str) -> str:
        if isinstance(cell, str):
            return latex(cell)
        text = latex(str(cell))
        if cell.best:
            text = rf"\textbf{{{text}}}"
        colour = {1: "green!70!black", -1: "red"}.get(cell.sign)
        text = rf"\textcolor{{{colour}}}{{{text}}}" if colour else text
        return _marked(text, self._marks(cell), "$^{{[{}]}}$")

    def write(self, folder: Path, name: str) -> list[Path]:
        """`name`.md, .csv and .tex in a folder."""
        texts = {"md": self.to_markdown(), "csv": self.to_csv(), "tex": self.to_latex()}
        for ending, text in texts.items():
            write_atomically(folder / f"{name}.{ending}", text)
        return [folder / f"{name}.{ending}" for ending in texts]


def latex(text: str) -> str:
    """Words as LaTeX prints them.

    >>> latex("a_b & 5 %")
    'a\\\\_b \\\\& 5 \\\\%'
    """
    return "".join(_LATEX.get(sign, sign) for sign in text)


def _marked(text: str, marks: Sequence[int], form: str) -> str:
    return text + form.format(",".join(map(str, marks))) if marks else text


def _piped(text: str) -> str:
    return text.replace("|", "\\|")


def _plain(value: float | None) -> str:
    return "" if value is None else repr(value)
