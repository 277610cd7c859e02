"""Runs of rebapl that lie among somebody's photos, as `rebapl train --data .` leaves them: no class."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path

from rebapl.data.images import images_below

RUNS = "runs"
"""The folder that runs go to unless another is named."""


def holds_runs(folder: Path) -> bool:
    """Whether a folder is a run, or holds runs: a `config.json` with resolved settings, here or one folder below.

    One that is called `runs` and has no images is passed over too: its first run has only begun.
    """
    configs = chain([folder / "config.json"], folder.glob("*/config.json"))
    return any(map(_is_of_a_run, configs)) or (folder.name == RUNS and not images_below(folder))


def _is_of_a_run(file: Path) -> bool:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and "resolved" in content
