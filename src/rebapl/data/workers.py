"""Work on images in several threads, which is faster because Pillow decodes and resizes without Python's lock."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count, islice
from typing import Generic, TypeVar

Thing = TypeVar("Thing")
Result = TypeVar("Result")

PORTION = 1024
"""The number of images that are in memory at one time where all of them together may not fit."""

MOST_THREADS = 8
"""The largest number of threads. Python runs in one thread at a time, so sixteen threads on sixteen cores read no
faster than eight, and they delay the thread that computes the answers."""


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


def mapped_ahead(function: Callable[[Thing], Result], items: Iterable[Thing], ahead: int) -> Iterator[Result]:
    """`map(function, items)`, computed by several threads (see `thread_count`) up to `ahead` items before the caller.

    An exception is raised in the place of its result, and the results after it are dropped. If the caller stops early,
    the results that it has not taken are dropped.

    >>> list(mapped_ahead(str.upper, ["a", "b"], ahead=8))
    ['A', 'B']
    """
    pool, pending = ThreadPoolExecutor(thread_count()), deque[Future[Result]]()
    try:
        for item in items:
            pending.append(pool.submit(function, item))
            if len(pending) > ahead:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def portions_ahead(function: Callable[[Thing], Result], items: Iterable[Thing], size: int) -> Iterator[list[Result]]:
    """The results of `mapped_ahead` in portions of `size`, which are computed one portion before the caller.

    >>> list(portions_ahead(str.upper, "abcde", 2))
    [['A', 'B'], ['C', 'D'], ['E']]
    """
    results = mapped_ahead(function, items, size)
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
