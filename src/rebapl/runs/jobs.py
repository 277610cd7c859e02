"""What work and engines agree on. An engine decides where work is done: it takes jobs and gives events and outcomes.

A job is a `Work`: a run (`Job`) or a shard of a prediction (`Shard`). It is plain data, which can travel to any process
or machine as JSON. Its results are files, so an outcome says only how the job ended. `perform` does one job in the
process that calls it; every engine calls it in the end.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

import torch

from rebapl.errors import UserError, printable
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
from rebapl.runs.shards import Shard
from rebapl.runs.work import Work
from rebapl.training.keeping import Progress

ATTEMPTS = 2
"""How often a job is tried if trying again can help."""

Kind = Literal["bad input", "error", "out of memory", "worker died"]
WORTH_RETRYING: tuple[Kind, ...] = ("out of memory", "worker died")


@dataclasses.dataclass(frozen=True)
class Job(Work):
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
    root: Path | None = None
    score: bool = True
    wait: bool = True
    cycle: int | None = None
    track: tuple[str, ...] = ()
    noun: ClassVar[str] = "run"
    unit: ClassVar[str] = "step"

    @classmethod
    def of(cls, config: RunConfig, runs: Path, *, out: Path | None = None, **more: Any) -> Job:
        """Make the job of a configuration. Its folder is `out`, or one in `runs` named after its settings."""
        return cls(out or run_folder(config, runs), config_as_json(config), **more)

    def run_config(self) -> RunConfig:
        """The configuration as an object."""
        return config_from_json(self.config, f"the job of {self.folder}")

    @property
    def run_folder(self) -> Path:
        """The folder of the run. That of a job for a cycle lies below it."""
        return self.folder if self.cycle is None else self.folder.parents[1]

    @property
    def name(self) -> str:
        """The name of its folder, and which cycle it is."""
        return printable(self.run_folder.name) + ("" if self.cycle is None else f", cycle {self.cycle + 1}")

    @property
    def kept_in(self) -> Path:
        """The folder of runs."""
        return self.folder.parent

    def is_done(self) -> bool:
        """Whether the folder has everything that the job asks for."""
        config = self.run_config()
        if self.cycle is not None:
            return is_trained(config, self.run_folder) or cycle_file(self.run_folder, self.cycle).exists()
        return is_finished(config, self.folder) if self.score else is_trained(config, self.folder)

    def do(self, device: str, load: LoadBackbone, progress: Progress | None) -> None:
        """Train and score the run, or sample the cycle."""
        common: dict[str, Any] = {"root": self.root, "device": device, "progress": progress, "wait": self.wait}
        if self.cycle is None:
            complete_run(self.run_config(), self.folder, score=self.score, load=load, track=self.track, **common)
        else:
            train_cycle(self.run_config(), self.run_folder, self.cycle, load=load, **common)

    def place_for_error(self, bad_input: bool) -> Path | None:
        """A file in the folder of the run.

        Bad input leaves no folder behind where there was none, and the folder of something else is never written into.
        """
        if bad_input and not (self.run_folder / CONFIG).exists():
            return None
        try:
            is_trained(self.run_config(), self.run_folder)
        except (UserError, OSError):
            return None
        return self.run_folder / ERROR

    def absolute(self) -> Job:
        """The same for a process that works in another folder."""
        root = None if self.root is None else self.root.absolute()
        return dataclasses.replace(self, folder=self.folder.absolute(), root=root)

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


def work_from_json(content: Mapping[str, Any]) -> Work:
    """The job that `as_json` gave, of either kind."""
    return Job.from_json(content) if "config" in content else Shard.from_json(content)


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

    job: Work
    state: Literal["done", "failed", "interrupted"]
    failure: Failure | None = None
    attempts: int = 0
    seconds: float = 0.0

    @property
    def folder(self) -> Path:
        """The folder of the job."""
        return self.job.folder


@dataclasses.dataclass(frozen=True)
class Started:
    """An attempt at a job has begun, in the process with the id `process`.

    `device` says where: a device of this machine, or the name of another one.
    """

    job: Work
    attempt: int
    device: str
    process: int


@dataclasses.dataclass(frozen=True)
class Stepped:
    """A job has done `done` of `total` steps, or images. `loss` is the latest known one of a training, or NaN."""

    job: Work
    done: int
    total: int
    loss: float


@dataclasses.dataclass(frozen=True)
class Retried:
    """An attempt at a job has failed, and the job will be tried again."""

    job: Work
    failure: Failure


@dataclasses.dataclass(frozen=True)
class Ended:
    """Nothing more will happen to a job."""

    outcome: Outcome


Event = Started | Stepped | Retried | Ended
OnEvent = Callable[[Event], None]


class Engine(Protocol):
    """Decides where jobs are done."""

    def run(self, jobs: Sequence[Work], on_event: OnEvent | None = None) -> Iterator[Outcome]:
        """Do the jobs and give the outcome of each as it ends. The failure of one does not stop the others.

        Work goes on while the caller asks for the next outcome. An interruption ends the jobs that are being done. The
        engine reports an event for each of them and then raises the interruption.
        """
        ...


def perform(
    job: Work, device: str, load: LoadBackbone | None = None, progress: Progress | None = None
) -> Failure | None:
    """Do a job in this process. An error is not raised: it is written to a file of the job and returned."""
    try:
        load_named_modules()
        job.do(device, load or KeptBackbone(), progress)
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


def record_failure(job: Work, kind: Kind, message: str, details: str | None = None) -> Failure:
    """The failure of a job, which is written to a file where the job has a place for it.

    `details` are a traceback. A process that died has left none; the file then has the message.
    """
    path = job.place_for_error(kind == "bad input")
    if path is None:
        return Failure(kind, message)
    try:
        head = f"{time.strftime('%Y-%m-%d %H:%M:%S')}, process {os.getpid()}: {kind}"
        write_atomically(path, f"{head}\n\n{message if details is None else details}\n")
    except (UserError, OSError):
        return Failure(kind, message)
    return Failure(kind, message, None if details is None else path)


def check_outcomes(outcomes: Sequence[Outcome]) -> None:
    """Raise a `UserError` that names every failed job, what went wrong and where its traceback is, if any failed."""
    failed = [(each.job, each.failure) for each in outcomes if each.failure is not None]
    if not failed:
        return
    noun = failed[0][0].noun
    if len(outcomes) == 1:
        job, failure = failed[0]
        raise UserError(
            failure.message if failure.kind == "bad input" else f"the {noun} {job.folder} failed: {failure}"
        )
    lines = "\n".join(f"  {job.folder.name}: {failure}" for job, failure in failed)
    kept = ", ".join(sorted({str(each.job.kept_in) for each in outcomes}))
    raise UserError(
        f"{len(failed)} of {len(outcomes)} {noun}s failed; the others are kept in {kept}, and the same command again "
        f"does only what is missing:\n{lines}"
    )


def outcome_of(job: Work, failure: Failure | None, attempts: int, start: float) -> Outcome:
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


def is_done_already(job: Work) -> bool:
    """`job.is_done()`, or false if that cannot be told; the attempt at the job will then say why."""
    with contextlib.suppress(UserError):
        return job.is_done()
    return False
