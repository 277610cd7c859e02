"""Runs on Ray: on this machine, or on a cluster of machines that see the same folders."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from rebapl.errors import UserError
from rebapl.runs.jobs import Failure, record_failure
from rebapl.runs.remote import RemoteEngine, perform_text, read_failure
from rebapl.runs.work import Work

GRACE_SECONDS = 30.0
"""How long runs may take to write their checkpoints when the driver is interrupted."""


class RayEngine(RemoteEngine[Any]):
    """Packs runs onto a Ray cluster by the CPUs and GPUs that each takes.

    `address` is that of the cluster; without one it is `$RAY_ADDRESS`, or a cluster of this machine alone that lasts as
    long as the jobs. Where nothing is said about GPUs, a run takes one if the cluster has any.
    """

    def __init__(
        self, address: str | None = None, *, cpus_per_run: float = 1.0, gpus_per_run: float | None = None
    ) -> None:
        super().__init__(cpus_per_run, gpus_per_run or 0.0)
        self.address = address or os.environ.get("RAY_ADDRESS") or "local"
        self._gpus_given = gpus_per_run is not None
        self._jobs: dict[Any, Work] = {}

    @contextlib.contextmanager
    def _connected(self) -> Iterator[None]:
        ray = _ray()
        ours = not ray.is_initialized()
        if ours:
            _connect(ray, self.address)
        try:
            self._choose_resources(ray)
            yield
        finally:
            self._jobs.clear()
            if ours:
                ray.shutdown()

    def _choose_resources(self, ray: Any) -> None:
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if not self._gpus_given:
            self.gpus_per_run = 1.0 if any(node.get("GPU", 0) for node in nodes) else 0.0
        wanted = {"CPU": self.cpus_per_run, "GPU": self.gpus_per_run}
        if not any(all(node.get(name, 0) >= amount for name, amount in wanted.items()) for node in nodes):
            largest: dict[str, float] = max(
                nodes, key=lambda node: (node.get("GPU", 0), node.get("CPU", 0)), default={}
            )
            raise UserError(
                f"no machine of this Ray cluster has {self.cpus_per_run:g} CPUs and {self.gpus_per_run:g} GPUs for a "
                f"run; the largest has {largest.get('CPU', 0):g} and {largest.get('GPU', 0):g}: lower --cpus-per-run "
                "or --gpus-per-run"
            )

    def _submit(self, jobs: Sequence[tuple[Work, str]]) -> list[Any]:
        task = (
            _ray()
            .remote(perform_text)
            .options(name="rebapl run", num_cpus=self.cpus_per_run, num_gpus=self.gpus_per_run, max_retries=0)
        )
        handles = []
        for job, text in jobs:
            handle = task.remote(text)
            self._jobs[handle] = job
            handles.append(handle)
        return handles

    def _wait(self, handles: Sequence[Any], seconds: float) -> list[tuple[Any, Failure | None]]:
        done, _ = _ray().wait(list(handles), num_returns=len(handles), timeout=seconds)
        return [(handle, self._failure(handle)) for handle in done]

    def _failure(self, handle: Any) -> Failure | None:
        ray, job = _ray(), self._jobs.pop(handle)
        try:
            return read_failure(ray.get(handle))
        except ray.exceptions.OutOfMemoryError as error:
            return record_failure(job, "out of memory", _line(error), str(error))
        except (ray.exceptions.RayTaskError, ray.exceptions.RuntimeEnvSetupError) as error:
            # what our own code does not catch, such as a package that is missing on a machine of the cluster
            return record_failure(job, "error", _line(error), str(error))
        except ray.exceptions.RayError as error:
            return record_failure(
                job, "worker died", f"the process or machine of the {job.noun} was lost ({_line(error)})", str(error)
            )

    def _cancel(self, handles: Sequence[Any]) -> None:
        ray = _ray()
        with contextlib.suppress(Exception):  # the cluster itself may be what is gone
            for handle in handles:
                ray.cancel(handle)
            ray.wait(list(handles), num_returns=len(handles), timeout=GRACE_SECONDS)


def _line(error: BaseException) -> str:
    """The last line of an error that says something; Ray's are long."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else 'no more is known'}"


def _ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise UserError("--engine ray needs Ray: pip install 'rebapl[ray]'") from error
    return ray


def _connect(ray: Any, address: str) -> None:
    """Begin or join a cluster. Ray takes SIGTERM over for itself, and here it stays with whoever had it."""
    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM) if main else None
    options: dict[str, Any] = {"include_dashboard": False} if address == "local" else {}
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **options)
    except (ConnectionError, ValueError, RuntimeError, OSError) as error:
        raise UserError(f"no Ray cluster could be reached at '{address}' ({_line(error)})") from error
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)
