"""How worker processes are started. On Linux one server imports what takes seconds, and workers are forked from it."""

from __future__ import annotations

import multiprocessing
import sys
from multiprocessing import forkserver
from typing import Any

PRELOADED = ["rebapl.runs.engine", "rebapl.runs.folder", "torch._dynamo"]
"""What the server imports. The last is what every optimizer of torch imports when it is first made."""


def worker_context() -> Any:
    """How workers are started: never forked from this process, whose GPU they could not use."""
    if sys.platform != "linux":  # elsewhere there is no server, or libraries of the system do not bear a fork
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


def begin_server() -> None:
    """Start the server, if there is one and it is not running; it imports while this process does something else."""
    if worker_context().get_start_method() == "forkserver":
        forkserver.ensure_running()
