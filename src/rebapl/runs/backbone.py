"""The device of a run and its frozen backbone, which is loaded and hashed once for all runs of a process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from rebapl.backbones import DualEncoder, load_backbone
from rebapl.errors import UserError, first_line

LoadBackbone = Callable[[str, str], DualEncoder]
"""Gives the backbone of a name on a device."""


def best_device(wanted: str | None = None) -> str:
    """The device asked for, or the GPU if there is one."""
    if wanted is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=wanted)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"device '{wanted}' is not available here ({first_line(error)})") from error
    return wanted


class KeptBackbone:
    """Loads backbones and keeps the last one, so that runs which share it load and hash it once.

    A local folder whose files have changed is loaded again.

    >>> load = KeptBackbone()
    >>> load("mini", "cpu") is load("mini", "cpu")
    True
    """

    def __init__(self) -> None:
        self._identity: tuple[object, ...] | None = None
        self._encoder: DualEncoder | None = None

    def __call__(self, name: str, device: str) -> DualEncoder:
        identity = (_files(name), device)
        if self._encoder is None or identity != self._identity:
            self.forget()  # before the next one is loaded: two need not fit into memory
            self._encoder, self._identity = load_backbone(name, device), identity
        return self._encoder

    def forget(self) -> None:
        """Free the memory of the backbone."""
        self._encoder = self._identity = None


def _files(name: str) -> tuple[object, ...]:
    """What tells one backbone from another without reading it: its path, and the sizes and times of its files."""
    folder = Path(name).expanduser()
    if name == "mini" or not folder.is_dir():
        return (name,)
    there = (path for path in folder.iterdir() if path.is_file())  # a link of the hub's cache may lead nowhere
    stats = sorted((path.name, path.stat()) for path in there)
    return str(folder.resolve()), *((file, stat.st_size, stat.st_mtime_ns) for file, stat in stats)
