"""Single generations: writing, reading, lookups by key, and reading after the columns of the table changed."""

from __future__ import annotations

import datetime as dt
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from lancelsm.common.bounded_cache import BoundedCache
from lancelsm.common.layout import KEY_INDEX_FILES
from lancelsm.common.read_trace import Trace
from lancelsm.dataset.conditions import read_condition
from lancelsm.dataset.fields import numbering
from lancelsm.dataset.generation import check_generation, lookup_generation, possible_keys, read_generation
from lancelsm.errors import Corrupt, Invalid
from lancelsm.record.rowsum import row_setsum
from lancelsm.record.schema import FIELD_ID, TOMBSTONE, TableSchema
from tests.unit.generations import ORDERS, check_notices_lost_and_changed_rows, field, stored_rows, table_schema, write


def read(uri: str, schema: TableSchema, *, where: str = "", **options: Any) -> list[dict[str, Any]]:
    condition = read_condition(where, columns=schema.columns, table=uri) if where else None
    batches = read_generation(uri=uri, schema=schema, where=condition, **options)
    return [row for batch in batches for row in batch.to_pylist()]


def test_rows_are_read_back_in_order_with_their_tombstones(tmp_path: Path) -> None:
    rows = stored_rows(ORDERS, {"id": 3, "name": "c"}, {"id": 1, TOMBSTONE: True}, {"id": 2, "name": ""})

    write(tmp_path / "g", ORDERS, rows)

    batches = list(read_generation(uri=str(tmp_path / "g"), schema=ORDERS))
    assert pa.Table.from_batches(batches).equals(rows)
    assert batches[0].schema.equals(ORDERS.stored, check_metadata=True)


@pytest.mark.parametrize("version", ["legacy", "2.0", "2.1", "2.2"])
def test_a_tombstone_has_nulls_in_nested_columns_in_every_storage_format(tmp_path: Path, version: str) -> None:
    inner = pa.struct([field("x", pa.int32(), 2), field("y", pa.utf8(), 3)])
    vector, tags = pa.list_(field("item", pa.float32(), 5), 2), pa.list_(field("item", pa.utf8(), 6))
    schema = table_schema(
        field("id", pa.int64(), 0),
        field("inner", inner, 1),
        field("vector", vector, 4),
        field("tags", tags, 5),
        field("kind", pa.dictionary(pa.int32(), pa.utf8()), 7),
        field("cost", pa.decimal128(9, 2), 8),
    )
    row = {"id": 1, "inner": {"x": 1, "y": None}, "vector": [1.0, -0.0], "tags": [], "kind": "k", "cost": None}
    rows = stored_rows(schema, row, {"id": 2, TOMBSTONE: True})

    uri = write(tmp_path / "g", schema, rows, version)

    assert read(uri, schema) == rows.to_pylist()
    check_generation(uri=uri, schema=schema, rows=2, setsum=row_setsum(rows))


def test_columns_of_a_generation_have_the_field_ids_of_a_changed_base(tmp_path: Path) -> None:
    inner = pa.struct([field("x", pa.int32(), 9), field("y", pa.utf8(), 4)])
    schema = table_schema(
        field("id", pa.int64(), 7),
        field("inner", inner, 2),
        field("tags", pa.list_(field("item", pa.utf8(), 13)), 12),
        field(
            "pairs", pa.map_(pa.field("key", pa.utf8(), False, {FIELD_ID: b"22"}), field("value", pa.int8(), 23)), 20
        ),
        field("vector", pa.list_(field("item", pa.float32(), 31), 2), 30),
    )
    rows = stored_rows(
        schema, {"id": 1, "inner": {"x": 1, "y": "a"}, "tags": ["t"], "pairs": [("k", 1)], "vector": [1, 2]}
    )

    uri = write(tmp_path / "g", schema, rows)

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
    assert read(uri, schema) == rows.to_pylist()
    assert not [key for field in lance.dataset(uri).schema for key in field.metadata or {} if key == FIELD_ID]


def test_fresh_field_ids_need_only_one_commit(tmp_path: Path) -> None:
    uri = write(tmp_path / "g", ORDERS, stored_rows(ORDERS, {"id": 1}))

    assert numbering(ORDERS).is_fresh
    assert lance.dataset(uri).version == 1


def test_a_generation_of_any_size_is_one_fragment(tmp_path: Path) -> None:
    count = (1 << 20) + 1  # by default Lance starts a new file at this number of rows
    rows = pa.table(
        [pa.array(range(count)), pa.nulls(count, pa.utf8()), pa.array([False] * count)], schema=ORDERS.stored
    )

    uri = write(tmp_path / "g", ORDERS, rows)

    assert [fragment.count_rows() for fragment in lance.dataset(uri).get_fragments()] == [count]
    found = lookup_generation(uri=uri, schema=ORDERS, keys=pa.table({"id": [count - 1, 0, count]}))
    assert sorted(found["id"].to_pylist()) == [0, count - 1]


def test_a_column_added_after_the_generation_is_null(tmp_path: Path) -> None:
    uri = write(tmp_path / "g", ORDERS, stored_rows(ORDERS, {"id": 1, "name": "a"}, {"id": 2, TOMBSTONE: True}))
    # `_tombstone` has field id 2 in the generation; that must not be mistaken for the new column `price`
    wider = table_schema(
        *ORDERS.columns, field("price", pa.float64(), 2), field("of", pa.struct([field("x", pa.int8(), 4)]), 3)
    )

    assert read(uri, wider) == [
        {"id": 1, "name": "a", "price": None, "of": None, TOMBSTONE: False},
        {"id": 2, "name": None, "price": None, "of": None, TOMBSTONE: True},
    ]


def test_a_renamed_column_keeps_its_values_and_a_new_column_of_the_old_name_is_null(tmp_path: Path) -> None:
    old = table_schema(field("id", pa.int64(), 0), field("name", pa.utf8(), 3))
    uri = write(tmp_path / "g", old, stored_rows(old, {"id": 1, "name": "a"}))
    new = table_schema(field("id", pa.int64(), 0), field("title", pa.utf8(), 3), field("name", pa.utf8(), 5))

    assert read(uri, new, where="title = 'a'") == [{"id": 1, "title": "a", "name": None, TOMBSTONE: False}]


def test_field_ids_decide_when_a_new_column_takes_an_old_name(tmp_path: Path) -> None:
    # Given a generation whose field ids equal those that Lance would assign
    old = table_schema(field("id", pa.int64(), 0), field("name", pa.utf8(), 1))
    uri = write(tmp_path / "g", old, stored_rows(old, {"id": 1, "name": "a"}))

    # When the column is renamed and a new one takes its name
    new = table_schema(field("id", pa.int64(), 0), field("title", pa.utf8(), 1), field("name", pa.utf8(), 2))

    # Then the new column is null: field ids decide, not names
    assert read(uri, new) == [{"id": 1, "title": "a", "name": None, TOMBSTONE: False}]


def test_a_struct_field_added_after_the_generation_is_null_also_within_lists(tmp_path: Path) -> None:
    x, z = field("x", pa.int32(), 3), field("z", pa.int32(), 9)

    def table(*inner: pa.Field) -> TableSchema:
        item = field("item", pa.struct(inner), 2)
        return table_schema(field("id", pa.int64(), 0), field("items", pa.list_(item), 1))

    rows = stored_rows(
        table(x),
        {"id": 1, "items": [{"x": 1}, None]},
        {"id": 2},
        {"id": 3, "items": []},
        {"id": 4, "items": [{"x": 4}]},
    )
    uri = write(tmp_path / "g", table(x), rows)

    found = read(uri, table(z, x))

    assert [row["items"] for row in found] == [[{"z": None, "x": 1}, None], None, [], [{"z": None, "x": 4}]]


def test_a_column_with_another_type_than_the_base_is_corrupt(tmp_path: Path) -> None:
    uri = write(tmp_path / "g", ORDERS, stored_rows(ORDERS, {"id": 1, "name": "a"}))

    with pytest.raises(Corrupt, match="column 'name' is string in a generation"):
        read(uri, table_schema(field("id", pa.int64(), 0), field("name", pa.int8(), 1)))


def test_a_projection_includes_key_and_tombstones_and_a_filter_drops_other_rows(tmp_path: Path) -> None:
    schema = table_schema(field("id", pa.int64(), 0), field("a", pa.int8(), 1), field("b", pa.int8(), 2))
    rows = stored_rows(schema, {"id": 1, "a": 1, "b": 1}, {"id": 2, "a": 2, "b": 2}, {"id": 3, TOMBSTONE: True})
    uri = write(tmp_path / "g", schema, rows)

    assert read(uri, schema, columns=["b"], where="a = 2") == [
        {"id": 2, "b": 2, TOMBSTONE: False},
        {"id": 3, "b": None, TOMBSTONE: True},
    ]
    with pytest.raises(Invalid, match="'c'"):
        read(uri, schema, columns=["c"])


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
@pytest.mark.parametrize("key", [("id",), ("id", "part")], ids=["single", "composite"])
def test_keys_of_every_type_are_found_and_absent_keys_are_not(
    tmp_path: Path, kind: pa.DataType, held: list[Any], absent: list[Any], key: tuple[str, ...]
) -> None:
    schema = table_schema(field("part", pa.utf8(), 0), field("id", kind, 1), field("v", pa.int32(), 2), key=key)
    rows = stored_rows(schema, *({"part": "p", "id": value, "v": at} for at, value in enumerate(held)))
    uri = write(tmp_path / "g", schema, rows)
    wanted = pa.table({"id": pa.array([*absent, *reversed(held)], kind), "part": ["p"] * (len(held) + len(absent))})

    found = lookup_generation(uri=uri, schema=schema, keys=wanted)

    assert sorted(found.to_pylist(), key=lambda row: row["v"]) == rows.to_pylist()
    assert lookup_generation(uri=uri, schema=schema, keys=wanted.slice(0, len(absent))).num_rows == 0


def test_a_lookup_finds_few_or_many_keys_on_several_index_pages(tmp_path: Path) -> None:
    order = [(i * 7919) % 30_000 for i in range(30_000)]
    columns = [pa.array([2 * i for i in order]), pa.array([str(i) for i in order]), pa.array([False] * 30_000)]
    rows = pa.table(columns, schema=ORDERS.stored)
    uri = write(tmp_path / "g", ORDERS, rows)
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


class _Requests(Trace):
    """Collects the kinds of the requests of a lookup."""

    def __init__(self) -> None:
        self.kinds: set[str] = set()
        self.watched = 0

    def request(self, kind: str, _size: int = 0, *, count: int = 1) -> None:
        assert count
        self.kinds.add(kind)

    def opened(self, kind: str, _dataset: Any) -> None:
        self.kinds.add(kind)

    def reads(self, _dataset: Any) -> None:
        self.watched += 1


def test_a_lookup_reads_no_page_twice_and_opens_a_generation_once(tmp_path: Path) -> None:
    rows = pa.table([list(range(20_000)), [str(n) for n in range(20_000)], [False] * 20_000], schema=ORDERS.stored)
    uri, kept = write(tmp_path / "g", ORDERS, rows), BoundedCache(1 << 20)

    def look_up(*wanted: int) -> tuple[list[int], set[str], int]:
        trace = _Requests()
        keys = pa.table({"id": wanted})
        found = lookup_generation(uri=uri, schema=ORDERS, keys=keys, filtered=True, kept=kept, trace=trace)
        return sorted(found["id"].to_pylist()), trace.kinds, trace.watched

    assert look_up(1, 19_999) == ([1, 19_999], {"key_index.read", "generation.open"}, 0)
    assert look_up(8_191, 16_384, 20_000) == ([8_191, 16_384], set(), 1)
    assert look_up(8_192, 16_384) == ([8_192, 16_384], {"key_index.read"}, 1)  # the page between them
    assert look_up(0, 8_191, 8_192, 16_383, 16_384) == ([0, 8_191, 8_192, 16_383, 16_384], set(), 1)


def test_a_generation_needs_at_least_one_row(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="at least one row"):
        write(tmp_path / "g", ORDERS, stored_rows(ORDERS))


def test_a_check_notices_lost_and_changed_rows(tmp_path: Path) -> None:
    check_notices_lost_and_changed_rows(tmp_path)


def test_a_missing_generation_is_corrupt(tmp_path: Path) -> None:
    with pytest.raises(Corrupt):
        read(str(tmp_path / "missing"), ORDERS)
    with pytest.raises(Corrupt):
        lookup_generation(uri=str(tmp_path / "missing"), schema=ORDERS, keys=pa.table({"id": [1]}))


def test_a_key_index_that_leads_to_rows_with_other_keys_is_corrupt(tmp_path: Path) -> None:
    ours, other = (
        write(tmp_path / name, ORDERS, stored_rows(ORDERS, *({"id": number} for number in range(first, first + 10))))
        for name, first in (("ours", 0), ("other", 100))
    )
    for name in ("_pk_index", "bloom_filter.bin"):
        shutil.move(Path(ours) / name, tmp_path / f"old {name}")
    shutil.copytree(Path(other) / "_pk_index", Path(ours) / "_pk_index")

    with pytest.raises(Corrupt, match="rows with other keys"):
        lookup_generation(uri=ours, schema=ORDERS, keys=pa.table({"id": [103]}))


@pytest.mark.parametrize("name", ["key_filter.bin", "bloom_filter.bin", *KEY_INDEX_FILES])
def test_the_error_of_a_cut_filter_or_key_index_names_it(tmp_path: Path, name: str) -> None:
    uri = write(tmp_path / "g", ORDERS, stored_rows(ORDERS, {"id": 1}))
    file = Path(uri, name)
    file.write_bytes(file.read_bytes()[:1])
    lookup = partial(possible_keys, filter_blocks=1) if name == "key_filter.bin" else lookup_generation

    with pytest.raises(Corrupt) as raised:
        lookup(uri=uri, schema=ORDERS, keys=pa.table({"id": pa.array([1], pa.int64())}))

    assert raised.value.where["object"] == f"{uri}/{name.partition('/')[0]}"
