"""A lock, so that only one process at a time works in the folder of a run, on one machine or on several."""

from __future__ import annotations

import contextlib
import glob
import socket
from collections.abc import Iterator
from pathlib import Path

from filelock import LeaseSettingsMismatch, SoftFileLease, Timeout

from rebapl.errors import UserError, printable
from rebapl.files import NotWrittenError, clear_refusals

BEAT_SECONDS, STALE_SECONDS = 10.0, 120.0
"""How often the holder of a lock shows that it is alive, and for how long it must not have for others to take it."""


@contextlib.contextmanager
def alone_in(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold the lock of a folder, which is a hidden file beside it.

    If another process holds the lock, this is an error; with `wait`, it waits until the lock is free. The file names
    the process and the machine. The lock of a process of this machine is free as soon as that process has ended,
    however it ended. That of another machine is free when whoever waits has seen no sign of life for `STALE_SECONDS` by
    its own clock: network file systems need not tell one machine of the locks of another, and clocks may differ.
    """
    folder = folder.absolute()
    path = folder.parent / f".{folder.name}.lock"
    with clear_refusals(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.is_file():
            raise UserError(f"{path} is in the place of a lock and is no plain file: remove it")
        lock = SoftFileLease(path, lease_duration=STALE_SECONDS, heartbeat_interval=BEAT_SECONDS, poll_interval=0.2)
        try:
            lock.acquire(blocking=wait)
        except (Timeout, LeaseSettingsMismatch) as error:
            raise _taken(folder, path, lock) from error
        for left in path.parent.glob(f"{glob.escape(path.name)}.break.*"):  # by a kill while a stale lock was taken
            left.unlink(missing_ok=True)
    try:
        yield
    finally:
        lock.release()


def _taken(folder: Path, path: Path, lock: SoftFileLease) -> UserError:
    holder = lock.owner
    if not path.exists() and holder is None:
        return NotWrittenError(folder, "its lock cannot be made")
    who = "another process" if holder is None else f"another process ({holder.pid} on {holder.hostname})"
    elsewhere = holder is not None and holder.hostname != socket.gethostname()
    gone = f"; if that machine is gone, delete {path}" if elsewhere else ""
    return UserError(f"{printable(who)} is at work on {folder}: wait until it is done, or choose another folder{gone}")
