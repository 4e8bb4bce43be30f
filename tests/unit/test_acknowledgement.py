"""An acknowledgement behaves like a running future of `concurrent.futures`, whichever thread uses it first."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import CancelledError, Future, InvalidStateError, as_completed, wait

import pytest

from lancelsm.wal.acknowledgement import Acknowledgement

SECONDS = 10


class Failure(Exception):
    pass


def running():
    future = Future()
    future.set_running_or_notify_cancel()
    return future


@pytest.fixture(params=[running, Acknowledgement])
def future(request):
    return request.param()


def later(act, *arguments):
    thread = threading.Timer(0.05, act, arguments)
    thread.start()
    return thread


def test_a_result_that_is_there_first_is_returned(future):
    future.set_result(7)
    assert (future.done(), future.running(), future.cancelled()) == (True, False, False)
    assert (future.result(0), future.exception(0)) == (7, None)
    assert "finished" in repr(future)


def test_an_error_that_is_there_first_is_raised(future):
    future.set_exception(Failure("why"))
    with pytest.raises(Failure, match="why"):
        future.result(0)
    assert isinstance(future.exception(0), Failure)


def test_a_caller_that_waits_gets_the_result(future):
    thread = later(future.set_result, 7)
    assert future.result(SECONDS) == 7
    thread.join()


def test_a_caller_that_waits_gets_the_error(future):
    thread = later(future.set_exception, Failure("why"))
    with pytest.raises(Failure, match="why"):
        future.result(SECONDS)
    thread.join()


def test_a_wait_ends_after_its_timeout(future):
    with pytest.raises(TimeoutError):
        future.result(0.01)
    with pytest.raises(TimeoutError):
        future.exception(0.01)
    future.set_result(1)
    assert future.result(0) == 1


def test_it_runs_from_the_beginning_and_is_not_cancelled(future):
    assert (future.running(), future.done(), future.cancel()) == (True, False, False)
    future.set_result(1)
    assert (future.cancel(), future.cancelled(), future.result(0)) == (False, False, 1)


@pytest.mark.parametrize("first", ["set_result", "set_exception"])
def test_it_is_finished_once(future, first):
    getattr(future, first)(Failure())
    for again in (future.set_result, future.set_exception):
        with pytest.raises(InvalidStateError):
            again(Failure())


def test_a_callback_is_called_before_and_after_the_result(future):
    calls = []
    future.add_done_callback(lambda done: calls.append(("before", done.result(0))))
    future.add_done_callback(lambda done: 1 / 0)
    future.set_result(7)
    future.add_done_callback(lambda done: calls.append(("after", done.result(0))))
    assert calls == [("before", 7), ("after", 7)]


@pytest.mark.parametrize("count", [1, 4])
def test_many_are_waited_for_together(count):
    futures = [make() for make in (running, Acknowledgement) for _ in range(count)]
    futures[0].set_result(0)
    assert wait(futures, 0).done == {futures[0]}
    threads = [later(future.set_result, number) for number, future in enumerate(futures[1:], start=1)]
    assert {future.result(0) for future in as_completed(futures, SECONDS)} == set(range(2 * count))
    assert not wait(futures, SECONDS).not_done
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("early", [True, False])
def test_asyncio_waits_for_it(future, early):
    async def waits():
        if early:
            future.set_result(7)
        else:
            asyncio.get_running_loop().call_later(0.01, future.set_result, 7)
        return await asyncio.wait_for(asyncio.wrap_future(future), SECONDS)

    assert asyncio.run(waits()) == 7


def test_a_cancelled_coroutine_does_not_cancel_it(future):
    async def waits():
        task = asyncio.ensure_future(asyncio.wrap_future(future))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises((CancelledError, asyncio.CancelledError)):
            await task

    asyncio.run(waits())
    future.set_result(7)
    assert future.result(0) == 7


@pytest.mark.parametrize("_", range(100))
def test_threads_that_wait_while_it_is_finished_all_get_the_result(_):
    future, found = Acknowledgement(), []
    threads = [threading.Thread(target=lambda: found.append(future.result(SECONDS))) for _ in "ab"]
    threads.append(threading.Thread(target=future.set_result, args=(7,)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert found == [7, 7]


def test_no_condition_is_created_before_somebody_waits():
    future = Acknowledgement()
    future.set_result(7)
    assert future._created is None
