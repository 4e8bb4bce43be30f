"""Conditions: what is refused and where, and that each value of each type selects the same rows at every level."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lancelsm
from lancelsm.dataset.conditions import read_condition
from lancelsm.errors import Invalid
from lancelsm.table import Table
from lancelsm.wal import slot

COLUMNS = pa.schema([("id", pa.int64()), ("state", pa.string()), ("d", pa.date32()), ("dec", pa.decimal128(10, 2))])
ROWS = [{"id": number, "state": "old", "d": None, "dec": None} for number in range(10)]

REFUSED = {
    "id >= 0 LIMIT 1": (9, "'LIMIT 1' follows a complete condition"),
    "id >= 0 ORDER BY id LIMIT 2": (9, "follows a complete condition"),
    "id >= 0 GROUP BY id HAVING id = 3": (9, "follows a complete condition"),
    "id >= 0 UNION SELECT 2": (9, "follows a complete condition"),
    "id >= 5 QUALIFY id = 7": (9, "follows a complete condition"),
    "id >= 0 FOR UPDATE": (9, "follows a complete condition"),
    "id >= 0 WINDOW w AS (PARTITION BY id)": (9, "follows a complete condition"),
    "id>=0 FETCH FIRST 1 ROWS ONLY": (7, "follows a complete condition"),
    "state = 'LIMIT' LIMIT 1": (17, "follows a complete condition"),
    "id >= 0; DROP TABLE t": (8, "';' has no meaning"),
    "id >= 0) OR (id < 0": (8, "closes none"),
    "id >= 0) LIMIT (1": (8, "closes none"),
    "(id = 1": (1, "is not closed"),
    "id = ?": (6, "placeholders"),
    "id = $1": (6, "placeholders"),
    "id = :x": (6, "placeholders"),
    "state = $$x$$": (9, "placeholders"),
    "state = N'x'": (9, "is not supported"),
    "state = 'x": (9, "does not end"),
    "id = 1 /* ": (8, "does not end"),
    "id = 1\x00": (7, "has no meaning"),
    "_rowid = 0": (1, "belongs to Lance"),
    "id = 1 AND `_rowaddr` < 3": (12, "belongs to Lance"),
    "_ROWOFFSET = 1": (1, "belongs to Lance"),
    "_row_created_at_version > 1": (1, "belongs to Lance"),
    "d = 'yesterday'": (5, "is not a value of column 'd'"),
    "dec = 12.345": (7, "is not a value of column 'dec'"),
}


@pytest.mark.parametrize("text", REFUSED)
def test_a_condition_with_more_than_a_condition_is_refused_with_the_position(text: str) -> None:
    position, why = REFUSED[text]
    with pytest.raises(Invalid) as raised:
        read_condition(text, columns=COLUMNS, table="t")

    assert f"position {position}: " in raised.value.message
    assert why in raised.value.message
    assert raised.value.where["table"] == "t"


@pytest.mark.parametrize(
    "text",
    ["\"state\" = 'old'", "\"State\" <> 'old'", "id = 1 AND \"stat\" <> 'x'", '"stat" IS NULL', "\"stat\" IN ('x')"],
)
def test_a_column_name_in_double_quotes_is_refused_since_lance_reads_text(text: str) -> None:
    with pytest.raises(Invalid, match="is text in a condition, not a column"):
        read_condition(text, columns=COLUMNS, table="t")


@pytest.mark.parametrize("text", ['state = "old"', '"old" = state', 'state IN ("old")'])
def test_text_in_double_quotes_is_text(text: str) -> None:
    assert read_condition(text, columns=COLUMNS, table="t")


@pytest.mark.parametrize("level", ["log", "base"])
def test_a_refused_condition_deletes_nothing(tmp_path: Path, level: str) -> None:
    table = lancelsm.create(tmp_path / "t", ROWS if level == "base" else COLUMNS, primary_key="id")
    if level == "log":
        table.upsert(ROWS)
    for text in REFUSED:
        with pytest.raises(Invalid):
            table.delete(where=text)

    assert table.scan().to_arrow().num_rows == len(ROWS)


@pytest.mark.parametrize("text", ["id = 1 -- one", "id = 1 /* ) LIMIT 1 */", "id = 1 -- )", "state = ') LIMIT (1'"])
def test_comments_and_text_may_hold_what_is_refused_elsewhere(text: str) -> None:
    assert read_condition(text, columns=COLUMNS, table="t").text == text


PIECES = [
    "'",
    '"',
    "`",
    "(",
    ")",
    "--",
    "/*",
    "*/",
    "\n",
    "\r",
    " LIMIT ",
    " OR ",
    "id",
    "= 1",
    "'a'",
    "''",
    "\\",
    "1",
    " ",
]


@given(pieces=st.lists(st.sampled_from(PIECES), max_size=12))
def test_no_text_leaves_the_condition_that_it_stands_in(pieces: list[str]) -> None:
    try:
        condition = read_condition("".join(["id = 1", *pieces]), columns=COLUMNS, table="t")
    except Invalid:
        return
    rows = lance.write_dataset(pa.table({name: [None] for name in COLUMNS.names}, schema=COLUMNS), "memory://rows")

    rows.scanner(filter=f"({condition.sql} AND true)").explain_plan()


INSTANT = dt.datetime(2000, 1, 27, 1, 2, 3, 4, tzinfo=dt.UTC)
MIDNIGHT, OLD = (dt.datetime.fromisoformat(text) for text in ("2000-01-27", "1969-01-01"))
# Per type: two values as Arrow takes them, and the first one as literals of a condition.
VALUES: dict[pa.DataType, tuple[Any, Any, list[str]]] = {
    pa.bool_(): (True, False, ["true"]),
    pa.int8(): (-128, 1, ["-128"]),
    pa.int16(): (-(2**15), 1, [str(-(2**15))]),
    pa.int32(): (-(2**31), 1, [str(-(2**31))]),
    pa.int64(): (-(2**63), 1, [str(-(2**63))]),
    pa.uint8(): (255, 1, ["255"]),
    pa.uint16(): (2**16 - 1, 1, [str(2**16 - 1)]),
    pa.uint32(): (2**32 - 1, 1, [str(2**32 - 1)]),
    pa.uint64(): (2**64 - 1, 1, [str(2**64 - 1)]),
    pa.float16(): (1.5, 2.0, ["1.5"]),
    pa.float32(): (0.1, 2.0, ["0.1"]),
    pa.float64(): (float("inf"), float("nan"), ["'Infinity'"]),
    pa.string(): ("it's", "b", ["'it''s'"]),
    pa.large_string(): ("it's", "b", ["'it''s'"]),
    pa.binary(): (b"ab", b"c", ["X'6162'"]),
    pa.large_binary(): (b"ab", b"c", ["X'6162'"]),
    pa.binary(2): (b"ab", b"cd", ["X'6162'"]),
    pa.date32(): (dt.date(2000, 1, 27), dt.date(1969, 1, 1), ["'2000-01-27'", "date '2000-01-27'"]),
    pa.date64(): (dt.date(2000, 1, 27), dt.date(1969, 1, 1), ["'2000-01-27'"]),
    pa.timestamp("s"): (MIDNIGHT, OLD, ["'2000-01-27T00:00:00'", "'2000-01-27'"]),
    pa.timestamp("us"): (INSTANT.replace(tzinfo=None), OLD, ["'2000-01-27T01:02:03.000004'"]),
    pa.timestamp("ns"): (1, 2, ["'1970-01-01T00:00:00.000000001'"]),
    pa.timestamp("us", "UTC"): (INSTANT, INSTANT.replace(year=1969), ["'2000-01-27T01:02:03.000004Z'"]),
    pa.timestamp("us", "Europe/Berlin"): (INSTANT, INSTANT.replace(year=1969), ["'2000-01-27T02:02:03.000004+01:00'"]),
    pa.time32("s"): (dt.time(1, 2, 3), dt.time(0), ["'01:02:03'"]),
    pa.time32("ms"): (dt.time(1, 2, 3, 4000), dt.time(0), ["'01:02:03.004'"]),
    pa.time64("us"): (dt.time(1, 2, 3, 4), dt.time(0), ["'01:02:03.000004'"]),
    pa.time64("ns"): (dt.time(1, 2, 3, 4), dt.time(0), ["'01:02:03.000004'"]),
    pa.duration("ms"): (dt.timedelta(seconds=5), dt.timedelta(0), ["5000", "'5000'"]),
    pa.duration("ns"): (dt.timedelta(seconds=-5), dt.timedelta(0), ["-5000000000"]),
    pa.decimal128(10, 2): (Decimal("-12.34"), Decimal(0), ["-12.34", "'-12.34'"]),
    pa.decimal128(38, 10): (
        Decimal("1234567890123456789012345678.0123456789"),
        Decimal(1),
        ["1234567890123456789012345678.0123456789"],
    ),
    pa.decimal256(50, 2): (Decimal("12.34"), Decimal(1), ["12.34"]),
}


def at_each_level(place: Path, kind: pa.DataType) -> dict[str, Table]:
    """Three rows at each level: the first value, the second, and null."""
    first, second, _ = VALUES[kind]
    nested = pa.struct([("v", kind)])
    values = pa.array([first, second, None], kind)
    rows = pa.table(
        {"id": [1, 2, 3], "v": values, "st": pa.StructArray.from_arrays([values], fields=list(nested))},
        schema=pa.schema([("id", pa.int64()), ("v", kind), ("st", nested)]),
    )
    tables = {}
    for level in ("log", "generation", "base"):
        tables[level] = lancelsm.create(place / level, rows if level == "base" else rows.schema, primary_key="id")
        if level != "base":
            tables[level].upsert(rows)
        if level == "generation":
            tables[level].flush()
    return tables


@pytest.mark.one_case
@pytest.mark.parametrize("kind", VALUES, ids=str)
def test_a_condition_on_any_value_selects_the_same_rows_at_every_level(kind: pa.DataType, tmp_path: Path) -> None:
    tables = at_each_level(tmp_path, kind)
    for literal in VALUES[kind][2]:
        for where, wanted in {
            f"v = {literal}": [1],
            f"{literal} = v": [1],
            f"st.v = {literal}": [1],
            f"v <> {literal}": [2],
            f"NOT v = {literal}": [2],
            f"v IN ({literal})": [1],
            f"v NOT IN ({literal}, {literal})": [2],
            f"v >= {literal} AND v <= {literal}": [1],
            f"v BETWEEN {literal} AND {literal} AND id < 9": [1],
            f"(v = {literal}) OR v IS NULL": [1, 3],
        }.items():
            if pa.types.is_boolean(kind) and "BETWEEN" in where:
                continue
            found = {
                level: sorted(table.scan(where=where).to_arrow()["id"].to_pylist()) for level, table in tables.items()
            }
            assert found == dict.fromkeys(tables, wanted), where


def rivals(place: Path, monkeypatch: pytest.MonkeyPatch, *writes: Any) -> Table:
    """A table whose next put of an entry comes after these writes of another handle."""
    rows = [{"id": number, "state": "old"} for number in range(8)]
    rival = lancelsm.create(place / "t", rows[:4], primary_key="id")
    rival.upsert(rows[4:])
    waiting = list(writes)
    put = slot.put_entry

    def late(*arguments: Any, **more: Any) -> Any:
        if waiting:
            write = waiting.pop(0)
            with monkeypatch.context() as patch:
                patch.setattr(slot, "put_entry", put)
                write(rival)
        return put(*arguments, **more)

    table = lancelsm.open(place / "t")
    monkeypatch.setattr(slot, "put_entry", late)
    return table


def states(table: Table) -> dict[int, str]:
    return {row["id"]: row["state"] for row in table.scan().to_arrow().to_pylist()}


def test_a_row_that_changes_before_the_entry_of_a_delete_is_checked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = rivals(
        tmp_path,
        monkeypatch,
        lambda rival: rival.upsert([{"id": 1, "state": "paid"}, {"id": 6, "state": "paid"}]),
        lambda rival: rival.upsert([{"id": 9, "state": "old"}, {"id": 6, "state": "old"}, {"id": 2, "state": "paid"}]),
        lambda rival: rival.delete([3]),
    )

    deleted = table.delete(where="state = 'old'")

    table.flush()  # compares the rows of each entry with their sum
    assert states(table) == {1: "paid", 2: "paid"}
    assert deleted.rows == 6  # 0, 4, 5, 6, 7 and 9; another handle deleted 3


def test_a_delete_that_no_row_matches_any_more_appends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = rivals(tmp_path, monkeypatch, lambda rival: rival.upsert([{"id": 1, "state": "paid"}]))

    deleted = table.delete(where="id = 1 AND state = 'old'")

    assert (deleted.rows, deleted.entries, states(table)[1]) == (0, (), "paid")
