"""Metrics of an invocation have the dimension function, on request also table, and are written once."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lancelsm.errors import Fenced
from lancelsm.stack.telemetry import TABLE_METRICS, Telemetry


def metrics(text: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return [line for line in lines if "_aws" in line]


@pytest.mark.parametrize("by_table", [False, True])
def test_metrics_have_the_dimension_function_and_on_request_table(
    by_table: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POWERTOOLS_SERVICE_NAME", "anything")
    monkeypatch.setenv(TABLE_METRICS, str(by_table).lower())
    telemetry = Telemetry(function="f")

    with telemetry.invocation("one"):
        telemetry.measure("rows", 2, table="s3://a")
        telemetry.measure("rows", 3, table="s3://a")
        telemetry.measure("bytes", 7, table="s3://a", unit="Bytes")
        telemetry.measure("rows", 1, table="s3://b")
        telemetry.measure("age", 5, table="s3://b", largest=True)
        telemetry.measure("age", 4, table="s3://b", largest=True)

    lines = metrics(capsys.readouterr().out)
    found = {line.get("table"): line for line in lines}
    assert len(lines) == len(found)
    assert (found[None]["rows"], found[None]["bytes"], found[None]["age"]) == ([6.0], [7.0], [5.0])
    assert found.keys() == ({None, "s3://a", "s3://b"} if by_table else {None})
    for table, line in found.items():
        (directive,) = line["_aws"]["CloudWatchMetrics"]
        dimensions = ["function"] if table is None else ["function", "table"]
        assert (line["function"], directive["Namespace"], directive["Dimensions"]) == ("f", "lancelsm", [dimensions])
    if by_table:
        assert (found["s3://a"]["rows"], found["s3://b"]["rows"]) == ([5.0], [1.0])


def test_metrics_of_a_failed_invocation_are_written_once(capsys: pytest.CaptureFixture[str]) -> None:
    telemetry = Telemetry(function="f")

    def fails() -> None:
        with telemetry.invocation("one"):
            telemetry.measure("rows", 2, table="s3://a")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    with telemetry.invocation("two"):
        pass

    assert [line["rows"] for line in metrics(capsys.readouterr().out)] == [[2.0]]


def test_an_error_is_counted_by_kind(capsys: pytest.CaptureFixture[str]) -> None:
    telemetry = Telemetry(function="f")

    with telemetry.invocation("one"):
        telemetry.failed(Fenced("held by another", table="s3://a"))
        telemetry.failed(Fenced("held by another"))

    (line,) = metrics(capsys.readouterr().out)
    assert line["Fenced"] == [2.0]
    assert line["_aws"]["CloudWatchMetrics"][0]["Dimensions"] == [["function"]]
