"""Runs as jobs of SLURM, handed over by submitit."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rebapl.errors import UserError
from rebapl.files import read_json, write_atomically, write_json
from rebapl.runs.jobs import Failure, record_failure
from rebapl.runs.remote import RemoteEngine, perform_text, read_failure
from rebapl.runs.work import Work

FOLDER = ".slurm"
"""The folder beside the runs that holds what submitit writes, and which job of SLURM does which run."""

_TIME = re.compile(r"(?:(?P<days>\d+)-)?(?P<hours>\d+):(?P<minutes>\d\d)(?::(?P<seconds>\d\d))?|(?P<only>\d+)")


class SlurmEngine(RemoteEngine[Any]):
    """Makes a job of SLURM of each run. `folder` is where submitit keeps its files; all machines must see it.

    `partition` and `time` (`2:00:00`, `1-00:00:00`, or minutes) are those of SLURM. If a run takes longer than `time`,
    it writes a checkpoint shortly before the end, and the job is queued again. A driver that is started again takes up
    the jobs that are still in the queue. `cluster` is submitit's name of the system: `local` stands for processes of
    this machine.
    """

    def __init__(
        self,
        folder: Path,
        *,
        partition: str | None = None,
        time: str | None = None,
        cpus_per_run: float = 1,
        gpus_per_run: float = 0,
        cluster: str = "slurm",
    ) -> None:
        super().__init__(cpus_per_run, gpus_per_run)
        for name, value in (("cpus-per-run", cpus_per_run), ("gpus-per-run", gpus_per_run)):
            if not float(value).is_integer():
                raise UserError(f"--{name} is {value:g}: SLURM gives whole CPUs and GPUs")
        self.folder, self.cluster = folder.absolute(), cluster
        self.parameters: dict[str, Any] = {
            "name": "rebapl",
            "cpus_per_task": int(cpus_per_run),
            "gpus_per_node": int(gpus_per_run),
        }
        if time is not None:
            self.parameters["timeout_min"] = minutes(time)
        if partition is not None:
            self.parameters["slurm_partition"] = partition

    @contextlib.contextmanager
    def _connected(self) -> Iterator[None]:
        submitit = _submitit()
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            self._executor = submitit.AutoExecutor(self.folder / "%j", cluster=self.cluster)
        except RuntimeError as error:
            raise UserError(
                f"there is no SLURM on this machine ({error}): start the command where sbatch is"
            ) from error
        self._executor.update_parameters(**self.parameters)
        self._jobs: dict[str, tuple[Any, Work]] = {}
        yield

    def _submit(self, jobs: Sequence[tuple[Work, str]]) -> list[str]:
        found = {job.folder: self._still_there(job) for job, _ in jobs}
        new = [(job, text) for job, text in jobs if found[job.folder] is None]
        for job, _ in new:
            self._answer(job).unlink(missing_ok=True)
        with self._executor.batch() if new else contextlib.nullcontext():
            handed = [self._executor.submit(Run(), text, str(self._answer(job))) for job, text in new]
        for (job, _), theirs in zip(new, handed, strict=True):
            found[job.folder] = theirs
            write_json(self._record(job), {"cluster": self.cluster, "job": theirs.job_id})
        handles = []
        for job, _ in jobs:
            theirs = found[job.folder]
            assert theirs is not None
            self._jobs[theirs.job_id] = (theirs, job)
            handles.append(theirs.job_id)
        return handles

    def _wait(self, handles: Sequence[str], seconds: float) -> list[tuple[str, Failure | None]]:
        done = [handle for handle in handles if self._jobs[handle][0].done()]
        if not done:
            time.sleep(seconds)
        return [(handle, self._failure(handle)) for handle in done]

    def _failure(self, handle: str) -> Failure | None:
        """How a job of SLURM ended: by what it has written, or by what SLURM says of one that wrote nothing."""
        theirs, job = self._jobs.pop(handle)
        self._record(job).unlink(missing_ok=True)
        answer = self._answer(job)
        if answer.exists():
            text = answer.read_text(encoding="utf-8")
            answer.unlink()
            return read_failure(text)
        state = str(theirs.state)
        message = f"job {handle} ended as {state} before the {job.noun} did; its output is in {theirs.paths.stderr}"
        return record_failure(job, "out of memory" if "MEMORY" in state else "worker died", message)

    def _cancel(self, handles: Sequence[str]) -> None:
        for handle in handles:
            theirs, job = self._jobs[handle]
            with contextlib.suppress(Exception):
                theirs.cancel()
            self._record(job).unlink(missing_ok=True)

    def _still_there(self, job: Work) -> Any:
        """The job of SLURM that an earlier driver has made of this run, if it is not over."""
        record = self._record(job)
        if self.cluster != "slurm" or not record.exists():
            return None
        submitit = _submitit()
        theirs = submitit.SlurmJob(self.folder / "%j", str(read_json(record, "a record of a job").get("job")))
        return None if theirs.done(force_check=True) else theirs

    def _record(self, job: Work) -> Path:
        return self.folder / f"{job.folder.name}.json"

    def _answer(self, job: Work) -> Path:
        return self.folder / f"{job.folder.name}.answer"


class Run:
    """What submitit calls in a job of SLURM. When time is over, it is called again in a job that continues."""

    def __call__(self, text: str, answer: str) -> None:
        """Do the run that the text describes, and write how it ended to the file `answer`."""
        write_atomically(Path(answer), perform_text(text))

    def checkpoint(self, text: str, answer: str) -> Any:
        """What submitit queues again. By then the run has written its own checkpoint, see `HeldBack`."""
        return _submitit().helpers.DelayedSubmission(self, text, answer)


def minutes(time: str) -> int:
    """SLURM's way to write a time in whole minutes, rounded up.

    >>> minutes("2:00:00"), minutes("1-12:00"), minutes("90"), minutes("0:00:30")
    (120, 2160, 90, 1)
    """
    found = _TIME.fullmatch(time.strip())
    if found is None or not any(int(part) for part in found.groups() if part):
        raise UserError(
            f"--time is '{time}': write hours:minutes:seconds as in 2:00:00, days before it as in 1-00:00:00"
        )
    if found["only"]:
        return int(found["only"])
    days, hours, rest, seconds = (int(found[name] or 0) for name in ("days", "hours", "minutes", "seconds"))
    return (days * 24 + hours) * 60 + rest + (seconds > 0)


def _submitit() -> Any:
    try:
        import submitit
    except ImportError as error:
        raise UserError("--engine slurm needs submitit: pip install 'rebapl[slurm]'") from error
    return submitit
