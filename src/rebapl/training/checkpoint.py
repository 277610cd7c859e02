"""The state of unfinished work in one file. It holds nested tensors and plain values, and is never a pickle.

The file is a safetensors file. Its metadata hold the outline of the nested state and a checksum: the SHA-256 of the
whole file in which the digits of the checksum are zeros.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from rebapl.errors import UserError
from rebapl.files import refuse_special, write_atomically

_NO_DIGEST = "0" * 64
_DIGEST = re.compile(rb'"sha256":"([0-9a-f]{64})"')
_BROKEN = (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError, OSError, SafetensorError)


class Checkpoints:
    """The last two checkpoints of a training: the one at `path`, and the one before it beside it.

    >>> import tempfile
    >>> kept = Checkpoints(Path(tempfile.mkdtemp()) / "checkpoint.safetensors")
    >>> kept.save({"step": 1}); kept.save({"step": 2})
    >>> [load_checkpoint(path) for path in kept.there()]
    [{'step': 2}, {'step': 1}]
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.previous = path.with_suffix(f".previous{path.suffix}")

    def there(self) -> list[Path]:
        """The files there are, the last one first."""
        return [path for path in (self.path, self.previous) if path.exists()]

    def save(self, state: Any) -> None:
        """Write a new checkpoint, and keep the one before."""
        save_checkpoint(state, self.path, self.previous)

    def remove(self) -> None:
        """Remove both."""
        for path in (self.path, self.previous):
            path.unlink(missing_ok=True)


def save_checkpoint(state: Any, path: Path, previous: Path | None = None) -> None:
    """Write nested dicts, lists and tuples of tensors, numbers, strings, booleans and None, whole or not at all.

    The file that was there before is kept as `previous`, if that is given.
    """
    tensors: dict[str, Tensor] = {}
    outline = _outline(state, tensors)
    content = save(tensors, {"outline": json.dumps(outline), "sha256": _NO_DIGEST})
    digest = hashlib.sha256(content).hexdigest()
    begin = _digest_place(content)
    write_atomically(path, content[:begin] + digest.encode() + content[begin + len(digest) :], previous)


def load_checkpoint(path: Path) -> Any:
    """Read what `save_checkpoint` wrote. A file that was changed in any byte is refused."""
    try:
        refuse_special(path)
        with safe_open(path, framework="pt") as file:  # it compares the header with the size of the file
            _check_digest(path)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no dict)
            return _filled(json.loads(file.metadata()["outline"]), tensors)
    except _BROKEN as error:
        raise UserError(f"{path} is damaged ({error}): delete it to begin this run anew") from error


def _digest_place(header: bytes | bytearray) -> int:
    """Where the digits of the checksum begin. Inside the outline, quotation marks have a backslash before them."""
    found = _DIGEST.search(header)
    if found is None:
        raise ValueError("it has no checksum")
    return found.start(1)


def _check_digest(path: Path) -> None:
    with path.open("rb") as file:
        size = file.read(8)
        header = bytearray(size + file.read(int.from_bytes(size, "little")))
        begin = _digest_place(header)
        stored = header[begin : begin + len(_NO_DIGEST)].decode()
        header[begin : begin + len(_NO_DIGEST)] = _NO_DIGEST.encode()
        digest = hashlib.sha256(header)
        for portion in _portions(file):
            digest.update(portion)
    if digest.hexdigest() != stored:
        raise ValueError("its checksum differs")


def _portions(file: Any) -> Iterator[bytes]:
    while portion := file.read(1 << 22):
        yield portion


def _outline(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        name = str(len(tensors))
        tensors[name] = value.detach().cpu().clone().contiguous()
        return {"tensor": name}
    if isinstance(value, dict):
        return {"dict": [[key, _outline(item, tensors)] for key, item in value.items()]}
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_outline(item, tensors) for item in value]}
    if value is None or isinstance(value, bool | int | float | str):
        return {"value": value}
    raise TypeError(f"a checkpoint cannot hold a {type(value).__name__}")


def _filled(outline: Any, tensors: dict[str, Tensor]) -> Any:
    ((kind, content),) = outline.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "dict":
        return {key: _filled(item, tensors) for key, item in content}
    if kind in ("list", "tuple"):
        items = [_filled(item, tensors) for item in content]
        return items if kind == "list" else tuple(items)
    return content
