"""The local runtime API behaves like Lambda: its answers, errors, timeouts and environments."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.handlers.runtime_api import FunctionError, runtime

SOURCE = """
import os, time

CALLS = []

def handler(event, context):
    CALLS.append(event)
    if "sleep" in event:
        time.sleep(event["sleep"])
    if "fail" in event:
        raise ValueError(event["fail"])
    if "exit" in event:
        os._exit(event["exit"])
    left = context.get_remaining_time_in_millis()
    return {"calls": len(CALLS), "left": left, "id": context.aws_request_id, "pid": os.getpid()}
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "sample.py").write_text(SOURCE)
    return tmp_path


def test_an_environment_is_reused_for_the_next_event(directory: Path) -> None:
    with runtime(directory, "sample.handler", {}, log=directory / "log", seconds=20) as invoke:
        first, second = invoke({}), invoke({})

    assert (first["calls"], second["calls"]) == (1, 2)
    assert 0 < second["left"] <= 20_000
    assert first["id"] != second["id"]


def test_an_error_has_its_type_and_text_and_its_environment_is_reused(directory: Path) -> None:
    with runtime(directory, "sample.handler", {}, log=directory / "log") as invoke:
        with pytest.raises(FunctionError) as raised:
            invoke({"fail": "so it is"})
        after = invoke({})

    assert (raised.value.kind, raised.value.message) == ("ValueError", "so it is")
    assert after["calls"] == 2


@pytest.mark.rest
def test_a_function_that_exceeds_its_timeout_is_killed_and_started_again(directory: Path) -> None:
    with runtime(directory, "sample.handler", {}, log=directory / "log", seconds=1) as invoke:
        before = invoke({})
        with pytest.raises(FunctionError) as raised:
            invoke({"sleep": 60})
        after = invoke({})

    assert raised.value.kind == "Sandbox.Timedout"
    assert after["calls"] == 1
    assert after["pid"] != before["pid"]


def test_a_function_that_exits_or_does_not_load_returns_an_error(directory: Path) -> None:
    with runtime(directory, "sample.handler", {}, log=directory / "log") as invoke:
        with pytest.raises(FunctionError) as ended:
            invoke({"exit": 7})
        assert invoke({})["calls"] == 1
    with (
        runtime(directory, "nothing.handler", {}, log=directory / "log") as invoke,
        pytest.raises(FunctionError) as absent,
    ):
        invoke({})

    assert (ended.value.kind, ended.value.message[:6]) == ("Runtime.ExitError", "exit 7")
    assert absent.value.kind == "Runtime.ImportModuleError"


def test_concurrent_events_are_handled_by_several_environments(directory: Path) -> None:
    with runtime(directory, "sample.handler", {}, log=directory / "log") as invoke, ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(invoke, [{"sleep": 1}] * 3))

    assert len({answer["pid"] for answer in answers}) == 3


def test_a_killed_function_ends_its_call_and_is_started_again(directory: Path) -> None:
    with runtime(directory, "sample.handler", {}, log=directory / "log") as invoke, ThreadPoolExecutor() as pool:
        before = invoke({})
        call = pool.submit(invoke, {"sleep": 60})
        while not call.done():
            invoke.kill()
        after = invoke({})

    error = call.exception()
    assert isinstance(error, FunctionError)
    assert error.kind == "Runtime.ExitError"
    assert after["pid"] != before["pid"]
