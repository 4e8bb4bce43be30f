"""Scrub tables: what it reads, where it stops, and what a concurrent collection changes."""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lancelsm
from lancelsm.common.layout import CONFIG, Position, bitrev64, published_manifest, snapshots
from lancelsm.common.setsum import Setsum
from lancelsm.errors import Corrupt, Invalid
from lancelsm.objects import Object
from lancelsm.region.catalog import regions
from lancelsm.region.compare_and_swap import newest
from lancelsm.region.handle import open_configured
from lancelsm.region.manifest_codec import encode
from lancelsm.scrubbing.report import Report
from lancelsm.scrubbing.table import scrub, scrub_location
from lancelsm.table import Table
from lancelsm.wal import entry as entries
from tests.unit.tables import create, levels, row


def filled(path: Path, **options: Any) -> Table:
    """Create a table of two regions with rows in the base, in generations and in the log."""
    table = create(path, regions="bucket(id, 2)", **options)
    for number in range(4):
        table.upsert([row(key, str(number)) for key in range(number, 12 + number)])
        if number < 3:
            table.flush()
        if number == 1:
            table.merge(engine="inprocess")
    table.delete([{"id": 3}])
    return table


@pytest.mark.one_case
@pytest.mark.parametrize("registry", ["sqlite", "object"])
def test_an_intact_table_has_no_problem_at_any_level(tmp_path: Path, registry: str) -> None:
    table = filled(tmp_path, registry=registry)
    for _ in levels(table):
        report = table.scrub()

        assert report.problems == ()
        assert report.complete


def test_a_table_without_rows_has_no_problem(tmp_path: Path) -> None:
    assert create(tmp_path).scrub().ok


def test_an_open_version_from_before_the_mem_wal_index_has_no_problem(tmp_path: Path) -> None:
    table = create(tmp_path, [row(1)])
    first = table.at(1)
    assert table.scrub().problems == lancelsm.scrub(first).problems == ()


@pytest.mark.rest
def test_a_collected_table_has_no_problem(tmp_path: Path) -> None:
    table = filled(tmp_path)
    for _ in range(2):
        table.flush()
        table.merge(engine="inprocess")
        table.collect(yes=True, interval_seconds=0)
        table.upsert([row(1), row(2)])

        assert table.scrub().problems == ()


def test_a_claim_and_a_seal_leave_no_problem(tmp_path: Path) -> None:
    table = filled(tmp_path)
    first, second = table.list_regions()
    table.claim(first)
    table.seal(second)

    assert table.scrub().problems == ()


def test_scrub_of_one_region_reads_no_other(tmp_path: Path) -> None:
    table = filled(tmp_path)
    first, second = table.list_regions()
    entry = next((tmp_path / "table" / "_mem_wal" / second.id / "wal").iterdir())
    entry.unlink()

    assert table.scrub(region=first.id).ok
    assert not table.scrub(region=second.id[:8]).ok
    with pytest.raises(Invalid, match="region not found"):
        table.scrub(region="ffffffff")


@pytest.mark.parametrize("of", ["bytes", "rows"])
def test_an_entry_that_declares_another_sum_is_named(tmp_path: Path, of: str, monkeypatch: pytest.MonkeyPatch) -> None:
    table = create(tmp_path)
    with monkeypatch.context() as writing:
        if of == "rows":
            writing.setattr(entries, "row_setsum", lambda _: Setsum.ZERO)
        table.upsert([row(1)])
    path = next((tmp_path / "table" / "_mem_wal").glob("*/wal/*.arrow"))
    if of == "bytes":
        declared = entries.decode(path.read_bytes(), position=Position(1), key="").summary.entry_setsum.hex()
        path.write_bytes(path.read_bytes().replace(declared.encode(), Setsum.ZERO.hex().encode()))

    (found,) = table.scrub().problems
    assert (found.path, found.problem) == (
        str(path.relative_to(table.uri)),
        f"its {of} don't have the sum that it declares",
    )


def test_a_manifest_that_breaks_an_invariant_is_named(tmp_path: Path) -> None:
    table = create(tmp_path)
    table.upsert([row(1)])
    table.flush()
    region = regions(open_configured(table.uri).context)[0]
    head = region.head()
    manifest = newest(region, head)[1]
    body = encode(replace(manifest, collected_entries=Setsum.of([b"another entry"])))
    for key in (head.manifest_key, published_manifest(region.id, head.manifest_version)):
        (Path(table.uri) / key).write_bytes(body)

    found = {found.path: found.problem for found in table.scrub().problems}
    assert "do not add up to the sum at the replay point" in found[head.manifest_key]


@pytest.mark.rest
def test_scrub_of_a_snapshot_reads_what_the_snapshot_needs(tmp_path: Path) -> None:
    table = filled(tmp_path)
    table.snapshot("before")
    needs = {generation.name for generation in (tmp_path / "table" / "_mem_wal").glob("*/*_gen_3")}
    table.flush()
    table.merge(engine="inprocess")
    table.collect(yes=True, interval_seconds=0)
    at = lancelsm.open(table.uri, at="before")
    assert at.scrub().ok
    assert table.scrub().ok

    for path in (tmp_path / "table" / "_mem_wal").glob("*/*_gen_3"):
        shutil.rmtree(path)

    found = {problem.path.split("/")[2] for problem in at.scrub().problems}
    assert found == needs
    assert not table.scrub().ok
    with pytest.raises(Invalid, match="snapshot not found"):
        scrub_location(table.uri, at="never")


@pytest.mark.one_case
@pytest.mark.parametrize("damage", [None, {"entry_setsum": "zz"}, {"after": None}])
def test_scrub_of_a_snapshot_names_its_damaged_records(tmp_path: Path, damage: dict[str, str | None] | None) -> None:
    table = filled(tmp_path)
    table.snapshot("before")
    registry, partition = table._context.registry, snapshots(table.config.table)
    key = next(key for key, _ in registry.list(partition) if "#" in key.sort)
    if damage is None:
        registry.discard(key)
    else:
        registry.swap(key, expect={}, change=damage)

    report = scrub_location(table.uri, at="before")

    named = {problem.path for problem in report.problems}
    assert named == {f"{partition}/{key.sort}", *([f"{partition}/before"] if damage is None else [])}


@pytest.mark.rest
def test_intact_indexes_of_every_kind_have_no_problem_and_damaged_ones_are_named(tmp_path: Path) -> None:
    kinds = {"n": ("BTREE", "BITMAP", "ZONEMAP", "BLOOMFILTER"), "text": ("INVERTED", "NGRAM"), "tags": ("LABEL_LIST",)}
    near = {"id": list(range(300)), "n": list(range(300)), "text": [f"word {n}" for n in range(300)]}
    vectors = pa.FixedSizeListArray.from_arrays(pa.array([n / 7 for n in range(2400)], pa.float32()), 8)
    columns = pa.table({**near, "tags": [[n % 3] for n in range(300)], "vector": vectors})
    table = create(tmp_path, columns)
    for column, names in kinds.items():
        for name in names:
            lance.dataset(table.uri).create_scalar_index(column, name, name=name)
    for name in ("IVF_FLAT", "IVF_PQ", "IVF_HNSW_SQ"):
        lance.dataset(table.uri).create_index("vector", name, name=name, num_partitions=2, num_sub_vectors=4)

    assert table.scrub().problems == ()
    for path in (tmp_path / "table" / "_indices").glob("*/*"):
        content = path.read_bytes()
        path.write_bytes(content[:-20] + bytes(20))
        assert [one.path for one in table.scrub().problems] == [f"_indices/{path.parent.name}"]
        path.write_bytes(content)


def test_an_index_of_vectors_over_no_rows_has_no_files_and_one_over_rows_lacks_them(tmp_path: Path) -> None:
    columns = pa.schema([pa.field("id", pa.int64()), pa.field("vector", pa.list_(pa.float32(), 8))])
    table = create(tmp_path, columns)
    table.create_index("vector", kind="IVF_SQ", num_partitions=1)
    assert table.scrub().problems == ()

    table.upsert([{"id": key, "vector": [float(key)] * 8} for key in range(4)])
    table.run(engine="inprocess")
    assert table.scrub().problems == ()
    (directory,) = (tmp_path / "table" / "_indices").iterdir()
    shutil.rmtree(directory)
    assert "index vector_idx has no files" in {one.problem for one in table.scrub().problems}


def test_an_index_file_of_an_old_release_of_lance_is_not_read(tmp_path: Path) -> None:
    table = create(tmp_path, pa.table({"id": [1, 2]}))
    lance.dataset(table.uri).create_scalar_index("id", "BTREE")
    lance.write_dataset(pa.table({"id": [1]}), tmp_path / "old", data_storage_version="legacy")
    (old,) = (tmp_path / "old" / "data").iterdir()
    (path,) = (tmp_path / "table" / "_indices").glob("*/page_data.lance")
    path.write_bytes(old.read_bytes().rjust(path.stat().st_size, b"\0"))

    assert table.scrub().problems == ()


def damaged(path: Path) -> Table:
    """Create a table with a snapshot and a cursor, and damage objects of every kind."""
    table = filled(path, settings={"optimize_small_fragments": 1000})
    table.create_index("id", kind="BTREE")
    table.snapshot("then")
    table.set_cursor("audit")
    table.flush()
    table.merge(engine="inprocess")
    table.upsert([row(key, "new") for key in range(6)])
    table.flush()
    table.upsert([row(key, "newer") for key in range(6)])
    for pattern in ("_mem_wal/*/wal/*.arrow", "data/*.lance", "_mem_wal/*/*_gen_*/data/*.lance", "_indices/*/*"):
        files = sorted(Path(table.uri).glob(pattern))
        assert len(files) > 1
        for file in files[:1] + files[-1:]:
            file.write_bytes(file.read_bytes()[:-9])
    return table


@pytest.mark.rest
@pytest.mark.parametrize("at", [None, "then"])
def test_scrubs_with_a_limit_read_everything_once_if_each_continues_after_the_last(
    tmp_path: Path, at: str | None
) -> None:
    table = damaged(tmp_path)
    full, records = (scrub_location(table.uri, at=at, after=after) for after in ("", "~"))
    assert len(full.problems) > 2

    reports: list[Report] = []
    while not reports or reports[-1].next is not None:
        after = reports[-1].next if reports else None
        reports.append(scrub_location(table.uri, at=at, limit=2, after=after or ""))

    assert {one for report in reports for one in report.problems} == set(full.problems)
    read = [report.checked - records.checked for report in reports]
    assert max(read) == 2
    assert sum(read) == full.checked - records.checked
    assert [report.complete for report in (full, *reports)] == [True, *[False] * len(reports)]


@pytest.mark.rest
def test_objects_that_stay_are_read_within_a_cycle_though_others_come_and_go(tmp_path: Path) -> None:
    table = damaged(tmp_path)
    lasting = {one.path for one in table.scrub().problems if one.path.startswith(("data/", "_indices/"))}
    assert len(lasting) > 2

    reports: list[Report] = []
    while not reports or reports[-1].next is not None:
        after = reports[-1].next if reports else None
        reports.append(scrub_location(table.uri, limit=3, after=after or ""))
        table.upsert([row(100 * len(reports))])
        if len(reports) % 2:
            with suppress(Corrupt):  # a region whose log is damaged
                table.flush()

    assert lasting <= {one.path for report in reports for one in report.problems}


def test_orphans_are_counted_and_are_no_problem(tmp_path: Path) -> None:
    table = filled(tmp_path)
    before = table.scrub().orphans
    generation = next((tmp_path / "table" / "_mem_wal").glob("*/*_gen_1"))
    files = sum(path.is_file() for path in generation.rglob("*"))

    shutil.copytree(generation, generation.with_name("ffffffff_gen_1"))

    report = table.scrub()
    assert report.ok
    assert report.orphans == before + files


def test_a_concurrent_collection_is_no_problem(tmp_path: Path) -> None:
    table = filled(tmp_path)
    table.flush()
    table.merge(engine="inprocess")
    handle = open_configured(table.uri)
    collecting = CollectingStore(handle.context.objects, table)

    report = scrub(replace(handle, context=replace(handle.context, objects=collecting, parallel=1)))

    assert collecting.done
    assert report.problems == ()


class CollectingStore:
    """A store that collects its table right before the first entry is read."""

    def __init__(self, inner: Any, table: Table) -> None:
        self._inner = inner
        self._table = table
        self._first = f"{bitrev64(Position(1))}.arrow"
        self.done = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def get(self, key: str) -> Object | None:
        if key.endswith(self._first) and not self.done:
            self.done = True
            assert self._table.collect(yes=True, interval_seconds=0).deleted
        found: Object | None = self._inner.get(key)
        return found


@pytest.mark.parametrize("limit", [0, -5])
@pytest.mark.parametrize("configured", [True, False])
def test_a_limit_below_1_is_refused(tmp_path: Path, limit: int, configured: bool) -> None:
    table = create(tmp_path)
    if not configured:
        (Path(table.uri) / CONFIG).unlink()

    for read in (table.scrub, lambda limit: scrub_location(table.uri, limit=limit)):
        with pytest.raises(Invalid, match=f"the limit is {limit}") as raised:
            read(limit=limit)
        assert (raised.value.where["field"], raised.value.remedy) == ("limit", "Give 1 or more")
