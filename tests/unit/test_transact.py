"""Transactions and conditional writes: what `fn` sees, what is written, and what a caller gets when it can't be."""

from __future__ import annotations

import base64
import datetime as dt
import decimal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lancelsm
from lancelsm import Edits
from lancelsm.common.layout import Position, TableId
from lancelsm.common.setsum import Setsum
from lancelsm.errors import Contended, Corrupt, Fenced, Invalid
from lancelsm.read.transact import read_token, rows_at_head
from lancelsm.read.transact.read_token import Unchanged, decode_token, encode_token, mark_of
from lancelsm.read.transact.rows_at_head import RowsAtHead, ViewedRows
from lancelsm.table import Table
from tests.simulation.faults import FakeClock, FaultPlan
from tests.unit.tables import faulty

COLUMNS = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("n", pa.int32()),
        pa.field("s", pa.dictionary(pa.int32(), pa.string())),
        pa.field("v", pa.list_(pa.float32(), 2), nullable=False),
    ]
)
V = [0.5, 1.5]


def row(key: int, n: int | None = 0, s: str | None = "a", v: list[float] = V) -> dict[str, Any]:
    return {"id": key, "n": n, "s": s, "v": v}


def make(path: Path, *rows: dict[str, Any], regions: str | None = None) -> Table:
    table = lancelsm.create(path / "table", COLUMNS, primary_key="id", regions=regions)
    table.upsert(list(rows))
    return table


def rows_of(table: Table) -> list[dict[str, Any]]:
    return sorted(table.scan().to_arrow().to_pylist(), key=lambda one: int(one["id"]))


def add(number: int) -> Callable[[pa.Table], list[dict[str, Any]]]:
    return lambda current: [{**one, "n": one["n"] + number} for one in current.to_pylist()]


# Transactions


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
    table = lancelsm.open(writing.uri, ports=faulty(FaultPlan(), clock=clock))
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
    regions = {region.id for region in table.regions()}
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


@pytest.mark.parametrize("nothing", [None, [], Edits()], ids=repr)
def test_no_change_writes_nothing(tmp_path: Path, nothing: Any) -> None:
    table = make(tmp_path, row(1))
    head = table.regions()[0].head()

    done = table.transact([1, 2], lambda current: nothing)

    assert (done.rows, done.entries) == (0, ())
    assert table.regions()[0].head() == head


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
        (lambda: table.transact(range(4), lambda current: None, atomic=True), "the keys are in 2 regions"),
        (lambda: table.transact([0], lambda current: table.delete([0])), "can't write to the table"),
        (lambda: table.transact([0], "n + 1"), "fn is a str"),
        (lambda: table.update(where="true", set={"n": "sum(n)"}), "'n' can't be set to 'sum\\(n\\)': an aggregate"),
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
        (lambda: table.upsert([row(0)], if_unchanged=home), "of another table"),
        (lambda: table.upsert([row(foreign)], if_unchanged=token), "of other regions"),
        (lambda: table.update(where="true", set={}), "needs a column to set"),
        (lambda: table.update(where="true", set={"id": "1"}), "is a key column"),
        (lambda: table.update(where="true", set={"m": "1"}), "no column 'm'"),
        (lambda: table.update(where="true", set={"n": "1 LIMIT 1"}), "'n' can't be set to '1 LIMIT 1'"),
        (lambda: table.update(where="true", set={"n": "1, 2"}), "'n' can't be set"),
        (lambda: table.update(where="true", set={"s": "'x'", "n": "m + 1"}), "'n' can't be set to 'm \\+ 1'.*named m"),
        (lambda: table.update(where="true", set={"n": '"s"'}), "'n' can't be set.*is text"),
        (lambda: table.update(where="id = 0", set={"n": "n + 2147483647 + 1"}), "'n' can't be set"),
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
    (region,) = table.regions()
    views: list[int] = []

    def read_view() -> ViewedRows:
        views.append(1)
        return ViewedRows(rows=table.get([1, 2]), end=region.head())

    rows = RowsAtHead(region, table.config.schema, read_view=read_view, belong=lambda live: live.slice(0, 0))
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
    (region,) = table.regions()
    viewed = ViewedRows(rows=table.get([1]), end=region.head())
    rows = RowsAtHead(region, table.config.schema, viewed=viewed, read_view=lambda: viewed, belong=lambda live: live)
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


# Conditional and partial upserts


def test_if_absent_writes_only_keys_without_a_row(tmp_path: Path) -> None:
    table = make(tmp_path, row(1), row(2))
    table.delete([2])

    done = table.upsert([row(1, 5), row(2, 4), row(2, 5), row(3, 5)], if_absent=True)

    assert (done.rows, done.skipped) == (2, 1)
    assert rows_of(table) == [row(1), row(2, 5), row(3, 5)]


@pytest.mark.parametrize(
    ("kind", "low", "high"),
    [
        (pa.int64(), -1, 2),
        (pa.float64(), 0.5, 1.5),
        (pa.string(), "B", "a"),
        (pa.dictionary(pa.int32(), pa.string()), "a", "b"),
        (pa.timestamp("us", "UTC"), 1, 2),
        (pa.decimal128(9, 2), 1, 2),
    ],
    ids=str,
)
def test_if_newer_writes_only_greater_values(tmp_path: Path, kind: pa.DataType, low: Any, high: Any) -> None:
    columns = pa.schema([pa.field("id", pa.int64()), pa.field("at", kind), pa.field("given", pa.int64())])
    table = lancelsm.create(tmp_path / "table", columns, primary_key="id")
    values = [None, low, high]
    every = [(before, now) for before in values for now in values]

    def rows(number: int, chosen: list[Any]) -> pa.Table:
        at = pa.array(chosen, pa.string() if "dictionary" in str(kind) else kind).cast(kind)
        return pa.table([list(range(len(chosen))), at, [number] * len(chosen)], schema=columns)

    table.upsert(rows(1, [before for before, _ in every]))

    done = table.upsert(rows(2, [now for _, now in every] + [None]), if_newer="at")

    rank = {value: number for number, value in enumerate(values)}
    wanted = [2 if rank[now] > rank[before] else 1 for before, now in every] + [2]
    assert [one["given"] for one in rows_of(table)] == wanted
    assert (done.rows, done.skipped) == (wanted.count(2), wanted.count(1))


def test_not_a_number_is_older_than_every_number(tmp_path: Path) -> None:
    columns = pa.schema([pa.field("id", pa.int64()), pa.field("at", pa.float64())])
    table = lancelsm.create(tmp_path / "table", columns, primary_key="id")
    table.upsert([{"id": 1, "at": float("nan")}, {"id": 2, "at": 1.0}])

    done = table.upsert([{"id": 1, "at": 1.0}, {"id": 2, "at": float("nan")}], if_newer="at")

    assert (done.rows, done.skipped) == (1, 1)
    assert [one["at"] for one in rows_of(table)] == [1.0, 1.0]


def test_a_partial_upsert_keeps_what_it_leaves_out(tmp_path: Path) -> None:
    table = make(tmp_path, row(1, 1), row(2, 2, None))

    table.upsert([{"id": 1, "s": "x"}, {"s": "y", "id": 2}, {"id": 1, "s": "z"}], partial=True)
    table.upsert({"id": [2, 3], "v": [[7.0, 7.0], [8.0, 8.0]]}, partial=True)

    assert rows_of(table) == [row(1, 1, "z"), row(2, 2, "y", [7.0, 7.0]), row(3, None, None, [8.0, 8.0])]
    done = table.upsert([{"id": 1, "n": 1}, {"id": 2, "n": 3}], partial=True, if_newer="n")
    assert (done.rows, done.skipped) == (1, 1)
    done = table.upsert([{"id": 1, "v": V}, {"id": 9, "v": V}], partial=True, if_absent=True)
    assert (done.rows, done.skipped) == (1, 1)
    assert rows_of(table)[1:] == [row(2, 3, "y", [7.0, 7.0]), row(3, None, None, [8.0, 8.0]), row(9, None, None)]


# Tokens


def test_a_token_holds_until_one_of_the_keys_is_written(tmp_path: Path) -> None:
    table = make(tmp_path, row(1), row(2))
    read = table.get([1, 2, 3], with_token=True)
    assert len(read.rows) == 2
    lancelsm.open(table.uri).upsert([row(4)])

    table.upsert([row(1, 1), row(3, 1)], if_unchanged=read.token)

    for changed in (row(1, 2), row(3, 2)):
        with pytest.raises(Contended, match="was written since it was read"):
            table.upsert([row(2, 2), changed], if_unchanged=read.token)
    table.upsert([{"id": 2, "s": "x"}], if_unchanged=read.token, partial=True)
    with pytest.raises(Contended, match="was written since it was read"):
        table.upsert([row(2, 2)], if_unchanged=read.token)
    assert rows_of(table) == [row(1, 1), row(2, 0, "x"), row(3, 1), row(4)]


def test_a_token_of_a_region_that_did_not_exist_sees_its_first_entry(tmp_path: Path) -> None:
    table = lancelsm.create(tmp_path / "table", COLUMNS, primary_key="id", regions="identity(id)")
    read = table.get([1], with_token=True)
    table.upsert([row(1)], if_unchanged=read.token)

    with pytest.raises(Contended):
        table.upsert([row(1)], if_unchanged=read.token)


def test_a_token_is_refused_when_its_log_was_collected(tmp_path: Path) -> None:
    table = make(tmp_path, row(1))
    read = table.get([2], with_token=True)
    table.upsert([row(3)])
    table.run(engine="inprocess")
    for _ in range(2):
        table.collect(yes=True, interval_seconds=0)
    table.upsert([row(4)])
    assert table.regions()[0].head().first_position > 2

    with pytest.raises(Contended, match="the log was collected"):
        table.upsert([row(2)], if_unchanged=read.token)


@pytest.mark.parametrize(
    "text",
    [
        *("", "é", "!!!!", "[]", "{}", "[" * 100_000),
        '{"table": 1, "regions": []}',
        '{"table": "t", "regions": {"r": [0, "' + "0" * 32 + '"]}}',
        '{"table": "t", "regions": {"r": [1, "x"]}}',
        '{"table": "t", "regions": {"r": [true]}}',
    ],
    ids=lambda text: text[:40],
)
def test_text_that_is_no_token_is_refused(text: str) -> None:
    for token in (text, base64.urlsafe_b64encode(text.encode()).decode()):
        with pytest.raises(Invalid, match="is not the token of a read"):
            decode_token(token, table=TableId("t"))


def test_a_token_that_is_not_of_this_log_is_refused(tmp_path: Path) -> None:
    table = make(tmp_path, row(1))
    (region,) = table.regions()
    position, total = mark_of(region.head())
    other_log, later = (position, Setsum.of_item(b"other")), (Position(position + 1), total)

    with pytest.raises(Contended, match="not the one that was read"):
        table.upsert([row(1, 1)], if_unchanged=encode_token(table.config.table, {region.id: other_log}))
    with pytest.raises(Invalid, match="after the end of the log"):
        table.upsert([row(1, 1)], if_unchanged=encode_token(table.config.table, {region.id: later}))

    assert rows_of(table) == [row(1)]


# Updates


def test_an_update_changes_what_matches_right_before_its_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = make(tmp_path, row(1, 1), row(2, 2), row(3, 3), row(4, 4), regions="bucket(id, 2)")
    other = lancelsm.open(table.uri)
    append = table._append

    def slowly(*rows: Any, **options: Any) -> Any:
        other.upsert([row(1, 0), row(5, 9), row(2, 7)])
        other.delete([3])
        return append(*rows, **options)

    monkeypatch.setattr(table, "_append", slowly)
    done = table.update(where="n >= 2", set={"n": "n + id", "s": "concat(s, 'x')"})

    assert rows_of(table) == [row(1, 0), row(2, 9, "ax"), row(4, 8, "ax"), row(5, 14, "ax")]
    assert done.rows == 3


def test_an_update_sees_old_values_and_converts_what_fits(tmp_path: Path) -> None:
    table = make(tmp_path, row(1, 1), row(2, None))

    table.update(where="true", set={"n": "coalesce(n, 5) + 1", "s": "cast(n as string)"})

    assert rows_of(table) == [row(1, 2, "1"), row(2, 6, None)]
    assert table.update(where="n > 100", set={"n": "0"}).entries == ()
    with pytest.raises(Invalid, match="column 'n' can't be set"):
        table.update(where="id = 1", set={"n": "n + 2147483647"})  # it does not wrap around


def test_a_literal_is_read_as_in_json_rows(tmp_path: Path) -> None:
    columns = pa.schema(
        [pa.field("id", pa.int64()), ("du", pa.duration("s")), ("dec", pa.decimal128(9, 2)), ("at", pa.timestamp("s"))]
    )
    table = lancelsm.create(tmp_path / "table", columns, primary_key="id")
    table.upsert([{"id": 1, "du": None, "dec": None, "at": None}])

    table.update(where="id = 1", set={"du": "'5'", "dec": "1.25", "at": "'2024-01-01T00:00:00'"})

    (found,) = rows_of(table)
    assert (found["du"], found["dec"]) == (dt.timedelta(seconds=5), decimal.Decimal("1.25"))
    assert found["at"].isoformat() == "2024-01-01T00:00:00"
    for column, text in (("du", "'x'"), ("dec", "1.255"), ("du", "concat('a', 'b')")):
        with pytest.raises(Invalid, match=f"column '{column}' can't be set to"):
            table.update(where="false", set={column: text})


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
    table = lancelsm.open(writing.uri, ports=faulty(plan))
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
    (region,) = table.regions()
    schema, end = table.config.schema, region.head()
    viewed = ViewedRows(rows=table.get([1]), end=end)
    rows = RowsAtHead(region, schema, viewed=viewed, read_view=lambda: viewed, belong=lambda live: live)
    unchanged = Unchanged(region, schema, table.get([1]), since=mark_of(end))
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
