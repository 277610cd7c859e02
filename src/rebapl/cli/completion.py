"""What the shell completes: names of data sets, methods and kinds of inference, and folders of runs.

The names are read from the files of the package, since a person who presses Tab does not wait until torch is imported.
Names that plugins register are not completed. Where nothing here fits, the shell completes the names of files.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import rebapl

SOURCE = Path(rebapl.__file__).parent


def methods(incomplete: str) -> list[str]:
    """The methods; each has a file with its recipe."""
    return _beginning(incomplete, _yaml_files(SOURCE / "learners" / "recipes"))


def kinds_of_inference(incomplete: str) -> list[str]:
    """The presets, but not those that only others extend."""
    return _beginning(incomplete, _yaml_files(SOURCE / "sampling" / "presets"))


def datasets(incomplete: str) -> list[str]:
    """The embedded and the published data sets."""
    from rebapl.data.embedded import EMBEDDED
    from rebapl.data.published import PUBLISHED

    return _beginning(incomplete, (*EMBEDDED, *PUBLISHED))


def runs(incomplete: str) -> list[str]:
    """The runs in the folder of runs that is being typed, or in `runs`."""
    typed = Path(incomplete or "runs/")
    parent = typed if incomplete.endswith("/") or not incomplete else typed.parent
    found = sorted(str(file.parent) for file in parent.glob("*/config.json"))
    return _beginning(incomplete, found) or _beginning(incomplete, ["runs/"] if Path("runs").is_dir() else [])


def _yaml_files(folder: Path) -> list[str]:
    return sorted(file.stem for file in folder.glob("*.yaml") if not file.name.startswith("_"))


def _beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
