"""Metrics of an invocation have two dimensions and are written once."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lancelsm.errors import Fenced
from lancelsm.stack.telemetry import Telemetry


def metrics(text: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return [line for line in lines if "_aws" in line]


def test_metrics_have_the_dimensions_function_and_table_and_no_others(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POWERTOOLS_SERVICE_NAME", "anything")
    telemetry = Telemetry(function="f")

    with telemetry.invocation("one"):
        telemetry.measure("rows", 2, table="s3://a")
        telemetry.measure("rows", 3, table="s3://a")
        telemetry.measure("bytes", 7, table="s3://a", unit="Bytes")
        telemetry.measure("rows", 1, table="s3://b")

    first, second = metrics(capsys.readouterr().out)
    assert (first["function"], first["table"], first["rows"], first["bytes"]) == ("f", "s3://a", [5.0], [7.0])
    assert (second["table"], second["rows"]) == ("s3://b", [1.0])
    for line in (first, second):
        (directive,) = line["_aws"]["CloudWatchMetrics"]
        assert (directive["Namespace"], directive["Dimensions"]) == ("lancelsm", [["function", "table"]])


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

    with_table, without_table = metrics(capsys.readouterr().out)
    assert (with_table["table"], with_table["Fenced"]) == ("s3://a", [1.0])
    assert "table" not in without_table
    assert without_table["_aws"]["CloudWatchMetrics"][0]["Dimensions"] == [["function"]]
