"""The differences between runs, paired: on the same test images, or over the same seeds."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

from rebapl.numbers import harmonic_mean
from rebapl.reports.inspection import InspectedRun
from rebapl.reports.results import GroupWords, grouped
from rebapl.reports.tables import Cell, Table

SCORES = {"accuracy": ("accuracy", 2), "nll": ("NLL", 4), "ece": ("ECE", 2), "brier": ("Brier", 4)}
"""The scores that are compared: how they are called, and with how many digits."""

HARMONIC_MEAN = "harmonic mean"
HALVES = ("base", "novel")

Pair = tuple[InspectedRun, InspectedRun]


class Comparison(NamedTuple):
    """The table of the differences, and a sentence for each run that could not be compared."""

    table: Table | None
    left_out: Sequence[str]


def compare(inspected: Sequence[InspectedRun], stored: bool = False) -> Comparison:
    """Compare each kind of run with the first. Runs that differ in nothing but the seed are of one kind.

    Where two kinds have several seeds in common, the error is the standard error over these seeds. Where they have one,
    it is the standard error over the test images (paired bootstrap), and says nothing of other seeds. `stored` takes
    the scores that the runs have stored, so that answers are computed only where an error over images needs them.
    """
    by_folder = {each.run.folder: each for each in inspected}
    kinds = grouped(each.run for each in inspected)
    name = GroupWords(kinds).name
    first = next(kind for kind in kinds if inspected[0].run in kind.runs)
    rows: list[list[Cell | str]] = []
    left_out = []
    for kind in (each for each in kinds if each is not first):
        theirs = {run.config["seed"]: by_folder[run.folder] for run in first.runs}
        seeds = [run for run in kind.runs if run.config["seed"] in theirs]
        found = _rows([(by_folder[run.folder], theirs[run.config["seed"]]) for run in seeds], stored)
        rows += [[name(kind), *row] for row in found]
        if not found:
            left_out.append(f"“{name(kind)}” has no test images and seed in common with “{name(first)}”.")
    if not rows:
        return Comparison(None, left_out)
    columns = ["run", "classes", *(f"Δ {name}" for name, _ in SCORES.values()), "± is the standard error over"]
    notes = [
        "A difference of more than twice its standard error is unlikely to be chance. Accuracy and ECE are in percent; "
        "higher accuracy is better, lower NLL, ECE and Brier are."
    ]
    title = f"Differences to “{name(first)}”"
    return Comparison(Table.sectioned(title, columns, rows, notes), left_out)


def _rows(pairs: Sequence[Pair], stored: bool) -> list[list[Cell | str]]:
    """A row for each test part that pairs of runs have with the same images, and one for the harmonic mean."""
    by_part: dict[str, list[Pair]] = {}
    for pair in pairs:
        ours, theirs = (each.run.result.parts if stored else each.parts for each in pair)
        for name in sorted(ours.keys() & theirs.keys()):
            if _same_images(pair, name, stored):
                by_part.setdefault(name, []).append(pair)
    if set(HALVES) <= by_part.keys() and by_part["base"] == by_part["novel"]:
        by_part[HARMONIC_MEAN] = by_part["base"]
    return [_row(name, both, stored) for name, both in by_part.items()]


def _same_images(pair: Pair, name: str, stored: bool) -> bool:
    if stored:
        words = ("data", "protocol", "split", "fold", "test_images")
        configs = [[each.run.config.get(word) for word in words] for each in pair]
        return configs[0] == configs[1] and len({each.run.result.parts[name].images for each in pair}) == 1
    ours, theirs = (each.parts[name].part for each in pair)
    return [item.key for item in ours.items] == [item.key for item in theirs.items] and (
        list(ours.class_names) == list(theirs.class_names)
    )


def _row(name: str, pairs: Sequence[Pair], stored: bool) -> list[Cell | str]:
    """The mean differences on one test part with their standard errors, over the pairs or over the images of one."""
    both = [[_scores(each, name, stored) for each in pair] for pair in pairs]
    differences = {key: [ours[key] - theirs[key] for ours, theirs in both] for key in both[0][0]}
    if len(pairs) > 1:
        errors = {key: statistics.stdev(each) / len(each) ** 0.5 for key, each in differences.items()}
        over = f"{len(pairs)} seeds"
    elif all(each.parts for each in pairs[0]):
        ours, theirs = (_resampled(each, name) for each in pairs[0])
        errors = {key: (ours[key] - theirs[key]).std().item() for key in differences}
        images = [len(pairs[0][0].parts[part].labels) for part in (HALVES if name == HARMONIC_MEAN else [name])]
        over = f"{sum(images)} test images"
    else:
        errors, over = {}, ""
    cells = (
        Cell(statistics.fmean(differences[key]), errors.get(key), digits, signed=True)
        if key in differences
        else Cell(None, digits=digits)
        for key, (_, digits) in SCORES.items()
    )
    return [name, *cells, over]


def _scores(seen: InspectedRun, name: str, stored: bool) -> dict[str, float]:
    """The scores of a run on a test part, or the harmonic mean of its accuracies."""
    if name == HARMONIC_MEAN:
        return {"accuracy": harmonic_mean(*(_scores(seen, half, stored)["accuracy"] for half in HALVES))}
    found = seen.run.result.parts[name].as_json() if stored else seen.parts[name].scores
    return {key: found[key] for key in SCORES if key in found}


def _resampled(seen: InspectedRun, name: str) -> Mapping[str, Tensor]:
    """The same over bootstrap samples of the images."""
    if name == HARMONIC_MEAN:
        return {"accuracy": resampled_harmonic_mean(seen)}
    return seen.parts[name].resampled


def resampled_harmonic_mean(seen: InspectedRun) -> Tensor:
    """The harmonic mean of the accuracies on base and novel classes (draws,) over bootstrap samples of the images."""
    base, novel = (seen.parts[half].resampled["accuracy"] for half in HALVES)
    novel = novel.flip(0)  # in the reverse order, so that the images of the two halves are drawn independently
    return 2 * base * novel / (base + novel).clamp_min(1e-12)
