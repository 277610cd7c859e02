"""The options of `rebapl train`, `rebapl reproduce` and `rebapl predict` that say where runs or shards are done."""

from __future__ import annotations

from typing import Annotated

import typer

from rebapl.runs.server import begin_server


def expect_workers(context: typer.Context, given: str | int | None) -> str | int | None:
    """If several runs at a time are asked for, let workers begin to import now, while the command itself does.

    Where the shell only asks how a word goes on, nothing is begun.
    """
    several = (isinstance(given, int) and given > 1) or (isinstance(given, str) and "," in given)
    if several and not context.resilient_parsing:
        begin_server()
    return given


EngineName = Annotated[
    str,
    typer.Option(
        "--engine",
        help="Where runs happen: local (this machine), ray (a Ray cluster) or slurm (jobs of SLURM).",
    ),
]
Device = Annotated[
    str | None,
    typer.Option(
        "--device",
        callback=expect_workers,
        help="cpu, cuda, or several: cuda:0,cuda:1; the GPU if there is one.",
    ),
]
Jobs = Annotated[
    int | None,
    typer.Option(
        "--jobs", min=1, callback=expect_workers, help="Runs or shards at a time on each device; 1 if not given."
    ),
]
Address = Annotated[
    str | None,
    typer.Option("--address", help="Address of the Ray cluster, such as auto; $RAY_ADDRESS, or this machine alone."),
]
Partition = Annotated[str | None, typer.Option("--partition", help="Partition of SLURM.")]
Time = Annotated[
    str | None, typer.Option("--time", help="Time limit of a job of SLURM, such as 2:00:00; it goes on in another job.")
]
CpusPerRun = Annotated[
    float | None, typer.Option("--cpus-per-run", help="CPUs of a run or shard on ray or slurm; 1 if not given.")
]
GpusPerRun = Annotated[
    float | None,
    typer.Option(
        "--gpus-per-run",
        help="GPUs of a run or shard. On ray a share is possible, such as 0.25; 1 if not given and there are any. On "
        "slurm 0 if not given.",
    ),
]
