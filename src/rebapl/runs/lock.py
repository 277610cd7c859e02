"""One process at a time in a run's folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rebapl.errors import UserError

try:
    import fcntl
except ImportError:  # Windows: nobody is kept out
    fcntl = None  # type: ignore[assignment]


@contextmanager
def alone_in(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold the lock of a folder, a hidden file beside it; another holder is waited for, or refused.

    The operating system gives the lock back when a process ends, however it ends.
    """
    folder = folder.absolute()
    path = folder.parent / f".{folder.name}.lock"
    folder.parent.mkdir(parents=True, exist_ok=True)
    handle = _acquire(path, folder, wait)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(handle)


def _acquire(path: Path, folder: Path, wait: bool) -> int:
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        if fcntl is None:
            return handle
        try:
            fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(handle)
            raise UserError(
                f"another process is at work on {folder}: wait until it is done, or choose another folder"
            ) from error
        try:
            if path.stat().st_ino == os.fstat(handle).st_ino:
                return handle
        except FileNotFoundError:
            pass
        os.close(handle)  # the last holder took the file away with it: try again
