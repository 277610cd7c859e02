"""The drawings of a report: calibration, selective answers, and the course of a training."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch

from rebapl.data.fewshot import spread
from rebapl.evaluation.intervals import accuracy_interval
from rebapl.evaluation.scores import Bin, reliability, risk_by_coverage
from rebapl.evaluation.temperature import tempered
from rebapl.reports.inspection import Answered, Course
from rebapl.reports.svg import Axis, Plot, Point

POINTS = 240
"""A line is drawn through at most so many points."""

ALONE = 20
"""At most so many samples have a line of their own."""

Log = Sequence[Mapping[str, float]]


class Figure(NamedTuple):
    """A drawing with its heading, the sentences below it, and the colours of its shapes by what they stand for."""

    title: str
    svg: str
    caption: str
    legend: Mapping[str, str]
    wide: bool = False


def reliability_figure(answered: Answered, title: str, temperature: float | None) -> Figure:
    """How often answers are right by how sure they are, as given and with a temperature."""
    unit = Axis("confidence", 0, 1, percent=True), Axis("answers that are right", 0, 1, percent=True)
    given = answered.prediction.probabilities
    series = {"as given": ("blue", given)}
    if temperature is not None:
        series[f"with temperature {temperature:.2f}"] = ("orange", tempered(given, temperature))
    drawn: list[tuple[str, list[Bin]]] = []
    for look, probabilities in series.values():
        confidence, answers = probabilities.max(-1)
        drawn.append((look, reliability(confidence, answers == answered.labels)))
    about = "; ".join(
        f"{name}: "
        + ", ".join(f"{100 * each.confidence:.0f} % sure, {100 * each.accuracy:.0f} % right" for each in bins)
        for name, (_, bins) in zip(series, drawn, strict=True)
    )
    plot = Plot(*unit, about=f"Reliability on {title}. {about}.", height=300)
    plot.line([(0, 0), (1, 1)], "grey dashed")
    for look, bins in drawn:
        for each in bins:
            right = torch.arange(each.images) < round(each.accuracy * each.images)
            low, high = accuracy_interval(right)
            plot.upright(each.confidence, low / 100, high / 100, f"{look} thin")
        for each in bins:
            words = (
                f"{each.images} images, {100 * each.confidence:.1f} % sure, {100 * each.accuracy:.1f} % of them right"
            )
            plot.dot(each.confidence, each.accuracy, look, 2.5 + 4.5 * math.sqrt(each.images / len(given)), words)
    return Figure(
        title,
        plot.to_svg(),
        "",
        {name: look for name, (look, _) in series.items()},
    )


def risk_coverage_figure(answered: Answered, title: str) -> Figure:
    """The share of wrong answers if only the surest images are answered."""
    prediction, count = answered.prediction, len(answered.labels)

    def curve(uncertainty: torch.Tensor, right: torch.Tensor) -> list[Point]:
        risks = risk_by_coverage(uncertainty, right).tolist()
        return [((index + 1) / count, risks[index]) for index in sorted({*spread(count, POINTS), count - 1})]

    together = curve(prediction.uncertainty(), answered.right)
    alone = [
        curve(1 - probabilities.amax(-1), probabilities.argmax(-1) == answered.labels)
        for probabilities in (prediction.per_sample[:ALONE] if len(prediction.weights) > 1 else [])
    ]
    risks = [risk for points in (together, *alone) for _, risk in points]
    half = together[min(len(together) - 1, len(together) // 2)]
    plot = Plot(
        Axis("images that are answered", 0, 1, percent=True),
        Axis("answers that are wrong", 0, max(0.02, 1.08 * max(risks)), percent=True),
        about=(
            f"Risk by coverage on {title}: {100 * together[-1][1]:.1f} % of all answers are wrong, and "
            f"{100 * half[1]:.1f} % if the surest {100 * half[0]:.0f} % are answered."
        ),
        height=300,
    )
    for points in alone:
        plot.line(points, "grey thin")
    plot.line(together, "blue")
    legend = {"all samples together": "blue"}
    if alone:
        legend["each sample alone" if len(alone) == len(prediction.weights) else f"{ALONE} samples alone"] = "grey"
    threshold = prediction.threshold
    if threshold is not None:
        answers = ~prediction.unsure()
        share = answers.double().mean().item()
        wrong = (~answered.right[answers]).double().mean().item() if share else 0.0
        plot.dot(share, wrong, "vermilion", 5, f"{100 * share:.1f} % answered, {100 * wrong:.1f} % of them wrong")
        legend["the threshold of “I don’t know”"] = "vermilion"
    return Figure(title, plot.to_svg(), "", legend)


def schedule_figure(course: Course) -> Figure:
    """The learning rate of each step, with the stages and the samples."""
    steps = len(course.lr)
    plot = _over_steps(course, steps, "learning rate", course.lr, zero=True, wide=True)
    chosen = sorted(
        {*spread(steps, 3 * POINTS), *course.cycles, *(max(0, step - 1) for step in course.cycles), steps - 1}
    )
    plot.line([(step, course.lr[step]) for step in chosen], "blue")
    for step in course.samples[:200]:
        plot.dot(step, plot.y.low, "vermilion", 4, f"sample after step {step}")
    sampling = any(not exploring for exploring in course.exploring)
    about = f"{len(course.cycles)} cycles in {steps} steps. "
    about += "Noise is added in the shaded stages. " if sampling else "No noise is added in this inference. "
    return Figure(
        "Schedule",
        plot.to_svg(),
        f"{about}A dot marks a sample that is kept. Chains side by side are drawn one after the other.",
        {"learning rate": "blue", "sample": "vermilion", **({"sampling stage": "shade"} if sampling else {})},
        wide=True,
    )


def log_figures(log: Log, course: Course | None) -> list[Figure]:
    """Loss, temperatures and repulsion over the steps, as far as they were logged."""
    return [
        figure
        for figure in (
            _logged(
                log, course, "Loss", {"loss": ("mean loss of the batch", "blue")},
                "Loss of single batches (thin) and its running mean.", "nats", smooth=True,
            ),
            _logged(
                log,
                course,
                "Temperatures",
                {
                    "kinetic_temperature": ("of the momentum", "blue"),
                    "configurational_temperature": ("of the position", "orange"),
                    "temperature": ("asked for", "vermilion"),
                },
                "The kinetic one (momentum) and the configurational one (position) average to the one asked for at "
                "equilibrium. Values below zero are not drawn.",
                "temperature",
                log_scale=True,
            ),
            _logged(
                log, course, "Distance to earlier samples",
                {"distance": ("squared distance to the nearest one", "blue")},
                "In the feature space in which samples repel each other. The first cycle has no earlier sample.",
                "squared distance",
            ),
            _logged(
                log, course, "Force", {"force_norm": ("norm of the repulsive force", "blue")},
                "The force acts in the stage that the settings name, and is zero elsewhere.", "norm",
            ),
        )
        if figure is not None
    ]  # fmt: skip


def _logged(
    log: Log,
    course: Course | None,
    title: str,
    columns: Mapping[str, tuple[str, str]],
    caption: str,
    unit: str,
    *,
    log_scale: bool = False,
    smooth: bool = False,
) -> Figure | None:
    """Some columns of the log over the steps; None where it has no values for them."""
    series = {
        name: [(row["step"], row[name]) for row in log if math.isfinite(row.get(name, math.nan))] for name in columns
    }
    if log_scale:
        series = {name: [(step, value) for step, value in points if value > 0] for name, points in series.items()}
    series = {name: _binned(points) for name, points in series.items() if points}
    if not series or (log_scale and set(series) == {"temperature"}):
        return None
    steps = max(len(course.lr) if course else 0, int(log[-1]["step"]) + 1)
    values = [value for points in series.values() for _, value in points]
    plot = _over_steps(course, steps, unit, values, log_scale=log_scale, zero=not log_scale)
    for name, points in series.items():
        look = columns[name][1]
        if name == "temperature":
            for step, value in points:
                plot.dot(step, value, look, 2.4)
        elif smooth and len(points) > 8:
            plot.line(points, f"{look} faint")
            plot.line(_smoothed(points), look)
        else:
            plot.line(points, look)
    return Figure(title, plot.to_svg(), caption, {columns[name][0]: columns[name][1] for name in series})


def _over_steps(
    course: Course | None,
    steps: int,
    label: str,
    values: Sequence[float],
    *,
    log_scale: bool = False,
    zero: bool = False,
    wide: bool = False,
) -> Plot:
    """Axes over the steps of a training, with the sampling stages shaded and the beginnings of cycles marked."""
    y = Axis.around(label, values, log=log_scale, zero=zero)
    known = [value for value in values if math.isfinite(value)]
    about = f"{label} over {steps} steps, from {min(known):.3g} to {max(known):.3g}."
    plot = Plot(Axis("step", 0, max(1, steps)), y, about, *((880.0, 230.0) if wide else (420.0, 240.0)))
    if course is not None:
        for start, end, exploring in course.stages():
            if not exploring:
                plot.band(start, end, "shade")
        for step in course.cycles[1:200]:
            plot.upright(step, y.low, y.high, "boundary")
    return plot


def _binned(points: Sequence[Point]) -> list[Point]:
    """At most `POINTS` means of neighbouring points."""
    size = math.ceil(len(points) / POINTS)
    chunks = [points[first : first + size] for first in range(0, len(points), size)]
    return [(_mean(chunk, lambda point: point[0]), _mean(chunk, lambda point: point[1])) for chunk in chunks]


def _smoothed(points: Sequence[Point]) -> list[Point]:
    """The running mean over a twentieth of the points on each side."""
    reach = max(2, len(points) // 20)
    return [
        (step, _mean(points[max(0, index - reach) : index + reach + 1], lambda point: point[1]))
        for index, (step, _) in enumerate(points)
    ]


def _mean(points: Sequence[Point], read: Callable[[Point], float]) -> float:
    return sum(map(read, points)) / len(points)
