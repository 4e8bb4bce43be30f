"""Functions on a table in a directory: documents equal those of the command line, errors have kind and location."""

from __future__ import annotations

import json
import sys
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lancelsm
from lancelsm.cli import main
from lancelsm.common.layout import Generation, RegionId
from lancelsm.compaction import maintenance
from lancelsm.compaction.merge import Merged
from lancelsm.errors import Contended, Corrupt, Fenced, Invalid, LsmError, Unavailable
from lancelsm.gc import collect
from lancelsm.gc.collect import Candidate, Collected
from lancelsm.region.handle import open_table
from lancelsm.region.lease import flush_lease, lease
from lancelsm.stack import documents
from lancelsm.table import Table
from lancelsm.wal.claim import claim
from tests.handlers.conftest import ORDERS, ROOT, Context, Deployment, event, load_function

NAMES = ("apply", "region_claim", "compaction", "merger", "query", "gc_round", "gc_sweep", "scrub")


def error_of(name: str, request: Any) -> dict[str, Any]:
    """Return the document of the `Invalid` error that a function raises."""
    with pytest.raises(Invalid) as raised:
        load_function(name).handler(request, Context())
    return json.loads(str(raised.value))["error"]


def call(name: str, request: Any, **context: Any) -> Any:
    answer = load_function(name).handler(request, Context(**context))
    return json.loads(json.dumps(answer))


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    capsys.readouterr()
    assert main([*arguments, "--output", "json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def table(deployment: Deployment) -> Table:
    return deployment.table()


def test_region_claim_fences_the_owners_of_all_regions(table: Table, capsys: pytest.CaptureFixture[str]) -> None:
    for region in table.list_regions():
        claim(region, owner="crashed")

    claimed = call("region_claim", event("region_claim"))

    assert {(one["epoch"], one["owner"]) for one in claimed["regions"]} == {(3, "default")}
    assert claimed == command(capsys, "region", "list", table.uri)
    assert table.upsert(ORDERS).rows == 8


def test_region_claim_can_claim_one_region_for_another_owner(table: Table) -> None:
    first, second = table.list_regions()

    claimed = call("region_claim", {"table": table.uri, "region": first.id[:8], "owner": "loader"})

    assert [(one["region"], one["owner"]) for one in claimed["regions"]] == [(first.id, "loader")]
    assert second.head().owner == "default"


def test_apply_writes_what_depends_on_the_rows_that_are_there(table: Table) -> None:
    assert call("apply", event("apply"))["rows"] == 1
    assert table.get([1])["state"].to_pylist() == ["paid"]
    read = call("query", {"table": "orders", "keys": [2], "token": True})

    done = call("apply", {"table": "orders", "upserts": [{"id": 1, "state": "x"}, {"id": 9, "state": "x"}],
                          "if_absent": True})  # fmt: skip
    assert (done["rows"], done["skipped"], len(done["entries"])) == (1, 1, 1)
    two = {"table": "orders", "upserts": [{"id": 2, "state": "y"}], "if_unchanged": read["token"]}
    assert call("apply", two)["rows"] == 1
    with pytest.raises(Contended, match="was written since it was read"):
        call("apply", two)
    changed = call("apply", {"table": "orders", "op": "update", "where": "id > 7", "set": {"state": "upper(state)"}})
    assert (changed["rows"], changed["skipped"]) == (1, 0)
    assert table.get([9])["state"].to_pylist() == ["X"]
    assert call("apply", {"table": "orders", "op": "delete", "where": "id < 4"})["rows"] == 4
    assert table.count() == 5


def test_apply_applies_change_events_of_a_source_once(table: Table) -> None:
    events = [{"op": "c", "before": None, "after": {"id": 99, "state": "new"}, "source": {}}, None]
    given = {
        "table": "orders",
        "op": "changes",
        "events": events,
        "format": "debezium",
        "source": "s",
        "offset": [6, 7],
    }
    counts = {"deleted": 0, "late": 0, "rejected": 0, "offset": 7}
    assert call("apply", given) == {"written": 1, "skipped": 1, **counts}
    assert call("apply", given) == {"written": 0, "skipped": 2, **counts}
    assert table.get([99])["state"].to_pylist() == ["new"]


@pytest.mark.parametrize(
    ("event", "message"),
    [
        ({"op": "changes"}, "needs events"),
        ({"op": "changes", "events": [], "where": "true"}, "takes no where"),
        ({"op": "changes", "events": [], "sequence_by": ["id"]}, "no sequence_by yet, and this function can't record"),
        ({"op": "delete"}, "needs where"),
        ({"op": "delete", "where": "true", "upserts": []}, "takes no upserts"),
        ({"op": "update", "where": "true"}, "needs set"),
        ({"op": "upsert", "where": "true", "upserts": []}, "takes no where"),
        ({"if_absent": True}, "rows in exactly one form"),
        ({"upserts": [{"id": 1}], "arrow": ""}, "rows in exactly one form"),
    ],
)
def test_apply_refuses_fields_of_another_operation(table: Table, event: dict[str, Any], message: str) -> None:
    assert message in error_of("apply", {"table": table.uri, **event})["message"]


def test_compaction_flushes_all_acknowledged_rows(table: Table, capsys: pytest.CaptureFixture[str]) -> None:
    table.upsert(ORDERS)

    flushed = call("compaction", event("compaction"))["generations"]

    assert sum(one["rows"] for one in flushed) == 8
    assert {tuple(one) for one in flushed} == {("region", "generation", "rows", "path")}
    again = {"generations": [], "left": False, "overtaken": []}
    assert call("compaction", event("compaction")) == again
    assert command(capsys, "flush", table.uri) == {"generations": []}


def test_compaction_can_flush_one_region(table: Table) -> None:
    table.upsert(ORDERS)
    region = table.list_regions()[0].id

    flushed = call("compaction", {"table": "orders", "region": region})["generations"]

    assert [one["region"] for one in flushed] == [region]


def test_compaction_compacts_the_generations_of_regions(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        table.upsert(ORDERS)
        table.flush()
    region = table.list_regions()[0].id
    request = {"table": "orders", "compact": [region]}
    assert call("compaction", request) == {"generations": [], "left": False}

    monkeypatch.setenv("LANCELSM_MAX_GENERATIONS", "1")
    (made,) = call("compaction", request)["generations"]

    assert (made["region"], made["first_generation"], made["generation"], made["parts"]) == (region, 1, 2, 2)
    assert sorted(one.generations for one in table.status().regions) == [1, 2]
    message = error_of("compaction", request | {"regions": [region]})["message"]
    assert message == "the event has both 'regions' and 'compact'"


def test_compaction_leaves_out_a_region_that_another_invocation_flushes(table: Table) -> None:
    table.upsert(ORDERS)
    busy, free = (region.id for region in table.list_regions())
    request = {"table": "orders", "regions": [busy, free]}

    with lease(open_table(table.uri).context, flush_lease(busy)):
        first = call("compaction", request)
    second = call("compaction", request)

    assert [[one["region"] for one in run["generations"]] for run in (first, second)] == [[free], [busy]]
    assert [(run["overtaken"], run["left"]) for run in (first, second)] == [([busy], True), ([], False)]


def test_merger_merges_all_regions_at_once(table: Table) -> None:
    table.upsert([{"id": 0, "state": "sent"}])
    table.delete([1])
    flushed = {one.region for one in table.flush()}

    merged = call("merger", event("merger"))

    assert (merged["rows_upserted"], merged["rows_deleted"], len(merged["merged"])) == (1, 1, len(flushed))
    assert call("merger", event("merger"))["merged"] == []


def test_the_steps_of_a_merge_pass_on_plan_and_result(table: Table) -> None:
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
    fields = {"fragments_removed", "fragments_added", "indexes_extended", "base_version"}
    assert set(optimized) == {*fields, "left", "rows_expired", "engine"}


def test_repeated_steps_of_a_merge_return_the_same_document(table: Table) -> None:
    table.upsert(ORDERS)
    table.flush()
    plan = call("merger", event("merger_plan"))
    merge = {"table": "orders", "step": "merge", "result": plan["result"]}
    merged = call("merger", merge)

    assert call("merger", event("merger_plan")) == plan
    assert call("merger", merge) == merged


def test_a_plan_without_an_execution_is_named_after_the_invocation(table: Table, deployment: Deployment) -> None:
    plan = call("merger", {"table": "orders", "step": "plan"}, aws_request_id="one")

    assert (plan["engine"], plan["plan"]) == ("none", f"{deployment.work}/steps/one/plan.json")


def test_an_optimize_that_rewrites_much_is_left_to_a_job(deployment: Deployment) -> None:
    table = deployment.table(settings={"optimize_small_fragments": 1, "optimize_inprocess_bytes": 1})
    for key in (100, 101):
        table.upsert([{"id": key, "state": "new"}])
        table.flush()
        table.merge(engine="inprocess")
    version = table.status().base_version
    optimize = event("merger_optimize")

    assert call("merger", optimize) == {"engine": "spark", "left": False}
    assert table.status().base_version == version
    assert call("merger", {**optimize, "engine": "inprocess"})["fragments_removed"] > 0
    assert call("merger", optimize)["engine"] == "inprocess", "nothing is left to rewrite"


def test_the_failure_of_an_optimize_is_logged_and_counted(table: Table, capsys: pytest.CaptureFixture[str]) -> None:
    table.upsert(ORDERS)
    table.flush()
    plan = call("merger", event("merger_plan"))
    call("merger", {"table": "orders", "engine": "inprocess", "result": plan["result"]})
    record = {"table": "orders", "step": "record", "result": plan["result"]}
    capsys.readouterr()

    for optimized, failures in (({"left": False}, 0), ({"Error": "Sandbox.Timedout", "Cause": "{}"}, 1)):
        call("merger", {**record, "optimize": optimized})
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [line["kind"] for line in lines if line.get("message") == "an optimize failed"] == ["Sandbox.Timedout"][
            :failures
        ]
        assert [line["optimize_failed"] for line in lines if "optimize_failed" in line] == [[1.0]][:failures]


@pytest.mark.parametrize("kind", [Corrupt, Fenced, Invalid])
def test_an_error_of_a_job_that_a_retry_would_meet_again_is_raised_under_its_name(
    table: Table, kind: type[LsmError]
) -> None:
    result = call("merger", event("merger_plan"))["result"]
    error = kind("a data file is gone", remedy="Restore it", object="data/1.lance")
    Path(result).with_name("error.json").write_text(json.dumps(error.document()))

    with pytest.raises(kind) as raised:
        call("merger", {"table": "orders", "step": "why", "result": result})

    assert json.loads(str(raised.value)) == error.document()


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (json.dumps(Contended("busy").document()), "Contended"),
        (json.dumps(Unavailable("slow").document()), "Unavailable"),
        ("{", "Unknown"),
        ('{"error": {"kind": "Odd"}}', "Unknown"),
        (None, "Unknown"),
    ],
)
def test_another_attempt_follows_an_error_that_it_may_fix(table: Table, text: str | None, kind: str) -> None:
    result = call("merger", event("merger_plan"))["result"]
    if text is not None:
        Path(result).with_name("error.json").write_text(text)

    assert call("merger", {"table": "orders", "step": "why", "result": result}) == {"kind": kind}


def test_the_step_record_refuses_a_missing_result_and_a_result_outside_the_deployment(table: Table) -> None:
    record = {"table": "orders", "step": "record"}

    assert error_of("merger", record)["field"] == "result"
    assert (
        "this deployment" in error_of("merger", {**record, "result": f"{table.uri}/_lancelsm/config.json"})["message"]
    )


def test_a_query_reads_the_same_rows_as_the_command_line(table: Table, capsys: pytest.CaptureFixture[str]) -> None:
    table.upsert([{"id": 100, "state": "paid"}])

    found = call("query", event("query"))["rows"]

    assert sorted(row["id"] for row in found) == [1, 3, 5, 7, 100]
    assert call("query", event("query_count")) == command(capsys, "scan", table.uri, "--count") == {"count": 9}
    assert call("query", {"table": "orders", "where": "id = 100", "count": True}) == {"count": 1}
    assert len(call("query", {"table": "orders", "limit": 3})["rows"]) == 3


def test_a_query_finds_rows_by_key(table: Table) -> None:
    rows = call("query", event("query_get"))["rows"]

    assert sorted(rows, key=lambda row: row["id"]) == [ORDERS[1], ORDERS[2]]
    assert call("query", {"table": "orders", "key": 3, "columns": ["state"]}) == {"rows": [{"state": "paid"}]}
    assert call("query", {"table": "orders", "key": {"id": 99}}) == {"rows": []}
    assert call("query", {"table": "orders", "keys": []}) == {"rows": []}


def test_a_query_at_a_snapshot_reads_the_rows_of_the_snapshot(table: Table) -> None:
    table.snapshot("monday")
    table.upsert([{"id": 100, "state": "paid"}])
    table.delete([1])

    assert sorted(row["id"] for row in call("query", event("query_at"))["rows"]) == [1, 3, 5, 7]
    assert call("query", {"table": "orders", "at": "monday", "count": True}) == {"count": 8}
    assert call("query", {"table": "orders", "at": "monday", "keys": [1, 100]}) == {"rows": [ORDERS[1]]}


def test_a_query_at_a_dropped_snapshot_is_refused(table: Table) -> None:
    table.snapshot("monday")
    table.drop_snapshot("monday")

    for fields in ({}, {"count": True}, {"key": 1}):
        assert error_of("query", {"table": "orders", "at": "monday", **fields})["snapshot"] == "monday"


@pytest.mark.parametrize("other", [{"keys": [1]}, {"where": "true"}, {"limit": 1}, {"count": True}])
def test_a_query_by_key_refuses_fields_of_a_scan(table: Table, other: dict[str, Any]) -> None:
    assert error_of("query", {"table": "orders", "key": 1, **other})["field"] == "key"


NOTES = pa.table(
    {
        "id": range(8),
        "state": [row["state"] for row in ORDERS],
        "note": [f"late parcel {key}" if key in {1, 3, 4} else "on time" for key in range(8)],
        "vec": pa.array([[0.1, float(key)] for key in range(8)], pa.list_(pa.float32(), 2)),
    }
)


@pytest.fixture
def notes(deployment: Deployment) -> Table:
    table = lancelsm.create(f"{deployment.tables}/orders", NOTES, primary_key="id")
    table.create_index("note", kind="INVERTED")
    table.delete([1])
    return table


def test_a_query_searches_by_vector_by_text_and_by_both(notes: Table, capsys: pytest.CaptureFixture[str]) -> None:
    near = {"table": "orders", "vector": [0.1, 0.9], "columns": ["id"]}
    every = {"table": "orders", "vector": [0.1, 6.2], "text": "parcel", "k": 8, "columns": ["id"]}

    assert call("query", {**near, "k": 3}) == {"rows": [{"id": 0}, {"id": 2}, {"id": 3}]}
    assert call("query", {**near, "vector": [[0.1, 7], [0.1, 2]], "k": 1}) == {"rows": [{"id": 7}, {"id": 2}]}
    (late,) = call("query", {"table": "orders", "text": "late", "where": "id > 3"})["rows"]
    assert late == command(capsys, "search", notes.uri, "--text", "late", "--where", "id > 3")
    assert call("query", event("query_search"))["rows"][0] == {"id": 3, "_distance": pytest.approx(4.41)}
    assert call("query", every) == {
        "rows": notes.search(vector=[0.1, 6.2], text="parcel", k=8, columns=["id"]).to_arrow().to_pylist()
    }


def test_a_search_at_a_snapshot_finds_the_rows_of_the_snapshot(notes: Table) -> None:
    notes.snapshot("monday")
    notes.delete([3])

    search = {"table": "orders", "text": "late", "k": 1, "columns": ["id"]}
    assert call("query", {**search, "where": "id < 4", "at": "monday"}) == {"rows": [{"id": 3}]}
    assert call("query", {**search, "where": "id < 4"}) == {"rows": []}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"vector": [1, 2], "k": 0}, "k"),
        ({"text": "late", "k": 10_001}, "k"),
        ({"k": 5}, "k"),
        ({"metric": "l2", "where": "id = 1"}, "metric"),
        ({"vector": [1, 2], "limit": 5}, "limit"),
        ({"text": "late", "count": True}, "count"),
        ({"text": "late", "key": 1}, "key"),
        ({"keys": [1], "nprobes": 3}, "keys"),
        ({"vector": [1, 2, 3]}, "vector"),
        ({"vector": ["x", {}]}, "vector"),
        ({"text": ""}, "text"),
        ({"count": True, "format": "arrow"}, "format"),
        ({"format": "csv"}, "format"),
    ],
)
def test_a_query_refuses_fields_of_a_search_that_do_not_fit(notes: Table, fields: dict[str, Any], named: str) -> None:
    assert error_of("query", {"table": "orders", **fields})["field"] == named


def steps_after_mark(marked: dict[str, Any]) -> list[dict[str, Any]]:
    """Run verify, commit and sweep, each on what the step before returned."""
    answers = [marked]
    for step in ("verify", "commit"):
        answers.append(call("gc_round", {"table": "orders", "step": step, "round": answers[-1]["round"]}))
    return [*answers[1:], call("gc_sweep", {"table": "orders", "round": answers[-1]["round"]})]


def test_the_steps_of_a_collection_delete_merged_objects(table: Table, deployment: Deployment) -> None:
    table.upsert(ORDERS)
    table.flush()
    table.merge(engine="inprocess")

    marked = call("gc_round", {"table": "orders", "step": "mark", "execution": "one"})
    verified, committed, swept = steps_after_mark(marked)

    assert [one["phase"] for one in (marked, verified, committed, swept)] == ["marked", "marked", "committed", "swept"]
    assert [one["round"].removeprefix(f"{deployment.work}/steps/") for one in (marked, verified, committed)] == [
        "one/mark-1.json",
        "one/verify-1.json",
        "one/commit-1.json",
    ]
    assert committed["rounds"] == marked["rounds"] > 0
    assert swept["deleted"] == marked["candidates"] > 0
    again = call("gc_sweep", {"table": "orders", "round": committed["round"]})
    assert again["deleted"] == marked["candidates"], "a repeated sweep does the same"
    assert table.scan().to_arrow().num_rows == len(ORDERS)


def test_a_repeated_step_of_a_collection_returns_what_the_first_wrote(table: Table) -> None:
    mark = {"table": "orders", "step": "mark", "execution": "one"}
    first = call("gc_round", mark)
    table.upsert(ORDERS)
    table.flush()
    table.merge(engine="inprocess")

    assert call("gc_round", mark) == first
    assert call("gc_round", {**mark, "attempt": 2})["rounds"] > first["rounds"]


def test_mark_returns_a_committed_round_that_waits_and_the_next_steps_finish_it(table: Table) -> None:
    table.upsert(ORDERS)
    table.flush()
    table.merge(engine="inprocess")
    first = call("gc_round", {"table": "orders", "step": "mark", "execution": "one"})
    for step in ("verify", "commit"):
        call("gc_round", {"table": "orders", "step": step, "round": first["round"]})

    again = call("gc_round", {"table": "orders", "step": "mark", "execution": "two"})
    verified, committed, swept = steps_after_mark(again)

    assert (again["phase"], again["rounds"], again["candidates"]) == ("committed", first["rounds"], first["candidates"])
    assert committed["rounds"] == verified["rounds"] == first["rounds"] > 0
    assert swept["deleted"] == first["candidates"] > 0


@pytest.mark.parametrize("where", ["event", "table"])
def test_an_interval_of_more_than_seven_days_is_refused(deployment: Deployment, where: str) -> None:
    week = 7 * 86_400
    deployment.table(settings={"collect_interval_seconds": week if where == "event" else week + 1})
    mark = {"table": "orders", "step": "mark"}

    if where == "event":
        assert call("gc_round", mark)["interval_seconds"] == week
        assert error_of("gc_round", {**mark, "interval_seconds": week + 1})["field"] == "interval_seconds"
    else:
        assert error_of("gc_round", mark)["field"] == "collect_interval_seconds"
        assert call("gc_round", {**mark, "interval_seconds": 60})["interval_seconds"] == 60


def test_the_state_of_a_collection_or_a_merge_of_10_000_regions_is_small(
    table: Table, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    regions = [RegionId(str(uuid.UUID(int=number))) for number in range(10_000)]
    found = Collected(
        rounds=tuple(f"_mem_wal/{region}/gc/1-{'0' * 32}.binpb" for region in regions),
        phase="marked",
        candidates=tuple(Candidate(path=region, kind="entry", bytes=1, why="merged") for region in regions),
        corrupt=tuple(Corrupt("a committed entry is gone", region=region) for region in regions),
    )
    monkeypatch.setattr(collect, "mark", lambda _: found)
    for step in ("verify", "commit", "sweep"):
        monkeypatch.setattr(collect, step, lambda _, rounds: replace(found, rounds=tuple(rounds)))
    monkeypatch.setattr(maintenance, "merge_generations", merged_regions(regions))

    marked = call("gc_round", {"table": "orders", "step": "mark", "execution": "one"})
    rest = steps_after_mark(marked)
    plan = call("merger", {"table": "orders", "step": "plan", "execution": "two"})
    merged = call("merger", {"table": "orders", "engine": "inprocess", "result": plan["result"]})
    recorded = call("merger", {"table": "orders", "step": "record", "result": plan["result"]})

    assert [one["rounds"] for one in (marked, *rest)] == [10_000] * 4
    assert (merged["regions"], recorded["merge"]) == (10_000, merged)
    # A state has at most the answers of all steps.
    assert len(json.dumps([marked, rest, plan, merged, recorded])) < 8 << 10


def merged_regions(regions: list[RegionId]) -> Any:
    def merge(**_: object) -> Merged:
        newest = dict.fromkeys(regions, Generation(1))
        return Merged(
            generations=len(regions),
            rows_upserted=1,
            rows_deleted=0,
            base_version=2,
            regions=newest,
            merged_now=newest,
        )

    return merge


@pytest.mark.parametrize("step", ["verify", "commit"])
def test_a_step_without_its_rounds_is_refused(table: Table, step: str) -> None:
    assert error_of("gc_round", {"table": "orders", "step": step})["field"] == "round"


@pytest.mark.parametrize("name", NAMES)
def test_the_error_names_a_field_that_is_unknown_missing_or_of_another_type(deployment: Deployment, name: str) -> None:
    request = event(name.removesuffix("_round"))

    assert error_of(name, {**request, "colour": 1})["field"] == "colour"
    assert error_of(name, {key: value for key, value in request.items() if key != "table"})["field"] == "table"
    assert error_of(name, {**request, "table": 7})["field"] == "table"
    assert "not an object" in error_of(name, [request])["message"]


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
        ("gc_sweep", "round", ["1"]),
    ],
)
def test_an_invalid_value_of_a_field_is_refused(deployment: Deployment, name: str, field: str, value: object) -> None:
    assert error_of(name, {**event(name.removesuffix("_round")), field: value})["field"] == field


@pytest.mark.parametrize("name", ["region_claim", "compaction", "merger", "query"])
def test_a_missing_table_and_a_table_outside_the_deployment_are_invalid(deployment: Deployment, name: str) -> None:
    assert error_of(name, {"table": "nothing"})["message"] == "there is no table at this location"
    assert "this deployment" in error_of(name, {"table": "s3://another/place"})["message"]
    assert "this deployment" in error_of(name, {"table": "../work"})["message"]


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_or_invalid_setting_fails_when_the_function_is_loaded(
    deployment: Deployment, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LANCELSM_FLUSH_ROWS", "many")
    with pytest.raises(Invalid, match="LANCELSM_FLUSH_ROWS"):
        load_function(name)
    monkeypatch.delenv("LANCELSM_FLUSH_ROWS")
    monkeypatch.setenv("LANCELSM_TABLES", "")
    with pytest.raises(Invalid) as raised:
        load_function(name)
    assert "LANCELSM_TABLES" in json.loads(str(raised.value))["error"]["message"]


def test_every_function_has_a_sample_event() -> None:
    functions = {path.stem for path in (ROOT / "functions").glob("*.py")}
    events = {path.stem for path in (ROOT / "events").glob("*.json")}

    assert {name.removesuffix("_round") for name in functions} <= events


def test_no_function_has_the_name_of_a_built_in_module() -> None:
    assert not {path.stem for path in Path(ROOT, "functions").glob("*.py")} & set(sys.builtin_module_names)


def test_documents_are_plain_json(table: Table) -> None:
    committed = table.upsert(ORDERS)

    assert json.loads(json.dumps(documents.committed(committed)))["rows"] == 8


def test_an_error_is_raised_as_its_kind_with_its_document_as_text(table: Table) -> None:
    sealed = table.list_regions()[0]
    table.seal(sealed)

    with pytest.raises(LsmError) as raised:
        load_function("region_claim").handler(event("region_claim"), Context())

    document = json.loads(str(raised.value))["error"]
    assert (type(raised.value).__name__, document["kind"]) == ("Invalid", "Invalid")
    assert (document["table"], document["region"]) == (table.uri, sealed.id)
    assert document["remedy"]
