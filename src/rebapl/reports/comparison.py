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
from rebapl.reports.results import GroupWords, grouped
from rebapl.reports.tables import Cell, Table
from rebapl.score_columns import columns

SCORES = columns("accuracy", "nll", "ece", "brier")
"""The scores that are compared."""

HARMONIC_MEAN = "harmonic mean"
HALVES = ("base", "novel")

Pair = tuple[InspectedRun, InspectedRun]


class Comparison(NamedTuple):
    """The table of the differences, and a sentence for each run that could not be compared."""

    table: Table | None
    left_out: Sequence[str]


def compare(runs: Sequence[InspectedRun], stored: bool = False) -> Comparison:
    """Compare each kind of run with the first. Runs that differ only in their seed are of one kind.

    If two kinds have several seeds in common, the interval of a difference is Student's over these seeds. If they have
    one, it is over the test images (paired bootstrap) and says nothing about other seeds. With `stored`, differences
    are those of the stored scores, and answers are computed only if an interval over images needs them.
    """
    by_folder = {inspected.run.folder: inspected for inspected in runs}
    kinds = grouped(inspected.run for inspected in runs)
    name = GroupWords(kinds).name
    first = next(kind for kind in kinds if runs[0].run in kind.runs)
    reference = {run.config["seed"]: by_folder[run.folder] for run in first.runs}
    rows: list[list[Cell | str]] = []
    left_out = []
    for kind in (each for each in kinds if each is not first):
        by_seed = {run.config["seed"]: by_folder[run.folder] for run in kind.runs}
        differences = _rows([(by_seed[seed], reference[seed]) for seed in by_seed if seed in reference], stored)
        rows += [[name(kind), *row] for row in differences]
        if not differences:
            left_out.append(f"“{name(kind)}” has no test images and seed in common with “{name(first)}”.")
    if not rows:
        return Comparison(None, left_out)
    titles = ["run", "classes", *(f"Δ {column.title}" for column in SCORES.values()), "interval over"]
    notes = [
        "Below each difference is its 95 % interval: Student's over seeds, or by a paired bootstrap over images. If "
        "there is no difference, 1 of 20 intervals leaves out 0 by chance. Accuracy and ECE are in percent; higher "
        "accuracy is better, lower NLL, ECE and Brier are. ECE is compared as it is on this number of images."
    ]
    title = f"Differences to “{name(first)}”"
    return Comparison(Table.sectioned(title, titles, rows, notes), left_out)


class Tested(NamedTuple):
    """The scores of a run on one test part. Two runs with equal `images` were tested on the same images."""

    scores: Mapping[str, float]
    images: object


def _tested(inspected: InspectedRun, stored: bool) -> dict[str, Tested]:
    """The scores of a run on each test part, and the harmonic mean of its accuracies."""
    if stored:
        settings = [inspected.run.config.get(key) for key in ("data", "protocol", "split", "fold", "test_images")]
        parts = inspected.run.result.parts
        tested = {name: Tested(part.as_json(), (settings, part.images)) for name, part in parts.items()}
    else:
        tested = {
            name: Tested(answered.scores, ([item.key for item in answered.part.items], list(answered.part.class_names)))
            for name, answered in inspected.parts.items()
        }
    if set(HALVES) <= tested.keys():
        base, novel = (tested[half] for half in HALVES)
        mean = harmonic_mean(base.scores["accuracy"], novel.scores["accuracy"])
        tested[HARMONIC_MEAN] = Tested({"accuracy": mean}, (base.images, novel.images))
    return tested


def _rows(pairs: Sequence[Pair], stored: bool) -> list[list[Cell | str]]:
    """A row for each test part that both runs of a pair answered on the same images: mean differences and intervals.

    The interval is over the pairs, or over the images if there is one pair. Only scores that all pairs have are
    compared.
    """
    by_part: dict[str, list[tuple[Pair, dict[str, float]]]] = {}
    for pair in pairs:
        ours, theirs = (_tested(inspected, stored) for inspected in pair)
        for name in (each for each in ours if each in theirs and ours[each].images == theirs[each].images):
            first, second = ours[name].scores, theirs[name].scores
            deltas = {key: first[key] - second[key] for key in SCORES if key in first and key in second}
            by_part.setdefault(name, []).append((pair, deltas))
    rows: list[list[Cell | str]] = []
    for name, of_pairs in by_part.items():
        compared = [key for key in SCORES if all(key in deltas for _, deltas in of_pairs)]
        differences = {key: [deltas[key] for _, deltas in of_pairs] for key in compared}
        intervals: dict[str, Interval] = {}
        over, pair = "", of_pairs[0][0]
        answered = HALVES if name == HARMONIC_MEAN else [name]
        if len(of_pairs) > 1:
            intervals = {key: mean_interval(values) for key, values in differences.items()}
            over = f"{len(of_pairs)} seeds"
        elif all(part in inspected.parts for part in answered for inspected in pair):
            one, other = (_resampled(inspected, name) for inspected in pair)
            intervals = {key: around(each[0], one[key] - other[key], -math.inf) for key, each in differences.items()}
            over = f"{sum(len(pair[0].parts[part].labels) for part in answered)} test images"
        means = {key: statistics.fmean(values) for key, values in differences.items()}
        cells = (
            Cell(means.get(key), digits=column.digits, signed=True, interval=intervals.get(key))
            for key, column in SCORES.items()
        )
        rows.append([name, *cells, over])
    return rows


def _resampled(inspected: InspectedRun, name: str) -> Mapping[str, Tensor]:
    """The scores of a run on a test part over bootstrap samples of the images."""
    if name == HARMONIC_MEAN:
        return {"accuracy": resampled_harmonic_mean(inspected)}
    return inspected.parts[name].resampled


def resampled_harmonic_mean(inspected: InspectedRun) -> Tensor:
    """The harmonic mean of the accuracies on base and novel classes (draws,) over bootstrap samples of the images."""
    base, novel = (inspected.parts[half].resampled["accuracy"] for half in HALVES)
    novel = novel.flip(0)  # in the reverse order, so that the images of the two halves are drawn independently
    return 2 * base * novel / (base + novel).clamp_min(1e-12)
