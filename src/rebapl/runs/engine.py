"""Engines decide where work is done. They take jobs, report events, and give an outcome for each job as it ends.

`Engine` is the loop that all engines share: which jobs to hand out, what to report, when to try again and how to stop.
An engine adds how a job is handed over, waited for and cancelled. `LocalEngine` is the one of this machine: it does one
job at a time in this process, or several, each in a process of its own, so that the death of a process costs one job.
Engines of clusters are in `rebapl.runs.clusters`.
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
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from multiprocessing import connection
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import torch

from rebapl.errors import UserError
from rebapl.plugins import Registry
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
from rebapl.runs.workers import in_a_safe_folder, worker_context

ATTEMPTS = 2
"""How often a job is tried if trying again can help."""

GRACE_SECONDS = 30.0
"""How many seconds a job may take to end when it is told to: it finishes its step and writes a checkpoint."""

STALLED_SECONDS = 1800.0
"""A job that reports no progress for this many seconds is named, so that a person can look after it."""

PASSED_ON = ("REBAPL_", "HF_")
"""Environment variables that begin like this go along with a job to other machines."""

Handle = TypeVar("Handle")


@dataclasses.dataclass
class Attempt:
    """An attempt at a job that was handed over: which one, since when, its last report, and when that came."""

    job: Work
    number: int
    start: float = dataclasses.field(default_factory=time.monotonic)
    seen: Reached | None = None
    moved: float = 0.0

    def ended(self, state: Literal["done", "failed", "interrupted"], failure: Failure | None = None) -> Outcome:
        """The outcome of the job if this attempt is the last."""
        return Outcome(self.job, state, failure, self.number, time.monotonic() - self.start)


class Engine(ABC, Generic[Handle]):
    """The loop of all engines. A job whose process is lost, or that had too little memory, is tried once more.

    An engine brings `submit`, `wait` and `cancel`. A `Handle` is what it knows a job by that it was given.
    """

    at_once: int | None = None
    """How many jobs are handed over at a time; None is all of them."""
    look_seconds = 1.0
    """How often the driver looks how far the jobs are."""
    threads = 1
    device = "cpu"

    def run(self, jobs: Sequence[Work], on_event: OnEvent | None = None) -> Iterator[Outcome]:
        """Do the jobs and give the outcome of each as it ends. The failure of one does not stop the others.

        Work goes on while the caller asks for the next outcome. An interruption ends the jobs that are being done. The
        engine reports an event for each of them and then raises the interruption.
        """
        emit = on_event or (lambda _event: None)
        missing: list[Work] = []
        for job in jobs:
            done = False
            with contextlib.suppress(UserError):  # which the attempt at the job will meet again
                done = job.is_done()
            if done:
                emit(outcome := Outcome(job, "done"))
                yield outcome
            else:
                missing.append(job)
        if missing:
            yield from self._hand_out(missing, emit)

    def connected(self) -> AbstractContextManager[Any]:
        """Within `with`, jobs can be handed over."""
        return contextlib.nullcontext()

    @abstractmethod
    def submit(self, jobs: Sequence[tuple[Work, str]]) -> list[Handle]:
        """Hand over jobs, each with its text for `perform_text`."""

    @abstractmethod
    def wait(self, handles: Sequence[Handle], seconds: float) -> list[tuple[Handle, Failure | None]]:
        """Wait this long at most for one to end. Give those that have ended, with the failure of each."""

    @abstractmethod
    def cancel(self, handles: Sequence[Handle]) -> None:
        """End these, after they have written their checkpoints."""

    def reached(self, handle: Handle, job: Work) -> Reached | None:  # noqa: ARG002 (engines that know more need it)
        """How far a job is, if that is known; here by the file that `perform_text` writes."""
        return read_progress(job.folder)

    def environment(self) -> dict[str, str]:
        """The environment variables that a job needs where it is done."""
        found = {name: value for name, value in os.environ.items() if name.startswith(PASSED_ON)}
        if "REBAPL_DATA" in found:
            found["REBAPL_DATA"] = str(Path(found["REBAPL_DATA"]).absolute())
        return found

    def text(self, job: Work) -> str:
        """A job as it travels, with what the process that does it needs to know."""
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
                        active.update(zip(handles, (Attempt(*each) for each in chosen), strict=True))
                    for handle, failure in self.wait(list(active), self.look_seconds):
                        attempt = active.pop(handle)
                        if outcome := self._settle(attempt, failure, emit):
                            yield outcome
                        else:
                            waiting.append((attempt.job, attempt.number + 1))
                    for handle, attempt in active.items():
                        self._look(handle, attempt, emit)
            except BaseException:
                self.cancel(list(active))
                for attempt in active.values():
                    emit(attempt.ended("interrupted"))
                raise

    def _settle(self, attempt: Attempt, failure: Failure | None, emit: OnEvent) -> Outcome | None:
        """Report how an attempt has ended. There is no outcome yet if the job is to be tried again."""
        failure = failure and failure.written(attempt.job)
        if failure is not None and failure.may_pass and attempt.number < ATTEMPTS:
            emit(Retried(attempt.job, failure))
            return None
        emit(outcome := attempt.ended("failed" if failure else "done", failure))
        return outcome

    def _choose(self, waiting: deque[tuple[Work, int]], active: Collection[Attempt]) -> list[tuple[Work, int]]:
        """Take as many jobs as there is room for, but none whose folder another one is at work in."""
        taken = {attempt.job.folder for attempt in active}
        room = math.inf if self.at_once is None else self.at_once - len(active)
        chosen: list[tuple[Work, int]] = []
        for job, number in list(waiting):
            if len(chosen) < room and job.folder not in taken:
                waiting.remove((job, number))
                taken.add(job.folder)
                chosen.append((job, number))
                with contextlib.suppress(OSError):
                    (job.folder / PROGRESS).unlink()  # of a process that was killed
        return chosen

    def _look(self, handle: Handle, attempt: Attempt, emit: OnEvent) -> None:
        """Report how far a job is, if that is new, and name one that makes no progress."""
        now, before, clock = self.reached(handle, attempt.job), attempt.seen, time.monotonic()
        if now is None or (before and now._replace(loss=0.0) == before._replace(loss=0.0)):  # a loss may be NaN
            if before and clock - attempt.moved > STALLED_SECONDS:
                emit(Stalled(attempt.job, STALLED_SECONDS))
                attempt.moved = clock
            return
        attempt.seen, attempt.moved = now, clock
        if before is None:
            emit(Started(attempt.job, attempt.number, now.where, now.process))
        if now.total:
            emit(Stepped(attempt.job, now.done, now.total, now.loss))


ENGINES: Registry[Callable[..., Engine[Any]]] = Registry(
    "engine", "rebapl.engines", dict.fromkeys(("ray", "slurm"), "rebapl.runs.clusters")
)
"""The engines by name, as `--engine` takes them."""

EngineType = TypeVar("EngineType", bound=Callable[..., Engine[Any]])


def register_engine(name: str) -> Callable[[EngineType], EngineType]:
    """Register a class of engines, so that `--engine NAME` finds it.

    It is called with the folder of the runs; the local engine, which has options of its own, is made otherwise. Its
    other arguments have names and defaults, and come as texts from `--engine-option NAME=VALUE`.
    """
    return ENGINES.register(name)


@dataclasses.dataclass(eq=False)
class _LocalJob:
    """A job that a process of this machine does on a device; the process answers through the pipe."""

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
        theirs.close()  # so that the pipe ends with the process
        return cls(job, device, process, ours)

    def end(self) -> Failure | None:
        """Wait for the process to end, kill it where it does not, and give the failure of the job."""
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
    """Do the job of a text. It ignores Ctrl-C: the process that started this one decides what happens then."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answer = perform_text(text, device)
    with contextlib.suppress(OSError):  # nobody is there to be told; the files of the run are kept
        pipe.send(answer)


@ENGINES.register("local")
class LocalEngine(Engine[_LocalJob]):
    """The engine of one machine: `jobs` at a time on each device.

    `devices` None is the GPU if there is one. If one job is done at a time, it is done in this process; if several are,
    each is done in a process of its own.
    """

    look_seconds = 0.2

    def __init__(self, devices: Sequence[str] | None = None, jobs: int = 1) -> None:
        if jobs < 1:
            raise UserError(f"jobs = {jobs}: at least one run at a time is needed")
        self.devices = [best_device(device) for device in devices] if devices else [best_device()]
        self.jobs = jobs
        self._busy: list[_LocalJob] = []

    def _hand_out(self, jobs: Sequence[Work], emit: OnEvent) -> Iterator[Outcome]:
        self.at_once = min(self.jobs * len(self.devices), len(jobs))
        self.threads = max(1, min(torch.get_num_threads(), (os.cpu_count() or 1) // self.at_once))
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
            failure = perform(job, device, lambda *reached: emit(Stepped(job, *reached)))
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
        """All of them: the server that processes are forked from has those of its own start."""
        return dict(os.environ)

    def submit(self, jobs: Sequence[tuple[Work, str]]) -> list[_LocalJob]:
        """Start a process for each job, on the device that has the fewest."""
        for job, text in jobs:
            used = [each.device for each in self._busy]
            self._busy.append(_LocalJob.started(job, min(self.devices, key=used.count), text))
        return self._busy[-len(jobs) :]

    def wait(self, handles: Sequence[_LocalJob], seconds: float) -> list[tuple[_LocalJob, Failure | None]]:
        """Wait for a process to end, see `Engine.wait`."""
        ready = connection.wait([each.pipe for each in handles], seconds)
        ended = [(each, each.end()) for each in handles if each.pipe in ready]
        for each, _ in ended:
            self._busy.remove(each)
        return ended

    def reached(self, handle: _LocalJob, job: Work) -> Reached | None:
        """How far a job is. That it has begun is known before its process says so."""
        said = super().reached(handle, job) or Reached(0, 0, math.nan, handle.process.pid, handle.device)
        return said._replace(where=handle.device)

    def cancel(self, handles: Sequence[_LocalJob]) -> None:
        """End the processes; what they were at goes on from its checkpoint the next time."""
        for each in handles:
            each.process.terminate()
        for each in handles:
            each.end()
        self._busy.clear()
