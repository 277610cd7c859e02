"""Ctrl-C and the request to end, held back until the work is at a point where it can be kept."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

_WATCHED = [name for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR2") if hasattr(signal, name)]


class Interrupted(KeyboardInterrupt):
    """Somebody, or the scheduler, asked to stop. `signal` is what was sent; `kept` says what of the work is kept."""

    def __init__(self, number: int = signal.SIGINT, kept: str = "") -> None:
        super().__init__(kept)
        self.signal, self.kept = number, kept


def interrupt(number: int, _frame: FrameType | None = None) -> None:
    """A handler of signals that raises `Interrupted`."""
    raise Interrupted(number)


class HeldBack:
    """Within `with`, the first signal is only noted. `deliver` hands it to whoever would have had it.

    Ctrl-C, SIGTERM, SIGHUP (the terminal was closed) and, where a program has a handler for it, SIGUSR2 are held back:
    schedulers send SIGTERM or SIGUSR2 before they end a job. Whoever presses Ctrl-C a second time does not want to
    wait, and does not. Outside of the main thread, which alone receives signals, and where it is not `active`, nothing
    is held back.

    >>> with HeldBack() as held:
    ...     signal.raise_signal(signal.SIGINT)
    ...     held.pending == [signal.SIGINT]
    ...     try:
    ...         held.deliver()
    ...     except KeyboardInterrupt:
    ...         print("stopped")
    True
    stopped
    """

    def __init__(self, active: bool = True) -> None:
        self._active = active and threading.current_thread() is threading.main_thread()
        self._before: dict[int, Any] = {}
        self.pending: list[int] = []  # the signals that have come

    def __enter__(self) -> HeldBack:
        if self._active:
            for name in _WATCHED:
                number = getattr(signal, name)
                handler = signal.getsignal(number)
                if handler in (None, signal.SIG_IGN) or (name == "SIGUSR2" and not callable(handler)):
                    continue
                self._before[number] = handler
                signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if kind is None:
            self.deliver()

    def deliver(self) -> None:
        """Hand over the signals that were noted. If their handlers return, the work goes on."""
        while self.pending:
            _hand_over(self.pending.pop(0), self._before)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGINT and number in self.pending:
            self.pending.clear()
            _hand_over(number, self._before)
        self.pending.append(number)


def _hand_over(number: int, handlers: dict[int, Callable[[int, None], object] | int]) -> None:
    handler = handlers[number]
    if callable(handler):
        handler(number, None)
    else:  # what the system does by default: it ends the process
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
