"""What commands show in a terminal: tables of results, and progress bars."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from rebapl.errors import printable
from rebapl.reports.tables import Table
from rebapl.runs.jobs import Ended, Event, Job, Retried, Started, Stepped
from rebapl.wording import roughly

EVERY_SECONDS, EVERY_SHARE = 10.0, 0.05
"""Where no bar can be drawn, a line says how far work is: after so many seconds, or such a share of the time so far."""

Moved = Callable[..., None]
"""Called with how much is done, how much there is in all (None if that is not known), and perhaps the latest loss or a
note."""


def print_table(table: Table) -> None:
    """Print a whole table. If the terminal is too narrow, it breaks the lines; no number is cut off."""
    console, drawn = Console(), table.to_rich(bare=True)
    console.print(printable(table.title), style="italic", highlight=False, markup=False, soft_wrap=True)
    wide = console.measure(drawn, options=console.options.update(width=10_000)).maximum
    if wide > console.width:
        console = Console(width=wide, no_color=not console.is_terminal, force_terminal=console.is_terminal)
    console.print(drawn)
    for remark in table.remarks():
        print(remark)
    print()


class StepProgress:
    """Shows on stderr how far work is: bars with the time left in a terminal, and a line now and then elsewhere.

    `unit` says what is counted. If it is `quiet`, it shows nothing of that. Bars may be done without (`bars=False`).
    """

    def __init__(self, quiet: bool = False, unit: str = "steps", bars: bool = True) -> None:
        self.quiet, self.unit = quiet, unit
        console = Console(stderr=True)
        self.bars = bars and console.is_terminal and not quiet
        self.progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(elapsed_when_finished=False),
            TextColumn("left"),
            console=console,
            disable=not self.bars,
            redirect_stdout=False,  # rows and tables on stdout stay there
        )

    def __enter__(self) -> StepProgress:
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()

    def note(self, line: str) -> None:
        """A line that is shown unless it is to be quiet."""
        if not self.quiet:
            self.warn(line)

    def start_line(self, line: str) -> None:
        """A line that says what begins, where no bar will say it."""
        if not self.bars:
            self.note(line)

    def warn(self, line: str) -> None:
        """A line that is shown always, above the bars."""
        self.progress.console.print(printable(line), markup=False, highlight=False, soft_wrap=True)

    def begin(self, title: str) -> Moved:
        """The callback that shows how far a piece of work is. It leaves out a loss that is not known."""
        if self.quiet:
            return lambda *_, **__: None
        if not self.bars:
            return PlainSteps(title, self.unit, self.note).moved
        bars: list[TaskID] = []

        def moved(done: int, total: int | None, loss: float = math.nan, note: str = "") -> None:
            if not bars:
                bars.append(self.progress.add_task(title, note=""))
            shown = note if math.isnan(loss) else f"loss {loss:.3f}"
            self.progress.update(bars[0], completed=done, total=total, note=shown)

        return moved


class PlainSteps:
    """Says in a line now and then how far a piece of work is, with an estimate of the time left."""

    def __init__(self, title: str, unit: str, say: Callable[[str], None]) -> None:
        self.title, self.unit, self.say = title, unit, say
        self.first: tuple[int, float] | None = None
        self.last = time.monotonic()

    def moved(self, done: int, total: int | None, loss: float = math.nan, note: str = "") -> None:
        """Take note of what is done, and say it if the time has come."""
        now = time.monotonic()
        if self.first is None:
            self.first = (done, now)
        begun, since = self.first
        if now - self.last < max(EVERY_SECONDS, EVERY_SHARE * (now - since)):
            return
        self.last = now
        words = [f"{done} {self.unit}" if total is None else f"{done} of {total} {self.unit}"]
        if not math.isnan(loss):
            words.append(f"loss {loss:.3f}")
        if total is not None and begun < done < total:
            words.append(f"about {roughly((total - done) * (now - since) / (done - begun))} left")
        words += [note] if note else []
        self.say(f"{self.title}: {', '.join(words)}")


class RunProgress(StepProgress):
    """Shows the training of each run that an engine does."""

    def __init__(self, quiet: bool = False) -> None:
        super().__init__(quiet)
        self._titles: dict[Path, str] = {}
        self._moved: dict[Path, Moved] = {}

    def __enter__(self) -> RunProgress:
        super().__enter__()
        return self

    def show(self, event: Event) -> None:
        """Show an event that an engine reports. A training is shown from its first step on."""
        job = event.outcome.job if isinstance(event, Ended) else event.job
        if isinstance(event, Started):
            assert isinstance(job, Job), "shards are shown by `LiveRuns`"
            config = job.config
            inference = config["inference"] or job.run_config().resolved().training.inference_name
            title = printable(f"{config['method']} · {inference} on {config['data']}, seed {config['seed']}")
            fold = config.get("fold")
            if fold not in (None, "all"):
                title += f", without part {fold}" if "/" in fold else ", without its test images"
            self._titles[job.folder] = title if event.attempt == 1 else f"{title} (attempt {event.attempt})"
            self._moved.pop(job.folder, None)
        elif isinstance(event, Stepped):
            if job.folder not in self._moved:
                title = self._titles[job.folder]
                self.start_line(f"{title}: training, step {event.done} of {event.total}")
                self._moved[job.folder] = self.begin(title)
            self._moved[job.folder](event.done, event.total, event.loss)
        elif isinstance(event, Retried):
            self.warn(f"{job.folder.name} is tried again: {event.failure}")
