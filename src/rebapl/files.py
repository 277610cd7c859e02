"""Writing so that a reader finds the old file or the new one, never half of one."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rebapl.errors import UserError


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write a file beside its place and move it there."""
    data = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_json(path: Path, content: Any) -> None:
    """Write JSON atomically, readable by a person; NaN and infinities are refused."""
    write_atomically(path, json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path, what: str) -> dict[str, Any]:
    """Read a JSON object that this package wrote; `what` names it in the error."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(f"{path.parent} is not {what}: it has no {path.name}") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): it should be a file that you may read") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is damaged ({error}): make {what} again") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} is damaged (no JSON object): make {what} again")
    return content


def read_lines(path: Path) -> list[str]:
    """The lines of a text file that are not blank, without the spaces around them."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read ({error}): save it as UTF-8 text") from error
    return [line.strip() for line in lines if line.strip()]


@contextmanager
def folder_written_whole(folder: Path) -> Iterator[Path]:
    """A temporary folder beside `folder` to write into; it takes that place only if nothing went wrong."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    temporary.chmod(0o755)
    try:
        yield temporary
        if folder.exists():
            old = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}.old."))
            folder.replace(old)
            try:
                temporary.replace(folder)
            except BaseException:
                old.replace(folder)
                raise
            shutil.rmtree(old)
        else:
            temporary.replace(folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def sha256(path: Path) -> str:
    """The checksum of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
