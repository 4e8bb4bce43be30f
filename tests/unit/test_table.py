"""The public `Table`: what it accepts and refuses, and that every value is read unchanged from every level."""

from __future__ import annotations

import datetime as dt
import shutil
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lancelsm
from lancelsm.common.layout import CONFIG
from lancelsm.errors import Corrupt, Fenced, Invalid
from lancelsm.read import view_cache
from tests.unit.read_scenarios import (
    older_row_does_not_reappear,
)
from tests.unit.tables import COLUMNS, create, generation_paths, in_key_order, levels, positions, row, rows_of

UTC = dt.UTC


# Values at every level; `test_values` has all types


@pytest.mark.parametrize("values", [[[]], [[], None], [None]])
def test_a_column_of_only_empty_or_null_lists_is_read_unchanged(tmp_path: Path, values: list[Any]) -> None:
    columns = pa.schema([pa.field("id", pa.int64()), pa.field("v", pa.list_(pa.int16()))])
    table = create(tmp_path, columns)
    table.upsert({"id": list(range(len(values))), "v": values})

    for level in levels(table):
        assert [found["v"] for found in rows_of(table)] == values, level


def test_no_rows_make_no_entry(tmp_path: Path) -> None:
    table = create(tmp_path)
    before = positions(table)

    for nothing in ([], COLUMNS.empty_table(), {"id": [], "v": []}):
        committed = table.upsert(nothing)
        assert (committed.rows, committed.entries) == (0, ())
    assert table.delete([]).entries == ()
    assert table.delete(where="v = 'nobody'").entries == ()

    assert positions(table) == before
    assert rows_of(table) == []
    assert table.get([]).num_rows == 0
    assert table.flush() == []
    assert table.merge(engine="inprocess").regions == {}


def test_a_row_of_ten_megabytes_is_read_unchanged(tmp_path: Path) -> None:
    table = create(tmp_path)
    value = "x" * (10 << 20)
    table.upsert([row(1, value), row(2)])

    for level in levels(table):
        assert rows_of(table) == [row(1, value), row(2)], level


@pytest.mark.rest
def test_two_thousand_columns_are_read_unchanged(tmp_path: Path) -> None:
    names = [f"c{i}" for i in range(2000)]
    table = create(tmp_path, pa.schema([(name, pa.int32()) for name in names]), primary_key="c7")
    rows = [{name: i for i, name in enumerate(names)}, dict.fromkeys(names) | {"c7": 8}]
    table.upsert(pa.Table.from_pylist(rows, schema=pa.schema([(name, pa.int32()) for name in names])))

    for level in levels(table):
        assert rows_of(table) == rows, level


KEYS: dict[pa.DataType, list[Any]] = {
    pa.bool_(): [False, True],
    pa.int8(): [-128, 127],
    pa.int16(): [-(1 << 15), 0],
    pa.int32(): [-(1 << 31), 5],
    pa.int64(): [-(1 << 63), (1 << 63) - 1],
    pa.uint8(): [0, 255],
    pa.uint16(): [0, 65535],
    pa.uint32(): [0, (1 << 32) - 1],
    pa.uint64(): [0, (1 << 64) - 1],
    pa.string(): ["", "it's\0"],
    pa.large_string(): ["", "é"],
    pa.binary(): [b"", b"\0"],
    pa.large_binary(): [b"", b"\xff"],
    pa.date32(): [dt.date(1, 1, 1), dt.date(1970, 1, 1)],
    pa.timestamp("s"): [dt.datetime.fromisoformat(at) for at in ("1960-01-01", "2024-01-01")],
    pa.timestamp("ns", "Europe/Berlin"): [dt.datetime(year, 1, 1, tzinfo=UTC) for year in (1960, 2024)],
}
NOT_SUPPORTED_BY_LANCE = {kind for kind in KEYS if kind not in (pa.int32(), pa.int64(), pa.string(), pa.binary())}


@pytest.mark.one_case
@pytest.mark.parametrize(
    ("kind", "key"),
    # The encoding of each type in a composite key is a case of test_record_key.py.
    [*((kind, ("k",)) for kind in KEYS), *((kind, ("k", "n")) for kind in (pa.bool_(), pa.string()))],
    ids=str,
)
def test_every_key_type_is_written_found_and_deleted_at_every_level(
    tmp_path: Path, kind: pa.DataType, key: tuple[str, ...]
) -> None:
    columns = pa.schema([pa.field("w", pa.large_list(pa.int8())), pa.field("n", pa.int64()), pa.field("k", kind)])
    if kind in NOT_SUPPORTED_BY_LANCE:
        with pytest.warns(UserWarning, match="types of k"):
            table = create(tmp_path, columns, primary_key=key, regions="bucket(k, 2)")
    else:
        table = create(tmp_path, columns, primary_key=key, regions="bucket(k, 2)")
    rows = [{"w": [1], "n": 1, "k": value} for value in KEYS[kind]]

    def keys_of(row: dict[str, Any]) -> pa.Table:
        return pa.table({name: pa.array([row[name]], columns.field(name).type) for name in key})

    def check(rows: list[dict[str, Any]]) -> None:
        assert rows_of(table) == rows
        assert [table.get(keys_of(row)).to_pylist() for row in rows] == [[row] for row in rows]

    table.upsert(pa.Table.from_pylist(rows, schema=columns))
    for _ in levels(table):
        check(rows)
    lance.dataset(table.uri).create_scalar_index("k", "BTREE")
    check(rows)
    removed = keys_of(rows.pop(0))
    table.delete(removed)
    for _ in levels(table):
        check(rows)
        assert table.get(removed).num_rows == 0


@pytest.mark.one_case
@pytest.mark.parametrize("name", ["level", "_level", "value", "ids", "values", "select", "A", "é", "a b", "_score"])
def test_a_key_column_may_have_any_name_that_lance_allows(tmp_path: Path, name: str) -> None:
    columns = pa.schema([pa.field("a", pa.int64()), pa.field(name, pa.string())])
    table = create(tmp_path, columns, primary_key=(name, "a"))
    table.upsert([{"a": 1, name: "x"}, {"a": 1, name: "y"}])
    table.delete([{"a": 1, name: "y"}])

    for level in levels(table):
        assert rows_of(table, where="a = 1") == [{"a": 1, name: "x"}], level
        assert table.get([{"a": 1, name: "x"}, {"a": 1, name: "y"}]).num_rows == 1, level


def test_a_table_may_have_only_key_columns(tmp_path: Path) -> None:
    table = create(tmp_path, pa.schema([pa.field("id", pa.int64())]))
    table.upsert({"id": [1, 2, 2]})
    table.delete([1])

    for level in levels(table):
        assert rows_of(table) == [{"id": 2}], level


# Refused input


def text_that_is_not_utf8() -> pa.Table:
    offsets, data = pa.array([0, 1], pa.int32()).buffers()[1], pa.py_buffer(b"\xff")
    return pa.table({"id": [1], "v": pa.Array.from_buffers(pa.string(), 1, [None, offsets, data])})


REFUSED: dict[str, tuple[Any, str]] = {
    "null key": ([row(1), {"id": None, "v": "a"}], "id"),
    "missing key": ([{"v": "a"}], "id"),
    "unknown column": ([{**row(1), "x": 1}], "x"),
    "missing column": ([{"id": 1}], "v"),
    "ragged rows": ([row(1), {"id": 2}], "v"),
    "number for text": ([row(1), {"id": 2, "v": 3}], "v"),
    "text for number": ([{"id": "1", "v": "a"}], "id"),
    "bool for number": ([{"id": True, "v": "a"}], "id"),
    "fraction": ([{"id": 1.5, "v": "a"}], "id"),
    "overflow": ([{"id": 1 << 63, "v": "a"}], "id"),
    "arrow overflow": (pa.table({"id": pa.array([(1 << 64) - 1], pa.uint64()), "v": ["a"]}), "id"),
    "arrow text for number": (pa.table({"id": ["1"], "v": ["a"]}), "id"),
    "not utf-8": (text_that_is_not_utf8(), "v"),
    "column twice": (pa.Table.from_arrays([pa.array([1]), pa.array(["a"]), pa.array(["b"])], ["id", "v", "v"]), "v"),
    "columns of two lengths": ({"id": [1, 2], "v": ["a"]}, None),
    "a scalar": (5, None),
    "text": ("id", None),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_batch_with_one_invalid_row_is_refused_as_a_whole(tmp_path: Path, case: str) -> None:
    table = create(tmp_path, regions="bucket(id, 2)")
    table.upsert([row(7)])
    before = positions(table)
    data, field = REFUSED[case]

    with pytest.raises(Invalid) as raised:
        table.upsert(data)

    assert raised.value.where.get("field") == field
    assert positions(table) == before
    assert rows_of(table) == [row(7)]


def test_a_repeated_key_is_refused_on_request_and_by_default_its_last_row_wins(tmp_path: Path) -> None:
    table = create(tmp_path)
    with pytest.raises(Invalid, match=r"duplicate key .* in rows 0 and 2"):
        table.upsert([row(1, "a"), row(2), row(1, "b")], on_duplicate="error")
    assert rows_of(table) == []

    assert table.upsert([row(1, "a"), row(2), row(1, "b")]).rows == 2
    assert rows_of(table) == [row(1, "b"), row(2)]


@pytest.mark.parametrize("keys", [[None], ["1"], [{"id": 1, "v": "a"}], [{"x": 1}], {"v": ["a"]}, 5.5, "id", (1, "a")])
def test_invalid_keys_are_refused(tmp_path: Path, keys: Any) -> None:
    table = create(tmp_path)

    for call in (table.delete, table.get):
        with pytest.raises(Invalid):
            call(keys)


def test_delete_takes_either_keys_or_a_condition(tmp_path: Path) -> None:
    table = create(tmp_path)

    for arguments in ({}, {"keys": [1], "where": "id = 1"}):
        with pytest.raises(Invalid, match="keys or a condition, and not both"):
            table.delete(**arguments)


@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize("where", ["x = 1", "v =", "id = 'a' AND (", "nobody(id) = 1", "id"])
def test_an_invalid_condition_is_refused(tmp_path: Path, where: str, merged: bool) -> None:
    table = create(tmp_path)
    table.upsert([row(1)])
    if merged:
        table.flush()
        table.merge(engine="inprocess")

    for call in (table.scan, table.delete):
        with pytest.raises(Invalid):
            call(where=where)


@pytest.mark.parametrize("where", ["\"v\" <> 'a'", 'id = 1 OR "v" IS NULL'])
def test_a_column_in_double_quotes_is_refused_because_lance_reads_it_as_text(tmp_path: Path, where: str) -> None:
    table = create(tmp_path, [row(1, "a")])

    for call in (table.scan, table.delete):
        with pytest.raises(Invalid, match="Write `v` for the column, 'v' for the text"):
            call(where=where)
    for text in ('v = "a"', "`v` <> '\"v\"'", "v <> 'it''s \"v\"'"):
        assert rows_of(table, where=text) == [row(1, "a")], text


def test_the_error_for_an_invalid_condition_quotes_it_in_one_line(tmp_path: Path) -> None:
    table = create(tmp_path)

    with pytest.raises(Invalid, match=r"^the condition 'nobody\(id\) = 1' can't be applied: .*'quotes'") as raised:
        table.scan(where="nobody(id) = 1")

    assert "\n" not in str(raised.value)


def test_invalid_arguments_of_reads_and_merges_are_refused(tmp_path: Path) -> None:
    table = create(tmp_path)

    for order_by in (None, "id"):
        with pytest.raises(Invalid, match="the limit is -1"):
            table.scan(limit=-1, order_by=order_by)
    with pytest.raises(Invalid, match=r"Give a list: \['id'\]"):
        table.get([1], columns="id")
    with pytest.raises(Invalid, match="engine is 'steam'"):
        table.merge(engine="steam")  # type: ignore[arg-type]


def test_an_unknown_or_repeated_column_is_refused_by_every_read(tmp_path: Path) -> None:
    table = create(tmp_path)

    with pytest.raises(Invalid, match="no column 'x'"):
        table.scan(columns=["id", "x"])
    with pytest.raises(Invalid, match="no column 'x'"):
        table.get([1], columns=["x"])
    with pytest.raises(Invalid, match="'id' is named twice"):
        table.scan(columns=["id", "v", "id"])


def test_invalid_columns_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    key = pa.field("id", pa.int64())
    for wrong in (
        [pa.field("_tombstone", pa.bool_())],
        [pa.field("v", pa.int8()), pa.field("v", pa.string())],
        [pa.field("a.b", pa.int8())],
        [pa.field("", pa.int8())],
        [pa.field("`", pa.int8())],
        [pa.field('"', pa.int8())],
        [pa.field("_rowid", pa.int64())],
    ):
        with pytest.raises(Invalid):
            create(tmp_path, pa.schema([key, *wrong]))
        assert not (tmp_path / "table" / "_versions").exists(), wrong


@pytest.mark.parametrize(
    "kind",
    [
        pa.float32(),
        pa.float64(),
        pa.decimal128(5, 2),
        pa.list_(pa.int8()),
        pa.struct([("a", pa.int8())]),
        pa.null(),
        pa.date64(),
        pa.time32("s"),
        pa.duration("s"),
        pa.binary(4),
        pa.dictionary(pa.int8(), pa.string()),
    ],
    ids=str,
)
def test_a_type_without_a_unique_encoding_is_refused_as_a_key(tmp_path: Path, kind: pa.DataType) -> None:
    with pytest.raises(Invalid, match="can't be a primary key"):
        create(tmp_path, pa.schema([pa.field("id", kind)]))
    assert not (tmp_path / "table" / "_versions").exists()


@pytest.mark.parametrize("key", [(), ("id", "id"), "nobody", ("id", "nobody")])
def test_an_empty_unknown_or_repeated_key_column_is_refused(tmp_path: Path, key: Any) -> None:
    with pytest.raises(Invalid):
        create(tmp_path, primary_key=key)


@pytest.mark.parametrize(
    "regions", ["bucket(v, 2)", "bucket(id, 0)", "bucket(id, 1025)", "nobody(id)", "expr(random() < 0.5)", "expr(v)"]
)
def test_a_region_spec_that_the_key_does_not_determine_is_refused(tmp_path: Path, regions: str) -> None:
    with pytest.raises(Invalid):
        create(tmp_path, regions=regions)
    assert not (tmp_path / "table" / "_versions").exists()


def test_rows_given_to_create_are_checked_like_any_others(tmp_path: Path) -> None:
    with pytest.raises(Invalid):
        create(tmp_path, [row(1), {"id": None, "v": "a"}])
    assert not (tmp_path / "table" / "_versions").exists()

    table = create(tmp_path, [row(1, "a"), row(2), row(1, "b")])
    assert rows_of(table) == [row(1, "b"), row(2)]
    assert positions(table) == dict.fromkeys(positions(table), 1)


# Locations


def test_a_location_without_a_table_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="there is no table at this location"):
        lancelsm.open(tmp_path / "nowhere")
    lance.write_dataset(pa.table({"id": [1]}), str(tmp_path / "lance"))
    with pytest.raises(Invalid, match="there is no table at this location"):
        lancelsm.open(tmp_path / "lance")


def test_create_refuses_the_location_of_another_table(tmp_path: Path) -> None:
    create(tmp_path, [row(1)])

    with pytest.raises(Invalid, match="a table already exists at this location"):
        create(tmp_path, [row(2)])

    assert rows_of(lancelsm.open(tmp_path / "table")) == [row(1)]


@pytest.mark.rest
@pytest.mark.parametrize("location", ["file", "file/table"])
def test_create_refuses_a_location_that_is_a_file_or_below_one(tmp_path: Path, location: str) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(Invalid, match="a file exists where a directory should be"):
        lancelsm.create(tmp_path / location, COLUMNS, primary_key="id")


def test_create_refuses_the_location_of_a_lance_dataset(tmp_path: Path) -> None:
    lance.write_dataset(pa.table({"id": [1], "v": ["a"]}), str(tmp_path / "table"))

    with pytest.raises(Invalid, match="adopt"):
        create(tmp_path)

    assert lance.dataset(str(tmp_path / "table")).to_table().to_pylist() == [row(1)]


def test_a_path_a_string_and_a_url_name_the_same_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create(tmp_path, [row(1)])
    monkeypatch.chdir(tmp_path)

    for location in (tmp_path / "table", str(tmp_path / "table") + "/", "table", f"file://{tmp_path}/table"):
        table = lancelsm.open(location)
        table.upsert([row(2)])
        table.flush()
        table.merge(engine="inprocess")
        assert rows_of(table) == [row(1), row(2)]


# Changes of the base by other tools


def overwrite(path: Path) -> None:
    rows = pa.table([[9], ["z"]], schema=pa.schema([COLUMNS.field(0).with_nullable(False), COLUMNS.field(1)]))
    lance.write_dataset(rows, str(path / "table"), mode="overwrite")


def test_a_base_that_another_tool_overwrote_is_corrupt(tmp_path: Path) -> None:
    table = create(tmp_path)
    table.upsert([row(1)])
    table.flush()
    overwrite(tmp_path)

    for call in (table.scan, lambda: table.get([1]), table.flush, lambda: table.merge(engine="inprocess")):
        with pytest.raises(Corrupt):
            call()
    assert lance.dataset(table.uri).to_table().to_pylist() == [row(9, "z")]


def test_a_base_that_was_restored_to_an_older_version_is_merged_again(tmp_path: Path) -> None:
    table = create(tmp_path, [row(0)])
    versions = []
    for n in range(1, 4):
        versions.append(lance.dataset(table.uri).version)
        table.upsert([row(n), row(0, str(n))])
        table.delete([n - 1] if n > 1 else [77])
        table.flush()
        table.merge(engine="inprocess")
    before = rows_of(table)

    for version in reversed(versions):
        lance.dataset(table.uri, version=version).restore()
        assert rows_of(table) == before
        assert [region.generations for region in table.status().regions] == [4 - versions.index(version) - 1]
        table.merge(engine="inprocess")
        assert rows_of(table) == before
        assert lance.dataset(table.uri).count_rows() == len(before)


def test_rows_that_another_tool_appends_to_the_base_are_read(tmp_path: Path) -> None:
    table = create(tmp_path, [row(1)])
    table.upsert([row(2, "ours")])
    rows = pa.table([[2, 3], ["theirs", "theirs"]], schema=lance.dataset(table.uri).schema)
    lance.write_dataset(rows, table.uri, mode="append")

    assert rows_of(table) == [row(1), row(2, "ours"), row(3, "theirs")]


# Missing objects


def test_a_read_takes_a_second_view_if_a_generation_is_collected_before_the_first_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = create(tmp_path)
    table.upsert([row(1)])
    table.flush()
    views = []

    def collect_after_the_first_view(*arguments: Any, **options: Any) -> Any:
        views.append(take_view(*arguments, **options))
        if len(views) == 1:
            lancelsm.open(table.uri).merge(engine="inprocess")
            shutil.rmtree(generation_paths(tmp_path)[0])
        return views[-1]

    take_view = view_cache.take_view
    monkeypatch.setattr(view_cache, "take_view", collect_after_the_first_view)

    assert rows_of(table) == [row(1)]
    assert len(views) == 2


def test_the_error_names_a_missing_generation(tmp_path: Path) -> None:
    table = create(tmp_path)
    table.upsert([row(1)])
    table.flush()
    (removed,) = generation_paths(tmp_path)
    shutil.rmtree(removed)

    for call in (table.scan, lambda: table.get([1])):
        with pytest.raises(Corrupt) as error:
            call()
        assert removed.name in str(error.value)


def test_the_error_names_a_missing_entry(tmp_path: Path) -> None:
    table = create(tmp_path)
    table.upsert([row(1)])
    table.upsert([row(2)])
    (newest, *_) = sorted((tmp_path / "table" / "_mem_wal").glob("*/wal/*.arrow"))
    newest.unlink()

    for call in (table.scan, table.flush):
        with pytest.raises(Corrupt, match=r"a committed entry is gone .*position \d"):
            call()


# Regions and owners


def test_a_region_is_found_by_its_id(tmp_path: Path) -> None:
    table = create(tmp_path, regions="bucket(id, 2)")

    assert [table.region(one.id) for one in table.list_regions()] == table.list_regions()
    with pytest.raises(Invalid, match="region not found"):
        table.region("no hexadecimal")


def test_a_table_opened_with_its_own_owner_claims_at_the_first_write_and_fences_all_others(tmp_path: Path) -> None:
    table = create(tmp_path)
    table.upsert([row(1)])
    loader = lancelsm.open(table.uri, owner="loader-2")

    loader.upsert([row(2)])
    with pytest.raises(Fenced, match="held by 'loader-2' in epoch 2") as error:
        table.upsert([row(3)])

    assert "lancelsm region claim" in error.value.remedy
    assert rows_of(table) == [row(1), row(2)]
    (region,) = table.list_regions()
    table.claim(region)
    table.upsert([row(3)])
    with pytest.raises(Fenced, match="held by 'default' in epoch 3"):
        loader.upsert([row(4)])
    assert rows_of(table) == [row(1), row(2), row(3)]


def test_a_sealed_region_refuses_writes_and_can_be_read_flushed_and_merged(tmp_path: Path) -> None:
    table = create(tmp_path)
    table.upsert([row(1)])
    (region,) = table.list_regions()
    table.seal(region)
    table.seal(region)

    for call in (lambda: table.upsert([row(2)]), lambda: table.delete([1]), lambda: table.claim(region)):
        with pytest.raises(Invalid, match="sealed"):
            call()
    for level in levels(table):
        assert rows_of(table) == [row(1)], level
    assert [one.status for one in table.status().regions] == ["sealed"]


def test_a_batch_fails_only_for_the_regions_that_refuse_it(tmp_path: Path) -> None:
    table = create(tmp_path, regions="identity(id)")
    table.upsert([row(1), row(2)])
    table.seal(
        next(region for region in table.list_regions() if int.from_bytes(region.values[0][1] or b"", "little") == 1)
    )

    with pytest.raises(Invalid, match="sealed"):
        table.upsert([row(1, "new"), row(2, "new"), row(3, "new")])

    assert rows_of(table) == [row(1), row(2, "new"), row(3, "new")]


def test_an_error_of_one_region_counts_the_rows_that_other_regions_acknowledged(tmp_path: Path) -> None:
    # Given two regions, one of them sealed
    table = create(tmp_path, regions="bucket(id, 2)")
    first, second = (region for region in table.list_regions())
    table.seal(first)

    # When rows of both regions are written
    with pytest.raises(Invalid, match="sealed") as raised:
        table.upsert([row(i) for i in range(20)])

    # Then the rows of the other region are there, and the error counts them
    assert raised.value.where["region"] == first.id
    assert raised.value.where["rows_in_other_regions"] == table.scan().to_arrow().num_rows > 0
    assert second.head().wal_rows == raised.value.where["rows_in_other_regions"]


# Streams of rows


def test_a_scan_is_an_arrow_stream_that_can_be_read_once(tmp_path: Path) -> None:
    table = create(tmp_path)
    table.upsert([row(1), row(2)])

    assert pa.table(table.scan()).num_rows == 2
    assert pa.RecordBatchReader.from_stream(table.scan()).read_all().num_rows == 2
    assert sum(batch.num_rows for batch in table.scan()) == 2
    assert sum(batch.num_rows for batch in table.scan().to_batches()) == 2
    assert table.scan().schema.names == COLUMNS.names
    assert table.scan(columns=["v"]).to_arrow().column_names == ["v"]
    assert repr(table.scan(columns=["v"])).startswith("<lancelsm.Rows ['v']: read them once")
    rows = table.scan()
    assert rows.to_arrow().num_rows == 2
    with pytest.raises(Invalid, match="already read"):
        rows.to_arrow()


def test_a_scan_shows_the_table_at_the_time_of_the_call(tmp_path: Path) -> None:
    table = create(tmp_path, [row(1)])
    table.upsert([row(2)])
    scan = table.scan()
    table.upsert([row(2, "new"), row(3)])
    table.delete([1])
    table.flush()
    table.merge(engine="inprocess")

    assert in_key_order(table, scan.to_arrow()) == [row(1), row(2)]


def test_an_older_row_does_not_reappear_because_the_newer_row_fails_the_condition(tmp_path: Path) -> None:
    older_row_does_not_reappear(tmp_path)


@pytest.mark.parametrize("limit", [0, 1, 3, 100])
def test_a_limit_counts_live_rows(tmp_path: Path, limit: int) -> None:
    table = create(tmp_path, [row(key) for key in range(5)])
    table.delete([0, 1])
    table.flush()
    table.upsert([row(9), row(2, "b")])
    table.delete([3])

    assert table.scan(limit=limit).to_arrow().num_rows == min(limit, 3)


def test_a_configuration_of_a_newer_release_is_refused_and_the_error_says_what_to_install(tmp_path: Path) -> None:
    table = create(tmp_path)
    path = Path(table.uri) / CONFIG
    path.write_text(path.read_text().replace('"format": 2', '"format": 3'))

    with pytest.raises(Invalid, match="format 3, this release reads up to 2") as error:
        lancelsm.open(table.uri)
    assert "newer lancelsm" in error.value.remedy
