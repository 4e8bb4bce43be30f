"""Generations by themselves: what was written comes back, by id, by key, and after the table's columns changed."""

from __future__ import annotations

import datetime as dt
import shutil
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from lancelsm.common.setsum import Setsum
from lancelsm.dataset.fields import numbering
from lancelsm.dataset.generation import check_generation, lookup_generation, read_generation, write_generation
from lancelsm.errors import Corrupt, Invalid
from lancelsm.record.rowsum import row_setsum
from lancelsm.record.schema import FIELD_ID, TOMBSTONE, TableSchema, declare_primary_key


def _field(name: str, kind: pa.DataType, number: int) -> pa.Field:
    return pa.field(name, kind, metadata={FIELD_ID: str(number).encode()})


def _table(*columns: pa.Field, key: tuple[str, ...] = ("id",)) -> TableSchema:
    return TableSchema(columns=declare_primary_key(pa.schema(columns), key), primary_key=key)


ORDERS = _table(_field("id", pa.int64(), 0), _field("name", pa.utf8(), 1))


def _rows(schema: TableSchema, *rows: dict[str, Any]) -> pa.Table:
    filled = [{name: row.get(name) for name in schema.names} | {TOMBSTONE: row.get(TOMBSTONE, False)} for row in rows]
    return pa.Table.from_pylist(filled, schema=schema.stored)


def _write(at: Path, schema: TableSchema, rows: pa.Table, version: str = "2.2") -> str:
    write_generation(uri=str(at), rows=rows, schema=schema, data_storage_version=version)
    return str(at)


def _read(uri: str, schema: TableSchema, **how: Any) -> list[dict[str, Any]]:
    return [row for batch in read_generation(uri=uri, schema=schema, **how) for row in batch.to_pylist()]


def test_what_was_written_comes_back_in_order_with_its_tombstones(tmp_path: Path) -> None:
    rows = _rows(ORDERS, {"id": 3, "name": "c"}, {"id": 1, TOMBSTONE: True}, {"id": 2, "name": ""})

    built = write_generation(uri=str(tmp_path / "g"), rows=rows, schema=ORDERS, data_storage_version="2.2")

    assert (built.rows, built.tombstones) == (3, 1)
    batches = list(read_generation(uri=str(tmp_path / "g"), schema=ORDERS))
    assert pa.Table.from_batches(batches).equals(rows)
    assert batches[0].schema.equals(ORDERS.stored, check_metadata=True)


@pytest.mark.parametrize("version", ["legacy", "2.0", "2.1", "2.2"])
def test_a_tombstone_is_null_in_every_nested_column_whatever_the_bases_format(tmp_path: Path, version: str) -> None:
    inner = pa.struct([_field("x", pa.int32(), 2), _field("y", pa.utf8(), 3)])
    vector, tags = pa.list_(_field("item", pa.float32(), 5), 2), pa.list_(_field("item", pa.utf8(), 6))
    schema = _table(
        _field("id", pa.int64(), 0),
        _field("inner", inner, 1),
        _field("vector", vector, 4),
        _field("tags", tags, 5),
        _field("kind", pa.dictionary(pa.int32(), pa.utf8()), 7),
        _field("cost", pa.decimal128(9, 2), 8),
    )
    row = {"id": 1, "inner": {"x": 1, "y": None}, "vector": [1.0, -0.0], "tags": [], "kind": "k", "cost": None}
    rows = _rows(schema, row, {"id": 2, TOMBSTONE: True})

    uri = _write(tmp_path / "g", schema, rows, version)

    assert _read(uri, schema) == rows.to_pylist()
    check_generation(uri=uri, schema=schema, rows=2, setsum=row_setsum(rows))


def test_columns_have_the_bases_field_ids_after_the_base_was_changed(tmp_path: Path) -> None:
    inner = pa.struct([_field("x", pa.int32(), 9), _field("y", pa.utf8(), 4)])
    schema = _table(
        _field("id", pa.int64(), 7),
        _field("inner", inner, 2),
        _field("tags", pa.list_(_field("item", pa.utf8(), 13)), 12),
        _field(
            "pairs", pa.map_(pa.field("key", pa.utf8(), False, {FIELD_ID: b"22"}), _field("value", pa.int8(), 23)), 20
        ),
        _field("vector", pa.list_(_field("item", pa.float32(), 31), 2), 30),
    )
    rows = _rows(schema, {"id": 1, "inner": {"x": 1, "y": "a"}, "tags": ["t"], "pairs": [("k", 1)], "vector": [1, 2]})

    uri = _write(tmp_path / "g", schema, rows)

    found = lance.dataset(uri).lance_schema.fields()
    assert {field.name(): field.id() for field in found} == {
        "id": 7,
        "inner": 2,
        "tags": 12,
        "pairs": 20,
        "vector": 30,
        TOMBSTONE: 31,
    }
    assert {child.name(): child.id() for child in found[1].children()} == {"x": 9, "y": 4}
    assert found[2].children()[0].id() == 13
    assert [child.id() for child in found[3].children()[0].children()] == [22, 23]
    assert _read(uri, schema) == rows.to_pylist()
    assert not [key for field in lance.dataset(uri).schema for key in field.metadata or {} if key == FIELD_ID]


def test_columns_that_lance_numbers_the_same_way_need_one_commit(tmp_path: Path) -> None:
    uri = _write(tmp_path / "g", ORDERS, _rows(ORDERS, {"id": 1}))

    assert numbering(ORDERS).is_fresh
    assert lance.dataset(uri).version == 1


def test_any_number_of_rows_is_one_fragment(tmp_path: Path) -> None:
    count = (1 << 20) + 1  # Lance starts a new file there unless told otherwise
    rows = pa.table(
        [pa.array(range(count)), pa.nulls(count, pa.utf8()), pa.array([False] * count)], schema=ORDERS.stored
    )

    uri = _write(tmp_path / "g", ORDERS, rows)

    assert [fragment.count_rows() for fragment in lance.dataset(uri).get_fragments()] == [count]
    found = lookup_generation(uri=uri, schema=ORDERS, keys=pa.table({"id": [count - 1, 0, count]}))
    assert sorted(found["id"].to_pylist()) == [0, count - 1]


def test_a_column_that_is_newer_than_the_generation_is_null(tmp_path: Path) -> None:
    uri = _write(tmp_path / "g", ORDERS, _rows(ORDERS, {"id": 1, "name": "a"}, {"id": 2, TOMBSTONE: True}))
    # `_tombstone` has id 2 in the generation: an id that is no column's says nothing.
    wider = _table(
        *ORDERS.columns, _field("price", pa.float64(), 2), _field("of", pa.struct([_field("x", pa.int8(), 4)]), 3)
    )

    assert _read(uri, wider) == [
        {"id": 1, "name": "a", "price": None, "of": None, TOMBSTONE: False},
        {"id": 2, "name": None, "price": None, "of": None, TOMBSTONE: True},
    ]


def test_a_renamed_column_keeps_its_values_and_a_new_one_of_its_old_name_has_none(tmp_path: Path) -> None:
    old = _table(_field("id", pa.int64(), 0), _field("name", pa.utf8(), 3))
    uri = _write(tmp_path / "g", old, _rows(old, {"id": 1, "name": "a"}))
    new = _table(_field("id", pa.int64(), 0), _field("title", pa.utf8(), 3), _field("name", pa.utf8(), 5))

    assert _read(uri, new, where="title = 'a'") == [{"id": 1, "title": "a", "name": None, TOMBSTONE: False}]


def test_fresh_ids_of_our_own_are_believed_when_names_have_moved(tmp_path: Path) -> None:
    # Given a generation whose ids are those that Lance would give anyway
    old = _table(_field("id", pa.int64(), 0), _field("name", pa.utf8(), 1))
    uri = _write(tmp_path / "g", old, _rows(old, {"id": 1, "name": "a"}))

    # When the column is renamed and a new one takes its name
    new = _table(_field("id", pa.int64(), 0), _field("title", pa.utf8(), 1), _field("name", pa.utf8(), 2))

    # Then the value is not taken for the new column's, as it would be where Lance 12 numbered
    assert _read(uri, new) == [{"id": 1, "title": "a", "name": None, TOMBSTONE: False}]


def test_a_struct_field_that_is_newer_than_the_generation_is_null_also_within_lists(tmp_path: Path) -> None:
    x, z = _field("x", pa.int32(), 3), _field("z", pa.int32(), 9)

    def table(*inner: pa.Field) -> TableSchema:
        item = _field("item", pa.struct(inner), 2)
        return _table(_field("id", pa.int64(), 0), _field("items", pa.list_(item), 1))

    rows = _rows(
        table(x),
        {"id": 1, "items": [{"x": 1}, None]},
        {"id": 2},
        {"id": 3, "items": []},
        {"id": 4, "items": [{"x": 4}]},
    )
    uri = _write(tmp_path / "g", table(x), rows)

    found = _read(uri, table(z, x))

    assert [row["items"] for row in found] == [[{"z": None, "x": 1}, None], None, [], [{"z": None, "x": 4}]]


def test_a_column_of_another_type_is_corrupt(tmp_path: Path) -> None:
    uri = _write(tmp_path / "g", ORDERS, _rows(ORDERS, {"id": 1, "name": "a"}))

    with pytest.raises(Corrupt, match="string in column 'name'"):
        _read(uri, _table(_field("id", pa.int64(), 0), _field("name", pa.int8(), 1)))


def test_a_projection_brings_the_key_and_the_tombstones_and_a_filter_spares_other_rows(tmp_path: Path) -> None:
    schema = _table(_field("id", pa.int64(), 0), _field("a", pa.int8(), 1), _field("b", pa.int8(), 2))
    rows = _rows(schema, {"id": 1, "a": 1, "b": 1}, {"id": 2, "a": 2, "b": 2}, {"id": 3, TOMBSTONE: True})
    uri = _write(tmp_path / "g", schema, rows)

    assert _read(uri, schema, columns=["b"], where="a = 2") == [
        {"id": 2, "b": 2, TOMBSTONE: False},
        {"id": 3, "b": None, TOMBSTONE: True},
    ]
    with pytest.raises(Invalid, match="'c'"):
        _read(uri, schema, columns=["c"])


_DAY, _SECOND = dt.date(1969, 12, 31), dt.datetime(1969, 12, 31, 23, 59, 59, tzinfo=dt.UTC)
_KEYS = [
    (pa.bool_(), [True], [False]),
    (pa.int8(), [-128, 127, 0], [1]),
    (pa.uint64(), [1 << 63, 0, (1 << 64) - 1], [1]),
    (pa.int32(), [-1, 5], [4]),
    (pa.utf8(), ["", "ä", "a\0b"], ["a"]),
    (pa.large_utf8(), ["b", "a"], ["c"]),
    (pa.binary(), [b"\xff", b""], [b"\0"]),
    (pa.date32(), [_DAY, dt.date(2020, 1, 1)], [dt.date(1970, 1, 1)]),
    (pa.timestamp("us", "UTC"), [_SECOND], [_SECOND + dt.timedelta(microseconds=1)]),
]


@pytest.mark.parametrize(("kind", "held", "absent"), _KEYS, ids=[str(kind) for kind, *_ in _KEYS])
@pytest.mark.parametrize("key", [("id",), ("id", "part")], ids=["alone", "composite"])
def test_a_key_of_every_type_is_found_and_no_other(
    tmp_path: Path, kind: pa.DataType, held: list[Any], absent: list[Any], key: tuple[str, ...]
) -> None:
    schema = _table(_field("part", pa.utf8(), 0), _field("id", kind, 1), _field("v", pa.int32(), 2), key=key)
    rows = _rows(schema, *({"part": "p", "id": value, "v": at} for at, value in enumerate(held)))
    uri = _write(tmp_path / "g", schema, rows)
    wanted = pa.table({"id": pa.array([*absent, *reversed(held)], kind), "part": ["p"] * (len(held) + len(absent))})

    found = lookup_generation(uri=uri, schema=schema, keys=wanted)

    assert sorted(found.to_pylist(), key=lambda row: row["v"]) == rows.to_pylist()
    assert lookup_generation(uri=uri, schema=schema, keys=wanted.slice(0, len(absent))).num_rows == 0


def test_few_and_many_keys_on_several_pages_are_found(tmp_path: Path) -> None:
    order = [(i * 7919) % 30_000 for i in range(30_000)]
    columns = [pa.array([2 * i for i in order]), pa.array([str(i) for i in order]), pa.array([False] * 30_000)]
    rows = pa.table(columns, schema=ORDERS.stored)
    uri = _write(tmp_path / "g", ORDERS, rows)
    wanted = [0, 1, 16_382, 16_384, 16_385, 59_998, 59_999, -1, 60_000]

    found = lookup_generation(uri=uri, schema=ORDERS, keys=pa.table({"id": wanted}), columns=["name"])

    assert sorted((row["id"], row["name"]) for row in found.to_pylist()) == [
        (0, "0"),
        (16_382, "8191"),
        (16_384, "8192"),
        (59_998, "29999"),
    ]
    everything = lookup_generation(uri=uri, schema=ORDERS, keys=rows)
    assert everything.num_rows == 30_000


def test_no_rows_make_no_generation(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="at least one row"):
        _write(tmp_path / "g", ORDERS, _rows(ORDERS))


def test_a_check_notices_lost_and_changed_rows(tmp_path: Path) -> None:
    rows = _rows(ORDERS, {"id": 1, "name": "a"}, {"id": 2, "name": "b"})
    uri = _write(tmp_path / "g", ORDERS, rows)

    check_generation(uri=uri, schema=ORDERS, rows=2, setsum=row_setsum(rows))
    with pytest.raises(Corrupt, match="2 rows, 3 were written"):
        check_generation(uri=uri, schema=ORDERS, rows=3, setsum=row_setsum(rows))
    with pytest.raises(Corrupt, match="other rows"):
        check_generation(uri=uri, schema=ORDERS, rows=2, setsum=Setsum.ZERO)


def test_a_generation_that_is_gone_is_corrupt(tmp_path: Path) -> None:
    with pytest.raises(Corrupt):
        _read(str(tmp_path / "gone"), ORDERS)
    with pytest.raises(Corrupt):
        lookup_generation(uri=str(tmp_path / "gone"), schema=ORDERS, keys=pa.table({"id": [1]}))


def test_a_key_index_that_leads_to_rows_of_other_keys_is_refused(tmp_path: Path) -> None:
    ours, other = (
        _write(tmp_path / name, ORDERS, _rows(ORDERS, *({"id": number} for number in range(first, first + 10))))
        for name, first in (("ours", 0), ("other", 100))
    )
    for lost in ("_pk_index", "bloom_filter.bin"):
        shutil.move(Path(ours) / lost, tmp_path / f"old {lost}")
    shutil.copytree(Path(other) / "_pk_index", Path(ours) / "_pk_index")

    with pytest.raises(Corrupt, match="rows of other keys"):
        lookup_generation(uri=ours, schema=ORDERS, keys=pa.table({"id": [103]}))
