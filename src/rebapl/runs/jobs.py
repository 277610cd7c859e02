"""What engines and work agree on: a job, how it ends, and the events on the way.

A job is a `Work`: plain data that can travel to any process or machine as JSON. Its results are files in a folder of
its own, so an outcome says only how the job ended. `perform` does one job in the process that calls it, and
`perform_text` does one that came as a text; every engine calls them in the end.
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
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, TypeVar

import torch

from rebapl.errors import FailedError, UserError
from rebapl.files import write_atomically
from rebapl.plugins import load_named_modules
from rebapl.settings import Settings

if TYPE_CHECKING:
    from rebapl.training import Progress

Kind = Literal["bad input", "error", "out of memory", "worker died"]
WORTH_RETRYING: tuple[Kind, ...] = ("out of memory", "worker died")

AnyWork = TypeVar("AnyWork", bound="Work")

PROGRESS = ".progress.tmp"
"""The file in the folder of a job that says how far it is. After a kill it is a leftover, which the run removes."""


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
    def do(self, device: str, progress: Progress | None) -> None:
        """Do it in this process, as far as that is not done."""

    @abstractmethod
    def place_for_error(self, bad_input: bool) -> Path | None:
        """The file for the traceback of a failure, or None where none should be written."""

    def phase(self, done: int, total: int) -> str:  # noqa: ARG002 (jobs of several parts need them)
        """The part that a job is in after `done` of `total` steps, in words; nothing if it has one part."""
        return ""

    def absolute(self: AnyWork) -> AnyWork:
        """The same for a process that works in another folder."""
        paths = {name: value.absolute() for name, value in vars(self).items() if isinstance(value, Path)}
        return dataclasses.replace(self, **paths)

    def as_json(self) -> dict[str, Any]:
        """Plain values for the way to another process: the class by its name, and its fields."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        for name, value in fields.items():
            if isinstance(value, Path):
                fields[name] = {"path": str(value)}
            elif isinstance(value, Settings):
                fields[name] = {"settings": _class_name(value), "values": value.plain()}
        return {"class": _class_name(self), "fields": fields}

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> Work:
        """The job of which `as_json` made these values."""
        fields: dict[str, Any] = {}
        for name, value in content["fields"].items():
            match value:
                case {"path": path}:
                    fields[name] = Path(path)
                case {"settings": kind, "values": values}:
                    fields[name] = pkgutil.resolve_name(kind)(**values)
                case _:
                    fields[name] = tuple(value) if isinstance(value, list) else value
        kind = pkgutil.resolve_name(content["class"])
        assert issubclass(kind, Work), "only jobs travel"
        job: Work = kind(**fields)
        return job


def _class_name(thing: object) -> str:
    return f"{type(thing).__module__}:{type(thing).__qualname__}"


@dataclasses.dataclass(frozen=True)
class Failure:
    """Why a job failed: the kind, the message of the error, and its traceback as `details`, if there is one.

    When the engine has written the details to a file, it drops them, and `traceback` names the file.
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
        """The same failure, after it is written to the file that the job has for errors, if it has one.

        A process that died has left no traceback; the file then has the message.
        """
        path = job.place_for_error(self.kind == "bad input")
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


Event = Started | Stepped | Stalled | Retried | Outcome
OnEvent = Callable[[Event], None]


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


def perform(job: Work, device: str, progress: Progress | None = None) -> Failure | None:
    """Do a job in this process. An error is not raised, but returned as a failure."""
    try:
        load_named_modules()
        job.do(device, progress)
    except UserError as error:
        return Failure("bad input", str(error), traceback.format_exc())
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
    """Do the job that a text of `Engine.text` describes, in this process. Return its failure, or null, as JSON.

    `device` takes the place of the one that the text names.
    """
    given = json.loads(text)
    os.environ.update(given["environment"])
    with contextlib.suppress(OSError):
        os.chdir(given["working folder"])
    torch.set_num_threads(given["threads"])
    job = Work.from_json(given["job"])
    with _reporting(job.folder, given["report every"]) as progress:
        failure = perform(job, device or given["device"], progress)
    return json.dumps(None if failure is None else dataclasses.asdict(failure))


def read_failure(text: str) -> Failure | None:
    """The failure that `perform_text` returned."""
    content = json.loads(text)
    return None if content is None else Failure(**content)


class Reached(NamedTuple):
    """The steps done, the steps in all, the latest loss or NaN, the process at work, and its machine or device."""

    done: int
    total: int
    loss: float
    process: int
    where: str


@contextlib.contextmanager
def _reporting(folder: Path, seconds: float) -> Iterator[Progress]:
    """Within `with`, this progress is written to a small file in the folder of a job, `seconds` apart or more.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with _reporting(folder, 1.0) as moved:
    ...     moved(3, 10, 0.5)
    ...     read_progress(folder)[:3]
    (3, 10, 0.5)
    >>> read_progress(folder) is None
    True
    """
    path, beside = folder / PROGRESS, folder / f".progress.{os.getpid()}.tmp"
    parent, last = multiprocessing.parent_process(), float("-inf")

    def moved(done: int, total: int, loss: float) -> None:
        nonlocal last
        if time.monotonic() - last < seconds:
            return
        last = time.monotonic()
        if parent is not None and not parent.is_alive():
            raise SystemExit(1)  # whoever gave the job is gone; the training keeps its step
        try:
            beside.write_text(json.dumps([done, total, loss, os.getpid(), socket.gethostname()]), encoding="utf-8")
            beside.replace(path)
        except OSError:  # to show how far a run is must not stop it
            beside.unlink(missing_ok=True)

    try:
        yield moved
    finally:
        path.unlink(missing_ok=True)


def read_progress(folder: Path) -> Reached | None:
    """How far the job in a folder is, or None if no process says so."""
    try:
        return Reached(*json.loads((folder / PROGRESS).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
