"""Put the measurements of `speed.py` into docs/performance.md: tables, and a figure of growth.

    python benchmarks/speed_page.py

The lines between `<!-- measured: NAME -->` and `<!-- end -->` are replaced by the tables of docs/benchmarks/NAME.json.
If there is no such file, they stay as they are.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from rebapl.files import read_json, write_atomically
from rebapl.reports.style import BOTH_COLUMNS, PAPER_FONTS, bare_axes, line_style, save_figure
from rebapl.reports.tables import Cell, Row, Table

DOCS = Path(__file__).parents[1] / "docs"
PLACE = re.compile(r"(?<=<!-- measured: )([\w-]+) -->\n(.*?)(?=<!-- end -->)", flags=re.DOTALL)
MIB = 2**20
GROWS = {
    "classes": "classes",
    "images": "reference images $n$",
    "samples": "remembered samples",
    "tokens": "tokens of a text",
}
"""The sizes with which a step grows, and their titles in the figure."""

Rows = Sequence[Mapping[str, Any]]


def filled(page: str) -> str:
    """The page with the tables of all measurements."""
    return PLACE.sub(lambda place: f"{place[1]} -->\n{shown(place[1]) or place[2]}", page)


def shown(name: str) -> str:
    """The text for a measurement on the page; empty if there is no measurement."""
    path = DOCS / "benchmarks" / f"{name}.json"
    if not path.exists():
        return ""
    measured = read_json(path, "a measurement")
    parts = [table.to_markdown() for table in tables(measured)]
    if any(row["along"] for row in measured["steps"]):
        parts.append(f"![how a step and an answer grow: {name}](images/{name}.png)\n")
    parts.append(f"All numbers: [`benchmarks/{name}.json`](benchmarks/{name}.json).\n")
    return "\n" + "\n".join(parts) + "\n"


def tables(measured: Mapping[str, Any]) -> list[Table]:
    """The table of steps, with notes on the measurements below it, and the table of answers."""
    steps, answers = ([row for row in measured[kind] if not row["along"]] for kind in ("steps", "answers"))
    return [
        *([step_table(steps, how(measured["about"]))] if steps else []),
        *([answer_table(answers)] if answers else []),
    ]


def step_table(steps: Rows, notes: Sequence[str]) -> Table:
    """A row for each number of classes and each force. The baseline has an impulse at every step instead."""
    gpu = any(row["peak"] is not None for row in steps)
    plain = {(row["classes"], row["repulsion"]): row for row in steps if "plain_mean" in row}
    rows: list[Row] = []
    for each in steps:
        beside = plain.get((each["classes"], each["repulsion"]), {})
        row: list[Cell | str] = [str(each["classes"]), force_name(each), Cell(each["median"]), Cell(each["mean"])]
        row += [Cell(beside.get("plain_median")), Cell(beside.get("plain_mean"))]
        row.append(_times(each["mean"], beside.get("plain_mean")))
        rows.append([*row, _mib(each["peak"]), _mib(beside.get("plain_peak"))] if gpu else row)
    first, lengths = steps[0], sorted({each["tokens"] for each in steps})
    tokens = f"A text has {' to '.join(map(str, lengths[:: len(lengths) - 1 or 1]))} tokens with rebapl"
    tokens += "".join(f", {each['plain_tokens']} plainly" for each in [*plain.values()][:1])
    columns = ["classes", "repulsion", "median", "mean", "plain, median", "plain, mean", "times quicker"]
    return Table(
        f"Milliseconds of a training step: {first['method']}, batch {first['batch']}, "
        f"{first['images']} reference images",
        [*columns, *(["rebapl", "plain"] if gpu else [])],
        rows,
        [*notes, f"{tokens}."],
        groups=[("", len(columns)), ("peak MiB", 2)] if gpu else (),
        merged=1,
    )


def answer_table(answers: Rows) -> Table:
    """A row for each method and number of samples."""
    rows: list[Row] = []
    for each in answers:
        row: list[Cell | str] = [each["method"], str(each["samples"])]
        row += [Cell(each["one"]), Cell(each.get("plain_one")), _times(each["one"], each.get("plain_one"))]
        paces = [Cell(None if time is None else 1000 * each["images"] / time, digits=0) for time in _many(each)]
        rows.append([*row, *paces, _times(*_many(each))])
    first = answers[0]
    return Table(
        f"Answers among {first['classes']} classes",
        ["method", "samples", *("rebapl", "plain", "times quicker") * 2],
        rows,
        groups=[("", 2), ("one image, ms", 3), (f"{first['images']} images, images/s", 3)],
        merged=1,
    )


def _many(row: Mapping[str, Any]) -> tuple[float, float | None]:
    return row["many"], row.get("plain_many")


def _times(ours: float, plain: float | None) -> Cell:
    return Cell(None if plain is None else plain / ours, digits=1)


def _mib(peak: int | None) -> Cell:
    return Cell(None if peak is None else peak / MIB, digits=0)


def backbone_name(about: Mapping[str, Any]) -> str:
    """The backbone in words, with its floating-point type."""
    shape = "the shape of CLIP ViT-B/16 with random weights" if about["backbone"] == "random" else about["backbone"]
    return f"{shape}, {about['dtype']}"


def how(about: Mapping[str, Any]) -> list[str]:
    """Notes on the machine, and on how the times were measured."""
    threads = "" if about["device"].startswith("cuda") else f", {about['threads']} threads"
    captured = "passes captured and compiled" if about["captured"] else "operation by operation"
    return [
        f"{about['device']}{threads}; backbone: {backbone_name(about)}; torch {about['versions']['torch']}; "
        f"rebapl {about['versions']['rebapl']}, {captured}.",
        f"rebapl: {about['steps']} steps in a row after {about['warm_up']} that do not count; the mean includes the "
        f"steps that measure norms, one in ten. Plain: {about['plain_steps']} after {about['plain_warm_up']}. "
        f"Answers: the median of the calls within {about['seconds']:g} s.",
        "Plain is the same work done the obvious way: texts of full length, every position in every layer, the "
        "reference images in a pass of their own, operation by operation; one learner after the other answers, and "
        "encodes the texts in each call.",
    ]


def force_name(row: Mapping[str, Any]) -> str:
    """The force of a row in words.

    >>> force_name({"repulsion": None, "every": 1}), force_name({"repulsion": "mmd", "every": 4})
    ('none', 'MMD every 4 steps')
    """
    distance = row["repulsion"] or "none"
    name = distance if distance in ("none", "energy") else "MMD" if distance == "mmd" else distance.capitalize()
    return name + (f" every {row['every']} steps" if row["every"] > 1 else "")


def growth_figure(measured: Mapping[str, Any]) -> Figure:
    """Median times of a step against four sizes, and of an answer against samples. The plain baseline is dashed."""
    steps = [row for row in measured["steps"] if row["along"]]
    answers = [row for row in measured["answers"] if row["along"]]
    panels = [name for name in GROWS if any(row["along"] == name for row in steps)]
    forces = list(dict.fromkeys(map(force_name, steps)))
    with rc_context(PAPER_FONTS):
        figure = Figure(figsize=(BOTH_COLUMNS, 2.2 * math.ceil((len(panels) + 2) / 3)), layout="constrained")
        axes = list(figure.subplots(math.ceil((len(panels) + 2) / 3), 3).flat)
        lines: dict[str, Any] = {}
        for name in panels:
            panel = axes.pop(0)
            for force in forces:
                rows = [row for row in steps if row["along"] == name and force_name(row) == force]
                lines |= _lines(panel, rows, name, "median", force, forces.index(force))
            _finish(panel, GROWS[name], "milliseconds per step")
        if answers:
            panel = axes.pop(0)
            _lines(panel, answers, "samples", "one", answers[0]["method"], 0)
            panel.legend(frameon=False)
            _finish(panel, "samples that answer", "milliseconds per answer\nto one image")
        axes[0].legend(handles=[*lines.values()], loc="center", frameon=False, title="training step")
        for panel in axes:
            panel.axis("off")
        about, method = measured["about"], steps[0]["method"]
        title = f"{method} on {about['device']}, {backbone_name(about)}"
        figure.suptitle(title, fontsize=8, x=0.01, ha="left")
    return figure


def _lines(axes: Axes, rows: Rows, along: str, time: str, name: str, index: int) -> dict[str, Any]:
    """Draw a line of `rows` and, if the baseline was timed, a dashed one. Returns the lines by name."""
    drawn = {}
    colour, marker = line_style(index)
    for key, label, dashes in ((time, name, "-"), (f"plain_{time}", f"{name}, plain", "--")):
        points = [(row[along], row[key]) for row in rows if key in row]
        if points:
            style: dict[str, Any] = {"color": colour, "marker": marker, "ms": 3.5, "lw": 1.2, "label": label}
            (drawn[label],) = axes.plot(*zip(*points, strict=True), dashes, **style)
    return drawn


def _finish(axes: Axes, x: str, y: str) -> None:
    """Make the axes logarithmic, with a tick at each measured size."""
    bare_axes(axes)
    axes.set(xlabel=x, ylabel=y, xscale="log", yscale="log")
    sizes = np.unique(np.concatenate([np.asarray(line.get_xdata()) for line in axes.lines]))
    axes.xaxis.set_major_locator(FixedLocator(sizes.tolist()))
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def main() -> None:
    """Write the page and the figures anew."""
    write_atomically(DOCS / "performance.md", filled((DOCS / "performance.md").read_text(encoding="utf-8")))
    for path in sorted((DOCS / "benchmarks").glob("bench-*.json")):
        measured = read_json(path, "a measurement")
        if any(row["along"] for row in measured["steps"]):
            save_figure(growth_figure(measured), DOCS / "images" / f"{path.stem}.png", settings=PAPER_FONTS)


if __name__ == "__main__":
    main()
