"""`rebapl run`: do one run from a file. It is the unit of work for any scheduler."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from rebapl.cli.values import QuietOption, TrackOption, parse_trackers
from rebapl.errors import UserError

FAILED = 1
"""The exit code of a run that failed, other than by bad input."""


def run(
    config: Annotated[Path, typer.Argument(help="YAML file with the settings, or the config.json of a run.")],
    runs: Annotated[Path, typer.Option(help="Folder of runs; this one gets a folder named after its settings.")] = Path(
        "runs"
    ),
    root: Annotated[
        Path | None, typer.Option(help="Folder of the published data sets; $REBAPL_DATA if not given.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 …; the GPU if there is one.")] = None,
    track: TrackOption = None,
    quiet: QuietOption = False,
) -> None:
    """Train and score one run, as far as that is not done, and print its folder.

    The exit code is 0 when the run is done, 2 for bad input, 1 when the run failed and 130 when it was interrupted.
    """
    from rebapl.cli.console import RunProgress
    from rebapl.runs.config_file import build_config, read_config_file
    from rebapl.runs.engine import LocalEngine
    from rebapl.runs.jobs import Job

    job = Job.of(build_config(read_config_file(config)), runs, root=root, track=parse_trackers(track))
    engine = LocalEngine(None if device is None else [device])
    with RunProgress(quiet) as progress:
        (outcome,) = engine.run([job], progress.show)
    if outcome.failure is None:
        print(outcome.folder)
    elif outcome.failure.kind == "bad input":
        raise UserError(outcome.failure.message)
    else:
        print(f"the run {outcome.folder} failed: {outcome.failure}", file=sys.stderr)
        raise typer.Exit(FAILED)
