"""The interface between engines and jobs: the job, its outcome, and the events while it is done.

A job is a `Work`: plain data that can be sent to any process or machine as JSON. Its results are files in its own
folder, so an `Outcome` only describes how the job ended. `perform` does a job in the process that calls it, and
`perform_text` does a job that arrives as text. Every engine uses one of the two.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import multiprocessing
import os
import pkgutil
import socket
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import torch
from pydantic import BaseModel, ConfigDict

from rebapl.errors import FailedError, UserError
from rebapl.files import write_atomically
from rebapl.plugins import load_named_modules

if TYPE_CHECKING:
    from rebapl.training import Progress

Kind = Literal["bad input", "error", "out of memory", "worker died"]
WORTH_RETRYING: tuple[Kind, ...] = ("out of memory", "worker died")

PROGRESS = ".progress.tmp"
"""The file in the folder of a job that stores its progress. A killed process leaves it behind; the run removes it."""


class Work(BaseModel, ABC):
    """A job: plain data, and a folder that no other job uses at the same time.

    A job produces only files, and these files show whether it is done. So it can be done on any machine and tried again
    by any process. `noun` is the word for such a job in messages, and `unit` the word for what its progress counts.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    folder: Path
    noun: ClassVar[str]
    unit: ClassVar[str]

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the job in messages."""

    @property
    @abstractmethod
    def kept_in(self) -> Path:
        """The folder in which a person finds the results of this job and of similar ones."""

    @abstractmethod
    def is_done(self) -> bool:
        """Whether all files of the job exist."""

    @abstractmethod
    def do(self, device: str, progress: Progress | None) -> None:
        """Do what is missing of the job in this process."""

    @abstractmethod
    def place_for_error(self) -> Path | None:
        """The file for the traceback of a failure, or None if none should be written."""

    def phase(self, done: int, total: int) -> str:  # noqa: ARG002 (jobs of several parts need them)
        """The part that a job has reached after `done` of `total` steps, in words; empty if it has one part."""
        return ""

    def absolute(self) -> Work:
        """The same job with absolute paths, for a process with another working folder."""
        return self.model_copy(update={name: value.absolute() for name, value in self if isinstance(value, Path)})

    def as_json(self) -> dict[str, Any]:
        """The job as plain values, to be sent to another process: the name of its class, and its fields."""
        kind = type(self)
        return {"class": f"{kind.__module__}:{kind.__qualname__}", "fields": self.model_dump(mode="json")}

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> Work:
        """The job from which `as_json` made these values."""
        kind = pkgutil.resolve_name(content["class"])
        assert issubclass(kind, Work), "only jobs are sent"
        return kind(**content["fields"])


@dataclasses.dataclass(frozen=True)
class Failure:
    """Why a job failed: the kind of failure, the message of the error and, as `details`, its traceback if there is one.

    Once the engine has written the details to a file, `details` is empty and `traceback` is the path of that file.
    """

    kind: Kind
    message: str
    details: str = ""
    traceback: str | None = None

    @property
    def may_pass(self) -> bool:
        """Whether trying again can help."""
        return self.kind in WORTH_RETRYING

    def __str__(self) -> str:
        first = self.message.splitlines()[0] if self.message else self.kind
        return f"{first} (the traceback is in {self.traceback})" if self.traceback else first

    def written(self, job: Work) -> Failure:
        """Write the failure to the job's file for errors, if it has one, and return the failure as it is then.

        For bad input, whose message is enough, nothing is written: the job has not begun, and another process may be
        working in its folder. A process that died has left no traceback, so its message is written instead.
        """
        path = None if self.kind == "bad input" else job.place_for_error()
        if path is None:
            return self
        try:
            head = f"{time.strftime('%Y-%m-%d %H:%M:%S')}: {self.kind}"
            write_atomically(path, f"{head}\n\n{self.details or self.message}\n")
        except (UserError, OSError):
            return self
        return dataclasses.replace(self, details="", traceback=str(path) if self.details else None)


@dataclasses.dataclass(frozen=True)
class Started:
    """An attempt at a job has started, in the process with the id `process`.

    `device` is a device of this machine, or the name of another machine.
    """

    job: Work
    attempt: int
    device: str
    process: int


@dataclasses.dataclass(frozen=True)
class Stepped:
    """A job has done `done` of `total` steps or images. `loss` is the latest loss of a training, or NaN."""

    job: Work
    done: int
    total: int
    loss: float


@dataclasses.dataclass(frozen=True)
class Stalled:
    """A job has made no progress for this many seconds. It is not ended: a person may decide to end it."""

    job: Work
    seconds: float


@dataclasses.dataclass(frozen=True)
class Retried:
    """An attempt at a job has failed, and the job will be tried again."""

    job: Work
    failure: Failure


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a job ended. `attempts` is 0 if the job was done before; `seconds` is the duration of the last attempt."""

    job: Work
    state: Literal["done", "failed", "interrupted"]
    failure: Failure | None = None
    attempts: int = 0
    seconds: float = 0.0

    @property
    def folder(self) -> Path:
        """The folder of the job."""
        return self.job.folder


Event = Started | Stepped | Stalled | Retried | Outcome
OnEvent = Callable[[Event], None]


def check_outcomes(outcomes: Sequence[Outcome]) -> None:
    """If any job failed, raise an error that names every failed job, the reason and the file with its traceback.

    The error is a `UserError` if all of these jobs were refused for bad input, and otherwise a `FailedError`.
    """
    failed = [(outcome.job, outcome.failure) for outcome in outcomes if outcome.failure is not None]
    if not failed:
        return
    kind = UserError if all(failure.kind == "bad input" for _, failure in failed) else FailedError
    noun = failed[0][0].noun
    if len(outcomes) == 1:
        job, failure = failed[0]
        raise kind(failure.message if kind is UserError else f"the {noun} {job.folder} failed: {failure}")
    lines = "\n".join(f"  {job.folder.name}: {failure}" for job, failure in failed)
    folders = ", ".join(sorted({str(outcome.job.kept_in) for outcome in outcomes}))
    raise kind(
        f"{len(failed)} of {len(outcomes)} {noun}s failed; the others are kept in {folders}, and the same command "
        f"again does only what is missing:\n{lines}"
    )


def perform(job: Work, device: str, progress: Progress | None = None) -> Failure | None:
    """Do a job in this process. An error is returned as a failure and not raised."""
    try:
        load_named_modules()
        job.do(device, progress)
    except UserError as error:
        refused: Kind = "error" if isinstance(error, FailedError) else "bad input"
        return Failure(refused, str(error), traceback.format_exc())
    except Exception as error:
        kind: Kind = "out of memory" if _is_out_of_memory(error) else "error"
        return Failure(kind, f"{type(error).__name__}: {error}", traceback.format_exc())
    return None


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    signs = ("out of memory", "can't allocate memory", "not enough memory", "alloc_failed")
    return isinstance(error, RuntimeError | OSError) and any(sign in str(error).lower() for sign in signs)


def perform_text(text: str, device: str | None = None) -> str:
    """Do the job in a text made by `Engine.text`, in this process. Return its failure, or null, as JSON.

    `device` replaces the device in the text.
    """
    content = json.loads(text)
    os.environ.update(content["environment"])
    with contextlib.suppress(OSError):
        os.chdir(content["working folder"])
    torch.set_num_threads(content["threads"])
    job = Work.from_json(content["job"])
    with _reporting(job.folder, content["report every"]) as progress:
        failure = perform(job, device or content["device"], progress)
    return json.dumps(None if failure is None else dataclasses.asdict(failure))


def read_failure(text: str) -> Failure | None:
    """The failure in a text that `perform_text` returned, or None."""
    content = json.loads(text)
    return None if content is None else Failure(**content)


class Reached(NamedTuple):
    """The progress of a job: steps done, all steps, latest loss or NaN, process id, and machine or device."""

    done: int
    total: int
    loss: float
    process: int
    where: str


@contextlib.contextmanager
def _reporting(folder: Path, seconds: float) -> Iterator[Progress]:
    """A function that writes progress to a small file in the folder of a job, at most once in `seconds` seconds.

    The file is removed at the end of the `with` block.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with _reporting(folder, 1.0) as report:
    ...     report(3, 10, 0.5)
    ...     read_progress(folder)[:3]
    (3, 10, 0.5)
    >>> read_progress(folder) is None
    True
    """
    path, temporary = folder / PROGRESS, folder / f".progress.{os.getpid()}.tmp"
    parent, last = multiprocessing.parent_process(), float("-inf")

    def report(done: int, total: int, loss: float) -> None:
        nonlocal last
        if time.monotonic() - last < seconds:
            return
        last = time.monotonic()
        if parent is not None and not parent.is_alive():
            raise SystemExit(1)  # the process that sent the job is gone; a training keeps its step
        try:
            temporary.write_text(json.dumps([done, total, loss, os.getpid(), socket.gethostname()]), encoding="utf-8")
            temporary.replace(path)
        except OSError:  # a failure to report progress must not stop the job
            temporary.unlink(missing_ok=True)

    try:
        yield report
    finally:
        path.unlink(missing_ok=True)


def read_progress(folder: Path) -> Reached | None:
    """The progress of the job in a folder, or None if no process has reported any."""
    try:
        return Reached(*json.loads((folder / PROGRESS).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
