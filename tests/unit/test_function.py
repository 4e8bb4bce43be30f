"""The edge of functions: what an event may be, where a table may be, how much time there is, what an error says."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from lancelsm.dataset.base_table import VersionGone
from lancelsm.errors import Contended, Invalid
from lancelsm.stack.function import FunctionCall, Internal, function, parsed, place, settings


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
    left: int = 60_000
    aws_request_id: str = "one"
    function_name: str = "f"

    def get_remaining_time_in_millis(self) -> int:
        return self.left


def test_an_event_is_the_dataclass_with_its_defaults() -> None:
    given = {"table": "t", "engine": "b", "rows": [{}], "limit": 3, "flag": True, "anything": {"a": [1]}}

    assert parsed(Input, given) == Input(**given)
    assert parsed(Input, {"table": "t", "rows": None}) == Input(table="t")


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
def test_an_event_that_does_not_fit_is_refused_by_field(event: dict[str, Any], field: str) -> None:
    with pytest.raises(Invalid) as refusal:
        parsed(Input, event)

    assert refusal.value.where["field"] == field


@pytest.mark.parametrize("event", [[], "text", None, 7])
def test_an_event_that_is_no_object_is_refused(event: Any) -> None:
    with pytest.raises(Invalid, match="no object"):
        parsed(Input, event)


def test_a_table_is_named_below_the_root_or_by_its_uri() -> None:
    root = "s3://lake/tables"

    assert place("orders", root=root) == place("s3://lake/tables/orders/", root=f"{root}/") == f"{root}/orders"
    assert place("shop/orders", root=root) == f"{root}/shop/orders"


@pytest.mark.parametrize(
    "table", ["", "/", "..", "a/../b", "a//b", "./a", "/orders", "s3://lake/tables", "s3://lake/tables2/a", "s3://x/a"]
)
def test_a_table_elsewhere_is_refused(table: str) -> None:
    with pytest.raises(Invalid, match="not one of this deployment"):
        place(table, root="s3://lake/tables")


def test_all_missing_settings_are_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANCELSM_A", "a")
    monkeypatch.setenv("LANCELSM_B", "")
    monkeypatch.delenv("LANCELSM_C", raising=False)

    assert settings("LANCELSM_A") == {"LANCELSM_A": "a"}
    with pytest.raises(Invalid) as refusal:
        settings("LANCELSM_A", "LANCELSM_B", "LANCELSM_C")
    assert (
        json.loads(str(refusal.value))["error"]["message"] == "the function lacks the settings LANCELSM_B, LANCELSM_C"
    )


def test_a_setting_of_pace_that_is_wrong_is_found_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANCELSM_FLUSH_ROWS", "0")

    with pytest.raises(Invalid, match="LANCELSM_FLUSH_ROWS"):
        settings()


@pytest.mark.parametrize(("left", "seconds"), [(60_000, 55.0), (6_000, 1.0), (100, 1.0)])
def test_the_work_gets_the_time_that_is_left_less_a_margin(left: int, seconds: float) -> None:
    def work(_event: dict[str, Any], call: FunctionCall) -> dict[str, Any]:
        return {"id": call.id, "seconds": call.seconds}

    assert function(work)({}, Context(left=left)) == {"id": "one", "seconds": seconds}


def test_an_error_has_its_kind_as_type_and_its_document_as_text() -> None:
    def work(_event: dict[str, Any], _call: FunctionCall) -> dict[str, Any]:
        raise Contended("others were faster", table="s3://t", region="r")

    with pytest.raises(Contended) as failure:
        function(work)({}, Context())

    expected = {"kind": "Contended", "message": "others were faster", "remedy": "Retry", "table": "s3://t"}
    assert json.loads(str(failure.value)) == {"error": {**expected, "region": "r"}}


def test_an_error_that_tells_our_own_code_more_is_of_its_kind_outside() -> None:
    @function
    def handler(event: Any, call: FunctionCall) -> Any:
        raise VersionGone("version 3 of the base is gone", table="t")

    with pytest.raises(Invalid) as raised:
        handler({}, Context())

    assert type(raised.value) is Invalid
    assert json.loads(str(raised.value))["error"]["kind"] == "Invalid"


def test_no_value_of_a_row_is_in_an_error_or_in_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    secret = "a-secret-value"

    def refusing(event: dict[str, Any], _call: FunctionCall) -> dict[str, Any]:
        if event:
            parsed(Input, event)
        raise Invalid(f"row 3: {secret} is no number", redacted="row 3 has no number", row=3)

    def failing(_event: dict[str, Any], _call: FunctionCall) -> dict[str, Any]:
        raise ValueError(f"could not convert {secret}")

    texts = []
    for work, event in ((refusing, {}), (refusing, {"table": "t", "rows": secret}), (failing, {})):
        with pytest.raises((Invalid, Internal)) as failure:
            function(work)(event, Context())
        texts.append(str(failure.value))

    assert [json.loads(text)["error"]["message"] for text in texts] == [
        "row 3 has no number",
        "rows is not what it has to be",
        "ValueError",
    ]
    assert secret not in "".join([*texts, *capsys.readouterr()])


def test_a_bug_keeps_the_trace_that_leads_to_it() -> None:
    def deep(_event: dict[str, Any], _call: FunctionCall) -> dict[str, Any]:
        raise KeyError("gone")

    with pytest.raises(Internal) as failure:
        function(deep)({}, Context())

    assert failure.traceback[-1].name == "deep"
    assert failure.value.__cause__ is None
    assert failure.value.__suppress_context__
