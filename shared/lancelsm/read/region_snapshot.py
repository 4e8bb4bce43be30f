"""Read a view from the region snapshot in the MemWAL index of the base: one read instead of some for each region.

`optimize` writes the snapshot. Beside Lance's columns it has the head of each region, the part of its manifest that the
base lacks, and its catalog record. So a reader knows where each log ended when the snapshot was taken, and
reads it up to there. Model: tests/model/eventual_view.py.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyarrow import types

from lancelsm.common.json_text import parse_json
from lancelsm.common.layout import NO_GENERATION, RegionId
from lancelsm.dataset.base_table import BaseTable
from lancelsm.dataset.region_snapshots import read_region_snapshot
from lancelsm.errors import Corrupt, Invalid
from lancelsm.read.view import RegionView, View, mismatch, region_view
from lancelsm.region import head as heads
from lancelsm.region import manifest as manifests
from lancelsm.region import manifest_codec
from lancelsm.region.catalog import Region, TableContext, catalog_record, region_from_record
from lancelsm.region.head import Head
from lancelsm.region.manifest import Manifest
from lancelsm.registry import bytes_to_json, check_record
from lancelsm.routing.spec import RegionSpec
from lancelsm.routing.value import arrow_type
from lancelsm.wal.replay import LogCollected, stream_tail

_SHARD, _SPEC, _FIELD = "shard_id", "shard_spec_id", "shard_field_"  # of Lance 14
_HEAD, _MANIFEST, _CATALOG = "lancelsm_head", "lancelsm_manifest", "lancelsm_catalog"


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionAt:
    """A region as it was at one moment: its head, and the manifest that the head names."""

    region: Region
    head: Head
    manifest: Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionSnapshot:
    """All regions that had a head, as they were at `taken` (Unix seconds) or later."""

    taken: float
    base: BaseTable
    regions: Sequence[RegionAt]

    def view(self, wanted: Sequence[Region], *, now: float) -> View | None:
        """Return the view of these regions at the time of the snapshot. Rows expire by the time `now`.

        None if the base has merged newer generations, or an object is missing or damaged. A region that the snapshot
        lacks had no rows.

        Raises:
            Unavailable: the store did not answer.
        """
        names = {region.id for region in wanted}
        chosen = [one for one in self.regions if one.region.id in names]
        if any(mismatch(one.manifest, self.base) for one in chosen):  # guard: snapshot belongs to its base
            return None
        context = chosen[0].region.context if chosen else None
        try:
            parts = context.each(lambda one: self._part(one, of=len(chosen)), chosen) if context else []
        except (LogCollected, Corrupt):  # a strong read decides whether it is damage
            return None
        return View(base=self.base, regions=tuple(parts), now=now)

    def _part(self, one: RegionAt, *, of: int) -> RegionView:
        size = one.head.wal_bytes - one.manifest.wal_bytes
        entries = stream_tail(one.region, one.head, one.manifest, size=size)
        return region_view(one.region, one.manifest, entries, self.base, end=one.head, of=of)


def find_region_snapshot(context: TableContext, base: BaseTable) -> RegionSnapshot | None:
    """Read the region snapshot of a base; None if there is none, or this release can't read it.

    Also None if the base belongs to another table, which a strong read reports.

    Raises:
        Corrupt, Unavailable: the manifest of the base can't be read.
    """
    if base.facts is None or base.facts.table != context.table:  # guard: region snapshot is of the table
        return None
    stored = read_region_snapshot(base, objects=context.objects)
    if stored is None or not {_SHARD, _HEAD, _MANIFEST, _CATALOG} <= set(stored.rows.column_names):
        return None
    try:
        regions = [_decoded(context, row) for row in stored.rows.to_pylist()]
    except (Corrupt, Invalid, ValueError):
        return None
    return RegionSnapshot(taken=stored.taken, base=base, regions=regions)


def snapshot_rows(regions: Sequence[RegionAt], base: BaseTable, spec: RegionSpec) -> pa.Table:
    """Return the rows of a region snapshot. They leave out generations that the base has."""
    counters = base.counters
    pending = [manifests.above(one.manifest, counters.get(one.region.id, NO_GENERATION)) for one in regions]
    kinds = {field.field_id: arrow_type(field.result_type) for field in spec.fields}
    columns: dict[str, Any] = {
        _SHARD: pa.array([one.region.id for one in regions], pa.string()),
        _SPEC: pa.array([one.region.spec_id for one in regions], pa.uint32()),
        **{
            f"{_FIELD}{name}": _column([_value(one.region, name, spec) for one in regions], kind)
            for name, kind in kinds.items()
        },
        _HEAD: pa.array([json.dumps(heads.to_record(one.head), default=bytes_to_json) for one in regions], pa.string()),
        _MANIFEST: pa.array([manifest_codec.encode(one) for one in pending], pa.binary()),
        _CATALOG: pa.array([json.dumps(catalog_record(one.region)) for one in regions], pa.string()),
    }
    return pa.table(columns)


def _value(region: Region, name: str, spec: RegionSpec) -> bytes | None:
    """Return a value of a region. A region of an earlier spec may have another type under the same name."""
    return dict(region.values).get(name) if region.number == spec.number else None


def _decoded(context: TableContext, row: dict[str, Any]) -> RegionAt:
    name = RegionId(row[_SHARD])
    return RegionAt(
        region=region_from_record(context, name, parse_json(row[_CATALOG])),
        head=heads.from_record(check_record(parse_json(row[_HEAD]))),
        manifest=manifest_codec.decode(row[_MANIFEST], key=name),
    )


def _column(values: Sequence[bytes | None], kind: pa.DataType) -> pa.Array:
    """Return encoded region values as an array of their type."""
    if types.is_string(kind) or types.is_large_string(kind):
        return pa.array([None if value is None else value.decode() for value in values], kind)
    if types.is_binary(kind) or types.is_large_binary(kind):
        return pa.array(values, kind)
    if types.is_boolean(kind):
        return pa.array([None if value is None else value != b"\0" for value in values], kind)
    width = kind.bit_width // 8
    whole = pa.array(
        [None if value is None else int.from_bytes(value, "little", signed=True) for value in values],
        _SIGNED[width],
    )
    return whole.view(kind)


_SIGNED: Final = {1: pa.int8(), 2: pa.int16(), 4: pa.int32(), 8: pa.int64()}
