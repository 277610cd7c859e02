"""The options of `rebapl train`, `rebapl reproduce` and `rebapl predict` that say where runs or shards are done."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rebapl.cli.values import parse_names
from rebapl.errors import UserError
from rebapl.runs.workers import begin_server

if TYPE_CHECKING:
    from rebapl.runs.engine import Engine


def expect_workers(context: typer.Context, given: str | int | None) -> str | int | None:
    """If several runs at a time are asked for, let the server of workers begin to import now.

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
        help="Where runs happen: local (this machine), ray (a Ray cluster), slurm (jobs of SLURM), or one of a plugin.",
    ),
]
EngineOption = Annotated[
    list[str] | None,
    typer.Option(
        "--engine-option",
        "-E",
        metavar="NAME=VALUE",
        help="An option of that engine; repeatable. ray: address, cpus, gpus (of a run; a share such as 0.25 is "
        "possible). slurm: partition, time, cpus, gpus.",
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


def engine_of(
    name: str, runs: Path, device: str | None = None, jobs: int | None = None, options: Sequence[str] | None = None
) -> Engine[Any]:
    """The engine that the options ask for, for runs in this folder."""
    from rebapl.runs.engines import build_engine

    given = {}
    for word in options or ():
        option, equals, value = word.partition("=")
        if not equals or not value:
            raise UserError(f"--engine-option {word}: write NAME=VALUE, such as address=auto or time=2:00:00")
        given[option.strip().replace("-", "_")] = value.strip()
    return build_engine(name, runs, devices=parse_names(device), jobs=jobs, options=given)
