"""A pool runs tasks in threads, and an interrupt at any call leaves none of them blocked."""

from __future__ import annotations

import _thread
import itertools
import threading
import time
from collections.abc import Iterator

import pytest

from lancelsm.common.task_pool import TaskPool, ahead, beside, mapped
from tests.interrupts import interrupted


def test_results_come_in_the_order_of_the_items() -> None:
    turn = [threading.Event() for _ in range(3)]
    turn[2].set()

    def in_reverse(number: int) -> int:
        assert turn[number].wait(10)
        turn[number - 1].set()
        return number * 10

    with TaskPool(3) as pool:
        assert pool.map(in_reverse, range(3)) == [0, 10, 20]


def test_a_pool_has_no_more_threads_than_it_may() -> None:
    lock, running, most = threading.Lock(), 0, 0

    def count(_: int) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.002)
        with lock:
            running -= 1

    with TaskPool(3) as pool:
        pool.map(count, range(30))

    assert 2 <= most <= 3


def test_an_error_is_raised_and_drops_the_tasks_that_have_not_begun() -> None:
    begun: list[int] = []

    def until_stopped() -> None:
        while not pool._stopped:
            time.sleep(0.001)

    def fail(number: int) -> None:
        begun.append(number)
        raise ValueError(number)

    pool = TaskPool(1)
    with pool:
        first = pool.submit(lambda: fail(0))
        pool.submit(until_stopped)
        pool.submit(lambda: fail(1))
        with pytest.raises(ValueError, match="0"):
            first.result()

    assert begun == [0]


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_few_items_at_a_time_are_mapped_in_their_order(threads: int) -> None:
    taken, done = 0, 0

    def items() -> Iterator[int]:
        nonlocal taken
        for number in range(20):
            taken += 1
            yield number

    for result in mapped(lambda number: number * 10, items(), threads=threads):
        assert result == 10 * done
        done += 1
        assert taken <= done + threads

    assert done == 20


@pytest.mark.parametrize("threads", [1, 2])
def test_an_error_of_one_item_is_raised_in_its_place(threads: int) -> None:
    results = mapped(lambda number: 6 // number, [3, 2, 0, 1], threads=threads)

    assert [next(results), next(results)] == [2, 3]
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_a_caller_that_takes_no_more_results_ends_the_threads() -> None:
    before = _thread._count()
    results = mapped(str, itertools.count(), threads=2)
    assert next(results) == "0"
    while _thread._count() < before + 2:
        time.sleep(0.001)

    results.close()

    while _thread._count() > before:
        time.sleep(0.001)


def test_an_interrupt_at_any_call_ends_the_call_and_its_threads() -> None:
    def work() -> None:
        with TaskPool(3) as pool:
            pool.map(lambda number: number, range(8))

    total = interrupted(work, 0)
    before = _thread._count()
    for at in range(1, total + 1):
        interrupted(work, at)

    assert total > 30
    assert _thread._count() <= before + 3  # if the end of the context does not begin, its threads stay idle


def test_items_are_taken_ahead_in_order_and_no_more_than_the_count() -> None:
    taken: list[int] = []
    items = (taken.append(number) or number for number in range(9))  # type: ignore[func-returns-value]

    for seen, item in enumerate(ahead(items, count=2)):
        assert item == seen
        assert len(taken) <= seen + 2  # this one, and the next

    assert taken == list(range(9))
    assert list(ahead((), count=2)) == []


def test_items_end_with_the_error_of_their_source_and_the_thread_with_its_caller() -> None:
    def source() -> Iterator[int]:
        yield 1
        raise ValueError("broken")

    items = ahead(source(), count=2)
    assert next(items) == 1
    with pytest.raises(ValueError, match="broken"):
        next(items)

    before = threading.active_count()
    endless = ahead(itertools.count(), count=2)
    assert next(endless) == 0
    endless.close()
    assert threading.active_count() <= before


def test_a_call_runs_beside_a_block_and_before_it_with_one_thread() -> None:
    both = threading.Barrier(2)

    with beside(lambda: both.wait(10) and threading.get_ident(), most=2) as waited:
        both.wait(10)
        assert waited() == waited()
    ran = []
    with beside(lambda: ran.append(threading.get_ident()), most=1) as waited:
        assert ran == [threading.get_ident()]
        assert waited() is None


@pytest.mark.parametrize("most", [1, 2])
def test_the_error_of_a_call_comes_before_the_error_of_the_block_beside_it(most: int) -> None:
    def fail() -> None:
        raise ValueError("call")

    with pytest.raises(ValueError, match="call"), beside(fail, most=most):
        raise ValueError("block")
    with pytest.raises(ValueError, match="block"), beside(lambda: None, most=most):
        raise ValueError("block")
    with pytest.raises(ValueError, match="call"), beside(fail, most=most) as waited:
        waited()
