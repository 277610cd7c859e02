"""How other processes are started. On Linux one server imports what takes seconds, and each job is forked from it.

A process that is started with `python -c` or `python -m` looks for modules in its working folder first, so that a file
`torch.py` in a folder of downloaded data would be run. So every process of ours is started in a folder that has only
modules of Python itself, and goes to its working folder when it is asked to.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
from collections.abc import Iterator
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

PRELOADED = ["rebapl.runs.run", "torch._dynamo"]
"""What the server imports. The last is what every optimizer of torch imports when it is first made."""


@contextlib.contextmanager
def in_a_safe_folder() -> Iterator[None]:
    """Be in the folder of Python's own library for a moment, in which another process is started."""
    before = Path.cwd()
    os.chdir(Path(os.__file__).parent)
    try:
        yield
    finally:
        os.chdir(before)


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
        with in_a_safe_folder():
            forkserver.ensure_running()
