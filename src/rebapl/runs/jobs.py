"""What engines and work agree on: a job, how it ends, and the events on the way.

A job is a `Work`: plain data that can travel to any process or machine as JSON. Its results are files in a folder of
its own, so an outcome says only how the job ended. `perform` does one job in the process that calls it, and
`perform_text` does one that came as a text; every engine calls them in the end.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pkgutil
import socket
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import torch

from rebapl.errors import FailedError, UserError
from rebapl.files import write_atomically
from rebapl.plugins import load_named_modules
from rebapl.runs.machine import KeptBackbone, LoadBackbone

if TYPE_CHECKING:
    from rebapl.training import Progress

Kind = Literal["bad input", "error", "out of memory", "worker died"]
WORTH_RETRYING: tuple[Kind, ...] = ("out of memory", "worker died")


@dataclasses.dataclass(frozen=True)
class Work(ABC):
    """A job: plain data, and a folder that is its own while it is being done.

    Two jobs that share a folder are not done at once. What a job makes are files, and they say whether it is done. So
    it can be done anywhere, and be tried again by anybody. `noun` is what a person calls such a job, and `unit` what
    its progress counts.
    """

    folder: Path
    noun: ClassVar[str]
    unit: ClassVar[str]

    @property
    @abstractmethod
    def name(self) -> str:
        """What it is called among others of its kind."""

    @property
    @abstractmethod
    def kept_in(self) -> Path:
        """The folder in which a person finds the results of it and of others of its kind."""

    @abstractmethod
    def is_done(self) -> bool:
        """Whether everything that it is to make is there."""

    @abstractmethod
    def do(self, device: str, load: LoadBackbone, progress: Progress | None) -> None:
        """Do it in this process, as far as that is not done."""

    @abstractmethod
    def place_for_error(self, bad_input: bool) -> Path | None:
        """The file for the traceback of a failure, or None where none should be written."""

    def phases(self) -> Callable[[int, int], str]:
        """Gives the part that a job is in after `done` of `total` steps, in words; nothing if it has one part."""
        return lambda _done, _total: ""

    def absolute(self) -> Work:
        """The same for a process that works in another folder."""
        paths = {name: value.absolute() for name, value in vars(self).items() if isinstance(value, Path)}
        return dataclasses.replace(self, **paths)

    def as_json(self) -> dict[str, Any]:
        """Plain values for the way to another process: the class by its name, and its fields."""
        fields = {
            name: {"path": str(value)} if isinstance(value, Path) else value for name, value in vars(self).items()
        }
        return {"class": f"{type(self).__module__}:{type(self).__qualname__}", "fields": fields}

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> Work:
        """The job of which `as_json` made these values."""
        fields = {}
        for name, value in content["fields"].items():
            is_path = isinstance(value, dict) and value.keys() == {"path"}
            fields[name] = Path(value["path"]) if is_path else tuple(value) if isinstance(value, list) else value
        kind = pkgutil.resolve_name(content["class"])
        assert issubclass(kind, Work), "only jobs travel"
        job: Work = kind(**fields)
        return job


@dataclasses.dataclass(frozen=True)
class Failure:
    """Why a job failed: the kind, the message of the error, and the file that holds its traceback, if there is one."""

    kind: Kind
    message: str
    traceback: str | None = None

    @property
    def may_pass(self) -> bool:
        """Whether trying again can help."""
        return self.kind in WORTH_RETRYING

    def __str__(self) -> str:
        first = self.message.splitlines()[0] if self.message else self.kind
        return f"{first} (the traceback is in {self.traceback})" if self.traceback else first


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
class Stalled:
    """A job has made no progress for this many seconds. It goes on; whether to end it is for a person to decide."""

    job: Work
    seconds: float


@dataclasses.dataclass(frozen=True)
class Retried:
    """An attempt at a job has failed, and the job will be tried again."""

    job: Work
    failure: Failure


@dataclasses.dataclass(frozen=True)
class Ended:
    """Nothing more will happen to a job."""

    outcome: Outcome

    @property
    def job(self) -> Work:
        """The job."""
        return self.outcome.job


Event = Started | Stepped | Stalled | Retried | Ended
OnEvent = Callable[[Event], None]


class Reached(NamedTuple):
    """The steps done, the steps in all, the latest loss or NaN, the process at work, and its machine or device."""

    done: int
    total: int
    loss: float
    process: int
    where: str


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
    return Failure(kind, message, None if details is None else str(path))


def check_outcomes(outcomes: Sequence[Outcome]) -> None:
    """Raise an error that names every failed job, what went wrong and where its traceback is, if any failed.

    It is a `UserError` if all of them were refused for bad input, and a `FailedError` if work failed.
    """
    failed = [(each.job, each.failure) for each in outcomes if each.failure is not None]
    if not failed:
        return
    kind = UserError if all(failure.kind == "bad input" for _, failure in failed) else FailedError
    noun = failed[0][0].noun
    if len(outcomes) == 1:
        job, failure = failed[0]
        raise kind(failure.message if kind is UserError else f"the {noun} {job.folder} failed: {failure}")
    lines = "\n".join(f"  {job.folder.name}: {failure}" for job, failure in failed)
    kept = ", ".join(sorted({str(each.job.kept_in) for each in outcomes}))
    raise kind(
        f"{len(failed)} of {len(outcomes)} {noun}s failed; the others are kept in {kept}, and the same command again "
        f"does only what is missing:\n{lines}"
    )


def perform_text(text: str, progress: Progress | None = None) -> str:
    """Do the job that a text of `Engine.text` describes, in this process. Return its failure, or null, as JSON."""
    given = json.loads(text)
    os.environ.update(given["environment"])
    with contextlib.suppress(OSError):
        os.chdir(given["working folder"])
    torch.set_num_threads(given["threads"])
    job = Work.from_json(given["job"])
    if progress is not None:
        failure = perform(job, given["device"], _kept, progress)
    else:
        with ProgressFile(job.folder) as file:
            failure = perform(job, given["device"], _kept, file.moved)
    return json.dumps(None if failure is None else dataclasses.asdict(failure))


_kept = KeptBackbone()


def read_failure(text: str) -> Failure | None:
    """The failure that `perform_text` returned."""
    content = json.loads(text)
    return None if content is None else Failure(**content)


class ProgressFile:
    """Within `with`, `moved` writes how far a job is to a small hidden file in its folder. The file ends with it.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with ProgressFile(folder) as progress:
    ...     progress.moved(3, 10, 0.5)
    ...     read_progress(folder)[:3]
    (3, 10, 0.5)
    >>> read_progress(folder) is None
    True
    """

    NAME = ".progress.tmp"  # a leftover, for whoever starts a run again after its process was killed
    EVERY_SECONDS = 1.0

    def __init__(self, folder: Path) -> None:
        self.path = folder / self.NAME
        self._last = float("-inf")

    def __enter__(self) -> ProgressFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.path.unlink(missing_ok=True)

    def moved(self, done: int, total: int, loss: float) -> None:
        """Write the file, if that was not done a moment ago. What is seen of a run must not stop it."""
        if time.monotonic() - self._last < self.EVERY_SECONDS:
            return
        self._last = time.monotonic()
        beside = self.path.with_name(f".progress.{os.getpid()}.tmp")
        try:
            beside.write_text(json.dumps([done, total, loss, os.getpid(), socket.gethostname()]), encoding="utf-8")
            beside.replace(self.path)
        except OSError:
            beside.unlink(missing_ok=True)


def read_progress(folder: Path) -> Reached | None:
    """How far the job in a folder is, or None if no process says so."""
    try:
        return Reached(*json.loads((folder / ProgressFile.NAME).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def is_done_already(job: Work) -> bool:
    """`job.is_done()`, or false if that cannot be told; the attempt at the job will then say why."""
    with contextlib.suppress(UserError):
        return job.is_done()
    return False
