"""Many runs or shards at a time, as a person watches them: one table in a terminal, plain lines where it is piped."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table as RichTable
from rich.text import Text

from rebapl.errors import UserError, printable
from rebapl.runs.jobs import Ended, Event, Job, Retried, Started, Stepped
from rebapl.runs.work import Work
from rebapl.sampling import Inference
from rebapl.wording import clock

LINE_SECONDS = 30.0
"""Where lines are printed, those on the steps of a run are so far apart at least."""

STATES = ("queued", "running", "done", "failed", "interrupted")


@dataclass
class Shown:
    """What is known of a run."""

    name: str
    inference: Inference | None
    state: str = "queued"
    where: str = ""
    attempt: int = 1
    first: tuple[int, float] = (0, 0.0)
    done: int = 0
    total: int = 0
    loss: float = math.nan
    said: float = -math.inf
    why: str = ""

    def progress(self) -> list[str]:
        """The step, the cycle, the loss and the time left, as far as they are known."""
        if not self.total:
            return ["", "", "", ""]
        begun, since = self.first
        pace = (time.monotonic() - since) / (self.done - begun) if self.done > begun else None
        return [
            f"{self.done} of {self.total}",
            cycle_in_words(self.inference, self.done, self.total),
            "" if math.isnan(self.loss) else f"{self.loss:.3f}",
            "" if pace is None else clock((self.total - self.done) * pace),
        ]


class LiveRuns:
    """Shows the events of an engine on stderr. `jobs` are those that it was given.

    If it is `quiet`, it says only what is tried again.
    """

    def __init__(self, jobs: Sequence[Work], quiet: bool = False, console: Console | None = None) -> None:
        self.quiet = quiet
        self.console = console or Console(stderr=True)
        self.runs = {job.folder: Shown(job.name, _inference(job)) for job in jobs}
        self.noun, self.unit = (jobs[0].noun, jobs[0].unit) if jobs else (Job.noun, Job.unit)
        self.live: Live | None = None

    def __enter__(self) -> LiveRuns:
        if self.console.is_terminal and not self.quiet:
            self.live = Live(console=self.console, get_renderable=self.table, refresh_per_second=2)
            self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.live is not None:
            self.live.stop()

    def show(self, event: Event) -> None:
        """Take note of an event that an engine reports."""
        if isinstance(event, Ended):
            self._ended(event)
            return
        run = self.runs[event.job.folder]
        if isinstance(event, Started):
            run.state, run.where, run.attempt, run.first, run.total = (
                "running",
                event.device,
                event.attempt,
                (0, 0.0),
                0,
            )
            self._say(f"{run.name}: started on {run.where}" + (f", attempt {run.attempt}" if run.attempt > 1 else ""))
        elif isinstance(event, Stepped):
            if not run.total:
                run.first = (event.done, time.monotonic())
            run.done, run.total, run.loss = event.done, event.total, event.loss
            if self.live is None and event.done and time.monotonic() - run.said > LINE_SECONDS:
                run.said = time.monotonic()
                step, cycle, loss, left = run.progress()
                words = (
                    f"{self.unit} {step}",
                    cycle and f"cycle {cycle}",
                    loss and f"loss {loss}",
                    left and f"{left} left",
                )
                self._say(f"{run.name}: {', '.join(word for word in words if word)}")
        elif isinstance(event, Retried):
            run.state = "queued"
            self._say(f"{run.name}: is tried again, {event.failure}", always=True)

    def _ended(self, event: Ended) -> None:
        outcome = event.outcome
        run = self.runs[outcome.folder]
        run.state, run.why = outcome.state, "" if outcome.failure is None else str(outcome.failure)
        if outcome.attempts:
            how = f"{run.state} in {clock(outcome.seconds)}" if run.state == "done" else f"{run.state}, {run.why}"
            self._say(f"{run.name}: {how.rstrip(', ')} ({self.summary()})")

    def summary(self) -> str:
        """How many runs there are in each state."""
        counts = {state: sum(run.state == state for run in self.runs.values()) for state in STATES}
        return ", ".join(f"{count} {state}" for state, count in counts.items() if count)

    def table(self) -> Group:
        """The runs that are being done or have failed, and how many there are of each state."""
        table = RichTable(box=None, pad_edge=False)
        for name in (self.noun, "where", self.unit, "cycle", "loss", "left"):
            words = name in (self.noun, "where")
            table.add_column(name, justify="left" if words else "right", no_wrap=name != self.noun)
        for run in self.runs.values():
            if run.state == "running":
                table.add_row(run.name, run.where, *run.progress())
            elif run.state == "failed":
                table.add_row(Text(f"{run.name}: {printable(run.why)}", style="red"), "failed")
        return Group(*([table] if table.row_count else []), Text(self.summary(), style="bold"))

    def _say(self, line: str, always: bool = False) -> None:
        if self.live is None and (always or not self.quiet):
            print(printable(line), file=sys.stderr, flush=True)
        elif self.live is not None and always:
            self.console.print(printable(line), markup=False, highlight=False)


def cycle_in_words(inference: Inference | None, done: int, total: int) -> str:
    """Which of its cycles a run is in after so many steps. Nothing if it has one cycle.

    >>> five = Inference(sampler={"kind": "sgd", "lr": 0.1}, epochs=2, batch=1, cycles=5, restart="cold")
    >>> cycle_in_words(five, 45, 100), cycle_in_words(five, 100, 100)
    ('3 of 5', '5 of 5')
    """
    if inference is None or inference.cycles == 1:
        return ""
    epoch = done * inference.all_epochs / total
    chains, first = inference.chains, inference.first_epochs or inference.epochs
    begun = epoch // first if epoch < chains * first else chains + (epoch - chains * first) // inference.epochs
    return f"{min(int(begun) // chains + 1, inference.cycles)} of {inference.cycles}"


def _inference(job: Work) -> Inference | None:
    if not isinstance(job, Job) or job.cycle is not None:
        return None
    try:
        return job.run_config().resolved().training.inference
    except UserError:  # the attempt at the job will say what is wrong
        return None
