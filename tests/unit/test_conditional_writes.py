"""Conditional and partial upserts, tokens and updates: which rows are written, with which values."""

from __future__ import annotations

import base64
import datetime as dt
import decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lancelsm
from lancelsm.common.layout import Position, TableId
from lancelsm.common.setsum import Setsum
from lancelsm.errors import Contended, Invalid
from lancelsm.read.transact.read_token import decode_token, encode_token, point_of
from tests.unit.transact_tables import COLUMNS, V, make, row, rows_of

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
        (pa.decimal128(5, -2), decimal.Decimal(100), decimal.Decimal(200)),
        (pa.decimal256(70, -10), decimal.Decimal("1E+50"), decimal.Decimal("2E+50")),
        (pa.float16(), 0.5, 1.5),
    ],
    ids=str,
)
def test_if_newer_writes_only_greater_values(tmp_path: Path, kind: pa.DataType, low: Any, high: Any) -> None:
    columns = pa.schema([pa.field("id", pa.int64()), pa.field("at", kind), pa.field("given", pa.int64())])
    table = lancelsm.create(tmp_path / "table", columns, primary_key="id")
    values = [None, low, high]
    every = [(before, now) for before in values for now in values]

    def rows(number: int, chosen: list[Any]) -> pa.Table:
        plain = pa.string() if pa.types.is_dictionary(kind) else pa.float32() if pa.types.is_float16(kind) else kind
        at = pa.array(chosen, plain).cast(kind)
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
    assert table.list_regions()[0].head().first_position > 2

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
    (region,) = table.list_regions()
    position, total = point_of(region.head())
    other_log, later = (position, Setsum.of_item(b"other")), (Position(position + 1), total)

    with pytest.raises(Contended, match="not the one that was read"):
        table.upsert([row(1, 1)], if_unchanged=encode_token(table.config.table, {region.id: other_log}))
    with pytest.raises(Invalid, match="past the end of the log"):
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
    refused = (("du", "'x'"), ("dec", "1.255"), ("du", "concat('a', 'b')"), ("at", "2024-01-31"), ("at", "id"))
    for column, text in refused:
        with pytest.raises(Invalid, match=f"column '{column}' can't be set to"):
            table.update(where="false", set={column: text})
