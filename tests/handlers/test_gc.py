"""Steps of a collection with a damaged region: the other regions are collected, and the failure is reported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lancelsm.common.layout import Position, wal_entry
from lancelsm.errors import Corrupt, Invalid
from tests.handlers.conftest import ORDERS, Context, Deployment, load_function


def test_a_step_that_skips_a_damaged_region_returns_and_logs_the_failure(
    deployment: Deployment, capsys: pytest.CaptureFixture[str]
) -> None:
    table = deployment.table()
    table.upsert(ORDERS)
    table.flush()
    table.merge(engine="inprocess")
    damaged, intact = table.list_regions()
    missing = wal_entry(damaged.id, Position(1))
    (Path(table.uri) / missing).unlink()
    handler = load_function("gc_round").handler
    capsys.readouterr()

    marked = handler({"table": "orders", "step": "mark"}, Context())

    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["where"]["object"] for line in lines if line.get("kind") == "Corrupt"] == [missing]
    assert [line["Corrupt"] for line in lines if "Corrupt" in line] == [[1.0]], "the metric counts it"
    assert marked["failure"]["Error"] == "Corrupt"
    assert json.loads(json.loads(marked["failure"]["Cause"])["errorMessage"])["error"]["object"] == missing
    rounds = json.loads(Path(marked["round"]).read_text())["round"]
    assert [key.rpartition("/")[0] for key in rounds] == [f"_mem_wal/{intact.id}/gc", "_lancelsm/gc"]
    done = marked
    for step in ("verify", "commit"):
        done = handler({"table": "orders", "step": step, "round": done["round"]}, Context())
        assert (json.loads(Path(done["round"]).read_text())["round"], done["failure"]) == (rounds, {})
    swept = load_function("gc_sweep").handler({"table": "orders", "round": done["round"]}, Context())
    assert (swept["deleted"], swept["failure"]) == (marked["candidates"], {})


def test_a_collection_that_a_merge_started_ends_if_the_table_was_dropped_since(deployment: Deployment) -> None:
    gone = {"table": "orders", "step": "mark"}
    with pytest.raises(Invalid, match="no table"):
        load_function("gc_round").handler(gone, Context())

    answer = load_function("gc_round").handler({**gone, "at": "2026-01-31T12:00:00Z"}, Context())

    assert (answer["phase"], answer["rounds"], answer["failure"]) == ("idle", 0, {})


def test_mark_fails_if_it_has_no_round_left(deployment: Deployment) -> None:
    table = deployment.table(regions="unsharded")
    table.upsert(ORDERS)
    table.flush()
    (region,) = table.list_regions()
    missing = wal_entry(region.id, Position(1))
    (Path(table.uri) / missing).unlink()

    with pytest.raises(Corrupt) as raised:
        load_function("gc_round").handler({"table": "orders", "step": "mark"}, Context())
    assert json.loads(str(raised.value))["error"]["object"] == missing


@pytest.mark.parametrize(
    ("step", "rounds", "article"), [("mark", "", "no"), ("mark", "x", "no"), ("verify", None, "a")]
)
def test_mark_refuses_a_round_and_the_next_steps_require_one(
    deployment: Deployment, step: str, rounds: str | None, article: str
) -> None:
    with pytest.raises(Invalid, match=f"{step} takes {article} round"):
        load_function("gc_round").handler({"table": "orders", "step": step, "round": rounds}, Context())


@pytest.mark.parametrize("name", ["verify-1.json", "steps/../../x/y.json", "steps/", "s3://other/work/steps/x/y.json"])
def test_a_round_that_no_step_of_the_deployment_wrote_is_refused(deployment: Deployment, name: str) -> None:
    given = name if "://" in name else f"{deployment.work}/{name}"
    event = {"table": "orders", "round": given}
    deployment.table()

    with pytest.raises(Invalid, match="is not the URI of an object that a step of this deployment wrote"):
        load_function("gc_round").handler({**event, "step": "verify"}, Context())
    with pytest.raises(Invalid, match="is not the URI of an object that a step of this deployment wrote"):
        load_function("gc_sweep").handler(event, Context())
