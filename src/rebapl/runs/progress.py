"""How far a run is that another process or machine does, as a small hidden file in its folder."""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

EVERY_SECONDS = 1.0
"""The file is renewed at most this often."""

_NAME = ".progress.tmp"  # a leftover, for whoever starts a run again after its process was killed


class Reached(NamedTuple):
    """The steps done, the steps in all, the latest loss or NaN, and the process and the machine at work."""

    done: int
    total: int
    loss: float
    process: int
    host: str


class ProgressFile:
    """Within `with`, `moved` writes how far the training is to the file of a run's folder. The file ends with it.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with ProgressFile(folder) as progress:
    ...     progress.moved(3, 10, 0.5)
    ...     read_progress(folder)[:3]
    (3, 10, 0.5)
    >>> read_progress(folder) is None
    True
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / _NAME
        self._last = float("-inf")

    def __enter__(self) -> ProgressFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.path.unlink(missing_ok=True)

    def moved(self, done: int, total: int, loss: float) -> None:
        """Write the file, if that was not done a moment ago. What is seen of a run must not stop it."""
        if time.monotonic() - self._last < EVERY_SECONDS:
            return
        self._last = time.monotonic()
        beside = self.path.with_name(f".progress.{os.getpid()}.tmp")
        try:
            beside.write_text(json.dumps([done, total, loss, os.getpid(), socket.gethostname()]), encoding="utf-8")
            beside.replace(self.path)
        except OSError:
            beside.unlink(missing_ok=True)


def read_progress(folder: Path) -> Reached | None:
    """How far the run in a folder is, or None if no process says so."""
    try:
        return Reached(*json.loads((folder / _NAME).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
