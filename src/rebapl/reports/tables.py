"""The one class of tables for all results: `Table`, which writes itself for a terminal, Markdown, CSV and LaTeX.

CSV has unrounded numbers. The template `page/table.html` writes a table for a page of HTML.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, takewhile
from pathlib import Path

import rich.markup
import rich.table

from rebapl.errors import printable
from rebapl.files import csv_text, write_atomically
from rebapl.numbers import mean
from rebapl.score_columns import SCORE_COLUMNS

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
    "α": r"$\alpha$",
    "ξ": r"$\xi$",
    "τ": r"$\tau$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "≈": r"$\approx$",
    "²": "$^2$",
    "…": r"\ldots{}",
}


@dataclass(frozen=True)
class Cell:
    """An unrounded number of a table, and how it is shown. A `value` of None is shown as a dash.

    * `std`: the standard deviation, shown after ±. `digits`: how many digits follow the point.
    * `signed`: whether the number is a difference, which is green above zero and red below. `best`: whether it is bold.
    * `notes`: remarks on the number. Each becomes a numbered footnote of the table.
    * `interval`: the two ends of an interval, shown below the number. Only pages of HTML show it.
    * `share`: a number from 0 to 1 that colours the cell of a heat map. Only pages of HTML show it.

    >>> str(Cell(81.234, 0.456)), str(Cell(-0.5, signed=True)), str(Cell(-0.001)), str(Cell(None))
    ('81.23 ± 0.46', '-0.50', '0.00', '–')
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
    def over(cls, values: Iterable[float | None], digits: int = 2) -> Cell:
        """The mean and the standard deviation (n − 1) of those values that are not None.

        One value has no deviation; no value is a dash.

        >>> str(Cell.over([80.0, 82.0])), str(Cell.over([80.0, None])), str(Cell.over([]))
        ('81.00 ± 1.41', '80.00', '–')
        """
        known = [value for value in values if value is not None]
        return cls(mean(known), statistics.stdev(known) if len(known) > 1 else None, digits)

    def minus(self, other: Cell) -> Cell:
        """The difference of two values as a signed cell; a dash if one of them is missing.

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
        if float(text) == 0:
            text = text.lstrip("+-")
        return text if self.std is None else f"{text} ± {self.std:.{self.digits}f}"

    @property
    def sign(self) -> int:
        """1 for a gain, −1 for a loss, and 0 for a difference that rounds to zero or a number that is no difference."""
        shown = round(self.value or 0.0, self.digits) if self.signed else 0.0
        return (shown > 0) - (shown < 0)


Row = Sequence["Cell | str"]


def score_cells(values: Mapping[str, float | None], *names: str) -> list[Cell]:
    """A cell for each of these `SCORE_COLUMNS`; a dash if `values` lacks the name.

    >>> [str(cell) for cell in score_cells({"nll": 0.5, "ece": 2.0}, "ece", "nll", "aurc")]
    ['2.0', '0.500', '–']
    """
    return [Cell(values.get(name), digits=SCORE_COLUMNS[name].digits) for name in names]


@dataclass(frozen=True)
class Markup:
    """How a text format writes a word, a bold number, the numbers of footnotes, a gain and a loss."""

    word: Callable[[str], str]
    bold: str
    footnotes: str
    gain: str = "{}"
    loss: str = "{}"

    def cell(self, cell: Cell | str, footnotes: Sequence[str]) -> str:
        """The text of a cell. `footnotes` are those of its whole table, in order."""
        if isinstance(cell, str):
            return self.word(cell)
        text = ("{}", self.gain, self.loss)[cell.sign].format(self.word(str(cell)))
        text = self.bold.format(text) if cell.best else text
        marks = ",".join(str(footnotes.index(note) + 1) for note in cell.notes)
        return text + self.footnotes.format(marks) if marks else text


def mark_column(rows: Sequence[list[Cell | str]], column: int, better: Callable[..., float] = max) -> None:
    """Mark the best number of a column (given by its index) in these rows, and every number that rounds to the same.

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

    * `notes`: remarks below the table, before the cells' own footnotes.
    * `groups`: headings over the columns as (heading, number of columns) in order; "" is no heading.
    * `merged`: how many columns, from the first, leave out words that repeat those of the row above, in a terminal and
      in LaTeX. A line is drawn before each row whose words in these columns are new.
    * `rules`: the numbers of other rows after which a line is drawn, counted from 1.

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
        """A table with one section for each word of the first column.

        In a section of several rows, the best numbers of the columns whose names end with ↑ or ↓ are marked.
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
        """The names of the columns, each with the heading of its group in front."""
        headings = [heading for heading, count in self.groups for _ in range(count)] or [""] * len(self.columns)
        return [f"{heading} {name}".strip() for heading, name in zip(headings, self.columns, strict=True)]

    @property
    def numeric(self) -> list[bool]:
        """For each column, whether it has numbers in it and is therefore aligned to the right."""
        return [any(isinstance(row[column], Cell) for row in self.rows) for column in range(len(self.columns))]

    @property
    def lines(self) -> set[int]:
        """The numbers of the rows, counted from 1, after which a line is drawn."""
        front = [row[: self.merged] for row in self.rows]
        return {*self.rules, *(number for number in range(1, len(front)) if front[number] != front[number - 1])}

    def _written(self, markup: Markup, merged: int = 0) -> list[list[str]]:
        """The text of every cell. Words that repeat those above are left out in the first `merged` columns."""
        footnotes, lines = self.footnotes, []
        above: Row = ()
        for row in self.rows:
            pairs = zip(row[:merged], above, strict=False)
            same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
            lines.append([*[""] * same, *(markup.cell(cell, footnotes) for cell in row[same:])])
            above = row
        return lines

    def to_rich(self) -> rich.table.Table:
        """The table for a terminal, without title and remarks, which `rebapl.cli.progress.print_table` adds."""
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
        """The title in bold, the table, and the remarks below it. With `bare`, only the table."""
        lines = [] if bare else [f"**{self.title}**", ""]
        lines.append("| " + " | ".join(map(MARKDOWN.word, self.full_columns())) + " |")
        lines.append("|" + "".join("---:|" if right else "---|" for right in self.numeric))
        lines += ["| " + " | ".join(row) + " |" for row in self._written(MARKDOWN)]
        for remark in () if bare else self.remarks():
            lines += ["", remark]
        return "\n".join(lines) + "\n"

    def to_csv(self) -> str:
        """The table with unrounded numbers.

        After each column with standard deviations comes one with these. The last column has the texts of the footnotes.
        """
        columns: list[list[str | float | None]] = []
        for index, name in enumerate(self.full_columns()):
            cells = [row[index] for row in self.rows]
            columns.append([name, *(cell if isinstance(cell, str) else cell.value for cell in cells)])
            deviations = [None if isinstance(cell, str) else cell.std for cell in cells]
            if any(each is not None for each in deviations):
                columns.append([f"{name} std", *deviations])
        if self.footnotes:
            columns.append(["notes", *("; ".join(_footnotes([row])) for row in self.rows)])
        return csv_text(zip(*columns, strict=True))

    def to_latex(self) -> str:
        """A LaTeX `table`, which needs the packages booktabs and xcolor."""
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
        """Write `name`.md, `name`.csv and `name`.tex into a folder, and return their paths."""
        texts = {"md": self.to_markdown(), "csv": self.to_csv(), "tex": self.to_latex()}
        for ending, text in texts.items():
            write_atomically(folder / f"{name}.{ending}", text)
        return [folder / f"{name}.{ending}" for ending in texts]


def latex(text: str) -> str:
    """Text with every character escaped or replaced that LaTeX would not print as it is.

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
