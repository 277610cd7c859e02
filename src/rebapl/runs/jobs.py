"""What runs and engines agree on. An engine decides where runs happen: it takes jobs and gives events and outcomes.

A job is plain data, which can travel to any process or machine as JSON. Its results are files in the folder of its run,
so an outcome says only how the job ended. `perform` does one job in the process that calls it; every engine calls it in
the end.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import torch

from rebapl.errors import UserError
from rebapl.files import write_atomically
from rebapl.plugins import load_named_modules
from rebapl.runs.backbone import KeptBackbone, LoadBackbone
from rebapl.runs.config import RunConfig
from rebapl.runs.cycles import cycle_file, cycle_folder
from rebapl.runs.folder import (
    CONFIG,
    ERROR,
    complete_run,
    config_as_json,
    config_from_json,
    is_finished,
    is_trained,
    run_folder,
    train_cycle,
)
from rebapl.training.keeping import Progress

ATTEMPTS = 2
"""How often a job is tried if trying again can help."""

Kind = Literal["bad input", "error", "out of memory", "worker died"]
WORTH_RETRYING: tuple[Kind, ...] = ("out of memory", "worker died")


@dataclasses.dataclass(frozen=True)
class Job:
    """One run to be done: its configuration as plain data, its folder, and the folder of data sets.

    If `score` is false, the job trains only. If another process is at work in the folder, the job waits for it when
    `wait` is true, and is refused otherwise. If `cycle` is given, the job samples only this cycle of the run, in a
    folder below that of the run, see `cycle_jobs`. `track` names trackers, see
    `Tracker`.

    >>> job = Job.of(RunConfig("digits", "coop", backbone="mini"), Path("runs"))
    >>> Job.from_json(job.as_json()) == job
    True
    """

    config: Mapping[str, Any]
    folder: Path
    root: Path | None = None
    score: bool = True
    wait: bool = True
    cycle: int | None = None
    track: tuple[str, ...] = ()

    @classmethod
    def of(cls, config: RunConfig, runs: Path, *, out: Path | None = None, **more: Any) -> Job:
        """Make the job of a configuration. Its folder is `out`, or one in `runs` named after its settings."""
        return cls(config_as_json(config), out or run_folder(config, runs), **more)

    def run_config(self) -> RunConfig:
        """The configuration as an object."""
        return config_from_json(self.config, f"the job of {self.folder}")

    @property
    def run_folder(self) -> Path:
        """The folder of the run. That of a job for a cycle lies below it."""
        return self.folder if self.cycle is None else self.folder.parents[1]

    def is_done(self) -> bool:
        """Whether the folder has everything that the job asks for."""
        config = self.run_config()
        if self.cycle is not None:
            return is_trained(config, self.run_folder) or cycle_file(self.run_folder, self.cycle).exists()
        return is_finished(config, self.folder) if self.score else is_trained(config, self.folder)

    def as_json(self) -> dict[str, Any]:
        """Plain values, for the way to another process."""
        paths = {"folder": str(self.folder), "root": None if self.root is None else str(self.root)}
        return {**{field.name: getattr(self, field.name) for field in dataclasses.fields(self)}, **paths}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Job:
        """The job that `as_json` gave."""
        root = content["root"]
        paths = {"folder": Path(content["folder"]), "root": None if root is None else Path(root)}
        return cls(**{**content, **paths, "track": tuple(content["track"])})


@dataclasses.dataclass(frozen=True)
class Failure:
    """Why a job failed: the kind, the message of the error, and the file that holds its traceback, if there is one."""

    kind: Kind
    message: str
    traceback: Path | None = None

    @property
    def may_pass(self) -> bool:
        """Whether trying again can help."""
        return self.kind in WORTH_RETRYING

    def __str__(self) -> str:
        first = self.message.splitlines()[0] if self.message else self.kind
        return f"{first} (the traceback is in {self.traceback})" if self.traceback else first

    def as_json(self) -> dict[str, Any]:
        """Plain values, for the way to another process."""
        return {**vars(self), "traceback": None if self.traceback is None else str(self.traceback)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Failure:
        """The failure that `as_json` gave."""
        path = content["traceback"]
        return cls(content["kind"], content["message"], None if path is None else Path(path))


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a job ended. `attempts` is 0 if there was nothing to do; `seconds` is the time of the last attempt."""

    job: Job
    state: Literal["done", "failed", "interrupted"]
    failure: Failure | None = None
    attempts: int = 0
    seconds: float = 0.0

    @property
    def folder(self) -> Path:
        """The folder of the run."""
        return self.job.folder


@dataclasses.dataclass(frozen=True)
class Started:
    """An attempt at a job has begun, in the process with the id `process`.

    `device` says where: a device of this machine, or the name of another one.
    """

    job: Job
    attempt: int
    device: str
    process: int


@dataclasses.dataclass(frozen=True)
class Stepped:
    """The training of a job has done `done` of `total` steps. `loss` is the latest known one, or NaN."""

    job: Job
    done: int
    total: int
    loss: float


@dataclasses.dataclass(frozen=True)
class Retried:
    """An attempt at a job has failed, and the job will be tried again."""

    job: Job
    failure: Failure


@dataclasses.dataclass(frozen=True)
class Ended:
    """Nothing more will happen to a job."""

    outcome: Outcome


Event = Started | Stepped | Retried | Ended
OnEvent = Callable[[Event], None]


class Engine(Protocol):
    """Decides where jobs are done."""

    def run(self, jobs: Sequence[Job], on_event: OnEvent | None = None) -> Iterator[Outcome]:
        """Do the jobs and give the outcome of each as it ends. The failure of one does not stop the others.

        Work goes on while the caller asks for the next outcome. An interruption ends the jobs that are being done. The
        engine reports an event for each of them and then raises the interruption.
        """
        ...


def perform(
    job: Job, device: str, load: LoadBackbone | None = None, progress: Progress | None = None
) -> Failure | None:
    """Do a job in this process. An error is not raised: it is written to the folder of the run and returned."""
    common: dict[str, Any] = {"root": job.root, "device": device, "progress": progress, "wait": job.wait}
    try:
        load_named_modules()
        if job.cycle is None:
            complete_run(job.run_config(), job.folder, score=job.score, load=load, track=job.track, **common)
        else:
            train_cycle(job.run_config(), job.run_folder, job.cycle, load=load or KeptBackbone(), **common)
    except UserError as error:
        return record_failure(job, "bad input", str(error), traceback.format_exc())
    except Exception as error:
        kind: Kind = "out of memory" if _is_out_of_memory(error) else "error"
        return record_failure(job, kind, f"{type(error).__name__}: {error}", traceback.format_exc())
    return None


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    signs = ("out of memory", "can't allocate memory", "not enough memory", "alloc_failed")
    return isinstance(error, RuntimeError | OSError) and any(sign in str(error).lower() for sign in signs)


def record_failure(job: Job, kind: Kind, message: str, details: str) -> Failure:
    """The failure of a job, with its details in the folder of the run.

    Bad input leaves no folder behind where there was none, and the folder of something else is never written into.
    """
    path = job.run_folder / ERROR
    if kind == "bad input" and not (job.run_folder / CONFIG).exists():
        return Failure(kind, message)
    try:
        is_trained(job.run_config(), job.run_folder)
        write_atomically(path, f"{time.strftime('%Y-%m-%d %H:%M:%S')}, process {os.getpid()}: {kind}\n\n{details}\n")
    except (UserError, OSError):
        return Failure(kind, message)
    return Failure(kind, message, path)


def check_outcomes(outcomes: Sequence[Outcome]) -> None:
    """Raise a `UserError` that names every failed run, what went wrong and where its traceback is, if any failed."""
    failed = [(each.folder, each.failure) for each in outcomes if each.failure is not None]
    if not failed:
        return
    if len(outcomes) == 1:
        folder, failure = failed[0]
        raise UserError(failure.message if failure.kind == "bad input" else f"the run {folder} failed: {failure}")
    lines = "\n".join(f"  {folder.name}: {failure}" for folder, failure in failed)
    kept = ", ".join(sorted({str(each.folder.parent) for each in outcomes}))
    raise UserError(
        f"{len(failed)} of {len(outcomes)} runs failed; the others are kept in {kept}, and the same command again does "
        f"only what is missing:\n{lines}"
    )


def outcome_of(job: Job, failure: Failure | None, attempts: int, start: float) -> Outcome:
    """The outcome of a job whose last attempt began at `start` of the monotonic clock and has just ended."""
    return Outcome(job, "done" if failure is None else "failed", failure, attempts, time.monotonic() - start)


def ended(outcome: Outcome, emit: OnEvent) -> Outcome:
    """Report the end of a job, and give its outcome."""
    emit(Ended(outcome))
    return outcome


def ignore(_event: object) -> None:
    """Where nobody listens to events."""


def cycle_jobs(job: Job) -> list[Job]:
    """A job for each cycle of a run. It is refused if the cycles depend on one another or there is only one."""
    inference = job.run_config().resolved().training.inference
    count = 1 if inference is None else inference.independent_cycles
    if count == 1:
        raise UserError(
            "--cycles-apart is for several cycles that do not depend on one another: cold restarts (such as those of "
            "`ensemble`, or inference.restart=cold), no repulsion and no adaptive end"
        )
    return [
        dataclasses.replace(job, folder=cycle_folder(job.folder, cycle), cycle=cycle, score=False)
        for cycle in range(count)
    ]


def is_done_already(job: Job) -> bool:
    """`job.is_done()`, or false if that cannot be told; the attempt at the job will then say why."""
    with contextlib.suppress(UserError):
        return job.is_done()
    return False
