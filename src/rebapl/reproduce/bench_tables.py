"""What `rebapl bench` shows of a measurement: its tables, and the figure of growth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from matplotlib.figure import Figure

from rebapl.errors import UserError
from rebapl.reports.tables import Cell, Row, Table
from rebapl.reproduce import study_figures
from rebapl.reproduce.bench_inputs import RANDOM
from rebapl.reproduce.bench_records import AnswerTimes, Case, Measured, StepTimes

MIB = 2**20
STEP_COLUMNS = ("classes", "repulsion", "median", "mean", "plain, median", "plain, mean", "times quicker")


def bench_tables(measured: Measured) -> list[Table]:
    """The table of steps and that of answers, with how they were measured below the first."""
    steps = [each for each in measured.steps if not each.along]
    answers = [each for each in measured.answers if not each.along]
    found = [*([step_table(steps)] if steps else []), *([answer_table(answers)] if answers else [])]
    return [
        replace(table, notes=[*how(measured.about), *table.notes]) if table is found[0] else table for table in found
    ]


def step_table(steps: Sequence[StepTimes]) -> Table:
    """A row for each number of classes and each repulsion."""
    gpu = any(each.peak is not None for each in steps)
    rows: list[Row] = []
    for each in steps:
        row: list[Cell | str] = [str(each.case.classes), repulsion_name(each.case), Cell(each.median), Cell(each.mean)]
        row += [Cell(each.plain_median), Cell(each.plain_mean), _times(each.mean, each.plain_mean)]
        rows.append([*row, _mib(each.peak), _mib(each.plain_peak)] if gpu else row)
    first = steps[0].case
    counts = [each.case.classes for each in steps]
    return Table(
        f"Milliseconds of a training step: {first.method}, batch {first.batch}, {first.images} reference images",
        [*STEP_COLUMNS, *(["rebapl", "plain"] if gpu else [])],
        rows,
        [_lengths(steps)],
        groups=[("", len(STEP_COLUMNS)), ("peak MiB", 2)] if gpu else (),
        rules=[row for row in range(1, len(counts)) if counts[row] != counts[row - 1]],
        merged=1,
    )


def answer_table(answers: Sequence[AnswerTimes]) -> Table:
    """A row for each method and number of samples."""
    rows: list[Row] = [
        [
            each.method,
            str(each.samples),
            Cell(each.one),
            Cell(each.plain_one),
            _times(each.one, each.plain_one),
            Cell(_a_second(each, each.many), digits=0),
            Cell(_a_second(each, each.plain_many), digits=0),
            _times(each.many, each.plain_many),
        ]
        for each in answers
    ]
    methods = [each.method for each in answers]
    first = answers[0]
    return Table(
        f"Answers among {first.classes} classes",
        ["method", "samples", *("rebapl", "plain", "times quicker") * 2],
        rows,
        groups=[("", 2), ("one image, ms", 3), (f"{first.images} images, images/s", 3)],
        rules=[row for row in range(1, len(methods)) if methods[row] != methods[row - 1]],
        merged=1,
    )


GROWS = {
    "classes": "classes",
    "images": "reference images $n$",
    "samples": "remembered samples",
    "tokens": "tokens of a text",
}
"""What a step grows with, as the axis of a figure has it."""


def growth_figure(measured: Measured) -> Figure:
    """How steps and answers grow: medians, ours and plain."""
    if not any(each.along for each in measured.steps):
        raise UserError("there is no growth to draw: measure it with rebapl bench --what growth")
    steps: dict[str, dict[str, dict[float, float]]] = {label: {} for label in GROWS.values()}
    for each in measured.steps:
        if each.along:
            grown = each.tokens if each.along == "tokens" else getattr(each.case, each.along)
            name, lines = repulsion_name(each.case), steps[GROWS[each.along]]
            lines.setdefault(name, {})[grown] = each.median
            if each.plain_median is not None:
                lines.setdefault(f"{name}, plain", {})[grown] = each.plain_median
    answers: dict[str, dict[float, float]] = {}
    for answer in measured.answers:
        if answer.along:
            answers.setdefault(answer.method, {})[answer.samples] = answer.one
            if answer.plain_one is not None:
                answers.setdefault(f"{answer.method}, plain", {})[answer.samples] = answer.plain_one
    method = next(each.case.method for each in measured.steps if each.along)
    about = measured.about
    return study_figures.growth(steps, answers, f"{method} on {about['device']}, {backbone_name(about)}")


def backbone_name(about: Mapping[str, Any]) -> str:
    """The backbone in words, with the type that it computes in."""
    shape = "the shape of CLIP ViT-B/16 with random weights" if about["backbone"] == RANDOM else about["backbone"]
    return f"{shape}, {about['dtype']}"


def how(about: Mapping[str, Any]) -> list[str]:
    """On what, and how, the times were measured."""
    threads = "" if about["device"].startswith("cuda") else f", {about['threads']} threads"
    captured = "passes captured and compiled" if about["captured"] else "operation by operation"
    return [
        f"{about['device']}{threads}; backbone: {backbone_name(about)}; torch {about['versions']['torch']}; "
        f"rebapl {about['versions']['rebapl']}, {captured}.",
        f"rebapl: {about['steps']} steps in a row after {about['warm_up']} that do not count; the mean includes the "
        f"steps that measure norms, one in ten. Plain: {about['plain_steps']} after {about['plain_warm_up']}. "
        f"Answers: the median of up to {about['repeats']} calls, within {about['seconds']:g} s.",
        "Plain is the same work done the obvious way: texts of full length, every position in every layer, the "
        "reference images in a pass of their own, operation by operation; one learner after the other answers, and "
        "encodes the texts in each call.",
    ]


def repulsion_name(case: Case) -> str:
    """What repels, in a cell.

    >>> repulsion_name(Case(repulsion=None)), repulsion_name(Case(every=4))
    ('none', 'MMD every 4 steps')
    """
    name = "none" if case.repulsion is None else study_figures.distance_name(case.repulsion)
    return name + (f" every {case.every} steps" if case.every > 1 else "")


def _lengths(steps: Sequence[StepTimes]) -> str:
    """How long the texts are, with us and plainly."""
    ours = sorted({each.tokens for each in steps})
    across = f"{ours[0]}" if len(ours) == 1 else f"{ours[0]} to {ours[-1]}"
    return f"A text has {across} tokens with rebapl, {steps[0].plain_tokens} plainly."


def _times(ours: float, plain: float | None) -> Cell:
    return Cell(None if plain is None else plain / ours, digits=1)


def _mib(peak: int | None) -> Cell:
    return Cell(None if peak is None else peak / MIB, digits=0)


def _a_second(answers: AnswerTimes, many: float | None) -> float | None:
    return None if many is None else 1000 * answers.images / many
