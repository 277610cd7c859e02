"""A lock, so that only one process at a time works in the folder of a run, on one machine or on several."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from rebapl.errors import UserError, printable
from rebapl.files import clear_refusals

BEAT_SECONDS = 10.0
"""How often the holder of a lock shows that it is alive."""

STALE_SECONDS = 120.0
"""A machine that has not shown for so long that it is alive no longer holds its lock."""

_BOOT = Path("/proc/sys/kernel/random/boot_id")


@contextlib.contextmanager
def alone_in(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold the lock of a folder, which is a hidden file beside it.

    If another process holds the lock, this is an error; with `wait`, it waits until the lock is free.

    The operating system releases the lock when a process ends, however it ends. Some network file systems do not tell
    one machine of the locks of another. So the file says which process of which machine holds the lock, and that
    process touches the file now and then. A file of another machine that was not touched for `STALE_SECONDS` is stale.
    """
    folder = folder.absolute()
    path = folder.parent / f".{folder.name}.lock"
    with clear_refusals(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path)
        _acquire(lock, path, folder, wait)
        path.write_text(json.dumps(_me()), encoding="utf-8")
    over = threading.Event()
    beat = threading.Thread(target=_beat, args=(path, over), daemon=True)
    beat.start()
    try:
        yield
    finally:
        over.set()
        beat.join()
        # Removed while it is still held: whoever waits for the removed file notices that and takes a new one. Windows
        # does not remove a file that is open; there, `filelock` removes it after the release.
        with contextlib.suppress(OSError):
            path.unlink()
        lock.release()


def _acquire(lock: FileLock, path: Path, folder: Path, wait: bool) -> None:
    while True:
        other = _elsewhere(path)  # read before as well: some versions of `filelock` empty the file when they open it
        if other is None:
            try:
                lock.acquire(blocking=wait)
            except Timeout as error:
                raise _taken(folder, _holder(path)) from error
            other = _elsewhere(path)
            if other is None:
                return
            lock.release()
        if not wait:
            raise _taken(folder, other)
        time.sleep(BEAT_SECONDS / 10)


def _me() -> dict[str, object]:
    return {"host": socket.gethostname(), "machine": _machine(), "process": os.getpid(), "since": time.time()}


def _machine() -> str:
    """What tells this machine from others: containers on one machine share its locks."""
    with contextlib.suppress(OSError):
        return _BOOT.read_text(encoding="ascii").strip()
    return socket.gethostname()


def _holder(path: Path) -> dict[str, object]:
    """What the file says about the holder; nothing if it says nothing that can be read."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _elsewhere(path: Path) -> dict[str, object] | None:
    """The holder on another machine that is still alive, or None. The clock is that of the file system."""
    holder = _holder(path)
    if "machine" not in holder or holder["machine"] == _machine():
        return None  # of this machine the system would have told us
    with tempfile.TemporaryFile(dir=path.parent) as now:
        try:
            age = os.fstat(now.fileno()).st_mtime - path.stat().st_mtime
        except FileNotFoundError:  # released meanwhile
            return None
    return holder if age < STALE_SECONDS else None


def _taken(folder: Path, holder: dict[str, object]) -> UserError:
    who = "another process"
    if holder:
        who = printable(f"another process ({holder.get('process')} on {holder.get('host')})")
    elsewhere = holder.get("machine") not in (None, _machine())
    gone = f"; if that machine is gone, its claim ends after {STALE_SECONDS:.0f} seconds" if elsewhere else ""
    return UserError(f"{who} is at work on {folder}: wait until it is done, or choose another folder{gone}")


def _beat(path: Path, over: threading.Event) -> None:
    while not over.wait(BEAT_SECONDS):
        with contextlib.suppress(OSError):
            os.utime(path)
