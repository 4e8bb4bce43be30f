"""The steps of a collection where one region is damaged: the others are collected, and the failure is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lancelsm.common.layout import Position, wal_entry
from lancelsm.errors import Corrupt, Invalid
from tests.handlers.conftest import ORDERS, Context, Deployment, loaded


def test_what_is_wrong_with_a_region_is_told_and_logged_by_the_step_that_leaves_it_out(
    deployment: Deployment, capsys: pytest.CaptureFixture[str]
) -> None:
    table = deployment.table()
    table.upsert(ORDERS)
    table.flush()
    table.merge(engine="inprocess")
    damaged, whole = table.regions()
    gone = wal_entry(damaged.id, Position(1))
    (Path(table.uri) / gone).unlink()
    handler = loaded("gc_round").handler
    capsys.readouterr()

    marked = handler({"table": "orders", "step": "mark"}, Context())

    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["where"]["object"] for line in lines if line.get("kind") == "Corrupt"] == [gone]
    assert [line["Corrupt"] for line in lines if "Corrupt" in line] == [[1.0]], "counted"
    assert marked["failure"]["Error"] == "Corrupt"
    assert json.loads(json.loads(marked["failure"]["Cause"])["errorMessage"])["error"]["object"] == gone
    assert [key.rpartition("/")[0] for key in marked["round"]] == [f"_mem_wal/{whole.id}/gc", "_lancelsm/gc"]
    for step in ("verify", "commit"):
        done = handler({"table": "orders", "step": step, "round": marked["round"]}, Context())
        assert (done["round"], done["failure"]) == (marked["round"], {})
    swept = loaded("gc_sweep").handler({"table": "orders", "round": marked["round"]}, Context())
    assert (swept["deleted"], swept["failure"]) == (marked["candidates"], {})


def test_a_mark_of_which_nothing_is_left_fails(deployment: Deployment) -> None:
    table = deployment.table(regions="unsharded")
    table.upsert(ORDERS)
    table.flush()
    (region,) = table.regions()
    gone = wal_entry(region.id, Position(1))
    (Path(table.uri) / gone).unlink()

    with pytest.raises(Corrupt) as failure:
        loaded("gc_round").handler({"table": "orders", "step": "mark"}, Context())
    assert json.loads(str(failure.value))["error"]["object"] == gone


@pytest.mark.parametrize(("step", "given", "says"), [("mark", [], "no"), ("mark", ["x"], "no"), ("verify", None, "a")])
def test_a_mark_takes_no_round_and_the_next_steps_take_one(
    deployment: Deployment, step: str, given: list[str] | None, says: str
) -> None:
    with pytest.raises(Invalid, match=f"{step} takes {says} round"):
        loaded("gc_round").handler({"table": "orders", "step": step, "round": given}, Context())
