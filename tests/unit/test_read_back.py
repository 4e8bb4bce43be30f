"""A merge commits only files that it has read back: a wrong file leaves the base as it was, and is named."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from lance.fragment import FragmentMetadata

from lancelsm.compaction import tasks
from lancelsm.dataset import base_rows, read_back
from lancelsm.dataset.base_rows import Base, NewFragment
from lancelsm.dataset.deletions import every_row, hidden_rows
from lancelsm.dataset.statement import named_files
from lancelsm.errors import Corrupt
from lancelsm.record.schema import FIELD_ID
from tests.simulation.marks import changed, without
from tests.simulation.removal import Scenario, with_and_without
from tests.unit.merge_environment import A, Environment, row
from tests.unit.merge_scenarios import table_with_generations

Change = Callable[[pa.RecordBatch], pa.RecordBatch]


def flipped(batch: pa.RecordBatch) -> pa.RecordBatch:
    values = batch["v"].to_numpy(zero_copy_only=False).copy()
    values[0] ^= 1
    return batch.set_column(1, batch.schema.field("v"), pa.array(values))


def null(batch: pa.RecordBatch) -> pa.RecordBatch:
    values = pa.array([None, *batch["v"].to_pylist()[1:]], batch["v"].type)
    return batch.set_column(1, batch.schema.field("v"), values)


def swapped(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.take(pa.array([1, 0, *range(2, batch.num_rows)]))


def swapped_keys(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.set_column(0, batch.schema.field("id"), swapped(batch)["id"])


def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.take(pa.array([1, *range(1, batch.num_rows)]))


def write_as(change: Change, patch: pytest.MonkeyPatch) -> None:
    """Let the writer of new fragments change the rows that it gets."""
    write = base_rows.write_rows

    def altered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        whole = pa.Table.from_batches(batches).combine_chunks().to_batches()
        yield from map(change, whole)

    def writing(base: Base, columns: pa.Schema, batches: Iterable[pa.RecordBatch]) -> tuple[NewFragment, ...]:
        return write(base, columns, altered(batches))

    patch.setattr(base_rows, "write_rows", writing)


def hide_as(change: Callable[[Any], Any], patch: pytest.MonkeyPatch) -> None:
    """Let Lance hide other rows than it should."""
    hide = base_rows.hide_rows
    patch.setattr(
        base_rows, "hide_rows", lambda base, rows: hide(base, {number: change(one) for number, one in rows.items()})
    )


def nothing_is_committed(table: Environment, *, named: str, field: str | None = None) -> None:
    before, rows = table.dataset().version, table.rows()
    with pytest.raises(Corrupt) as raised:
        table.merge()
    assert str(raised.value.where["object"]).startswith(named)
    assert raised.value.where.get("field") == field
    assert table.dataset().version == before
    assert table.rows() == rows


def wrong_rows(change: Change, field: str) -> Scenario:
    def scenario(path: Path) -> None:
        table = table_with_generations(path)
        with pytest.MonkeyPatch.context() as patch:
            write_as(change, patch)
            nothing_is_committed(table, named="data/", field=field)
        table.merge()  # the generations are still there
        table.check()

    return scenario


@pytest.mark.parametrize(
    ("change", "field"), [(flipped, "v"), (null, "v"), (swapped, "id"), (swapped_keys, "id"), (doubled, "id")]
)
def test_rows_that_differ_in_the_file_are_not_committed(change: Change, field: str, tmp_path: Path) -> None:
    wrong_rows(change, field)(tmp_path)


def test_a_merge_that_wrote_what_it_meant_reads_the_rows_of_a_generation_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Environment(tmp_path, rows=[row(1, 0)])
    table.flush(A, [row(key, key) for key in range(50)])
    read, reads = tasks.read_generation, []

    def counted(**options: Any) -> Iterator[pa.RecordBatch]:
        reads.append("keys" if options.get("columns") == () else "rows")
        return read(**options)

    monkeypatch.setattr(tasks, "read_generation", counted)
    table.merge()

    assert reads.count("rows") == 1
    table.check()


def wrong_deletions(path: Path, change: Callable[[Any], Any] = lambda offsets: offsets[:-1]) -> None:
    table = Environment(path, rows=[row(key, 0) for key in range(1000)])
    table.flush(A, [row(key, 1) for key in range(0, 1000, 3)], deleted=[1, 5])
    with pytest.MonkeyPatch.context() as patch:
        hide_as(change, patch)
        nothing_is_committed(table, named="_deletions/")
    table.merge()
    table.check()


@pytest.mark.parametrize(
    "change",
    [
        lambda offsets: offsets[:-1],
        lambda offsets: np.append(offsets, np.uint32(4)),
        lambda offsets: (offsets + 1) % 1000,
    ],
    ids=["a row too few", "a row too many", "other rows"],
)
def test_a_deletion_file_that_hides_other_rows_is_not_committed(change: Callable[[Any], Any], tmp_path: Path) -> None:
    wrong_deletions(tmp_path, change)


def fragment_is_dropped_with_a_live_row(path: Path) -> None:
    """Lance finds no row left in a fragment, but the merge hides only some of its rows."""
    table = Environment(path, rows=[row(key, 0) for key in range(4)])
    table.flush(A, [row(1, 1)])
    with pytest.MonkeyPatch.context() as patch:
        hide_as(lambda _: np.arange(4, dtype=np.uint32), patch)
        nothing_is_committed(table, named="fragment 0")


@pytest.mark.parametrize("flip", range(0, 400, 40))
def test_a_byte_that_flips_between_writing_and_reading_back_is_not_committed(
    flip: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Environment(tmp_path, rows=[row(1, 0)])
    table.flush(A, [row(key, key * 7919) for key in range(2, 50)])
    write = base_rows.write_rows

    def damaged(base: Base, *rest: Any) -> tuple[NewFragment, ...]:
        written = write(base, *rest)
        file = Path(base.uri) / read_back.data_path(written[0].metadata)
        body = bytearray(file.read_bytes())
        body[flip] ^= 16
        file.write_bytes(body)
        return written

    monkeypatch.setattr(base_rows, "write_rows", damaged)
    before = table.rows()
    refused: Corrupt | None = None
    try:
        table.merge()
    except Corrupt as error:
        refused = error
    if refused is None:
        table.check()  # the byte is padding
    else:
        assert table.rows() == before
        assert str(refused.where["object"]).startswith("data/")


@pytest.mark.parametrize("version", ["legacy", "2.0", "2.1", "2.2"])
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (pa.array([0.0, math.nan, 1.5]), pa.array([-0.0, math.nan, 1.5])),
        (pa.array([[0.0], [math.nan]], pa.list_(pa.float32())), pa.array([[-0.0], [math.nan]], pa.list_(pa.float32()))),
        (pa.array(["a", "b", "a"]).dictionary_encode(), pa.array(["a", "a", "a"]).dictionary_encode()),
        (pa.array(["", "b"]), pa.array([None, "b"])),
        (pa.array([{"a": 1}, {"a": 2}]), pa.array([{"a": 1}, {"a": None}])),
        (pa.array([[], [1]]), pa.array([None, [1]])),
    ],
)
def test_values_are_compared_bit_by_bit(version: str, right: pa.Array, wrong: pa.Array, tmp_path: Path) -> None:
    if version in ("legacy", "2.0") and (pa.types.is_nested(right.type) or wrong.null_count):
        pytest.skip("adopt refuses such a column in a file of this version, or Lance changes it")
    field = pa.field("v", _numbered(right.type), metadata={FIELD_ID: b"0"})
    columns = pa.schema([field])
    lance.write_dataset(pa.table({"v": right}), tmp_path / "base", data_storage_version=version)
    base = Base(uri=str(tmp_path / "base"), version=1)
    written = base_rows.write_rows(base, pa.schema([("v", right.type)]), pa.table({"v": right}).to_batches())

    again = [pa.record_batch([right.slice(0, 1)], names=["v"]), pa.record_batch([right.slice(1)], names=["v"])]
    read_back.check_rows(base, columns, written, again)

    with pytest.raises(Corrupt, match="column 'v'"):
        read_back.check_rows(base, columns, written, pa.table({"v": wrong}).to_batches())
    for other in (again[:1], [*again, again[0]]):
        with pytest.raises(Corrupt, match="rows"):
            read_back.check_rows(base, columns, written, other)


def _numbered(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([kind.field(0).with_metadata({FIELD_ID: b"1"})])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_metadata({FIELD_ID: b"1"}))
    return kind


@pytest.mark.parametrize(
    "hidden",
    [
        np.array([0]),
        np.array([7, 99_999]),
        np.arange(1, 100_000, 2),
        np.arange(0, 99_999),
        np.arange(60_000, 70_000),
        np.concatenate([np.arange(0, 65_536, 20), np.arange(65_536, 90_000)]),
    ],
    ids=["one", "two", "every second", "all but one", "a range", "array and run"],
)
def test_deletion_files_of_lance_are_decoded(hidden: Any, tmp_path: Path) -> None:
    dataset = lance.write_dataset(pa.table({"v": range(100_000)}), tmp_path)
    fragment = dataset.get_fragment(0).delete_rows(hidden.tolist())
    assert fragment is not None
    path = Path(str(fragment.deletion_file.path(0)))

    found = hidden_rows((tmp_path / path).read_bytes(), arrow=path.suffix == ".arrow")

    assert found.dtype == np.uint32
    assert np.array_equal(found, hidden)


@pytest.mark.parametrize("rows", [1, 65_536, 65_537, 300_000])
def test_the_own_deletion_file_of_every_row_is_decoded(rows: int) -> None:
    assert np.array_equal(hidden_rows(every_row(rows), arrow=False), np.arange(rows))


def test_a_file_that_is_no_deletion_file_is_a_value_error() -> None:
    whole = every_row(300_000)
    for body in (b"", b"x" * 50, whole[:-1], whole + b"\0", whole[:4]):
        for arrow in (False, True):
            with pytest.raises(ValueError, match="deletion file"):
                hidden_rows(body, arrow=arrow)


def other_number_of_rows(path: Path, more: int) -> None:
    """A file has a row more, or a row less, than there are."""
    table = Environment(path)
    base, columns = Base.of(table.base()), table.base().schema.columns
    rows = pa.table({"id": [1, 2], "v": [0, 0]}, schema=columns)
    written = base_rows.write_rows(base, columns, rows.slice(0, 1 + more).to_batches())
    with pytest.raises(Corrupt, match="rows"):
        read_back.check_rows(base, columns, written, rows.slice(0, 2 - more).to_batches())


def test_a_file_in_a_directory_that_the_version_lacks_is_corrupt(tmp_path: Path) -> None:
    table = Environment(tmp_path, rows=[row(key, 0) for key in range(4)])
    base, hidden = Base.of(table.base()), {0: np.array([1, 2], np.uint32)}
    metadata = json.loads(str(base_rows.hide_rows(base, hidden)[0]))
    metadata["deletion_file"]["base_id"] = 7
    with pytest.raises(Corrupt, match="directory 7") as raised:
        read_back.check_deletions(base, hidden, {0: json.dumps(metadata)})
    assert str(raised.value.where["object"]).startswith("_deletions/0-")
    with pytest.raises(Corrupt, match="directory 7"):
        list(named_files(base.open(), [FragmentMetadata.from_json(json.dumps(metadata))]))


def fragment_records_another_number_of_hidden_rows(path: Path) -> None:
    table = Environment(path, rows=[row(key, 0) for key in range(4)])
    hidden = {0: np.array([1, 2], np.uint32)}
    base = Base.of(table.base())
    metadata = json.loads(str(base_rows.hide_rows(base, hidden)[0]))
    metadata["deletion_file"]["num_deleted_rows"] = 1
    with pytest.raises(Corrupt, match="records 1 rows"):
        read_back.check_deletions(base, hidden, {0: json.dumps(metadata)})


GUARDS = {
    "merge reads its rows back": ([without("merge reads its rows back")], wrong_rows(flipped, "v")),
    "read-back compares values": ([without("read-back compares values", instead=True)], wrong_rows(flipped, "v")),
    "merge reads its deletion files back": (
        [
            changed(
                "merge reads its deletion files back",
                "dict.fromkeys(offsets, DeletionFiles(old=None, new=None))",
            )
        ],
        wrong_deletions,
    ),
    "read-back compares deletion files": ([without("read-back compares deletion files")], wrong_deletions),
    "read-back counts the rows of a fragment without rows": (
        [without("read-back counts the rows of a fragment without rows")],
        fragment_is_dropped_with_a_live_row,
    ),
    "read-back counts the rows of a file": (
        [without("read-back counts the rows of a file")],
        partial(other_number_of_rows, more=1),
    ),
    "read-back counts the rows that were meant": (
        [without("read-back counts the rows that were meant")],
        partial(other_number_of_rows, more=0),
    ),
    "read-back counts the hidden rows of a fragment": (
        [without("read-back counts the hidden rows of a fragment")],
        fragment_records_another_number_of_hidden_rows,
    ),
}

test_a_guarded_scenario_passes, test_it_fails_without_the_guard = with_and_without(
    GUARDS, own=[scenario for _, scenario in GUARDS.values()]
)
