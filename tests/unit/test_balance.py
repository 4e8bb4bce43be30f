"""Checksums find damage in the log and in generations: the error names the object, and the table keeps its rows."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace as changed
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lancelsm
from lancelsm.common.layout import (
    Epoch,
    Generation,
    Key,
    Nonce,
    Position,
    RegionId,
    bitrev64,
    head_key,
    wal_entry,
    wal_prefix,
)
from lancelsm.common.setsum import Setsum
from lancelsm.compaction import maintenance, tasks
from lancelsm.compaction.plan import Sums
from lancelsm.dataset.base_rows import Base
from lancelsm.dataset.generation_writer import write_generation
from lancelsm.errors import Corrupt
from lancelsm.objects import Body, WriteUnknown, Written
from lancelsm.objects.filesum import FileSums
from lancelsm.record.normalize import deletes, upserts
from lancelsm.record.rowsum import row_setsum
from lancelsm.record.schema import TableSchema, conform, numbered
from lancelsm.region.handle import Ports
from lancelsm.registry import Fields, SwapApplied
from lancelsm.registry import SwapUnknown as NoAnswer
from lancelsm.table import Table
from lancelsm.wal.entry import decode, draft, encode
from lancelsm.wal.replay import stored_rows
from tests.simulation.faults import FaultPlan, FaultyRegistry
from tests.unit.balance_scenarios import (
    ENTRIES,
    FAULTS,
    FIRST_WRONG,
    LOG_READERS,
    SCHEMA,
    Fault,
    claim_compares_totals_with_the_head,
    corrupt_location,
    first_wrong_entry_is_named,
    location_of,
    reopened,
    replace,
    table_with_tail,
)
from tests.unit.tables import create, faulty, generation_paths, row, rows_of


@pytest.mark.one_case
@pytest.mark.parametrize("operation", LOG_READERS)
@pytest.mark.parametrize("fault", FIRST_WRONG)
def test_every_reader_of_the_log_names_the_first_wrong_entry(tmp_path: Path, fault: Fault, operation: str) -> None:
    first_wrong_entry_is_named(tmp_path, fault=fault, operation=operation)


@pytest.mark.parametrize("operation", ["scan", "get", "snapshot", "flush", "claim", "claim by an exclusive writer"])
def test_a_sound_entry_in_place_of_a_committed_one_is_reported_as_a_range(tmp_path: Path, operation: str) -> None:
    table, entries = table_with_tail(tmp_path)
    table.snapshot("kept")
    replace(entries)

    where = corrupt_location(lambda: LOG_READERS[operation](table))

    (region,) = table.list_regions()
    assert where == {**location_of(table, 1), "position": "1..3", "object": wal_prefix(region.id)}
    assert generation_paths(tmp_path) == []


@pytest.mark.parametrize("operation", ["scan", "get", "flush", "change stream"])
def test_an_entry_with_a_damaged_schema_is_named(tmp_path: Path, operation: str) -> None:
    table, entries = table_with_tail(tmp_path)
    body = bytearray(entries[1].read_bytes())
    body[body.index(b"\x01\x00\x00\x000\x00") + 4] ^= 4  # the id of a field
    entries[1].write_bytes(body)

    assert corrupt_location(lambda: LOG_READERS[operation](table)) == location_of(table, 2)


def lost_after_the_swap(table: Table, path: Path) -> object:
    """The object disappears right after the head has moved past it, and the reply of the swap is lost."""
    plan = FaultPlan()

    class Losing(FaultyRegistry):
        def swap(self, key: Key, *, expect: Fields | None, change: Fields) -> Any:
            outcome = super().swap(key, expect=expect, change=change)
            path.unlink()
            return NoAnswer(cause="lost") if isinstance(outcome, SwapApplied) else outcome

    ports = faulty(plan)
    registry = ports.registry
    losing = changed(ports, registry=lambda kind, **options: Losing(registry(kind, **options).inner, plan))
    return lancelsm.open.on(losing)(table.uri).upsert([row(9)])


def damaged_in_flight(table: Table, _: Path) -> object:
    return lancelsm.open.on(_damaging(FaultPlan()))(table.uri).upsert([row(9)])


def doubled_above_the_head(table: Table, path: Path) -> object:
    path.write_bytes((path.parent / f"{bitrev64(1)}.arrow").read_bytes())
    return reopened(table).upsert([row(9)])


def swapped_above_the_head(table: Table, path: Path) -> object:
    rows = draft(upserts([row(9)], schema=SCHEMA))
    for position, at in ((ENTRIES + 1, ENTRIES + 2), (ENTRIES + 2, ENTRIES + 1)):
        body = encode(rows, position=Position(at), epoch=Epoch(1), nonce=Nonce("d" * 32)).body
        (path.parent / f"{bitrev64(position)}.arrow").write_bytes(body)
    return reopened(table).upsert([row(9)])


@pytest.mark.parametrize(
    "fault", [damaged_in_flight, lost_after_the_swap, doubled_above_the_head, swapped_above_the_head]
)
def test_an_append_names_a_wrong_object_at_its_position_and_acknowledges_nothing(
    tmp_path: Path, fault: Callable[[Table, Path], object]
) -> None:
    table, entries = table_with_tail(tmp_path)

    where = corrupt_location(lambda: fault(table, entries[0].parent / f"{bitrev64(ENTRIES + 1)}.arrow"))

    assert where == location_of(table, ENTRIES + 1)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("field", ["entry_setsum", "wal_rows", "wal_bytes", "next_position"])
def test_an_append_acknowledges_nothing_if_the_swap_returns_other_totals(
    tmp_path: Path, field: str, depth: int
) -> None:
    table, _ = table_with_tail(tmp_path)
    plan = FaultPlan()

    class StaleTotals(FaultyRegistry):
        """Returns the new record of a swap with the old value of one field."""

        def swap(self, key: Key, *, expect: Fields | None, change: Fields) -> Any:
            before = self.inner.read(key) or {}
            outcome = super().swap(key, expect=expect, change=change)
            if "next_position" in change and isinstance(outcome, SwapApplied) and field in before:
                return SwapApplied(record={**outcome.record, field: before[field]})
            return outcome

    ports = faulty(plan)
    registry = ports.registry
    stale = changed(ports, registry=lambda kind, **options: StaleTotals(registry(kind, **options).inner, plan))
    writer = lancelsm.open.on(stale)(table.uri).writer(pipeline_depth=depth)

    with pytest.raises(Corrupt, match=field) as caught:
        writer.upsert([row(9)])

    (region,) = table.list_regions()
    assert (caught.value.where["region"], "position" in caught.value.where) == (region.id, True)


@pytest.mark.parametrize("operation", ["scan", "get", "claim"])
def test_a_head_without_a_tail_must_have_the_sum_of_its_manifest(tmp_path: Path, operation: str) -> None:
    table, _ = table_with_tail(tmp_path)
    table.flush()
    (region,) = table.list_regions()
    head = region.head()
    other = (head.entry_setsum + Setsum.of_item(b"other")).hex()
    region.context.registry.swap(head_key(table.config.table, region.id), expect={}, change={"entry_setsum": other})

    where = corrupt_location(lambda: LOG_READERS[operation](table))

    assert (where["region"], where["position"], where["object"]) == (region.id, ENTRIES, head.manifest_key)


@pytest.mark.parametrize("field", ["wal_rows", "wal_bytes"])
def test_a_claim_compares_rows_and_bytes_with_the_head(tmp_path: Path, field: str) -> None:
    claim_compares_totals_with_the_head(tmp_path, field)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_collection_deletes_no_log_that_differs_from_what_was_flushed(tmp_path: Path, fault: Fault) -> None:
    table, entries = table_with_tail(tmp_path)
    table.flush()
    table.merge(engine="inprocess")
    fault(entries)

    where = corrupt_location(lambda: table.collect(yes=True, interval_seconds=0))

    (region,) = table.list_regions()
    if fault in FIRST_WRONG:
        assert where == location_of(table, FIRST_WRONG[fault])
    else:  # the entry itself is sound
        assert where == {**location_of(table, 1), "position": f"1..{ENTRIES}", "object": wal_prefix(region.id)}
    assert entries[0].exists()


@pytest.mark.parametrize("fault", FAULTS)
def test_scrub_names_wrong_entries_of_the_tail(tmp_path: Path, fault: Callable[[list[Path]], None]) -> None:
    table, entries = table_with_tail(tmp_path)
    region = RegionId(entries[0].parts[-3])
    fault(entries)

    problems = table.scrub().problems

    touched = {wal_entry(region, Position(2)), wal_entry(region, Position(3)), f"_mem_wal/{region}/wal/"}
    assert {problem.path for problem in problems if problem.kind == "entry"} <= touched
    assert any(problem.kind == "entry" for problem in problems)


def test_every_flipped_bit_of_an_entry_is_detected_or_harmless() -> None:
    rows = upserts([row(key, f"text {key}") for key in range(5)], schema=SCHEMA)
    entry = encode(draft(rows, at=1.5), position=Position(3), epoch=Epoch(1), nonce=Nonce("ab" * 16))
    right = conform(rows, SCHEMA)

    for at in range(len(entry.body)):
        for bit in range(8):
            body = bytearray(entry.body)
            body[at] ^= 1 << bit
            try:
                read = decode(bytes(body), position=Position(3), key="entry")
                if read.summary.entry_setsum != entry.summary.entry_setsum:
                    continue  # the sum of the tail differs, so readers notice
                assert stored_rows(read, SCHEMA).equals(right), f"byte {at}, bit {bit}"
            except Corrupt:
                continue


def test_rows_of_an_older_schema_keep_their_values_and_get_nulls_in_new_columns() -> None:
    rows = upserts([row(key) for key in range(5)], schema=SCHEMA)
    entry = encode(draft(rows), position=Position(1), epoch=Epoch(1), nonce=Nonce("ab" * 16))
    wider = numbered(pa.schema([*SCHEMA.columns, pa.field("added", pa.int8())]))
    now = TableSchema(columns=wider, primary_key=("id",))

    found = stored_rows(decode(entry.body, position=Position(1), key="entry"), now)

    assert found.column("v").to_pylist() == rows.column("v").to_pylist()
    assert found.column("added").null_count == 5


def _damaging(plan: FaultPlan) -> Ports:
    """Ports whose store damages each entry that it writes, and loses the reply."""
    ports = faulty(plan)

    class Damaging:
        def __init__(self, inner: object) -> None:
            self.inner = inner

        def __getattr__(self, name: str) -> object:
            return getattr(self.inner, name)

        def create(self, key: str, body: Body) -> object:
            damaged = bytearray(body)
            if key.endswith(".arrow"):
                damaged[-40] ^= 1
            outcome = self.inner.create(key, bytes(damaged))  # type: ignore[attr-defined]
            return WriteUnknown(cause="lost") if isinstance(outcome, Written) and key.endswith(".arrow") else outcome

    return changed(ports, store=lambda uri, options: Damaging(ports.store(uri, options)))  # type: ignore[arg-type]


def test_a_claim_fences_off_a_duplicate_entry_above_the_head(tmp_path: Path) -> None:
    table, entries = table_with_tail(tmp_path)
    before = rows_of(table)
    leftover = entries[0].parent / f"{bitrev64(ENTRIES + 1)}.arrow"
    leftover.write_bytes(entries[0].read_bytes())
    with pytest.raises(Corrupt, match="region claim"):
        table.upsert([row(9)])

    (region,) = table.list_regions()
    table.claim(region)

    assert decode(leftover.read_bytes(), position=Position(ENTRIES + 1), key="").fence
    assert rows_of(table) == before


@pytest.mark.parametrize("values", [["x"] * 5, ["2"] * 4])
def test_a_merge_refuses_a_generation_with_other_rows(tmp_path: Path, values: list[str]) -> None:
    table, _ = table_with_tail(tmp_path)
    table.flush()
    (generation,) = generation_paths(tmp_path)
    shutil.rmtree(generation)
    other = upserts([row(key, value) for key, value in enumerate(values)], schema=table.config.schema)
    write_generation(
        uri=str(generation), keys=other, rows=other.to_batches(), schema=table.config.schema, data_storage_version="2.1"
    )

    with pytest.raises(Corrupt, match="not those that were flushed") as caught:
        table.merge(engine="inprocess")

    assert str(caught.value.where["object"]).endswith(generation.name)

    assert table.scrub().problems


def test_a_merge_refuses_swapped_generations(tmp_path: Path) -> None:
    table, _ = table_with_tail(tmp_path)
    table.flush()
    table.upsert([row(key, "x") for key in range(5)])
    table.flush()
    first, second = generation_paths(tmp_path)
    away = tmp_path / "away"
    for here, there in ((first, away), (second, first), (away, second)):
        os.rename(here, there)

    with pytest.raises(Corrupt, match="not those that were flushed") as caught:
        table.merge(engine="inprocess")

    assert str(caught.value.where["object"]).endswith((first.name, second.name))


def test_a_merge_checks_the_sum_of_a_generation_with_tombstones_only(tmp_path: Path) -> None:
    table = create(tmp_path)
    table.upsert([row(key) for key in range(5)])
    table.flush()
    table.merge(engine="inprocess")
    table.delete([{"id": 1}])
    table.flush()
    (_, generation) = sorted(generation_paths(tmp_path), key=lambda path: path.name.rpartition("_")[2])
    shutil.rmtree(generation)
    other = deletes([2], schema=table.config.schema)
    write_generation(
        uri=str(generation), keys=other, rows=other.to_batches(), schema=table.config.schema, data_storage_version="2.1"
    )

    with pytest.raises(Corrupt, match="not those that were flushed") as caught:
        table.merge(engine="inprocess")

    assert str(caught.value.where["object"]).endswith(generation.name)


Damage = Callable[[Path, Path], None]
"""Damages the second of two generations."""


def flushed_twice(path: Path) -> tuple[Table, Path, Path]:
    """A table with a base and two unmerged generations that have equally many rows and bytes."""
    table = create(path, pa.table({"id": [100], "v": ["base"]}))
    for value in "xy":
        table.upsert([row(key, value) for key in range(5)])
        table.flush()
    first, second = sorted(generation_paths(path), key=lambda found: int(found.name.rpartition("_")[2]))
    return table, first, second


def file_matching(pattern: str) -> Callable[[Path], Path]:
    def find(generation: Path) -> Path:
        (found,) = generation.glob(pattern)
        return found

    return find


ROWS, VERSION = file_matching("data/*.lance"), file_matching("_versions/*.manifest")


def flipped_at(share: float, of: Callable[[Path], Path]) -> Damage:
    def flip(_: Path, generation: Path) -> None:
        body = bytearray(of(generation).read_bytes())
        body[int(share * (len(body) - 1))] ^= 1
        of(generation).write_bytes(body)

    return flip


def truncated(of: Callable[[Path], Path]) -> Damage:
    return lambda _, generation: os.truncate(of(generation), of(generation).stat().st_size - 1)


def missing(of: Callable[[Path], Path]) -> Damage:
    return lambda _, generation: of(generation).unlink()


def file_of_another(of: Callable[[Path], Path]) -> Damage:
    """Replace the file with the same file of the other generation."""

    def take(first: Path, generation: Path) -> None:
        of(generation).write_bytes(of(first).read_bytes())

    return take


def older_copy(first: Path, generation: Path) -> None:
    shutil.rmtree(generation)
    shutil.copytree(first, generation)


def extra_deletion_file(_: Path, generation: Path) -> None:
    (generation / "_deletions").mkdir()
    (generation / "_deletions" / "0-1-1.arrow").write_bytes(b"")


def missing_generation(_: Path, generation: Path) -> None:
    shutil.rmtree(generation)


DAMAGES = {
    **{
        f"flipped bit in {name} at {share}": flipped_at(share, of)
        for name, of in (("rows", ROWS), ("version", VERSION))
        for share in (0, 0.1, 0.3, 0.5, 0.7, 0.9, 1)
    },
    "truncated rows": truncated(ROWS),
    "truncated version": truncated(VERSION),
    "missing rows": missing(ROWS),
    "missing version": missing(VERSION),
    "rows of another generation": file_of_another(ROWS),
    "version of another generation": file_of_another(VERSION),
    "an older copy": older_copy,
    "extra deletion file": extra_deletion_file,
    "missing generation": missing_generation,
}


@pytest.mark.one_case
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_merge_refuses_a_generation_whose_files_changed_since_its_flush(tmp_path: Path, damage: Damage) -> None:
    table, first, second = flushed_twice(tmp_path)
    before = lance.dataset(table.uri).version
    damage(first, second)

    with pytest.raises(Corrupt, match="not those that were flushed") as caught:
        table.merge(engine="inprocess")

    assert str(caught.value.where["object"]).endswith(second.name)
    assert lance.dataset(table.uri).version == before
    assert lance.dataset(table.uri).to_table().to_pylist() == [row(100, "base")]
    assert any(second.name in problem.path for problem in table.scrub().problems)


def test_a_merge_needs_only_the_files_of_a_generation_that_it_reads(tmp_path: Path) -> None:
    table, _, second = flushed_twice(tmp_path)
    shutil.rmtree(second / "_pk_index")
    shutil.rmtree(second / "_transactions")
    (second / "bloom_filter.bin").unlink()
    (second / "_versions" / "latest_version_hint.json").unlink()

    assert table.merge(engine="inprocess").generations == 2


def test_a_generation_without_a_file_sum_is_checked_by_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_sum(*_: object, **__: object) -> FileSums:
        return FileSums(setsum=None, files=())  # type: ignore[arg-type]

    monkeypatch.setattr(maintenance, "sum_files", no_sum)
    table, first, second = flushed_twice(tmp_path)
    older_copy(first, second)

    with pytest.raises(Corrupt, match="differ from those that were flushed"):
        table.merge(engine="inprocess")


def test_a_generation_without_a_file_sum_is_checked_over_the_columns_that_it_was_flushed_with(tmp_path: Path) -> None:
    columns = numbered(pa.schema([*SCHEMA.columns, pa.field("dropped", pa.int64())]))
    wide = TableSchema(columns=columns, primary_key=SCHEMA.primary_key)
    rows = upserts([{**row(1), "dropped": 7}], schema=wide)
    uri, sums = str(tmp_path / "generation"), Sums(rows=row_setsum(rows), files=None)
    write_generation(uri=uri, keys=rows, rows=rows.to_batches(), schema=wide, data_storage_version="2.1")
    merge_base = tasks.MergeBase(base=Base(uri=str(tmp_path), version=1), schema=SCHEMA)
    source = tasks.Source(region=RegionId("r"), generation=Generation(1), uri=uri, key="generation", sums=sums)

    (part,) = tasks.fold_delta(merge_base, (source,))
    (batch,) = tasks._live_rows(merge_base, part)
    assert batch.to_pylist() == [row(1)]


def test_the_row_sum_covers_every_batch_of_a_large_generation(tmp_path: Path) -> None:
    keys = pa.array(range(30_000))
    rows = upserts(pa.table({"id": keys, "v": keys.cast(pa.string())}), schema=SCHEMA)
    uri, right = str(tmp_path / "generation"), Sums(rows=row_setsum(rows), files=None)
    write_generation(uri=uri, keys=rows, rows=rows.to_batches(), schema=SCHEMA, data_storage_version="2.1")
    merge_base = tasks.MergeBase(base=Base(uri=str(tmp_path), version=1), schema=SCHEMA)

    for sums, holds in ((right, True), (changed(right, rows=Setsum.ZERO), False)):
        source = tasks.Source(region=RegionId("r"), generation=Generation(1), uri=uri, key="generation", sums=sums)
        (part,) = tasks.fold_delta(merge_base, (source,))
        with nullcontext() if holds else pytest.raises(Corrupt, match="differ from those that were flushed"):
            assert sum(batch.num_rows for batch in tasks._live_rows(merge_base, part)) == 30_000
