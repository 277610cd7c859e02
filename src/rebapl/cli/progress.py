"""Progress of work and tables, as commands show them in a terminal.

Progress goes to stderr: in a terminal a bar for each piece of work, and elsewhere a line now and then. It is the
progress of one piece of work (`begin`) or of the jobs of an engine (`show`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

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
from rebapl.runs.jobs import Event, Outcome, Retried, Stalled, Started, Stepped, Work
from rebapl.wording import in_two_units, roughly

if TYPE_CHECKING:
    from rebapl.reports.tables import Table

EVERY_SECONDS, EVERY_SHARE = 30.0, 0.1
"""Without bars, the shortest time between two lines of progress: these seconds or, if longer, this share of the time
that has passed."""

STATES = ("queued", "running", "done", "failed", "interrupted")

Moved = Callable[..., None]
"""Called with how much is done, the total (None if it is not known), and optionally the latest loss or a note."""


def print_table(table: Table) -> None:
    """Print a table at its full width. A terminal that is too narrow breaks the lines, and no number is cut off."""
    console, rich_table = Console(), table.to_rich()
    console.print(printable(table.title), style="italic", highlight=False, markup=False, soft_wrap=True)
    wide = console.measure(rich_table, options=console.options.update(width=10_000)).maximum
    if wide > console.width:
        console = Console(width=wide, no_color=not console.is_terminal, force_terminal=console.is_terminal)
    console.print(rich_table)
    for remark in table.remarks():
        print(remark)
    print()


class StepProgress:
    """Shows how far work is. `unit` is what is counted. With `quiet`, only warnings are shown.

    `jobs` are the jobs of an engine whose events go to `show`.
    """

    def __init__(
        self,
        quiet: bool = False,
        unit: str = "steps",
        bars: bool = True,
        *,
        jobs: Sequence[Work] = (),
        console: Console | None = None,
    ) -> None:
        self.quiet, self.unit = quiet, f"{jobs[0].unit}s" if jobs else unit
        console = console or Console(stderr=True)
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
            redirect_stdout=False,  # rows and tables stay on stdout
        )
        self.states = dict.fromkeys((job.folder for job in jobs), "queued")
        self._works: dict[Path, Steps] = {}

    def __enter__(self) -> StepProgress:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def note(self, line: str) -> None:
        """Show a line, unless `quiet`."""
        if not self.quiet:
            self.warn(line)

    def start_line(self, line: str) -> None:
        """Show a line about work that begins, if there is no bar for it."""
        if not self.bars:
            self.note(line)

    def warn(self, line: str) -> None:
        """Show a line in any case, above the bars."""
        self.progress.console.print(printable(line), markup=False, highlight=False, soft_wrap=True)

    def begin(self, title: str) -> Moved:
        """The callback that shows how far a piece of work is. A loss of NaN is left out."""
        return Steps(self, title).moved

    def show(self, event: Event) -> None:
        """Show an event that an engine reports."""
        job = event.job
        if isinstance(event, Started):
            again = f", attempt {event.attempt}" if event.attempt > 1 else ""
            self.start_line(f"{job.name}: started on {event.device}{again}")
            self.states[job.folder] = "running"
            self._works[job.folder] = Steps(self, job.name)
        elif isinstance(event, Stepped):
            self._works[job.folder].moved(event.done, event.total, event.loss, job.phase(event.done, event.total))
        elif isinstance(event, Stalled):
            self.warn(f"{job.name}: no progress for {roughly(event.seconds)}; it goes on, or end it with Ctrl-C")
        elif isinstance(event, Retried):
            self.states[job.folder] = "queued"
            self._end_bar(job)
            self.warn(f"{job.name}: is tried again, {event.failure}")
        else:
            self._ended(event)

    def _end_bar(self, job: Work) -> None:
        """Remove the bar of a job, which may have ended before its last step."""
        if job.folder in self._works:
            self._works.pop(job.folder).end()

    def _ended(self, outcome: Outcome) -> None:
        self.states[outcome.folder] = outcome.state
        self._end_bar(outcome.job)
        if not outcome.attempts:
            return
        how = f"done in {in_two_units(outcome.seconds)}" if outcome.state == "done" else outcome.state
        why = "" if outcome.failure is None else f", {outcome.failure}"
        states = list(self.states.values())
        counts = [f"{states.count(state)} {state}" for state in STATES if state in states]
        if len(states) > 1:
            self.note(f"{outcome.job.name}: {how}{why} ({', '.join(counts)})")
        elif outcome.failure is None:  # the failure of a single job is the error of the command
            self.note(f"{outcome.job.name}: {how}")


class Steps:
    """Progress of one piece of work: a bar in a terminal, and elsewhere a line now and then with the time left."""

    def __init__(self, shown: StepProgress, title: str) -> None:
        self.shown, self.title = shown, title
        self.bar: TaskID | None = None
        self.first: tuple[int, float] | None = None
        self.last = time.monotonic()

    def moved(self, done: int, total: int | None, loss: float = math.nan, note: str = "") -> None:
        """Move the bar, or show a line if it is time for the next one."""
        words = [*([note] if note else []), *([] if math.isnan(loss) else [f"loss {loss:.3f}"])]
        if self.shown.bars:
            self._draw(done, total, " · ".join(words))
            return
        now = time.monotonic()
        if self.first is None:
            self.first = (done, now)
        begun, since = self.first
        if now - self.last < max(EVERY_SECONDS, EVERY_SHARE * (now - since)):
            return
        self.last = now
        if total is not None and begun < done < total:
            words.append(f"about {roughly((total - done) * (now - since) / (done - begun))} left")
        count = f"{done} {self.shown.unit}" if total is None else f"{done} of {total} {self.shown.unit}"
        self.shown.note(f"{self.title}: {', '.join([count, *words])}")

    def _draw(self, done: int, total: int | None, note: str) -> None:
        bars = self.shown.progress
        if self.bar is None:
            self.bar = bars.add_task(self.title, note="")
        bars.update(self.bar, completed=done, total=total, note=note)
        if self.shown.states and done == total:  # of jobs, only running ones have bars
            self.end()

    def end(self) -> None:
        """Remove the bar."""
        if self.bar is not None:
            self.shown.progress.remove_task(self.bar)
            self.bar = None
