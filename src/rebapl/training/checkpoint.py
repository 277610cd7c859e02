"""The state of unfinished work in one file. It holds nested tensors and plain values, and is never a pickle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from rebapl.errors import UserError
from rebapl.files import write_atomically


def save_checkpoint(state: Any, path: Path) -> None:
    """Write nested dicts, lists and tuples of tensors, numbers, strings, booleans and None, whole or not at all."""
    tensors: dict[str, Tensor] = {}
    outline = _outline(state, tensors)
    write_atomically(path, save(tensors, {"outline": json.dumps(outline)}))


def load_checkpoint(path: Path) -> Any:
    """Read what `save_checkpoint` wrote."""
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no dict)
            return _filled(json.loads(file.metadata()["outline"]), tensors)
    except (SafetensorError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise UserError(f"{path} is damaged ({error}): delete it to begin this run anew") from error


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
