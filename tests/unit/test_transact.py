"""Transactions: what `fn` sees, what is written, what a caller gets when it can't be, and what it costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lancelsm
from lancelsm import Edits
from lancelsm.errors import Corrupt, Fenced, Invalid
from lancelsm.read.transact import read_token, rows_at_head
from lancelsm.read.transact.read_token import Unchanged, point_of
from lancelsm.read.transact.rows_at_head import RowsAtHead, ViewedRows
from lancelsm.table import Table
from tests.simulation.faults import FakeClock, FaultPlan
from tests.unit.tables import faulty
from tests.unit.transact_tables import add, make, row, rows_of


def test_the_function_runs_again_with_the_rows_right_before_its_entry(tmp_path: Path) -> None:
    table = make(tmp_path, row(1), row(2))
    other = lancelsm.open(table.uri)
    seen: list[list[Any]] = []

    def fn(current: pa.Table) -> Any:
        seen.append(sorted(current.select(["id", "n"]).to_pylist(), key=lambda one: int(one["id"])))
        if len(seen) == 1:
            other.upsert([row(1, 10), row(3, 10)])
            other.delete([2])
        return add(1)(current)

    done = table.transact([1, 2], fn)

    assert seen == [[{"id": 1, "n": 0}, {"id": 2, "n": 0}], [{"id": 1, "n": 10}]]
    assert (done.rows, [entry.rows for entry in done.entries]) == (1, [1])
    assert rows_of(table) == [row(1, 11), row(3, 10)]


def test_a_held_head_that_is_older_than_the_view_costs_no_call_and_no_wait(tmp_path: Path) -> None:
    writing, clock = make(tmp_path, row(1)), FakeClock()
    table = lancelsm.open.on(faulty(FaultPlan(), clock=clock))(writing.uri)
    table.upsert([row(2)])
    writing.upsert([row(1, 5)])
    calls: list[int] = []
    began = clock.monotonic()

    table.transact(1, lambda current: [calls.append(1), *add(1)(current)][1:])

    assert calls == [1]
    assert clock.monotonic() == began
    assert rows_of(table) == [row(1, 6), row(2)]


def test_upserts_and_deletes_are_one_entry_per_region(tmp_path: Path) -> None:
    table = make(tmp_path, *map(row, range(8)), regions="bucket(id, 2)")
    regions = {region.id for region in table.list_regions()}
    asked: list[list[int]] = []

    def fn(current: pa.Table) -> Edits:
        asked.append(current["id"].to_pylist())
        return Edits(upserts=[row(3, 7), row(9, 7), row(8)], deletes=[0, 1, 2, 8])

    done = table.transact([0, 1, 2, 3, 8, 9], fn)

    assert {entry.region for entry in done.entries} == regions
    assert len(done.entries) == 2
    assert done.rows == 6
    assert sorted(key for keys in asked for key in keys) == [0, 1, 2, 3]
    assert rows_of(table) == [row(3, 7), *map(row, range(4, 8)), row(9, 7)]


def test_a_key_of_several_columns_is_changed_with_and_without_deletes(tmp_path: Path) -> None:
    columns = pa.schema([("a", pa.string()), ("b", pa.int32()), ("n", pa.int64())])
    table = lancelsm.create(tmp_path / "table", columns, primary_key=["a", "b"])
    table.upsert([{"a": "x", "b": 1, "n": 0}, {"a": "y", "b": 1, "n": 0}])

    table.transact([("x", 1), ("y", 1)], lambda current: [{**one, "n": one["n"] + 1} for one in current.to_pylist()])
    table.transact(("x", 1), lambda current: Edits(upserts=[{"a": "x", "b": 1, "n": 5}]))
    table.transact(("y", 1), lambda current: Edits(deletes=("y", 1)))

    assert table.scan().to_arrow().to_pylist() == [{"a": "x", "b": 1, "n": 5}]
    assert (table.delete(()).rows, table.get(()).num_rows, table.transact((), lambda current: None).rows) == (0, 0, 0)


@pytest.mark.parametrize("nothing", [None, [], Edits()], ids=repr)
def test_no_change_writes_nothing(tmp_path: Path, nothing: Any) -> None:
    table = make(tmp_path, row(1))
    head = table.list_regions()[0].head()

    done = table.transact([1, 2], lambda current: nothing)

    assert (done.rows, done.entries) == (0, ())
    assert table.list_regions()[0].head() == head


def test_a_call_that_is_refused_writes_nothing(tmp_path: Path) -> None:
    table = make(tmp_path, *map(row, range(4)), regions="bucket(id, 2)")
    before = rows_of(table)
    token = table.get([0], with_token=True).token
    other = make(tmp_path / "other", row(0))
    (home,) = lancelsm.open(other.uri).get([0], with_token=True).token.split()
    everywhere = table.get(list(range(9)), with_token=True)
    foreign = next(key for key in range(9) if token_lacks(table, token, key))
    refused: list[tuple[Callable[[], Any], str]] = [
        (lambda: table.transact([0], lambda current: [row(1)]), "id 1, which the transaction did not read"),
        (lambda: table.transact([0], lambda current: Edits(deletes=[1])), "id 1, which the transaction did not read"),
        (lambda: table.transact([0], lambda current: [{"id": 0}]), "column 'n' is missing"),
        (lambda: table.transact(range(4), lambda current: None, atomic=True), "the keys are in several regions"),
        (lambda: table.transact([0], lambda current: table.delete([0])), "can't write to the table"),
        (lambda: table.transact([0], lambda current: (table.delete(key) for key in [0])), "can't write to the table"),
        (lambda: table.transact([0], "n + 1"), "fn is a str"),
        (lambda: table.update(where="true", set={"n": "sum(n)"}), "'n' can't be set to 'sum\\(n\\)': an aggregate"),
        (
            lambda: table.update(where="true", set={"n": "CASE n WHEN 1 THEN 2 END"}),
            "is not supported .*table.transact",
        ),
        (lambda: table.update(where="true", set={"n": "n * 1.5"}), "CAST\\(total AS DOUBLE\\)"),
        (lambda: table.update(where="true", set={"n": "1 / (n - n)"}), "Leave out the rows on which it fails"),
        (lambda: table.update(where="true", set={"n": 0}), "a dict whose values are text, not int"),
        (lambda: table.update(where="true", set={"n": "n +"}), "'n' can't be set to 'n \\+': sql parser error"),
        (lambda: table.transact([0], lambda current: table.update(where="true", set={"n": "1"})), "can't write"),
        (lambda: table.transact([0], lambda current: table.transact([1], add(1))), "can't write to the table"),
        (lambda: table.upsert([row(0)], if_absent=True, if_newer="n"), "if_absent and if_newer exclude each other"),
        (lambda: table.upsert([row(0)], if_newer="m"), "no column 'm'"),
        (lambda: table.upsert([row(0)], if_newer="id"), "is a key column"),
        (lambda: table.upsert([row(0)], if_newer="v"), "have no order"),
        (lambda: table.upsert([{"id": 0, "s": "b"}], if_newer="n", partial=True), "lack column 'n'"),
        (lambda: table.upsert([{"id": 0, "s": "b"}], if_absent=True), "column 'n' is missing"),
        (lambda: table.upsert([{"s": "b"}], partial=True), "column 'id' is missing"),
        (lambda: table.upsert([{"id": 9, "s": "b"}], partial=True), "column 'v' must not be null in a new row"),
        (
            lambda: table.upsert([{"id": 9, "s": "b"}], partial=True, if_absent=True),
            "'v' must not be null in a new row",
        ),
        (lambda: table.upsert([{"id": 0, "v": None}], partial=True), "column 'v' is null in row 0"),
        (lambda: table.upsert([row(0)], if_unchanged="x"), "is not the token of a read"),
        (lambda: table.upsert([row(0)], if_unchanged=home), "belongs to another table"),
        (lambda: table.upsert([row(0, 9), row(foreign)], if_unchanged=token), "does not cover the region"),
        (lambda: table.update(where="true", set={}), "needs a column to set"),
        (lambda: table.update(where="true", set={"id": "1"}), "is a key column"),
        (lambda: table.update(where="true", set={"m": "1"}), "no column 'm'"),
        (lambda: table.update(where="true", set={"n": "1 LIMIT 1"}), "'n' can't be set to '1 LIMIT 1'"),
        (lambda: table.update(where="true", set={"n": "1, 2"}), "'n' can't be set"),
        (lambda: table.update(where="true", set={"s": "'x'", "n": "m + 1"}), "'n' can't be set to 'm \\+ 1'.*named m"),
        (lambda: table.update(where="true", set={"n": '"s"'}), "'n' can't be set.*is text.*Write `s` for the column"),
        (lambda: table.update(where="id = 0", set={"n": "n + 2147483647 + 1"}), "'n' can't be.*a value of int32"),
        (lambda: table.update(where="id = 0", set={"v": "null"}), "'v' can't be set"),
        (lambda: table.update(where="nope", set={"n": "1"}), "nope"),
    ]
    for call, message in refused:
        with pytest.raises(Invalid, match=message) as raised:
            call()
        assert raised.value.where["table"] == table.uri, message
    assert rows_of(table) == before
    assert everywhere.rows.num_rows == 4


def token_lacks(table: Table, token: str, key: int) -> bool:
    """Whether the key is in another region than the rows of the token."""
    return table.get([key], with_token=True).token != token


def test_an_error_of_the_function_reaches_the_caller_and_names_the_other_regions(tmp_path: Path) -> None:
    table = make(tmp_path, *map(row, range(4)), regions="bucket(id, 2)")

    def fn(current: pa.Table) -> Any:
        if 0 in current["id"].to_pylist():
            raise ZeroDivisionError
        return add(1)(current)

    with pytest.raises(ZeroDivisionError) as raised:
        table.transact(range(4), fn)

    changed = [one for one in rows_of(table) if one["n"]]
    assert 0 < len(changed) < 4
    assert "These regions have their rows" in raised.value.__notes__[0]


def test_rows_are_read_from_a_new_view_if_the_log_was_collected(tmp_path: Path) -> None:
    table = make(tmp_path, row(1), row(2))
    (region,) = table.list_regions()
    views: list[int] = []

    def read_view() -> ViewedRows:
        views.append(1)
        return ViewedRows(rows=table.get([1, 2]), end=region.head())

    rows = RowsAtHead(region, table.config.schema, read_view=read_view, select=lambda live: live.slice(0, 0))
    before = region.head()
    assert len(rows.at(before) or ()) == 2
    table.delete([2])
    table.run(engine="inprocess")
    for _ in range(2):
        table.collect(yes=True, interval_seconds=0)
    table.delete([1])
    assert region.head().first_position > 2

    assert rows.at(before) is not None, "the last rows are as of this head"
    assert len(rows.at(region.head()) or ()) == 0
    assert rows.at(before) is None
    assert len(views) == 2


def test_entries_that_do_not_add_up_change_nothing(tmp_path: Path) -> None:
    table = make(tmp_path, row(1))
    (region,) = table.list_regions()
    viewed = ViewedRows(rows=table.get([1]), end=region.head())
    rows = RowsAtHead(region, table.config.schema, viewed=viewed, read_view=lambda: viewed, select=lambda live: live)
    table.upsert([row(1, 5)])
    head = region.head()
    wrong = type(head)(
        **{name: getattr(head, name) for name in head.__slots__} | {"entry_setsum": viewed.end.entry_setsum}
    )

    with pytest.raises(Corrupt):
        rows.at(wrong)

    found = rows.at(head)
    assert found is not None
    assert found["n"].to_pylist() == [5]


# What they cost, and who may


CALLS: dict[str, Callable[[Table], Any]] = {
    "transact": lambda table: table.transact([1], add(1)),
    "update": lambda table: table.update(where="id = 1", set={"n": "n + 1"}),
    "delete": lambda table: table.delete(where="id > 5"),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_repeated_call_reads_one_head_and_one_entry(tmp_path: Path, name: str) -> None:
    writing = make(tmp_path, row(1))
    for number in range(5):
        writing.upsert([row(2, number)])
    plan = FaultPlan()
    table = lancelsm.open.on(faulty(plan))(writing.uri)
    CALLS["transact"](table)
    CALLS[name](table)
    table.get([1])
    table.upsert([row(7)])
    plan.calls.clear()

    CALLS[name](table)

    found = Counter(f"{call.port}.{call.method}" for call in plan.calls if call.method != "list")
    assert found == {"registry.read": 1, "objects.get": 1, "objects.create": 1, "registry.swap": 1}


def test_each_newer_entry_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = make(tmp_path, row(1))
    (region,) = table.list_regions()
    schema, end = table.config.schema, region.head()
    viewed = ViewedRows(rows=table.get([1]), end=end)
    rows = RowsAtHead(region, schema, viewed=viewed, read_view=lambda: viewed, select=lambda live: live)
    unchanged = Unchanged(region, schema, table.get([1]), since=point_of(end))
    read: list[int] = []
    for module in (rows_at_head, read_token):
        between = module.entries_between
        monkeypatch.setattr(
            module, "entries_between", lambda *a, _b=between, **o: read.append(o["first"]) or _b(*a, **o)
        )

    for _ in range(2):
        table.upsert([row(2)])
        assert rows.at(region.head()) is not None
        assert unchanged.at(region.head())

    assert read == [2, 2, 3, 3]


def test_a_region_of_another_owner_refuses_a_transaction(tmp_path: Path) -> None:
    table = make(tmp_path, row(1))
    calls: list[int] = []
    with lancelsm.open(table.uri).writer(exclusive=True) as writer:
        writer.upsert([row(1, 5)])
        with pytest.raises(Fenced, match="held by"):
            table.transact([1], lambda current: calls.append(1))

    assert calls == []
