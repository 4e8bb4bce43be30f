"""Clone a snapshot: create a new table that shares the files of the base with its source.

A clone has its own id, registry records and regions. Its base refers to the files of the snapshot's version of the
source. Rows that the snapshot has above the base are appended to the clone's log like other rows. Snapshots and cursors
of the source are not copied.

The source keeps the files with a pin that does not expire. The pin is named after the clone's id and appears in
`snapshot list`; dropping the clone removes it. A Lance tag keeps the version too, in case the source loses its
registry. Moving the source's directory breaks the clone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import pyarrow as pa

from lancelsm.admin.create import begin_copy, check_free, register_table, sharding_of
from lancelsm.common.layout import CLONE, DROPPING, TableId, table_id
from lancelsm.dataset.base_table import BaseFacts
from lancelsm.dataset.copies import share_base
from lancelsm.dataset.generation import read_generation
from lancelsm.dataset.tags import remove_tag, tag_version
from lancelsm.errors import Contended, Corrupt, Invalid
from lancelsm.gc.delete_table import cancel_drop, delete_config
from lancelsm.history import pins
from lancelsm.history.pin_records import Pin
from lancelsm.history.snapshot import ensure_kept, find_snapshot, forget_snapshot, snapshot_errors, snapshot_view
from lancelsm.objects import ObjectStore, Written
from lancelsm.read import reader
from lancelsm.read.view import View, take_view
from lancelsm.record.batches import resized
from lancelsm.record.schema import TableSchema
from lancelsm.region import config as configs
from lancelsm.region.catalog import TableContext, regions
from lancelsm.region.config import Config
from lancelsm.region.handle import Ports, TableHandle, canonical
from lancelsm.region.head import Head
from lancelsm.region.lineage import CloneLineage, read_lineage
from lancelsm.registry.open import default_registry
from lancelsm.routing.route import route
from lancelsm.routing.spec import RegionSpec, parse_regions
from lancelsm.wal.entry import Draft, draft
from lancelsm.wal.region_writer import RegionWriters

_ROWS_AT_ONCE = 50_000
_BYTES_AT_ONCE = 64 << 20
_QUEUE = "clone"  # the queue name under which heads of a clone remember the parts that were appended
# The number before the first part. It is above all SQS sequence numbers (below 10^20), because a head that has five
# queues drops the one with the lowest number.
_BEFORE = 10**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """A finished copy of a table: its location, the number of its live rows, and the location of its source."""

    uri: str
    rows: int
    source: str


def clone_snapshot(
    handle: TableHandle,
    name: str,
    to: str | Path,
    *,
    registry: str | None = None,
    ports: Ports | None = None,
) -> Copied:
    """Create a new table from a snapshot without copying the files of its base.

    Arguments, errors and what holds after a crash are those of `lancelsm.clone`; `handle` is the source table.
    """
    ports, location = ports or Ports(), canonical(to)
    store = ports.store(location, handle.storage_options)
    check_free(store, uri=location, marker=CLONE)
    pin = find_snapshot(handle.context, name)
    view = snapshot_view(handle, pin)
    lineage = _begin_clone(
        store, handle, pin, registry=registry or default_registry(location), location=location, ports=ports
    )
    _pin_base_version(handle, pin, lineage, location)
    schema = view.base.schema
    config = Config(
        table=TableId(lineage.table),
        registry=lineage.registry,
        owner=handle.config.owner,
        schema=schema,
        regions=_regions(handle, schema),
        settings=handle.config.settings,
        sequence_by=configs.newest_sequence(handle.context.objects, handle.config, uri=handle.context.uri),
    )
    share_base(
        source=view.base,
        to=location,
        facts=facts_of(config),
        sharding=None if config.regions is None else sharding_of(config.regions, schema),
        storage_options=handle.storage_options,
    )
    _check_not_dropped(store, handle, lineage, location)
    table = register_table(config, store, location, storage_options=handle.storage_options, ports=ports)
    with snapshot_errors(handle.context, pin):
        _append(table, view, source=handle)
        rows = reader.count(view, uri=handle.context.uri)
    copied = take_view(table.context, lambda: regions(table.context), table.read_keyed_base)
    copied = replace(copied, now=view.now)  # rows of the snapshot may have expired since
    found = reader.count(copied, uri=table.context.uri)
    if found != rows:
        check_free(store, uri=location, marker=CLONE)  # another call may have created the clone; then it takes writes
        raise Corrupt(
            f"the clone has {found} rows, the snapshot {rows}",
            remedy="Scrub the source, then clone it to another location",
            table=location,
        )
    configs.create(store, config, uri=location)
    try:
        _check_not_dropped(store, handle, lineage, location)
    except Contended:
        _undo_create(table)
        raise
    return Copied(uri=location, rows=rows, source=handle.context.uri)


def _regions(handle: TableHandle, schema: TableSchema) -> RegionSpec:
    """Return the region spec of the clone: it is the first one of its table, also if the source was resharded."""
    spec = handle.config.regions
    if spec is not None and spec.number == 1:
        return spec
    return parse_regions(None if spec is None else spec.describe(), schema=schema)


def release(source: TableHandle, lineage: CloneLineage) -> None:
    """Remove the pin and the tag that the source keeps for a clone. Does nothing if they do not exist.

    Raises: the same errors as `history.snapshot.forget_snapshot`.
    """
    remove_tag(uri=source.context.uri, tag=lineage.tag, storage_options=source.storage_options)
    pin = pins.named(source.context, "snapshot", lineage.pin)
    if pin is not None:
        forget_snapshot(source, pin)


def facts_of(config: Config) -> BaseFacts:
    """Return the facts that the base stores about a table with this configuration."""
    return BaseFacts(
        table=config.table,
        registry=config.registry,
        owner=config.owner,
        regions=configs.regions_text(config.regions),
    )


def _begin_clone(
    store: ObjectStore, handle: TableHandle, pin: Pin, *, registry: str, location: str, ports: Ports
) -> CloneLineage:
    """Record the clone's identity and source before any other object of it. Return an earlier call's record, if any."""
    lineage = CloneLineage(
        table=table_id(ports.ids.nonce()),
        source=handle.context.uri,
        snapshot=pin.name,
        nonce=pin.nonce,
        registry=registry,
    )
    recorded = begin_copy(store, CLONE, asdict(lineage), uri=location, storage_options=handle.storage_options)
    return CloneLineage(**recorded)


def _pin_base_version(handle: TableHandle, pin: Pin, lineage: CloneLineage, location: str) -> None:
    """Pin the snapshot's version of the base for the clone, without expiry.

    After the records of the new pin are written, `ensure_kept` swaps the snapshot's own record. So the snapshot still
    exists then, and a collector that saw neither pin has not read the pins yet. The same holds for a drop of the source
    whose marker file is not there yet.
    """
    context = handle.context
    found = pins.named(context, "snapshot", lineage.pin)
    # An unconfirmed pin is left by a call that crashed: it is abandoned, and the clone is pinned again.
    if found is not None and (found.confirmed or not pins.abandon(context, found)):
        return
    version = pin.pinned_version
    try:
        made = pins.begin(context, "snapshot", lineage.pin)
    except Invalid as error:
        raise Contended("another call is creating the clone", remedy="Clone again", table=location) from error
    made = pins.update_pin(context, replace(made, base_version=version, clone=location))
    ensure_kept(handle, pin)  # guard: snapshot is kept when its clone is pinned
    if context.objects.get(DROPPING) is not None:  # guard: dropped table is not cloned
        pins.forget(context, made)
        raise Invalid("the table is being dropped", remedy="Clone another table", table=context.uri, snapshot=pin.name)
    tag_version(uri=context.uri, version=version, tag=lineage.tag, storage_options=handle.storage_options)
    pins.confirm(context, made, ttl_seconds=None)


def _check_not_dropped(store: ObjectStore, handle: TableHandle, lineage: CloneLineage, location: str) -> None:
    """Raise `Contended` if the clone was or is being dropped while it is created: its files are no longer pinned.

    If the clone is gone, the pin of this call is removed too. If a drop is running, it may still be refused; the drop
    itself then removes the pin.
    """
    gone = read_lineage(store) != lineage
    if gone:
        release(handle, lineage)
    pin = pins.named(handle.context, "snapshot", lineage.pin)
    if gone or store.get(DROPPING) is not None or pin is None or not pin.confirmed:
        raise Contended("the clone was dropped while it was created", remedy="Clone again", table=location)


def _undo_create(table: TableHandle) -> None:
    """Delete the configuration of a clone whose files are no longer pinned, so that it can't be opened as a table.

    The deletion runs under the marker file of a drop. Do nothing if the configuration belongs to another table now, or
    if a drop of the clone is running: the drop deletes the configuration unless it is refused.
    """
    store = table.context.objects
    found = configs.read(store, uri=table.context.uri)
    marker = json.dumps({"table": table.config.table, "registry": table.config.registry}).encode()
    ours = found is not None and found.table == table.config.table
    if ours and isinstance(store.create(DROPPING, marker), Written):
        delete_config(table.context)
        cancel_drop(table.context)


def _append(table: TableHandle, view: View, *, source: TableHandle) -> None:
    """Append the rows that a view has above its base, exactly once, also if several calls create the same clone.

    A call whose reply was lost may have created the table already or may still create it, and a call may stall and
    continue later. So parts are appended like messages of a queue: a part has the same number in every call, and the
    head that commits it remembers the number.
    """
    target = table.target()
    writers = RegionWriters(target, owner=table.config.owner)
    for number, rows in enumerate(rows_above_base(view, source), start=_BEFORE + 1):
        for part in route(rows, target.regions):
            next_draft = partial(_draft_if_missing, number, part.rows, context=table.context)
            writers.of(part.values).append_after(next_draft)


def _draft_if_missing(number: int, rows: pa.Table, head: Head, *, context: TableContext) -> Draft | None:
    if number <= head.applied(_QUEUE):  # guard: part of a snapshot is appended once
        return None
    return draft(rows, applied_sequences={_QUEUE: str(number)}, at=context.clock.now(), ordered=context.ordered)


def rows_above_base(view: View, source: TableHandle) -> Iterator[pa.Table]:
    """Yield rows in stored form, level by level in each region, oldest first; in the same parts at every call."""
    for region in view.regions:
        for generation in region.generations:
            row_bytes = (generation.bytes or 0) // (generation.rows or 1)
            batches = read_generation(
                uri=f"{source.context.uri}/{region.path(generation)}",
                schema=view.base.schema,
                row_bytes=row_bytes,
                storage_options=source.storage_options,
            )
            yield from resized(batches, _rows_at_once(row_bytes))
        yield from resized(region.tail.in_order(), _rows_at_once(region.tail.row_bytes))


def _rows_at_once(row_bytes: int) -> int:
    return max(1, min(_ROWS_AT_ONCE, _BYTES_AT_ONCE // max(1, row_bytes)))
