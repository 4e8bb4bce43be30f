"""Encode keys as one comparable column, and keep the newest row of each key."""

from __future__ import annotations

import datetime as dt
import random

import pyarrow as pa
import pytest

from lancelsm.errors import Invalid
from lancelsm.record import key as keys_of_rows
from lancelsm.record.key import check_primary_key, fold, key_column, newest, unsupported_by_lance
from lancelsm.record.rowsum import row_setsum
from lancelsm.record.schema import FIELD_ID, TableSchema


def schema_of(key, **kinds):
    columns = [pa.field(name, kind, metadata={FIELD_ID: str(i)}) for i, (name, kind) in enumerate(kinds.items())]
    return TableSchema(columns=pa.schema(columns), primary_key=key)


def lance_tuple(values):
    """Encode a key tuple as Lance does, value by value."""
    out = b""
    for value, kind in values:
        if value is None:
            out += b"\0"
        elif pa.types.is_boolean(kind):
            out += b"\1" + bytes([value])
        elif pa.types.is_unsigned_integer(kind):
            out += b"\1" + value.to_bytes(8, "big")
        elif pa.types.is_integer(kind):
            out += b"\1" + (value + (1 << 63)).to_bytes(8, "big")
        elif pa.types.is_date32(kind):
            out += b"\1" + ((value - dt.date(1970, 1, 1)).days + (1 << 63)).to_bytes(8, "big")
        else:
            raw = value.encode() if isinstance(value, str) else value
            out += b"\1" + raw.replace(b"\0", b"\0\xff") + b"\0\0"
    return out


COLUMNS = {
    "bool": (pa.bool_(), [True, False, None]),
    "int8": (pa.int8(), [-128, 127, None]),
    "int64": (pa.int64(), [-(2**63), 2**63 - 1, 0]),
    "uint16": (pa.uint16(), [0, 65535, None]),
    "uint64": (pa.uint64(), [2**64 - 1, None, 1]),
    "utf8": (pa.string(), ["", "a\0b\0", None]),
    "large": (pa.large_string(), ["é", "", "\0"]),
    "binary": (pa.binary(), [b"\0", b"\xff", b""]),
    "date": (pa.date32(), [dt.date(1969, 12, 31), dt.date(2020, 1, 1), None]),
}


@pytest.mark.parametrize("left", COLUMNS)
@pytest.mark.parametrize("right", ["int64", "utf8", "date"])
def test_a_composite_key_is_encoded_as_lance_does(left, right):
    kinds = [COLUMNS[left][0], COLUMNS[right][0]]
    table = pa.table([pa.array(COLUMNS[name][1], COLUMNS[name][0]) for name in (left, right)], names=["a", "b"])

    encoded = key_column(table, ("a", "b"))

    assert encoded.type == pa.binary()
    rows = zip(COLUMNS[left][1], COLUMNS[right][1], strict=True)
    assert encoded.to_pylist() == [lance_tuple(zip(row, kinds, strict=True)) for row in rows]


def test_encoded_composite_keys_sort_like_their_tuples():
    rng = random.Random(5)
    pairs = [(rng.randint(-3, 3), rng.choice(["", "a", "ab", "a\0", "\0"])) for _ in range(200)]
    table = pa.table({"a": [a for a, _ in pairs], "b": [b for _, b in pairs]})

    encoded = key_column(table, ("a", "b")).to_pylist()

    assert sorted(encoded) == [key for _, key in sorted(zip(pairs, encoded, strict=True))]
    assert len(set(encoded)) == len(set(pairs))


def test_slices_and_chunks_are_encoded_to_the_same_keys():
    table = pa.table({"a": pa.array([1, 2, 3, 4], pa.uint64()), "b": ["w", "x", "y", "z"]})
    pieces = pa.concat_tables([table.slice(0, 1), table.slice(1, 2), table.slice(3)])

    whole = key_column(table, ("a", "b"))

    assert key_column(pieces, ("a", "b")) == whole
    assert key_column(table.slice(2), ("a", "b")) == whole[2:]
    assert key_column(pieces, ("b",)) == pa.array(["w", "x", "y", "z"])


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("key", [("a",), ("b",), ("a", "b"), ("when",), ("flag", "raw")])
def test_a_fold_keeps_the_last_row_of_each_key_in_order(seed, key):
    rng = random.Random(seed)
    rows = [
        {
            "a": rng.randint(0, 9),
            "b": rng.choice("xyz"),
            "when": dt.datetime(2020, 1, rng.randint(1, 9), tzinfo=dt.UTC),
            "flag": rng.random() < 0.5,
            "raw": rng.randbytes(1)[:1],
            "n": n,
        }
        for n in range(300)
    ]
    table = pa.concat_tables([pa.Table.from_pylist(rows[:100]), pa.Table.from_pylist(rows[100:])])

    folded = fold(table, key)

    last = {tuple(row[name] for name in key): row["n"] for row in rows}
    assert folded.rows["n"].to_pylist() == sorted(last.values())
    assert folded.superseded["n"].to_pylist() == [row["n"] for row in rows if row["n"] not in set(last.values())]
    assert newest(table, key).equals(folded.rows)


def test_keys_that_ascend_are_the_last_of_themselves_unless_one_is_repeated(monkeypatch):
    ascending = [*range(200)]
    for keys in (ascending, [*ascending, 199, 300], [*ascending, 0], [0]):
        table = pa.table({"id": pa.array(keys, pa.int64())})
        last = [len(keys) - 1 - keys[::-1].index(one) for one in keys]
        assert keys_of_rows.last_of_key(table, ("id",)).to_pylist() == last

    monkeypatch.setattr(keys_of_rows.pc, "index_in", None)
    texts = pa.table({"id": [f"{number:04}" for number in ascending]})
    assert keys_of_rows.last_of_key(texts, ("id",)).to_pylist() == ascending


def test_the_sums_of_kept_and_superseded_rows_balance():
    columns = [pa.field(name, pa.int64(), metadata={FIELD_ID: str(i)}) for i, name in enumerate("ab")]
    table = pa.table([[1, 2, 1, 3, 2], [0, 1, 2, 3, 4]], schema=pa.schema(columns))

    folded = fold(table, ("a",))

    assert folded.superseded.num_rows == 2
    assert row_setsum(folded.rows) + row_setsum(folded.superseded) == row_setsum(table)


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_nothing_is_superseded_among_distinct_keys(rows):
    table = pa.table({"a": pa.array(range(rows), pa.int32())})

    folded = fold(table, ("a",))

    assert folded.rows.equals(table)
    assert folded.superseded.schema == table.schema
    assert folded.superseded.num_rows == 0


@pytest.mark.parametrize(
    "kind",
    [pa.float64(), pa.decimal128(5), pa.list_(pa.int8()), pa.struct([("x", pa.int8())]), pa.null(), pa.time32("s")],
    ids=str,
)
def test_a_key_of_a_type_without_a_unique_encoding_is_invalid(kind):
    with pytest.raises(Invalid, match=r"'a' of type .* can't be a primary key"):
        check_primary_key(schema_of(("a",), a=kind))


@pytest.mark.parametrize(
    ("key", "message"),
    [((), "needs a primary key"), (("z",), "primary key: the table has no column 'z'"), (("a", "a"), "twice")],
)
def test_an_empty_unknown_or_repeated_key_column_is_invalid(key, message):
    with pytest.raises(Invalid, match=message):
        check_primary_key(schema_of(key, a=pa.int8()))


def test_key_types_that_lance_does_not_support_are_listed():
    kinds = {
        "a": pa.int32(),
        "b": pa.int64(),
        "c": pa.string(),
        "d": pa.binary(),
        "e": pa.bool_(),
        "f": pa.uint8(),
        "g": pa.large_string(),
        "h": pa.large_binary(),
        "i": pa.date32(),
        "j": pa.timestamp("us", "UTC"),
    }
    schema = schema_of(tuple(kinds), **kinds)

    check_primary_key(schema)

    assert unsupported_by_lance(schema) == list("efghij")
