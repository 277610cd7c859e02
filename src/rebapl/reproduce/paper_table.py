"""A table of the paper as data (`PaperTable`): its rows, its columns, and where their numbers come from.

`FilledTable` collects the scores of stored runs and shows them next to the paper's numbers. A target whose numbers
come from something else than runs is a `MeasuredTarget`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from rebapl.data.task import SOURCE
from rebapl.errors import UserError
from rebapl.evaluation.scores import HM_CONVENTIONS, average_over_data
from rebapl.files import read_json, write_json
from rebapl.posterior import Posterior, load_posterior
from rebapl.reports.tables import Cell, Table, mark_column
from rebapl.reproduce.paper import AVERAGE, paper_table, printed, quote_section
from rebapl.reproduce.suites import PAPER, Suite, TableRow, learns
from rebapl.runs.config import RunConfig
from rebapl.runs.folder import run_folder
from rebapl.runs.machine import best_device, kept_backbone
from rebapl.runs.results import RunResult, read_result
from rebapl.score_columns import ScoreColumn, columns

PARTS = ("base", "novel", "hm")
ORIENTATION = "paper: its average over 11 data sets with CLIP ViT-B/16, to look at, not to compare with."
HM_NOTE = {
    HM_CONVENTIONS[0]: "HM over data sets: of the two averages (--hm average gives the average of the data sets' HMs).",
    HM_CONVENTIONS[1]: "HM over data sets: the average of the data sets' HMs (--hm of-averages gives that of the "
    "averages). The paper's own average is of the averages unless a footnote says otherwise.",
}

Scores = Mapping[str, float | None]
"""The scores of one run by name. None stands for a score that was not measured."""

Collected = Mapping[str, Mapping[str, Sequence[Scores]]]
"""Label of a row → section (a data set or the average) → the scores of each seed."""


@dataclass(frozen=True)
class Context:
    """Everything that a target is made with.

    `runs` is the folder of the runs, `root` that of the data sets, and `hm` the convention of the harmonic mean.
    """

    suite: Suite
    runs: Path
    root: Path | None = None
    devices: Sequence[str] | None = None
    hm: str = HM_CONVENTIONS[0]

    @property
    def device(self) -> str:
        """The first of `devices`. Without any, it is the GPU, or the CPU if there is no GPU."""
        return best_device(self.devices[0] if self.devices else None)

    def result(self, config: RunConfig) -> RunResult:
        """The stored result of a finished run. A run whose answers were changed after its training is refused."""
        folder = run_folder(config, self.runs)
        result = read_result(folder)
        if changed := result.changed_answers(config.resolved().training.views):
            raise UserError(
                f"{folder} no longer answers as it was trained ({', '.join(changed)}): undo that by `rebapl evaluate` "
                "with --uniform-weights, --no-temperature or --views, or choose another --runs"
            )
        return result

    def posterior(self, config: RunConfig) -> Posterior:
        """The stored posterior of a finished run."""
        backbone = kept_backbone(config.backbone_name, self.device)
        return load_posterior(run_folder(config, self.runs), backbone, self.device)

    def stored(self, config: RunConfig, name: str, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The result of `compute` for a finished run. It is computed once and kept as `name` in the run's folder."""
        path = run_folder(config, self.runs) / name
        if not path.exists():
            write_json(path, compute())
        return read_json(path, "a run")


@dataclass(frozen=True)
class Product:
    """The output of a target: a table, figures by file name, and further `data`, which is stored as JSON.

    `opposite` has a sentence for each difference whose sign is opposite to that in the paper.
    """

    table: Table
    figures: Mapping[str, Figure] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    opposite: Sequence[str] = ()


@dataclass(frozen=True)
class MeasuredTarget:
    """A target that needs no runs. `what` describes it in a line, and `make` computes its output."""

    name: str
    what: str
    make: Callable[[Context], Product]

    def runs(self, suite: Suite) -> list[RunConfig]:  # noqa: ARG002
        """An empty list, because this target needs no runs."""
        return []


@dataclass(frozen=True)
class Claim:
    """A difference between two rows, `more` minus `less`, whose sign is compared with that in the paper.

    `theirs` are the labels of the two rows in the paper, if they differ from ours. If the paper has no numbers but only
    a statement that the difference is above zero, `says` has that statement.
    """

    more: str
    less: str
    score: str = "hm"
    theirs: tuple[str, str] | None = None
    says: str = ""


def base_novel(context: Context, config: RunConfig, row: TableRow) -> dict[str, Scores]:  # noqa: ARG001
    """The base-to-novel scores of a run, in the section of its data set."""
    return {config.data: context.result(config).base_novel}


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper.

    * `what`: its line in `--list`. `words`: the headings of the columns in front of the numbers.
    * `rows`: a function that gives the rows for a suite.
    * `scores`: the scores that it shows, by their names in the collected scores and in `paper.json`. Where higher is
      better, the highest of each section is bold, and gains are green.
    * `read`: a function that reads the scores of a row, by section, from a finished run.
    * `measure`: for a table without runs, a function that measures the scores of a row several times.
    * `orientation`: whether the paper's numbers are shown, without differences, even if ours are of other data sets.
    * `merged`: how many columns, from the first, leave out words that repeat those above.
    * `outside`: a function that names the outside images of a suite's data set, on which its runs are also scored.
      `corruptions`: the corruptions on which they are scored. See `RunConfig` for both.
    * `notes`, `claims`, `figure`: further remarks, differences whose sign is compared with the paper's, a figure.
    """

    name: str
    what: str
    title: str
    words: tuple[str, ...]
    rows: Callable[[Suite], Sequence[TableRow]]
    scores: Mapping[str, ScoreColumn] = field(default_factory=lambda: columns(*PARTS))
    protocol: str = "base-to-novel"
    read: Callable[[Context, RunConfig, TableRow], Mapping[str, Scores]] = base_novel
    measure: Callable[[Context, TableRow], Sequence[Scores]] | None = None
    orientation: bool = False
    merged: int = 0
    outside: Callable[[Suite, str], tuple[str, ...]] = lambda suite, data: ()  # noqa: ARG005
    corruptions: tuple[str, ...] = ()
    notes: Callable[[FilledTable], Sequence[str]] = lambda _: ()
    claims: Callable[[Sequence[str]], Sequence[Claim]] = lambda _: ()
    figure: Callable[[FilledTable], Figure] | None = None

    def data(self, suite: Suite) -> tuple[str, ...]:
        """The data sets on which its runs are trained."""
        return suite.trained_on(self.name, self.protocol)

    def runs(self, suite: Suite) -> list[RunConfig]:
        """The run of every row on every data set with every seed, each once."""
        if self.measure is not None:
            return []
        configs = (
            suite.config(data, row, seed, self.protocol).changed(
                outside=self.outside(suite, data), corruptions=self.corruptions
            )
            for data in self.data(suite)
            for row in self.rows(suite)
            for seed in suite.seeds_of(row, self.name)
        )
        return list({config.model_dump_json(): config for config in configs}.values())

    def make(self, context: Context) -> Product:
        """The table and its figure. All runs must be finished."""
        filled = FilledTable(self, context)
        figures = {} if self.figure is None else {self.name: self.figure(filled)}
        return Product(filled.table(), figures, {"scores": filled.collected, "hm": context.hm}, filled.opposite())


Target = PaperTable | MeasuredTarget
"""A table or figure of the paper. `runs` lists the runs that must be finished before `make` is called."""


class FilledTable:
    """A table of the paper together with the scores of its runs."""

    def __init__(self, table: PaperTable, context: Context) -> None:
        self.of, self.context, self.suite = table, context, context.suite
        self.rows, self.data = table.rows(self.suite), table.data(self.suite)
        self.seeds = self.suite.seeds_by_target.get(table.name, self.suite.seeds)
        self.collected = self._collect()
        self.sections = list(next(iter(self.collected.values())))
        self.summary = AVERAGE if AVERAGE in self.sections else self.sections[0]
        """The section that stands for the whole table: the average, or the only data set."""
        self.paper, self.targets = paper_table(table.name), self.suite.targets(table.protocol)
        self.compared = self.suite.compared and self._has_the_papers_data()
        """Whether the paper's numbers are of the same data sets, so that differences make sense."""
        width = 3 if self.compared else 2 if table.orientation else 1
        self.widths = {name: width if name in self.paper["columns"] else 1 for name in table.scores}
        """The number of columns of each score: 1 for ours, 2 with the paper's number, 3 with the difference."""

    def _collect(self) -> Collected:
        """The scores of every row in every section, for each seed or measurement."""
        table, context, suite = self.of, self.context, self.suite
        if table.measure is not None:
            return {row.label: {"": table.measure(context, row)} for row in self.rows}
        collected = {}
        for row in self.rows:
            per_seed = []
            for seed in suite.seeds_of(row, table.name):
                sections: dict[str, Scores] = {}
                for name in self.data:
                    sections |= table.read(context, suite.config(name, row, seed, table.protocol), row)
                if len(self.data) > 1 or table.orientation:
                    average = average_over_data(list(sections.values()), context.hm)
                    sections = {AVERAGE: average, **sections}
                per_seed.append(sections)
            collected[row.label] = {section: [sections[section] for sections in per_seed] for section in per_seed[0]}
        return collected

    def _has_the_papers_data(self) -> bool:
        """Whether the paper has numbers of the same data sets: by data set, of all of them together, or of none."""
        by_data = [row for row in self.paper["rows"].values() if isinstance(row, dict)]
        if by_data:
            return all(set(self.targets or self.data) <= row.keys() for row in by_data)
        return self.of.measure is not None or set(self.data) == set(self.of.data(PAPER))

    def first_run(self, row: TableRow) -> RunConfig:
        """The run of a row on the first data set, with the first seed."""
        return self.suite.config(self.data[0], row, self.seeds[0], self.of.protocol)

    def cell(self, row: str, score: str, section: str = "", over: str = "") -> Cell:
        """Our number: the mean and the standard deviation over seeds.

        With `over`, the label of another row, they are those of the difference between `row` and `over` with the same
        seed.
        """
        section, column = section or self.summary, self.of.scores[score]
        values = [scores[score] for scores in self.collected[row][section]]
        if not over:
            return Cell.over(values, column.digits)
        pairs = zip(values, (scores[score] for scores in self.collected[over][section]), strict=True)
        differences = [one - other for one, other in pairs if one is not None and other is not None]
        return replace(Cell.over(differences, column.digits), signed=column.better == "↑")

    def theirs(self, row: str, score: str, section: str = AVERAGE) -> Cell:
        """The paper's number. It has none for a source of transfers that is not the paper's."""
        if self.targets and section == self.suite.source and section != SOURCE:
            return Cell(None)
        return quote_section(self.of.name, row, score, section, self.targets or self.data, self.context.hm)

    def table(self) -> Table:
        """The table: a section for each data set with its best numbers bold, and a row Δ below each row of ReBaPL."""
        by_section = len(self.sections) > 1
        titles = [*(["data set"] if by_section else []), *self.of.words]
        groups, marked = [("", len(titles))], []
        for name, score in self.of.scores.items():
            width = self.widths[name]
            marked += [len(titles)] if score.better == "↑" else []
            titles += [score.title] if width == 1 else ["ours", "paper", "diff."][:width]
            groups.append(("" if width == 1 else score.title, width))
        rows: list[list[Cell | str]] = []
        for section in self.sections:
            front: list[Cell | str] = [printed(section)] if by_section else []
            block = [[*front, *row.shown, *self._numbers(row.label, section)] for row in self.rows]
            for column in marked:
                mark_column(block, column)
            for row, cells in zip(self.rows, block, strict=True):
                rows.append(cells)
                if row.over in self.collected:
                    rows.append([*front, "Δ", *self._numbers(row.label, section, row.over)])
        data = printed(self.data[0]) if len(self.data) == 1 else f"{len(self.data)} data sets"
        title, merged = self.of.title.format(data=data), 1 if by_section else self.of.merged
        return Table(title, titles, rows, self._notes(), groups, merged=merged)

    def _numbers(self, row: str, section: str, over: str = "") -> list[Cell]:
        """The cells of a row or, with `over`, those of the row Δ: the row minus the row `over`."""
        numbers = []
        for score, width in self.widths.items():
            ours = self.cell(row, score, section, over)
            of_paper = section if len(self.sections) > 1 else AVERAGE
            theirs = self.theirs(row, score, of_paper)
            if over:
                theirs = theirs.minus(self.theirs(over, score, of_paper))
            numbers += [ours, theirs, ours.minus(theirs)][:width]
        return numbers

    def _notes(self) -> list[str]:
        notes = [self.suite.remark, *self.of.notes(self)]
        if AVERAGE in self.sections and "hm" in self.widths:
            notes.append(HM_NOTE[self.context.hm])
        if self.of.measure is None and len(self.seeds) == 1:
            notes.append(f"Seed {self.seeds[0]} alone.")
        elif self.of.measure is None:
            fixed = ", ".join(printed(row.label) for row in self.rows if not learns(row.method))
            once = f" Nothing is random in {fixed}: one run." if fixed else ""
            notes.append(f"Mean ± standard deviation of seeds {', '.join(map(str, self.seeds))}.{once}")
        if AVERAGE in self.sections and self.of.orientation and not self.compared:
            notes.append(ORIENTATION)
        if max(self.widths.values()) > 1:
            notes += self.paper.get("notes", [])
        return [note for note in notes if note]

    def opposite(self) -> list[str]:
        """A sentence for each claim of the table whose difference, as shown, has the opposite sign in the paper.

        Claims are checked on the paper's data sets, and by a suite that stands for them, which compares no numbers.
        """
        if self.suite.compared and not self.compared:
            return []
        names = {row.label: row.name or ", ".join(row.shown) for row in self.rows}
        gains = [Claim(row.label, row.over, score) for score in self.widths for row in self.rows if row.over in names]
        average = "average " if self.summary == AVERAGE else ""
        sentences = []
        for claim in (*gains, *self.of.claims(list(names))):
            what = f"{names[claim.more]} minus {names[claim.less]}, {average}{self.of.scores[claim.score].title}"
            ours = self.cell(claim.more, claim.score).minus(self.cell(claim.less, claim.score))
            more, less = (self.theirs(row, claim.score) for row in claim.theirs or (claim.more, claim.less))
            theirs = more.minus(less)
            if claim.says and ours.sign < 0:
                sentences.append(f"{what}: {ours} here; in the paper it is {claim.says}.")
            elif ours.sign * theirs.sign < 0:
                sentences.append(f"{what}: {ours} here, {theirs} in the paper.")
        return sentences
