"""The scores of all runs in a folder: as tables with means over seeds, and as one long list."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from rebapl.evaluation.scores import HM_CONVENTIONS, average_over_data
from rebapl.posterior.prediction import WEIGHT_TOLERANCE
from rebapl.reports.tables import Cell, Table, mark_column
from rebapl.runs.config import data_name, first_difference
from rebapl.runs.folder import Found, Run, find_runs
from rebapl.wording import number_of

__all__ = [
    "Group",
    "asked_settings",
    "find_runs",
    "flat_settings",
    "grouped",
    "long_list",
    "result_tables",
    "short_value",
]

TITLES = {
    "base-to-novel": "base-to-novel, accuracy and ECE in %",
    "few-shot": "few-shot, all classes, accuracy and ECE in %",
    "cross-dataset": "cross-dataset, accuracy in %",
    "domain-generalization": "domain generalization, accuracy in %",
    "selection": "selection: base and novel within the base classes, validation images, accuracy and ECE in %",
}
SCORES = ("accuracy", "nll", "ece", "adaptive_ece", "brier", "aurc", "images")
_HALVED = ("base-to-novel", "selection")
_DIGITS = {"base": 2, "novel": 2, "hm": 2, "nll": 3, "ece": 2}


def result_tables(found: Found, hm: str = HM_CONVENTIONS[0]) -> list[Table]:
    """A table per protocol, with means and standard deviations over seeds, and the best of each data set in bold.

    `hm` is the convention of the harmonic mean over data sets, one of `HM_CONVENTIONS`.
    """
    tables = []
    for protocol, title in TITLES.items():
        groups = grouped(run for run in found.runs if protocol in run.protocols)
        if groups:
            tables.append(_halved(groups, title, hm) if protocol in _HALVED else _other(groups, protocol, title))
    return tables


def long_list(runs: Sequence[Run]) -> str:
    """Every score of every run as CSV, unrounded: a line per run, part and sample (`all`: all samples together)."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    words = ("data", "method", "inference", "shots", "seed", "backbone")
    writer.writerow(["run", "protocol", *words, "settings", "part", "sample", *SCORES, "training_seconds"])
    for run in runs:
        named = {**run.config, "inference": run.resolved["inference"]["name"]}
        head = [named.get(word) for word in words]
        seconds = _seconds(run)
        protocol = {part: name for name, parts in run.protocols.items() for part in parts}
        for part, scores in run.result.parts.items():
            lines = [("all", scores), *((str(n), each) for n, each in enumerate(scores.per_sample, 1))]
            for sample, each in lines:
                known = {"images": scores.images, **each.as_json()}
                numbers = [known.get(name, "") for name in SCORES]
                row = [
                    run.folder.name,
                    protocol.get(part, ""),
                    *head,
                    ", ".join([*asked_settings(run.config), *_scored_with(run)]),
                    part,
                    sample,
                ]
                writer.writerow([*row, *numbers, "" if seconds is None else seconds])
    return text.getvalue()


def asked_settings(config: Mapping[str, Any]) -> list[str]:
    """The settings of a run that its user chose, beyond data, method, inference, shots, seed and backbone."""
    words = [
        f"{key}={config[key]}"
        for key in ("epochs", "split", "template", "cache", "fold")
        if config.get(key) is not None
    ]
    for section in ("method", "inference"):
        words += [
            f"{key}={short_value(value)}"
            for key, value in flat_settings(config.get(f"{section}_settings") or {}).items()
        ]
    if config.get("test_images") is not None:
        words.append(f"{config['test_images']} test images")
    return words


def short_value(value: Any) -> str:
    """The value of a setting in few characters.

    >>> short_value(0.1 + 0.2), short_value(None), short_value("warm")
    ('0.3', 'none', 'warm')
    """
    return f"{value:g}" if isinstance(value, float) else "none" if value is None else str(value)


@dataclasses.dataclass(frozen=True)
class Group:
    """Runs that differ only in their seed."""

    runs: Sequence[Run]
    settings: Sequence[str]

    @property
    def data(self) -> str:
        return data_name(self.runs[0].config["data"])

    @property
    def words(self) -> tuple[str, ...]:
        """Method, inference, shots, backbone, and every other setting that the user chose."""
        config, resolved = self.runs[0].config, self.runs[0].resolved
        backbone = str(resolved["backbone"]).partition(":")[0]
        shots = number_of(config["shots"], "shot")
        return config["method"], resolved["inference"]["name"], shots, backbone, *self.settings

    @property
    def seeds(self) -> str:
        return ", ".join(str(run.config["seed"]) for run in self.runs)

    def over(self, read: Callable[[Run], float | None], digits: int = 2) -> Cell:
        values = [read(run) for run in self.runs]
        return Cell.over([value for value in values if value is not None], digits)


def grouped(runs: Iterable[Run]) -> list[Group]:
    """The runs grouped over seeds and ordered by data set.

    Where two groups have the same words, the second gets one more: the first setting in which they differ.
    """
    by_rest: dict[str, list[Run]] = {}
    for run in runs:
        rest = {**run.resolved, "seed": None, "scored": _scored_with(run)}
        by_rest.setdefault(json.dumps(rest, sort_keys=True), []).append(run)
    groups = [
        Group(
            sorted(each, key=lambda run: run.config["seed"]), [*asked_settings(each[0].config), *_scored_with(each[0])]
        )
        for each in by_rest.values()
    ]
    seen: dict[tuple[str, ...], Group] = {}
    for index, group in enumerate(groups):
        twin = seen.setdefault((group.data, *group.words), group)
        if twin is not group:
            theirs, own = ({**each.runs[0].resolved, "seed": 0} for each in (twin, group))
            name, _, ours = first_difference(theirs, own) or ("run", "", group.runs[0].folder.name)
            groups[index] = dataclasses.replace(group, settings=[*group.settings, f"{name}={short_value(ours)}"])
    return sorted(groups, key=lambda group: group.data)


def _scored_with(run: Run) -> list[str]:
    """What changed the scores after the training: NAME=FILE for each target that was scored on another split file than
    its own, and whether the weights of the samples were fitted."""
    splits = [f"{name}={part.split}" for name, part in run.result.parts.items() if part.split]
    weights = run.result.weights
    fitted = bool(weights) and max(weights) - min(weights) > WEIGHT_TOLERANCE
    return [*splits, *(["fitted weights"] if fitted else [])]


def _halved(groups: Sequence[Group], title: str, hm: str) -> Table:
    """The table of a protocol with base and novel classes; with averages where there are several data sets."""
    shown = _Shown(groups)
    rows: list[list[Cell | str]] = []
    for group in groups:
        cells = _cells([run.result.base_novel for run in group.runs])
        rows.append([group.data, *shown(group), *cells, group.over(_seconds, 0), group.seeds])
    averages = _averages(groups, shown, hm)
    notes = [*shown.notes(groups), "NLL and ECE are the means of base and novel"]
    if averages:
        rows += averages
        how = "that of the two averages" if hm == HM_CONVENTIONS[0] else "the average of the data sets' own"
        notes.append(f"average over data sets: HM is {how} (--hm), the others are plain means")
    columns = ["data", *shown.columns, "base ↑", "novel ↑", "HM ↑", "NLL ↓", "ECE ↓", "train s", "seeds"]
    return _table(title, columns, rows, notes)


def _cells(per_seed: Sequence[Mapping[str, float]]) -> list[Cell]:
    return [Cell.over([scores[name] for scores in per_seed], digits) for name, digits in _DIGITS.items()]


def _table(title: str, columns: Sequence[str], rows: list[list[Cell | str]], notes: Sequence[str]) -> Table:
    """A table with a line after each data set, and the best of its rows marked where it has several."""
    rules = [number for number, row in enumerate(rows, 1) if number == len(rows) or rows[number][0] != row[0]]
    for first, last in zip([0, *rules], rules, strict=False):
        for column, name in enumerate(columns if last - first > 1 else ()):
            better = {"↑": max, "↓": min}.get(name[-1])
            if better:
                mark_column(rows[first:last], column, better)
    return Table(title, columns, rows, notes, rules=rules, merged=1)


def _averages(groups: Sequence[Group], shown: _Shown, hm: str) -> list[list[Cell | str]]:
    """A row of averages for each method and settings that every data set has, over the seeds that every one has."""
    datasets = {group.data for group in groups}
    by_words: dict[tuple[str, ...], list[Group]] = {}
    for group in groups:
        by_words.setdefault(group.words, []).append(group)
    rows: list[list[Cell | str]] = []
    for each in by_words.values():
        if len(datasets) < 2 or {group.data for group in each} != datasets or len(each) != len(datasets):
            continue
        by_seed = [{run.config["seed"]: run.result.base_novel for run in group.runs} for group in each]
        seeds = [seed for seed in by_seed[0] if all(seed in scores for scores in by_seed)]
        if seeds:
            cells = _cells([average_over_data([scores[seed] for scores in by_seed], hm) for seed in seeds])
            rows.append(["average", *shown(each[0]), *cells, Cell(None, digits=0), ", ".join(map(str, seeds))])
    return rows


def _other(groups: Sequence[Group], protocol: str, title: str) -> Table:
    """The table of a transfer (accuracy on every target and their average) or of few shots (accuracy, NLL and ECE)."""
    shown = _Shown(groups)
    parts = list(dict.fromkeys(part for group in groups for run in group.runs for part in run.protocols[protocol]))
    targets = [part for part in parts if part != "test"]
    rows: list[list[Cell | str]] = []
    for group in groups:
        cells = [group.over(_score(part)) for part in parts]
        if targets:
            cells.append(group.over(_average_of({t for run in group.runs for t in run.protocols[protocol]} - {"test"})))
        else:
            cells += [group.over(_score("test", "nll"), 3), group.over(_score("test", "ece"))]
        rows.append([group.data, *shown(group), *cells, group.over(_seconds, 0), group.seeds])
    names = (
        ["source ↑", *(f"{target} ↑" for target in targets), "average ↑"]
        if targets
        else ["accuracy ↑", "NLL ↓", "ECE ↓"]
    )
    notes = shown.notes(groups)
    if targets:
        notes.append("the average is over the row's targets, without the source")
    return _table(title, ["data", *shown.columns, *names, "train s", "seeds"], rows, notes)


class _Shown:
    """How the words of groups are shown: method and inference as columns, the others in a third column where groups
    differ in them, and in a note where they do not."""

    def __init__(self, groups: Sequence[Group]) -> None:
        self.common = [word for word in groups[0].words[2:] if all(word in group.words[2:] for group in groups)]
        self.columns = ["method", "inference"]
        if any(self._rest(group) for group in groups):
            self.columns.append("settings")

    def _rest(self, group: Group) -> list[str]:
        return [word for word in group.words[2:] if word not in self.common]

    def __call__(self, group: Group) -> list[str]:
        return [*group.words[:2], ", ".join(self._rest(group))][: len(self.columns)]

    def notes(self, groups: Sequence[Group]) -> list[str]:
        """The words that all groups have in common, and what the numbers are."""
        several = any(len(group.runs) > 1 for group in groups)
        return [", ".join(self.common), *(["mean ± standard deviation over seeds"] if several else [])]


def _score(part: str, name: str = "accuracy") -> Callable[[Run], float | None]:
    return lambda run: getattr(run.result.parts.get(part), name, None)


def _seconds(run: Run) -> float | None:
    return run.result.seconds.training


def _average_of(targets: Collection[str]) -> Callable[[Run], float | None]:
    """Reads the average accuracy over targets from a run; None where the run lacks one of them."""

    def average(run: Run) -> float | None:
        known = [value for value in (_score(target)(run) for target in targets) if value is not None]
        return statistics.fmean(known) if known and len(known) == len(targets) else None

    return average


def flat_settings(settings: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Nested settings as one mapping, whose keys have dots.

    >>> flat_settings({"restart": {"kind": "warm"}, "cycles": 3})
    {'restart.kind': 'warm', 'cycles': 3}
    """
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        flat |= (
            flat_settings(value, f"{before}{key}.")
            if isinstance(value, Mapping) and value
            else {f"{before}{key}": value}
        )
    return flat
