"""Files that several processes share.

Writing is such that a reader finds the old file or the new one, never half of one, also after a loss of power. A lock
lets only one process at a time work in a folder, on one machine or on several.
"""

from __future__ import annotations

import csv
import glob
import hashlib
import json
import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from filelock import LeaseSettingsMismatch, SoftFileLease, Timeout

from rebapl.errors import UserError, printable

_UNFINISHED = ".tmp"

BEAT_SECONDS, STALE_SECONDS = 10.0, 120.0
"""How often the holder of a lock shows that it is alive, and for how long it must not have for others to take it."""


class NotWrittenError(UserError):
    """The system refused to write a file or folder; `why` is what it said."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(
            f"{path} cannot be written ({why}): make room or choose another folder; what was there before is unchanged"
        )
        self.why = why


def write_atomically(path: Path, content: bytes | str, previous: Path | None = None) -> None:
    """Write a file beside its place and move it there. File and folder are on the disk when this returns.

    If `previous` is given, the file that was in that place is kept there.
    """
    data = content.encode() if isinstance(content, str) else content
    with clear_refusals(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=_UNFINISHED)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).chmod(0o644)
            if previous is not None and path.exists():
                path.replace(previous)
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        _sync(path.parent)


@contextmanager
def clear_refusals(path: Path) -> Iterator[None]:
    """Say in one line that the system refused to write `path`: the disk is full, or the folder is not ours."""
    try:
        yield
    except OSError as error:
        raise NotWrittenError(path, error.strerror or str(error) or type(error).__name__) from error


def refuse_unwritable(out: Path) -> None:
    """Refuse, before any work, an `--out` where no file can be written."""
    folder = next(folder for folder in out.absolute().parents if folder.exists())
    if out.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise UserError(
            f"--out {printable(str(out))} cannot be written: name a file, in a folder that you may write to"
        )
    if out.exists() and not os.access(out, os.W_OK):
        raise UserError(f"--out {printable(str(out))} cannot be written: the file is read-only")


def _sync(path: Path) -> None:
    """Put a file, or the names in a folder, on the disk."""
    if path.is_dir() and not hasattr(os, "O_DIRECTORY"):  # Windows cannot open a folder
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        with suppress(OSError) if path.is_dir() else nullcontext():  # some network file systems refuse it for folders
            os.fsync(handle)
    finally:
        os.close(handle)


def is_leftover(path: Path) -> bool:
    """Whether a file or folder is one that a process was writing when it was killed, if none is writing now."""
    return path.name.startswith(".") and path.name.endswith(_UNFINISHED)


def remove_leftovers(folder: Path) -> None:
    """Remove the unfinished files of killed processes from a folder in which no other process is at work."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if is_leftover(path):
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def write_json(path: Path, content: Any) -> None:
    """Write JSON atomically, readable by a person; NaN and infinities are refused."""
    write_atomically(path, json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path, what: str) -> dict[str, Any]:
    """Read a JSON object; `what` names it in the error."""
    try:
        refuse_special(path)
        content = json.loads(path.read_text(encoding="utf-8-sig"))  # an editor may put a mark before it
    except FileNotFoundError as error:
        raise UserError(f"{path.parent} is not {what}: it has no {path.name}") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): it should be a file that you may read") from error
    except (ValueError, RecursionError) as error:  # also a number of thousands of digits, and endless nesting
        raise UserError(f"{path} is damaged ({error}): make or get {what} again") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} is damaged (no JSON object): make or get {what} again")
    return content


def refuse_special(path: Path) -> None:
    """Refuse a pipe and anything else that is no plain file: reading it might wait without end."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(0, "it is no plain file", str(path))


def read_lines(path: Path) -> list[str]:
    """The lines of a text file that are not blank, without the spaces around them."""
    try:
        refuse_special(path)
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} cannot be read ({error}): save it as UTF-8 text") from error
    return [line.strip() for line in lines if line.strip()]


def read_csv(path: Path) -> list[list[str]]:
    """The rows of a CSV file that a person made, the first of which names the columns."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            return list(csv.reader(stream, strict=True))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{printable(str(path))} cannot be read ({error}): a CSV file in UTF-8 is needed") from error


def import_parquet() -> Any:
    """The module that reads and writes Parquet; if it is not installed, the error says how to install it."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise UserError("Parquet files need pyarrow: pip install 'rebapl[parquet]', or write .csv or .jsonl") from error
    return pyarrow.parquet


@contextmanager
def folder_written_whole(folder: Path) -> Iterator[Path]:
    """A temporary folder beside `folder` to write into; it takes that place only if nothing went wrong.

    Where another folder is in that place, two renames are needed. After a kill between them, `finish_replacement` does
    the second one.
    """
    new, old = _places(folder)
    with clear_refusals(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        finish_replacement(folder)
        for left in folder.parent.glob(f".{glob.escape(folder.name)}.*{_UNFINISHED}"):
            shutil.rmtree(left, ignore_errors=True)
        temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}.", suffix=_UNFINISHED))
        try:
            temporary.chmod(0o755)
            yield temporary
            for path in (*temporary.rglob("*"), temporary):
                _sync(path)
            if folder.exists():
                temporary.replace(new)
                folder.replace(old)
                new.replace(folder)
                shutil.rmtree(old)
            else:
                temporary.replace(folder)
        except BaseException:
            if old.exists() and not folder.exists():
                old.replace(folder)
            for unused in (temporary, new):
                shutil.rmtree(unused, ignore_errors=True)
            raise
        _sync(folder.parent)


def finish_replacement(folder: Path) -> None:
    """Finish the replacement if a process was killed between the two renames of `folder_written_whole`."""
    new, old = _places(folder)
    with suppress(OSError):
        if not folder.exists() and (new.exists() or old.exists()):
            (new if new.exists() else old).replace(folder)
        for left in (new, old):
            if left.exists() and folder.exists():
                shutil.rmtree(left)


def _places(folder: Path) -> tuple[Path, Path]:
    """Where the new folder waits, complete, and where the old one goes, while one replaces the other."""
    return folder.with_name(f".{folder.name}.new"), folder.with_name(f".{folder.name}.old")


@contextmanager
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


def sha256(path: Path) -> str:
    """The checksum of a file, read in portions."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while portion := file.read(1 << 22):
            digest.update(portion)
    return digest.hexdigest()


def stamp(path: Path) -> tuple[str, int, int]:
    """The path, the length and the time of change of a file: they tell it from a changed one without reading it."""
    about = path.stat()
    return str(path), about.st_size, about.st_mtime_ns


def content_sha256(content: Mapping[str, Any]) -> str:
    """The checksum of everything in a JSON object but its own entry `sha256`. The layout of the file does not matter.

    >>> content_sha256({"a": 1, "b": (2,)}) == content_sha256({"b": [2], "a": 1, "sha256": "…"})
    True
    """
    rest = json.loads(json.dumps({key: value for key, value in content.items() if key != "sha256"}))
    canonical = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()
