"""Tables of scores: of the runs in a folder with means over seeds, of one run, and of one on corrupted images; and one
long list."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain, groupby
from typing import Any

from rebapl.data.task import TARGETS
from rebapl.evaluation.scores import HM_CONVENTIONS, average_over_data
from rebapl.reports.tables import Cell, Row, Table, score_cells
from rebapl.runs.config import data_name, first_difference
from rebapl.runs.folder import Found, Run
from rebapl.runs.results import RunResult, Scores
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
COLUMNS = {
    "images": "images",
    "base": "base ↑",
    "novel": "novel ↑",
    "hm": "HM ↑",
    "accuracy": "accuracy ↑",
    "nll": "NLL ↓",
    "ece": "ECE ↓",
    "brier": "Brier ↓",
    "aurc": "AURC ↓",
    "tempered_nll": "NLL at τ ↓",
    "tempered_ece": "ECE at τ ↓",
}
"""The names that scores have as columns of a table. An arrow says whether more or less is better."""

BASE_NOVEL = ("base", "novel", "hm", "nll", "ece")
DOUBT = ("nll", "ece", "aurc")
"""The scores beside the accuracy on all classes and on targets."""

CORRUPTED = {"accuracy": 1, "nll": 3, "ece": 1, "aurc": 1}
"""The scores on corrupted images that are averaged over severities, and their digits."""

_HALVED = ("base-to-novel", "selection")
Read = Callable[["Group", Run], float | None]


def result_tables(found: Found, hm: str = HM_CONVENTIONS[0]) -> list[Table]:
    """A table per protocol, with means and standard deviations over seeds, and the best of each data set in bold.

    `hm` is the convention of the harmonic mean over data sets, one of `HM_CONVENTIONS`.
    """
    by_protocol = {protocol: grouped(run for run in found.runs if protocol in run.protocols) for protocol in TITLES}
    return [_protocol_table(protocol, groups, hm) for protocol, groups in by_protocol.items() if groups]


def long_list(runs: Sequence[Run]) -> str:
    """Every score of every run as CSV, unrounded: a line per run, protocol, part and sample (`all`: all samples)."""
    words = ("data", "method", "inference", "shots", "seed", "backbone")
    numbers = (*SCORES, "training_seconds")
    rows: list[Row] = []
    for run in runs:
        about = {**run.config, "inference": run.resolved["inference"]["name"]}
        asked = ["" if about.get(word) is None else str(about[word]) for word in words]
        for part, scores in run.result.parts.items():
            of_part = {"images": scores.images, "training_seconds": run.result.seconds.training}
            for protocol in [name for name, parts in run.protocols.items() if part in parts] or [""]:
                front = [run.folder.name, protocol, *asked, ", ".join(chosen_settings(run)), part]
                for sample, each in [("all", scores), *enumerate(scores.per_sample, 1)]:
                    cells = score_cells({**dict(each), **of_part}, dict.fromkeys(numbers, 0))
                    rows.append([*front, str(sample), *cells])
    return Table("", ["run", "protocol", *words, "settings", "part", "sample", *numbers], rows).to_csv()


def asked_settings(config: Mapping[str, Any]) -> list[str]:
    """The settings of a run that its user chose, beyond data, method, inference, shots, seed and backbone."""
    words = [f"{key}={config[key]}" for key in ("epochs", "split", "template", "fold") if config.get(key) is not None]
    for section in ("method", "inference"):
        words += [f"{key}={short_value(value)}" for key, value in leaves(config.get(f"{section}_settings") or {})]
    if config.get("test_images") is not None:
        words.append(f"{config['test_images']} test images")
    return words


def chosen_settings(run: Run) -> list[str]:
    """The settings that the user of a finished run chose, those of its scoring included."""
    return [*asked_settings(run.config), *_scored_with(run)]


def short_value(value: Any) -> str:
    """The value of a setting in few characters.

    >>> short_value(0.1 + 0.2), short_value(None), short_value("warm")
    ('0.3', 'none', 'warm')
    """
    return f"{value:g}" if isinstance(value, float) else "none" if value is None else str(value)


@dataclasses.dataclass(frozen=True)
class Group:
    """Runs that differ only in their seed. `apart` is a setting that tells them from others of the same words."""

    runs: Sequence[Run]
    apart: str = ""

    @property
    def data(self) -> str:
        return data_name(self.runs[0].config["data"])

    @cached_property
    def words(self) -> tuple[str, ...]:
        """Method, inference, shots, backbone, and every other setting that the user chose."""
        config, resolved = self.runs[0].config, self.runs[0].resolved
        backbone = str(resolved["backbone"]).partition(":")[0]
        shots, chosen = number_of(config["shots"], "shot"), chosen_settings(self.runs[0])
        apart = [self.apart] if self.apart else []
        return config["method"], resolved["inference"]["name"], shots, backbone, *chosen, *apart

    @property
    def seeds(self) -> list[int]:
        return [run.config["seed"] for run in self.runs]

    def over(self, read: Read, digits: int = 2) -> Cell:
        values = [read(self, run) for run in self.runs]
        return Cell.over([value for value in values if value is not None], digits)


def ranges(seeds: Sequence[int]) -> str:
    """Seeds in few characters, with a dash for three or more that follow each other.

    >>> ranges([1, 2, 5, 6, 7, 9])
    '1, 2, 5–7, 9'
    """
    in_order = groupby(enumerate(sorted(seeds)), lambda pair: pair[1] - pair[0])
    runs = ([seed for _, seed in each] for _, each in in_order)
    return ", ".join(f"{run[0]}–{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)


def grouped(runs: Iterable[Run]) -> list[Group]:
    """The runs grouped over seeds and ordered by data set; a second run of the same seed is in a group of its own.

    Where two groups have the same words, the second has one more: the first setting in which they differ, or its name.
    """
    by_rest: dict[tuple[str, int], list[Run]] = {}
    copies: Counter[str] = Counter()
    for run in runs:
        same = json.dumps([run.resolved, run.config["seed"], _scored_with(run)], sort_keys=True)
        rest = json.dumps([{**run.resolved, "seed": None}, _scored_with(run)], sort_keys=True)
        by_rest.setdefault((rest, copies[same]), []).append(run)
        copies[same] += 1
    groups = [Group(sorted(each, key=lambda run: run.config["seed"])) for each in by_rest.values()]
    seen: dict[tuple[str, ...], Group] = {}
    for index, group in enumerate(groups):
        twin = seen.setdefault((group.data, *group.words), group)
        if twin is not group:
            theirs, own = ({**each.runs[0].resolved, "seed": 0} for each in (twin, group))
            name, _, ours = first_difference(theirs, own) or ("run", "", group.runs[0].folder.name)
            groups[index] = dataclasses.replace(group, apart=f"{name}={short_value(ours)}")
    return sorted(groups, key=lambda group: group.data)


def _scored_with(run: Run) -> list[str]:
    """What changed the scores after the training: NAME=FILE for each target that was scored on another split file than
    its own, and what changed the answers."""
    words = [f"{name}={part.split}" for name, part in run.result.parts.items() if part.split]
    return words + run.result.changed_answers(run.resolved["inference"].get("views", 1))


def _protocol_table(protocol: str, groups: Sequence[Group], hm: str) -> Table:
    """The table of one protocol: a row for each group, and averages where there are several data sets."""
    words = GroupWords(groups)
    columns, notes = _columns(protocol, groups), words.notes()
    columns["train s"] = lambda _, run: run.result.seconds.training
    rows: list[list[Cell | str]] = []
    for group in groups:
        cells = (group.over(read, {"NLL ↓": 3, "train s": 0}.get(name, 2)) for name, read in columns.items())
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


def _columns(protocol: str, groups: Sequence[Group]) -> dict[str, Read]:
    """The scores of a protocol by the names of their columns, and how each is read from a run."""
    if protocol in _HALVED:
        return {COLUMNS[name]: _base_novel(name) for name in BASE_NOVEL}
    parts = dict.fromkeys(part for group in groups for run in group.runs for part in run.protocols[protocol])
    targets = [part for part in parts if part != "test"]
    if not targets:
        return {COLUMNS[name]: _score("test", name) for name in ("accuracy", *DOUBT)}

    def average(score: str) -> Read:
        """The average over the targets of the run's group; None where the run lacks one of them."""

        def read(group: Group, run: Run) -> float | None:
            wanted = {*chain(*(each.protocols[protocol] for each in group.runs))} - {"test"}
            values = [getattr(part, score) for name, part in run.result.parts.items() if name in wanted]
            return statistics.fmean(values) if len(values) == len(wanted) and None not in values else None

        return read

    return {
        "source ↑": _score("test"),
        **{f"{each} ↑": _score(each) for each in targets},
        "average ↑": average("accuracy"),
        **{COLUMNS[name]: average(name) for name in DOUBT},
    }


def _averages(groups: Sequence[Group], words: GroupWords, hm: str) -> list[list[Cell | str]]:
    """A row of averages for each method and settings that every data set has, over the seeds that every one has."""
    datasets = {group.data for group in groups}
    by_words: dict[tuple[str, ...], list[Group]] = {}
    for group in groups:
        by_words.setdefault(group.words, []).append(group)
    rows: list[list[Cell | str]] = []
    for each in by_words.values():
        if len(datasets) < 2 or sorted(group.data for group in each) != sorted(datasets):
            continue
        by_seed = [{run.config["seed"]: run.result.base_novel for run in group.runs} for group in each]
        seeds = [seed for seed in by_seed[0] if all(seed in scores for scores in by_seed)]
        if seeds:
            averages = [average_over_data([scores[seed] for scores in by_seed], hm) for seed in seeds]
            known = {name: [value for row in averages if (value := row[name]) is not None] for name in BASE_NOVEL}
            cells = (Cell.over(values, 3 if name == "nll" else 2) for name, values in known.items())
            rows.append(["average", *words.cells(each[0]), *cells, Cell(None, digits=0), ranges(seeds)])
    return rows


class GroupWords:
    """How the words of some groups are shown: method and inference as columns, the others in a third column where
    groups differ in them, and in a note where they do not."""

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
        """A name that tells a group apart from the others: method, inference, and what not all groups have."""
        method, how = group.words[:2]
        data = group.data if len({each.data for each in self.groups}) > 1 else ""
        more = ", ".join(filter(None, (data, self.rest(group))))
        return f"{method}{'' if how == 'none' else f' · {how}'}{f' ({more})' if more else ''}"

    def notes(self) -> list[str]:
        """The words that all groups have in common, and what the numbers are."""
        several = any(len(group.runs) > 1 for group in self.groups)
        return [", ".join(self.common), *(["mean ± standard deviation over seeds"] if several else [])]


def _base_novel(name: str) -> Read:
    return lambda _, run: run.result.base_novel[name]


def _score(part: str, name: str = "accuracy") -> Read:
    return lambda _, run: getattr(run.result.parts.get(part), name, None)


def scores_table(result: RunResult, title: str) -> Table:
    """The scores of one run, a row per test part.

    The harmonic mean of base and novel, or the average over the targets of a transfer, stands below the table.
    """
    digits = {"accuracy": 2, "nll": 4, "ece": 2, "aurc": 2, "images": 0}
    columns = ["classes", *(COLUMNS[name] for name in digits)]
    rows: list[Row] = [[name, *score_cells(dict(part), digits)] for name, part in result.parts.items()]
    notes = []
    if result.has_base_novel:
        notes = [f"harmonic mean {result.base_novel['hm']:.2f}"]
    targets = {protocol: [name for name in names if name != "test"] for protocol, names in result.protocols.items()}
    for protocol, names in targets.items():
        if protocol in TARGETS and names:
            mean = statistics.fmean(result.parts[name].accuracy for name in names)
            notes.append(f"average accuracy over the targets of {protocol} {mean:.2f}")
    return Table(title, columns, rows, notes)


def corruption_table(result: RunResult) -> Table:
    """A row for each corruption: its accuracy at each severity, and the means of the scores over the severities.

    The last row has the means over the corruptions. They are plain means: unlike the mCE of ImageNet-C, they are not
    divided by the errors of a reference network.
    """
    from rebapl.data.corruptions import CORRUPTIONS, SEVERITIES  # late: few runs have any

    found = {name: [result.corruptions[name]] for name in CORRUPTIONS if name in result.corruptions}
    rules = [len(found)] if len(found) > 1 else []
    if len(found) > 1:
        found["mean"] = [by_severity for (by_severity,) in found.values()]
    rows: list[Row] = [[name, *_means(corruptions, SEVERITIES)] for name, corruptions in found.items()]
    columns = ["corruption", *(f"@{severity}" for severity in SEVERITIES), *(COLUMNS[name] for name in CORRUPTED)]
    notes = ["@1 to @5 are the accuracy at each severity; the other columns are means over the severities"]
    return Table("Corrupted test images", columns, rows, notes, rules=rules)


def _means(corruptions: Sequence[Mapping[str, Scores]], severities: Iterable[int]) -> list[Cell]:
    """The numbers of a row, averaged over some corruptions, each of which weighs the same."""
    row = []
    for severity in map(str, severities):
        known = [by[severity].accuracy for by in corruptions if severity in by]
        row.append(Cell(statistics.fmean(known) if known else None, digits=1))
    for name, digits in CORRUPTED.items():
        means = [statistics.fmean(getattr(each, name) for each in by.values()) for by in corruptions]
        row.append(Cell(statistics.fmean(means), digits=digits))
    return row
