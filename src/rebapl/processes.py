"""How worker processes are started. On Linux, one server imports the slow modules once and forks the workers.

A worker first imports the module that its program began with, and not every program expects that. So workers are
started for a caller who asked for several at a time, and otherwise only by a program that called `allow_workers`.

A process that is started with `python -c` or `python -m` looks for modules in its working folder first, so a file
`torch.py` in a folder of downloaded data would be run. Therefore every worker is started in a folder that has only
modules of Python itself, and changes to its working folder later.
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
"""The modules that the server imports. The last one is imported by the first torch optimizer of a process."""


@contextlib.contextmanager
def in_a_safe_folder() -> Iterator[None]:
    """Work in the folder of Python's own library while another process is started."""
    before = Path.cwd()
    os.chdir(Path(os.__file__).parent)
    try:
        yield
    finally:
        os.chdir(before)


def worker_context() -> Any:
    """The multiprocessing context of workers. They are never forked from this process: they could not use its GPU."""
    if sys.platform != "linux":  # elsewhere there is no server, or libraries of the system break after a fork
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


def begin_server() -> None:
    """Start the server, if this system has one and it is not running. It imports while this process does other work."""
    if worker_context().get_start_method() == "forkserver":
        with in_a_safe_folder():
            forkserver.ensure_running()


_allowed: set[int] = set()
"""The number of this process, if it may start workers. Processes that are forked from it may not."""


def allow_workers() -> None:
    """Let this program start workers whenever they make it faster. `rebapl predict` and `rebapl embed` do."""
    _allowed.add(os.getpid())


def workers_allowed() -> bool:
    """Whether this process may start workers, and a server forks them."""
    return os.getpid() in _allowed and worker_context().get_start_method() == "forkserver"
