"""Engines that hand jobs to a system of other processes or machines, such as Ray or SLURM.

A job travels as a JSON text. What comes back are the files in the folder of its run, and a JSON text that says why it
failed, if it did. So the driver, which hands out the jobs, may die: when it is started again, on any machine that sees
the folder, it finds what is done and hands out the rest.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from rebapl.errors import UserError
from rebapl.runs.backbone import KeptBackbone
from rebapl.runs.jobs import (
    ATTEMPTS,
    Ended,
    Failure,
    OnEvent,
    Outcome,
    Retried,
    Started,
    Stepped,
    ended,
    ignore,
    is_done_already,
    outcome_of,
    perform,
    work_from_json,
)
from rebapl.runs.progress import ProgressFile, Reached, read_progress
from rebapl.runs.work import Work

LOOK_SECONDS = 1.0
"""How often the driver looks how far the runs are."""

PASSED_ON = ("REBAPL_", "HF_")
"""Environment variables that begin like this go along with a job."""

Handle = TypeVar("Handle")

_load = KeptBackbone()


@dataclasses.dataclass
class Attempt:
    """An attempt at a job that the system has taken: which one, since when, and what was last seen of it."""

    job: Work
    number: int
    start: float
    seen: Reached | None
    begun: bool = False


class RemoteEngine(ABC, Generic[Handle]):
    """What such engines share: which jobs to hand out, what to report, when to try again and how to stop.

    A job whose process or machine is lost, or whose memory was too small, is tried again, `ATTEMPTS` times in all.
    `cpus_per_run` and `gpus_per_run` say how much of a machine a run takes.
    """

    def __init__(self, cpus_per_run: float, gpus_per_run: float) -> None:
        for name, value, least in (("cpus-per-run", cpus_per_run, 0.01), ("gpus-per-run", gpus_per_run, 0.0)):
            if not least <= value < 10_000:
                raise UserError(f"--{name} is {value:g}: give a number of at least {least:g}")
        if gpus_per_run > 1 and not float(gpus_per_run).is_integer():
            raise UserError(f"--gpus-per-run is {gpus_per_run:g}: give a share of one GPU, or a whole number")
        self.cpus_per_run, self.gpus_per_run = cpus_per_run, gpus_per_run

    def run(self, jobs: Sequence[Work], on_event: OnEvent | None = None) -> Iterator[Outcome]:
        """Do the jobs and give the outcome of each as it ends, see `Engine`."""
        emit = on_event or ignore
        missing: list[Work] = []
        for job in jobs:
            if is_done_already(job):
                yield ended(Outcome(job, "done"), emit)
            else:
                missing.append(job)
        if missing:
            with self._connected():
                yield from self._hand_out(missing, emit)

    def _hand_out(self, jobs: Sequence[Work], emit: OnEvent) -> Iterator[Outcome]:
        waiting = deque((job, 1) for job in jobs)
        active: dict[Handle, Attempt] = {}
        try:
            while waiting or active:
                active.update(self._submit_free(waiting, active))
                for handle, failure in self._wait(list(active), LOOK_SECONDS):
                    attempt = active.pop(handle)
                    job, number = attempt.job, attempt.number
                    if failure is not None and failure.may_pass and number < ATTEMPTS:
                        emit(Retried(job, failure))
                        waiting.append((job, number + 1))
                    else:
                        yield ended(outcome_of(job, failure, number, attempt.start), emit)
                for attempt in active.values():
                    _look(attempt, emit)
        except BaseException:
            self._cancel(list(active))
            for attempt in active.values():
                spent = time.monotonic() - attempt.start
                emit(Ended(Outcome(attempt.job, "interrupted", None, attempt.number, spent)))
            raise

    def _submit_free(
        self, waiting: deque[tuple[Work, int]], active: dict[Handle, Attempt]
    ) -> Iterator[tuple[Handle, Attempt]]:
        """Hand over all jobs but those whose folder another one is at work in."""
        taken = {attempt.job.folder for attempt in active.values()}
        chosen: list[tuple[Work, int]] = []
        for _ in range(len(waiting)):
            job, number = waiting.popleft()
            if job.folder in taken:
                waiting.append((job, number))
            else:
                taken.add(job.folder)
                chosen.append((job, number))
        handles = self._submit([(job, self._text(job)) for job, _ in chosen]) if chosen else []
        for handle, (job, number) in zip(handles, chosen, strict=True):
            left = read_progress(job.folder)  # by a process that was killed
            yield handle, Attempt(job, number, time.monotonic(), left)

    def _text(self, job: Work) -> str:
        """What travels: the job, and what the process that does it needs to know."""
        environment = {name: value for name, value in os.environ.items() if name.startswith(PASSED_ON)}
        if "REBAPL_DATA" in environment:
            environment["REBAPL_DATA"] = str(Path(environment["REBAPL_DATA"]).absolute())
        device, threads = "cuda" if self.gpus_per_run else "cpu", max(1, int(self.cpus_per_run))
        content = {"job": job.absolute().as_json(), "environment": environment, "device": device, "threads": threads}
        return json.dumps(content)

    @abstractmethod
    def _connected(self) -> AbstractContextManager[Any]:
        """Within `with`, jobs can be handed to the system."""

    @abstractmethod
    def _submit(self, jobs: Sequence[tuple[Work, str]]) -> list[Handle]:
        """Hand over jobs, each with its text for `perform_text`."""

    @abstractmethod
    def _wait(self, handles: Sequence[Handle], seconds: float) -> list[tuple[Handle, Failure | None]]:
        """Wait so long at most for one to end. Give those that have ended, with the failure of each."""

    @abstractmethod
    def _cancel(self, handles: Sequence[Handle]) -> None:
        """End these, after they have written their checkpoints."""


def perform_text(text: str) -> str:
    """Do the job that a text of `RemoteEngine` describes, in this process. Return its failure, or null, as JSON."""
    given = json.loads(text)
    os.environ.update(given["environment"])
    torch.set_num_threads(given["threads"])
    job = work_from_json(given["job"])
    with ProgressFile(job.folder) as progress:
        failure = perform(job, given["device"], _load, progress.moved)
    return json.dumps(None if failure is None else failure.as_json())


def read_failure(text: str) -> Failure | None:
    """The failure that `perform_text` returned."""
    content = json.loads(text)
    return None if content is None else Failure.from_json(content)


def _look(attempt: Attempt, emit: OnEvent) -> None:
    """Report how far a run is, if that is new."""
    now = read_progress(attempt.job.folder)
    if now is None or now == attempt.seen:
        return
    if not attempt.begun:
        emit(Started(attempt.job, attempt.number, now.host, now.process))
    emit(Stepped(attempt.job, now.done, now.total, now.loss))
    attempt.seen, attempt.begun = now, True
