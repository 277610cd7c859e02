"""Jobs that take about a second, and their results."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from rebapl.runs.config import RunConfig
from rebapl.runs.jobs import Work
from rebapl.runs.run import Job
from rebapl.runs.shards import Shard
from rebapl.training import Progress

LONG = {"epochs": 30, "inference_settings": {"batch": 1}}
"""Settings with many steps, so that a test can interrupt them."""


def tiny(**changes: Any) -> RunConfig:
    given = {"data": "digits", "method": "coop", "backbone": "mini", "shots": 1, "epochs": 1, "test_images": 20}
    return RunConfig(**{**given, **changes})


def jobs(runs: Path, *seeds: int, **changes: Any) -> list[Job]:
    return [Job.of(tiny(seed=seed, **changes), runs) for seed in seeds]


def scores(folder: Path) -> dict[str, Any]:
    """The result of a run without its times."""
    content = json.loads((folder / "results.json").read_text())
    return {key: value for key, value in content.items() if key not in ("seconds", "sha256")}


def made(folder: Path) -> tuple[dict[str, Any], bytes]:
    """The result of a run without its times, and its samples."""
    return scores(folder), (folder / "posterior" / "samples.safetensors").read_bytes()


class StruckJob(Job):
    """A run whose process sends itself a signal during its first `deaths` attempts.

    With `waits`, it waits there instead, until it is killed or a file `go` exists next to its folder.
    """

    deaths: int = 1
    signal: int = signal.SIGKILL
    waits: bool = False

    def do(self, device: str, progress: Progress | None) -> None:
        super().do(device, _struck(self, self.deaths, self.signal, self.waits, progress))


class StruckShard(Shard):
    """A shard whose process kills itself during its first attempt."""

    def do(self, device: str, progress: Progress | None) -> None:
        super().do(device, _struck(self, 1, signal.SIGKILL, False, progress))


def _struck(job: Work, deaths: int, number: int, waits: bool, progress: Progress | None) -> Progress:
    beside = job.folder.parent

    def moved(done: int, total: int, loss: float) -> None:
        if progress is not None:
            progress(done, total, loss)
        attempt = sum(1 for _ in beside.glob(f"{job.folder.name}.death-*"))
        if done < 2 or attempt >= deaths:
            return
        (beside / f"{job.folder.name}.death-{attempt}").touch()
        if not waits:
            os.kill(os.getpid(), number)
        while waits and not (beside / "go").exists():
            time.sleep(0.01)

    return moved
