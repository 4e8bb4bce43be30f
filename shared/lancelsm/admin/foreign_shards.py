"""Adopt the rows of shards of other tools: append them to the regions that they belong to.

1. Find the keys whose order against our rows can't be known. Unless the caller decides, refuse: nothing was written.
2. Fence the shard by Lance's protocol: a manifest with the next epoch, then a sentinel. Read the log again behind it.
3. Append the rows of each region as one entry. The shard and the end of its log are the applied sequence of the entry,
   so a repeated call appends only what is missing.
4. Publish a manifest of the shard that lists no generation and ends at the sentinel: no reader of Lance returns its
   rows any more, and `first_position` says which ones are in regions.

A row of the shard is newer than the base and than everything that was collected, since no log is collected while a
shard has rows. Only our entries that are still in the log may be older or newer. Model: tests/model/foreign_shard.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Literal, get_args

import pyarrow as pa
import pyarrow.compute as pc

from lancelsm.admin.fencing import fence_writer
from lancelsm.common.layout import (
    Epoch,
    Generation,
    Position,
    RegionId,
    RegionValues,
    Version,
    published_manifest,
    wal_entry,
)
from lancelsm.dataset.foreign_rows import described_keys
from lancelsm.dataset.merged_generations import read_markers
from lancelsm.errors import Contended, Corrupt, Invalid, error_context
from lancelsm.objects import Written
from lancelsm.record.key import key_column, newest
from lancelsm.record.schema import TOMBSTONE, TableSchema
from lancelsm.region import manifest_codec
from lancelsm.region.catalog import Region, regions
from lancelsm.region.handle import TableHandle, WriteTarget
from lancelsm.region.head import Head
from lancelsm.region.shards import ForeignShard, foreign_shards_of
from lancelsm.routing.route import route
from lancelsm.wal.append import append_after
from lancelsm.wal.entry import Draft, Entry, decode, draft
from lancelsm.wal.recovery import recover_log
from lancelsm.wal.region_writer import find_or_create_region
from lancelsm.wal.replay import stored_rows

OnConflict = Literal["refuse", "theirs", "ours"]
_EXAMPLES = 20


def adopt_shards(handle: TableHandle, *, on_conflict: OnConflict) -> list[RegionId]:
    """Move the rows of all shards of other tools to the regions that they belong to.

    Args:
        on_conflict: what to do with keys that our log has too. `refuse`: raise `Invalid`. `theirs`: append their rows
            behind ours. `ours`: leave their rows out.

    Returns:
        The shards.

    Raises:
        Invalid: the order of some keys can't be known, or a row does not fit the table. No row of these keys was
            appended.
        Contended: a writer kept claiming the shard.
        Corrupt: the log of a shard is damaged or has a hole.
        Fenced, Ambiguous, Unavailable: run it again.

    A crash at any line leaves rows that the same call appends, or that it recognises as appended.
    """
    if on_conflict not in get_args(OnConflict):
        raise Invalid(f"on_conflict is {on_conflict!r}", remedy="Give 'refuse', 'theirs' or 'ours'")
    found = foreign_shards_of(handle.context)
    if not found:
        return []
    target = handle.target()
    read = [_read(handle, target, shard) for shard in found]
    _check_order(target, read, on_conflict)
    for shard in found:
        _move(handle, target, shard, on_conflict)
    return [shard.region.id for shard in found]


def check_placed(handle: TableHandle, region: Region) -> None:
    """Check that what Lance's writer appended to a region belongs there. It accepts any row.

    Raises:
        Invalid: rows belong to another region, where no read would find them.
        Corrupt: an entry can't be read.
    """
    spec, schema, head = handle.config.regions, handle.config.schema, region.find_head()
    known = {one.id: one for one in regions(handle.context)}.get(region.id)
    if spec is None or head is None or known is None or known.spec_id != spec.spec_id:
        return
    foreign: list[pa.Table] = []
    for position in count(head.next_position):
        key = wal_entry(region.id, Position(position))
        if (found := handle.context.objects.get(key)) is None:
            break
        entry = decode(found.body, position=Position(position), key=key)
        if entry.nonce is None and entry.summary.rows:
            with error_context(**region.where):
                rows = stored_rows(entry, schema)
            foreign += [part.rows for part in route(rows, spec) if part.values != known.values]
    if foreign:
        raise Invalid(
            f"Lance's writer put rows of other regions into this region: {_listed(foreign, schema.primary_key)}",
            remedy="Move the manifests and entries that it wrote elsewhere, adopt again, then write their rows with "
            "upsert: the entries are Arrow streams",
            **region.where,
            position=head.next_position,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _ShardRows:
    """The rows of a shard that are not in regions yet, by region, each with its position in the log of the shard."""

    shard: RegionId
    newest: Version
    end: Position
    parts: Mapping[RegionValues, Sequence[tuple[Position, pa.Table]]]

    def of(self, values: RegionValues, *, after: int, key: tuple[str, ...]) -> pa.Table | None:
        """Return the newest row of each key of a region, of the entries after a position."""
        tables = [rows for position, rows in self.parts[values] if position > after]  # guard: moved rows stay out
        return newest(pa.concat_tables(tables).combine_chunks(), key) if tables else None


def _move(handle: TableHandle, target: WriteTarget, shard: ForeignShard, on_conflict: OnConflict) -> None:
    for _ in handle.context.budget().attempts():
        fenced = fence_writer(shard)
        rows = _read(handle, target, fenced)
        for values in rows.parts:
            _append(target, rows, values, on_conflict)
        if _drain(fenced, rows):
            return
    raise Contended("writers kept claiming the shard", remedy="Stop these writers", **shard.region.where)


def _append(target: WriteTarget, rows: _ShardRows, values: RegionValues, on_conflict: OnConflict) -> None:
    region, _ = find_or_create_region(target, values)
    key = target.schema.primary_key

    def next_draft(head: Head) -> Draft | None:
        new = rows.of(values, after=head.applied(rows.shard), key=key)
        if new is None:
            return None
        known = _in_our_log(target, new, region, head, shard=rows.shard)
        if on_conflict == "refuse" and pc.any(known).as_py():  # guard: keys of unknown order are refused at the append
            raise _unknown_order(target, [new.filter(known)])
        if on_conflict == "ours":
            new = new.filter(pc.invert(known))
        if not new.num_rows:
            return None
        return draft(new, applied_sequences={rows.shard: str(rows.end)}, at=target.context.clock.now())

    append_after(region, next_draft, owner=target.owner)


def _check_order(target: WriteTarget, read: Sequence[_ShardRows], on_conflict: OnConflict) -> None:
    """Raise `Invalid` if the order of rows can't be known: against our rows, or between two shards."""
    key = target.schema.primary_key
    unknown: list[pa.Table] = []
    left: list[pa.Table] = []
    for rows in read:
        for values in rows.parts:
            region = target.directory.find(values)
            head = None if region is None else region.find_head()
            new = rows.of(values, after=0 if head is None else head.applied(rows.shard), key=key)
            if new is None:
                continue
            known = pa.repeat(False, new.num_rows)
            if region is not None and head is not None:
                known = _in_our_log(target, new, region, head, shard=rows.shard)
            unknown.append(new.filter(known))
            left.append(new.filter(pc.invert(known)) if on_conflict == "ours" else new)
    if on_conflict == "refuse" and any(rows.num_rows for rows in unknown):
        raise _unknown_order(target, unknown)
    if (twice := _in_several(left, key)).num_rows:
        raise Invalid(
            f"{twice.num_rows} keys are in several shards of other tools, in an order that can't be known: "
            + _listed([twice], key),
            remedy=f"Write these keys with upsert or delete, then: lancelsm region adopt {target.context.uri} --ours",
            table=target.context.uri,
        )


def _in_several(parts: Sequence[pa.Table], key: tuple[str, ...]) -> pa.Table:
    """Return a row of each key that several parts have. Each part has a key once."""
    keys = pa.concat_tables([part.select(list(key)) for part in parts]).combine_chunks() if parts else None
    if keys is None or not keys.num_rows:
        return pa.table({})
    values = key_column(keys, key)
    first = pc.index_in(values, value_set=values)
    again = pc.not_equal(first, pa.arange(0, len(values)))
    return keys.take(pc.unique(first.filter(again)))


def _unknown_order(target: WriteTarget, rows: Sequence[pa.Table]) -> Invalid:
    number = sum(one.num_rows for one in rows)
    return Invalid(
        f"another tool and lancelsm both wrote {number} keys, in an order that can't be known: "
        + _listed(rows, target.schema.primary_key),
        remedy=f"Decide whose rows are newer: lancelsm region adopt {target.context.uri} --theirs, or --ours",
        table=target.context.uri,
        keys=number,
    )


def _listed(rows: Sequence[pa.Table], key: tuple[str, ...]) -> str:
    some = [text for one in rows if one.num_rows for text in described_keys(one.slice(0, _EXAMPLES), key)]
    number = sum(one.num_rows for one in rows)
    return "; ".join(some[:_EXAMPLES]) + ("; ..." if number > _EXAMPLES else "")


def _in_our_log(target: WriteTarget, rows: pa.Table, region: Region, head: Head, *, shard: RegionId) -> pa.Array:
    """Return for each row whether an entry that is still in our log has its key.

    Entries with rows of the same shard don't count: their order is that of its log.
    """
    key = target.schema.primary_key
    wanted = key_column(rows, key)
    known = pa.repeat(False, rows.num_rows)
    for one, end in [(region, head), *_earlier_regions(target)]:
        for position in range(end.first_position, end.next_position):
            entry = _entry(one, Position(position))
            if entry is None or not entry.summary.rows or shard in entry.summary.applied_sequences:
                continue
            with error_context(**one.where):
                ours = key_column(stored_rows(entry, target.schema), key)
            known = pc.or_(known, pc.is_in(wanted, value_set=ours))
    return known


def _earlier_regions(target: WriteTarget) -> list[tuple[Region, Head]]:
    """Return the regions of an earlier region spec, which may have any key."""
    spec = target.regions
    found = [one for one in regions(target.context) if (one.spec_id, one.number) != (spec.spec_id, spec.number)]
    return [(region, head) for region in found if (head := region.find_head()) is not None]


def _entry(region: Region, position: Position) -> Entry | None:
    """Read a committed entry of ours; None if it was collected meanwhile."""
    key = wal_entry(region.id, position)
    found = region.context.objects.get(key)
    if found is not None:
        return decode(found.body, position=position, key=key)
    if region.head().first_position > position:
        return None
    raise Corrupt("a committed entry is gone", **region.where, position=position, object=key)


def _read(handle: TableHandle, target: WriteTarget, shard: ForeignShard) -> _ShardRows:
    """Read the rows of a shard from its log, from the first entry on that is not in regions."""
    region, manifest = shard.region, shard.newest.manifest
    log = recover_log(region, replace(manifest, replay_after=shard.after, replay_epoch=Epoch(0)))
    markers = read_markers(objects=handle.context.objects, version=handle.read_base().version)
    merged = Generation(0) if markers is None else markers.merged.get(region.id, Generation(0))
    parts: dict[RegionValues, list[tuple[Position, pa.Table]]] = {}
    for summary in log.entries:
        if not summary.rows:
            continue
        key = wal_entry(region.id, summary.position)
        found = handle.context.objects.get(key)
        if found is None:
            raise Corrupt("an entry of the shard is gone", **region.where, position=summary.position, object=key)
        entry = decode(found.body, position=summary.position, key=key)
        with error_context(**region.where):
            if merged and _generation(entry) <= merged:  # guard: rows that are in the base are not appended again
                continue
            rows = stored_rows(entry, target.schema)
            _check(rows, target.schema, entry)
        for part in route(rows, target.regions):
            parts.setdefault(part.values, []).append((summary.position, part.rows))
    return _ShardRows(shard=region.id, newest=manifest.version, end=log.end, parts=parts)


def _generation(entry: Entry) -> int:
    """Return the generation that Lance flushes an entry into."""
    number = entry.lance_generation
    if number is None:
        raise Invalid(
            "generations of the shard are merged, and its entries don't say which generation they belong to",
            remedy="Merge the other generations with the tool that merged the first ones, then adopt again",
            position=entry.summary.position,
        )
    return number


def _check(rows: pa.Table, schema: TableSchema, entry: Entry) -> None:
    """Raise `Invalid` for rows that could be neither flushed nor merged: Lance's log does not check for nulls."""
    live = rows.filter(pc.invert(rows.column(TOMBSTONE)))
    needed = [(rows, name) for name in schema.primary_key]
    needed += [(live, field.name) for field in schema.columns if not field.nullable]
    for checked, name in needed:
        if checked.column(name).null_count:
            raise Invalid(
                f"a row has no value in column {name!r}, which is not nullable",
                remedy="Correct the row with the tool that wrote it, then adopt again",
                position=entry.summary.position,
                field=name,
            )


def _drain(shard: ForeignShard, rows: _ShardRows) -> bool:
    """Publish a manifest of the shard after which nothing of it is left. False if another writer published one."""
    region, before = shard.region, shard.newest.manifest
    after = replace(
        before,
        version=Version(before.version + 1),
        generations=(),
        replay_after=rows.end,
        last_seen=max(rows.end, before.last_seen),
        first_position=Position(rows.end + 1),
    )
    body = manifest_codec.encode(after)
    key = published_manifest(region.id, after.version)
    outcome = region.context.objects.create(key, body)
    if isinstance(outcome, Written):
        return True
    found = region.context.objects.get(key)
    return found is not None and found.body == body
