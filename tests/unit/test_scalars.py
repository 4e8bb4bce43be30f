"""Values that programs have, of numpy, pandas, enums and so on: exact ones are accepted, all others are `Invalid`."""

from __future__ import annotations

import datetime as dt
import enum
import uuid
import zoneinfo
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import lancelsm
from lancelsm.errors import Invalid
from lancelsm.record.schema import TableSchema
from lancelsm.record.single_rows import SingleRows
from lancelsm.record.values import column, json_column

REFUSED = object()
S, US, NS = (pa.timestamp(unit) for unit in ("s", "us", "ns"))
UTC = pa.timestamp("us", "UTC")
DAY = np.datetime64("2020-01-02")
SECOND = np.datetime64("2020-01-02T03:04:05")
MICRO = np.datetime64("2020-01-02T03:04:05.000006")
NANO = np.datetime64("2020-01-02T03:04:05.000000007")
MONEY = pa.decimal128(10, 2)

time = dt.datetime.fromisoformat


class State(enum.Enum):
    PAID = "paid"
    NUMBER = 7
    KEY = uuid.UUID(int=5)
    INNER = SECOND


class Word(enum.StrEnum):
    PAID = "paid"


class Name(str, enum.Enum):  # noqa: UP042 - another class: its members are formatted as `Name.TABLE`
    TABLE = "orders"
    KEY = "id"
    SNAPSHOT = "monday"


class Level(enum.IntEnum):
    HIGH = 3


class Rights(enum.IntFlag):
    READ = 1
    WRITE = 2


class Moment(dt.datetime):
    """As the datetimes of pendulum."""


KEY = uuid.UUID(int=5)
LOCAL = Moment(2020, 7, 2, 3, 4, 5, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin"))

CASES: list[tuple[Any, pa.DataType, Any]] = [
    (State.PAID, pa.string(), "paid"),
    (State.PAID, pa.dictionary(pa.int8(), pa.string()), "paid"),
    (State.PAID, pa.int64(), REFUSED),
    (State.NUMBER, pa.int8(), 7),
    (State.NUMBER, pa.string(), REFUSED),
    (State.KEY, pa.large_string(), str(KEY)),
    (State.INNER, S, time("2020-01-02T03:04:05")),
    (Word.PAID, pa.string(), "paid"),
    (Word.PAID, pa.binary(), REFUSED),
    (Level.HIGH, pa.uint8(), 3),
    (Level.HIGH, MONEY, Decimal(3)),
    (Rights.READ | Rights.WRITE, pa.int64(), 3),
    (KEY, pa.string(), str(KEY)),
    (KEY, pa.binary(), KEY.bytes),
    (KEY, pa.uuid(), KEY),
    (KEY, pa.int64(), REFUSED),
    (PurePosixPath("/a/b"), pa.string(), "/a/b"),
    (PurePosixPath("/a/b"), pa.binary(), REFUSED),
    (PurePosixPath("/a/\udc80"), pa.string(), REFUSED),
    (Decimal("1.5"), MONEY, Decimal("1.50")),
    (Decimal(3), pa.int64(), REFUSED),
    (Decimal("1.5"), pa.float64(), REFUSED),
    (Moment(2020, 1, 2), US, time("2020-01-02")),
    (Moment(2020, 1, 2), UTC, REFUSED),
    (LOCAL, UTC, dt.datetime(2020, 7, 2, 1, 4, 5, tzinfo=dt.UTC)),
    (LOCAL, US, REFUSED),
    (pa.scalar(3), pa.int8(), 3),
    (pa.scalar("3"), pa.int8(), REFUSED),
    (pa.scalar(None, pa.string()), pa.string(), None),
    (pa.scalar(1 << 60, S), S, REFUSED),
    (np.bool_(True), pa.bool_(), True),
    (np.bool_(True), pa.int64(), REFUSED),
    (np.bool_(True), MONEY, REFUSED),
    (np.int8(-3), pa.uint8(), REFUSED),
    (np.uint64(2**64 - 1), pa.uint64(), 2**64 - 1),
    (np.uint64(2**64 - 1), pa.int64(), REFUSED),
    (np.int64(-7), MONEY, Decimal("-7.00")),
    (np.uint8(7), pa.decimal256(40, 0), Decimal(7)),
    (np.uint64(2**63), pa.decimal128(20, 0), Decimal(2**63)),
    (np.int64(2**62), MONEY, REFUSED),
    (np.float64(1.5), MONEY, REFUSED),
    (np.float16(1.5), pa.float64(), 1.5),
    (np.longdouble(1.5), pa.float64(), 1.5),
    (np.longdouble(1) / 3, pa.float64(), REFUSED),
    (np.float64(1.0), pa.int64(), REFUSED),
    (np.complex128(1), pa.float64(), REFUSED),
    (np.str_("text"), pa.string(), "text"),
    (np.bytes_(b"ab"), pa.binary(), b"ab"),
    (np.void(b"ab"), pa.binary(2), b"ab"),
    (np.void(b"ab"), pa.string(), REFUSED),
    (np.array(5), pa.int64(), 5),
    (np.array([5]), pa.int64(), REFUSED),
    (DAY, pa.date32(), dt.date(2020, 1, 2)),
    (DAY, US, time("2020-01-02")),
    (SECOND, pa.date32(), REFUSED),
    (SECOND, S, time("2020-01-02T03:04:05")),
    (SECOND, pa.int64(), REFUSED),
    (SECOND, pa.string(), REFUSED),
    (SECOND, pa.duration("us"), REFUSED),
    (SECOND, UTC, REFUSED),
    (MICRO, US, time("2020-01-02T03:04:05.000006")),
    (MICRO, S, REFUSED),
    (MICRO, NS, pd.Timestamp(MICRO)),
    (NANO, NS, pd.Timestamp(NANO)),
    (NANO, US, REFUSED),
    (np.datetime64(2**62, "s"), US, REFUSED),
    (np.datetime64("2020-01"), pa.date32(), REFUSED),
    (np.datetime64(7, "25s"), S, time("1970-01-01T00:02:55")),
    (np.datetime64(3 * 10**9, "as"), NS, pd.Timestamp("1970-01-01 00:00:00.000000003")),
    (np.datetime64(1, "as"), NS, REFUSED),
    (np.timedelta64(5, "D"), pa.duration("s"), dt.timedelta(5)),
    (np.timedelta64(5, "ns"), pa.duration("ns"), pd.Timedelta(5, "ns")),
    (np.timedelta64(5, "ns"), pa.duration("us"), REFUSED),
    (np.timedelta64(5, "s"), pa.int64(), REFUSED),
    (np.timedelta64(1, "M"), pa.duration("s"), REFUSED),
    (np.timedelta64(5), pa.duration("s"), REFUSED),
    (pd.NA, pa.int64(), None),
    (pd.NA, pa.string(), None),
    (pd.NaT, NS, None),
    (pd.NaT, pa.time64("ns"), None),
    (pd.NaT, pa.int64(), REFUSED),
    (np.datetime64("NaT"), UTC, None),
    (np.datetime64("NaT"), pa.duration("s"), REFUSED),
    (np.timedelta64("NaT"), pa.duration("s"), None),
    (pd.Timestamp("2020-01-02 03:04:05"), S, time("2020-01-02T03:04:05")),
    (pd.Timestamp(NANO), US, REFUSED),
    (pd.Timestamp("2020-01-02", tz="UTC"), UTC, dt.datetime(2020, 1, 2, tzinfo=dt.UTC)),
    (pd.Timestamp("2020-01-02"), pa.date32(), REFUSED),
    (pd.Timedelta(5, "s"), pa.duration("ms"), dt.timedelta(seconds=5)),
    (pd.Period("2020-01"), pa.date32(), REFUSED),
]
WRAPPED: list[tuple[Callable[[Any], Any], Callable[[pa.DataType], pa.DataType]]] = [
    (lambda value: value, lambda kind: kind),
    (lambda value: {"in": value}, lambda kind: pa.struct([("in", kind)])),
    (lambda value: [None, value], pa.list_),
    (lambda value: [("key", value)], lambda kind: pa.map_(pa.string(), kind)),
]


@pytest.mark.parametrize(("value", "kind", "wanted"), CASES, ids=[str(number) for number, _ in enumerate(CASES)])
def test_a_scalar_is_exact_or_refused_at_every_level(value: Any, kind: pa.DataType, wanted: Any) -> None:
    for wrap, outer in WRAPPED:
        field = pa.field("column", outer(kind))
        if wanted is REFUSED:
            with pytest.raises(Invalid, match="column 'column', row 1: "):
                column([None, wrap(value)], field)
        else:
            assert column([None, wrap(value)], field).to_pylist() == [None, wrap(wanted)]


@pytest.mark.filterwarnings("ignore:Lance's own writer")
def test_scalars_are_rows_and_keys_of_every_call(tmp_path: Path) -> None:
    columns = [("at", US), ("n", pa.int64()), ("price", MONEY), ("day", pa.date32()), ("state", pa.string())]
    schema = pa.schema(columns)
    table = lancelsm.create(tmp_path / "table", schema, primary_key=["at", "n"])
    wanted = {"at": time("2020-01-02"), "n": 1, "price": Decimal(3), "day": dt.date(2020, 1, 2), "state": "paid"}
    row = {"at": DAY, "n": np.int64(1), "price": np.int64(3), "day": DAY, "state": State.PAID}

    table.upsert(row)
    table.upsert([{**row, "n": np.uint8(2), "price": pd.NA, "day": pd.NaT}])
    table.upsert(
        {"at": np.array([DAY]), "n": np.array([3]), "price": np.array([pd.NA], object), "day": [DAY], "state": [KEY]}
    )
    with table.writer() as writer:
        for number, state in enumerate((Word.PAID, Word.PAID, State.PAID, KEY, KEY, PurePosixPath("a")), 4):
            writer.submit({**row, "n": np.int64(number), "state": state})
        writer.delete([(DAY, Rights(8))])
        writer.delete((Moment(2020, 1, 2), np.int64(9)))

    assert table.get((DAY, np.int64(1))).to_pylist() == [wanted]
    assert table.get([(DAY, 2)]).to_pylist() == [{**wanted, "n": 2, "price": None, "day": None}]
    table.delete([(SECOND, 1), (DAY, np.int8(1)), (pd.Timestamp(DAY), 2)])
    states = {one["n"]: one["state"] for one in table.scan(columns=["n", "state"]).to_arrow().to_pylist()}
    assert states == {3: str(KEY), 4: "paid", 5: "paid", 6: "paid", 7: str(KEY)}
    assert table.get((DAY, Rights(4)), columns=["n"])["n"].to_pylist() == [4]
    with pytest.raises(Invalid, match="'at'"):
        table.get((pd.NaT, 1))


def test_times_of_numpy_are_taken_quickly_the_second_time() -> None:
    rows = SingleRows(TableSchema(columns=pa.schema([("id", US)]), primary_key=("id",)))

    assert isinstance(rows.take({"id": SECOND}), pa.Table)
    taken = rows.take({"id": MICRO})
    assert not isinstance(taken, pa.Table)
    ((_, table),) = rows.convert([taken])
    assert table["id"].to_pylist() == [time("2020-01-02T03:04:05.000006")]


def test_a_table_is_created_from_rows_with_scalars(tmp_path: Path) -> None:
    tags = {"tags": [State.PAID], "more": {"path": PurePosixPath("a")}}
    rows = [
        {"id": np.int64(1), "at": MICRO, "day": DAY, "n": pd.NA, **tags},
        {"id": 2, "at": pd.NaT, "day": None, "n": 7, **tags},
    ]

    table = lancelsm.create(tmp_path / "table", rows, primary_key="id")

    assert table.get(1).to_pylist() == [
        {"id": 1, "at": time("2020-01-02T03:04:05.000006"), "day": dt.date(2020, 1, 2), "n": None}
        | {"tags": ["paid"], "more": {"path": "a"}}
    ]


def test_a_value_of_no_type_names_its_column(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="column 'v'") as refused:
        lancelsm.create(tmp_path / "table", [{"id": 1, "v": object()}], primary_key="id")
    assert refused.value.where["field"] == "v"
    with pytest.raises(Invalid, match="UUIDs of rows are converted"):
        lancelsm.create(tmp_path / "table", [{"id": KEY}], primary_key="id")


@pytest.mark.parametrize("value", [KEY, Word.PAID, Level.HIGH])
def test_a_row_with_a_value_of_a_program_is_taken_quickly_the_second_time(value: Any) -> None:
    kind = pa.int64() if value is Level.HIGH else pa.string()
    rows = SingleRows(TableSchema(columns=pa.schema([("id", kind)]), primary_key=("id",)))
    rows.take({"id": value})
    assert not isinstance(rows.take({"id": value}), pa.Table)


def test_a_member_of_an_enum_names_a_table_a_column_and_a_snapshot(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    table = lancelsm.create(Name.TABLE, pa.schema([(Name.KEY, pa.int64())]), primary_key=Name.KEY)
    table.upsert({Name.KEY: [1]})
    table.snapshot(Name.SNAPSHOT)
    table.upsert([{Name.KEY: 2}])
    assert lancelsm.open("orders", at="monday").to_arrow().to_pydict() == {"id": [1]}


def test_a_key_of_none_names_its_column(tmp_path: Path) -> None:
    table = lancelsm.create(tmp_path / "t", pa.schema([("id", pa.int64())]), primary_key="id")
    with pytest.raises(Invalid) as caught:
        table.get(None)
    assert caught.value.where["field"] == "id"


@pytest.mark.parametrize(
    ("value", "kind", "remedy"),
    [
        (5, UTC, "Give text like 2026-11-30T12:00:00Z, in whole microseconds"),
        ("noon", S, "Give text like 2026-11-30T12:00:00, in whole seconds"),
        (5, pa.date32(), "Give text like 2026-11-30"),
        ("noon", pa.time32("s"), "Give text like 12:30:00, in whole seconds"),
        ("1h", pa.duration("ms"), "Give a whole number of milliseconds"),
        ("no!", pa.list_(pa.binary()), "Give bytes in base64"),
        (str(KEY), pa.uuid(), "Give bytes of length 16 in base64"),
        ("NaN", MONEY, "Give numbers, or text, of at most 10 digits, in multiples of 10**-2"),
    ],
)
def test_a_refused_value_of_json_is_answered_with_the_form_that_json_has(
    value: Any, kind: pa.DataType, remedy: str
) -> None:
    with pytest.raises(Invalid) as caught:
        json_column([[value] if pa.types.is_list(kind) else value], pa.field("x", kind))
    assert (caught.value.remedy, caught.value.where["field"]) == (remedy, "x")
