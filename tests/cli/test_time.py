"""Snapshots, the change stream, cursors and copies on the command line."""

from __future__ import annotations

import datetime as dt
import os
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lancelsm
from lancelsm.common.clock import SystemClock
from tests.cli.console import COMMAND, lines


def write(as_json: Any, orders: Path, *rows: dict[str, Any]) -> None:
    for row in rows:
        as_json("write", orders, "-", stdin=lines({"state": "new", "price": None, **row}))


def scanned_ids(run: Any, *arguments: object) -> list[int]:
    return sorted(row["id"] for row in run("scan", *arguments, "--output", "json").rows)


def test_a_snapshot_is_created_read_refreshed_listed_and_dropped(run, as_json, orders):
    created = as_json("snapshot", "create", orders, "--name", "monday", "--ttl", "1h")
    assert created == {
        "name": "monday",
        "created": created["created"],
        "expires": created["expires"],
        "base_version": created["base_version"],
        "clone": None,
    }
    lifetime = datetime.fromisoformat(created["expires"]) - datetime.fromisoformat(created["created"])
    assert 3600 <= lifetime.total_seconds() < 3660
    write(as_json, orders, {"id": 4})

    assert scanned_ids(run, orders, "--at", "monday") == [1, 2, 3]
    assert as_json("scan", orders, "--at", "monday", "--count") == {"count": 3}
    assert as_json("get", orders, "--at", "monday", "--key", "4") is None
    assert as_json("get", orders, "--key", "4")["id"] == 4
    assert as_json("snapshot", "refresh", orders, "--name", "monday", "--ttl", "never")["expires"] is None
    assert [one["name"] for one in as_json("snapshot", "list", orders)["snapshots"]] == ["monday"]
    assert as_json("snapshot", "drop", orders, "--name", "monday") == {"dropped": "monday"}
    assert as_json("snapshot", "list", orders) == {"snapshots": []}
    missing = run("scan", orders, "--at", "monday", "--output", "json")
    assert (missing.code, missing.document["error"]["kind"], missing.document["error"]["snapshot"]) == (
        1,
        "Invalid",
        "monday",
    )


def test_a_version_or_a_time_is_read(run, as_json, orders):
    as_json("run", orders)
    first = as_json("history", orders)["versions"][0]
    write(as_json, orders, {"id": 4})
    as_json("run", orders)

    assert scanned_ids(run, orders, "--at", "1") == scanned_ids(run, orders, "--at", first["time"])
    assert scanned_ids(run, orders) == [1, 2, 3, 4]
    newest = as_json("history", orders)["versions"][-1]
    assert as_json("scan", orders, "--at", newest["time"], "--count") == {"count": 4}
    assert as_json("restore", orders, "--at", "1") == {"table": str(orders), "written": 0, "deleted": 1, "kept": 0}
    assert scanned_ids(run, orders) == [1, 2, 3]
    assert "1 row written, 0 deleted" in run("restore", orders, "--at", newest["time"]).out
    assert run("restore", orders).code == run("restore", orders, "elsewhere", "--at", "1").code == 2
    refused = run("scan", orders, "--at", "99", "--output", "json")
    assert "lancelsm history" in refused.document["error"]["remedy"]


def test_snapshots_are_also_printed_as_text(run, orders):
    assert "kept until" in run("snapshot", "create", orders, "--name", "monday").out
    run("snapshot", "create", orders, "--name", "brief", "--ttl", "0.01")
    run("snapshot", "create", orders, "--name", "ever", "--ttl", "never")
    assert [line.split()[0] for line in run("snapshot", "list", orders).out.splitlines() if "has expired" in line] == [
        "brief"
    ]
    assert "null" not in run("snapshot", "list", orders).out
    listed = run("snapshot", "list", orders, "--output", "json").document["snapshots"]
    assert {one["name"]: one["expired"] for one in listed} == {"monday": False, "brief": True, "ever": False}
    assert "never" in run("snapshot", "list", orders).out
    assert run("snapshot", "create", orders, "--name", "monday").code == 1
    assert run("snapshot", "create", orders, "--name", "tuesday", "--ttl", "soon").code == 1
    assert run("snapshot", "create", orders).code == 2


def test_tail_shows_upserts_and_deletes_with_region_and_position(run, as_json, orders):
    write(as_json, orders, {"id": 4}, {"id": 4, "state": "paid"})
    as_json("delete", orders, "--key", "4")
    rows = run("tail", orders, "--output", "json").rows

    region = rows[0]["_region"]
    assert rows == [
        {"_region": region, "_position": 1, "_op": "upsert", "id": 4, "state": "new", "price": None},
        {"_region": region, "_position": 2, "_op": "upsert", "id": 4, "state": "paid", "price": None},
        {"_region": region, "_position": 3, "_op": "delete", "id": 4, "state": None, "price": None},
    ]
    text = run("tail", orders).out.splitlines()
    assert text[0] == "_region\t_position\t_op\tid\tstate\tprice"
    assert text[3] == f"{region}\t3\tdelete\t4\t\t"
    assert run("tail", orders, "--region", region[:6], "--output", "json").rows == rows


def test_tail_starts_at_the_given_start_and_ends_after_a_limit(run, as_json, orders):
    write(as_json, orders, {"id": 4, "state": "a"}, {"id": 4, "state": "b"})
    SystemClock().sleep(0.01)
    moment = SystemClock().now()
    write(as_json, orders, {"id": 4, "state": "c"})

    def states(*arguments: object) -> list[str]:
        return [row["state"] for row in run("tail", orders, *arguments, "--output", "json").rows]

    assert states() == states("--start", "earliest") == ["a", "b", "c"]
    assert states("--start", "latest") == []
    assert states("--start", 2) == ["b", "c"]
    assert states("--start", datetime.fromtimestamp(moment, UTC).isoformat()) == ["c"]
    assert states("--start", f"{moment:.3f}") == ["c"]
    assert states("--limit", 2) == ["a", "b"]
    for wrong in ("soon", "0", "-1", "2026-13-01"):
        refused = run("tail", orders, f"--start={wrong}", "--output", "json")
        assert (refused.code, refused.document["error"]["field"]) == (1, "start")


def test_a_limit_counts_rows_but_a_cursor_moves_by_whole_entries(run, as_json, orders):
    as_json("write", orders, "-", stdin=lines(*({"id": n, "state": "x", "price": 1.0} for n in range(20))))
    assert len(run("tail", orders, "--limit", 2, "--output", "json").rows) == 2
    first = run("tail", orders, "--limit", 2, "--cursor", "sink", "--output", "json").rows
    rest = run("tail", orders, "--cursor", "sink", "--output", "json").rows

    assert len(first) > 2
    assert sorted(row["id"] for row in first + rest) == list(range(20))


def test_a_cursor_continues_after_the_printed_rows(run, as_json, orders):
    write(as_json, orders, {"id": 4}, {"id": 5})
    assert sorted(row["id"] for row in run("tail", orders, "--cursor", "sink", "--output", "json").rows) == [4, 5]
    assert run("tail", orders, "--cursor", "sink", "--output", "json").rows == []
    (listed,) = as_json("cursor", "list", orders)["cursors"]
    assert listed["name"] == "sink"
    assert {one["position"] for one in listed["positions"]} <= {1, 2, 3}
    at = ", ".join(f"{one['region'][:8]} at {one['position']}" for one in listed["positions"])
    assert at in run("cursor", "list", orders).out

    assert as_json("cursor", "set", orders, "--name", "sink", "--start", "earliest")["name"] == "sink"
    assert len(run("tail", orders, "--cursor", "sink", "--output", "json").rows) == 2
    assert as_json("cursor", "drop", orders, "--name", "sink") == {"dropped": "sink"}
    assert as_json("cursor", "list", orders) == {"cursors": []}
    assert run("cursor", "drop", orders, "--name", "sink").code == 1


def test_the_option_start_has_an_effect_only_on_a_new_cursor(run, as_json, orders):
    write(as_json, orders, {"id": 4})
    created = run("tail", orders, "--cursor", "sink", "--start", "latest", "--output", "json")
    write(as_json, orders, {"id": 4, "state": "paid"})
    again = run("tail", orders, "--cursor", "sink", "--start", "earliest", "--output", "json")

    assert (created.rows, created.err) == ([], "")
    assert [row["state"] for row in again.rows] == ["paid"]
    assert again.err == "Cursor sink exists, so --start is ignored\n"
    assert run("tail", orders, "--cursor", "sink").err == ""


def test_cursor_list_shows_how_far_and_since_when_a_cursor_is_behind(run, as_json, orders):
    as_json("cursor", "set", orders, "--name", "sink")
    write(as_json, orders, {"id": 4})
    SystemClock().sleep(0.01)
    between = SystemClock().now()
    write(as_json, orders, {"id": 4}, {"id": 5})

    (stalled,) = as_json("cursor", "list", orders)["cursors"]
    assert stalled["behind"] == 3
    assert datetime.fromisoformat(stalled["since"]).timestamp() < between
    assert stalled["since"] in run("cursor", "list", orders).out
    run("tail", orders, "--cursor", "sink")
    as_json("region", "claim", orders, "--owner", "another")
    (idle,) = as_json("cursor", "list", orders)["cursors"]
    assert (idle["behind"], idle["since"]) == (2, None), "a fence in each region, no rows"
    run("tail", orders, "--cursor", "sink")
    assert as_json("cursor", "list", orders)["cursors"][0]["behind"] == 0


def test_cursors_are_listed_even_if_an_entry_that_one_needs_is_missing(run, as_json, orders):
    as_json("cursor", "set", orders, "--name", "sink")
    write(as_json, orders, {"id": 4})
    for entry in orders.glob("_mem_wal/*/wal/*.arrow"):
        entry.unlink()

    (listed,) = as_json("cursor", "list", orders)["cursors"]
    assert (listed["behind"], listed["since"]) == (1, None)
    assert run("tail", orders, "--cursor", "sink").code == 4


def test_a_cursor_position_past_the_end_of_the_log_is_refused(run, as_json, orders):
    write(as_json, orders, {"id": 4})
    as_json("cursor", "set", orders, "--name", "sink")
    for name in ("sink", "new"):
        refused = run("cursor", "set", orders, "--name", name, "--start", 9, "--output", "json")
        assert (refused.code, refused.document["error"]["position"]) == (1, 9)
        assert "the next position is" in refused.document["error"]["message"]
        assert refused.document["error"]["region"] in {one["region"] for one in positions(as_json, orders)}
    assert {one["position"] for one in positions(as_json, orders)} == {1}


def test_a_cursor_can_be_set_in_one_region_and_keeps_its_positions_in_the_others(run, as_json, orders):
    write(as_json, orders, {"id": 4}, {"id": 4}, {"id": 5}, {"id": 6}, {"id": 7})
    ends = {
        one["region"]: one["position"]
        for one in as_json("cursor", "set", orders, "--name", "sink", "--start", "latest")["positions"]
    }
    first, other = ends
    assert min(ends.values()) > 1

    moved = as_json("cursor", "set", orders, "--name", "sink", "--start", 1, "--region", first[:8])

    assert {one["region"]: one["position"] for one in moved["positions"]} == {first: 1, other: ends[other]}
    assert positions(as_json, orders) == moved["positions"]
    refused = run("cursor", "set", orders, "--name", "none", "--region", first)
    assert (refused.code, "cursor not found" in refused.err, "--name none" in refused.err) == (1, True, True)


def positions(as_json: Any, orders: Path) -> list[dict[str, Any]]:
    (cursor,) = as_json("cursor", "list", orders)["cursors"]
    return list(cursor["positions"])


@pytest.mark.rest
def test_rows_that_could_not_be_printed_do_not_move_the_cursor(run, as_json, orders):
    write(as_json, orders, {"id": 4})
    reading, writing = os.pipe()
    os.close(reading)
    tail = [*COMMAND, "tail", str(orders), "--cursor", "sink", "--output", "json"]
    done = subprocess.run(tail, stdout=writing, stderr=subprocess.PIPE, check=False, text=True)
    os.close(writing)

    assert (done.returncode, done.stderr) == (141, "")
    assert [row["id"] for row in run("tail", orders, "--cursor", "sink", "--output", "json").rows] == [4]


@pytest.mark.one_case
@pytest.mark.parametrize("options", [[], ["--cursor", "sink"]])
@pytest.mark.rest
def test_tail_with_follow_prints_new_rows(as_json, orders, options):
    tail = [*COMMAND, "tail", str(orders), "--follow", "--limit", "2", "--output", "json"]
    with subprocess.Popen([*tail, *options], stdout=subprocess.PIPE, text=True) as following:
        for number in (4, 5):
            write(as_json, orders, {"id": number})
            assert following.stdout is not None
            assert f'"id": {number}' in following.stdout.readline()
    assert following.returncode == 0


@pytest.mark.rest
def test_a_terminated_tail_with_follow_prints_no_error_and_its_cursor_continues(run, as_json, orders):
    write(as_json, orders, {"id": 4})
    tail = [*COMMAND, "tail", str(orders), "--follow", "--cursor", "sink", "--output", "json"]
    with subprocess.Popen(tail, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        following.stdout.readline()
        following.terminate()
        _, errors = following.communicate()

    assert (following.returncode, errors) == (143, "")
    write(as_json, orders, {"id": 5})
    assert 5 in {row["id"] for row in run("tail", orders, "--cursor", "sink", "--output", "json").rows}


def test_a_snapshot_is_cloned_and_the_source_lists_the_clone(run, as_json, orders, tmp_path):
    as_json("snapshot", "create", orders, "--name", "monday")
    write(as_json, orders, {"id": 4})
    clone = tmp_path / "clone"
    copied = as_json("snapshot", "clone", orders, clone, "--name", "monday")

    assert copied == {"table": str(clone), "rows": 3, "from": str(orders)}
    assert scanned_ids(run, clone) == [1, 2, 3]
    assert [one["clone"] for one in as_json("snapshot", "list", orders)["snapshots"]] == [str(clone), None]
    assert run("drop", orders, "--yes").code == 1
    as_json("drop", clone, "--yes")
    as_json("drop", orders, "--yes")


@pytest.mark.rest
def test_a_backup_is_restored_after_its_table_was_dropped(run, as_json, orders, tmp_path, monkeypatch):
    as_json("snapshot", "create", orders, "--name", "monday")
    write(as_json, orders, {"id": 4})
    now, monday = tmp_path / "now", tmp_path / "monday"
    assert as_json("backup", orders, now) == {"table": str(now), "rows": 4, "from": str(orders)}
    assert as_json("backup", orders, monday, "--at", "monday")["rows"] == 3
    assert run("drop", orders).code == 2
    monkeypatch.chdir(orders.parent)
    dropped = as_json("drop", orders.name, "--yes")
    assert (dropped["dropped"], dropped["deleted"] > 0) == (str(orders), True)
    assert run("scan", orders).code == 1

    assert as_json("restore", monday, orders) == {"table": str(orders), "rows": 3, "from": str(monday)}
    assert scanned_ids(run, orders) == [1, 2, 3]
    assert as_json("restore", now, tmp_path / "other", "--registry", "object")["rows"] == 4
    assert lancelsm.open(tmp_path / "other").config.registry == "object"
    assert run("restore", tmp_path, tmp_path / "third").code == 1

    copied = as_json("copy", orders, tmp_path / "copy", "--primary-key", "id,state", "--regions", "bucket(state, 2)")
    assert copied == {"table": str(tmp_path / "copy"), "rows": 3, "from": str(orders)}
    assert as_json("describe", tmp_path / "copy")["primary_key"] == ["id", "state"]
    assert run("copy", orders, tmp_path / "fourth", "--primary-key", "price").code == 1


@pytest.mark.parametrize("answer", ["n\n", "y\n"])
def test_drop_asks_for_confirmation_on_a_terminal(run, orders, monkeypatch, answer):
    monkeypatch.setattr(
        "lancelsm.cli.snapshots.sys", type("Sys", (), {"stdin": type("In", (), {"isatty": lambda: True})})
    )
    done = run("drop", orders, stdin=answer)

    assert (done.code, orders.joinpath("_versions").exists()) == ((130, True) if answer == "n\n" else (0, False))


def test_a_time_to_live_is_given_shown_changed_and_removed(run, as_json, tmp_path):
    rows = tmp_path / "rows.json"
    rows.write_text('{"id": 1, "day": "2001-01-01"}\n{"id": 2, "day": null}\n')
    schema = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"id": [1], "day": pa.array([dt.date(2001, 1, 1)])}), schema)
    table = tmp_path / "table"
    as_json("init", table, "--schema", schema, "--primary-key", "id", "--ttl", "7d on day")
    as_json("write", table, rows)

    assert scanned_ids(run, table) == [2]
    assert as_json("status", table)["ttl"] == as_json("describe", table)["ttl"] == "7d on day"
    assert "Rows expire: 7d on day" in run("status", table).out
    assert as_json("config", "ttl", table, "36500d on day") == {"table": str(table), "ttl": "36500d on day"}
    assert scanned_ids(run, table) == [1, 2]
    assert "never expire" in run("config", "ttl", table, "never").out
    assert as_json("status", table)["ttl"] is None
    refused = run("config", "ttl", table, "7d on id", "--output", "json")
    assert (refused.code, refused.document["error"]["field"]) == (1, "id")
