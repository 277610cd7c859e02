"""Tables of scores: of all runs in a folder with means over seeds, of one run, and of methods; and one long list."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from rebapl.evaluation.scores import HM_CONVENTIONS, average_over_data
from rebapl.posterior.prediction import WEIGHT_TOLERANCE
from rebapl.reports.tables import Cell, Table
from rebapl.runs.config import data_name, first_difference
from rebapl.runs.folder import Found, Run
from rebapl.runs.results import RunResult
from rebapl.settings import leaves
from rebapl.wording import number_of

TITLES = {
    "base-to-novel": "base-to-novel, accuracy and ECE in %",
    "few-shot": "few-shot, all classes, accuracy and ECE in %",
    "cross-dataset": "cross-dataset, accuracy in %",
    "domain-generalization": "domain generalization, accuracy in %",
    "selection": "selection: base and novel within the base classes, validation images, accuracy and ECE in %",
}
SCORES = ("accuracy", "nll", "ece", "adaptive_ece", "brier", "aurc", "images")
BASE_NOVEL = {"base": "base ↑", "novel": "novel ↑", "hm": "HM ↑", "nll": "NLL ↓", "ece": "ECE ↓"}
_HALVED = ("base-to-novel", "selection")


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
        words += [f"{key}={short_value(value)}" for key, value in leaves(config.get(f"{section}_settings") or {})]
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
        return ranges([run.config["seed"] for run in self.runs])

    def over(self, read: Callable[[Run], float | None], digits: int = 2) -> Cell:
        values = [read(run) for run in self.runs]
        return Cell.over([value for value in values if value is not None], digits)


def ranges(seeds: Sequence[int]) -> str:
    """Seeds in few characters, with a dash for three or more that follow each other.

    >>> ranges([1, 2, 5, 6, 7, 9])
    '1, 2, 5–7, 9'
    """
    runs: list[list[int]] = []
    for seed in sorted(seeds):
        if runs and seed == runs[-1][-1] + 1:
            runs[-1].append(seed)
        else:
            runs.append([seed])
    return ", ".join(f"{run[0]}–{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)


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
    shown = _Words(groups)
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
    columns = ["data", *shown.columns, *BASE_NOVEL.values(), "train s", "seeds"]
    return Table.sectioned(title, columns, rows, notes)


def _cells(per_seed: Sequence[Mapping[str, float]]) -> list[Cell]:
    return [Cell.over([scores[name] for scores in per_seed], 3 if name == "nll" else 2) for name in BASE_NOVEL]


def _averages(groups: Sequence[Group], shown: _Words, hm: str) -> list[list[Cell | str]]:
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
            rows.append(["average", *shown(each[0]), *cells, Cell(None, digits=0), ranges(seeds)])
    return rows


def _other(groups: Sequence[Group], protocol: str, title: str) -> Table:
    """The table of a transfer (accuracy on every target and their average) or of few shots (accuracy, NLL and ECE)."""
    shown = _Words(groups)
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
    return Table.sectioned(title, ["data", *shown.columns, *names, "train s", "seeds"], rows, notes)


class _Words:
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


class MethodScores(NamedTuple):
    """Base-to-novel scores of one method on one task, with the seconds that its training took."""

    task: str
    method: str
    scores: Mapping[str, float]
    seconds: float


def by_task(rows: Iterable[MethodScores]) -> dict[str, list[MethodScores]]:
    """The same grouped by their task, in order."""
    groups: dict[str, list[MethodScores]] = {}
    for row in rows:
        groups.setdefault(row.task, []).append(row)
    return groups


def base_novel_table(rows: Sequence[MethodScores], title: str, seconds: bool = True) -> Table:
    """A section per task with its best scores in bold, and with the `seconds` of training unless they are left out."""
    lines: list[list[Cell | str]] = []
    for task, group in by_task(rows).items():
        for row in group:
            cells = [Cell(row.scores[name], digits=3 if name == "nll" else 1) for name in BASE_NOVEL]
            lines.append([task, row.method, *cells, *([Cell(row.seconds, digits=0)] if seconds else [])])
    return Table.sectioned(title, ["task", "method", *BASE_NOVEL.values(), *(["s"] if seconds else [])], lines)


def base_novel_markdown(rows: Sequence[MethodScores]) -> str:
    """The same table in Markdown, without the seconds, which differ each time."""
    return base_novel_table(rows, "", seconds=False).to_markdown(bare=True)


def scores_table(result: RunResult, title: str) -> Table:
    """The scores of one run, a row per test part.

    The harmonic mean of base and novel, or the average over the targets of a transfer, stands below the table.
    """
    digits = {"accuracy": 2, "nll": 4, "ece": 2, "images": 0}
    rows: list[list[Cell | str]] = [
        [name, *(Cell(getattr(part, key), digits=count) for key, count in digits.items())]
        for name, part in result.parts.items()
    ]
    notes = []
    if result.has_base_novel:
        notes = [f"harmonic mean {result.base_novel['hm']:.2f}"]
    targets = [part.accuracy for name, part in result.parts.items() if name not in ("test", "base", "novel")]
    if targets:
        notes = [f"average accuracy over targets {sum(targets) / len(targets):.2f}"]
    return Table(title, ["classes", "accuracy ↑", "NLL ↓", "ECE ↓", "images"], rows, notes)
