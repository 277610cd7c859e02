"""Figures of results: functions from numbers to a figure, all in the one style of `rebapl.reports.style`.

One shows how far apart the samples of a posterior are. The others are those of a report on a run: how reliable its
answers are, which share of them is wrong, and how its training went.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from rebapl.evaluation import Diversity
from rebapl.evaluation.scores import proportion_interval, reliability, risk_by_coverage
from rebapl.reports.inspection import Answered, Course
from rebapl.reports.style import (
    BLUE,
    BOTH_COLUMNS,
    GREY,
    ORANGE,
    PAGE_FONTS,
    PAPER_FONTS,
    VERMILION,
    page_axes,
    page_legend,
    save_figure,
)
from rebapl.wording import number_of

NUMBERED = 10
"""Up to this number of samples, a heat map has its numbers written in its cells."""

ALONE = 20
"""The largest number of samples that have a line of their own."""

POINTS = 240
"""The largest number of points of a line over the steps of a training."""


def diversity_figure(record: Diversity, path: Path) -> Path:
    """The heat maps of the pairwise distances and disagreements of the samples, side by side."""
    about = f"{record.images} test images"
    maps = [
        HeatMap(about, record.distance, f"Wasserstein-2 in '{record.space}' features", "{:.2f}"),
        HeatMap(about, (100 * np.array(record.disagreement)).tolist(), "different answers (%)", "{:.0f}"),
    ]
    return save_figure(heat_maps(maps), path, settings=PAPER_FONTS)


class HeatMap(NamedTuple):
    """A matrix (S, S) to draw: its title, the label of its colours, and the format of the numbers in its cells."""

    title: str
    matrix: Sequence[Sequence[float]]
    label: str
    form: str


@rc_context(PAPER_FONTS)
def heat_maps(maps: Sequence[HeatMap], highest: float | None = None) -> Figure:
    """Heat maps side by side, whose rows and columns are samples, counted from 1.

    Colours go from 0 to `highest`, or else to the highest value of each matrix. If S is at most `NUMBERED`, each cell
    has its value written in it.
    """
    figure = Figure(figsize=(BOTH_COLUMNS, 2.9), layout="constrained")
    for axes, (title, matrix, label, form) in zip(figure.subplots(1, len(maps), squeeze=False)[0], maps, strict=True):
        values = np.array(matrix)
        most, count = highest or values.max() or 1.0, len(values)
        for (row, column), value in np.ndenumerate(values) if count <= NUMBERED else ():
            shade = "white" if value <= 0.6 * most else "black"
            axes.text(column, row, form.format(value), ha="center", va="center", color=shade, fontsize=6)
        indices = range(0, count, max(1, count // 10))
        names = [str(index + 1) for index in indices]
        axes.set(xticks=indices, yticks=indices, xticklabels=names, yticklabels=names, xlabel="sample", ylabel="sample")
        axes.set_title(title, loc="left")
        figure.colorbar(axes.imshow(values, cmap="viridis", vmin=0, vmax=most), ax=axes, shrink=0.9, label=label)
    return figure


class Illustration(NamedTuple):
    """A figure for a page of HTML: its heading, a description for people who cannot see it, and the text below it."""

    title: str
    figure: Figure
    about: str
    caption: str = ""
    wide: bool = False


@rc_context(PAGE_FONTS)
def reliability_figure(title: str, series: Mapping[str, Answered]) -> Illustration:
    """The share of right answers against their confidence, for one or two versions of the answers to some images."""
    figure, axes = page_axes("confidence", "answers that are right")
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle=(0, (4, 4)))
    words = []
    for (name, part), colour in zip(series.items(), (BLUE, ORANGE), strict=False):
        bins = reliability(part.prediction.probabilities.amax(-1), part.right)
        sure, right, images = (np.array(each) for each in zip(*bins, strict=True))
        ends = [proportion_interval(round(of_bin.accuracy * of_bin.images), of_bin.images) for of_bin in bins]
        axes.vlines(sure, *zip(*ends, strict=True), color=colour, linewidth=0.9, alpha=0.6)
        sizes = (3.5 + 7 * np.sqrt(images / images.sum())) ** 2
        axes.scatter(sure, right, sizes, color=colour, linewidth=0, label=name, zorder=3, clip_on=False)
        shares = (f"{100 * of_bin.confidence:.0f} % sure, {100 * of_bin.accuracy:.0f} % right" for of_bin in bins)
        words.append(f"{name}: {', '.join(shares)}")
    axes.set(xlim=(0, 1), ylim=(0, 1))
    _in_percent(axes)
    page_legend(figure)
    return Illustration(title, figure, f"Reliability on {title}. {'; '.join(words)}.")


@rc_context(PAGE_FONTS)
def risk_figure(title: str, part: Answered) -> Illustration:
    """The share of wrong answers if only the k surest of N images are answered, k = 1 … N.

    The figure has a line for all samples together and one for each of the first `ALONE` samples by itself. If a
    threshold of "I don't know" was fitted, a point marks it.
    """
    prediction, samples = part.prediction, len(part.prediction.weights)
    together = risk_by_coverage(prediction.uncertainty(), part.right).numpy()
    alone = [
        risk_by_coverage(1 - probabilities.amax(-1), probabilities.argmax(-1) == part.labels).numpy()
        for probabilities in (prediction.per_sample[:ALONE] if samples > 1 else [])
    ]
    rows = 1 if prediction.threshold is None else 2
    figure, axes = page_axes("images that are answered", "answers that are wrong", rows=rows)
    chosen = np.unique(np.linspace(0, len(together) - 1, POINTS // 2).round().astype(int))
    coverage = (chosen + 1) / len(together)
    for number, risks in enumerate(alone):
        label = "each sample alone" if len(alone) == samples else f"{len(alone)} of the samples alone"
        axes.plot(coverage, risks[chosen], color=GREY, linewidth=0.7, alpha=0.6, label="" if number else label)
    axes.plot(coverage, together[chosen], color=BLUE, linewidth=1.6, label="all samples together")
    if prediction.threshold is not None:
        answered = ~prediction.unsure()
        place = answered.double().mean().item(), (~part.right[answered]).double().mean().nan_to_num().item()
        axes.scatter(*place, 26, color=VERMILION, label="the threshold of “I don’t know”", zorder=3, clip_on=False)
    highest = max(risks.max() for risks in (together, *alone))
    axes.set(xlim=(0, 1), ylim=(0, max(0.02, 1.08 * highest)))
    _in_percent(axes)
    page_legend(figure)
    half = len(together) // 2
    return Illustration(
        title,
        figure,
        f"Risk by coverage on {title}: {100 * together[-1]:.1f} % of all answers are wrong, and "
        f"{100 * together[half]:.1f} % if the surest half is answered.",
    )


class StepFigure(NamedTuple):
    """A figure over the steps of a training. `lines` has the columns of the log, each with its name and its colour.

    One that is `wide` also names the sampling stages and marks the steps after which a sample was kept.
    """

    title: str
    unit: str
    lines: Mapping[str, tuple[str, str]]
    caption: str
    log_scale: bool = False
    smooth: bool = False
    wide: bool = False


LOGGED = (
    StepFigure(
        "Loss",
        "nats",
        {"loss": ("mean loss of the batch", BLUE)},
        "Loss of single batches (thin) and its running mean.",
        smooth=True,
    ),
    StepFigure(
        "Temperatures",
        "temperature",
        {
            "kinetic_temperature": ("of the momentum", BLUE),
            "configurational_temperature": ("of the position", ORANGE),
            "temperature": ("requested", VERMILION),
        },
        "At equilibrium, the kinetic temperature (of the momentum) and the configurational temperature (of the "
        "position) are the requested one on average. Values below zero are not drawn.",
        log_scale=True,
    ),
    StepFigure(
        "Distance to earlier samples",
        "squared distance",
        {"distance": ("squared distance to the nearest one", BLUE)},
        "In the feature space in which samples repel each other. The first cycle has no earlier sample.",
    ),
    StepFigure(
        "Force",
        "norm",
        {"force_norm": ("sum of the norms of the samples' forces", BLUE)},
        "The force acts in the stage that the settings name, and is zero elsewhere.",
    ),
)


def training_figures(log: Sequence[Mapping[str, float]], course: Course | None) -> list[Illustration]:
    """The figure of the schedule, if its course is known, and those of `LOGGED` whose columns the log has."""
    figures = [_over_steps(kind, log, course) for kind in LOGGED]
    if course is not None:
        noise = "Noise is added in the shaded stages." if course.sampling_stages() else "No noise is added."
        cycles, steps = number_of(len(course.cycles), "cycle"), number_of(len(course.lr), "step")
        caption = f"{cycles} in {steps}. {noise} A dot marks a sample that is kept. "
        caption += "Chains side by side are drawn one after the other."
        schedule = StepFigure("Schedule", "learning rate", {"lr": ("learning rate", BLUE)}, caption, wide=True)
        rates = [{"step": step, "lr": rate} for step, rate in enumerate(course.lr)]
        figures.insert(0, _over_steps(schedule, rates, course))
    return [figure for figure in figures if figure is not None]


@rc_context(PAGE_FONTS)
def _over_steps(kind: StepFigure, log: Sequence[Mapping[str, float]], course: Course | None) -> Illustration | None:
    """Some columns of the log over the steps; None if the log has no values for them."""
    series = {}
    for name in kind.lines:
        points = np.array([(row["step"], row.get(name, math.nan)) for row in log]).reshape(-1, 2)
        points = points[np.isfinite(points[:, 1]) & ((points[:, 1] > 0) | (not kind.log_scale))]
        if len(points):
            parts = np.array_split(points, min(len(points), 3 * POINTS if kind.wide else POINTS))
            series[name] = np.array([part.mean(0) for part in parts])
    if not series.keys() - {"temperature"}:
        return None
    legend = kind.wide or len(series) > 1
    figure, axes = page_axes("step", kind.unit, wide=kind.wide, rows=int(legend))
    for name, points in series.items():
        label, colour = kind.lines[name]
        steps, values = points.T
        if name == "temperature":
            axes.scatter(steps, values, 5, color=colour, linewidth=0, label=label)
        elif kind.smooth and len(points) > 8:
            axes.plot(steps, values, color=colour, linewidth=0.7, alpha=0.4)
            reach = max(2, len(points) // 20)
            means = [values[max(0, index - reach) : index + reach + 1].mean() for index in range(len(values))]
            axes.plot(steps, means, color=colour, label=label)
        else:
            axes.plot(steps, values, color=colour, label=label, marker="." if len(points) == 1 else "")
    values = np.concatenate([points[:, 1] for points in series.values()])
    if kind.log_scale:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(numticks=7))
        axes.yaxis.set_minor_locator(NullLocator())
    elif values.min() >= 0:
        axes.set_ylim(bottom=0)
    last = max(len(course.lr) if course else 0, int(log[-1]["step"]) + 1)
    axes.set_xlim(0, last)
    if course is not None:
        _mark_stages(axes, course, kind.wide)
    if legend:
        page_legend(figure, columns=3)
    about = f"{kind.title}: {kind.unit} over {last} steps, from {values.min():.3g} to {values.max():.3g}."
    return Illustration(kind.title, figure, about, kind.caption, kind.wide)


def _mark_stages(axes: Axes, course: Course, named: bool) -> None:
    """Shade the sampling stages and mark where cycles begin. If `named`, also mark the samples and name both."""
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    upright = axes.get_xaxis_transform()
    if named:
        samples = course.samples[:POINTS]
        axes.scatter(samples, [0] * len(samples), 22, color=VERMILION, label="sample", zorder=3, clip_on=False)
    if stages := course.sampling_stages():
        label = "sampling stage" if named else ""
        axes.broken_barh(stages, (0, 1), transform=upright, color=BLUE, alpha=0.1, linewidth=0, label=label)
    axes.vlines(course.cycles[1:POINTS], 0, 1, transform=upright, color=GREY, linewidth=0.6, linestyle=":")


def _in_percent(axes: Axes) -> None:
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda share, _: f"{100 * share:g} %")
