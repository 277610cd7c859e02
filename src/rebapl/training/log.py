"""The log of a training: the rows of `log.csv`, and trackers such as TensorBoard or MLflow, which hear of them.

A tracker is any object with the three methods of `Tracker`. `register_tracker` gives a name to a function that opens
one for a run, so that `rebapl train --track NAME` finds it; a package of its own declares it under the entry points
`rebapl.trackers`. A tracker that fails while a run goes on is left out with a warning: it never costs the run.
"""

from __future__ import annotations

import csv
import io
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from rebapl.errors import UserError
from rebapl.files import write_atomically
from rebapl.plugins import Registry
from rebapl.settings import leaves

EVERY = 10
"""Steps between two rows."""

COLUMNS = (
    "step",
    "cycle",
    "chain",
    "lr",
    "temperature",
    "loss",
    "gradient_norm",
    "distance",
    "force_norm",
    "kinetic_temperature",
    "configurational_temperature",
    "acceptance",
)


def write_log(path: Path, rows: Sequence[Mapping[str, float]]) -> None:
    """Write all rows. A cell is empty where a row has no value for its column."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        writer.writerow([_cell(row.get(name)) for name in COLUMNS])
    write_atomically(path, text.getvalue())


def read_log(path: Path) -> list[dict[str, float]]:
    """Read the rows of a log, each with the values that it has. Without a file there are none."""
    if not path.exists():
        return []
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:  # a spreadsheet that saves it puts a mark before it
            return [{name: float(cell) for name, cell in row.items() if name and cell} for row in csv.DictReader(file)]
    except (ValueError, TypeError, csv.Error) as error:
        raise UserError(f"{path} is damaged ({error}): delete it to go on without the log so far") from error


def _cell(value: float | None) -> str:
    if value is None:
        return ""
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(float(value))


class Tracker(Protocol):
    """An object that hears of a training and of scores."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Take a row of the log: loss, step size, temperatures … (the columns of `log.csv`) after `step` steps."""
        ...

    def scores(self, values: Mapping[str, float]) -> None:
        """Take the scores of a run, by names such as `novel/accuracy`."""
        ...

    def close(self) -> None:
        """Nothing more comes."""
        ...


@dataclass(frozen=True)
class TrackedRun:
    """The run that a tracker is opened for: its name, its folder, and all its settings by dotted names."""

    name: str
    folder: Path
    settings: Mapping[str, Any]


OpenTracker = Callable[[TrackedRun], Tracker]


TRACKERS: Registry[OpenTracker] = Registry("tracker", "rebapl.trackers")

EXTRAS = ("tensorboard", "mlflow")
"""Our own trackers. Each needs the package of its name, which an extra of this package brings."""


def register_tracker(name: str) -> Callable[[OpenTracker], OpenTracker]:
    """Register a function (or a class) that opens a tracker for a `TrackedRun`."""
    return TRACKERS.register(name)


def check_trackers(names: Sequence[str]) -> None:
    """Refuse names that nobody registered, and trackers whose package is not installed."""
    for name in names:
        TRACKERS.find(name)
        if name in EXTRAS and find_spec(name) is None:
            raise UserError(f"tracker '{name}' needs a package that is not installed: pip install 'rebapl[{name}]'")


@contextmanager
def tracked(names: Sequence[str], folder: Path, settings: Mapping[str, Any]) -> Iterator[Tracker | None]:
    """All the named trackers as one, open for the run in a folder, and closed in the end; None if none is named."""
    if not names:
        yield None
        return
    run = TrackedRun(folder.name, folder, dict(leaves(settings)))
    together = _Together({name: TRACKERS.find(name)(run) for name in names})
    try:
        yield together
    finally:
        together.close()


class _Together:
    """Several trackers as one. One that raises is left out from then on."""

    def __init__(self, trackers: dict[str, Tracker]) -> None:
        self.trackers = trackers

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._tell(lambda tracker: tracker.log(step, values))

    def scores(self, values: Mapping[str, float]) -> None:
        self._tell(lambda tracker: tracker.scores(values))

    def close(self) -> None:
        self._tell(lambda tracker: tracker.close())

    def _tell(self, call: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self.trackers.items()):
            try:
                call(tracker)
            except Exception as error:  # whatever a server that is gone makes its client raise
                del self.trackers[name]
                warnings.warn(f"tracker '{name}' is left out: {type(error).__name__}: {error}", stacklevel=2)


@TRACKERS.register("tensorboard")
class TensorBoard:
    """Writes to the folder `tensorboard` of the run: `tensorboard --logdir runs` shows all runs."""

    def __init__(self, run: TrackedRun) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(run.folder / "tensorboard"))
        rows = "\n".join(f"| {name} | {value} |" for name, value in run.settings.items())
        self.writer.add_text("settings", f"| setting | value |\n|---|---|\n{rows}")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(f"training/{name}", value, step)

    def scores(self, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(f"scores/{name}", value)

    def close(self) -> None:
        self.writer.close()


@TRACKERS.register("mlflow")
class MLflow:
    """A run of MLflow in the experiment `rebapl`, or in the one that `MLFLOW_EXPERIMENT_NAME` names.

    MLflow's own variables say where it is kept (`MLFLOW_TRACKING_URI`). The file `mlflow.txt` in the folder of the run
    holds the id of MLflow's run, so that an interrupted run goes on in it and scores come to it.
    """

    def __init__(self, run: TrackedRun) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Param
        from mlflow.environment_variables import MLFLOW_EXPERIMENT_NAME
        from mlflow.exceptions import MlflowException

        kept, name = run.folder / "mlflow.txt", MLFLOW_EXPERIMENT_NAME.get() or "rebapl"
        try:
            self.client = MlflowClient()
            if kept.exists():
                self.id = kept.read_text().strip()
                self.client.get_run(self.id)
                return
            experiment = self.client.get_experiment_by_name(name)
            where = experiment.experiment_id if experiment else self.client.create_experiment(name)
            self.id = self.client.create_run(where, run_name=run.name).info.run_id
            params = [Param(key, str(value)[:500]) for key, value in run.settings.items()]
            for first in range(0, len(params), 100):  # as many as it takes at a time
                self.client.log_batch(self.id, params=params[first : first + 100])
        except MlflowException as error:
            raise UserError(f"MLflow cannot be used ({' '.join(str(error).split())})") from error
        write_atomically(kept, f"{self.id}\n")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._metrics({f"training/{name}": value for name, value in values.items()}, step)

    def scores(self, values: Mapping[str, float]) -> None:
        self._metrics(values, 0)

    def close(self) -> None:
        self.client.set_terminated(self.id)

    def _metrics(self, values: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self.client.log_batch(
            self.id, metrics=[Metric(name, float(value), now, step) for name, value in values.items()]
        )
