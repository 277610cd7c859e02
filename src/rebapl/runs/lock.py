"""A lock, so that only one process at a time works in the folder of a run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from rebapl.errors import UserError


@contextlib.contextmanager
def alone_in(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold the lock of a folder, which is a hidden file beside it.

    If another process holds the lock, this is an error; with `wait`, it waits until the lock is free.

    The operating system releases the lock when a process ends, however it ends.
    """
    folder = folder.absolute()
    path = folder.parent / f".{folder.name}.lock"
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        lock.acquire(blocking=wait)
    except Timeout as error:
        raise UserError(
            f"another process is at work on {folder}: wait until it is done, or choose another folder"
        ) from error
    try:
        yield
    finally:
        # Removed while it is still held: whoever waits for the removed file notices that and takes a new one. Windows
        # does not remove a file that is open; there, `filelock` removes it after the release.
        with contextlib.suppress(OSError):
            path.unlink()
        lock.release()
