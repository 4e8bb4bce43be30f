"""Slices of rows with structs, which Lance can't write: every writer hands Lance copies of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Final

import lance
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import lancelsm
from lancelsm.compaction import fold
from lancelsm.compaction.optimize import optimize_base
from lancelsm.dataset import base_table, copies, native, optimize
from lancelsm.dataset.base_rows import Base, write_rows
from lancelsm.dataset.base_table import open_base
from lancelsm.dataset.conditions import read_condition
from lancelsm.dataset.copies import read_copy, write_copy
from lancelsm.dataset.generation import check_generation, read_generation
from lancelsm.record.batches import without_slices
from lancelsm.record.rowsum import row_setsum
from lancelsm.record.schema import TOMBSTONE
from tests.unit.arrow_values import exact
from tests.unit.generations import field, table_schema, write
from tests.unit.value_levels import Model, check_levels, columns_of, rows_of

BITS: Final = pa.struct([("f", pa.bool_()), ("g", pa.int8())])
KINDS: Final = {
    "struct": BITS,
    "struct in struct": pa.struct([("s", BITS), ("t", pa.string())]),
    "list in struct": pa.struct([("l", pa.list_(BITS)), ("b", pa.list_(pa.bool_(), 3))]),
    "list": pa.list_(BITS),
    "large_list": pa.large_list(BITS),
    "list in list": pa.list_(pa.list_(BITS)),
    "struct in struct in list": pa.list_(pa.struct([("s", BITS)])),
    "map": pa.map_(pa.string(), pa.struct([("s", BITS)])),
}
CUTS: Final = [(0, 8), (8, 4), (9, 11), (20, 1), (23, 17)]  # start and number of rows


def slices(rows: pa.Table) -> list[pa.RecordBatch]:
    (batch,) = rows.combine_chunks().to_batches()
    return [batch.slice(start, count) for start, count in CUTS]


def taken(rows: pa.Table) -> pa.Table:
    return rows.take([at for start, count in CUTS for at in range(start, start + count)])


def drawn(kind: pa.DataType, count: int = 40) -> pa.Table:
    return rows_of(columns_of([kind]), range(count), Random(f"{kind}"))


def same(found: pa.Table, expected: pa.Table) -> bool:
    return all(exact(found[name]) == exact(expected[name]) for name in expected.schema.names)


@pytest.mark.parametrize(
    ("inside", "version"),
    [(inside, version) for inside in KINDS for version in ("2.1", "2.2", "2.3") if (inside, version) != ("map", "2.1")],
)
def test_a_generation_is_written_of_slices(tmp_path: Path, inside: str, version: str) -> None:
    schema = table_schema(field("id", pa.int64(), 0), _numbered("v", KINDS[inside], iter(range(1, 99))))
    drawn_rows = drawn(KINDS[inside]).append_column(TOMBSTONE, pa.array([False] * 40))
    whole = pa.Table.from_arrays(
        [column.cast(to.type) for column, to in zip(drawn_rows.columns, schema.stored, strict=True)],
        schema=schema.stored,
    )
    rows = taken(whole)

    uri = write(tmp_path / "g", schema, pa.Table.from_batches(slices(whole)), version)

    found = pa.Table.from_batches(read_generation(uri=uri, schema=schema))
    assert same(found, rows)
    check_generation(uri=uri, schema=schema, rows=rows.num_rows, setsum=row_setsum(rows))


def _numbered(name: str, kind: pa.DataType, numbers: Iterator[int]) -> pa.Field:
    number = next(numbers)
    if pa.types.is_struct(kind):
        kind = pa.struct([_numbered(one.name, one.type, numbers) for one in kind])
    elif pa.types.is_map(kind):
        next(numbers)
        key, item = (_numbered(one.name, one.type, numbers) for one in (kind.key_field, kind.item_field))
        kind = pa.map_(key.with_nullable(False), item)
    elif pa.types.is_fixed_size_list(kind):
        kind = pa.list_(_numbered("item", kind.value_type, numbers), kind.list_size)
    elif pa.types.is_nested(kind):
        make = pa.large_list if pa.types.is_large_list(kind) else pa.list_
        kind = make(_numbered("item", kind.value_type, numbers))
    return field(name, kind, number)


@pytest.mark.parametrize("inside", KINDS)
def test_a_copy_is_written_of_slices_and_of_batches_that_cross_the_end_of_a_file(
    tmp_path: Path, inside: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "FILE_ROWS", 13)
    monkeypatch.setattr(native, "FILE_ROWS", 13)
    rows = drawn(KINDS[inside])
    batches = [*slices(rows), *rows.to_batches()]

    write_copy(uri=str(tmp_path / "copy"), columns=rows.schema, rows=batches)

    found = pa.Table.from_batches(read_copy(uri=str(tmp_path / "copy"), columns=rows.schema))
    assert same(found, pa.concat_tables([taken(rows), rows]))
    counts = [one.count_rows() for one in lance.dataset(tmp_path / "copy").get_fragments()]
    assert counts == [13] * 6 + [3]


@pytest.mark.parametrize("inside", KINDS)
def test_rows_of_a_condition_may_be_slices(inside: str) -> None:
    rows = pa.Table.from_batches(slices(drawn(KINDS[inside])))
    condition = read_condition("id >= 25", columns=rows.schema, table="t")

    found = condition.matching(rows, table="t")

    assert exact(found["v0"]) == exact(rows.filter(pc.field("id") >= 25)["v0"])


def test_a_base_is_created_and_extended_with_slices_and_with_files_that_end_in_a_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (base_table, native):
        monkeypatch.setattr(module, "FILE_ROWS", 13)
    columns = columns_of(KINDS.values())
    rows = rows_of(columns, range(40), Random(1))
    table = lancelsm.create(tmp_path / "table", rows.slice(9), primary_key="id")
    base = open_base(uri=table.uri)

    assert same(table.scan().to_arrow().sort_by("id"), rows.slice(9))
    new = write_rows(Base.of(base), rows.schema, slices(rows))
    assert sum(one.rows for one in new) == sum(count for _, count in CUTS)


def test_rows_with_structs_are_kept_at_every_level_in_batches_of_any_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fold, "_BATCH_ROWS", 7)
    columns = columns_of([KINDS["struct"], KINDS["struct in struct"], KINDS["list"]])
    table = lancelsm.create(tmp_path / "table", columns, primary_key="id")
    random = Random(2)
    batches = [rows_of(columns, range(at, at + count), random) for at, count in ((0, 12), (6, 40), (3, 9), (20, 5))]

    check_levels(table, tmp_path, [batches[0], batches[1].slice(3), *batches[2:]], Model())


def test_fragments_with_more_rows_than_a_file_has_are_compacted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optimize, "TARGET_ROWS", 100)  # as Lance does it with a million
    columns = columns_of(KINDS.values())
    table = lancelsm.create(tmp_path / "table", columns, primary_key="id")
    for part in range(3):
        table.upsert(rows_of(columns, range(77 * part, 77 * part + 77), Random(part)))
        table.flush()
        table.merge(engine="inprocess")
    table.delete([0, 80, 160])
    table.flush()
    table.merge(engine="inprocess")
    wanted = table.scan().to_arrow().sort_by("id")

    done = optimize_base(uri=table.uri, small_fragments=2)

    assert (done.fragments_removed, done.fragments_added) == (3, 1)
    assert same(table.scan().to_arrow().sort_by("id"), wanted)


def test_only_slices_with_structs_are_copied() -> None:
    rows = rows_of(columns_of([pa.list_(pa.bool_()), pa.string(), BITS, pa.list_(BITS)]), range(40), Random(3))
    (batch,) = rows.to_batches()
    cut = batch.slice(9, 11)

    assert addresses(without_slices(batch)) == addresses(batch)
    assert addresses(without_slices(batch.slice(0, 11))) == addresses(batch.slice(0, 11))
    assert without_slices(cut).equals(cut)
    before, after = addresses(cut), addresses(without_slices(cut))
    assert after[:3] == before[:3]
    assert not {*after[3]} & {*before[3]}
    assert not {*after[4]} & {*before[4]}


def addresses(batch: pa.RecordBatch) -> list[list[int]]:
    return [[one.address for one in column.buffers() if one is not None] for column in batch.columns]
