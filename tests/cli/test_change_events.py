"""`lancelsm apply` applies the lines of a source once, and goes on where it ended."""

from __future__ import annotations

import json
from pathlib import Path

from lancelsm.region.producers import producer_id
from tests.cli.console import Json, Run


def line(op: str, key: int, state: str | None, price: float) -> str:
    row = None if op == "d" else {"id": key, "state": state, "price": price}
    return json.dumps({"op": op, "before": {"id": key}, "after": row, "source": {"price": price}})


def test_a_new_table_orders_events_by_the_columns_of_init(orders: Path, as_json: Json) -> None:
    table, rows = orders.parent / "ordered", orders.parent / "rows.jsonl"
    rows.write_text(json.dumps({"id": 1, "lsn": 5}) + "\n")
    as_json("init", table, "--schema", rows, "--primary-key", "id", "--sequence-by", "lsn")

    assert as_json("describe", table)["sequence_by"] == ["lsn"]
    assert as_json("apply", table, rows)["written"] == 1


def test_a_repeated_command_goes_on_after_the_lines_that_are_applied(orders: Path, as_json: Json) -> None:
    events = orders.parent / "events.jsonl"
    command = ("apply", orders, events, "--format", "debezium", "--sequence-by", "price", "--source", "s")
    events.write_text(line("c", 77, "new", 100) + "\n\n" + line("u", 77, "paid", 101) + "\n")
    first = {"written": 1, "deleted": 0, "late": 0, "skipped": 0, "rejected": 0, "offset": 3}
    assert as_json(*command) == first

    with events.open("a") as file:
        file.write(line("u", 77, "late", 99) + "\n" + line("d", 1, None, 200) + "\n")
    second = {"written": 0, "deleted": 1, "late": 1, "skipped": 2, "rejected": 0, "offset": 5}
    assert as_json(*command) == second

    found = as_json("get", orders, "--key", "77")
    assert found["state"] == "paid"


def test_a_last_line_that_is_still_written_is_left_for_the_next_run(orders: Path, run: Run, as_json: Json) -> None:
    events = orders.parent / "growing.jsonl"
    command = ("apply", orders, events, "--format", "debezium", "--source", "s", "--on-bad-row", "skip")
    whole, last = line("c", 77, "new", 100), line("u", 77, "paid", 101)
    events.write_text(whole + "\n" + last[:40])
    done = run(*command)
    assert "Wrote 1 and deleted 0 rows" in done.out
    assert "applied up to 1" in done.out
    assert "not whole" in done.err
    events.write_text(whole + "\n" + last)
    assert as_json(*command)["offset"] == 2
    assert as_json("get", orders, "--key", "77")["state"] == "paid"


def test_events_come_from_stdin_and_a_bad_one_is_named_or_counted(orders: Path, run: Run) -> None:
    lines = '{"id": 5, "state": "a", "price": 1.0}\n\nno json\n'
    done = run("apply", orders, "-", stdin=lines)
    assert done.code == 1
    assert "the event is no JSON" in done.err
    assert "line 3" in done.err
    assert "row" not in done.err.replace("on_bad_row", "")
    done = run("apply", orders, "-", "--on-bad-row", "skip", stdin=lines)
    assert done.code == 0, done.err
    assert "Wrote 1 and deleted 0 rows" in done.out
    assert "1 rejected" in done.out


def test_a_source_is_forgotten_where_it_is_remembered(orders: Path, run: Run, as_json: Json) -> None:
    name, identity = "s13", producer_id("source:s13")
    assert identity.startswith("-")
    as_json("apply", orders, "-", "--source", name, stdin='{"id": 5, "state": "a", "price": 1.0}\n')
    done = run("region", "forget", "--output", "json", "--", orders, identity)
    (region,) = json.loads(done.out)["regions"]
    assert len(as_json("region", "list", orders)["regions"]) > 1
    again = run("region", "forget", orders, "--region", region["region"], "source:s13")
    assert again.code == 1
    assert "no region remembers the producer" in again.err
