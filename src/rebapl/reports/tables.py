"""One kind of table for all results: for a terminal, Markdown, CSV (unrounded) and LaTeX.

The template `page/table.html` writes it for a page of HTML.
"""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, takewhile
from pathlib import Path

import rich.markup
import rich.table

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

    In a page of HTML, the ends of an `interval` stand below the number, and a cell of a heat map has a `share` from 0
    to 1, which colours it. Other formats show neither.

    >>> str(Cell(81.234, 0.456)), str(Cell(-0.5, signed=True)), str(Cell(None))
    ('81.23 ± 0.46', '-0.50', '–')
    """

    value: float | None
    std: float | None = None
    digits: int = 2
    signed: bool = False
    best: bool = False
    notes: tuple[str, ...] = ()
    interval: tuple[float, float] | None = None
    share: float | None = None

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
        shown = round(self.value or 0.0, self.digits) if self.signed else 0.0
        return (shown > 0) - (shown < 0)


Row = Sequence["Cell | str"]


def score_cells(values: Mapping[str, float | None], digits: Mapping[str, int]) -> list[Cell]:
    """The values of these names, each with its number of digits; a dash for one that is not there.

    >>> [str(cell) for cell in score_cells({"nll": 0.5, "ece": 2.0}, {"ece": 1, "nll": 3, "aurc": 1})]
    ['2.0', '0.500', '–']
    """
    return [Cell(values.get(name), digits=count) for name, count in digits.items()]


@dataclass(frozen=True)
class Markup:
    """How a format writes a word, a bold number, the numbers of footnotes, a gain and a loss."""

    word: Callable[[str], str]
    bold: str
    footnotes: str
    gain: str = "{}"
    loss: str = "{}"

    def cell(self, cell: Cell | str, footnotes: Sequence[str]) -> str:
        """A cell of a table that has these footnotes."""
        if isinstance(cell, str):
            return self.word(cell)
        text = ("{}", self.gain, self.loss)[cell.sign].format(self.word(str(cell)))
        text = self.bold.format(text) if cell.best else text
        marks = ",".join(str(footnotes.index(note) + 1) for note in cell.notes)
        return text + self.footnotes.format(marks) if marks else text


def mark_column(rows: Sequence[list[Cell | str]], column: int, better: Callable[..., float] = max) -> None:
    """Mark the best number, as shown, of one column by its index in these rows; all that look alike.

    >>> rows: list[list[Cell | str]] = [[Cell(80.001)], [Cell(80.0)], [Cell(79.0)], [Cell(None)]]
    >>> mark_column(rows, 0)
    >>> [row[0].best for row in rows]
    [True, True, False, False]
    """
    cells = [(row, cell) for row in rows if isinstance(cell := row[column], Cell) and cell.value is not None]
    if cells:
        values = [round(cell.value or 0.0, cells[0][1].digits) for _, cell in cells]
        for (row, cell), value in zip(cells, values, strict=True):
            row[column] = replace(cell, best=value == better(values))


@dataclass(frozen=True)
class Table:
    """Rows of numbers and words under named columns.

    `groups` are headings over the columns, (heading, number of columns) in order, "" for none; `notes` are remarks
    below, before the cells' own footnotes. Where the words of a row's first `merged` columns repeat those above, a
    terminal and LaTeX leave them out, and where they do not, a line is drawn before the row. `rules` are the numbers of
    other rows after which a line is drawn, counted from 1.

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

    @classmethod
    def sectioned(
        cls, title: str, columns: Sequence[str], rows: Sequence[list[Cell | str]], notes: Sequence[str] = ()
    ) -> Table:
        """A table with a section for each word of the first column.

        Where a section has several rows, the best numbers of the columns whose names end with ↑ or ↓ are marked.
        """
        for _, group in groupby(rows, lambda row: row[0]):
            section = list(group)
            for column, name in enumerate(columns if len(section) > 1 else ()):
                better = {"↑": max, "↓": min}.get(name[-1:])
                if better:
                    mark_column(section, column, better)
        return cls(title, columns, rows, notes, merged=1)

    @property
    def footnotes(self) -> list[str]:
        """The cells' notes, each once, in the order of reading."""
        return _footnotes(self.rows)

    def remarks(self) -> list[str]:
        """All lines below the table."""
        return [*self.notes, *(f"[{number}] {note}" for number, note in enumerate(self.footnotes, 1))]

    def full_columns(self) -> list[str]:
        """The columns' names with their group's in front."""
        headings = [heading for heading, count in self.groups for _ in range(count)] or [""] * len(self.columns)
        return [f"{heading} {name}".strip() for heading, name in zip(headings, self.columns, strict=True)]

    @property
    def numeric(self) -> list[bool]:
        """Which columns have numbers in them, and so stand to the right."""
        return [any(isinstance(row[column], Cell) for row in self.rows) for column in range(len(self.columns))]

    @property
    def lines(self) -> set[int]:
        """The numbers of the rows, counted from 1, after which a line is drawn."""
        front = [row[: self.merged] for row in self.rows]
        return {*self.rules, *(number for number in range(1, len(front)) if front[number] != front[number - 1])}

    def _written(self, markup: Markup, merged: int = 0) -> list[list[str]]:
        """The cells in a format. Words that repeat those above are left out in the first `merged` columns."""
        footnotes, written = self.footnotes, []
        before: Row = ()
        for row in self.rows:
            pairs = zip(row[:merged], before, strict=False)
            same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
            written.append([*[""] * same, *(markup.cell(cell, footnotes) for cell in row[same:])])
            before = row
        return written

    def to_rich(self) -> rich.table.Table:
        """The table alone for a terminal; `rebapl.cli.progress.print_table` prints its title and its remarks, too."""
        table = rich.table.Table()
        grouped = any(heading for heading, _ in self.groups)
        tops = [top for heading, count in self.groups for top in (heading, *[""] * (count - 1))]
        for top, name, right in zip(tops or self.columns, self.columns, self.numeric, strict=True):
            header = "\n".join(map(TERMINAL.word, [top, name] if grouped else [name]))
            table.add_column(header, justify="right" if right else "left", no_wrap=True)
        drawn = self.lines
        for number, row in enumerate(self._written(TERMINAL, self.merged), 1):
            table.add_row(*row, end_section=number in drawn)
        return table

    def to_markdown(self, bare: bool = False) -> str:
        """The title in bold, the table, and the remarks below; `bare` is the table alone."""
        lines = [] if bare else [f"**{self.title}**", ""]
        lines.append("| " + " | ".join(map(MARKDOWN.word, self.full_columns())) + " |")
        lines.append("|" + "".join("---:|" if right else "---|" for right in self.numeric))
        lines += ["| " + " | ".join(row) + " |" for row in self._written(MARKDOWN)]
        for remark in () if bare else self.remarks():
            lines += ["", remark]
        return "\n".join(lines) + "\n"

    def to_csv(self) -> str:
        """Unrounded; a column that has deviations is followed by one with them, and notes stand last, in words."""
        columns: list[list[str | float | None]] = []
        for index, name in enumerate(self.full_columns()):
            cells = [row[index] for row in self.rows]
            columns.append([name, *(cell if isinstance(cell, str) else cell.value for cell in cells)])
            spread = [None if isinstance(cell, str) else cell.std for cell in cells]
            if any(each is not None for each in spread):
                columns.append([f"{name} std", *spread])
        if self.footnotes:
            columns.append(["notes", *("; ".join(_footnotes([row])) for row in self.rows)])
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(zip(*columns, strict=True))
        return text.getvalue()

    def to_latex(self) -> str:
        """A `table` that needs the packages booktabs and xcolor."""
        shape = "".join("r" if right else "l" for right in self.numeric)
        lines = [r"\begin{table}", r"\centering", rf"\caption{{{latex(self.title)}}}", rf"\begin{{tabular}}{{{shape}}}"]
        lines.append(r"\toprule")
        if any(heading for heading, _ in self.groups):
            spans = (
                rf"\multicolumn{{{count}}}{{c}}{{{latex(heading)}}}" if heading else "&" * (count - 1)
                for heading, count in self.groups
            )
            lines.append(" & ".join(spans) + r" \\")
        lines.append(" & ".join(map(latex, self.columns)) + r" \\")
        lines.append(r"\midrule")
        drawn = self.lines
        for number, row in enumerate(self._written(LATEX, self.merged), 1):
            lines += [" & ".join(row) + r" \\", *([r"\midrule"] if number in drawn else [])]
        lines += [r"\bottomrule", r"\end{tabular}"]
        lines += [rf"\par\footnotesize {latex(remark)}" for remark in self.remarks()]
        return "\n".join([*lines, r"\end{table}"]) + "\n"

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


def _footnotes(rows: Sequence[Row]) -> list[str]:
    cells = (cell for row in rows for cell in row if isinstance(cell, Cell))
    return list(dict.fromkeys(note for cell in cells for note in cell.notes))


TERMINAL = Markup(
    lambda text: rich.markup.escape(printable(text)),
    "[bold]{}[/bold]",
    rich.markup.escape(" [{}]"),
    gain="[green]{}[/green]",
    loss="[red]{}[/red]",
)
MARKDOWN = Markup(lambda text: text.replace("|", "\\|"), "**{}**", " [{}]")
LATEX = Markup(
    latex,
    r"\textbf{{{}}}",
    "$^{{[{}]}}$",
    gain=r"\textcolor{{green!70!black}}{{{}}}",
    loss=r"\textcolor{{red}}{{{}}}",
)
