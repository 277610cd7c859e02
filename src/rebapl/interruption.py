"""Ctrl-C and signals that ask a process to end, held back until the work has reached a point where it can be saved."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any

_WATCHED = [name for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR2") if hasattr(signal, name)]


class Interrupted(KeyboardInterrupt):
    """A person or a scheduler asked the work to stop.

    `signal` is the number of the signal that was sent, and `kept` says how much of the work has been saved.
    """

    def __init__(self, number: int = signal.SIGINT, kept: str = "") -> None:
        super().__init__(kept)
        self.signal, self.kept = number, kept


def interrupt(number: int, _frame: FrameType | None = None) -> None:
    """A signal handler that raises `Interrupted`."""
    raise Interrupted(number)


class HeldBack:
    """Inside `with`, signals are only noted. `deliver` passes them to the handlers that would have received them.

    Ctrl-C, SIGTERM, SIGHUP (the terminal was closed) and, if the program has a handler for it, SIGUSR2 are held back:
    schedulers send SIGTERM or SIGUSR2 before they end a job. A second Ctrl-C takes effect at once. Nothing is held back
    outside of the main thread, because only the main thread receives signals, or if this object is not `active`.

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
        self._handlers: dict[int, Any] = {}  # those that were in force before `with`
        self.pending: list[int] = []  # the signals that were noted and not yet delivered

    def __enter__(self) -> HeldBack:
        if self._active:
            for name in _WATCHED:
                number = getattr(signal, name)
                handler = signal.getsignal(number)
                if handler in (None, signal.SIG_IGN) or (name == "SIGUSR2" and not callable(handler)):
                    continue
                self._handlers[number] = handler
                signal.signal(number, self._note)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        if kind is None:
            self.deliver()

    def deliver(self) -> None:
        """Pass the noted signals to their handlers. If the handlers return, the work goes on."""
        while self.pending:
            self._handle(self.pending.pop(0))

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGINT and number in self.pending:
            self.pending.clear()
            self._handle(number)
        self.pending.append(number)

    def _handle(self, number: int) -> None:
        handler = self._handlers[number]
        if callable(handler):
            handler(number, None)
        else:  # the system's own action, which ends the process
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
