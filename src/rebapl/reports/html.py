"""The report on one run or several as one HTML file, which loads nothing and runs no script.

The template escapes every text that it is given; only drawings of `rebapl.reports.svg`, which escape theirs, go in as
they are. A policy in the page forbids the browser to load anything, whatever a class name or a path may hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from rebapl import __version__
from rebapl.errors import UserError, printable
from rebapl.files import write_atomically
from rebapl.reports.inspection import Inspected
from rebapl.reports.paired import compare
from rebapl.reports.pieces import page_table
from rebapl.reports.results import result_tables
from rebapl.reports.sections import lead, sections, tiles, warnings
from rebapl.reports.style import BLUE, GREEN, ORANGE, SKY, VERMILION
from rebapl.runs.folder import Found

COLOURS = {"blue": BLUE, "orange": ORANGE, "green": GREEN, "vermilion": VERMILION, "sky": SKY}


def write_report(inspected: Sequence[Inspected], out: Path) -> Path:
    """Write the report on these runs, whole or not at all. Several runs are compared with the first."""
    if not inspected:
        raise UserError("a report needs at least one run")
    write_atomically(out, report_html(inspected))
    return out


def report_html(inspected: Sequence[Inspected]) -> str:
    """The report as text."""
    pages = Environment(
        loader=PackageLoader("rebapl.reports", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: printable(value, keep="\n") if type(value) is str else value,
    )
    runs = [_run(seen, number) for number, seen in enumerate(inspected, 1)]
    several = len(runs) > 1
    contents = (
        [("comparison", "Comparison"), *((run["id"], run["name"]) for run in runs)]
        if several
        else [(f"{runs[0]['id']}-{section.id}", section.title) for section in runs[0]["sections"]]
    )
    return pages.get_template("report.html").render(
        title=f"Comparison of {len(runs)} runs" if several else runs[0]["name"],
        lead="" if several else runs[0]["lead"],
        contents=contents,
        comparison=_comparison(inspected) if several else None,
        runs=runs,
        colours=COLOURS,
        version=__version__,
    )


def _run(seen: Inspected, number: int) -> dict[str, Any]:
    return {
        "id": f"run-{number}",
        "name": seen.name,
        "lead": lead(seen),
        "tiles": tiles(seen),
        "warnings": warnings(seen),
        "sections": sections(seen),
    }


def _comparison(inspected: Sequence[Inspected]) -> Mapping[str, Any]:
    scored = [seen.run for seen in inspected if seen.run.result.parts]
    tables = result_tables(Found(scored, [], []))
    paired = compare(inspected)
    return {
        "tables": [page_table(table) for table in [*tables, *([paired.table] if paired.table else [])]],
        "left_out": paired.left_out,
    }
