"""`rebapl report`: one HTML file about one run or several."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rebapl.cli import options
from rebapl.errors import UserError, printable


def report(
    runs: Annotated[list[Path], typer.Argument(autocompletion=options.complete_runs)],
    *,
    out: Path = Path("report.html"),
    root: Path | None = None,
    backbone: str | None = None,
    device: options.OneDevice = None,
    quiet: options.QuietOption = False,
) -> None:
    """Write a report on runs: one HTML file that needs no network.

    Parameters:
        runs: Folders of runs. All others are compared with the first.
        out: File to write.
    """
    if out.is_dir():
        raise UserError(f"--out {out} is a folder: name a file in it, such as {out / 'report.html'}")
    if len({run.resolve() for run in runs}) < len(runs):
        raise UserError("a run is named twice: name each once")
    from rebapl.cli.progress import StepProgress
    from rebapl.reports.html import write_report
    from rebapl.reports.inspection import InspectedRun
    from rebapl.runs.machine import best_device

    device = best_device(device)
    with StepProgress(quiet, "images") as progress:
        inspected = [
            InspectedRun(
                run,
                root=root,
                device=device,
                backbone=backbone,
                progress=progress.begin(f"predicting {printable(str(run))}"),
            )
            for run in runs
        ]
        write_report(inspected, out)
    print(f"the report: {out}")
