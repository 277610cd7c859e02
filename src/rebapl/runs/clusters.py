"""The engines of clusters: Ray, and SLURM by submitit.

A job travels as a JSON text. What comes back are the files in the folder of its run, and a JSON text that says why it
failed, if it did. So the driver, which hands out the jobs, may die: when it is started again, on any machine that sees
the folder, it finds what is done and hands out the rest.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import logging
import os
import re
import signal
import socket
import subprocess
import threading
import time as clock
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rebapl.errors import UserError, first_line
from rebapl.files import read_json, write_atomically, write_json
from rebapl.runs.engine import ENGINES, GRACE_SECONDS, Engine
from rebapl.runs.jobs import Failure, Work, perform_text, read_failure, read_progress
from rebapl.runs.workers import in_a_safe_folder

CONNECT_SECONDS = 10.0
"""How long a cluster may take to answer at its address."""

UNKNOWN_SECONDS = 300.0
"""A job of SLURM that `sacct` does not know for this long is given up."""

FOLDER = ".slurm"
"""The folder beside the runs that holds what submitit writes, and which job of SLURM does which run."""


def _imported(package: str, engine: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise UserError(f"--engine {engine} needs {package}: pip install 'rebapl[{engine}]'") from error


def _number(name: str, given: float | str, least: float) -> float:
    try:
        value = float(given)
    except ValueError:
        value = -1.0
    if not least <= value < 10_000:
        raise UserError(f"{name} is {given}: give a number of at least {least:g}")
    return value


@ENGINES.register("ray")
class RayEngine(Engine[Any]):
    """Packs runs onto a Ray cluster by the CPUs and GPUs that each takes.

    `address` is that of the cluster; without one it is `$RAY_ADDRESS`, or a cluster of this machine alone that lasts as
    long as the jobs. A run takes `cpus` and `gpus`, of which a share of one is possible; where nothing is said about
    GPUs, it takes one if the cluster has any.
    """

    def __init__(
        self, _runs: Path, address: str | None = None, cpus: float | str = 1.0, gpus: float | str | None = None
    ) -> None:
        self.address = address or os.environ.get("RAY_ADDRESS") or "local"
        self.cpus, self.gpus = _number("cpus", cpus, 0.01), None if gpus is None else _number("gpus", gpus, 0.0)
        if self.gpus is not None and self.gpus > 1 and not self.gpus.is_integer():
            raise UserError(f"gpus is {self.gpus:g}: give a share of one GPU, or a whole number")
        self.threads = max(1, int(self.cpus))

    @contextlib.contextmanager
    def connected(self) -> Iterator[None]:
        """Join the cluster, or begin one, and leave it afterwards."""
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        self.ray = _imported("ray", "ray")
        ours = not self.ray.is_initialized()
        if ours:
            _connect(self.ray, self.address)
        try:
            self._choose_resources()
            yield
        finally:
            if ours:
                self.ray.shutdown()

    def _choose_resources(self) -> None:
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        if self.gpus is None:
            self.gpus = 1.0 if any(node.get("GPU", 0) for node in nodes) else 0.0
        self.device = "cuda" if self.gpus else "cpu"
        if not any(node.get("CPU", 0) >= self.cpus and node.get("GPU", 0) >= self.gpus for node in nodes):
            gpus, cpus = max(((node.get("GPU", 0), node.get("CPU", 0)) for node in nodes), default=(0, 0))
            raise UserError(
                f"no machine of this Ray cluster has {self.cpus:g} CPUs and {self.gpus:g} GPUs for a run; the largest "
                f"has {cpus:g} and {gpus:g}: lower cpus or gpus"
            )

    def submit(self, jobs: Sequence[tuple[Work, str]]) -> list[Any]:
        """Make a task of Ray of each job."""
        options = {"name": "rebapl", "num_cpus": self.cpus, "num_gpus": self.gpus, "max_retries": 0}
        task = self.ray.remote(perform_text).options(**options)
        return [task.remote(text) for _, text in jobs]

    def wait(self, handles: Sequence[Any], seconds: float) -> list[tuple[Any, Failure | None]]:
        """Wait for tasks to end, see `Engine.wait`."""
        done, _ = self.ray.wait(list(handles), num_returns=len(handles), timeout=seconds)
        return [(handle, self._failure(handle)) for handle in done]

    def _failure(self, handle: Any) -> Failure | None:
        errors = self.ray.exceptions
        try:
            return read_failure(self.ray.get(handle))
        except errors.OutOfMemoryError as error:
            return Failure("out of memory", _line(error), str(error))
        except (errors.RayTaskError, errors.RuntimeEnvSetupError) as error:
            # what our own code does not catch, such as a package that is missing on a machine of the cluster
            return Failure("error", _line(error), str(error))
        except errors.RayError as error:
            return Failure("worker died", f"its process or machine was lost ({_line(error)})", str(error))

    def cancel(self, handles: Sequence[Any]) -> None:
        """Cancel the tasks, and wait until they have kept their step."""
        with contextlib.suppress(Exception):  # the cluster itself may be what is gone
            for handle in handles:
                self.ray.cancel(handle)
            self.ray.wait(list(handles), num_returns=len(handles), timeout=GRACE_SECONDS)


def _line(error: BaseException) -> str:
    """The last line of an error that says something; Ray's are long."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else 'no more is known'}"


def _connect(ray: Any, address: str) -> None:
    """Begin or join a cluster. Ray takes SIGTERM over for itself, and here it stays with whoever had it."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if host and port.isdecimal():  # Ray itself tries for nine minutes
        try:
            socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
        except (OSError, OverflowError) as error:
            raise UserError(f"no Ray cluster could be reached at '{address}' ({first_line(error)})") from error
    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM) if main else None
    options: dict[str, Any] = {"include_dashboard": False} if address == "local" else {}
    try:
        with in_a_safe_folder():  # Ray puts the working folder on the path of its workers
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **options)
    except (ConnectionError, ValueError, RuntimeError, OSError) as error:
        raise UserError(f"no Ray cluster could be reached at '{address}' ({_line(error)})") from error
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)


@ENGINES.register("slurm")
class SlurmEngine(Engine["_SlurmJob"]):
    """Makes a job of SLURM of each run. All machines must see the folder of the runs.

    `partition` and `time` (`2:00:00`, `1-00:00:00`, or minutes) are those of SLURM. If a run takes longer than `time`,
    it writes a checkpoint shortly before the end, and the job is queued again. A driver that is started again takes up
    the jobs that are still in the queue. `cluster` is submitit's name of the system: `local` stands for processes of
    this machine.
    """

    def __init__(
        self,
        runs: Path,
        partition: str | None = None,
        time: str | None = None,
        cpus: float | str = 1,
        gpus: float | str = 0,
        cluster: str = "slurm",
    ) -> None:
        whole = {"cpus": _number("cpus", cpus, 1), "gpus": _number("gpus", gpus, 0)}
        for name, value in whole.items():
            if not value.is_integer():
                raise UserError(f"{name} is {value:g}: SLURM gives whole CPUs and GPUs")
        self.folder, self.cluster = (runs / FOLDER).absolute(), cluster
        self.threads, self.device = int(whole["cpus"]), "cuda" if whole["gpus"] else "cpu"
        self.parameters: dict[str, Any] = {
            "name": "rebapl",
            "cpus_per_task": int(whole["cpus"]),
            "gpus_per_node": int(whole["gpus"]),
        }
        if time is not None:
            self.parameters["timeout_min"] = minutes(time)
        if partition is not None:
            self.parameters["slurm_partition"] = partition

    @contextlib.contextmanager
    def connected(self) -> Iterator[None]:
        """Find submitit and SLURM."""
        self.submitit = _imported("submitit", "slurm")
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            self._executor = self.submitit.AutoExecutor(self.folder / "%j", cluster=self.cluster)
        except RuntimeError as error:
            raise UserError(
                f"there is no SLURM on this machine ({error}): start the command where sbatch is"
            ) from error
        self._executor.update_parameters(**self.parameters)
        yield

    def submit(self, jobs: Sequence[tuple[Work, str]]) -> list[_SlurmJob]:
        """Make a job of SLURM of each job, as one array, unless an earlier driver has made it."""
        there = {job.folder: self._still_there(job) for job, _ in jobs}
        new = [(job, text) for job, text in jobs if there[job.folder] is None]
        for job, _ in new:
            self._file(job, "answer").unlink(missing_ok=True)
        try:
            with in_a_safe_folder(), self._executor.batch() if new else contextlib.nullcontext():
                made = [self._executor.submit(_InSlurm(), text, str(self._file(job, "answer"))) for job, text in new]
        except (self.submitit.core.utils.FailedJobError, subprocess.CalledProcessError, OSError) as error:
            raise UserError(f"SLURM does not take the jobs ({_line(error)}): see what sbatch says") from error
        for (job, _), theirs in zip(new, made, strict=True):
            there[job.folder] = theirs
            write_json(self._file(job, "json"), {"cluster": self.cluster, "job": theirs.job_id})
        return [
            _SlurmJob(job, there[job.folder], self._file(job, "json"), self._file(job, "answer")) for job, _ in jobs
        ]

    def _still_there(self, job: Work) -> Any:
        """The job of SLURM that an earlier driver has made of this run, if it is not over."""
        record = self._file(job, "json")
        if self.cluster != "slurm" or not record.exists():
            return None
        theirs = self.submitit.SlurmJob(self.folder / "%j", str(read_json(record, "a record of a job").get("job")))
        return None if theirs.done(force_check=True) else theirs

    def _file(self, job: Work, ending: str) -> Path:
        return self.folder / f"{job.folder.name}.{ending}"

    def wait(self, handles: Sequence[_SlurmJob], seconds: float) -> list[tuple[_SlurmJob, Failure | None]]:
        """Ask which jobs have ended, see `Engine.wait`."""
        done = [handle for handle in handles if handle.theirs.done() or handle.is_lost()]
        if not done:
            clock.sleep(seconds)
        return [(handle, handle.end()) for handle in done]

    def cancel(self, handles: Sequence[_SlurmJob]) -> None:
        """Cancel the jobs; SLURM lets them keep their step."""
        for handle in handles:
            with contextlib.suppress(Exception):
                handle.theirs.cancel()
            handle.record.unlink(missing_ok=True)


@dataclasses.dataclass(eq=False)
class _SlurmJob:
    """A job as submitit knows it, the file that records it, and the one that the job writes its answer to."""

    job: Work
    theirs: Any
    record: Path
    answer: Path
    unknown_since: float | None = None

    def is_lost(self) -> bool:
        """Whether SLURM has not known the job for long, and the job has not said a word either."""
        if self.theirs.state.upper() != "UNKNOWN" or read_progress(self.job.folder) is not None:
            self.unknown_since = None
            return False
        self.unknown_since = self.unknown_since or clock.monotonic()
        return clock.monotonic() - self.unknown_since > UNKNOWN_SECONDS

    def end(self) -> Failure | None:
        """How the job ended: by the answer that it has written or, where there is none, by what SLURM says of it."""
        self.record.unlink(missing_ok=True)
        if self.answer.exists():
            text = self.answer.read_text(encoding="utf-8")
            self.answer.unlink()
            return read_failure(text)
        state = str(self.theirs.state)
        message = (
            f"job {self.theirs.job_id} ended as {state} before the {self.job.noun} did; its output is in "
            f"{self.theirs.paths.stderr}"
        )
        return Failure("out of memory" if "MEMORY" in state else "worker died", message)


class _InSlurm:
    """What submitit calls in a job of SLURM. When time is over, it is called again in a job that continues."""

    def __call__(self, text: str, answer: str) -> None:
        """Do the run that the text describes, and write how it ended to the file `answer`."""
        write_atomically(Path(answer), perform_text(text))

    def checkpoint(self, text: str, answer: str) -> Any:
        """What submitit queues again. By then the run has written its own checkpoint, see `HeldBack`."""
        return _imported("submitit", "slurm").helpers.DelayedSubmission(self, text, answer)


_TIME = re.compile(r"(?:(?P<days>\d+)-)?(?P<hours>\d+):(?P<minutes>\d\d)(?::(?P<seconds>\d\d))?|(?P<only>\d+)")


def minutes(time: str) -> int:
    """SLURM's way to write a time in whole minutes, rounded up.

    >>> minutes("2:00:00"), minutes("1-12:00"), minutes("90"), minutes("0:00:30")
    (120, 2160, 90, 1)
    """
    found = _TIME.fullmatch(time.strip())
    if found is None or not any(int(part) for part in found.groups() if part):
        raise UserError(f"time is '{time}': write hours:minutes:seconds as in 2:00:00, days before it as in 1-00:00:00")
    if found["only"]:
        return int(found["only"])
    days, hours, rest, seconds = (int(found[name] or 0) for name in ("days", "hours", "minutes", "seconds"))
    return (days * 24 + hours) * 60 + rest + (seconds > 0)
