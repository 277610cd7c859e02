"""Threads: results in order, exceptions where they belong, nothing left running."""

import gc
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from rebapl.data import workers
from rebapl.data.workers import MOST_THREADS, Ahead, in_threads, mapped_ahead, thread_count


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "cores", lambda: 2)


def test_results_come_in_the_order_of_the_items_however_long_each_takes() -> None:
    def slow_first(number: int) -> int:
        time.sleep(0.02 if number == 0 else 0)
        return number * number

    assert in_threads(slow_first, range(20)) == [number * number for number in range(20)]


def test_items_are_worked_on_at_the_same_time() -> None:
    together = threading.Barrier(2, timeout=5)
    in_threads(lambda _: together.wait(), range(2))


def test_the_first_exception_ends_it_early() -> None:
    done: list[int] = []

    def work(number: int) -> None:
        if number == 3:
            raise ValueError("image 3 is broken")
        time.sleep(0.001)
        done.append(number)

    with pytest.raises(ValueError, match="image 3 is broken"):
        in_threads(work, range(1000))
    assert len(done) < 500


def test_results_ahead_come_in_order_and_few_items_are_taken() -> None:
    taken: list[int] = []

    def items() -> Iterator[int]:
        for number in range(100):
            taken.append(number)
            yield number

    def slow_first(number: int) -> int:
        time.sleep(0.02 if number % 5 == 0 else 0)
        return number * number

    results = mapped_ahead(slow_first, items(), ahead=6)
    assert taken == []
    for number in range(20):
        assert next(results) == number * number
        assert len(taken) == number + 7
    assert list(results) == [number * number for number in range(20, 100)]


def test_an_exception_ahead_comes_in_its_turn_and_the_rest_is_dropped() -> None:
    done: list[int] = []

    def work(number: int) -> int:
        if number == 3:
            raise ValueError("image 3 is broken")
        time.sleep(0.005)
        done.append(number)
        return number

    results = mapped_ahead(work, range(1000), ahead=500)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="image 3 is broken"):
        next(results)
    assert len(done) < 250
    stopped = mapped_ahead(work, range(4, 1000), ahead=500)
    next(stopped)
    before = len(done)
    stopped.close()
    assert len(done) <= before + 4


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
    assert ready.wait(5)
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
    gc.collect()
    before = threading.active_count()
    ahead = Ahead(lambda step: step, 4)
    ahead(0)
    assert threading.active_count() > before
    del ahead
    gc.collect()
    limit = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < limit:
        time.sleep(0.01)
    assert threading.active_count() <= before  # fewer if one of another test ended meanwhile


def test_a_program_ends_while_steps_are_being_made() -> None:
    program = "import time; from rebapl.data.workers import Ahead; Ahead(lambda s: time.sleep(0.1 * s), 2)(0)"
    done = subprocess.run([sys.executable, "-c", program], timeout=30, capture_output=True, check=True)
    assert done.stderr == b""


def test_a_thread_for_each_core_and_item_but_not_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [thread_count(items) for items in (0, 1, 2, 100)] == [0, 1, 2, 2]
    monkeypatch.setattr(workers, "cores", lambda: 64)
    assert [thread_count(5), thread_count(100), thread_count()] == [5, MOST_THREADS, MOST_THREADS]
