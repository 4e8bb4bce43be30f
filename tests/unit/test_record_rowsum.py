"""Which differences between rows change the setsum of rows, and which do not."""

from __future__ import annotations

import datetime as dt
import decimal
import struct
import sys

import lance
import numpy as np
import pyarrow as pa
import pytest
import xxhash

from lancelsm.common.setsum import Setsum
from lancelsm.errors import Invalid
from lancelsm.record import rowsum
from lancelsm.record.rowsum import row_setsum, setsums_together
from lancelsm.record.schema import FIELD_ID, TOMBSTONE
from lancelsm.record.words import ARROW, INTS, arithmetic, with_numpy


def column(name, kind, number, **options):
    return pa.field(name, kind, metadata={FIELD_ID: str(number)}, **options)


def one(kind, values, number=1):
    return pa.table([pa.array(values, kind)], schema=pa.schema([column("a", kind, number)]))


def items(table, **options):
    """Return the sum of each row alone."""
    return [row_setsum(table.slice(row, 1), **options).digest() for row in range(table.num_rows)]


WORD = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15
ALL = [ARROW, INTS, with_numpy(np)]


def mix(word):
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 & WORD
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB & WORD
    return word ^ (word >> 31)


def documented(*values):
    """Return the sum of one row by the formulas of the documentation, from the id and the value of each column.

    A value is its width and its bits, or bytes.
    """

    def seeds(number, width):
        first = mix(((number << 8) + width) * GOLDEN & WORD)
        return first, mix(first ^ GOLDEN)

    def words(value):
        if len(value) > 32:
            return struct.unpack("<QQ", xxhash.xxh3_128(value).digest())
        padded = struct.unpack("<4Q", value.ljust(32, b"\0"))
        factors = [[mix((8 * lane + i + 1) * GOLDEN & WORD) | 1 for i in range(4)] for lane in (1, 2)]
        return [len(value) + sum(mix(w * f & WORD) for w, f in zip(padded, by, strict=True)) & WORD for by in factors]

    sums = list(seeds(-2, 0))
    for number, value in values:
        width, (first, second) = (0, words(value)) if isinstance(value, bytes) else (value[0], [value[1]] * 2)
        one, two = seeds(number, width)
        sums[0] += mix(first ^ one)
        sums[1] += mix((second ^ two) * GOLDEN + 1 & WORD)
    first, second = (total & WORD for total in sums)
    columns = struct.unpack("<4I", struct.pack("<QQ", mix(first), mix(second ^ (2 * first & WORD))))
    return Setsum.of_columns(columns).digest()


@pytest.mark.parametrize("on", ALL, ids=["arrow", "ints", "numpy"])
def test_a_row_is_hashed_as_documented(on, monkeypatch):
    monkeypatch.setattr(rowsum, "arithmetic", lambda rows: on)
    inner = pa.struct([column("y", pa.int16(), 5), column("x", pa.string(), 4)])
    schema = pa.schema(
        [
            column("text", pa.string(), 7),
            column("number", pa.int32(), 1),
            column("inner", inner, 3),
            column("numbers", pa.list_(column("item", pa.int8(), 9)), 8),
            column("texts", pa.list_(column("item", pa.string(), 11)), 10),
            column("long", pa.string(), 12),
            column("large", pa.uint64(), 13),
            column("small", pa.float16(), 14),
            column("flag", pa.bool_(), 15),
            column("amount", pa.decimal128(5, 1), 16),
            column("absent", pa.date32(), 17),
            pa.field(TOMBSTONE, pa.bool_()),
        ]
    )
    row = {
        "text": "é",
        "number": -2,
        "inner": {"y": 3, "x": None},
        "numbers": [1, None, 2],
        "texts": ["ab", ""],
        "long": "x" * 33,
        "large": 2**64 - 1,
        "small": 1.5,
        "flag": True,
        "amount": decimal.Decimal("-0.5"),
        TOMBSTONE: True,
    }

    (item,) = items(pa.Table.from_pylist([row], schema=schema))

    assert item == documented(
        (1, (4, 2**32 - 2)),
        (3, struct.pack("<iQh", 5, 2, 3)),
        (7, "é".encode()),
        (8, struct.pack("<QB3B2b", 3, 1, 1, 0, 1, 1, 2)),
        (10, struct.pack("<QBQ2sQ", 2, 0, 2, b"ab", 0)),
        (12, b"x" * 33),
        (13, (8, 2**64 - 1)),
        (14, (2, int.from_bytes(struct.pack("<e", 1.5), "little"))),
        (15, (1, 1)),
        (16, (-5).to_bytes(16, "little", signed=True)),
        (-1, (1, 1)),
    )


@pytest.mark.parametrize("on", ALL, ids=["arrow", "ints", "numpy"])
def test_values_of_each_length_are_hashed_as_documented(on, monkeypatch):
    monkeypatch.setattr(rowsum, "arithmetic", lambda rows: on)
    values = [bytes(range(1, length + 1)) for length in range(70)]
    # Beside a value of zeros: words of zeros add nothing, but the length does.
    values += [bytes(length) for length in range(34)]

    rows = one(pa.binary(), values)

    assert items(rows) == [documented((1, value)) for value in values]
    assert len(set(items(rows))) == len(values) - 1  # both have b""
    assert row_setsum(rows) == sum((Setsum.from_digest(item) for item in items(rows)), Setsum.ZERO)
    parts = [rows.slice(0, 40), rows.slice(40, 1), rows.slice(41)]
    assert setsums_together(parts) == [row_setsum(part) for part in parts]


def test_only_small_tables_are_hashed_together():
    small, large = one(pa.int64(), range(5)), one(pa.int64(), range(9000))
    twice = row_setsum(small)

    assert setsums_together([small, small, large, small, small]) == [twice, twice, None, twice, twice]
    assert setsums_together([large, small]) == [None, None]
    assert setsums_together([]) == []


@pytest.mark.parametrize("on", ALL, ids=["arrow", "ints", "numpy"])
def test_short_and_long_values_at_any_place_of_a_buffer_are_hashed_as_documented(on, monkeypatch):
    monkeypatch.setattr(rowsum, "arithmetic", lambda rows: on)
    values = [b"", b"abc", b"x" * 40, b"0123456789", None, b"y" * 2000, b"z" * 31, b"q"]

    each = [documented() if value is None else documented((1, value)) for value in values]
    for number in range(len(values)):
        order = [*range(number, len(values)), *range(number)]
        turned = one(pa.binary(), [values[at] for at in order])
        for size in (1, 2, 5):
            for start in range(0, len(values), size):
                found = row_setsum(turned.slice(start, size))
                assert found == sum((Setsum.from_digest(each[at]) for at in order[start : start + size]), Setsum.ZERO)


@pytest.mark.parametrize("on", ALL, ids=["arrow", "ints", "numpy"])
@pytest.mark.parametrize("kind", [pa.string(), pa.large_binary()], ids=str)
def test_bytes_below_a_null_do_not_count(on, kind, monkeypatch):
    monkeypatch.setattr(rowsum, "arithmetic", lambda rows: on)
    for size in (3, 40, 600):
        values = [b"a" * size, b"b", b"c" * size, None, b"d" * 40]
        expected = sum((row_setsum(one(pa.binary(), [value])) for value in values), Setsum.ZERO)
        below = pa.array([b"x" * size if value is None else value for value in values], pa.binary()).cast(kind)
        flags = pa.array([value is not None for value in values]).buffers()[1]
        nulls = pa.Array.from_buffers(kind, len(values), [flags, *below.buffers()[1:]])
        assert nulls.null_count == 1
        found = pa.table([nulls], schema=pa.schema([column("a", kind, 1)]))
        assert row_setsum(found) == expected
        assert row_setsum(found.slice(1)) + row_setsum(found.slice(0, 1)) == expected


def test_numpy_is_used_only_if_it_is_loaded(monkeypatch):
    assert arithmetic(1000) is with_numpy(np)
    assert arithmetic(1) is INTS

    monkeypatch.setitem(sys.modules, "numpy", None)

    assert arithmetic(1000) is ARROW


def test_a_tombstone_changes_the_sum_and_a_tombstone_column_of_false_does_not():
    rows = one(pa.int64(), [1])

    def with_tombstone(tombstone):
        return rows.append_column(pa.field(TOMBSTONE, pa.bool_(), nullable=False), pa.array([tombstone]))

    assert row_setsum(with_tombstone(False)) == row_setsum(rows)
    assert row_setsum(with_tombstone(True)) != row_setsum(rows)


@pytest.mark.parametrize(
    ("kind", "other", "values"),
    [
        (pa.string(), pa.large_string(), ["a", "", None]),
        (pa.string(), pa.string_view(), ["a", "a longer text than twelve bytes", None]),
        (pa.string(), pa.dictionary(pa.int8(), pa.string()), ["a", "b", "a", None]),
        (pa.binary(), pa.large_binary(), [b"a", b"\0", None]),
        (pa.binary(), pa.binary(1), [b"a", b"\0", None]),
        (pa.list_(pa.int32()), pa.large_list(pa.int32()), [[1, None], [], None]),
        (pa.list_(pa.int32()), pa.list_(pa.int32(), 2), [[1, None], [3, 4], None]),
        (pa.int64(), pa.dictionary(pa.int8(), pa.int64()), [1, 2, 1, None]),
    ],
    ids=str,
)
def test_the_arrow_layout_of_values_does_not_change_the_sum(kind, other, values):
    def tagged(kind):
        if isinstance(kind, pa.FixedSizeListType):
            return pa.list_(column("item", kind.value_type, 2), kind.list_size)
        if hasattr(kind, "value_field"):
            return type_with_field(kind)
        return kind

    def type_with_field(kind):
        make = pa.large_list if pa.types.is_large_list(kind) else pa.list_
        return make(column("item", kind.value_type, 2))

    assert items(one(tagged(kind), values)) == items(one(tagged(other), values))


DIFFERENT = [
    (pa.null(), [None]),
    (pa.bool_(), [True, False, None]),
    (pa.int8(), [0, 1, -1, None]),
    (pa.uint64(), [0, 2**64 - 1, None]),
    (pa.float32(), [0.0, -0.0, 1.5, float("nan"), float("inf"), float("-inf"), None]),
    (pa.float16(), [0.0, -0.0, 1.5, None]),
    (pa.string(), ["", "\0", "a", None]),
    (pa.binary(2), [b"\0\0", b"\0\1", None]),
    (pa.decimal128(5, 2), [decimal.Decimal("1.10"), decimal.Decimal("-1.10"), None]),
    (pa.decimal256(60, 2), [decimal.Decimal("1.10"), decimal.Decimal("-1.10"), None]),
    (pa.date32(), [dt.date(1970, 1, 1), dt.date(2020, 1, 1), None]),
    (pa.time64("us"), [dt.time(0), dt.time(1), None]),
    (pa.timestamp("us", "Europe/Paris"), [dt.datetime(2020, 1, day, tzinfo=dt.UTC) for day in (1, 2)]),
    (pa.duration("ms"), [dt.timedelta(0), dt.timedelta(1), None]),
    (
        pa.list_(column("item", pa.int8(), 2)),
        [[], [None], [0], [0, None], [None, 0], [0, 0], [None, None], [1], None],
    ),
    (pa.list_(column("item", pa.null(), 2)), [[], [None], [None, None], None]),
    (pa.list_(column("item", pa.string(), 2)), [[], [None], [""], ["", None], ["", ""], ["a", "b"], ["ab"], None]),
    (
        pa.list_(column("item", pa.list_(column("item", pa.int8(), 3)), 2)),
        [[], [[]], [None], [[], []], [[0], [1]], [[0, 1]], None],
    ),
    (pa.list_(column("item", pa.int8(), 2), 2), [[0, 0], [None, 0], [0, None], None]),
    (
        pa.struct([column("x", pa.int8(), 2), column("y", pa.int8(), 3)]),
        [{"x": None, "y": None}, {"x": 0, "y": None}, {"x": None, "y": 0}, {"x": 0, "y": 0}, None],
    ),
    (
        pa.map_(pa.string(), pa.string()),
        [[], [("a", None)], [("a", "")], [("", "a")], [("a", "b"), ("c", "d")], [("c", "d"), ("a", "b")], None],
    ),
]


@pytest.mark.parametrize(("kind", "values"), DIFFERENT, ids=lambda value: str(value) if value else "")
def test_different_values_have_different_items(kind, values):
    encoded = items(one(kind, values))

    assert len(set(encoded)) == len(values)


@pytest.mark.parametrize(("kind", "values"), DIFFERENT, ids=lambda value: str(value) if value else "")
def test_a_row_has_the_same_item_alone_and_among_other_rows(kind, values):
    table = one(kind, values)

    alone = [items(one(kind, [value]))[0] for value in values]

    assert items(table) == alone
    assert [items(table.slice(row, 1))[0] for row in range(len(values))] == alone
    assert items(table.slice(1)) == alone[1:]
    assert items(pa.concat_tables([table.slice(1), table.slice(0, 1)])) == [*alone[1:], alone[0]]
    for rows, expected in ((table, alone), (table.slice(1), alone[1:]), (pa.concat_tables([table] * 5), alone * 5)):
        total = sum((Setsum.from_digest(item) for item in expected), Setsum.ZERO)
        assert row_setsum(rows) == total
        assert sum((row_setsum(batch) for batch in rows.to_batches(max_chunksize=2)), Setsum.ZERO) == total


def test_the_payload_of_nan_changes_the_item():
    plain, payload = struct.pack("<Q", 0x7FF8000000000000), struct.pack("<Q", 0x7FF8000000000001)
    values = pa.Array.from_buffers(pa.float64(), 2, [None, pa.py_buffer(plain + payload)])

    first, second = items(pa.table([values], schema=pa.schema([column("a", pa.float64(), 1)])))

    assert first != second


def test_the_sum_depends_on_the_field_id_and_not_on_the_name():
    rows = one(pa.int8(), [1])

    assert row_setsum(rows.rename_columns(["b"])) != row_setsum(one(pa.int8(), [1], number=2))
    renamed = pa.schema([column("b", pa.int8(), 1)])
    assert row_setsum(pa.table([pa.array([1], pa.int8())], schema=renamed)) == row_setsum(rows)


def test_rows_of_several_slices_have_the_sum_of_their_rows():
    rows = one(pa.int32(), range(20_000))

    assert row_setsum(rows) == sum((row_setsum(b) for b in rows.to_batches(999)), Setsum())
    assert row_setsum(rows) == sum((row_setsum(b) for b in rows.to_batches(5)), Setsum())


def test_rows_read_back_from_lance_keep_their_sum(tmp_path):
    inner = pa.struct([column("x", pa.int64(), 3), column("y", pa.list_(column("item", pa.float32(), 5)), 4)])
    schema = pa.schema(
        [
            column("id", pa.int64(), 1, nullable=False),
            column("inner", inner, 2),
            column("text", pa.dictionary(pa.int16(), pa.string()), 6),
            column("vector", pa.list_(column("item", pa.float32(), 8), 2), 7),
            column("when", pa.timestamp("us", "UTC"), 9),
            column("amount", pa.decimal128(12, 3), 10),
            column("raw", pa.large_binary(), 11),
        ]
    )
    rows = [
        {
            "id": number,
            "inner": None if number % 3 == 0 else {"x": None, "y": [float("nan"), -0.0, None]},
            "text": ["", "b", None][number % 3],
            "vector": None if number % 5 == 0 else [number, -0.0],
            "when": dt.datetime(2020, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=number),
            "amount": decimal.Decimal(number).scaleb(-3),
            "raw": bytes(number),
        }
        for number in range(50)
    ]
    written = pa.Table.from_pylist(rows, schema=schema)

    lance.write_dataset(written, str(tmp_path / "t.lance"))
    read = lance.dataset(str(tmp_path / "t.lance")).to_table()

    assert row_setsum(read, schema=schema) == row_setsum(written)


def test_a_field_without_id_is_invalid():
    with pytest.raises(Invalid, match="'b' has no Lance field id"):
        row_setsum(pa.table({"b": [1]}))
    with pytest.raises(Invalid, match="'b' has no Lance field id"):
        row_setsum(pa.table({"b": [1]}), schema=pa.schema([column("a", pa.int64(), 1)]))


def test_the_sum_of_no_rows_is_zero():
    assert row_setsum(one(pa.int8(), [])) == Setsum.ZERO
