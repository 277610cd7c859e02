"""What a target of `rebapl reproduce` is: the runs it needs, and how their stored results become tables and figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from rebapl.evaluation.scores import HM_CONVENTIONS
from rebapl.reports.tables import Table
from rebapl.reproduce.suites import Choice, Suite
from rebapl.runs.config import RunConfig
from rebapl.runs.folder import run_folder
from rebapl.runs.results import RunResult, read_result


@dataclass(frozen=True)
class Context:
    """What a target is made with: the suite, the folder of runs, the data root, the devices, the HM convention."""

    suite: Suite
    runs: Path
    root: Path | None = None
    devices: Sequence[str] | None = None
    hm: str = HM_CONVENTIONS[0]

    @property
    def device(self) -> str | None:
        """The first of the devices. None stands for the GPU if there is one, and the CPU if not."""
        return self.devices[0] if self.devices else None

    def result(self, config: RunConfig) -> RunResult:
        """The stored result of a finished run."""
        return read_result(run_folder(config, self.runs))

    def notes(self, *more: str) -> list[str]:
        """The remarks below a table: the suite's, if it has one, then `more`."""
        return [note for note in (self.suite.remark, *more) if note]


@dataclass(frozen=True)
class Product:
    """What a target makes: tables and figures by file name, and whatever else is worth storing as JSON.

    `opposite` has a sentence for each result that points the other way than the paper's.
    """

    tables: Mapping[str, Table] = field(default_factory=dict)
    figures: Mapping[str, Figure] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    opposite: Sequence[str] = ()


@dataclass(frozen=True)
class Target:
    """A table or figure of the paper. `runs` lists the runs that it reads; `make` needs them finished.

    `seconds` is a guess of how long `make` itself takes.
    """

    name: str
    what: str
    runs: Callable[[Suite], list[RunConfig]]
    make: Callable[[Context], Product]
    seconds: float = 2.0


def no_runs(suite: Suite) -> list[RunConfig]:  # noqa: ARG001
    """For targets that train nothing."""
    return []


def over_seeds(
    suite: Suite,
    data: Sequence[str],
    choices: Sequence[Choice],
    protocol: str = "base-to-novel",
    seeds: Sequence[int] | None = None,
) -> list[RunConfig]:
    """The runs of every choice on every data set with every seed; of a choice that learns nothing, with the first."""
    return [
        suite.config(name, choice, seed, protocol)
        for name in data
        for choice in choices
        for seed in suite.seeds_of(choice, seeds)
    ]
