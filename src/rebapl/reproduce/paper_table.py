"""What a table of the paper is: rows, columns, and where their numbers come from, as data.

One collector reads the scores of stored runs, and one renderer sets them beside the paper's. Tables that need no runs,
because they measure something themselves, are a `MeasuredTarget`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from rebapl.data.task import SOURCE
from rebapl.evaluation.scores import HM_CONVENTIONS, average_over_data
from rebapl.reports.tables import Cell, Table, mark_column
from rebapl.reproduce.paper import AVERAGE, paper, printed, quote_section
from rebapl.reproduce.suites import PAPER, Choice, Suite
from rebapl.runs.config import RunConfig
from rebapl.runs.folder import run_folder
from rebapl.runs.results import RunResult, read_result

PARTS = ("base", "novel", "hm")
ORIENTATION = "paper: its average over 11 data sets with CLIP ViT-B/16, to look at, not to compare with."
HM_NOTE = {
    HM_CONVENTIONS[0]: "HM over data sets: of the two averages (--hm average gives the average of the data sets' HMs).",
    HM_CONVENTIONS[1]: "HM over data sets: the average of the data sets' HMs (--hm of-averages gives that of the "
    "averages). The paper's own average is of the averages unless a footnote says otherwise.",
}

Scores = Mapping[str, float | None]
"""Scores of the run of one seed, by name. None was not measured."""

Collected = Mapping[str, Mapping[str, Sequence[Scores]]]
"""Row of a table → section (a data set or the average) → the scores of each seed."""


@dataclass(frozen=True)
class Context:
    """What a target is made with: the suite, the folder of runs, the data root, the devices, the HM convention."""

    suite: Suite
    runs: Path
    root: Path | None = None
    devices: Sequence[str] | None = None
    hm: str = HM_CONVENTIONS[0]

    @property
    def device(self) -> str | None:
        """The first of the devices. None stands for the GPU if there is one, and the CPU if not."""
        return self.devices[0] if self.devices else None

    def result(self, config: RunConfig) -> RunResult:
        """The stored result of a finished run."""
        return read_result(run_folder(config, self.runs))


@dataclass(frozen=True)
class Product:
    """What a target makes: tables and figures by file name, and whatever else is worth storing as JSON.

    `opposite` has a sentence for each result that points the other way than the paper's.
    """

    tables: Mapping[str, Table] = field(default_factory=dict)
    figures: Mapping[str, Figure] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    opposite: Sequence[str] = ()


@dataclass(frozen=True)
class MeasuredTarget:
    """A target that trains nothing."""

    name: str
    what: str
    make: Callable[[Context], Product]

    def runs(self, suite: Suite) -> list[RunConfig]:  # noqa: ARG002
        """None."""
        return []


@dataclass(frozen=True)
class ScoreColumn:
    """A score that a table shows: its name among the collected scores and in `paper.json`, its heading, its digits.

    `best`: more is better, so that the largest number of each section is bold and gains are green.
    """

    name: str
    title: str
    digits: int = 2
    best: bool = False


BASE_NOVEL = tuple(
    ScoreColumn(name, title, best=True) for name, title in zip(PARTS, ("base", "novel", "HM"), strict=True)
)


@dataclass(frozen=True)
class TableLine:
    """A row of a table: the choice that is run (None if the table is measured), and the words in front of its numbers.

    * `row`: the name of the row here and in `paper.json`, if it is not the label of the choice.
    * `over`: the row that a row Δ below this one is the difference from, between runs of the same seed.
    * `name`: what a sentence calls the row, if not by its words.
    """

    choice: Choice | None = None
    words: tuple[str, ...] = ()
    row: str = ""
    over: str = ""
    name: str = ""

    @property
    def key(self) -> str:
        """The name of the row."""
        return self.row if self.row or self.choice is None else self.choice.label

    @property
    def shown(self) -> tuple[str, ...]:
        """The words in front of the numbers; without words, the name as the paper prints it."""
        return self.words or (printed(self.key),)


@dataclass(frozen=True)
class Claim:
    """A difference between two rows, `more` minus `less`, that should have the sign that it has in the paper.

    `theirs` are the two rows of the paper, if they have other names. Where the paper has no numbers, it `says` in words
    that the difference is above zero.
    """

    more: str
    less: str
    score: str = "hm"
    theirs: tuple[str, str] | None = None
    says: str = ""


def base_novel(context: Context, config: RunConfig, line: TableLine) -> dict[str, Scores]:  # noqa: ARG001
    """The base-to-novel scores of a run, in the section of its data set."""
    return {config.data: context.result(config).base_novel}


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper. `rows` gives its rows for a suite; everything else has a value that suits most tables.

    * `what`: a line for `--list`. `words`: the headings of the columns in front of the numbers.
    * `read`: from a finished run, for a row, the scores by section.
    * `measure`: instead of runs, for a table that trains nothing: several measurements of the scores of each row.
    * `orientation`: the paper's numbers are shown also where ours are of other data sets, but no differences.
    * `merged`: how many of the first columns leave out words that repeat those above.
    * `notes`, `claims`, `figure`: further remarks, differences whose sign is compared with the paper's, a figure.
    """

    name: str
    what: str
    title: str
    words: tuple[str, ...]
    rows: Callable[[Suite], Sequence[TableLine]]
    scores: Sequence[ScoreColumn] = BASE_NOVEL
    protocol: str = "base-to-novel"
    read: Callable[[Context, RunConfig, TableLine], Mapping[str, Scores]] = base_novel
    measure: Callable[[Context], Mapping[str, Sequence[Scores]]] | None = None
    orientation: bool = False
    merged: int = 0
    notes: Callable[[FilledTable], Sequence[str]] = lambda _: ()
    claims: Callable[[Sequence[str]], Sequence[Claim]] = lambda _: ()
    figure: Callable[[FilledTable], Figure] | None = None

    def data(self, suite: Suite) -> tuple[str, ...]:
        """The data sets that its runs are trained on."""
        return suite.trained_on(self.name, self.protocol)

    def runs(self, suite: Suite) -> list[RunConfig]:
        """The run of every choice on every data set with every seed."""
        choices = {line.choice.label: line.choice for line in self.rows(suite) if line.choice is not None}
        return [
            suite.config(data, choice, seed, self.protocol)
            for data in (self.data(suite) if choices else ())
            for choice in choices.values()
            for seed in suite.seeds_of(choice, self.name)
        ]

    def make(self, context: Context) -> Product:
        """The table and its figure from finished runs."""
        filled = FilledTable(self, context)
        figures = {} if self.figure is None else {self.name: self.figure(filled)}
        data = {"scores": filled.collected, "hm": context.hm}
        return Product({self.name: filled.table()}, figures, data, filled.opposite())


Target = PaperTable | MeasuredTarget
"""A table or figure of the paper: `runs` lists the runs that `make` needs finished."""


def collect(table: PaperTable, context: Context) -> Collected:
    """The collector: the scores of every row of a table in every section, for each seed or measurement."""
    if table.measure is not None:
        return {row: {"": scores} for row, scores in table.measure(context).items()}
    suite, data = context.suite, table.data(context.suite)
    collected = {}
    for line in table.rows(suite):
        assert line.choice is not None, "a table without choices is measured"
        per_seed = []
        for seed in suite.seeds_of(line.choice, table.name):
            sections: dict[str, Scores] = {}
            for name in data:
                sections |= table.read(context, suite.config(name, line.choice, seed, table.protocol), line)
            if len(data) > 1 or table.orientation:
                average: Any = average_over_data(list(sections.values()), context.hm)  # type: ignore[arg-type]
                sections = {AVERAGE: average, **sections}
            per_seed.append(sections)
        collected[line.key] = {section: [sections[section] for sections in per_seed] for section in per_seed[0]}
    return collected


class FilledTable:
    """The renderer: the collected scores of a table as cells, beside the paper's."""

    def __init__(self, table: PaperTable, context: Context) -> None:
        self.of, self.context, self.suite = table, context, context.suite
        self.lines = table.rows(context.suite)
        self.collected = collect(table, context)
        self.sections = list(next(iter(self.collected.values())))
        self.data = table.data(context.suite)
        self.seeds = context.suite.seeds_by_target.get(table.name, context.suite.seeds)

    @property
    def summary(self) -> str:
        """The section that speaks for the whole table: the average, or the one data set."""
        return AVERAGE if AVERAGE in self.sections else self.sections[0]

    @cached_property
    def compared(self) -> bool:
        """Whether the paper's numbers are of these data sets, so that differences make sense."""
        by_data = any(isinstance(row, dict) for row in self._paper["rows"].values())
        same = by_data or self.of.measure is not None or set(self.data) == set(self.of.data(PAPER))
        return self.suite.compared and same

    @property
    def _paper(self) -> Mapping[str, Any]:
        """The paper's table; an empty one if it has none."""
        return paper()["tables"].get(self.of.name, {"rows": {}, "columns": []})

    def cell(self, row: str, score: str, section: str | None = None) -> Cell:
        """Ours: the mean and the standard deviation over seeds."""
        return Cell.over(self._per_seed(row, score, section), self._column(score).digits)

    def gain(self, row: str, over: str, score: str, section: str | None = None) -> Cell:
        """The mean and the standard deviation of the differences between two rows, of runs with the same seed."""
        pairs = zip(self._per_seed(row, score, section), self._per_seed(over, score, section), strict=True)
        column = self._column(score)
        return replace(Cell.over([one - other for one, other in pairs], column.digits), signed=column.best)

    def _per_seed(self, row: str, score: str, section: str | None) -> list[float]:
        scores = [seed[score] for seed in self.collected[row][section or self.summary]]
        return [value for value in scores if value is not None]

    def _column(self, score: str) -> ScoreColumn:
        return next(column for column in self.of.scores if column.name == score)

    def theirs(self, row: str, score: str, section: str = AVERAGE) -> Cell:
        """The paper's number beside it. A data set that only we train a transfer on has none."""
        targets = self.suite.targets(self.of.protocol)
        if targets and section == self.suite.source and section != SOURCE:
            return Cell(None)
        return quote_section(self.of.name, row, score, section, targets or self.data, self.context.hm)

    def table(self) -> Table:
        """The table: a section for each data set with the best numbers bold, and Δ rows below rows of ReBaPL."""
        by_section = len(self.sections) > 1
        words = [*(["data set"] if by_section else []), *self.of.words]
        columns, groups = list(words), [("", len(words))]
        for score in self.of.scores:
            names = ["ours", "paper", "diff."][: self._width(score)]
            columns += names if len(names) > 1 else [score.title]
            groups.append((score.title if len(names) > 1 else "", len(names)))
        keys = [line.key for line in self.lines]
        rows: list[list[Cell | str]] = []
        for section in self.sections:
            front: list[Cell | str] = [printed(section)] if by_section else []
            block = [[*front, *line.shown, *self._numbers(line, section)] for line in self.lines]
            self._mark(block, len(words))
            for line, row in zip(self.lines, block, strict=True):
                rows.append(row)
                if line.over in keys:
                    rows.append([*front, "Δ", *self._numbers(line, section, line.over)])
        merged = 1 if by_section else self.of.merged
        changes = [number for number in range(1, len(rows)) if rows[number][:merged] != rows[number - 1][:merged]]
        data = printed(self.data[0]) if len(self.data) == 1 else f"{len(self.data)} data sets"
        title = self.of.title.format(data=data)
        return Table(title, columns, rows, self._notes(), groups, [*changes, len(rows)], merged)

    def _width(self, score: ScoreColumn) -> int:
        """Of the columns ours, paper and difference, how many a score has."""
        if score.name not in self._paper["columns"]:
            return 1
        return 3 if self.compared else 2 if self.of.orientation else 1

    def shows_paper(self, score: ScoreColumn) -> bool:
        """Whether the paper's numbers of a score stand beside ours."""
        return self._width(score) > 1

    def _numbers(self, line: TableLine, section: str, over: str = "") -> list[Cell]:
        """The cells of a row, or of the row Δ that says how far it is above another."""
        numbers = []
        for score in self.of.scores:
            ours = self.cell(line.key, score.name, section)
            of_paper = section if len(self.sections) > 1 else AVERAGE
            theirs = self.theirs(line.key, score.name, of_paper)
            if over:
                ours = self.gain(line.key, over, score.name, section)
                theirs = theirs.minus(self.theirs(over, score.name, of_paper))
            numbers += [ours, theirs, ours.minus(theirs)][: self._width(score)]
        return numbers

    def _mark(self, block: list[list[Cell | str]], first: int) -> None:
        for score in self.of.scores:
            if score.best:
                mark_column(block, first)
            first += self._width(score)

    def _notes(self) -> list[str]:
        notes = list(self.of.notes(self))
        if AVERAGE in self.sections and any(score.name == "hm" for score in self.of.scores):
            notes.append(HM_NOTE[self.context.hm])
        if self.of.measure is None:
            notes.append(seeds_note(self.seeds, [line.choice for line in self.lines if line.choice is not None]))
        if AVERAGE in self.sections and self.of.orientation and not self.compared:
            notes.append(ORIENTATION)
        shown = any(self.shows_paper(score) for score in self.of.scores)
        return [note for note in (self.suite.remark, *notes, *(self._paper.get("notes", []) if shown else [])) if note]

    def opposite(self) -> list[str]:
        """A sentence for each claim of the table whose difference has the other sign than the paper's, as shown."""
        names = {line.key: line.name or ", ".join(line.shown) for line in self.lines}
        gains = [
            Claim(line.key, line.over, score.name)
            for score in self.of.scores
            for line in self.lines
            if line.over in names
        ]
        average = "average " if self.summary == AVERAGE else ""
        sentences = []
        for claim in (*gains, *self.of.claims(list(names))):
            what = f"{names[claim.more]} minus {names[claim.less]}, {average}{self._column(claim.score).title}"
            ours = self.cell(claim.more, claim.score).minus(self.cell(claim.less, claim.score))
            if claim.says:
                sentences += [f"{what}: {ours} here; in the paper it is {claim.says}."] if ours.sign < 0 else []
                continue
            more, less = (self.theirs(row, claim.score) for row in claim.theirs or (claim.more, claim.less))
            theirs = more.minus(less)
            sentences += [f"{what}: {ours} here, {theirs} in the paper."] if ours.sign * theirs.sign < 0 else []
        return sentences


def seeds_note(seeds: Sequence[int], choices: Sequence[Choice] = ()) -> str:
    """The remark that says which seeds a table is of, and which rows have no randomness."""
    if len(seeds) == 1:
        return f"Seed {seeds[0]} alone."
    fixed = [printed(choice.label) for choice in choices if not choice.learns]
    once = f" Nothing is random in {', '.join(fixed)}: one run." if fixed else ""
    return f"Mean ± standard deviation of seeds {', '.join(map(str, seeds))}.{once}"
