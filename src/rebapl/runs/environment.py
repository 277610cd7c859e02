"""Where a run was made: the versions, the device, and the commit of the code if it lies in a git checkout."""

from __future__ import annotations

import functools
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from rebapl import __version__

PACKAGES = ("torch", "transformers", "safetensors", "numpy", "Pillow")


def environment(device: str) -> dict[str, Any]:
    """Versions, machine and code, as plain values.

    >>> sorted(environment("cpu"))
    ['code', 'device', 'platform', 'threads', 'versions']
    """
    return {
        "versions": {"rebapl": __version__, "python": platform.python_version(), **_versions()},
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
    """The most bytes that this `process` has held since it began and, on a GPU, those that torch has held there.

    Where the system does not say (Windows), the first is left out.

    >>> sorted(peak_memory("cpu")) in (["process"], [])
    True
    """
    found = {}
    try:
        import resource
    except ImportError:
        pass
    else:
        unit = 1 if sys.platform == "darwin" else 1024  # macOS counts bytes, Linux kilobytes
        found["process"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    if device.startswith("cuda"):
        found["device"] = torch.cuda.max_memory_allocated(device)
    return found


@functools.cache
def code_version() -> dict[str, Any] | None:
    """The git commit of this package's files, and whether they were changed since; None outside of a checkout."""
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


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package.lower()] = version(package)
        except PackageNotFoundError:
            continue
    return found
