"""Engines decide where jobs are done. They take jobs, report events, and yield an outcome for each job as it ends.

`Engine` is the loop that all engines share: it decides which jobs to submit, what to report, when to try again and how
to stop. A subclass says how a job is submitted, waited for and cancelled. `LocalEngine` uses this machine: it does one
job at a time in this process, or several at a time, each in its own process, so that the death of a process costs one
job. The engines for clusters are in `rebapl.runs.clusters`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import json
import math
import os
import signal
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from multiprocessing import connection
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import torch
from pydantic import ConfigDict, Field

from rebapl.data.workers import cores
from rebapl.errors import UserError
from rebapl.plugins import Registry
from rebapl.processes import in_a_safe_folder, worker_context
from rebapl.runs.jobs import (
    PROGRESS,
    Failure,
    OnEvent,
    Outcome,
    Reached,
    Retried,
    Stalled,
    Started,
    Stepped,
    Work,
    perform,
    perform_text,
    read_failure,
    read_progress,
)
from rebapl.runs.machine import best_device, forget_backbone
from rebapl.settings import Settings

ATTEMPTS = 2
"""How many times a job is tried if trying again can help."""

GRACE_SECONDS = 30.0
"""How many seconds a job may take to end when it is cancelled: it finishes its step and writes a checkpoint."""

STALLED_SECONDS = 1800.0
"""After this many seconds without progress a job is reported as stalled, so that a person can look at it."""

PASSED_ON = ("REBAPL_", "HF_")
"""Environment variables with these prefixes are passed on to other machines together with a job."""

Handle = TypeVar("Handle")


@dataclasses.dataclass
class Attempt:
    """An attempt at a submitted job: its number, when it started, its last progress and when that was reported.

    Until it reports progress, the time when it was submitted counts as its start.
    """

    job: Work
    number: int
    start: float = dataclasses.field(default_factory=time.monotonic)
    progress: Reached | None = None
    progress_time: float = 0.0

    def ended(self, state: Literal["done", "failed", "interrupted"], failure: Failure | None = None) -> Outcome:
        """The outcome of the job if this was its last attempt."""
        return Outcome(self.job, state, failure, self.number, time.monotonic() - self.start)


class EngineOptions(Settings):
    """The base of the options of an engine. `--engine-option NAME=VALUE` gives their values as texts."""

    model_config = ConfigDict(strict=False)


class Engine(ABC, Generic[Handle]):
    """The loop of all engines. A job that ran out of memory, or whose process died, is tried once more.

    A subclass defines `submit`, `wait` and `cancel`. A `Handle` is the object by which it identifies a submitted job.
    `runs` is the folder of runs, and the named arguments are the values of `Options`.
    """

    Options: type[EngineOptions] = EngineOptions
    """The settings class of its options. It has none unless a subclass names another class."""

    at_once: int | None = None
    """How many jobs are submitted at the same time; None submits all of them at once."""
    look_seconds = 1.0
    """The interval, in seconds, at which the progress of the jobs is read."""
    threads = 1
    device = "cpu"

    def __init__(self, runs: Path = Path("runs"), **options: Any) -> None:
        self.runs = runs
        self.options = self.Options(**options)

    def run(self, jobs: Sequence[Work], on_event: OnEvent | None = None) -> Iterator[Outcome]:
        """Do the jobs and yield the outcome of each as it ends. The failure of one does not stop the others.

        New jobs are submitted only while the caller waits for the next outcome. An interruption ends the active jobs:
        the engine reports an outcome for each of them and raises the interruption again.
        """
        emit = on_event or (lambda _event: None)
        missing: list[Work] = []
        for job in jobs:
            done = False
            with contextlib.suppress(UserError):  # the attempt at the job will raise it again
                done = job.is_done()
            if done:
                emit(outcome := Outcome(job, "done"))
                yield outcome
            else:
                missing.append(job)
        if missing:
            yield from self._hand_out(missing, emit)

    def connected(self) -> AbstractContextManager[Any]:
        """A context within which jobs can be submitted."""
        return contextlib.nullcontext()

    @abstractmethod
    def submit(self, jobs: Sequence[tuple[Work, str]]) -> list[Handle]:
        """Submit jobs, each with its text for `perform_text`, and return a handle for each."""

    @abstractmethod
    def wait(self, handles: Sequence[Handle], seconds: float) -> list[tuple[Handle, Failure | None]]:
        """Wait at most this long for a job to end. Return the jobs that have ended, each with its failure or None."""

    @abstractmethod
    def cancel(self, handles: Sequence[Handle]) -> None:
        """End these jobs, after they have written their checkpoints."""

    def reached(self, handle: Handle, job: Work) -> Reached | None:  # noqa: ARG002 (engines that know more need it)
        """The progress of a job, from the file that `perform_text` writes; None if there is no such file."""
        return read_progress(job.folder)

    def environment(self) -> dict[str, str]:
        """The environment variables that a job needs where it is done."""
        variables = {name: value for name, value in os.environ.items() if name.startswith(PASSED_ON)}
        if "REBAPL_DATA" in variables:
            variables["REBAPL_DATA"] = str(Path(variables["REBAPL_DATA"]).absolute())
        return variables

    def text(self, job: Work) -> str:
        """A job as JSON, with everything that the process that does it needs."""
        content = {
            "job": job.absolute().as_json(),
            "environment": self.environment(),
            "working folder": str(Path.cwd()),
            "device": self.device,
            "threads": self.threads,
            "report every": self.look_seconds,
        }
        return json.dumps(content)

    def _hand_out(self, jobs: Sequence[Work], emit: OnEvent) -> Iterator[Outcome]:
        waiting = deque((job, 1) for job in jobs)
        active: dict[Handle, Attempt] = {}
        with self.connected():
            try:
                while waiting or active:
                    if chosen := self._choose(waiting, active.values()):
                        handles = self.submit([(job, self.text(job)) for job, _ in chosen])
                        active.update(zip(handles, (Attempt(job, number) for job, number in chosen), strict=True))
                    for handle, failure in self.wait(list(active), self.look_seconds):
                        attempt = active.pop(handle)
                        if outcome := self._settle(attempt, failure, emit):
                            yield outcome
                        else:
                            waiting.append((attempt.job, attempt.number + 1))
                    for handle, attempt in active.items():
                        self._report_progress(handle, attempt, emit)
            except BaseException:
                self.cancel(list(active))
                for attempt in active.values():
                    emit(attempt.ended("interrupted"))
                raise

    def _settle(self, attempt: Attempt, failure: Failure | None, emit: OnEvent) -> Outcome | None:
        """Report how an attempt has ended. Return no outcome if the job is to be tried again."""
        failure = failure and failure.written(attempt.job)
        if failure is not None and failure.may_pass and attempt.number < ATTEMPTS:
            emit(Retried(attempt.job, failure))
            return None
        emit(outcome := attempt.ended("failed" if failure else "done", failure))
        return outcome

    def _choose(self, waiting: deque[tuple[Work, int]], active: Collection[Attempt]) -> list[tuple[Work, int]]:
        """Take as many jobs as may be submitted now, but none whose folder is in use by another job."""
        taken = {attempt.job.folder for attempt in active}
        room = math.inf if self.at_once is None else self.at_once - len(active)
        chosen: list[tuple[Work, int]] = []
        for job, number in list(waiting):
            if len(chosen) < room and job.folder not in taken:
                waiting.remove((job, number))
                taken.add(job.folder)
                chosen.append((job, number))
                with contextlib.suppress(OSError):
                    (job.folder / PROGRESS).unlink()  # left by a process that was killed
        return chosen

    def _report_progress(self, handle: Handle, attempt: Attempt, emit: OnEvent) -> None:
        """Report the progress of a job if it has changed, and report a job without progress as stalled."""
        progress, before, now = self.reached(handle, attempt.job), attempt.progress, time.monotonic()
        # a loss may be NaN, which differs from itself
        if progress is None or (before and progress._replace(loss=0.0) == before._replace(loss=0.0)):
            if before and now - attempt.progress_time > STALLED_SECONDS:
                emit(Stalled(attempt.job, STALLED_SECONDS))
                attempt.progress_time = now
            return
        attempt.progress, attempt.progress_time = progress, now
        if before is None:
            attempt.start = now  # before that, it may have waited in the queue of a cluster
            emit(Started(attempt.job, attempt.number, progress.where, progress.process))
        if progress.total:
            emit(Stepped(attempt.job, progress.done, progress.total, progress.loss))


ENGINES: Registry[type[Engine[Any]]] = Registry(
    "engine", "rebapl.engines", dict.fromkeys(("ray", "slurm"), "rebapl.runs.clusters")
)
"""The engines, by the names that `--engine` accepts."""

register_engine = ENGINES.register
"""Registers a class of engines, so that `--engine NAME` finds it. The class is called as `Engine` describes."""


@dataclasses.dataclass(eq=False)
class _LocalJob:
    """A job that is done by a process of this machine on `device`. The process sends its answer through the pipe."""

    job: Work
    device: str
    process: Any
    pipe: Any

    @classmethod
    def started(cls, job: Work, device: str, text: str) -> _LocalJob:
        """Start a process for the job."""
        context = worker_context()
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_do_in_process, args=(theirs, text, device), daemon=True)
        with in_a_safe_folder():
            process.start()
        theirs.close()  # so that the pipe closes when the process ends
        return cls(job, device, process, ours)

    def end(self) -> Failure | None:
        """Wait for the process to end, kill it if it does not, and return the failure of the job."""
        answer = None
        with contextlib.suppress(EOFError, OSError):  # it was killed before it answered
            answer = self.pipe.recv() if self.pipe.poll(GRACE_SECONDS) else None
        self.process.join(GRACE_SECONDS)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        code: int = self.process.exitcode
        self.pipe.close()
        self.process.close()
        if answer is not None:
            return read_failure(answer)
        if code < 0:
            name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
            hint = ", as happens when the machine runs out of memory" if name == "SIGKILL" else ""
            return Failure("worker died", f"the process of the {self.job.noun} was ended by {name}{hint}")
        return Failure("worker died", f"the process of the {self.job.noun} ended unexpectedly with exit code {code}")


def _do_in_process(pipe: connection.Connection, text: str, device: str) -> None:
    """Do the job of a text. Ctrl-C is ignored here, because the process that started this one handles it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answer = perform_text(text, device)
    with contextlib.suppress(OSError):  # the process that started this one is gone; the files of the job stay
        pipe.send(answer)


class LocalOptions(EngineOptions):
    """Where this machine does jobs, and how many at a time on each device."""

    devices: tuple[str, ...] | None = None
    jobs: int = Field(default=1, ge=1)


@register_engine("local")
class LocalEngine(Engine[_LocalJob]):
    """The engine for one machine. It does `jobs` jobs at a time on each device.

    Without `devices`, the GPU is used if there is one. If only one job is done at a time, it is done in this process.
    Otherwise each job has its own process.
    """

    Options = LocalOptions
    look_seconds = 0.2

    def __init__(self, devices: Sequence[str] | None = None, jobs: int = 1, **others: Any) -> None:
        super().__init__(devices=devices, jobs=jobs, **others)
        self.devices = [best_device(device) for device in devices] if devices else [best_device()]
        self.jobs = jobs
        self._busy: list[_LocalJob] = []

    def _hand_out(self, jobs: Sequence[Work], emit: OnEvent) -> Iterator[Outcome]:
        self.at_once = min(self.jobs * len(self.devices), len(jobs))
        self.threads = max(1, min(torch.get_num_threads(), cores() // self.at_once))
        if self.at_once > 1:
            yield from super()._hand_out(jobs, emit)
            return
        for job in jobs:
            yield self._do_here(job, emit)

    def _do_here(self, job: Work, emit: OnEvent, number: int = 1) -> Outcome:
        """Do a job in this process."""
        attempt, device = Attempt(job, number), self.devices[0]
        emit(Started(job, number, device, os.getpid()))
        try:
            failure = perform(job, device, lambda *progress: emit(Stepped(job, *progress)))
        except BaseException:
            emit(attempt.ended("interrupted"))
            raise
        if outcome := self._settle(attempt, failure, emit):
            return outcome
        forget_backbone()
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return self._do_here(job, emit, number + 1)

    def environment(self) -> dict[str, str]:
        """All variables of this process. The server that forks the workers still has those from when it was started."""
        return dict(os.environ)

    def submit(self, jobs: Sequence[tuple[Work, str]]) -> list[_LocalJob]:
        """Start a process for each job, on the device that has the fewest jobs."""
        for job, text in jobs:
            used = [active.device for active in self._busy]
            self._busy.append(_LocalJob.started(job, min(self.devices, key=used.count), text))
        return self._busy[-len(jobs) :]

    def wait(self, handles: Sequence[_LocalJob], seconds: float) -> list[tuple[_LocalJob, Failure | None]]:
        """Wait for a process to end, see `Engine.wait`."""
        ready = connection.wait([handle.pipe for handle in handles], seconds)
        ended = [handle for handle in handles if handle.pipe in ready]
        for handle in ended:  # first, so that `cancel` leaves them alone if their end is interrupted
            self._busy.remove(handle)
        return [(handle, handle.end()) for handle in ended]

    def reached(self, handle: _LocalJob, job: Work) -> Reached | None:
        """The progress of a job. A job counts as started before its process has reported any progress."""
        progress = super().reached(handle, job) or Reached(0, 0, math.nan, handle.process.pid, handle.device)
        return progress._replace(where=handle.device)

    def cancel(self, handles: Sequence[_LocalJob]) -> None:  # noqa: ARG002 (all that are busy, with a handle or not)
        """End all processes, which first write their checkpoints.

        That includes processes without a handle: those that `submit` had started when it was interrupted.
        """
        for active in self._busy:
            active.process.terminate()
        for active in self._busy:
            active.end()
        self._busy.clear()
