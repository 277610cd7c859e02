"""Threads and processes: results in order, exceptions where they belong, nothing left running."""

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rebapl import processes
from rebapl.data import workers
from rebapl.data.images import UnreadableImageError
from rebapl.data.workers import MOST_THREADS, Ahead, in_threads, mapped_ahead, thread_count
from rebapl.errors import UserError


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "cores", lambda: 2)


HANGS = 600
"""Seconds after which a test that waits for another thread gives up."""


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when a pool of threads begins no further item, before those that it has begun are waited for."""
    event = threading.Event()

    class Pool(ThreadPoolExecutor):
        def shutdown(self, wait: bool = True, **options: Any) -> None:
            super().shutdown(wait=False, **options)
            event.set()
            super().shutdown(wait=wait)

    monkeypatch.setattr(workers, "ThreadPoolExecutor", Pool)
    return event


def test_results_come_in_the_order_of_the_items_though_the_first_is_done_last() -> None:
    last = threading.Event()

    def work(number: int) -> int:
        if number == 0:
            assert last.wait(HANGS)
        elif number == 19:
            last.set()
        return number * number

    assert in_threads(work, range(20)) == [number * number for number in range(20)]


def test_the_first_exception_ends_it_early(ended: threading.Event) -> None:
    begun: list[int] = []

    def work(number: int) -> None:
        begun.append(number)
        if number == 3:
            raise ValueError("image 3 is broken")
        if number > 3:
            assert ended.wait(HANGS)

    with pytest.raises(ValueError, match="image 3 is broken"):
        in_threads(work, range(1000))
    assert len(begun) <= 4 + 2, "the items before it, itself, and one in each thread"


def test_results_ahead_come_in_order_and_few_items_are_taken() -> None:
    taken: list[int] = []

    def items() -> Iterator[int]:
        for number in range(100):
            taken.append(number)
            yield number

    later = threading.Event()

    def work(number: int) -> int:
        if number == 0:
            assert later.wait(HANGS)
        elif number == 5:
            later.set()
        return number * number

    results = mapped_ahead(work, items(), ahead=6)
    assert taken == []
    for number in range(20):
        assert next(results) == number * number
        assert len(taken) == number + 7
    assert list(results) == [number * number for number in range(20, 100)]


def test_an_exception_ahead_comes_in_its_turn_and_the_rest_is_dropped(ended: threading.Event) -> None:
    begun: list[int] = []

    def work(number: int) -> int:
        begun.append(number)
        if number == 3:
            raise ValueError("image 3 is broken")
        if number > 3:
            assert ended.wait(HANGS)
        return number

    results = mapped_ahead(work, range(1000), ahead=500)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="image 3 is broken"):
        next(results)
    assert len(begun) <= 4 + 2


def test_a_caller_who_stops_ends_it_early(ended: threading.Event) -> None:
    begun: list[int] = []

    def work(number: int) -> None:
        begun.append(number)
        if number > 0:
            assert ended.wait(HANGS)

    results = mapped_ahead(work, range(1000), ahead=500)
    next(results)
    results.close()  # type: ignore[attr-defined]
    assert len(begun) <= 1 + 2


def test_steps_ahead_are_made_before_they_are_asked_for() -> None:
    made: list[int] = []
    ready = threading.Event()

    def make(step: int) -> int:
        made.append(step)
        if step == 3:
            ready.set()
        return 10 * step

    ahead = Ahead(make, 3)
    assert ahead(0) == 0
    assert ready.wait(HANGS)
    assert sorted(made) == [0, 1, 2, 3]
    assert [ahead(step) for step in (1, 2)] == [10, 20]


def test_each_step_is_made_once_in_order_and_anew_after_a_jump() -> None:
    made: list[int] = []

    def make(step: int) -> int:
        made.append(step)
        return step

    ahead = Ahead(make, 2)
    assert [ahead(step) for step in range(50)] == list(range(50))
    assert all(made.count(step) == 1 for step in range(50))
    assert [ahead(step) for step in (7, 7, 8, 100, 6)] == [7, 7, 8, 100, 6]


def test_an_exception_is_raised_at_its_own_step_and_again_when_asked_again() -> None:
    def make(step: int) -> int:
        if step == 2:
            raise OSError("cannot read")
        return step

    ahead = Ahead(make, 3)
    assert (ahead(0), ahead(1)) == (0, 1)
    for _ in range(2):
        with pytest.raises(OSError, match="cannot read"):
            ahead(2)
    assert ahead(3) == 3


def test_threads_end_with_the_object() -> None:
    before = set(threading.enumerate())
    ahead = Ahead(lambda step: step, 4)
    ahead(0)
    threads = set(threading.enumerate()) - before
    assert threads
    gone = weakref.ref(ahead)
    del ahead
    gc.collect()
    assert gone() is None
    for thread in threads:
        thread.join(HANGS)
        assert not thread.is_alive()


def test_a_program_ends_while_steps_are_being_made() -> None:
    program = "from rebapl.data.workers import Ahead; Ahead(lambda step: sum(range(100_000 * step)), 2)(0)"
    done = subprocess.run([sys.executable, "-c", program], timeout=HANGS, capture_output=True, check=True)
    assert done.stderr == b""


def test_a_thread_for_each_core_and_item_but_not_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [thread_count(items) for items in (0, 1, 2, 100)] == [0, 1, 2, 2]
    monkeypatch.setattr(workers, "cores", lambda: 64)
    assert [thread_count(5), thread_count(100), thread_count()] == [5, MOST_THREADS, MOST_THREADS]


def _process_of(number: int) -> tuple[int, int]:
    if number == 70:
        raise UnreadableImageError("image 70: broken", "broken")
    return number, os.getpid()


@pytest.fixture
def many_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with more cores than threads can use, where work on few items is already long."""
    monkeypatch.setattr(workers, "cores", lambda: 3)
    monkeypatch.setattr(workers, "MOST_THREADS", 2)
    monkeypatch.setattr(workers, "SOME", 4)
    monkeypatch.setattr(workers, "MANY", 10)
    monkeypatch.setattr(workers, "PIECE", 4)
    monkeypatch.setattr(processes, "_allowed", {os.getpid()})


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked by a server on Linux only")
@pytest.mark.usefixtures("many_cores")
def test_long_work_continues_in_processes() -> None:
    results = mapped_ahead(_process_of, range(200), ahead=6, processes=True)
    found = [next(results) for _ in range(70)]
    assert [number for number, _ in found] == list(range(70))
    assert {process for _, process in found[:10]} == {os.getpid()}
    others = {process for _, process in found[10:]}
    assert os.getpid() not in others
    assert len(others) <= 2, "one core computes with the results"
    with pytest.raises(UnreadableImageError, match="image 70: broken") as caught:
        next(results)
    assert caught.value.reason == "broken"
    assert [number for number, _ in mapped_ahead(_process_of, range(12), 6, processes=True)] == list(range(12))


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked by a server on Linux only")
@pytest.mark.usefixtures("many_cores")
def test_a_process_that_dies_is_one_line() -> None:
    with pytest.raises(UserError, match="a process that reads images was ended"):
        list(mapped_ahead(_dies_in_a_process, range(100), ahead=6, processes=True))


def _dies_in_a_process(_: int) -> None:
    if multiprocessing.parent_process() is not None:
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.usefixtures("many_cores")
def test_a_program_that_did_not_allow_it_starts_no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_allowed", set())
    assert {process for _, process in mapped_ahead(_process_of, range(60), 6, processes=True)} == {os.getpid()}
