"""The wrapper of functions: parsing of events, table names, the time limit, and errors without values of rows."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from lancelsm.dataset.base_table import VersionGone
from lancelsm.errors import Contended, Invalid
from lancelsm.stack.function import FunctionCall, Internal, function, parse_event, queued_body, settings, table_uri


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    table: str
    engine: Literal["a", "b"] = "a"
    rows: list[dict[str, Any]] | None = None
    limit: int | None = None
    flag: bool = False
    anything: Any = None


@dataclass(frozen=True)
class Context:
    milliseconds_left: int = 60_000
    aws_request_id: str = "one"
    function_name: str = "f"

    def get_remaining_time_in_millis(self) -> int:
        return self.milliseconds_left


def test_an_event_is_parsed_into_the_dataclass_with_its_defaults() -> None:
    event = {"table": "t", "engine": "b", "rows": [{}], "limit": 3, "flag": True, "anything": {"a": [1]}}

    assert parse_event(Input, event) == Input(**event)
    assert parse_event(Input, {"table": "t", "rows": None}) == Input(table="t")


@pytest.mark.parametrize(
    ("event", "field"),
    [
        ({}, "table"),
        ({"table": None}, "table"),
        ({"table": 1}, "table"),
        ({"table": "t", "colour": 1}, "colour"),
        ({"table": "t", "engine": "c"}, "engine"),
        ({"table": "t", "rows": {}}, "rows"),
        ({"table": "t", "rows": "[]"}, "rows"),
        ({"table": "t", "limit": "3"}, "limit"),
        ({"table": "t", "limit": 3.5}, "limit"),
        ({"table": "t", "limit": True}, "limit"),
        ({"table": "t", "flag": 1}, "flag"),
    ],
)
def test_an_event_with_a_wrong_field_is_refused_and_the_field_is_named(event: dict[str, Any], field: str) -> None:
    with pytest.raises(Invalid) as raised:
        parse_event(Input, event)

    assert raised.value.where["field"] == field


@pytest.mark.parametrize("event", [[], "text", None, 7])
def test_an_event_that_is_not_an_object_is_refused(event: Any) -> None:
    with pytest.raises(Invalid, match="not an object"):
        parse_event(Input, event)


def test_a_table_is_named_below_the_root_or_by_its_uri() -> None:
    root = "s3://lake/tables"

    assert table_uri("orders", root=root) == table_uri("s3://lake/tables/orders/", root=f"{root}/") == f"{root}/orders"
    assert table_uri("shop/orders", root=root) == f"{root}/shop/orders"


@pytest.mark.parametrize(
    "table", ["", "/", "..", "a/../b", "a//b", "./a", "/orders", "s3://lake/tables", "s3://lake/tables2/a", "s3://x/a"]
)
def test_a_table_outside_the_root_is_refused(table: str) -> None:
    with pytest.raises(Invalid, match="not in this deployment"):
        table_uri(table, root="s3://lake/tables")


def test_all_missing_settings_are_named_in_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANCELSM_A", "a")
    monkeypatch.setenv("LANCELSM_B", "")
    monkeypatch.delenv("LANCELSM_C", raising=False)

    assert settings("LANCELSM_A") == {"LANCELSM_A": "a"}
    with pytest.raises(Invalid) as raised:
        settings("LANCELSM_A", "LANCELSM_B", "LANCELSM_C")
    assert json.loads(str(raised.value))["error"]["message"] == "the function lacks the settings LANCELSM_B, LANCELSM_C"


def test_an_invalid_setting_is_found_when_the_function_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANCELSM_FLUSH_ROWS", "0")

    with pytest.raises(Invalid, match="LANCELSM_FLUSH_ROWS"):
        settings()


@pytest.mark.parametrize(("milliseconds_left", "seconds"), [(60_000, 55.0), (6_000, 1.0), (100, 1.0)])
def test_the_work_gets_the_remaining_time_minus_a_margin(milliseconds_left: int, seconds: float) -> None:
    def work(_event: dict[str, Any], call: FunctionCall) -> dict[str, Any]:
        return {"id": call.id, "seconds": call.seconds}

    assert function(work)({}, Context(milliseconds_left=milliseconds_left)) == {"id": "one", "seconds": seconds}


def test_an_error_has_its_kind_as_type_and_its_json_document_as_text() -> None:
    def work(_event: dict[str, Any], _call: FunctionCall) -> dict[str, Any]:
        raise Contended("others were faster", table="s3://t", region="r")

    with pytest.raises(Contended) as raised:
        function(work)({}, Context())

    expected = {"kind": "Contended", "message": "others were faster", "remedy": "Retry", "table": "s3://t"}
    assert json.loads(str(raised.value)) == {"error": {**expected, "region": "r"}}


def test_a_private_subclass_of_an_error_is_raised_as_its_public_kind() -> None:
    @function
    def handler(event: Any, call: FunctionCall) -> Any:
        raise VersionGone("version 3 of the base is gone", table="t")

    with pytest.raises(Invalid) as raised:
        handler({}, Context())

    assert type(raised.value) is Invalid
    assert json.loads(str(raised.value))["error"]["kind"] == "Invalid"


def test_values_of_rows_appear_neither_in_errors_nor_in_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    secret = "a-secret-value"

    def refusing(event: dict[str, Any], _call: FunctionCall) -> dict[str, Any]:
        if event:
            parse_event(Input, event)
        raise Invalid(f"row 3: {secret} is not a number", redacted="row 3 has no number", row=3)

    def failing(_event: dict[str, Any], _call: FunctionCall) -> dict[str, Any]:
        raise ValueError(f"could not convert {secret}")

    texts = []
    for work, event in ((refusing, {}), (refusing, {"table": "t", "rows": secret}), (failing, {})):
        with pytest.raises((Invalid, Internal)) as raised:
            function(work)(event, Context())
        texts.append(str(raised.value))

    assert [json.loads(text)["error"]["message"] for text in texts] == [
        "row 3 has no number",
        "rows has a wrong type or value",
        "ValueError",
    ]
    assert secret not in "".join([*texts, *capsys.readouterr()])


def test_an_unexpected_error_keeps_its_traceback() -> None:
    def deep(_event: dict[str, Any], _call: FunctionCall) -> dict[str, Any]:
        raise KeyError("gone")

    with pytest.raises(Internal) as raised:
        function(deep)({}, Context())

    assert raised.traceback[-1].name == "deep"
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__


def test_the_body_of_one_message_is_found_in_an_event_of_a_queue() -> None:
    assert queued_body({"Records": [{"body": "x", "messageId": "m"}]}) == "x"
    assert [queued_body(event) for event in (None, [], "Records", {}, {"table": "t"})] == [None] * 5
    for records in (None, [], {}, "x", [None], [{}], [{"body": None}], [{"body": "x"}] * 2):
        with pytest.raises(Invalid, match="not one record"):
            queued_body({"Records": records})
