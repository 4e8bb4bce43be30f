"""Hide the rows of the base that have expired: one commit of deletion files, like a merge of deletes.

The base has one row of each key, so nothing older can reappear. A row counts only once it has expired by every clock:
`skew_allowance_seconds` later. If change events of the table are ordered, the sequences of the removed rows are kept as
those of deletes are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from lancelsm.common.clock import SLOW_ATTEMPTS
from lancelsm.common.layout import RegionId
from lancelsm.compaction import replaced_rows
from lancelsm.compaction.hidden import changed_fragments, old_files
from lancelsm.compaction.replaced_rows import Found
from lancelsm.dataset.base_rows import ROW_ADDRESS, Base, CommittedVersion, by_fragment, commit, expired_rows
from lancelsm.dataset.base_table import BaseTable
from lancelsm.dataset.deleted_keys import EVERY_REGION, keep_deletes, sequences_of
from lancelsm.dataset.foreign_rows import ROWS, counted_rows
from lancelsm.dataset.statement import Stating
from lancelsm.errors import Contended
from lancelsm.record import sequence
from lancelsm.record.ttl import Expiry
from lancelsm.region.config import newest_sequence
from lancelsm.region.drift import drift
from lancelsm.region.handle import TableHandle, check_base
from lancelsm.routing.route import route

MOST_ROWS = 1 << 22  # are hidden by one commit, about: their addresses, and perhaps their keys, are in memory


def remove_expired(handle: TableHandle, base: BaseTable) -> int:
    """Hide the rows of the base that have expired by every clock, some millions by each commit. Return their number.

    Args:
        base: the newest version, as the caller read it. It is read again if it has changed since.

    Nothing is hidden in a base that another tool changed so that merges refuse it.

    Raises:
        Contended: other processes kept changing the base. Commits that were made stay.
        Corrupt: the base belongs to another table, or a file is damaged. Commits that were made stay.
        Unavailable: the store did not answer; the rows may be hidden.

    A repeated call hides nothing twice. A crash leaves files that nothing refers to.
    """
    total = done = _removed(handle, base)
    while done >= MOST_ROWS:
        done = _removed(handle, handle.read_base())
        total += done
    return total


def _removed(handle: TableHandle, base: BaseTable) -> int:
    """Hide expired rows by one commit. Return how many; fewer than `MOST_ROWS` if these were all."""
    context = handle.context
    for attempt in context.budget().attempts(least=SLOW_ATTEMPTS):
        base = handle.read_base() if attempt else base
        check_base(base, handle.config)
        handle = handle.following(base)  # the keys are in the regions of the newest spec
        now = context.clock.now()
        expiry = base.expiry(now - handle.settings.skew_allowance_seconds)
        if expiry is None or drift(base, handle.config) is not None:
            return 0
        names = newest_sequence(context.objects, handle.config, uri=context.uri)
        rows = _expired(base, expiry, names)
        count: int = rows.num_rows
        if not count:
            return 0
        finds = tuple(
            Found(fragment=fragment, offsets=offsets.tobytes(), dead=len(offsets))
            for fragment, offsets in by_fragment(rows.column(ROW_ADDRESS).to_numpy()).items()
        )
        hidden = replaced_rows.hide_rows(Base.of(base), finds)
        changed, lines = changed_fragments(base, hidden, objects=context.objects, ids=context.ids)
        outcome = commit(
            Base.of(base),
            changed=changed,
            new=(),
            metadata={
                **base.metadata,
                ROWS: str(counted_rows(base) - count),
                **_kept_sequences(handle, base, rows, names, now=now),
            },
            properties={"lancelsm.expired": str(count)},
            stating=Stating(objects=context.objects, new=tuple(lines), read=old_files(hidden)),
        )
        if isinstance(outcome, CommittedVersion):
            return count
    raise Contended("other processes kept changing the base", remedy="Optimize again", table=context.uri)


def _expired(base: BaseTable, expiry: Expiry, names: Sequence[str]) -> pa.Table:
    """Read the addresses of rows that have expired; with an order of events also their keys and sequences.

    Stops after some batches, once there are `MOST_ROWS`.
    """
    wanted = {*base.schema.primary_key, *names} if names else set()
    columns = [name for name in base.schema.names if name in wanted]
    found = pa.schema([*(base.schema.columns.field(name) for name in columns), (ROW_ADDRESS, pa.uint64())])
    batches, left = list[pa.RecordBatch](), MOST_ROWS
    for batch in expired_rows(Base.of(base), expiry, base, columns):
        batches.append(pa.record_batch(batch.columns, schema=found))
        left -= batch.num_rows
        if left <= 0:
            break
    return pa.Table.from_batches(batches, schema=found)


def _kept_sequences(
    handle: TableHandle, base: BaseTable, rows: pa.Table, names: Sequence[str], *, now: float
) -> Mapping[str, str]:
    """Return the schema metadata that keeps the sequences of removed rows; empty if events have no order."""
    if not names:
        return {}
    deleted, late = list[tuple[RegionId, pa.Table]](), list[tuple[RegionId, str]]()
    for region, own in _by_region(handle, rows):
        keys = own.select(list(base.schema.primary_key))
        kept, others = sequences_of(keys, own.select(list(names)), names)
        deleted.append((region, kept))
        late.append((region, sequence.to_text(sequence.highest(others, names))))
    return keep_deletes(
        base,
        handle.context.objects,
        deleted,
        late=late,
        names=names,
        now=now,
        keep_seconds=handle.settings.keep_delete_sequences_seconds,
    )


def _by_region(handle: TableHandle, rows: pa.Table) -> list[tuple[RegionId, pa.Table]]:
    if handle.config.regions is None:  # adopted from Lance: the regions of its keys are not known
        return [(EVERY_REGION, rows)]
    directory = handle.target().directory
    parts = route(rows, handle.config.regions)
    return [((directory.find(part.values) or directory.named(part.values)).id, part.rows) for part in parts]
