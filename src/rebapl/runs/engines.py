"""The engines by name, as the command line asks for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from rebapl.errors import UserError, unknown
from rebapl.runs.engine import LocalEngine
from rebapl.runs.jobs import Engine

Name = Literal["local", "ray", "slurm"]

_ONLY: dict[str, tuple[Name, ...]] = {
    "device": ("local",),
    "jobs": ("local",),
    "address": ("ray",),
    "partition": ("slurm",),
    "time": ("slurm",),
    "cpus_per_run": ("ray", "slurm"),
    "gpus_per_run": ("ray", "slurm"),
}


@dataclass(frozen=True)
class EngineOptions:
    """Which engine, and what was said about it. What an engine has no use for is refused.

    >>> EngineOptions("ray", jobs=3).build(Path("runs"))
    Traceback (most recent call last):
    rebapl.errors.UserError: --jobs is for --engine local, not for ray: leave it out
    """

    name: str = "local"
    device: Sequence[str] | None = None
    jobs: int | None = None
    address: str | None = None
    partition: str | None = None
    time: str | None = None
    cpus_per_run: float | None = None
    gpus_per_run: float | None = None

    def build(self, runs: Path) -> Engine:
        """The engine, for runs in this folder."""
        if self.name not in get_args(Name):
            raise unknown("engine", self.name, get_args(Name))
        for option, names in _ONLY.items():
            if getattr(self, option) is not None and self.name not in names:
                shown = option.replace("_", "-")
                raise UserError(f"--{shown} is for --engine {' or '.join(names)}, not for {self.name}: leave it out")
        cpus = 1.0 if self.cpus_per_run is None else self.cpus_per_run
        if self.name == "ray":
            from rebapl.runs.ray_engine import RayEngine

            return RayEngine(self.address, cpus_per_run=cpus, gpus_per_run=self.gpus_per_run)
        if self.name == "slurm":
            from rebapl.runs.slurm_engine import FOLDER, SlurmEngine

            return SlurmEngine(
                runs / FOLDER,
                partition=self.partition,
                time=self.time,
                cpus_per_run=cpus,
                gpus_per_run=self.gpus_per_run or 0,
            )
        return LocalEngine(self.device, 1 if self.jobs is None else self.jobs)
