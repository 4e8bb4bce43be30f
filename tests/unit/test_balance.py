"""Where sums must balance, and every way in which they don't: named as Corrupt, and nothing of it reaches the table."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace as changed
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import lancelsm
from lancelsm import upkeep
from lancelsm.dataset.base_rows import Base
from lancelsm.dataset.generation import write_generation
from lancelsm.errors import Corrupt
from lancelsm.filesum import Summed
from lancelsm.layout import Epoch, Generation, Nonce, Position, RegionId, bitrev64, wal_entry
from lancelsm.merge import tasks
from lancelsm.merge.plan import Sums
from lancelsm.objects import Body, Unknown, Written
from lancelsm.opening import Ports
from lancelsm.record.rows import deletes, upserts
from lancelsm.record.rowsum import row_setsum
from lancelsm.record.schema import TableSchema, conform, declare_primary_key, numbered
from lancelsm.setsum import Setsum
from lancelsm.table import Table
from lancelsm.wal.entry import decode, draft, encode
from lancelsm.wal.replay import stored_rows
from tests.simulation.faults import FaultPlan
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


FAULTS = [flip, lose, double, swap, replace]


def scan(table: Table) -> object:
    return rows_of(table)


def get(table: Table) -> object:
    return table.get([1])


def flush(table: Table) -> object:
    return table.flush()


def changes(table: Table) -> object:
    return list(table.changes())


@pytest.mark.parametrize("read", [scan, get, flush])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_tail_that_is_not_what_was_committed_is_refused(
    tmp_path: Path, fault: Callable[[list[Path]], None], read: Callable[[Table], object]
) -> None:
    table, entries = written(tmp_path)
    fault(entries)

    with pytest.raises(Corrupt):
        read(lancelsm.open(table.uri))

    assert generation_paths(tmp_path) == []


@pytest.mark.parametrize("fault", [flip, lose, double, swap])
def test_a_change_stream_yields_no_entry_that_is_not_sound(tmp_path: Path, fault: Callable[[list[Path]], None]) -> None:
    table, entries = written(tmp_path)
    fault(entries)

    with pytest.raises(Corrupt):
        changes(lancelsm.open(table.uri))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_snapshot_of_a_tail_that_changed_is_refused(tmp_path: Path, fault: Callable[[list[Path]], None]) -> None:
    table, entries = written(tmp_path)
    table.snapshot("kept")
    fault(entries)

    with pytest.raises(Corrupt):
        scan(lancelsm.open(table.uri, at="kept"))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_collection_takes_no_log_that_is_not_what_was_folded(
    tmp_path: Path, fault: Callable[[list[Path]], None]
) -> None:
    table, entries = written(tmp_path)
    table.flush()
    table.merge(engine="inprocess")
    fault(entries)

    with pytest.raises(Corrupt):
        table.collect(yes=True, interval_seconds=0)

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


def test_an_entry_that_was_damaged_on_its_way_in_is_not_acknowledged(tmp_path: Path) -> None:
    table = create(tmp_path)
    table.upsert([row(1)])
    plan = FaultPlan()
    writer = lancelsm.open(table.uri, ports=_damaging(plan))

    with pytest.raises(Corrupt, match="damaged on its way"):
        writer.upsert([row(2)])

    assert [found["id"] for found in rows_of(table)] == [1]


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
            return Unknown(cause="lost") if isinstance(outcome, Written) and key.endswith(".arrow") else outcome

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

    with pytest.raises(Corrupt, match="not those that were flushed"):
        table.merge(engine="inprocess")

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

    with pytest.raises(Corrupt, match="not those that were flushed"):
        table.merge(engine="inprocess")


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

    with pytest.raises(Corrupt, match="not those that were flushed"):
        table.merge(engine="inprocess")


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
    monkeypatch.setattr(upkeep, "sum_files", lambda *_: Summed(setsum=None, files=()))  # type: ignore[arg-type]
    table, first, second = flushed_twice(tmp_path)
    all_of_an_older_one(first, second)

    with pytest.raises(Corrupt, match="other rows than were flushed"):
        table.merge(engine="inprocess")


def test_rows_of_an_earlier_release_are_summed_however_many_they_are(tmp_path: Path) -> None:
    keys = pa.array(range(30_000))
    rows = upserts(pa.table({"id": keys, "v": keys.cast(pa.string())}), schema=SCHEMA)
    uri, right = str(tmp_path / "generation"), Sums(rows=row_setsum(rows), files=None)
    write_generation(uri=uri, rows=rows, schema=SCHEMA, data_storage_version="2.1")
    ground = tasks.Ground(base=Base(uri=str(tmp_path), version=1), schema=SCHEMA)

    for sums, holds in ((right, True), (changed(right, rows=Setsum.ZERO), False)):
        source = tasks.Source(region=RegionId("r"), generation=Generation(1), uri=uri, key="generation", sums=sums)
        (part,) = tasks.fold_delta(ground, (source,))
        with nullcontext() if holds else pytest.raises(Corrupt, match="other rows than were flushed"):
            assert sum(batch.num_rows for batch in tasks._live_rows(ground, part)) == 30_000
