"""`rebapl results`: what is in a folder of runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rebapl.errors import unknown

if TYPE_CHECKING:
    from rebapl.experiments.tables import Table


def results(
    runs: Annotated[
        list[Path] | None, typer.Argument(help="Folders of runs, or single runs; runs/ if not given.")
    ] = None,
    export: Annotated[
        list[Path] | None,
        typer.Option(
            help="File to write as well; its ending says what: .md or .tex (the tables), or .csv (every score of every "
            "run, part and sample, unrounded). Repeatable."
        ),
    ] = None,
) -> None:
    """Show the scores of all finished runs, over seeds."""
    from rebapl.experiments.results import find_runs, long_list, result_tables
    from rebapl.files import write_atomically

    endings = (".csv", ".md", ".tex")
    for file in export or []:
        if file.suffix not in endings:
            raise unknown("ending of --export", file.suffix or file.name, endings)
    found = find_runs(runs or [Path("runs")])
    tables = result_tables(found)
    for table in tables:
        _print(table)
    if not found.runs:
        print("no run here has results yet")
    for title, folders in (
        ("trained, not scored (rebapl evaluate RUN)", found.unscored),
        ("not finished (the same rebapl train goes on)", found.untrained),
    ):
        if folders:
            print(f"{title}: {', '.join(map(str, folders[:5]))}{' …' if len(folders) > 5 else ''}")
    for file in export or []:
        if file.suffix == ".csv":
            text = long_list(found.runs)
        else:
            text = "\n".join(each.to_markdown() if file.suffix == ".md" else each.to_latex() for each in tables)
        write_atomically(file, text)
        print(f"written: {file}")


def _print(table: Table) -> None:
    """Print a table as wide as it is, or, in a terminal that is narrower, with cells on several lines."""
    from rich import box
    from rich.console import Console

    console, shown = Console(), table.to_rich()
    wide = console.measure(shown, options=console.options.update(max_width=1000)).maximum
    if wide > console.width and not console.is_terminal:
        console = Console(width=wide)
    elif wide > console.width:
        shown.box, shown.pad_edge = box.SIMPLE_HEAD, False
        for column in shown.columns:
            column.no_wrap, column.overflow = False, "fold"
            column.min_width = max(len(word) for cell in column.cells for word in str(cell).split() or [""])
    console.print(shown)
