"""Work on images in several threads, which is faster because Pillow decodes and resizes without Python's lock.

The rest of the work holds the lock, so more threads than `MOST_THREADS` read no faster. On a machine with more cores,
long work continues in processes.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import chain, count, islice
from typing import Generic, TypeVar

from rebapl.errors import UserError
from rebapl.processes import begin_server, worker_context, workers_allowed

Thing = TypeVar("Thing")
Result = TypeVar("Result")

PORTION = 1024
"""The number of images that are in memory at one time where all of them together may not fit."""

MOST_THREADS = 8
"""The largest number of threads. Python runs in one thread at a time, so sixteen threads on sixteen cores read no
faster than eight, and they delay the thread that computes the answers."""

SOME, MANY = 1024, 8192
"""The server of processes begins to import after the first number of items, and they begin work after the second one.
Threads do the items before."""

PIECE = 16
"""The number of items that a process takes at once, because each exchange between processes takes time."""


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def thread_count(items: int = MOST_THREADS) -> int:
    """The number of threads that work on `items` things: the cores, but at most `items` and at most `MOST_THREADS`."""
    return min(cores(), items, MOST_THREADS)


def in_threads(function: Callable[[Thing], Result], items: Sequence[Thing]) -> list[Result]:
    """`[function(item) for item in items]`, computed by several threads; see `thread_count`.

    The first exception, in the order of the items, ends the work and is raised. No further items are begun then.

    >>> in_threads(str.upper, ["a", "b"])
    ['A', 'B']
    """
    threads = thread_count(len(items))
    if threads < 2:
        return [function(item) for item in items]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(function, items))


def portions(items: Sequence[Thing], size: int = PORTION) -> Iterator[Sequence[Thing]]:
    """The items in their order, `size` at a time.

    >>> list(portions("abcde", 2))
    ['ab', 'cd', 'e']
    """
    return (items[begin : begin + size] for begin in range(0, len(items), size))


def mapped_ahead(
    function: Callable[[Thing], Result], items: Iterable[Thing], ahead: int, processes: bool = False
) -> Iterator[Result]:
    """`map(function, items)`, computed by several threads (see `thread_count`) up to `ahead` items before the caller.

    With `processes`, they continue after `MANY` items if this machine has more cores than threads can use and this
    program may start processes. Then `function`, the items and the results must be such that they can be pickled. An
    exception is raised in the place of its result, and the results after it are dropped. If the caller stops early, the
    results that it has not taken are dropped.

    >>> list(mapped_ahead(str.upper, ["a", "b"], ahead=8))
    ['A', 'B']
    """
    rest = iter(items)
    if processes and cores() > MOST_THREADS and workers_allowed():
        yield from _mapped(ThreadPoolExecutor(thread_count()), function, islice(rest, SOME), ahead)
        if more := list(islice(rest, 1)):
            begin_server()  # while no thread reads, because it changes the working folder for a moment
            some = chain(more, islice(rest, MANY - SOME - 1))
            yield from _mapped(ThreadPoolExecutor(thread_count()), function, some, ahead)
        if more := list(islice(rest, 1)):
            yield from _in_processes(function, chain(more, rest), ahead)
    else:
        yield from _mapped(ThreadPoolExecutor(thread_count()), function, rest, ahead)


def _in_processes(function: Callable[[Thing], Result], items: Iterable[Thing], ahead: int) -> Iterator[Result]:
    """`map(function, items)`, computed by a process on each core but one, which computes with the results."""
    processes = cores() - 1
    pool = ProcessPoolExecutor(processes, worker_context(), _begin_worker)
    try:
        yield from _mapped(pool, function, items, max(ahead, 2 * PIECE * processes), PIECE)
    except BrokenProcessPool as error:
        raise UserError(
            "a process that reads images was ended, as happens when the machine runs out of memory; run the command "
            "again, and it continues"
        ) from error


def _mapped(
    pool: Executor, function: Callable[[Thing], Result], items: Iterable[Thing], ahead: int, size: int = 1
) -> Iterator[Result]:
    """`map(function, items)` in a pool whose workers take `size` items at once."""
    rest, pending = iter(items), deque[Future[tuple[list[Result], Exception | None]]]()
    try:
        while True:
            while len(pending) * size <= ahead and (piece := list(islice(rest, size))):
                pending.append(pool.submit(_each, function, piece))
            if not pending:
                return
            results, error = pending.popleft().result()
            yield from results
            if error is not None:
                raise error
    finally:
        pool.shutdown(cancel_futures=True)


def _each(function: Callable[[Thing], Result], items: Sequence[Thing]) -> tuple[list[Result], Exception | None]:
    """The results up to the first exception, and this exception."""
    results: list[Result] = []
    for item in items:
        try:
            results.append(function(item))
        except Exception as error:
            return results, error
    return results, None


def _begin_worker() -> None:
    """Leave Ctrl-C to the process that started this one, and end when that process does, however it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def portions_ahead(
    function: Callable[[Thing], Result], items: Iterable[Thing], size: int, processes: bool = False
) -> Iterator[list[Result]]:
    """The results of `mapped_ahead` in portions of `size`, which are computed one portion before the caller.

    >>> list(portions_ahead(str.upper, "abcde", 2))
    [['A', 'B'], ['C', 'D'], ['E']]
    """
    results = mapped_ahead(function, items, size, processes)
    while portion := list(islice(results, size)):
        yield portion


class Ahead(Generic[Result]):
    """`ahead(step)` returns `make(step)`, which threads in the background have often made already.

    They also begin the `depth` steps after it; see `mapped_ahead`. If a step does not follow the last one, they start
    again from there. The threads end when this object is deleted.
    """

    def __init__(self, make: Callable[[int], Result], depth: int) -> None:
        self.make, self.depth = make, depth
        self._next: int | None = None

    def __call__(self, step: int) -> Result:
        if step != self._next:
            self._results = mapped_ahead(self.make, count(step), self.depth)
        self._next = None  # after an exception, no step is the next one
        result = next(self._results)
        self._next = step + 1
        return result
