"""The differences between runs, paired: on the same test images, or over the same seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

from rebapl.evaluation.intervals import Interval, around, mean_interval
from rebapl.numbers import harmonic_mean
from rebapl.reports.inspection import InspectedRun
from rebapl.reports.results import COLUMNS, GroupWords, grouped
from rebapl.reports.tables import Cell, Table

SCORES = {"accuracy": 2, "nll": 4, "ece": 2, "brier": 4}
"""The scores that are compared, and with how many digits."""

HARMONIC_MEAN = "harmonic mean"
HALVES = ("base", "novel")

Pair = tuple[InspectedRun, InspectedRun]


class Comparison(NamedTuple):
    """The table of the differences, and a sentence for each run that could not be compared."""

    table: Table | None
    left_out: Sequence[str]


def compare(inspected: Sequence[InspectedRun], stored: bool = False) -> Comparison:
    """Compare each kind of run with the first. Runs that differ in nothing but the seed are of one kind.

    Where two kinds have several seeds in common, the interval of a difference is Student's over these seeds. Where they
    have one, it is over the test images (paired bootstrap), and says nothing of other seeds. `stored` takes the scores
    that the runs have stored, so that answers are computed only where an interval over images needs them.
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
    columns = ["run", "classes", *(f"Δ {COLUMNS[name].split()[0]}" for name in SCORES), "interval over"]
    notes = [
        "Below each difference is its 95 % interval: Student's over seeds, or by a paired bootstrap over images. If "
        "there is no difference, 1 of 20 intervals leaves out 0 by chance. Accuracy and ECE are in percent; higher "
        "accuracy is better, lower NLL, ECE and Brier are. ECE is compared as it is on this number of images."
    ]
    title = f"Differences to “{name(first)}”"
    return Comparison(Table.sectioned(title, columns, rows, notes), left_out)


class Tested(NamedTuple):
    """The scores of a run on one test part. Where `images` are equal, two runs were tested on the same ones."""

    scores: Mapping[str, float]
    images: object


def _tested(seen: InspectedRun, stored: bool) -> dict[str, Tested]:
    """The scores of a run on each test part, and the harmonic mean of its accuracies."""
    if stored:
        words = [seen.run.config.get(word) for word in ("data", "protocol", "split", "fold", "test_images")]
        scores = seen.run.result.parts
        found = {name: Tested(part.as_json(), (words, part.images)) for name, part in scores.items()}
    else:
        found = {
            name: Tested(each.scores, ([item.key for item in each.part.items], list(each.part.class_names)))
            for name, each in seen.parts.items()
        }
    if set(HALVES) <= found.keys():
        base, novel = (found[half] for half in HALVES)
        mean = harmonic_mean(base.scores["accuracy"], novel.scores["accuracy"])
        found[HARMONIC_MEAN] = Tested({"accuracy": mean}, (base.images, novel.images))
    return found


def _rows(pairs: Sequence[Pair], stored: bool) -> list[list[Cell | str]]:
    """The mean differences on each test part whose images pairs of runs have in common, with their intervals: over the
    pairs, or over the images if there is one pair."""
    by_part: dict[str, list[tuple[Pair, dict[str, float]]]] = {}
    for pair in pairs:
        ours, theirs = (_tested(each, stored) for each in pair)
        for name in (each for each in ours if each in theirs and ours[each].images == theirs[each].images):
            both = ours[name].scores, theirs[name].scores
            deltas = {key: both[0][key] - both[1][key] for key in SCORES if key in both[0] and key in both[1]}
            by_part.setdefault(name, []).append((pair, deltas))
    rows: list[list[Cell | str]] = []
    for name, found in by_part.items():
        differences = {key: [deltas[key] for _, deltas in found] for key in found[0][1]}
        intervals: dict[str, Interval] = {}
        over = ""
        if len(found) > 1:
            intervals = {key: mean_interval(each) for key, each in differences.items()}
            over = f"{len(found)} seeds"
        elif all(each.parts for each in found[0][0]):
            pair = found[0][0]
            one, other = (_resampled(each, name) for each in pair)
            intervals = {key: around(each[0], one[key] - other[key], -math.inf) for key, each in differences.items()}
            images = (len(pair[0].parts[part].labels) for part in (HALVES if name == HARMONIC_MEAN else [name]))
            over = f"{sum(images)} test images"
        means = {key: statistics.fmean(each) for key, each in differences.items()}
        cells = (
            Cell(means.get(key), digits=digits, signed=True, interval=intervals.get(key))
            for key, digits in SCORES.items()
        )
        rows.append([name, *cells, over])
    return rows


def _resampled(seen: InspectedRun, name: str) -> Mapping[str, Tensor]:
    """The scores of a run on a test part over bootstrap samples of the images."""
    if name == HARMONIC_MEAN:
        return {"accuracy": resampled_harmonic_mean(seen)}
    return seen.parts[name].resampled


def resampled_harmonic_mean(seen: InspectedRun) -> Tensor:
    """The harmonic mean of the accuracies on base and novel classes (draws,) over bootstrap samples of the images."""
    base, novel = (seen.parts[half].resampled["accuracy"] for half in HALVES)
    novel = novel.flip(0)  # in the reverse order, so that the images of the two halves are drawn independently
    return 2 * base * novel / (base + novel).clamp_min(1e-12)
