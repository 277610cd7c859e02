"""Tables of scores: of many runs with means over seeds, of one run, on outside and on corrupted images; a CSV list."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property, partial
from itertools import chain, groupby
from typing import Any

from rebapl.data.task import TARGETS
from rebapl.evaluation.scores import HM_CONVENTIONS, average_over_data
from rebapl.files import csv_text
from rebapl.numbers import mean
from rebapl.reports.tables import Cell, Row, Table, score_cells
from rebapl.runs.config import data_name, first_difference
from rebapl.runs.folder import Run
from rebapl.runs.results import RunResult, Scores
from rebapl.score_columns import SCORE_COLUMNS, headings
from rebapl.settings import leaves
from rebapl.wording import number_of

TITLES = {
    "base-to-novel": "base-to-novel, accuracy and ECE in %",
    "few-shot": "few-shot, all classes, accuracy, ECE and AURC in %",
    "cross-dataset": "cross-dataset, accuracy, ECE and AURC in %",
    "domain-generalization": "domain generalization, accuracy, ECE and AURC in %",
    "selection": "selection: base and novel within the base classes, validation images, accuracy and ECE in %",
}
SCORES = ("accuracy", "nll", "ece", "adaptive_ece", "brier", "aurc", "images")
BASE_NOVEL = ("base", "novel", "hm", "nll", "ece")
DOUBT = ("nll", "ece", "aurc")
"""The scores that the tables of the other protocols show after the accuracy."""

CORRUPTED = ("accuracy", *DOUBT)
"""The scores on corrupted images that are averaged over severities."""

SUMMARY = ("accuracy", *DOUBT, "images")
"""The scores of one run that `rebapl evaluate` prints."""

DETECTION = ("auroc", "fpr95", "aupr")
"""The scores that say how well outside images are recognised."""

_HALVED = ("base-to-novel", "selection")
"""The protocols that score two halves of the classes: base and novel ones."""

Read = Callable[["Group", Run], float | None]
"""A function that reads one score of a run of a group; None if the run does not have it."""


def result_tables(runs: Sequence[Run], hm: str = HM_CONVENTIONS[0]) -> list[Table]:
    """One table per protocol, with means and standard deviations over seeds. The best number of each data set is bold.

    `hm` is the convention of the harmonic mean over data sets, one of `HM_CONVENTIONS`.
    """
    by_protocol = {protocol: grouped(run for run in runs if protocol in run.result.protocols) for protocol in TITLES}
    return [_protocol_table(protocol, groups, hm) for protocol, groups in by_protocol.items() if groups]


def long_list(runs: Sequence[Run]) -> str:
    """Every score of every run as CSV, unrounded: a line per run, protocol, part and sample.

    The sample `all` stands for all samples together.
    """
    words = ("data", "method", "inference", "shots", "seed", "backbone")
    numbers = (*SCORES, "training_seconds")
    rows: list[list[Any]] = []
    for run in runs:
        backbone = run.config.get("backbone") or run.resolved["backbone"]
        settings = {**run.config, "inference": run.resolved["inference"]["name"], "backbone": backbone}
        for part, scores in run.result.parts.items():
            of_part = {"images": scores.images, "training_seconds": run.result.seconds.training}
            for protocol in [name for name, parts in run.result.protocols.items() if part in parts] or [""]:
                front = [run.folder.name, protocol, *(str(settings.get(word, "")) for word in words)]
                front += [", ".join(chosen_settings(run)), part]
                for sample, of_sample in [("all", scores), *enumerate(scores.per_sample, 1)]:
                    values = {**dict(of_sample), **of_part}
                    rows.append([*front, sample, *(values.get(name) for name in numbers)])
    return csv_text([["run", "protocol", *words, "settings", "part", "sample", *numbers], *rows])


def chosen_settings(run: Run) -> list[str]:
    """The settings that the user of a finished run chose, for its training and for its scoring.

    Data, method, inference, shots, seed and backbone are not among them.
    """
    config = run.config
    words = [f"{key}={config[key]}" for key in ("epochs", "split", "template", "fold") if config.get(key) is not None]
    for section in ("method", "inference"):
        words += [f"{key}={short_value(value)}" for key, value in leaves(config.get(f"{section}_settings") or {})]
    if config.get("test_images") is not None:
        words.append(f"{config['test_images']} test images")
    return [*words, *_scored_with(run)]


def short_value(value: Any) -> str:
    """The value of a setting in a few characters.

    >>> short_value(0.1 + 0.2), short_value(None), short_value("warm")
    ('0.3', 'none', 'warm')
    """
    return f"{value:g}" if isinstance(value, float) else "none" if value is None else str(value)


@dataclasses.dataclass(frozen=True)
class Group:
    """Runs that differ only in their seed. `apart` has settings that distinguish them from groups of the same words."""

    runs: Sequence[Run]
    apart: tuple[str, ...] = ()

    @property
    def data(self) -> str:
        return data_name(self.runs[0].config["data"])

    @cached_property
    def words(self) -> tuple[str, ...]:
        """Method, inference, shots, backbone, and every other setting that the user chose."""
        config, resolved = self.runs[0].config, self.runs[0].resolved
        backbone = str(resolved["backbone"]).partition(":")[0]
        shots, chosen = number_of(config["shots"], "shot"), chosen_settings(self.runs[0])
        return config["method"], resolved["inference"]["name"], shots, backbone, *chosen, *self.apart

    @property
    def seeds(self) -> list[int]:
        return [run.config["seed"] for run in self.runs]

    def over(self, read: Read, digits: int = 2) -> Cell:
        """The mean and the standard deviation of a score over those runs that have it."""
        return Cell.over((read(self, run) for run in self.runs), digits)


def ranges(seeds: Sequence[int]) -> str:
    """Seeds in a few characters, with a dash for three or more consecutive ones.

    >>> ranges([1, 2, 5, 6, 7, 9])
    '1, 2, 5–7, 9'
    """
    by_offset = groupby(enumerate(sorted(seeds)), lambda pair: pair[1] - pair[0])
    stretches = ([seed for _, seed in pairs] for _, pairs in by_offset)
    return ", ".join(
        f"{stretch[0]}–{stretch[-1]}" if len(stretch) > 2 else ", ".join(map(str, stretch)) for stretch in stretches
    )


def grouped(runs: Iterable[Run]) -> list[Group]:
    """The runs grouped over seeds and ordered by data set. A second run of the same seed is in a group of its own.

    A group whose words an earlier group has already gets one more word: the first setting in which the two differ, or
    the name of its folder if they differ in none.
    """
    by_settings: dict[tuple[str, int], list[Run]] = {}
    copies: Counter[tuple[str, int]] = Counter()
    for run in runs:
        settings = json.dumps([{**run.resolved, "seed": None}, _scored_with(run)], sort_keys=True)
        seed = run.config["seed"]
        by_settings.setdefault((settings, copies[settings, seed]), []).append(run)
        copies[settings, seed] += 1
    by_words: dict[tuple[str, ...], Group] = {}
    for alike in by_settings.values():
        group = Group(sorted(alike, key=lambda run: run.config["seed"]))
        while twin := by_words.get(words := (group.data, *group.words)):
            theirs, own = ({**each.runs[0].resolved, "seed": 0} for each in (twin, group))
            name, _, value = first_difference(theirs, own) or ("run", "", group.runs[0].folder.name)
            group = dataclasses.replace(group, apart=(*group.apart, f"{name}={short_value(value)}"))
        by_words[words] = group
    return sorted(by_words.values(), key=lambda group: group.data)


def _scored_with(run: Run) -> list[str]:
    """What sets the scores of a run apart from those of the same training, in words.

    These are NAME=FILE for each target that was scored on another split file than its own, and whatever changed the
    answers after the training.
    """
    words = [f"{name}={part.split}" for name, part in run.result.parts.items() if part.split]
    return words + run.result.changed_answers(run.resolved["inference"].get("views", 1))


def _protocol_table(protocol: str, groups: Sequence[Group], hm: str) -> Table:
    """The table of one protocol: a row for each group, and averages if there are several data sets."""
    words = GroupWords(groups)
    columns, notes = _columns(protocol, groups), words.notes()
    columns["train s"] = "training_seconds", lambda _, run: run.result.seconds.training
    rows: list[list[Cell | str]] = []
    for group in groups:
        cells = (group.over(read, SCORE_COLUMNS[score].digits) for score, read in columns.values())
        rows.append([group.data, *words.cells(group), *cells, ranges(group.seeds)])
    if protocol in _HALVED:
        notes.append("NLL and ECE are the means of base and novel")
        if averages := _averages(groups, words, hm):
            rows += averages
            how = "that of the two averages" if hm == HM_CONVENTIONS[0] else "the average of the data sets' own"
            notes.append(f"average over data sets: HM is {how} (--hm), the others are plain means")
    elif "average ↑" in columns:
        notes.append("the average, NLL, ECE and AURC are means over the row's targets, without the source")
    return Table.sectioned(TITLES[protocol], ["data", *words.columns, *columns, "seeds"], rows, notes)


def _columns(protocol: str, groups: Sequence[Group]) -> dict[str, tuple[str, Read]]:
    """The headings of the columns of a protocol, each with its score and the function that reads it from a run."""

    def of(read: Callable[[str], Read], *names: str) -> dict[str, tuple[str, Read]]:
        return {SCORE_COLUMNS[name].heading: (name, read(name)) for name in names}

    if protocol in _HALVED:
        return of(_base_novel, *BASE_NOVEL)
    parts = dict.fromkeys(part for group in groups for run in group.runs for part in run.result.protocols[protocol])
    targets = [part for part in parts if part != "test"]
    if not targets:
        return of(partial(_score, "test"), "accuracy", *DOUBT)

    def average(score: str) -> Read:
        """The average over the targets of the run's group; None where the run lacks one of them."""

        def read(group: Group, run: Run) -> float | None:
            wanted = {*chain(*(each.result.protocols[protocol] for each in group.runs))} - {"test"}
            return average_over_parts(run.result, wanted, score)

        return read

    accuracies = {"source": _score("test"), **{each: _score(each) for each in targets}, "average": average("accuracy")}
    return {**{f"{name} ↑": ("accuracy", read) for name, read in accuracies.items()}, **of(average, *DOUBT)}


def average_over_parts(result: RunResult, parts: Collection[str], score: str) -> float | None:
    """The mean of a score over these test parts of a run; None if one of them is missing or lacks the score."""
    return mean(getattr(result.parts.get(part), score, None) for part in parts)


def _averages(groups: Sequence[Group], words: GroupWords, hm: str) -> list[list[Cell | str]]:
    """A row of averages over data sets for each method whose settings all data sets have.

    Only the seeds that all data sets have are averaged.
    """
    datasets = sorted({group.data for group in groups})
    by_words: dict[tuple[str, ...], list[Group]] = {}
    for group in groups:
        by_words.setdefault(group.words, []).append(group)
    rows: list[list[Cell | str]] = []
    for per_data in by_words.values():
        if len(datasets) < 2 or [group.data for group in per_data] != datasets:
            continue
        by_seed = [
            {run.config["seed"]: run.result.base_novel for run in group.runs if run.result.has_base_novel}
            for group in per_data
        ]
        seeds = [seed for seed in by_seed[0] if all(seed in scores for scores in by_seed)]
        if seeds:
            averages = [average_over_data([scores[seed] for scores in by_seed], hm) for seed in seeds]
            cells = [Cell.over((row[name] for row in averages), SCORE_COLUMNS[name].digits) for name in BASE_NOVEL]
            rows.append(["average", *words.cells(per_data[0]), *cells, Cell(None, digits=0), ranges(seeds)])
    return rows


class GroupWords:
    """How a table shows the words of some groups.

    Method and inference are columns. The words in which groups differ stand in a third column, and those that all
    groups have in a note.
    """

    def __init__(self, groups: Sequence[Group]) -> None:
        self.groups = groups
        self.common = [word for word in groups[0].words[2:] if all(word in group.words[2:] for group in groups)]
        self.columns = ["method", "inference", *(["settings"] if any(map(self.rest, groups)) else [])]

    def rest(self, group: Group) -> str:
        """The words of a group that not all groups have."""
        return ", ".join(word for word in group.words[2:] if word not in self.common)

    def cells(self, group: Group) -> list[str]:
        return [*group.words[:2], self.rest(group)][: len(self.columns)]

    def name(self, group: Group) -> str:
        """A name that no other group has: method, inference, and the words that not all groups have."""
        method, inference = group.words[:2]
        data = group.data if len({each.data for each in self.groups}) > 1 else ""
        more = ", ".join(filter(None, (data, self.rest(group))))
        return f"{method}{'' if inference == 'none' else f' · {inference}'}{f' ({more})' if more else ''}"

    def notes(self) -> list[str]:
        """The words that all groups have in common, and the meaning of the ± in a cell."""
        several = any(len(group.runs) > 1 for group in self.groups)
        return [", ".join(self.common), *(["mean ± standard deviation over seeds"] if several else [])]


def _base_novel(name: str) -> Read:
    return lambda _, run: run.result.base_novel[name] if run.result.has_base_novel else None


def _score(part: str, name: str = "accuracy") -> Read:
    return lambda _, run: getattr(run.result.parts.get(part), name, None)


def scores_table(result: RunResult, title: str) -> Table:
    """The scores of one run, one row per test part.

    A note below the table gives the harmonic mean of base and novel, or the average over the targets of a transfer.
    """
    rows: list[Row] = [[name, *score_cells(dict(part), *SUMMARY)] for name, part in result.parts.items()]
    notes = []
    if result.has_base_novel:
        notes = [f"harmonic mean {result.base_novel['hm']:.2f}"]
    targets = {protocol: [name for name in names if name != "test"] for protocol, names in result.protocols.items()}
    for protocol, names in targets.items():
        if protocol in TARGETS and names:
            average = average_over_parts(result, names, "accuracy")
            notes.append(f"average accuracy over the targets of {protocol} {average:.2f}")
    return Table(title, ["classes", *headings(*SUMMARY)], rows, notes)


def outside_table(result: RunResult) -> Table:
    """How well each kind of uncertainty recognises outside images."""
    rows: list[Row] = [
        [name, uncertainty, *score_cells(detection, *DETECTION)]
        for name, by_uncertainty in result.outside.items()
        for uncertainty, detection in by_uncertainty.items()
    ]
    return Table("Outside images", ["outside images", "told apart by", *headings(*DETECTION)], rows, merged=1)


def corruption_table(result: RunResult) -> Table:
    """A row for each corruption: its accuracy at each severity, and the means of the scores over the severities.

    The last row has the means over the corruptions. They are plain means: unlike the mCE of ImageNet-C, they are not
    divided by the errors of a reference network.
    """
    from rebapl.data.corruptions import CORRUPTIONS, SEVERITIES  # imported here, because few runs have corruptions

    by_row = {name: [result.corruptions[name]] for name in CORRUPTIONS if name in result.corruptions}
    rules = [len(by_row)] if len(by_row) > 1 else []
    if len(by_row) > 1:
        by_row["mean"] = [by_severity for (by_severity,) in by_row.values()]
    rows: list[Row] = [[name, *_means(corruptions, SEVERITIES)] for name, corruptions in by_row.items()]
    columns = ["corruption", *(f"@{severity}" for severity in SEVERITIES), *headings(*CORRUPTED)]
    notes = ["@1 to @5 are the accuracy at each severity; the other columns are means over the severities"]
    return Table("Corrupted test images", columns, rows, notes, rules=rules)


def _means(corruptions: Sequence[Mapping[str, Scores]], severities: Iterable[int]) -> list[Cell]:
    """The cells of a row: averages over some corruptions (severity → scores), each with the same weight.

    A score that is missing at some severity is shown as a dash.
    """
    row: list[Cell] = []
    for severity in map(str, severities):
        known = (by_severity[severity].accuracy for by_severity in corruptions if severity in by_severity)
        row += score_cells({"accuracy": mean(known)}, "accuracy")
    means = {
        name: mean(mean(getattr(scores, name) for scores in by_severity.values()) for by_severity in corruptions)
        for name in CORRUPTED
    }
    return [*row, *score_cells(means, *CORRUPTED)]
