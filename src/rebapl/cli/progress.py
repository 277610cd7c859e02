"""A progress bar for training steps."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


class StepProgress:
    """A bar on stderr per training, while it is open."""

    def __init__(self, title: str) -> None:
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[loss]}"),
            TimeElapsedColumn(),
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

    def begin(self, title: str) -> Callable[[int, int, float], None]:
        """The callback that moves the bar of the next training."""
        self.progress.update(self.bar, visible=self.progress.tasks[self.bar].completed > 0)
        self.bar = self.progress.add_task(title, total=None, loss="")

        def moved(done: int, total: int, loss: float) -> None:
            self.progress.update(self.bar, completed=done, total=total, loss=f"loss {loss:.3f}")

        return moved
