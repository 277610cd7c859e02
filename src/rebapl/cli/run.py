"""`rebapl run`: do one run from a file. It is the unit of work for any scheduler."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rebapl.cli.values import QuietOption, TrackOption, parse_trackers


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
    from rebapl.cli.progress import StepProgress
    from rebapl.runs.config_file import build_config, read_config_file
    from rebapl.runs.engine import LocalEngine
    from rebapl.runs.jobs import check_outcomes
    from rebapl.runs.run import Job

    job = Job.of(build_config(read_config_file(config)), runs, root=root, track=parse_trackers(track))
    engine = LocalEngine(None if device is None else [device])
    with StepProgress(quiet, jobs=[job]) as progress:
        outcomes = list(engine.run([job], progress.show))
    check_outcomes(outcomes)
    print(job.folder)
