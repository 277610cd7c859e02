"""A progress bar for training steps."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class StepProgress:
    """Called with (steps done, steps in all, mean loss lately); shows a bar on stderr while it is open."""

    def __init__(self, title: str) -> None:
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[loss]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self.bar = self.progress.add_task(title, total=None, loss="")

    def __enter__(self) -> StepProgress:
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()

    def __call__(self, done: int, total: int, loss: float) -> None:
        self.progress.update(self.bar, completed=done, total=total, loss=f"loss {loss:.3f}")

    def retitle(self, title: str) -> None:
        """Begin a bar for the next thing."""
        self.progress.update(self.bar, description=title, completed=0, total=None, loss="")
