"""Jobs that take about a second, and what they have made."""

import json
from pathlib import Path
from typing import Any

from rebapl.runs.config import RunConfig
from rebapl.runs.run import Job

LONG = {"epochs": 30, "inference_settings": {"batch": 1}}
"""Many steps, so that something can happen amid them."""


def tiny(**changes: Any) -> RunConfig:
    given = {"data": "digits", "method": "coop", "backbone": "mini", "shots": 1, "epochs": 1, "test_images": 20}
    return RunConfig(**{**given, **changes})


def jobs(runs: Path, *seeds: int, **changes: Any) -> list[Job]:
    return [Job.of(tiny(seed=seed, **changes), runs) for seed in seeds]


def scores(folder: Path) -> dict[str, Any]:
    """The result of a run, times aside."""
    content = json.loads((folder / "results.json").read_text())
    return {key: value for key, value in content.items() if key not in ("seconds", "sha256")}


def made(folder: Path) -> tuple[dict[str, Any], bytes]:
    """The result of a run, times aside, and its samples."""
    return scores(folder), (folder / "posterior" / "samples.safetensors").read_bytes()
