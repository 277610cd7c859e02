"""Engines decide where work is done. They take jobs, report events, and give an outcome for each job as it ends.

`Engine` is the loop that all engines share: which jobs to hand out, what to report, when to try again and how to stop.
An engine adds how a job is handed over, waited for and cancelled. `LocalEngine` is the one of this machine: it does one
job at a time in this process, or several, each in a process of its own, so that the death of a process costs one job.
Engines of clusters are in `rebapl.runs.engines`.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from multiprocessing import connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

import torch

from rebapl.errors import UserError
from rebapl.plugins import Registry
from rebapl.runs.jobs import (
    Ended,
    Failure,
    OnEvent,
    Outcome,
    Reached,
    Retried,
    Stalled,
    Started,
    Stepped,
    Work,
    is_done_already,
    perform,
    perform_text,
    read_failure,
    read_progress,
    record_failure,
)
from rebapl.runs.machine import KeptBackbone, best_device
from rebapl.runs.workers import in_a_safe_folder, worker_context

if TYPE_CHECKING:
    from rebapl.training import Progress

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
    """An attempt at a job that was handed over: which one, since when, and its last report."""

    job: Work
    number: int
    start: float
    seen: Reached | None
    begun: bool = False
    moved: float = 0.0


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
            if is_done_already(job):
                yield self._ended(Outcome(job, "done"), emit)
            else:
                missing.append(job)
        if missing:
            with self.connected():
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
        }
        return json.dumps(content)

    def _hand_out(self, jobs: Sequence[Work], emit: OnEvent) -> Iterator[Outcome]:
        waiting = deque((job, 1) for job in jobs)
        active: dict[Handle, Attempt] = {}
        try:
            while waiting or active:
                active.update(self._submit_free(waiting, active))
                for handle, failure in self.wait(list(active), self.look_seconds):
                    attempt = active.pop(handle)
                    job, number = attempt.job, attempt.number
                    if failure is not None and failure.may_pass and number < ATTEMPTS:
                        emit(Retried(job, failure))
                        waiting.append((job, number + 1))
                    else:
                        state: Literal["done", "failed"] = "done" if failure is None else "failed"
                        spent = time.monotonic() - attempt.start
                        yield self._ended(Outcome(job, state, failure, number, spent), emit)
                for handle, attempt in active.items():
                    self._look(handle, attempt, emit)
        except BaseException:
            self.cancel(list(active))
            for attempt in active.values():
                spent = time.monotonic() - attempt.start
                emit(Ended(Outcome(attempt.job, "interrupted", None, attempt.number, spent)))
            raise

    def _submit_free(
        self, waiting: deque[tuple[Work, int]], active: Mapping[Handle, Attempt]
    ) -> list[tuple[Handle, Attempt]]:
        """Hand over as many jobs as there is room for, but none whose folder another one is at work in."""
        taken = {attempt.job.folder for attempt in active.values()}
        room = math.inf if self.at_once is None else self.at_once - len(active)
        chosen: list[tuple[Work, int]] = []
        for job, number in list(waiting):
            if len(chosen) < room and job.folder not in taken:
                waiting.remove((job, number))
                taken.add(job.folder)
                chosen.append((job, number))
        left = [read_progress(job.folder) for job, _ in chosen]  # by processes that were killed
        handles = self.submit([(job, self.text(job)) for job, _ in chosen]) if chosen else []
        now = time.monotonic()
        return [
            (handle, Attempt(job, number, now, seen, moved=now))
            for handle, (job, number), seen in zip(handles, chosen, left, strict=True)
        ]

    def _look(self, handle: Handle, attempt: Attempt, emit: OnEvent) -> None:
        """Report how far a job is, if that is new, and name one that makes no progress."""
        now, clock = self.reached(handle, attempt.job), time.monotonic()
        if now is None or now == attempt.seen:
            if attempt.begun and clock - attempt.moved > STALLED_SECONDS:
                emit(Stalled(attempt.job, STALLED_SECONDS))
                attempt.moved = clock
            return
        if not attempt.begun:
            emit(Started(attempt.job, attempt.number, now.where, now.process))
        if now.total:
            emit(Stepped(attempt.job, now.done, now.total, now.loss))
        attempt.seen, attempt.begun, attempt.moved = now, True, clock

    @staticmethod
    def _ended(outcome: Outcome, emit: OnEvent) -> Outcome:
        emit(Ended(outcome))
        return outcome


ENGINES: Registry[Callable[..., Engine[Any]]] = Registry("engine", "rebapl.engines")
"""The engines by name, as `--engine` takes them."""

EngineType = TypeVar("EngineType", bound=Callable[..., Engine[Any]])


def register_engine(name: str) -> Callable[[EngineType], EngineType]:
    """Register a class of engines, so that `--engine NAME` finds it.

    It is called with the folder of the runs. Its other arguments have names and defaults, and come as texts from
    `--engine-option NAME=VALUE`.
    """

    def registered(engine: EngineType) -> EngineType:
        ENGINES.known[name] = engine
        return engine

    return registered


class _Process:
    """A process of this machine that does one job, and its last reports."""

    def __init__(self, device: str, text: str) -> None:
        context = worker_context()
        self.device = device
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_do_in_process, args=(theirs, device, text), daemon=True)
        with in_a_safe_folder():
            self.process.start()
        theirs.close()  # so that the pipe ends with the process
        self.reached: Reached | None = None
        self.answer: str | None = None

    def listen(self) -> None:
        """Take all reports that have come."""
        with contextlib.suppress(EOFError, OSError):
            while self.pipe.poll():
                kind, content = json.loads(self.pipe.recv_bytes())
                if kind == "ended":
                    self.answer = content
                else:
                    assert self.process.pid is not None
                    done, total, loss = content
                    self.reached = Reached(done, total, loss, self.process.pid, self.device)

    def end(self) -> int | None:
        """Wait for the process to end, kill it where it does not, and give its exit code."""
        self.process.join(GRACE_SECONDS)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        code: int | None = self.process.exitcode
        self.pipe.close()
        self.process.close()
        return code


def _do_in_process(pipe: connection.Connection, device: str, text: str) -> None:
    """Do the job of a text. It ignores Ctrl-C: the process that started this one decides what happens then."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    last = float("-inf")

    def moved(done: int, total: int, loss: float) -> None:
        nonlocal last
        if done < total and time.monotonic() - last < LocalEngine.look_seconds:
            return
        last = time.monotonic()
        try:
            pipe.send_bytes(json.dumps(["moved", [done, total, loss]]).encode())
        except OSError as error:
            raise SystemExit(1) from error  # whoever gave the job wants no more of it, or is gone

    moved(0, 0, math.nan)
    last = float("-inf")
    answer = perform_text(json.dumps({**json.loads(text), "device": device}), moved)
    with contextlib.suppress(OSError):  # nobody is there to be told; the files of the run are kept
        pipe.send_bytes(json.dumps(["ended", answer]).encode())


@register_engine("local")
class LocalEngine(Engine[_Process]):
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
        self.load = KeptBackbone()
        self._busy: dict[_Process, Work] = {}

    def _hand_out(self, jobs: Sequence[Work], emit: OnEvent) -> Iterator[Outcome]:
        self.at_once = min(self.jobs * len(self.devices), len(jobs))
        self.threads = max(1, min(torch.get_num_threads(), (os.cpu_count() or 1) // self.at_once))
        if self.at_once > 1:
            yield from super()._hand_out(jobs, emit)
        else:
            yield from self._one_by_one(jobs, emit)

    def _one_by_one(self, jobs: Sequence[Work], emit: OnEvent) -> Iterator[Outcome]:
        load, device = self.load, self.devices[0]
        for job in jobs:
            for attempt in range(1, ATTEMPTS + 1):
                start = time.monotonic()
                emit(Started(job, attempt, device, os.getpid()))
                try:
                    failure = perform(job, device, load, _steps_of(job, emit))
                except BaseException:
                    emit(Ended(Outcome(job, "interrupted", None, attempt, time.monotonic() - start)))
                    raise
                if failure is None or not failure.may_pass or attempt == ATTEMPTS:
                    break
                emit(Retried(job, failure))
                load.forget()
                gc.collect()
                if torch.cuda.is_available():
                    torch.cuda.empty_cache()
            state: Literal["done", "failed"] = "done" if failure is None else "failed"
            yield self._ended(Outcome(job, state, failure, attempt, time.monotonic() - start), emit)

    def environment(self) -> dict[str, str]:
        """All of them: the server that processes are forked from has those of its own start."""
        return dict(os.environ)

    def submit(self, jobs: Sequence[tuple[Work, str]]) -> list[_Process]:
        """Start a process for each job, on the device that has the fewest."""
        started = []
        for job, text in jobs:
            load = dict.fromkeys(self.devices, 0)
            for process in self._busy:
                load[process.device] += 1
            process = _Process(min(load, key=lambda device: load[device]), text)
            self._busy[process] = job
            started.append(process)
        return started

    def wait(self, handles: Sequence[_Process], seconds: float) -> list[tuple[_Process, Failure | None]]:
        """Wait for a process to end, see `Engine.wait`."""
        ended = set(connection.wait([each.process.sentinel for each in handles], seconds))
        for each in handles:
            each.listen()
        return [(each, self._failure(each)) for each in handles if each.process.sentinel in ended]

    def reached(self, handle: _Process, job: Work) -> Reached | None:  # noqa: ARG002
        """How far a job is, as its process has said."""
        return handle.reached

    def cancel(self, handles: Sequence[_Process]) -> None:
        """End the processes; what they were at goes on from its checkpoint the next time."""
        for each in handles:
            each.process.terminate()
        for each in handles:
            self._busy.pop(each)
            each.end()

    def _failure(self, process: _Process) -> Failure | None:
        job, code = self._busy.pop(process), process.end()
        if process.answer is not None:
            return read_failure(process.answer)
        if code is not None and code < 0:
            name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
            hint = ", as happens when the machine runs out of memory" if name == "SIGKILL" else ""
            message = f"the process of the {job.noun} was ended by {name}{hint}"
        else:
            message = f"the process of the {job.noun} ended unexpectedly with exit code {code}"
        return record_failure(job, "worker died", message)


def _steps_of(job: Work, emit: OnEvent) -> Progress:
    return lambda done, total, loss: emit(Stepped(job, done, total, loss))
