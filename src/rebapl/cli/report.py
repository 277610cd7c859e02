"""`rebapl report`: one HTML file about one run or several."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rebapl.cli.options import QuietOption, complete_runs
from rebapl.errors import UserError, printable


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Folders of runs; the others are compared with the first.", autocompletion=complete_runs),
    ],
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("report.html"),
    root: Annotated[
        Path | None, typer.Option(help="Folder of the published data sets; $REBAPL_DATA if not given.")
    ] = None,
    backbone: Annotated[str | None, typer.Option(help="Where the backbone is now, if it was moved.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 …; the GPU if there is one.")] = None,
    quiet: QuietOption = False,
) -> None:
    """Write a report on runs: one HTML file that needs no network."""
    if out.is_dir():
        raise UserError(f"--out {out} is a folder: name a file in it, such as {out / 'report.html'}")
    if len({run.resolve() for run in runs}) < len(runs):
        raise UserError("a run is named twice: name each once")
    from rebapl.cli.progress import StepProgress
    from rebapl.reports.html import write_report
    from rebapl.reports.inspection import InspectedRun
    from rebapl.runs.machine import KeptBackbone, best_device

    device, load = best_device(device), KeptBackbone()
    with StepProgress(quiet, "images") as progress:
        inspected = [
            InspectedRun(
                run,
                root=root,
                device=device,
                backbone=backbone,
                progress=progress.begin(f"predicting {printable(str(run))}"),
                load=load,
            )
            for run in runs
        ]
        write_report(inspected, out)
    print(f"the report: {out}")
