"""What is in a folder of runs: their scores over seeds, as tables and as one long list."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rebapl.errors import UserError
from rebapl.evaluation import base_novel_scores, harmonic_mean
from rebapl.experiments.config import data_name, first_difference
from rebapl.experiments.tables import Cell, Row, Table
from rebapl.files import read_json

TITLES = {
    "base-to-novel": "base-to-novel",
    "few-shot": "few-shot, all classes",
    "cross-dataset": "cross-dataset",
    "domain-generalization": "domain generalization",
    "selection": "selection: base and novel within the base classes, validation images",
}
SCORES = ("accuracy", "nll", "ece", "adaptive_ece", "brier", "aurc", "images")
_HALVED = ("base-to-novel", "selection")


@dataclasses.dataclass(frozen=True)
class Run:
    """One finished run: its folder, its settings as asked for and resolved, and its results."""

    folder: Path
    config: Mapping[str, Any]
    resolved: Mapping[str, Any]
    results: Mapping[str, Any]

    @property
    def protocols(self) -> Mapping[str, Sequence[str]]:
        """The parts that each protocol scored."""
        return self.results.get("protocols") or {self.config.get("protocol", ""): list(self.results["parts"])}


@dataclasses.dataclass(frozen=True)
class Found:
    """All finished runs below some folders, and the folders of those that are not."""

    runs: Sequence[Run]
    unscored: Sequence[Path]
    untrained: Sequence[Path]


def find_runs(folders: Iterable[Path]) -> Found:
    """The runs in these folders, or that these folders are, in the order of their names."""
    runs: list[Run] = []
    unscored: list[Path] = []
    untrained: list[Path] = []
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"{folder} is not a folder of runs: `rebapl train` makes one, `runs` unless told otherwise")
        for path in [folder] if (folder / "config.json").exists() else sorted(folder.iterdir()):
            if not (path / "config.json").exists():
                continue
            config = read_json(path / "config.json", "a run")
            if (path / "results.json").exists() and "resolved" in config:
                results = read_json(path / "results.json", "a result")
                runs.append(Run(path, config, config["resolved"], results))
            else:
                (unscored if (path / "posterior").exists() else untrained).append(path)
    return Found(runs, unscored, untrained)


def result_tables(found: Found) -> list[Table]:
    """A table per protocol, with the mean and standard deviation over seeds; the best of each data set in bold."""
    tables = []
    for protocol, title in TITLES.items():
        groups = _groups(run for run in found.runs if protocol in run.protocols)
        if groups:
            tables.append(_halved(groups, title) if protocol in _HALVED else _other(groups, protocol, title))
    return tables


def long_list(runs: Sequence[Run]) -> str:
    """Every score of every run as CSV, unrounded: a line per run, part and sample (`all` for them together)."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    words = ("data", "method", "inference", "shots", "seed", "backbone")
    writer.writerow(["run", "protocol", *words, "settings", "part", "sample", *SCORES, "training_seconds"])
    for run in runs:
        named = {**run.config, "inference": run.resolved["inference"]["name"]}
        head = [named.get(word) for word in words]
        seconds = run.results.get("seconds", {}).get("training")
        protocol = {part: name for name, parts in run.protocols.items() for part in parts}
        for part, scores in run.results["parts"].items():
            lines = [("all", scores), *((str(n), each) for n, each in enumerate(scores.get("per_sample", []), 1))]
            for sample, each in lines:
                numbers = [each.get(name, scores.get(name) if name == "images" else "") for name in SCORES]
                row = [
                    run.folder.name,
                    protocol.get(part, ""),
                    *head,
                    ", ".join(asked_settings(run.config)),
                    part,
                    sample,
                ]
                writer.writerow([*row, *numbers, "" if seconds is None else seconds])
    return text.getvalue()


def asked_settings(config: Mapping[str, Any]) -> list[str]:
    """What was asked for beyond data, method, inference, shots, seed and backbone, in few words each."""
    words = [f"{key}={config[key]}" for key in ("epochs", "split", "template", "cache") if config.get(key) is not None]
    for section in ("method", "inference"):
        words += [f"{key}={_short(value)}" for key, value in _flat(config.get(f"{section}_settings") or {}).items()]
    if config.get("test_images") is not None:
        words.append(f"{config['test_images']} test images")
    return words


@dataclasses.dataclass(frozen=True)
class _Group:
    """Runs that differ in their seed alone."""

    runs: Sequence[Run]
    settings: Sequence[str]

    @property
    def data(self) -> str:
        return data_name(self.runs[0].config["data"])

    @property
    def words(self) -> tuple[str, ...]:
        """Method and inference, and what else was asked for."""
        config, resolved = self.runs[0].config, self.runs[0].resolved
        backbone = str(resolved["backbone"]).partition(":")[0]
        return config["method"], resolved["inference"]["name"], f"{config['shots']} shots", backbone, *self.settings

    @property
    def seeds(self) -> str:
        return ", ".join(str(run.config["seed"]) for run in self.runs)

    def over(self, read: Callable[[Run], float | None], digits: int = 2) -> Cell:
        values = [read(run) for run in self.runs]
        return Cell.over([value for value in values if value is not None], digits)


def _groups(runs: Iterable[Run]) -> list[_Group]:
    """Grouped over seeds, by data set; where the words for two are the same, with a setting that tells them apart."""
    by_rest: dict[str, list[Run]] = {}
    for run in runs:
        rest = {key: value for key, value in run.resolved.items() if key != "seed"}
        by_rest.setdefault(json.dumps(rest, sort_keys=True), []).append(run)
    groups = [
        _Group(sorted(each, key=lambda run: run.config["seed"]), asked_settings(each[0].config))
        for each in by_rest.values()
    ]
    seen: dict[tuple[str, ...], _Group] = {}
    for place, group in enumerate(groups):
        twin = seen.setdefault((group.data, *group.words), group)
        if twin is not group:
            theirs, own = ({**each.runs[0].resolved, "seed": 0} for each in (twin, group))
            name, _, ours = first_difference(theirs, own) or ("run", "", group.runs[0].folder.name)
            groups[place] = dataclasses.replace(group, settings=[*group.settings, f"{name}={_short(ours)}"])
    return sorted(groups, key=lambda group: group.data)


def _halved(groups: Sequence[_Group], title: str) -> Table:
    """Base, novel, harmonic mean, NLL and ECE; and the averages of what has several data sets."""

    def of(name: str) -> Callable[[Run], float | None]:
        return lambda run: base_novel_scores(run.results["parts"]["base"], run.results["parts"]["novel"])[name]

    shown = _Shown(groups)
    digits = {"base": 2, "novel": 2, "hm": 2, "nll": 3, "ece": 2}
    rows: list[Row] = []
    for group in groups:
        cells = [group.over(of(name), places) for name, places in digits.items()]
        rows.append([group.data, *shown(group), *cells, group.over(_seconds, 0), group.seeds])
    marks = [place for place, row in enumerate(rows, 1) if place == len(rows) or rows[place][0] != row[0]]
    averages = _averages(groups, shown, of)
    notes = [*shown.notes(groups), "NLL and ECE are the means of base and novel"]
    if averages:
        rows += averages
        notes.append("average over data sets: HM is the harmonic mean of the two averages, ECE and NLL plain means")
    columns = ["data", *shown.columns, "base ↑", "novel ↑", "HM ↑", "NLL ↓", "ECE ↓", "train s", "seeds"]
    return Table(title, columns, rows, notes, rules=marks, merged=1)


def _averages(groups: Sequence[_Group], shown: _Shown, of: Callable[[str], Callable[[Run], float | None]]) -> list[Row]:
    """A row per method and settings that all data sets of the table have."""
    datasets = {group.data for group in groups}
    by_words: dict[tuple[str, ...], list[_Group]] = {}
    for group in groups:
        by_words.setdefault(group.words, []).append(group)
    rows: list[Row] = []
    for each in by_words.values():
        if len(datasets) < 2 or {group.data for group in each} != datasets or len(each) != len(datasets):
            continue
        mean = {name: _mean([group.over(of(name)).value for group in each]) for name in ("base", "novel", "nll", "ece")}
        hm = harmonic_mean(mean["base"], mean["novel"])
        cells = [Cell(mean["base"]), Cell(mean["novel"]), Cell(hm), Cell(mean["nll"], digits=3), Cell(mean["ece"])]
        rows.append(["average", *shown(each[0]), *cells, Cell(None, digits=0), each[0].seeds])
    return rows


def _other(groups: Sequence[_Group], protocol: str, title: str) -> Table:
    """Accuracy of each part; for a transfer the average over the targets, for few shots NLL and ECE."""
    shown = _Shown(groups)
    parts = list(dict.fromkeys(part for group in groups for run in group.runs for part in run.protocols[protocol]))
    targets = [part for part in parts if part != "test"]
    rows: list[Row] = []
    for group in groups:
        cells = [group.over(_score(part)) for part in parts]
        if targets:
            cells.append(group.over(lambda run: _mean_or_none([_score(part)(run) for part in targets])))
        else:
            cells += [group.over(_score("test", "nll"), 3), group.over(_score("test", "ece"))]
        rows.append([group.data, *shown(group), *cells, group.over(_seconds, 0), group.seeds])
    names = ["source ↑", *targets, "average ↑"] if targets else ["accuracy ↑", "NLL ↓", "ECE ↓"]
    notes = shown.notes(groups)
    if targets:
        notes.append("accuracy; the average is over the targets, without the source")
    marks = [place for place, row in enumerate(rows, 1) if place == len(rows) or rows[place][0] != row[0]]
    return Table(title, ["data", *shown.columns, *names, "train s", "seeds"], rows, notes, rules=marks, merged=1)


class _Shown:
    """The words of a group as columns: method, inference, and the others where groups differ in them."""

    def __init__(self, groups: Sequence[_Group]) -> None:
        self.common = [word for word in groups[0].words[2:] if all(word in group.words[2:] for group in groups)]
        self.columns = ["method", "inference"]
        if any(self._rest(group) for group in groups):
            self.columns.append("settings")

    def _rest(self, group: _Group) -> list[str]:
        return [word for word in group.words[2:] if word not in self.common]

    def __call__(self, group: _Group) -> list[str]:
        return [*group.words[:2], ", ".join(self._rest(group))][: len(self.columns)]

    def notes(self, groups: Sequence[_Group]) -> list[str]:
        """What all have in common, and what the numbers are."""
        several = any(len(group.runs) > 1 for group in groups)
        return [", ".join(self.common), *(["mean ± standard deviation over seeds"] if several else [])]


def _score(part: str, name: str = "accuracy") -> Callable[[Run], float | None]:
    return lambda run: run.results["parts"].get(part, {}).get(name)


def _seconds(run: Run) -> float | None:
    return run.results.get("seconds", {}).get("training")


def _mean(values: Sequence[float | None]) -> float:
    return sum(value or 0.0 for value in values) / len(values)


def _mean_or_none(values: Sequence[float | None]) -> float | None:
    return None if any(value is None for value in values) else _mean(values)


def _flat(settings: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        flat |= _flat(value, f"{before}{key}.") if isinstance(value, Mapping) and value else {f"{before}{key}": value}
    return flat


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else "none" if value is None else str(value)
