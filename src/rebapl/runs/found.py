"""The runs in a folder of runs: what is finished, and what is not."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rebapl.errors import UserError
from rebapl.files import read_json
from rebapl.runs.folder import CONFIG, POSTERIOR, RESULTS


@dataclasses.dataclass(frozen=True)
class Run:
    """One finished run: its folder, its settings as asked for and resolved, and its results."""

    folder: Path
    config: Mapping[str, Any]
    resolved: Mapping[str, Any]
    results: Mapping[str, Any]

    @property
    def protocols(self) -> Mapping[str, Sequence[str]]:
        """The parts that each protocol scored."""
        return self.results.get("protocols") or {self.config.get("protocol", ""): list(self.results["parts"])}


@dataclasses.dataclass(frozen=True)
class Found:
    """All finished runs below some folders, and the folders of those that are not."""

    runs: Sequence[Run]
    unscored: Sequence[Path]
    untrained: Sequence[Path]


def find_runs(folders: Iterable[Path]) -> Found:
    """The runs in these folders, or that these folders are, in the order of their names."""
    runs: list[Run] = []
    unscored: list[Path] = []
    untrained: list[Path] = []
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"{folder} is not a folder of runs: `rebapl train` makes one, `runs` unless told otherwise")
        for path in [folder] if (folder / CONFIG).exists() else sorted(folder.iterdir()):
            if not (path / CONFIG).exists():
                continue
            config = read_json(path / CONFIG, "a run")
            if (path / RESULTS).exists() and "resolved" in config:
                results = read_json(path / RESULTS, "a result")
                runs.append(Run(path, config, config["resolved"], results))
            else:
                (unscored if (path / POSTERIOR).exists() else untrained).append(path)
    return Found(runs, unscored, untrained)
