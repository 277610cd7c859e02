"""The log of a training: the rows of `log.csv`, and trackers such as TensorBoard or MLflow, which receive these rows.

A tracker is any object with the three methods of `Tracker`. `register_tracker` gives a name to a function that opens
one for a run, so that `rebapl train --track NAME` finds it. An installed package declares its trackers under the entry
points `rebapl.trackers`. If a tracker fails during a run, a warning says so, and the run goes on without it.
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
"""The number of steps between two rows."""

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
    """Read the rows of a log, each without its empty cells. If there is no file, there are no rows."""
    if not path.exists():
        return []
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:  # a spreadsheet may have put a byte order mark there
            return [{name: float(cell) for name, cell in row.items() if name and cell} for row in csv.DictReader(file)]
    except (OSError, ValueError, TypeError, csv.Error) as error:
        raise UserError(f"{path} cannot be read ({error}): delete it to go on without the log so far") from error


def _cell(value: float | None) -> str:
    if value is None:
        return ""
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(float(value))


class Tracker(Protocol):
    """An object that receives the log of a training, and scores."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Receive the row of `step`, counted from 0: loss, step size, temperatures … (the columns of `log.csv`)."""

    def scores(self, values: Mapping[str, float]) -> None:
        """Receive the scores of a run, by names such as `novel/accuracy`."""

    def close(self) -> None:
        """Finish: no more rows or scores will come."""


def track_rows(tracker: Tracker, rows: Sequence[Mapping[str, float]]) -> None:
    """Send rows of the log to a tracker."""
    for row in rows:
        tracker.log(int(row["step"]), {name: value for name, value in row.items() if name != "step"})


@dataclass(frozen=True)
class TrackedRun:
    """The run for which a tracker is opened: its name, its folder, and all its settings by dotted names."""

    name: str
    folder: Path
    settings: Mapping[str, Any]


OpenTracker = Callable[[TrackedRun], Tracker]


TRACKERS: Registry[OpenTracker] = Registry("tracker", "rebapl.trackers")

EXTRAS = ("tensorboard", "mlflow")
"""The trackers of this package. Each needs the package of the same name, which the extra of that name installs."""


def register_tracker(name: str) -> Callable[[OpenTracker], OpenTracker]:
    """Register a function (or a class) that opens a tracker for a `TrackedRun`."""
    return TRACKERS.register(name)


def check_trackers(names: Sequence[str]) -> None:
    """Refuse names that are not registered, and trackers whose package is not installed."""
    for name in names:
        TRACKERS.find(name)
        if name in EXTRAS and find_spec(name) is None:
            raise UserError(f"tracker '{name}' needs a package that is not installed: pip install 'rebapl[{name}]'")


@contextmanager
def tracked(names: Sequence[str], folder: Path, settings: Mapping[str, Any]) -> Iterator[Tracker | None]:
    """The named trackers as one, which is open for the run in `folder` inside `with`; None if no name is given."""
    if not names:
        yield None
        return
    run = TrackedRun(folder.name, folder, dict(leaves(settings)))
    trackers = Trackers({name: TRACKERS.find(name)(run) for name in names})
    try:
        yield trackers
    finally:
        trackers.close()


class Trackers:
    """Several trackers, by name, as one. A tracker that raises an error is left out from then on, with a warning."""

    def __init__(self, trackers: dict[str, Tracker]) -> None:
        self.trackers = trackers

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._call(lambda tracker: tracker.log(step, values))

    def scores(self, values: Mapping[str, float]) -> None:
        self._call(lambda tracker: tracker.scores(values))

    def close(self) -> None:
        self._call(lambda tracker: tracker.close())

    def _call(self, method: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self.trackers.items()):
            try:
                method(tracker)
            except Exception as error:  # the client of a server that is gone may raise anything
                del self.trackers[name]
                warnings.warn(f"tracker '{name}' is left out: {type(error).__name__}: {error}", stacklevel=2)


@TRACKERS.register("tensorboard")
class TensorBoard:
    """Writes to the folder `tensorboard` of the run. `tensorboard --logdir runs` shows all runs."""

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
    """Writes to a run of MLflow in the experiment `rebapl`, or in the one that `MLFLOW_EXPERIMENT_NAME` names.

    MLflow's own variable `MLFLOW_TRACKING_URI` says where MLflow stores it. The file `mlflow.txt` in the folder of the
    run holds the id of MLflow's run, so that an interrupted run and later scores go to the same one.
    """

    def __init__(self, run: TrackedRun) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Param
        from mlflow.environment_variables import MLFLOW_EXPERIMENT_NAME
        from mlflow.exceptions import MlflowException

        id_file, name = run.folder / "mlflow.txt", MLFLOW_EXPERIMENT_NAME.get() or "rebapl"
        try:
            self.client = MlflowClient()
            if id_file.exists():
                self.id = id_file.read_text().strip()
                self.client.get_run(self.id)
                return
            experiment = self.client.get_experiment_by_name(name)
            experiment_id = experiment.experiment_id if experiment else self.client.create_experiment(name)
            self.id = self.client.create_run(experiment_id, run_name=run.name).info.run_id
            params = [Param(key, str(value)[:500]) for key, value in run.settings.items()]
            for first in range(0, len(params), 100):  # MLflow takes at most 100 at a time
                self.client.log_batch(self.id, params=params[first : first + 100])
        except MlflowException as error:
            raise UserError(f"MLflow cannot be used ({' '.join(str(error).split())})") from error
        write_atomically(id_file, f"{self.id}\n")

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
