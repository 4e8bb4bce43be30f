"""Where sums must balance, and every way in which they don't: named as Corrupt, and nothing of it reaches the table."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace as changed
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lancelsm
from lancelsm.admin.adopt import adopt
from lancelsm.admin.rebuild import rebuild
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
from lancelsm.dataset.generation import write_generation
from lancelsm.errors import Corrupt
from lancelsm.objects import Body, WriteUnknown, Written
from lancelsm.objects.filesum import Summed
from lancelsm.record.normalize import deletes, upserts
from lancelsm.record.rowsum import row_setsum
from lancelsm.record.schema import TableSchema, conform, declare_primary_key, numbered
from lancelsm.region.handle import Ports, open_table
from lancelsm.registry import Fields, SwapApplied
from lancelsm.registry import SwapUnknown as NoAnswer
from lancelsm.table import Table
from lancelsm.wal.entry import decode, draft, encode
from lancelsm.wal.replay import stored_rows
from tests.simulation.faults import FaultPlan, FaultyRegistry
from tests.unit.tables import COLUMNS, create, faulty, generation_paths, row, rows_of

ENTRIES = 3
SCHEMA = TableSchema(columns=numbered(declare_primary_key(COLUMNS, ("id",))), primary_key=("id",))


def written(path: Path) -> tuple[Table, list[Path]]:
    """A table with three entries in its tail, all of one size, and their files."""
    table = create(path)
    for number in range(ENTRIES):
        table.upsert([row(key, f"{number}") for key in range(5)])
    folder = next((path / "table" / "_mem_wal").glob("*/wal"))
    return table, [folder / f"{bitrev64(number + 1)}.arrow" for number in range(ENTRIES)]


def flip(entries: list[Path]) -> None:
    body = bytearray(entries[1].read_bytes())
    body[-40] ^= 1
    entries[1].write_bytes(body)


def lose(entries: list[Path]) -> None:
    entries[1].unlink()


def double(entries: list[Path]) -> None:
    entries[2].write_bytes(entries[1].read_bytes())


def swap(entries: list[Path]) -> None:
    second, third = (entry.read_bytes() for entry in entries[1:])
    entries[1].write_bytes(third)
    entries[2].write_bytes(second)


def replace(entries: list[Path]) -> None:
    """Another entry that is sound in itself: a zombie's, that came late."""
    rows = upserts([row(key, "never") for key in range(5)], schema=SCHEMA)
    late = encode(draft(rows), position=Position(2), epoch=Epoch(1), nonce=Nonce("e" * 32))
    entries[1].write_bytes(late.body)


Fault = Callable[[list[Path]], None]

FAULTS = [flip, lose, double, swap, replace]
FIRST_WRONG = {flip: 2, lose: 2, double: 3, swap: 2}
"""The first position whose object is not the one that was put there."""


PLACE = ("table", "region", "position", "object")


def where_of(act: Callable[[], object]) -> dict[str, object]:
    """What it is refused with, as `Corrupt`."""
    with pytest.raises(Corrupt) as caught:
        act()
    return {name: value for name, value in caught.value.where.items() if name in PLACE}


def named(table: Table, position: int) -> dict[str, object]:
    """Where an error says that the entry at this position is wrong."""
    (region,) = table.regions()
    found = Position(position)
    return {"table": table.uri, "region": region.id, "position": found, "object": wal_entry(region.id, found)}


def handle(table: Table) -> Table:
    """The table as another process sees it."""
    return lancelsm.open(table.uri)


def taken_over(table: Table) -> object:
    (region,) = table.regions()
    return table.claim(region, owner="another")


def held_alone(table: Table) -> object:
    return lancelsm.open(table.uri, owner="loader").upsert([row(9)])


def taken_back(table: Table) -> object:
    (region,) = table.regions()
    dataset = lance.dataset(table.uri)
    with suppress(OSError):  # a log that Lance can't replay either, which its manifest and fence come before
        dataset.mem_wal_writer(region.id)
    return adopt(table.uri)


LOG: dict[str, Callable[[Table], object]] = {
    "scan": lambda table: rows_of(handle(table)),
    "get": lambda table: handle(table).get([1]),
    "snapshot": lambda table: rows_of(lancelsm.open(table.uri, at="kept")),
    "change stream": lambda table: list(handle(table).changes()),
    "flush": lambda table: handle(table).flush(),
    "claim": lambda table: taken_over(handle(table)),
    "claim by an exclusive writer": held_alone,
    "adopt of a log of ours": taken_back,
    "rebuild": lambda table: rebuild(open_table(table.uri)),
}


@pytest.mark.parametrize("place", LOG)
@pytest.mark.parametrize("fault", FIRST_WRONG)
def test_the_first_entry_that_is_not_what_was_committed_is_named(tmp_path: Path, fault: Fault, place: str) -> None:
    table, entries = written(tmp_path)
    table.snapshot("kept")
    fault(entries)
    (before,) = (region.head() for region in table.regions())

    where = where_of(lambda: LOG[place](table))

    assert where == named(table, FIRST_WRONG[fault])
    assert [region.head() for region in table.regions()] == [before]
    assert generation_paths(tmp_path) == []


@pytest.mark.parametrize("place", ["scan", "get", "snapshot", "flush", "claim", "claim by an exclusive writer"])
def test_entries_that_are_sound_each_by_itself_are_named_by_their_range(tmp_path: Path, place: str) -> None:
    table, entries = written(tmp_path)
    table.snapshot("kept")
    replace(entries)

    where = where_of(lambda: LOG[place](table))

    (region,) = table.regions()
    assert where == {**named(table, 1), "position": "1..3", "object": wal_prefix(region.id)}
    assert generation_paths(tmp_path) == []


@pytest.mark.parametrize("place", ["scan", "get", "flush", "change stream"])
def test_an_entry_whose_schema_is_not_what_was_written_is_named_too(tmp_path: Path, place: str) -> None:
    """It stands before what the sum of an entry covers."""
    table, entries = written(tmp_path)
    body = bytearray(entries[1].read_bytes())
    body[body.index(b"\x01\x00\x00\x000\x00") + 4] ^= 4  # the id of a field
    entries[1].write_bytes(body)

    assert where_of(lambda: LOG[place](table)) == named(table, 2)


def lost_behind_the_head(table: Table, path: Path) -> object:
    """The put's object is gone once the head has passed it, and nobody told the writer that it has."""
    plan = FaultPlan()

    class Losing(FaultyRegistry):
        def swap(self, key: Key, *, expect: Fields | None, change: Fields) -> Any:
            outcome = super().swap(key, expect=expect, change=change)
            path.unlink()
            return NoAnswer(cause="lost") if isinstance(outcome, SwapApplied) else outcome

    ports = faulty(plan)
    registry = ports.registry
    losing = changed(ports, registry=lambda kind, **options: Losing(registry(kind, **options).inner, plan))
    return lancelsm.open(table.uri, ports=losing).upsert([row(9)])


def damaged_on_its_way(table: Table, _: Path) -> object:
    return lancelsm.open(table.uri, ports=_damaging(FaultPlan())).upsert([row(9)])


def doubled_above_the_head(table: Table, path: Path) -> object:
    path.write_bytes((path.parent / f"{bitrev64(1)}.arrow").read_bytes())
    return handle(table).upsert([row(9)])


def swapped_above_the_head(table: Table, path: Path) -> object:
    rows = draft(upserts([row(9)], schema=SCHEMA))
    for position, at in ((ENTRIES + 1, ENTRIES + 2), (ENTRIES + 2, ENTRIES + 1)):
        body = encode(rows, position=Position(at), epoch=Epoch(1), nonce=Nonce("d" * 32)).body
        (path.parent / f"{bitrev64(position)}.arrow").write_bytes(body)
    return handle(table).upsert([row(9)])


@pytest.mark.parametrize(
    "fault", [damaged_on_its_way, lost_behind_the_head, doubled_above_the_head, swapped_above_the_head]
)
def test_an_append_acknowledges_no_entry_that_it_finds_otherwise_and_names_it(
    tmp_path: Path, fault: Callable[[Table, Path], object]
) -> None:
    table, entries = written(tmp_path)

    where = where_of(lambda: fault(table, entries[0].parent / f"{bitrev64(ENTRIES + 1)}.arrow"))

    assert where == named(table, ENTRIES + 1)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("field", ["entry_setsum", "wal_rows", "wal_bytes", "next_position"])
def test_an_append_acknowledges_nothing_that_the_head_counts_otherwise(tmp_path: Path, field: str, depth: int) -> None:
    table, _ = written(tmp_path)
    plan = FaultPlan()

    class Forgetful(FaultyRegistry):
        """Says of what it wrote that one field is as it was before."""

        def swap(self, key: Key, *, expect: Fields | None, change: Fields) -> Any:
            before = self.inner.read(key) or {}
            outcome = super().swap(key, expect=expect, change=change)
            if "next_position" in change and isinstance(outcome, SwapApplied) and field in before:
                return SwapApplied(record={**outcome.record, field: before[field]})
            return outcome

    ports = faulty(plan)
    registry = ports.registry
    forgetful = changed(ports, registry=lambda kind, **options: Forgetful(registry(kind, **options).inner, plan))
    writer = lancelsm.open(table.uri, ports=forgetful).writer(pipeline_depth=depth)

    with pytest.raises(Corrupt, match=field) as caught:
        writer.upsert([row(9)])

    (region,) = table.regions()
    assert (caught.value.where["region"], "position" in caught.value.where) == (region.id, True)


@pytest.mark.parametrize("place", ["scan", "get", "claim"])
def test_a_head_that_ends_where_its_manifest_does_has_its_sum(tmp_path: Path, place: str) -> None:
    table, _ = written(tmp_path)
    table.flush()
    (region,) = table.regions()
    head = region.head()
    other = (head.entry_setsum + Setsum.of_item(b"other")).hex()
    region.context.registry.swap(head_key(table.config.table, region.id), expect={}, change={"entry_setsum": other})

    where = where_of(lambda: LOG[place](table))

    assert (where["region"], where["position"], where["object"]) == (region.id, ENTRIES, head.manifest_key)


@pytest.mark.parametrize("field", ["wal_rows", "wal_bytes"])
def test_who_claims_counts_what_the_head_has_counted(tmp_path: Path, field: str) -> None:
    table, _ = written(tmp_path)
    (region,) = table.regions()
    head = region.head()
    key = head_key(table.config.table, region.id)
    region.context.registry.swap(key, expect={}, change={field: getattr(head, field) + 1})

    where = where_of(lambda: LOG["claim"](table))

    assert (where["region"], where["position"], where["object"]) == (region.id, ENTRIES, head.manifest_key)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_collection_takes_no_log_that_is_not_what_was_folded(tmp_path: Path, fault: Fault) -> None:
    table, entries = written(tmp_path)
    table.flush()
    table.merge(engine="inprocess")
    fault(entries)

    where = where_of(lambda: table.collect(yes=True, interval_seconds=0))

    (region,) = table.regions()
    if fault in FIRST_WRONG:
        assert where == named(table, FIRST_WRONG[fault])
    else:  # it is sound by itself
        assert where == {**named(table, 1), "position": f"1..{ENTRIES}", "object": wal_prefix(region.id)}
    assert entries[0].exists()


@pytest.mark.parametrize("fault", FAULTS)
def test_scrub_names_an_entry_of_the_tail(tmp_path: Path, fault: Callable[[list[Path]], None]) -> None:
    table, entries = written(tmp_path)
    region = RegionId(entries[0].parts[-3])
    fault(entries)

    problems = table.scrub().problems

    touched = {wal_entry(region, Position(2)), wal_entry(region, Position(3)), f"_mem_wal/{region}/wal/"}
    assert {problem.path for problem in problems if problem.kind == "entry"} <= touched
    assert any(problem.kind == "entry" for problem in problems)


def test_no_bit_of_an_entry_flips_unseen() -> None:
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
                    continue  # the tail doesn't add up
                assert stored_rows(read, SCHEMA).equals(right), f"byte {at}, bit {bit}"
            except Corrupt:
                continue


def test_rows_under_an_older_schema_are_as_they_were_written() -> None:
    rows = upserts([row(key) for key in range(5)], schema=SCHEMA)
    entry = encode(draft(rows), position=Position(1), epoch=Epoch(1), nonce=Nonce("ab" * 16))
    wider = numbered(pa.schema([*SCHEMA.columns, pa.field("added", pa.int8())]))
    now = TableSchema(columns=wider, primary_key=("id",))

    found = stored_rows(decode(entry.body, position=Position(1), key="entry"), now)

    assert found.column("v").to_pylist() == rows.column("v").to_pylist()
    assert found.column("added").null_count == 5


def _damaging(plan: FaultPlan) -> Ports:
    """Ports whose store damages an entry that it writes, and loses the reply."""
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


def test_a_claim_fences_off_an_entry_that_stands_twice(tmp_path: Path) -> None:
    table, entries = written(tmp_path)
    before = rows_of(table)
    leftover = entries[0].parent / f"{bitrev64(ENTRIES + 1)}.arrow"
    leftover.write_bytes(entries[0].read_bytes())
    with pytest.raises(Corrupt, match="region claim"):
        table.upsert([row(9)])

    (region,) = table.regions()
    table.claim(region)

    assert decode(leftover.read_bytes(), position=Position(ENTRIES + 1), key="").fence
    assert rows_of(table) == before


@pytest.mark.parametrize("values", [["x"] * 5, ["2"] * 4])
def test_a_merge_takes_no_generation_with_other_rows(tmp_path: Path, values: list[str]) -> None:
    table, _ = written(tmp_path)
    table.flush()
    (generation,) = generation_paths(tmp_path)
    shutil.rmtree(generation)
    other = upserts([row(key, value) for key, value in enumerate(values)], schema=table.config.schema)
    write_generation(uri=str(generation), rows=other, schema=table.config.schema, data_storage_version="2.1")

    with pytest.raises(Corrupt, match="not those that were flushed") as caught:
        table.merge(engine="inprocess")

    assert str(caught.value.where["object"]).endswith(generation.name)

    assert table.scrub().problems


def test_a_merge_takes_no_generations_that_were_swapped(tmp_path: Path) -> None:
    table, _ = written(tmp_path)
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


def test_a_merge_of_tombstones_alone_is_summed_too(tmp_path: Path) -> None:
    table = create(tmp_path)
    table.upsert([row(key) for key in range(5)])
    table.flush()
    table.merge(engine="inprocess")
    table.delete([{"id": 1}])
    table.flush()
    (_, generation) = sorted(generation_paths(tmp_path), key=lambda path: path.name.rpartition("_")[2])
    shutil.rmtree(generation)
    other = deletes([2], schema=table.config.schema)
    write_generation(uri=str(generation), rows=other, schema=table.config.schema, data_storage_version="2.1")

    with pytest.raises(Corrupt, match="not those that were flushed") as caught:
        table.merge(engine="inprocess")

    assert str(caught.value.where["object"]).endswith(generation.name)


Damage = Callable[[Path, Path], None]
"""What befalls the second of two generations."""


def flushed_twice(path: Path) -> tuple[Table, Path, Path]:
    """A table with a merged base and two pending generations of as many rows, each of as many bytes."""
    table = create(path, pa.table({"id": [100], "v": ["base"]}))
    for value in "xy":
        table.upsert([row(key, value) for key in range(5)])
        table.flush()
    first, second = sorted(generation_paths(path), key=lambda found: int(found.name.rpartition("_")[2]))
    return table, first, second


def the(pattern: str) -> Callable[[Path], Path]:
    def find(generation: Path) -> Path:
        (found,) = generation.glob(pattern)
        return found

    return find


ROWS, VERSION = the("data/*.lance"), the("_versions/*.manifest")


def flipped_at(share: float, of: Callable[[Path], Path]) -> Damage:
    def flip_one(_: Path, generation: Path) -> None:
        body = bytearray(of(generation).read_bytes())
        body[int(share * (len(body) - 1))] ^= 1
        of(generation).write_bytes(body)

    return flip_one


def cut(of: Callable[[Path], Path]) -> Damage:
    return lambda _, generation: os.truncate(of(generation), of(generation).stat().st_size - 1)


def missing(of: Callable[[Path], Path]) -> Damage:
    return lambda _, generation: of(generation).unlink()


def another_s(of: Callable[[Path], Path]) -> Damage:
    """The file of the other generation under the name of its own."""

    def take(first: Path, generation: Path) -> None:
        of(generation).write_bytes(of(first).read_bytes())

    return take


def all_of_an_older_one(first: Path, generation: Path) -> None:
    shutil.rmtree(generation)
    shutil.copytree(first, generation)


def a_deletion_file_more(_: Path, generation: Path) -> None:
    (generation / "_deletions").mkdir()
    (generation / "_deletions" / "0-1-1.arrow").write_bytes(b"")


def gone(_: Path, generation: Path) -> None:
    shutil.rmtree(generation)


DAMAGES = {
    **{
        f"a bit of the {name}, {share}": flipped_at(share, of)
        for name, of in (("rows", ROWS), ("version", VERSION))
        for share in (0, 0.1, 0.3, 0.5, 0.7, 0.9, 1)
    },
    "cut rows": cut(ROWS),
    "cut version": cut(VERSION),
    "missing rows": missing(ROWS),
    "missing version": missing(VERSION),
    "rows of another": another_s(ROWS),
    "version of another": another_s(VERSION),
    "an older copy": all_of_an_older_one,
    "one too many": a_deletion_file_more,
    "gone": gone,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_merge_takes_no_generation_whose_files_are_not_those_that_were_flushed(
    tmp_path: Path, damage: Damage
) -> None:
    table, first, second = flushed_twice(tmp_path)
    before = lance.dataset(table.uri).version
    damage(first, second)

    with pytest.raises(Corrupt, match="not those that were flushed") as caught:
        table.merge(engine="inprocess")

    assert str(caught.value.where["object"]).endswith(second.name)
    assert lance.dataset(table.uri).version == before
    assert lance.dataset(table.uri).to_table().to_pylist() == [row(100, "base")]
    assert any(second.name in problem.path for problem in table.scrub().problems)


def test_what_a_merge_does_not_read_of_a_generation_may_be_gone(tmp_path: Path) -> None:
    table, _, second = flushed_twice(tmp_path)
    shutil.rmtree(second / "_pk_index")
    shutil.rmtree(second / "_transactions")
    (second / "bloom_filter.bin").unlink()
    (second / "_versions" / "latest_version_hint.json").unlink()

    assert table.merge(engine="inprocess").generations == 2


def test_a_generation_that_an_earlier_release_flushed_is_summed_by_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "sum_files", lambda *_: Summed(setsum=None, files=()))  # type: ignore[arg-type]
    table, first, second = flushed_twice(tmp_path)
    all_of_an_older_one(first, second)

    with pytest.raises(Corrupt, match="other rows than were flushed"):
        table.merge(engine="inprocess")


def test_rows_of_an_earlier_release_are_summed_however_many_they_are(tmp_path: Path) -> None:
    keys = pa.array(range(30_000))
    rows = upserts(pa.table({"id": keys, "v": keys.cast(pa.string())}), schema=SCHEMA)
    uri, right = str(tmp_path / "generation"), Sums(rows=row_setsum(rows), files=None)
    write_generation(uri=uri, rows=rows, schema=SCHEMA, data_storage_version="2.1")
    merge_base = tasks.MergeBase(base=Base(uri=str(tmp_path), version=1), schema=SCHEMA)

    for sums, holds in ((right, True), (changed(right, rows=Setsum.ZERO), False)):
        source = tasks.Source(region=RegionId("r"), generation=Generation(1), uri=uri, key="generation", sums=sums)
        (part,) = tasks.fold_delta(merge_base, (source,))
        with nullcontext() if holds else pytest.raises(Corrupt, match="other rows than were flushed"):
            assert sum(batch.num_rows for batch in tasks._live_rows(merge_base, part)) == 30_000
