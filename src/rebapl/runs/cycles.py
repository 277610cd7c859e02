"""The cycles of a run that were sampled by themselves: one file each, in the folder `cycles` of the run.

Where cycles do not depend on one another, they can be jobs of their own. The run itself, started afterwards, takes over
what they have left in the place of sampling these cycles, and is then bit for bit what it would have been alone.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from rebapl.errors import UserError
from rebapl.training.checkpoint import load_checkpoint

CYCLES = "cycles"
PARTS = {"samples", "rows", "seconds", "images"}

_log = logging.getLogger(__name__)


def cycle_folder(out: Path, cycle: int) -> Path:
    """Where the job of a cycle works."""
    return out / CYCLES / str(cycle)


def cycle_file(out: Path, cycle: int) -> Path:
    """What it leaves."""
    return out / CYCLES / f"{cycle}.safetensors"


def read_cycles(out: Path) -> dict[int, dict[str, Any]]:
    """All cycles of a run that were sampled by themselves. A damaged one is left out, and so sampled again."""
    found = {}
    for path in (out / CYCLES).glob("*.safetensors"):
        try:
            content = load_checkpoint(path)
        except UserError as error:
            _log.warning("%s; this cycle is sampled again", error)
            continue
        if path.stem.isdecimal() and isinstance(content, dict) and content.keys() == PARTS:
            found[int(path.stem)] = content
    return found
