"""Every function on a table in a directory: its document is the command line's, its errors have kind and place."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from lancelsm.cli import main
from lancelsm.errors import Invalid, LsmError
from lancelsm.stack import documents
from lancelsm.table import Table
from lancelsm.wal.claim import claim
from tests.handlers.conftest import ORDERS, ROOT, Context, Deployment, event, loaded

OWN = ("region_claim", "compaction", "merger", "query", "gc_round", "gc_sweep", "scrub")


def refusal(name: str, given: Any) -> dict[str, Any]:
    """The document of the error that a function raises, which must be `Invalid`."""
    with pytest.raises(Invalid) as failure:
        loaded(name).handler(given, Context())
    return json.loads(str(failure.value))["error"]


def call(name: str, given: Any, **context: Any) -> Any:
    answer = loaded(name).handler(given, Context(**context))
    return json.loads(json.dumps(answer))


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    capsys.readouterr()
    assert main([*arguments, "--output", "json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def table(deployment: Deployment) -> Table:
    return deployment.table()


def test_a_claim_fences_whoever_held_the_regions(table: Table, capsys: pytest.CaptureFixture[str]) -> None:
    for region in table.regions():
        claim(region, owner="crashed")

    claimed = call("region_claim", event("region_claim"))

    assert {(one["epoch"], one["owner"]) for one in claimed["regions"]} == {(3, "default")}
    assert claimed == command(capsys, "region", "list", table.uri)
    assert table.upsert(ORDERS).rows == 8


def test_a_claim_can_be_of_one_region_for_another_owner(table: Table) -> None:
    first, second = table.regions()

    claimed = call("region_claim", {"table": table.uri, "region": first.id[:8], "owner": "loader"})

    assert [(one["region"], one["owner"]) for one in claimed["regions"]] == [(first.id, "loader")]
    assert second.head().owner == "default"


def test_compaction_flushes_what_was_acknowledged(table: Table, capsys: pytest.CaptureFixture[str]) -> None:
    table.upsert(ORDERS)

    made = call("compaction", event("compaction"))["generations"]

    assert sum(one["rows"] for one in made) == 8
    assert {tuple(one) for one in made} == {("region", "generation", "rows", "path")}
    assert call("compaction", event("compaction")) == command(capsys, "flush", table.uri) == {"generations": []}


def test_compaction_can_be_of_one_region(table: Table) -> None:
    table.upsert(ORDERS)
    region = table.regions()[0].id

    made = call("compaction", {"table": "orders", "region": region})["generations"]

    assert [one["region"] for one in made] == [region]


def test_merger_merges_all_at_once(table: Table) -> None:
    table.upsert([{"id": 0, "state": "sent"}])
    table.delete([1])
    flushed = {one.region for one in table.flush()}

    merged = call("merger", event("merger"))

    assert (merged["rows_upserted"], merged["rows_deleted"], len(merged["merged"])) == (1, 1, len(flushed))
    assert call("merger", event("merger"))["merged"] == []


def test_the_steps_of_a_merge_hand_on_plan_and_result(table: Table) -> None:
    table.upsert(ORDERS)
    table.flush()

    plan = call("merger", event("merger_plan"))
    merged = call(
        "merger", {"table": plan["table"], "engine": "inprocess", "plan": plan["plan"], "result": plan["result"]}
    )
    optimized = call("merger", {**event("merger_optimize")})
    recorded = call("merger", {"table": "orders", "step": "record", "plan": plan["plan"], "result": plan["result"]})

    assert (plan["table"], plan["engine"]) == (table.uri, "inprocess")
    assert merged == recorded["merge"]
    assert recorded["collection"]["name"].startswith(f"{table.config.table}-")
    assert merged["rows_upserted"] == 8
    assert set(optimized) == {"fragments_removed", "fragments_added", "indexes_extended", "base_version"}


def test_steps_that_are_repeated_say_what_they_said(table: Table) -> None:
    table.upsert(ORDERS)
    table.flush()
    plan = call("merger", event("merger_plan"))
    merge = {"table": "orders", "step": "merge", "result": plan["result"]}
    merged = call("merger", merge)

    assert call("merger", event("merger_plan")) == plan
    assert call("merger", merge) == merged


def test_a_plan_without_an_execution_is_the_invocation_s(table: Table, deployment: Deployment) -> None:
    plan = call("merger", {"table": "orders", "step": "plan"}, aws_request_id="one")

    assert (plan["engine"], plan["plan"]) == ("none", f"{deployment.work}/merge/one/plan.json")


def test_a_record_needs_the_place_of_a_result_among_the_merges(table: Table) -> None:
    record = {"table": "orders", "step": "record"}

    assert refusal("merger", record)["field"] == "result"
    assert "this deployment" in refusal("merger", {**record, "result": f"{table.uri}/_lancelsm/config.json"})["message"]


def test_a_query_reads_what_the_command_line_reads(table: Table, capsys: pytest.CaptureFixture[str]) -> None:
    table.upsert([{"id": 100, "state": "paid"}])

    found = call("query", event("query"))["rows"]

    assert sorted(row["id"] for row in found) == [1, 3, 5, 7, 100]
    assert call("query", event("query_count")) == command(capsys, "scan", table.uri, "--count") == {"count": 9}
    assert call("query", {"table": "orders", "where": "id = 100", "count": True}) == {"count": 1}
    assert len(call("query", {"table": "orders", "limit": 3})["rows"]) == 3


def test_a_query_looks_keys_up(table: Table) -> None:
    rows = call("query", event("query_get"))["rows"]

    assert sorted(rows, key=lambda row: row["id"]) == [ORDERS[1], ORDERS[2]]
    assert call("query", {"table": "orders", "key": 3, "columns": ["state"]}) == {"rows": [{"state": "paid"}]}
    assert call("query", {"table": "orders", "key": {"id": 99}}) == {"rows": []}
    assert call("query", {"table": "orders", "keys": []}) == {"rows": []}


def test_a_query_at_a_snapshot_reads_what_that_keeps(table: Table) -> None:
    table.snapshot("monday")
    table.upsert([{"id": 100, "state": "paid"}])
    table.delete([1])

    assert sorted(row["id"] for row in call("query", event("query_at"))["rows"]) == [1, 3, 5, 7]
    assert call("query", {"table": "orders", "at": "monday", "count": True}) == {"count": 8}
    assert call("query", {"table": "orders", "at": "monday", "keys": [1, 100]}) == {"rows": [ORDERS[1]]}


def test_a_query_at_a_snapshot_that_is_gone_is_refused(table: Table) -> None:
    table.snapshot("monday")
    table.drop_snapshot("monday")

    for asked in ({}, {"count": True}, {"key": 1}):
        assert refusal("query", {"table": "orders", "at": "monday", **asked})["snapshot"] == "monday"


@pytest.mark.parametrize("other", [{"keys": [1]}, {"where": "true"}, {"limit": 1}, {"count": True}])
def test_a_query_by_key_takes_no_fields_of_a_scan(table: Table, other: dict[str, Any]) -> None:
    assert refusal("query", {"table": "orders", "key": 1, **other})["field"] == "key"


def test_the_steps_of_a_collection_delete_what_was_merged(table: Table) -> None:
    table.upsert(ORDERS)
    table.flush()
    table.merge(engine="inprocess")

    marked = call("gc_round", {"table": "orders", "step": "mark"})
    rounds = {"table": "orders", "round": marked["round"]}
    verified = call("gc_round", {**rounds, "step": "verify"})
    committed = call("gc_round", {**rounds, "step": "commit"})
    swept = call("gc_sweep", rounds)

    assert (marked["phase"], verified["phase"], committed["phase"], swept["phase"]) == (
        "marked",
        "marked",
        "committed",
        "swept",
    )
    assert committed["round"] == marked["round"] != []
    assert swept["deleted"] == marked["candidates"] > 0
    assert call("gc_sweep", rounds)["deleted"] == marked["candidates"], "a repeated sweep does the same"
    assert table.scan().to_arrow().num_rows == len(ORDERS)


def test_mark_gives_a_round_that_waits_in_place_of_a_new_one_and_the_next_steps_end_it(table: Table) -> None:
    table.upsert(ORDERS)
    table.flush()
    table.merge(engine="inprocess")
    first = call("gc_round", {"table": "orders", "step": "mark"})
    for step in ("verify", "commit"):
        call("gc_round", {"table": "orders", "step": step, "round": first["round"]})

    again = call("gc_round", {"table": "orders", "step": "mark"})
    rounds = {"table": "orders", "round": again["round"]}
    verified = call("gc_round", {**rounds, "step": "verify"})
    committed = call("gc_round", {**rounds, "step": "commit"})
    swept = call("gc_sweep", rounds)

    assert (again["phase"], again["round"], again["candidates"]) == ("committed", first["round"], first["candidates"])
    assert committed["round"] == verified["round"] == first["round"] != []
    assert swept["deleted"] == first["candidates"] > 0


@pytest.mark.parametrize("step", ["verify", "commit"])
def test_a_step_without_its_rounds_is_refused(table: Table, step: str) -> None:
    assert refusal("gc_round", {"table": "orders", "step": step})["field"] == "round"


@pytest.mark.parametrize("name", OWN)
def test_a_field_that_is_unknown_missing_or_of_another_type_is_named(deployment: Deployment, name: str) -> None:
    given = event(name.removesuffix("_round"))

    assert refusal(name, {**given, "colour": 1})["field"] == "colour"
    assert refusal(name, {key: value for key, value in given.items() if key != "table"})["field"] == "table"
    assert refusal(name, {**given, "table": 7})["field"] == "table"
    assert "no object" in refusal(name, [given])["message"]


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("merger", "step", "jump"),
        ("merger", "engine", "rocket"),
        ("query", "limit", "many"),
        ("query", "limit", True),
        ("query", "columns", "id"),
        ("query", "count", 1),
        ("query", "at", 7),
        ("region_claim", "owner", 7),
        ("gc_round", "step", "sweep"),
        ("gc_sweep", "round", "1"),
    ],
)
def test_a_value_that_a_field_can_t_have_is_refused(
    deployment: Deployment, name: str, field: str, value: object
) -> None:
    assert refusal(name, {**event(name.removesuffix("_round")), field: value})["field"] == field


@pytest.mark.parametrize("name", ["region_claim", "compaction", "merger", "query"])
def test_a_table_that_is_not_there_or_elsewhere_is_invalid(deployment: Deployment, name: str) -> None:
    assert refusal(name, {"table": "nothing"})["message"] == "no table is there"
    assert "this deployment" in refusal(name, {"table": "s3://another/place"})["message"]
    assert "this deployment" in refusal(name, {"table": "../work"})["message"]


@pytest.mark.parametrize("name", OWN)
def test_a_setting_that_is_missing_or_wrong_fails_where_the_function_is_loaded(
    deployment: Deployment, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LANCELSM_FLUSH_ROWS", "many")
    with pytest.raises(Invalid, match="LANCELSM_FLUSH_ROWS"):
        loaded(name)
    monkeypatch.delenv("LANCELSM_FLUSH_ROWS")
    monkeypatch.setenv("LANCELSM_TABLES", "")
    with pytest.raises(Invalid) as failure:
        loaded(name)
    assert "LANCELSM_TABLES" in json.loads(str(failure.value))["error"]["message"]


def test_every_function_has_an_event_that_it_takes() -> None:
    functions = {path.stem for path in (ROOT / "functions").glob("*.py")}
    events = {path.stem for path in (ROOT / "events").glob("*.json")}

    assert {name.removesuffix("_round") for name in functions} <= events


def test_no_function_has_the_name_of_a_module_that_lambda_refuses() -> None:
    assert not {path.stem for path in Path(ROOT, "functions").glob("*.py")} & set(sys.builtin_module_names)


def test_documents_are_plain_json(table: Table) -> None:
    committed = table.upsert(ORDERS)

    assert json.loads(json.dumps(documents.committed(committed)))["rows"] == 8


def test_an_error_is_one_of_the_six_kinds_with_its_document_as_its_text(table: Table) -> None:
    sealed = table.regions()[0]
    table.seal(sealed)

    with pytest.raises(LsmError) as failure:
        loaded("region_claim").handler(event("region_claim"), Context())

    document = json.loads(str(failure.value))["error"]
    assert (type(failure.value).__name__, document["kind"]) == ("Invalid", "Invalid")
    assert (document["table"], document["region"]) == (table.uri, sealed.id)
    assert document["remedy"]
