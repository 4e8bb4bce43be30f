"""Which differences between rows change the setsum of rows, and which do not."""

from __future__ import annotations

import datetime as dt
import decimal
import struct

import lance
import pyarrow as pa
import pytest

from lancelsm.common.setsum import Setsum
from lancelsm.errors import Invalid
from lancelsm.record.rowsum import row_items, row_setsum
from lancelsm.record.schema import FIELD_ID, TOMBSTONE


def column(name, kind, number, **options):
    return pa.field(name, kind, metadata={FIELD_ID: str(number)}, **options)


def one(kind, values, number=1):
    return pa.table([pa.array(values, kind)], schema=pa.schema([column("a", kind, number)]))


def items(table, **options):
    return [bytes(item) for item in row_items(table, **options)]


def test_a_row_is_encoded_as_documented():
    inner = pa.struct([column("y", pa.int16(), 5), column("x", pa.string(), 4)])
    schema = pa.schema(
        [
            column("text", pa.string(), 7),
            column("number", pa.int32(), 1),
            column("inner", inner, 3),
            column("numbers", pa.list_(column("item", pa.int8(), 9)), 8),
            column("texts", pa.list_(column("item", pa.string(), 11)), 10),
            pa.field(TOMBSTONE, pa.bool_()),
        ]
    )
    row = {
        "text": "é",
        "number": -2,
        "inner": {"y": 3, "x": None},
        "numbers": [1, None, 2],
        "texts": ["ab", ""],
        TOMBSTONE: True,
    }

    (item,) = items(pa.Table.from_pylist([row], schema=schema))

    assert item == b"".join(
        [
            struct.pack("<iQi", 1, 4, -2),
            struct.pack("<iQ", 3, 14) + struct.pack("<iQh", 5, 2, 3),
            struct.pack("<iQ", 7, 2) + "é".encode(),
            struct.pack("<iQ", 8, 14) + struct.pack("<QB3B2b", 3, 1, 1, 0, 1, 1, 2),
            struct.pack("<iQ", 10, 27) + struct.pack("<QBQ2sQ", 2, 0, 2, b"ab", 0),
            struct.pack("<iQB", -1, 1, 1),
        ]
    )


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
    assert [bytes(item) for batch in table.to_batches(max_chunksize=2) for item in row_items(batch)] == alone


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

    assert row_setsum(rows) == Setsum.of(items(rows)) == sum((row_setsum(b) for b in rows.to_batches(999)), Setsum())


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
