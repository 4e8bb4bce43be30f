"""Append the rows of a message to the regions that a reshard gave their keys.

The sealed head of the message's region says whether the message was applied there. If not, each new region takes its
rows once, under a producer of their own: `QUEUE@OLD-REGION`. Other writers may have used the new regions before, so a
row is appended only if no entry of its new region has its key. Model: tests/model/resharded_queue.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from lancelsm.common.layout import Position, region_id
from lancelsm.common.setsum import Setsum
from lancelsm.common.write_result import CommittedEntry
from lancelsm.errors import Invalid
from lancelsm.region.catalog import OnlyEvents, Region, regions
from lancelsm.region.handle import TableHandle, WriteTarget
from lancelsm.region.head import Head
from lancelsm.routing.route import Routed, route
from lancelsm.stack.delivery.message import Message
from lancelsm.stack.delivery.newer_rows import LogIsCollected, NewerRows
from lancelsm.wal.entry import Draft, draft
from lancelsm.wal.region_writer import RegionWriter, find_or_create_region
from lancelsm.wal.replay import LogEnd


class _Empty(NamedTuple):
    next_position: Position = Position(1)
    entry_setsum: Setsum = Setsum.ZERO
    manifest_key: str = ""


EMPTY: LogEnd = _Empty()
"""The end of the log of a region that was never created."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnorderedRows:
    """Rows that can't be appended: the log of their region is collected, so newer rows can't be ruled out.

    Or the table takes only change events now.
    """

    rows: pa.Table
    error: Invalid


def old_region(message: Message, handle: TableHandle) -> Region | None:
    """Return the region of a message if it belongs to an earlier region spec of the table.

    It may have no head, since regions are created when their values are first written.
    """
    config = handle.config
    for spec in config.earlier_regions:
        if region_id(table=config.table, spec_id=spec.spec_id, values=message.values) == message.region:
            return Region(context=handle.context, id=message.region, spec_id=spec.spec_id, values=message.values)
    listed = regions(handle.context) if config.earlier_regions else []  # an adopted region has another id
    number = 0 if config.regions is None else config.regions.number
    return next((one for one in listed if one.id == message.region and one.number < number), None)


def append_moved(
    rows: pa.Table, *, old: Region, target: WriteTarget, source: str, sequence: int
) -> Iterator[CommittedEntry | UnorderedRows]:
    """Append rows of a message that its old region has not applied.

    Args:
        rows: in stored form.
        source: the identity of the queue.
        sequence: of the message.

    Yields:
        For each new region: the entry, or the rows that can't be appended. Nothing if the region has them already, or
        newer rows of all their keys.

    Raises: the same errors as `wal.append.append_after`. The same call again appends the rest.
    """
    producer = f"{source}@{old.id}"
    for part in route(rows, target.regions):
        done = _append_part(part, target, producer=producer, sequence=sequence)
        if done is not None:
            yield done


def _append_part(
    part: Routed, target: WriteTarget, *, producer: str, sequence: int
) -> CommittedEntry | UnorderedRows | None:
    region, held = find_or_create_region(target, part.values)
    newer = NewerRows(
        region,
        target.schema,
        part.rows,
        producer=producer,
        sequence=sequence,
        position=Position(1),
        entry_setsum=Setsum.ZERO,
    )

    def next_draft(head: Head) -> Draft | None:
        if sequence <= head.applied(producer):  # guard: moved message is applied once
            return None
        left = newer.rows_to_append(head)
        applied = {producer: str(sequence)}
        return draft(left, applied_sequences=applied, at=region.context.clock.now()) if left.num_rows else None

    writer = RegionWriter(region, target, owner=target.owner, previous_owners=(), depth=1, held=held)
    try:
        return writer.append_after(next_draft)
    except (LogIsCollected, OnlyEvents) as error:
        return UnorderedRows(rows=part.rows, error=error)
