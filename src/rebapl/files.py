"""Reading files, writing them whole or not at all, and the lock of a folder.

A file is written so that a reader finds the old file or the new one, never half of one, even after a loss of power. The
lock lets only one process at a time work in a folder, on one machine or on several.
"""

from __future__ import annotations

import csv
import glob
import hashlib
import io
import json
import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, BinaryIO

from filelock import LeaseSettingsMismatch, SoftFileLease, Timeout

from rebapl.errors import UserError, printable

_UNFINISHED = ".tmp"

BEAT_SECONDS, STALE_SECONDS = 10.0, 120.0
"""How often the holder of a lock shows that it is alive, and after how long without a sign of life the lock is free."""


class NotWrittenError(UserError):
    """The system refused to write a file or folder, for the reason `why`."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(
            f"{path} cannot be written ({why}): make room or choose another folder; what was there before is unchanged"
        )
        self.why = why


def write_atomically(path: Path, content: bytes | str, previous: Path | None = None) -> None:
    """Write a file whole or not at all; see `written_whole`."""
    with written_whole(path, previous) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def written_whole(path: Path, previous: Path | None = None) -> Iterator[BinaryIO]:
    """A temporary file beside `path` to write into. It gets the name `path` at the end of `with`.

    If something goes wrong, it is removed. Afterwards the file and its name are on the disk. If `previous` is given,
    the old file at `path` is renamed to it first.
    """
    with clear_refusals(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=_UNFINISHED)
        try:
            with os.fdopen(handle, "wb") as file:
                yield file
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
    """Turn an `OSError` (the disk is full, the folder is not ours …) into a `NotWrittenError` for `path`."""
    try:
        yield
    except OSError as error:
        raise NotWrittenError(path, error.strerror or str(error) or type(error).__name__) from error


def refuse_unwritable(out: Path) -> None:
    """Refuse, before any work, an `--out` at which no file can be written."""
    folder = next(folder for folder in out.absolute().parents if folder.exists())
    if out.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise UserError(
            f"--out {printable(str(out))} cannot be written: name a file, in a folder that you may write to"
        )
    if out.exists() and not os.access(out, os.W_OK):
        raise UserError(f"--out {printable(str(out))} cannot be written: the file is read-only")


def _sync(path: Path) -> None:
    """Wait until a file, or the list of names in a folder, is on the disk."""
    if path.is_dir() and not hasattr(os, "O_DIRECTORY"):  # Windows cannot open a folder
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        with suppress(OSError) if path.is_dir() else nullcontext():  # some network file systems refuse it for folders
            os.fsync(handle)
    finally:
        os.close(handle)


def is_leftover(path: Path) -> bool:
    """Whether a process was writing this file or folder when it was killed, provided that no process is writing now."""
    return path.name.startswith(".") and path.name.endswith(_UNFINISHED)


def remove_leftovers(folder: Path) -> None:
    """Remove the unfinished files of killed processes from a folder in which no other process works."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if is_leftover(path):
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def write_json(path: Path, content: Any) -> None:
    """Write indented JSON atomically; NaN and infinities are refused."""
    write_atomically(path, json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path, what: str, advice: str = "") -> dict[str, Any]:
    """Read a JSON object. Errors call its folder `what`, and give this `advice` for a damaged file."""
    advice = advice or f"make or get {what} again"
    try:
        refuse_special(path)
        content = json.loads(path.read_text(encoding="utf-8-sig"))  # an editor may put a byte order mark before it
    except FileNotFoundError as error:
        raise UserError(f"{path.parent} is not {what}: it has no {path.name}") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): it should be a file that you may read") from error
    except (ValueError, RecursionError) as error:  # also for a number with thousands of digits, and for endless nesting
        raise UserError(f"{path} is damaged ({error}): {advice}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} is damaged (no JSON object): {advice}")
    return content


def refuse_special(path: Path) -> None:
    """Refuse a pipe, a device and the like, because reading one might never end."""
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
    """The rows of a CSV file that a person made. The first row names the columns."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            return list(csv.reader(stream, strict=True))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{printable(str(path))} cannot be read ({error}): a CSV file in UTF-8 is needed") from error


def csv_text(rows: Iterable[Iterable[Any]]) -> str:
    r"""Rows as the text of a CSV file.

    >>> csv_text([["image", "class"], ["1, 2.png", None]])
    'image,class\n"1, 2.png",\n'
    """
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def import_parquet() -> Any:
    """The module `pyarrow.parquet`. If it is not installed, the error says how to install it."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise UserError("Parquet files need pyarrow: pip install 'rebapl[parquet]', or write .csv or .jsonl") from error
    return pyarrow.parquet


@contextmanager
def folder_written_whole(folder: Path) -> Iterator[Path]:
    """A temporary folder beside `folder` to write into. It takes the place of `folder` only if nothing went wrong.

    If `folder` exists, two renames are needed. If the process is killed between them, `finish_replacement` does the
    second one later.
    """
    new, old = _replacement_paths(folder)
    with clear_refusals(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        finish_replacement(folder)
        for leftover in folder.parent.glob(f".{glob.escape(folder.name)}.*{_UNFINISHED}"):
            shutil.rmtree(leftover, ignore_errors=True)
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
    new, old = _replacement_paths(folder)
    with suppress(OSError):
        if not folder.exists() and (new.exists() or old.exists()):
            (new if new.exists() else old).replace(folder)
        for leftover in (new, old):
            if leftover.exists() and folder.exists():
                shutil.rmtree(leftover)


def _replacement_paths(folder: Path) -> tuple[Path, Path]:
    """While one folder replaces another: where the complete new one waits, and where the old one is moved to."""
    return folder.with_name(f".{folder.name}.new"), folder.with_name(f".{folder.name}.old")


@contextmanager
def alone_in(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold the lock of a folder, which is a hidden file beside it.

    If another process holds the lock, this is an error; with `wait`, this process waits until the lock is free. The
    file names the process that holds the lock, and its machine. The lock of a process on this machine is free as soon
    as that process has ended, however it ended. The lock of a process on another machine is free when the waiting
    process has seen no sign of life for `STALE_SECONDS` by its own clock: a network file system need not show one
    machine the locks of another, and their clocks may differ.
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
        # a process that was killed while it took over a stale lock leaves such files
        for leftover in path.parent.glob(f"{glob.escape(path.name)}.break.*"):
            leftover.unlink(missing_ok=True)
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
    """The SHA-256 checksum of a file, which is read in portions."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while portion := file.read(1 << 22):
            digest.update(portion)
    return digest.hexdigest()


def stamp(path: Path) -> tuple[str, int, int]:
    """The path, size and modification time of a file: they change when the file changes, and need no reading of it."""
    status = path.stat()
    return str(path), status.st_size, status.st_mtime_ns


def content_sha256(content: Mapping[str, Any]) -> str:
    """The checksum of a JSON object without its own entry `sha256`. The layout of its file does not matter.

    >>> content_sha256({"a": 1, "b": (2,)}) == content_sha256({"b": [2], "a": 1, "sha256": "…"})
    True
    """
    rest = json.loads(json.dumps({key: value for key, value in content.items() if key != "sha256"}))
    canonical = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()
