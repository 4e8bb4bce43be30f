"""Clones: a new table of a snapshot, which shares the base's files with its source.

A clone has its own id, registry records and regions. Its base is the snapshot's version by reference; what the snapshot
has above that is appended to the clone's log like any other rows. Snapshots and cursors are not taken along.

The source keeps the version for the clone by a pin without expiry, named after the clone's id: `snapshot list` shows
it, and `drop` of the clone ends it. A tag of the version keeps it too, should the source lose its registry. Whoever
moves the source's directory away breaks the clone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import pyarrow as pa

from lancelsm.admin.create import begin_copy, catalogued, check_free, sharding_of
from lancelsm.common.layout import CLONE, DROPPING, TableId, table_id
from lancelsm.dataset.base_table import BaseFacts
from lancelsm.dataset.copies import share_base
from lancelsm.dataset.generation import read_generation
from lancelsm.dataset.tags import remove_tag, tag_version
from lancelsm.errors import Contended, Corrupt, Invalid
from lancelsm.gc.delete_table import cancel_drop, delete_config
from lancelsm.history import pins
from lancelsm.history.pins import Pin
from lancelsm.history.snapshot import find_snapshot, forget_snapshot, keep_standing, snapshot_view, standing
from lancelsm.objects import ObjectStore, Written
from lancelsm.read import reader
from lancelsm.read.view import View, take_view
from lancelsm.region import config as configs
from lancelsm.region.catalog import regions
from lancelsm.region.config import Config
from lancelsm.region.handle import Ports, TableHandle, canonical
from lancelsm.region.head import Head
from lancelsm.region.lineage import CloneLineage, read_lineage
from lancelsm.registry.open import default_registry
from lancelsm.routing.route import route
from lancelsm.routing.spec import parse_regions
from lancelsm.wal.entry import Draft, draft
from lancelsm.wal.region_writer import RegionWriters

_ROWS_AT_ONCE = 50_000
_QUEUE = "clone"  # under which the heads of a clone count the parts of the snapshot
_BEFORE = 10**30  # the number before the first part: a head forgets the lowest of five queues, and SQS counts to 10^20


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """A copy of a table: where it is, how many live rows it has, and of what it was made."""

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
    """Make a new table of a snapshot without copying its base.

    Args:
        handle: the source.
        to: a path or URL, in a store that reaches the source's with the same options.
        registry: the clone's; by default as for a new table.

    Raises:
        Invalid: there is no such snapshot, or it is gone before the clone is made; or something else is at `to`.
        Corrupt: something that the snapshot needs is missing, or the clone has not the rows of the snapshot.
        Contended, Ambiguous, Unavailable: clone it again.

    A crash at any line leaves no table at `to`; the same call goes on where it stopped.
    """
    ports, place = ports or Ports(), canonical(to)
    store = ports.store(place, handle.storage_options)
    check_free(store, uri=place, marker=CLONE)
    pin = find_snapshot(handle.context, name)
    view = snapshot_view(handle, pin)
    lineage = _begun(store, handle, pin, registry=registry or default_registry(place), place=place, ports=ports)
    _keep_files(handle, pin, lineage, place)
    schema = view.base.schema
    config = Config(
        table=TableId(lineage.table),
        registry=lineage.registry,
        owner=handle.config.owner,
        schema=schema,
        schema_version=handle.config.schema_version,
        regions=handle.config.regions or parse_regions(None, schema=schema),
        settings=handle.config.settings,
    )
    share_base(
        source=view.base,
        to=place,
        facts=facts_of(config),
        sharding=None if config.regions is None else sharding_of(config.regions, schema),
        storage_options=handle.storage_options,
    )
    _check_begun(store, handle, lineage, place)
    table = catalogued(config, store, place, storage_options=handle.storage_options, ports=ports)
    with standing(handle.context, pin):
        _append(table, view, source=handle)
        rows = _count(view, handle)
    found = _count(take_view(table.context, lambda: regions(table.context), table.read_base), table)
    if found != rows:
        check_free(store, uri=place, marker=CLONE)  # another call may have made it, and it was written to since
        raise Corrupt(
            f"the clone has {found} rows, the snapshot {rows}",
            remedy="Scrub the source; then clone it to another place",
            table=place,
        )
    configs.create(store, config, uri=place)
    try:
        _check_begun(store, handle, lineage, place)
    except Contended:
        _take_back(table)
        raise
    return Copied(uri=place, rows=rows, source=handle.context.uri)


def release(source: TableHandle, lineage: CloneLineage) -> None:
    """End the pin of a clone that is gone; nothing happens if there is none. Raises as
    `history.snapshot.forget_snapshot`.
    """
    remove_tag(uri=source.context.uri, tag=lineage.tag, storage_options=source.storage_options)
    pin = pins.named(source.context, "snapshot", lineage.pin)
    if pin is not None:
        forget_snapshot(source, pin)


def facts_of(config: Config) -> BaseFacts:
    """What the base says of a table of this configuration."""
    return BaseFacts(
        table=config.table,
        registry=config.registry,
        owner=config.owner,
        regions=configs.regions_text(config.regions),
    )


def _begun(
    store: ObjectStore, handle: TableHandle, pin: Pin, *, registry: str, place: str, ports: Ports
) -> CloneLineage:
    """The clone's identity, written before anything else of it, or as an earlier call wrote it."""
    wanted = CloneLineage(
        table=table_id(ports.ids.nonce()),
        source=handle.context.uri,
        snapshot=pin.name,
        nonce=pin.nonce,
        registry=registry,
    )
    return CloneLineage(**begin_copy(store, CLONE, asdict(wanted), uri=place, storage_options=handle.storage_options))


def _keep_files(handle: TableHandle, pin: Pin, lineage: CloneLineage, place: str) -> None:
    """Pin the snapshot's version of the base for the clone, for ever.

    The snapshot still stands after the new pin's records are written, by a swap of its own record: a collector that
    counts neither has not read the pins yet. Nor has a drop whose note is not there yet.
    """
    context = handle.context
    found = pins.named(context, "snapshot", lineage.pin)
    if found is not None and (found.confirmed or not pins.abandon(context, found)):  # else its maker has crashed
        return
    assert pin.base_version is not None, "a snapshot pins a version of the base"
    try:
        made = pins.begin(context, "snapshot", lineage.pin)
    except Invalid as error:
        raise Contended("another call is making the clone", remedy="Clone it again", table=place) from error
    made = pins.step(context, replace(made, base_version=pin.base_version, clone=place))
    keep_standing(handle, pin)
    if context.objects.get(DROPPING) is not None:
        pins.forget(context, made)
        raise Invalid("the table is being dropped", remedy="Clone another", table=context.uri, snapshot=pin.name)
    tag_version(uri=context.uri, version=pin.base_version, tag=lineage.tag, storage_options=handle.storage_options)
    pins.confirm(context, made, ttl_seconds=None)


def _check_begun(store: ObjectStore, handle: TableHandle, lineage: CloneLineage, place: str) -> None:
    """Raise `Contended` for a clone that is or was dropped while it is made: nothing keeps its files any more.

    What this call has pinned for one that is gone ends, too. A drop that is at work may be refused, and ends it itself.
    """
    gone = read_lineage(store) != lineage
    if gone:
        release(handle, lineage)
    pin = pins.named(handle.context, "snapshot", lineage.pin)
    if gone or store.get(DROPPING) is not None or pin is None or not pin.confirmed:
        raise Contended("the clone was dropped while it was made", remedy="Clone it again", table=place)


def _take_back(table: TableHandle) -> None:
    """Delete the configuration of a clone that nothing keeps, under the note of a drop: what is there is no table.

    Not if it is another table's by now, nor beside a drop of the clone, which takes it along unless it is refused.
    """
    store = table.context.objects
    found = configs.read(store, uri=table.context.uri)
    marker = json.dumps({"table": table.config.table, "registry": table.config.registry}).encode()
    ours = found is not None and found.table == table.config.table
    if ours and isinstance(store.create(DROPPING, marker), Written):
        delete_config(table.context)
        cancel_drop(table.context)


def _append(table: TableHandle, view: View, *, source: TableHandle) -> None:
    """Append what a view has above its base, once, whoever else makes the clone or has made it.

    A call that had no answer may have made the table already, or make it at any moment, and a maker may stall. So the
    rows come as a queue's do: each part has the same number in every call, and a head that has committed it says so.
    """
    target = table.target()
    writers = RegionWriters(target, owner=table.config.owner)
    for number, rows in enumerate(_above_base(view, source), start=_BEFORE + 1):
        for part in route(rows, target.regions):
            next_draft = partial(_unless_there, number, part.rows, at=table.context.clock.now())
            writers.of(part.values).append_after(next_draft)


def _unless_there(number: int, rows: pa.Table, head: Head, *, at: float) -> Draft | None:
    if number <= head.applied(_QUEUE):
        return None
    return draft(rows, applied_sequences={_QUEUE: str(number)}, at=at)


def _above_base(view: View, source: TableHandle) -> Iterator[pa.Table]:
    """Rows in stored form, level by level of each region, oldest first; the same ones each time."""
    for region in view.regions:
        for generation in region.generations:
            batches = read_generation(
                uri=f"{source.context.uri}/{region.path(generation)}",
                schema=view.base.schema,
                storage_options=source.storage_options,
            )
            yield from _slices(pa.Table.from_batches(batches, view.base.schema.stored))
        yield from _slices(region.tail)


def _slices(rows: pa.Table) -> Iterator[pa.Table]:
    for start in range(0, rows.num_rows, _ROWS_AT_ONCE):
        yield rows.slice(start, _ROWS_AT_ONCE)


def _count(view: View, handle: TableHandle) -> int:
    key = list(view.base.schema.primary_key)
    return sum(batch.num_rows for batch in reader.scan(view, uri=handle.context.uri, columns=key))
