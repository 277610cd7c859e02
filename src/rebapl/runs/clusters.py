"""The engines for clusters: Ray, and SLURM through submitit.

A job is sent as a JSON text. Its results are the files in its folder, and its answer is a JSON text with the reason of
a failure, or null. So the driver, which submits the jobs, may die: when it is started again, on any machine that sees
the folders, it finds the finished jobs and submits the others.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
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

from pydantic import Field, model_validator

from rebapl.errors import UserError, first_line
from rebapl.files import read_json, write_atomically, write_json
from rebapl.processes import in_a_safe_folder
from rebapl.runs.engine import GRACE_SECONDS, Engine, EngineOptions, register_engine
from rebapl.runs.jobs import Failure, Work, perform_text, read_failure, read_progress
from rebapl.settings import refuse

CONNECT_SECONDS = 10.0
"""How many seconds a cluster may take to answer at its address."""

UNKNOWN_SECONDS = 300.0
"""A SLURM job that `sacct` does not know for this many seconds is given up."""

FOLDER = ".slurm"
"""The folder next to the runs for the files of submitit, and for the record and the answer of each SLURM job."""


def _imported(package: str, engine: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise UserError(f"--engine {engine} needs {package}: pip install 'rebapl[{engine}]'") from error


class RayOptions(EngineOptions):
    """The address of the cluster, and the CPUs and GPUs that each job takes; see `RayEngine`."""

    address: str | None = None
    cpus: float = Field(default=1.0, ge=0.01, lt=10_000)
    gpus: float | None = Field(default=None, ge=0, lt=10_000)

    @model_validator(mode="after")
    def _check(self) -> RayOptions:
        if self.gpus is not None and self.gpus > 1 and not self.gpus.is_integer():
            refuse("gpus", f"is {self.gpus:g}: give a share of one GPU, or a whole number")
        return self


@register_engine("ray")
class RayEngine(Engine[Any]):
    """Distributes jobs over a Ray cluster by the number of CPUs and GPUs that each job takes.

    `address` is the address of the cluster. Without it, the address is `$RAY_ADDRESS`; if that is not set either, a
    cluster of this machine alone is started, which ends with the jobs. Each job takes `cpus` CPUs and `gpus` GPUs,
    which may be fractions of one. Without `gpus`, a job takes one GPU if the cluster has any.
    """

    Options = RayOptions
    options: RayOptions

    def __init__(self, runs: Path = Path("runs"), **options: Any) -> None:
        super().__init__(runs, **options)
        self.cpus, self.gpus = self.options.cpus, self.options.gpus
        self.threads = max(1, int(self.cpus))

    @contextlib.contextmanager
    def connected(self) -> Iterator[None]:
        """Join the cluster or start one, and leave it afterwards."""
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        self.ray = _imported("ray", "ray")
        ours = not self.ray.is_initialized()
        if ours:
            _connect(self.ray, self.options.address or os.environ.get("RAY_ADDRESS") or "local")
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
        """Submit each job as a Ray task."""
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
            # errors outside of our own code, such as a package that is missing on a machine of the cluster
            return Failure("error", _line(error), str(error))
        except errors.RayError as error:
            return Failure("worker died", f"its process or machine was lost ({_line(error)})", str(error))

    def cancel(self, handles: Sequence[Any]) -> None:
        """Cancel the tasks, and wait until they have stored their step."""
        with contextlib.suppress(Exception):  # the cluster itself may be gone
            for handle in handles:
                self.ray.cancel(handle)
            self.ray.wait(list(handles), num_returns=len(handles), timeout=GRACE_SECONDS)


def _line(error: BaseException) -> str:
    """The last non-empty line of an error, since the messages of Ray are long."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else 'no more is known'}"


def _connect(ray: Any, address: str) -> None:
    """Start or join a cluster. Ray replaces the handler of SIGTERM; the previous handler is restored here."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if host and port.isdecimal():  # because Ray itself tries for nine minutes
        try:
            socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
        except (OSError, OverflowError) as error:
            raise UserError(f"no Ray cluster could be reached at '{address}' ({first_line(error)})") from error
    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM) if main else None
    options: dict[str, Any] = {"include_dashboard": False} if address == "local" else {}
    try:
        with in_a_safe_folder():  # because Ray puts the working folder on the path of its workers
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **options)
    except (ConnectionError, ValueError, RuntimeError, OSError) as error:
        raise UserError(f"no Ray cluster could be reached at '{address}' ({_line(error)})") from error
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)


class SlurmOptions(EngineOptions):
    """What each job asks of SLURM; see `SlurmEngine`."""

    partition: str | None = None
    time: str | None = None
    cpus: int = Field(default=1, ge=1, lt=10_000)
    gpus: int = Field(default=0, ge=0, lt=10_000)
    cluster: str = "slurm"


@register_engine("slurm")
class SlurmEngine(Engine["_SlurmJob"]):
    """Submits each job as a SLURM job. All machines must see the folder of the runs.

    `partition` and `time` (`2:00:00`, `1-00:00:00`, or minutes) are those of SLURM. If a job takes longer than `time`,
    it writes a checkpoint shortly before the end and is queued again. A driver that is started again waits for the jobs
    that are still in the queue and does not submit them a second time. `cluster` is submitit's name of the system;
    `local` means processes on this machine.
    """

    Options = SlurmOptions
    options: SlurmOptions

    def __init__(self, runs: Path = Path("runs"), **options: Any) -> None:
        super().__init__(runs, **options)
        chosen = self.options
        self.folder, self.cluster = (runs / FOLDER).absolute(), chosen.cluster
        self.threads, self.device = chosen.cpus, "cuda" if chosen.gpus else "cpu"
        self.parameters: dict[str, Any] = {
            "name": "rebapl",
            "cpus_per_task": chosen.cpus,
            "gpus_per_node": chosen.gpus,
        }
        if chosen.time is not None:
            self.parameters["timeout_min"] = minutes(chosen.time)
        if chosen.partition is not None:
            self.parameters["slurm_partition"] = chosen.partition

    @contextlib.contextmanager
    def connected(self) -> Iterator[None]:
        """Load submitit and check that SLURM is available."""
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
        """Submit the jobs as one SLURM array, except those that an earlier driver submitted and that have not ended."""
        handles = [self._handle(job) for job, _ in jobs]
        new = [(handle, text) for handle, (_, text) in zip(handles, jobs, strict=True) if handle.slurm_job is None]
        for handle, _ in new:
            handle.answer.unlink(missing_ok=True)
        try:
            with in_a_safe_folder(), self._executor.batch() if new else contextlib.nullcontext():
                queued = [self._executor.submit(_InSlurm(), text, str(handle.answer)) for handle, text in new]
        except (self.submitit.core.utils.FailedJobError, subprocess.CalledProcessError, OSError) as error:
            raise UserError(f"SLURM does not take the jobs ({_line(error)}): see what sbatch says") from error
        for (handle, _), slurm_job in zip(new, queued, strict=True):
            handle.slurm_job = slurm_job
            write_json(handle.record, {"cluster": self.cluster, "job": slurm_job.job_id})
        return handles

    def _handle(self, job: Work) -> _SlurmJob:
        """A job, with the SLURM job that an earlier driver has submitted for it if that has not ended."""
        path = hashlib.sha256(str(job.folder.absolute()).encode()).hexdigest()[:10]
        name = f"{job.folder.name}-{path}"  # because cycles of two runs have folders of the same name
        handle = _SlurmJob(job, None, self.folder / f"{name}.json", self.folder / f"{name}.answer")
        if self.cluster == "slurm" and handle.record.exists():
            number = str(read_json(handle.record, "a record of a job").get("job"))
            earlier = self.submitit.SlurmJob(self.folder / "%j", number)
            handle.slurm_job = None if earlier.done(force_check=True) else earlier
        return handle

    def wait(self, handles: Sequence[_SlurmJob], seconds: float) -> list[tuple[_SlurmJob, Failure | None]]:
        """Find the jobs that have ended, see `Engine.wait`."""
        done = [handle for handle in handles if handle.slurm_job.done() or handle.is_lost()]
        if not done:
            clock.sleep(seconds)
        return [(handle, handle.end()) for handle in done]

    def cancel(self, handles: Sequence[_SlurmJob]) -> None:
        """Cancel the jobs. SLURM leaves them time to store their step."""
        for handle in handles:
            with contextlib.suppress(Exception):
                handle.slurm_job.cancel()
            handle.record.unlink(missing_ok=True)


@dataclasses.dataclass(eq=False)
class _SlurmJob:
    """A job, its object in submitit, the file with its number in SLURM, and the file to which it writes its answer."""

    job: Work
    slurm_job: Any
    record: Path
    answer: Path
    unknown_since: float | None = None

    def is_lost(self) -> bool:
        """Whether SLURM has not known the job for `UNKNOWN_SECONDS`, and the job has not reported any progress."""
        if self.slurm_job.state.upper() != "UNKNOWN" or read_progress(self.job.folder) is not None:
            self.unknown_since = None
            return False
        self.unknown_since = self.unknown_since or clock.monotonic()
        return clock.monotonic() - self.unknown_since > UNKNOWN_SECONDS

    def end(self) -> Failure | None:
        """The failure of the job, from the answer that it wrote or, without an answer, from its state in SLURM."""
        self.record.unlink(missing_ok=True)
        if self.answer.exists():
            text = self.answer.read_text(encoding="utf-8")
            self.answer.unlink()
            return read_failure(text)
        state = str(self.slurm_job.state)
        message = (
            f"job {self.slurm_job.job_id} ended as {state} before the {self.job.noun} did; its output is in "
            f"{self.slurm_job.paths.stderr}"
        )
        return Failure("out of memory" if "MEMORY" in state else "worker died", message)


class _InSlurm:
    """The function that submitit calls in a SLURM job. When its time is over, it is called again in a new job."""

    def __call__(self, text: str, answer: str) -> None:
        """Do the job in the text, and write its answer to the file `answer`."""
        write_atomically(Path(answer), perform_text(text))

    def checkpoint(self, text: str, answer: str) -> Any:
        """What submitit queues again when time is over. By then the job has written its checkpoint, see `HeldBack`."""
        return _imported("submitit", "slurm").helpers.DelayedSubmission(self, text, answer)


_TIME = re.compile(r"(?:(?P<days>\d+)-)?(?P<hours>\d+):(?P<minutes>\d\d)(?::(?P<seconds>\d\d))?|(?P<only>\d+)")


def minutes(time: str) -> int:
    """A time as SLURM writes it, in whole minutes, rounded up.

    >>> minutes("2:00:00"), minutes("1-12:00"), minutes("90"), minutes("0:00:30")
    (120, 2160, 90, 1)
    """
    match = _TIME.fullmatch(time.strip())
    if match is None or not any(int(part) for part in match.groups() if part):
        raise UserError(f"time is '{time}': write hours:minutes:seconds as in 2:00:00, days before it as in 1-00:00:00")
    if match["only"]:
        return int(match["only"])
    days, hours, rest, seconds = (int(match[name] or 0) for name in ("days", "hours", "minutes", "seconds"))
    return (days * 24 + hours) * 60 + rest + (seconds > 0)
