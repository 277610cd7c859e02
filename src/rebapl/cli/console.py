"""What commands show in a terminal: tables of results, and progress bars."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from rebapl.errors import printable
from rebapl.reports.tables import Table
from rebapl.runs.jobs import Event, Retried, Started, Stepped


def print_table(table: Table) -> None:
    """Print a whole table. If the terminal is too narrow, it breaks the lines; no number is cut off."""
    console, drawn = Console(), table.to_rich(bare=True)
    console.print(printable(table.title), style="italic", highlight=False, markup=False, soft_wrap=True)
    wide = console.measure(drawn, options=console.options.update(width=400)).maximum
    if wide > console.width:
        console = Console(width=wide, no_color=not console.is_terminal, force_terminal=console.is_terminal)
    console.print(drawn)
    for remark in table.remarks():
        print(remark)
    print()


class StepProgress:
    """Shows a progress bar on stderr for each training, beginning with the first step of that training."""

    def __init__(self) -> None:
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[loss]}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
        )

    def __enter__(self) -> StepProgress:
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()

    def begin(self, title: str) -> Callable[[int, int, float], None]:
        """The callback that moves the bar of the next training. It leaves out a loss that is not known yet."""
        bars: list[TaskID] = []

        def moved(done: int, total: int, loss: float) -> None:
            if not bars:
                bars.append(self.progress.add_task(title, loss=""))
            shown = "" if math.isnan(loss) else f"loss {loss:.3f}"
            self.progress.update(bars[0], completed=done, total=total, loss=shown)

        return moved


class RunProgress(StepProgress):
    """A bar for the training of each run that an engine does."""

    def __init__(self) -> None:
        super().__init__()
        self._moved: dict[Path, Callable[[int, int, float], None]] = {}

    def __enter__(self) -> RunProgress:
        super().__enter__()
        return self

    def show(self, event: Event) -> None:
        """Show an event that an engine reports."""
        if isinstance(event, Started):
            config = event.job.config
            title = f"{config['method']} · {config['inference']} on {config['data']}, seed {config['seed']}"
            fold = config.get("fold")
            title += "" if fold in (None, "all") else f", without {'part ' if '/' in fold else 'its images to '}{fold}"
            again = "" if event.attempt == 1 else f" (attempt {event.attempt})"
            self._moved[event.job.folder] = self.begin(printable(title) + again)
        elif isinstance(event, Stepped):
            self._moved[event.job.folder](event.done, event.total, event.loss)
        elif isinstance(event, Retried):
            self.progress.console.print(f"{event.job.folder.name} is tried again: {event.failure}", markup=False)
