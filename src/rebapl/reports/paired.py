"""The differences between runs, paired: on the same test images, or over the same seeds."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

from rebapl.evaluation.intervals import resampled_scores
from rebapl.evaluation.scores import scores
from rebapl.numbers import harmonic_mean
from rebapl.reports.inspection import Answered, Inspected
from rebapl.reports.results import Group, grouped
from rebapl.reports.tables import Cell, Table

COLUMNS = {"accuracy": ("accuracy", 2), "nll": ("NLL", 4), "ece": ("ECE", 2), "brier": ("Brier", 4)}
"""The scores that are compared: how they are called, and with how many digits."""


class Paired(NamedTuple):
    """A mean difference, and its standard error."""

    difference: float
    error: float


class Comparison(NamedTuple):
    """The table of the differences, and a sentence for each run that could not be compared."""

    table: Table | None
    left_out: Sequence[str]


def compare(inspected: Sequence[Inspected]) -> Comparison:
    """Compare each kind of run with the first. Runs that differ in nothing but the seed are of one kind.

    Where two kinds have several seeds in common, the error is the standard error over these seeds. Where they have one,
    it is the standard error over the test images (paired bootstrap), and says nothing of other seeds.
    """
    by_folder = {each.run.folder: each for each in inspected}
    kinds = grouped(each.run for each in inspected)
    first = next(kind for kind in kinds if inspected[0].run in kind.runs)
    names = _names(kinds)
    rows: list[list[Cell | str]] = []
    left_out = []
    for kind in (each for each in kinds if each is not first):
        pairs = [
            (by_folder[ours.folder], by_folder[theirs.folder])
            for ours in kind.runs
            for theirs in first.runs
            if ours.config["seed"] == theirs.config["seed"]
        ]
        found = _rows(pairs)
        name = names[kinds.index(kind)]
        if found:
            rows += [[name, *row] for row in found]
        else:
            left_out.append(f"“{name}” has no test images and seed in common with “{names[kinds.index(first)]}”.")
    if not rows:
        return Comparison(None, left_out)
    columns = ["run", "classes", *(f"Δ {name}" for name, _ in COLUMNS.values()), "± is the standard error over"]
    title = f"Differences to “{names[kinds.index(first)]}”"
    notes = [
        "A difference of more than twice its standard error is unlikely to be chance. Accuracy and ECE are in percent; "
        "higher accuracy is better, lower NLL, ECE and Brier are."
    ]
    rules = [number for number, row in enumerate(rows, 1) if number == len(rows) or rows[number][0] != row[0]]
    return Comparison(Table(title, columns, rows, notes, rules=rules, merged=1), left_out)


def _names(kinds: Sequence[Group]) -> list[str]:
    """Names that tell kinds of runs apart: method and inference, and of the other words those that are not common."""
    common = set(kinds[0].words[2:]).intersection(*(kind.words[2:] for kind in kinds))
    names = []
    for kind in kinds:
        method, how, *rest = kind.words
        words = [*([kind.data] if len({each.data for each in kinds}) > 1 else []), *rest]
        more = ", ".join(word for word in words if word not in common)
        names.append(f"{method}{'' if how == 'none' else f' · {how}'}{f' ({more})' if more else ''}")
    return names


def _rows(pairs: Sequence[tuple[Inspected, Inspected]]) -> list[list[Cell | str]]:
    """A row for each test part that both of every pair have with the same images, and one for the harmonic mean."""
    by_part: dict[str, list[tuple[Answered, Answered]]] = {}
    for ours, theirs in pairs:
        for name in ours.parts.keys() & theirs.parts.keys():
            if _same(ours.parts[name], theirs.parts[name]):
                by_part.setdefault(name, []).append((ours.parts[name], theirs.parts[name]))
    rows: list[list[Cell | str]] = []
    for name, both in sorted(by_part.items()):
        over = _over(both)
        found = paired_scores(both)
        cells = [Cell(*found[key], digits=digits, signed=True) for key, (_, digits) in COLUMNS.items()]
        rows.append([name, *cells, over])
    if {"base", "novel"} <= by_part.keys() and len(by_part["base"]) == len(by_part["novel"]):
        difference = paired_harmonic_mean(by_part["base"], by_part["novel"])
        empty = [Cell(None, digits=digits) for _, digits in list(COLUMNS.values())[1:]]
        over = _over(by_part["base"], by_part["novel"])
        rows.append(["harmonic mean", Cell(*difference, signed=True), *empty, over])
    return rows


def _over(*parts: Sequence[tuple[Answered, Answered]]) -> str:
    """What the error is over: the seeds, or the test images of all parts if there is one seed."""
    seeds = len(parts[0])
    return f"{seeds} seeds" if seeds > 1 else f"{sum(len(both[0][0].labels) for both in parts)} test images"


def _same(ours: Answered, theirs: Answered) -> bool:
    keys = [[item.key for item in each.part.items] for each in (ours, theirs)]
    return bool(keys[0]) and keys[0] == keys[1] and list(ours.part.class_names) == list(theirs.part.class_names)


def paired_scores(both: Sequence[tuple[Answered, Answered]]) -> dict[str, Paired]:
    """The mean difference of each score of `COLUMNS`, and its standard error, over pairs or over the images of one."""
    differences = [{name: ours - theirs for name, ours, theirs in _scored(pair)} for pair in both]
    if len(both) > 1:
        return {name: _over_seeds([each[name] for each in differences]) for name in COLUMNS}
    ours, theirs = (_resampled(each) for each in both[0])
    return {name: Paired(differences[0][name], (ours[name] - theirs[name]).std().item()) for name in COLUMNS}


def paired_harmonic_mean(
    base: Sequence[tuple[Answered, Answered]], novel: Sequence[tuple[Answered, Answered]]
) -> Paired:
    """The same for the harmonic mean of the accuracies on base and novel classes."""
    differences = []
    for halves in zip(base, novel, strict=True):
        ours, theirs = ([100 * half[side].right.double().mean().item() for half in halves] for side in (0, 1))
        differences.append(harmonic_mean(*ours) - harmonic_mean(*theirs))
    if len(differences) > 1:
        return _over_seeds(differences)
    # Images of the two halves are drawn independently: the second half takes the draws in the reverse order.
    (b1, b2), (n1, n2) = ([_resampled(each)["accuracy"] for each in half[0]] for half in (base, novel))
    n1, n2 = n1.flip(0), n2.flip(0)
    return Paired(differences[0], (_harmonic(b1, n1) - _harmonic(b2, n2)).std().item())


def _scored(pair: tuple[Answered, Answered]) -> list[tuple[str, float, float]]:
    ours, theirs = (scores(each.prediction.probabilities, each.labels) for each in pair)
    return [(name, ours[name], theirs[name]) for name in COLUMNS]


def _resampled(answered: Answered) -> Mapping[str, Tensor]:
    return resampled_scores(answered.prediction.probabilities, answered.labels)


def _harmonic(base: Tensor, novel: Tensor) -> Tensor:
    return 2 * base * novel / (base + novel).clamp_min(1e-12)


def _over_seeds(differences: Sequence[float]) -> Paired:
    return Paired(statistics.fmean(differences), statistics.stdev(differences) / len(differences) ** 0.5)
