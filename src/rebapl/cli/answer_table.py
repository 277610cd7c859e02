"""A prediction as a table for a terminal."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rebapl.errors import printable
from rebapl.posterior.records import LEVEL, Record, said

WIDTH = 120


def as_table(answers: list[Record], samples: int, level: float | None, coloured: bool) -> str:
    """A table for a terminal, with a row for each image and class. The first row of an image has its measures.

    `level` is the level of the prediction sets; None if there are none.
    """
    caption = "one sample: no interval"
    if samples > 1:
        caption = f"interval: where at least {LEVEL:.0%} of the {samples} samples' weight lies"
    if level is not None:
        caption += f"\nset: the classes among which the right one is for {100 * level:g} % of images"
    table = Table(caption=caption, caption_justify="left")
    table.add_column("image", overflow="fold")
    table.add_column("answer")
    for name in ("probability", "interval", "entropy", "mutual information"):
        table.add_column(name, justify="right")
    if level is not None:
        table.add_column("set", overflow="fold")
    for answer in answers:
        image = escape(printable(answer["image"]))
        if answer["error"] is not None:
            table.add_row(image, f"[red]cannot be read: {escape(answer['error'])}[/red]", end_section=True)
            continue
        first, *others = answer["top"]
        name = printable(first["class"])
        shown = f"{said(answer)} ({name}?)" if answer["answer"] is None else name
        measures = [f"{answer['entropy']:.3f}", f"{answer['mutual_information']:.3f}"]
        if level is not None:
            measures.append(escape(printable(", ".join(answer["set"]))))
        table.add_row(image, escape(shown), *_numbers(first), *measures, end_section=not others)
        for other in others:
            last = other is others[-1]
            table.add_row("", f"[dim]{escape(printable(other['class']))}[/dim]", *_numbers(other), end_section=last)
    text = io.StringIO()
    Console(file=text, width=None if coloured else WIDTH, force_terminal=coloured, no_color=not coloured).print(table)
    return text.getvalue().rstrip("\n")


def _numbers(of_class: dict[str, Any]) -> tuple[str, str]:
    low, high = of_class["low"], of_class["high"]
    return f"{of_class['probability']:.3f}", "–" if low is None else f"{low:.3f} … {high:.3f}"
