"""Work on images in several threads: Pillow decodes and resizes without holding Python's lock."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from typing import Generic, TypeVar

Given = TypeVar("Given")
Result = TypeVar("Result")

PORTION = 1024
"""How many images are worked on at once where all of them together may not fit into memory."""


MOST_THREADS = 8
"""The largest number of threads. Python's own share of the work on an image takes turns: sixteen threads on sixteen
cores read no quicker than eight, and leave the thread that answers waiting for its turn."""


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def thread_count(items: int = MOST_THREADS) -> int:
    """How many threads share the work on `items` things: one for each core, and at most `MOST_THREADS`."""
    return min(cores(), items, MOST_THREADS)


def in_threads(function: Callable[[Given], Result], items: Sequence[Given]) -> list[Result]:
    """`[function(item) for item in items]`, by several threads, see `thread_count`.

    The first exception, in the order of the items, ends the work. Items that were not begun by then are not done.

    >>> in_threads(str.upper, ["a", "b"])
    ['A', 'B']
    """
    threads = thread_count(len(items))
    if threads < 2:
        return [function(item) for item in items]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(function, items))


def portions(items: Sequence[Given], size: int = PORTION) -> Iterator[Sequence[Given]]:
    """The items in their order, `size` at a time.

    >>> list(portions("abcde", 2))
    ['ab', 'cd', 'e']
    """
    return (items[begin : begin + size] for begin in range(0, len(items), size))


def mapped_ahead(function: Callable[[Given], Result], items: Iterable[Given], ahead: int) -> Iterator[Result]:
    """`map(function, items)` by several threads, see `thread_count`, which are up to `ahead` items before the caller.

    An exception is raised where the result would come. Results that were begun after it are dropped, and all of them
    if the caller stops.

    >>> list(mapped_ahead(str.upper, ["a", "b"], ahead=8))
    ['A', 'B']
    """
    pool, begun = ThreadPoolExecutor(thread_count()), deque[Future[Result]]()
    try:
        for item in items:
            begun.append(pool.submit(function, item))
            if len(begun) > ahead:
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


class Ahead(Generic[Result]):
    """Makes things ahead of time: `ahead(step)` gives `make(step)`, which threads have made in the background.

    The `depth` steps after it are begun, too, see `mapped_ahead`. A step that is not the next one begins anew from
    there. The threads end with this object.
    """

    def __init__(self, make: Callable[[int], Result], depth: int) -> None:
        self.make, self.depth = make, depth
        self._next: int | None = None

    def __call__(self, step: int) -> Result:
        if step != self._next:
            self._results = mapped_ahead(self.make, count(step), self.depth)
        self._next = None  # nothing comes after an exception
        result = next(self._results)
        self._next = step + 1
        return result
