"""The local engine: it does jobs one after the other, or in several processes side by side, on one or several devices.

Jobs are independent, so where they happen changes only how long they take. A small run leaves most of a GPU idle, so a
handful of processes can share one GPU well. Each process does one job at a time, and the engine watches it. When a
process dies, only the job that it was doing is affected, and a new process takes its place.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from rebapl.errors import UserError
from rebapl.runs.backbone import KeptBackbone, best_device
from rebapl.runs.config import RunConfig
from rebapl.runs.jobs import (
    ATTEMPTS,
    Ended,
    Engine,
    Failure,
    Job,
    OnEvent,
    Outcome,
    Retried,
    Started,
    Stepped,
    check_outcomes,
    ended,
    ignore,
    is_done_already,
    outcome_of,
    perform,
    record_failure,
    work_from_json,
)
from rebapl.runs.server import worker_context
from rebapl.runs.work import Work

STEP_SECONDS = 0.2
"""A worker reports the progress of its training at most once in so many seconds."""

GRACE_SECONDS = 30.0
"""How many seconds a worker may take to end when it is told to: it finishes its step and writes a checkpoint."""


def run_all(
    configs: Sequence[RunConfig],
    runs: Path,
    *,
    root: Path | None = None,
    engine: Engine | None = None,
    on_event: OnEvent | None = None,
) -> list[Path]:
    """Train and score all these runs, as far as that is not done, and return their folders.

    `engine` decides where, by default one run at a time in this process. A run that fails does not stop the others: a
    `UserError` at the end names every failure, and calling this again does only what is missing.
    """
    wanted = [Job.of(config, runs, root=root) for config in configs]
    check_outcomes(list((engine or LocalEngine()).run(wanted, on_event)))
    return [job.folder for job in wanted]


class LocalEngine:
    """The engine of one machine: `jobs_per_device` runs at a time on each device.

    `devices` None is the GPU if there is one. If one run is done at a time, it is done in this process; if several are,
    each is done in a worker process. A job whose process dies or has too little memory is tried once more, after the
    jobs that are waiting.
    """

    def __init__(self, devices: Sequence[str] | None = None, jobs_per_device: int = 1) -> None:
        if jobs_per_device < 1:
            raise UserError(f"jobs = {jobs_per_device}: at least one run at a time is needed")
        self.devices = [best_device(device) for device in devices] if devices else [best_device()]
        self.jobs_per_device = jobs_per_device

    def run(self, jobs: Sequence[Work], on_event: OnEvent | None = None) -> Iterator[Outcome]:
        """Do the jobs and give the outcome of each as it ends, see `Engine`."""
        emit = on_event or ignore
        missing = []
        for job in jobs:
            if is_done_already(job):
                yield ended(Outcome(job, "done"), emit)
            else:
                missing.append(job)
        workers = min(self.jobs_per_device * len(self.devices), len(missing))
        if workers > 1:
            yield from _Pool(self.devices, workers, emit).run(missing)
        else:
            yield from self._one_by_one(missing, emit)

    def _one_by_one(self, jobs: Sequence[Work], emit: OnEvent) -> Iterator[Outcome]:
        load = KeptBackbone()
        for job in jobs:
            for attempt in range(1, ATTEMPTS + 1):
                start = time.monotonic()
                emit(Started(job, attempt, self.devices[0], os.getpid()))
                try:
                    failure = perform(job, self.devices[0], load, _steps_of(job, emit))
                except BaseException:
                    emit(Ended(Outcome(job, "interrupted", None, attempt, time.monotonic() - start)))
                    raise
                if failure is None or not failure.may_pass or attempt == ATTEMPTS:
                    break
                emit(Retried(job, failure))
                _free_memory(load)
            yield ended(outcome_of(job, failure, attempt, start), emit)


class _Worker:
    """A worker process that does one job at a time, and the job that it is doing."""

    def __init__(self, device: str, threads: int) -> None:
        context = worker_context()
        self.device, self.threads = device, threads
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=work, args=(theirs, device, threads, dict(os.environ)), daemon=True)
        self.process.start()
        theirs.close()  # so that the pipe ends with the process
        self.job: Work | None = None
        self.attempt = 0
        self.start = 0.0

    def give(self, job: Work, attempt: int) -> None:
        self.job, self.attempt, self.start = job, attempt, time.monotonic()
        with contextlib.suppress(OSError):  # one that has died is noticed when its answer is waited for
            _send(self.pipe, job.as_json())

    def answer(self) -> dict[str, Any] | None:
        """The message that the worker has sent; None when it has died."""
        try:
            return _receive(self.pipe) if self.pipe.poll() else None
        except (EOFError, OSError):
            return None

    def how_it_died(self) -> str:
        """The end of the process in words."""
        self.process.join(GRACE_SECONDS)
        code = self.process.exitcode
        what = "job" if self.job is None else self.job.noun
        if code is not None and code < 0:
            name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
            hint = ", as happens when the machine runs out of memory" if name == "SIGKILL" else ""
            return f"the process of the {what} was ended by {name}{hint}"
        return f"the process of the {what} ended unexpectedly with exit code {code}"


class _Pool:
    """Workers, the jobs that wait for one, and what to do when a worker answers or dies."""

    def __init__(self, devices: Sequence[str], workers: int, emit: OnEvent) -> None:
        threads = max(1, (os.cpu_count() or 1) // workers)
        self.emit = emit
        self.unused = [(devices[index % len(devices)], threads) for index in range(workers)]
        self.workers: list[_Worker] = []

    def run(self, jobs: Sequence[Work]) -> Iterator[Outcome]:
        waiting = deque((job, 1) for job in jobs)
        interrupted = True
        try:
            while waiting or self._busy():
                self._give_out(waiting)
                for worker in self._wait():
                    finished = self._listen(worker)
                    if finished is None:
                        continue
                    job, attempt, failure = finished
                    if failure is not None and failure.may_pass and attempt < ATTEMPTS:
                        self.emit(Retried(job, failure))
                        waiting.append((job, attempt + 1))
                    else:
                        yield ended(outcome_of(job, failure, attempt, worker.start), self.emit)
            interrupted = False
        finally:
            if interrupted:  # what they were at goes on from its checkpoint the next time
                for worker in self.workers:
                    worker.process.terminate()
            for worker in self.workers:
                worker.pipe.close()  # all end at once, and not one after the other
            for worker in list(self.workers):
                self._end(worker)
                if interrupted and worker.job is not None:
                    spent = time.monotonic() - worker.start
                    self.emit(Ended(Outcome(worker.job, "interrupted", None, worker.attempt, spent)))

    def _busy(self) -> list[_Worker]:
        return [worker for worker in self.workers if worker.job is not None]

    def _give_out(self, waiting: deque[tuple[Work, int]]) -> None:
        """Give every idle worker a job. Jobs that share a folder are done one after the other."""
        taken = {worker.job.folder for worker in self.workers if worker.job is not None}
        for job, attempt in list(waiting):
            if job.folder in taken:
                continue
            worker = next((each for each in self.workers if each.job is None), None)
            if worker is None:
                if not self.unused:
                    return
                worker = _Worker(*self.unused.pop(0))
                self.workers.append(worker)
            waiting.remove((job, attempt))
            taken.add(job.folder)
            worker.give(job, attempt)
            assert worker.process.pid is not None
            self.emit(Started(job, attempt, worker.device, worker.process.pid))

    def _wait(self) -> list[_Worker]:
        """The workers that have something to say, or have died."""
        busy = self._busy()
        ready = set(wait([each for worker in busy for each in (worker.pipe, worker.process.sentinel)]))
        return [worker for worker in busy if worker.pipe in ready or worker.process.sentinel in ready]

    def _listen(self, worker: _Worker) -> tuple[Work, int, Failure | None] | None:
        """Take one message of a worker: the job that it has finished with, or None if it only reports progress."""
        job = worker.job
        assert job is not None
        answer = worker.answer()
        if answer is not None and "steps" in answer:
            self.emit(Stepped(job, *answer["steps"]))
            return None
        if answer is None:
            message = worker.how_it_died()
            failure: Failure | None = record_failure(job, "worker died", message)
        else:
            failure = None if answer["failure"] is None else Failure.from_json(answer["failure"])
        worker.job = None
        if failure is not None and failure.may_pass:  # a new process begins with all of its memory free
            self._end(worker)
            self.unused.append((worker.device, worker.threads))
        return job, worker.attempt, failure

    def _end(self, worker: _Worker) -> None:
        self.workers.remove(worker)
        worker.pipe.close()  # an idle worker ends with its pipe
        worker.process.join(GRACE_SECONDS)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()
        worker.process.close()


def work(pipe: Connection, device: str, threads: int, environment: Mapping[str, str]) -> None:
    """Do the jobs that come through a pipe until it is closed. This is what a worker process runs.

    It ignores Ctrl-C: the parent process decides what happens then. `environment` is the parent's of now: the server
    that workers are forked from has that of its own start.
    """
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(threads)
    load = KeptBackbone()
    while True:
        try:
            content = _receive(pipe)
        except (EOFError, OSError):
            return
        failure = perform(work_from_json(content), device, load, _steps_through(pipe))
        try:
            _send(pipe, {"failure": None if failure is None else failure.as_json()})
        except OSError:
            return  # nobody is there to be told; the files of the run are kept


def _steps_through(pipe: Connection) -> Callable[[int, int, float], None]:
    last = float("-inf")

    def moved(done: int, total: int, loss: float) -> None:
        nonlocal last
        if done < total and time.monotonic() - last < STEP_SECONDS:
            return
        last = time.monotonic()
        try:
            _send(pipe, {"steps": [done, total, loss]})
        except OSError as error:
            raise SystemExit(1) from error  # whoever gave the job wants no more of it, or is gone

    return moved


def _steps_of(job: Work, emit: OnEvent) -> Callable[[int, int, float], None]:
    return lambda done, total, loss: emit(Stepped(job, done, total, loss))


def _free_memory(load: KeptBackbone) -> None:
    load.forget()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _send(pipe: Connection, content: dict[str, Any]) -> None:
    pipe.send_bytes(json.dumps(content).encode())


def _receive(pipe: Connection) -> dict[str, Any]:
    return json.loads(pipe.recv_bytes())
