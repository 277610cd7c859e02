"""The machine on which a run is computed: device, threads, versions, and the backbone, which is loaded once."""

from __future__ import annotations

import functools
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from rebapl import __version__
from rebapl.backbones import DualEncoder, backbone_stamps, load_backbone
from rebapl.data.workers import cores
from rebapl.errors import UserError

PACKAGES = ("torch", "transformers", "safetensors", "numpy", "Pillow")


def best_device(wanted: str | None = None) -> str:
    """The device of this name; without a name the GPU, or the CPU if there is no GPU."""
    if wanted is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=wanted)
    except (RuntimeError, AssertionError) as error:
        available = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
        available += ["mps"] if torch.backends.mps.is_available() else []
        raise UserError(f"device '{wanted}' is not available here; there is {', '.join(available)}") from error
    return wanted


@contextmanager
def computing_with(threads: object) -> Iterator[None]:
    """Compute with this number of threads, but not with more than the cores that this process may use.

    The rounding of a sum depends on the number of threads, so a run continues with the number that it started with.
    """
    before = torch.get_num_threads()
    if isinstance(threads, int) and threads > 0:
        torch.set_num_threads(min(threads, max(before, cores())))
    try:
        yield
    finally:
        torch.set_num_threads(before)


_last: dict[tuple[object, ...], DualEncoder] = {}


def kept_backbone(name: str, device: str) -> DualEncoder:
    """Load a backbone and keep it until another one is requested, so that the runs of a process load it once.

    A local backbone is loaded again if its files have changed.

    >>> kept_backbone("mini", "cpu") is kept_backbone("mini", "cpu")
    True
    """
    identity = (name, *backbone_stamps(name), device)
    if identity not in _last:
        _last.clear()  # before the next one is loaded, because two may not fit into memory
        _last[identity] = load_backbone(name, device)
    return _last[identity]


def forget_backbone() -> None:
    """Free the memory of the backbone that `kept_backbone` holds."""
    _last.clear()


def environment(device: str) -> dict[str, Any]:
    """Versions, machine and code version, as plain values.

    >>> sorted(environment("cpu"))
    ['code', 'device', 'platform', 'threads', 'versions']
    """
    installed = {package.lower(): version(package) for package in PACKAGES}
    return {
        "versions": {"rebapl": __version__, "python": platform.python_version(), **installed},
        "platform": platform.platform(),
        "device": device_name(device),
        "threads": torch.get_num_threads(),
        "code": code_version(),
    }


def device_name(device: str) -> str:
    """A device in words, such as `cpu (x86_64)` or `cuda (NVIDIA H200)`."""
    if device.startswith("cuda") and torch.cuda.is_available():
        return f"{device} ({torch.cuda.get_device_name(device)})"
    return f"{device} ({platform.machine()})" if device == "cpu" else device


def peak_memory(device: str) -> dict[str, int]:
    """The peak memory in bytes: of this `process` since its start and, for a GPU, of torch on the `device`.

    On systems that do not report it (Windows), `process` is left out.

    >>> sorted(peak_memory("cpu")) in (["process"], [])
    True
    """
    peaks = {}
    with suppress(ImportError):
        import resource

        unit = 1 if sys.platform == "darwin" else 1024  # macOS counts bytes, Linux kilobytes
        peaks["process"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    if device.startswith("cuda"):
        peaks["device"] = torch.cuda.max_memory_allocated(device)
    return peaks


@functools.cache
def code_version() -> dict[str, Any] | None:
    """The git commit of this package's files, and whether they were changed after it; None outside a git checkout."""
    folder = Path(__file__).parents[1]
    if _git(folder, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None  # installed, perhaps into somebody else's checkout
    commit, changes = _git(folder, "rev-parse", "HEAD"), _git(folder, "status", "--porcelain", "--", ".")
    return None if commit is None else {"commit": commit, "changed": bool(changes)}


def _git(folder: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
