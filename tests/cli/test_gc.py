"""The command that collects: looks first, deletes with --yes, waits for the interval."""

from __future__ import annotations

from pathlib import Path

from lancelsm.table import Table
from tests.cli.console import Json, Run
from tests.unit.tables import create, row


def merged(path: Path) -> Table:
    table = create(path)
    for key in range(3):
        table.upsert([row(key)])
        table.flush()
    table.merge(engine="inprocess")
    return table


def test_gc_without_yes_says_what_would_go_and_what_stays_and_why(tmp_path: Path, as_json: Json) -> None:
    uri = merged(tmp_path).uri

    looked = as_json("gc", uri)

    assert set(looked) == {"round", "phase", "candidates", "kept", "deleted"}
    assert (looked["round"], looked["phase"], looked["deleted"]) == ([], "marked", 0)
    assert all(set(one) == {"path", "kind", "bytes", "why"} for one in looked["candidates"])
    assert {one["kind"] for one in looked["candidates"]} == {"generation", "entry", "staged", "published"}
    assert as_json("gc", uri) == looked


def test_gc_deletes_at_once_without_an_interval_and_else_after_it(tmp_path: Path, as_json: Json) -> None:
    table = merged(tmp_path)

    committed = as_json("gc", table.uri, "--yes")
    waiting = as_json("gc", table.uri, "--yes", "--interval", "1h")
    swept = as_json("gc", table.uri, "--yes", "--interval", "0s")

    assert (committed["phase"], waiting["phase"], swept["phase"]) == ("committed", "committed", "swept")
    assert waiting["round"] == committed["round"] != []
    assert swept["deleted"] == len(committed["candidates"])
    assert as_json("gc", table.uri, "--yes", "--interval", "0s")["phase"] == "idle"
    assert table.scan().to_arrow().num_rows == 3


def test_gc_says_for_people_what_it_did(tmp_path: Path, run: Run) -> None:
    uri = merged(tmp_path).uri

    looked, done = run("gc", uri), run("gc", uri, "--yes", "--interval", "0s")

    assert "nothing was deleted: use --yes" in looked.out
    assert "the base holds it since version" in looked.out
    assert "deleted" in done.out
    refused = run("gc", uri, "--interval", "soon", "--output", "json")
    assert (refused.code, refused.document["error"]["field"]) == (1, "interval")
