"""Compare the storage of a simulated table with its log and with the results of its writers."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import lance

from lancelsm.common.layout import (
    Position,
    Version,
    generation_number,
    generation_path,
    published_manifest,
    region_prefix,
)
from lancelsm.common.setsum import Setsum
from lancelsm.dataset.base_table import counters, open_base
from lancelsm.dataset.merged_generations import read_markers
from lancelsm.dataset.scrub_reads import own_row_setsum
from lancelsm.errors import Ambiguous
from lancelsm.record.schema import TableSchema
from lancelsm.region import manifest_invariants
from lancelsm.region.catalog import Region, regions
from lancelsm.region.compare_and_swap import load
from lancelsm.region.handle import open_table
from lancelsm.table import Table
from tests.simulation.environment import NOT_IN_THE_LOG
from tests.simulation.faults import Crash
from tests.simulation.table_log import numbers_in, rows_of

if TYPE_CHECKING:
    from tests.simulation.table_environment import TableEnvironment


def audit(environment: TableEnvironment, process: str) -> None:
    """Compare storage with the log and with the results that writers got."""
    _audit_writes(environment)
    handle = open_table(environment.path, ports=environment.ports(process))
    for region in regions(handle.context):
        _audit_region(environment, region, handle.config.schema)


def _audit_writes(environment: TableEnvironment) -> None:
    positions: dict[tuple[int, int], list[Position]] = {}
    for side, log in environment.logs.items():
        for entry in log.entries:
            numbers = numbers_in(entry) if entry.summary.rows else set()
            assert len(numbers) == (entry.summary.rows > 0), f"one entry has rows of the writes {numbers}"
            for number in numbers:
                positions.setdefault((number, side), []).append(entry.summary.position)
    for write in environment.writes:
        for side in (0, 1):
            found = positions.pop((write.number, side), [])
            where = f"write {write.number} on side {side} is at {found}, its result is {write.raised!r}"
            assert len(found) <= (side in write.sides), where
            assert all(position > write.floors[side] for position in found), where
            if side in write.sides and write.raised is None:
                assert len(found) == 1, where
            if write.raised is not None and len(write.sides) == 1:
                assert isinstance(write.raised, (*NOT_IN_THE_LOG, Ambiguous, Crash)), where
                assert not (found and isinstance(write.raised, NOT_IN_THE_LOG)), where
    assert not positions, f"the log has rows that were never written: {positions}"


def _audit_region(environment: TableEnvironment, region: Region, schema: TableSchema) -> None:
    head = region.find_head()
    if head is None:
        return
    log = environment.log_of(region.id)
    assert head.next_position == len(log.entries) + 1
    assert head.entry_setsum == sum((e.summary.entry_setsum for e in log.entries), start=Setsum())
    older = None
    for version in map(Version, range(1, head.manifest_version + 1)):
        published = load(region, published_manifest(region.id, version))
        if published is None:
            assert version == head.manifest_version, f"manifest {version} of {head.manifest_version} is missing"
            published = load(region, head.manifest_key)
        assert published is not None
        assert manifest_invariants.violations(older, published.manifest) == []
        older = published.manifest
    assert older is not None
    folded = [e for e in log.entries if e.summary.position <= older.replay_after]
    assert older.entry_setsum == sum((e.summary.entry_setsum for e in folded), start=Setsum())
    assert [number for g in older.generations for number in g.numbers] == list(range(1, older.current_generation))
    for generation in older.generations:
        assert generation.folded is not None
        uri = f"{environment.path}/{generation_path(region.id, generation.path)}"
        assert own_row_setsum(uri=uri, schema=schema) == generation.folded.row_setsum  # in the columns of its flush
    _audit_orphans(environment, region, {g.path for g in older.generations})


def _audit_orphans(environment: TableEnvironment, region: Region, named: set[str]) -> None:
    """The number of an orphan directory is at most the next generation number."""
    present = {path.name for path in (environment.path / region_prefix(region.id)).iterdir()}
    directories = {name for name in present if generation_number(name) is not None}
    assert named <= directories
    newest = max((generation_number(name) or 0 for name in named), default=0)
    assert all((generation_number(name) or 0) <= newest + 1 for name in directories - named)


def audit_settled(environment: TableEnvironment, table: Table) -> None:
    """Every row is in the base once, counters and markers agree, and another merge changes nothing."""
    base = open_base(uri=str(environment.path))
    dataset = lance.dataset(environment.path)
    assert rows_of(dataset.to_table()) == environment.truth
    newest = {region.id: region.head().current_generation - 1 for region in table.list_regions()}
    assert base.counters == {region: number for region, number in newest.items() if number}
    markers = read_markers(objects=environment.store, version=base.version)
    assert markers is not None
    assert markers.merged == base.counters
    history = [
        counters({name.decode(): value.decode() for name, value in found.schema.metadata.items()})
        for found in map(dataset.checkout_version, range(1, dataset.version + 1))
    ]
    for before, after in pairwise(history):
        assert all(after.get(region, 0) >= number for region, number in before.items()), "a counter decreased"
    again = table.merge(engine="inprocess")
    assert (again.generations, again.base_version) == (0, base.version)
    assert table.flush() == []
