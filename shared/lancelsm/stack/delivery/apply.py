"""A batch of the queue to entries: per region one, that remembers how far the queue is applied.

Messages come again, in other batches than before: after a crash, a timeout, a lost reply, and while another container
still works on them. The entry that holds their rows moves `applied_sequences` of the head to the highest sequence in
it, in the same swap, so whoever comes later drops what is applied, at every head that it tries anew. Model:
tests/model/redelivery.py.

What can never be applied is set aside and the rest goes on; what can't be applied now comes again, with everything
behind it in its region. A stopped region waits, it does not skip.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

import pyarrow as pa

from lancelsm.common.committed import CommittedEntry
from lancelsm.common.layout import region_id
from lancelsm.errors import Invalid, LsmError, Unavailable
from lancelsm.record.schema import conform
from lancelsm.region.catalog import Region, regions
from lancelsm.region.handle import TableHandle
from lancelsm.region.head import Head, RegionState
from lancelsm.stack.delivery.message import Message, decode, group_id, unpacked
from lancelsm.stack.delivery.quarantine import quarantine, quarantine_rows
from lancelsm.stack.delivery.queue import Delivery, Queue
from lancelsm.stack.delivery.table_cache import Inbox, Tables
from lancelsm.stack.delivery.validation import RejectedRows, partition_valid
from lancelsm.wal.entry import Draft, draft
from lancelsm.wal.region_writer import RegionWriter, region_of


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageResult:
    """What became of one message: applied; or set aside, in part or whole, because of `rejection`; or, because of
    `again`, neither: it has to come again. `bug` is what nobody foresaw, told once for a region."""

    delivery: Delivery
    table: str = ""
    rejection: LsmError | None = None
    again: LsmError | None = None
    bug: Exception | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPorts:
    """Whom a batch deals with. `source` names the queue that it came from."""

    tables: Tables
    inbox: Inbox
    dead_letters: Queue
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchResult:
    """What became of a batch: one outcome per message, in no order, and the entries that hold its rows."""

    outcomes: tuple[MessageResult, ...]
    entries: tuple[tuple[str, CommittedEntry], ...]  # with the table's URI


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """One message, checked: rows to append and rows to set aside."""

    delivery: Delivery
    message: Message
    handle: TableHandle
    rows: pa.Table
    rejected: RejectedRows | None
    earlier: Region | None = None  # the region that it is for, if the table's regions are others by now
    set_aside: LsmError | None = None  # why some of it is on the dead-letter queue already


def apply(deliveries: Iterable[Delivery], *, ports: BatchPorts, seconds: float) -> BatchResult:
    """Apply a batch: regions in parallel, each in the order of its messages.

    Args:
        deliveries: of several regions and tables, in any order.
        seconds: for everything. What is not applied by then comes again.

    A crash at any line loses nothing and doubles nothing: what was not reported comes again, what of it was applied is
    dropped then, and what was set aside may lie on the dead-letter queue twice.
    """
    clock = ports.tables.ports.clock
    deadline = clock.monotonic() + seconds
    outcomes: list[MessageResult] = []
    jobs: list[list[_Job]] = []
    for group in _groups(deliveries):
        if clock.monotonic() >= deadline:  # a store was slow; what is said of it has to be said in time
            outcomes += _waiting(group, _late())
            continue
        wanted, failed = _judged(group, ports)
        outcomes += failed
        if wanted:
            jobs.append(wanted)
    entries: list[tuple[str, CommittedEntry]] = []
    if jobs:
        each = jobs[0][0].handle.context.each
        for done in each(lambda wanted: _RegionBatch(wanted, ports, deadline).run(), jobs):
            outcomes += done.outcomes
            entries += done.entries
    return BatchResult(outcomes=tuple(outcomes), entries=tuple(entries))


def _late(table: str | None = None) -> Unavailable:
    return Unavailable("the time of the call was over before their turn", table=table)


def _waiting(deliveries: Sequence[Delivery], error: Exception, *, table: str = "") -> list[MessageResult]:
    """What becomes of messages of one region that nothing can be said of now. A bug that they meet stops no others."""
    if isinstance(error, LsmError):
        return [MessageResult(delivery=one, table=table, again=error) for one in deliveries]
    unforeseen = Unavailable(f"a bug: {type(error).__name__}", remedy="Report it with the trace in the log")
    first, *rest = _waiting(deliveries, unforeseen, table=table)
    return [replace(first, bug=error), *rest]


def _groups(deliveries: Iterable[Delivery]) -> list[list[Delivery]]:
    groups: dict[str, dict[int, Delivery]] = {}
    for delivery in deliveries:
        groups.setdefault(delivery.group, {})[delivery.sequence] = delivery
    return [[group[sequence] for sequence in sorted(group)] for group in groups.values()]


def _judged(group: Sequence[Delivery], ports: BatchPorts) -> tuple[list[_Job], list[MessageResult]]:
    """The messages of one group that can be applied now, and what became of the others."""
    jobs: list[_Job] = []
    outcomes: list[MessageResult] = []
    for place, delivery in enumerate(group):
        try:
            try:
                jobs.append(_job(delivery, ports))
            except _Misfit as found:
                quarantine(
                    delivery,
                    found.error,
                    nonce=ports.tables.ports.ids.nonce(),
                    source=ports.source,
                    inbox=ports.inbox,
                    dead_letters=ports.dead_letters,
                )
                outcomes.append(MessageResult(delivery=delivery, rejection=found.error))
        except Exception as error:  # noqa: BLE001 - of any kind: the other regions go on
            outcomes += _waiting(group[place:], error)
            break
    return jobs, outcomes


class _Misfit(Exception):
    """A message that can't be applied by any release or at any time, with what is wrong."""

    def __init__(self, error: LsmError) -> None:
        super().__init__(str(error))
        self.error = error


def _job(delivery: Delivery, ports: BatchPorts) -> _Job:
    """A message, checked against its table.

    Raises:
        _Misfit: nothing of it can be applied, ever.
        LsmError: it can't be told now.
    """
    try:
        message = decode(delivery.body)
    except Invalid as error:
        raise _Misfit(error) from error
    handle = ports.tables.find(message.table)
    if handle is None:
        raise _Misfit(Invalid("no table of this deployment is there", table=message.table))
    stream = message.rows if message.object is None else ports.inbox.get(message.object)
    if stream is None:
        raise _Misfit(Invalid("its object is not in the inbox", table=message.table, object=message.object))
    try:
        rows = unpacked(stream)
    except Invalid as error:
        raise _Misfit(error) from error
    fitting, rejected = _partition_valid(rows, message, handle)
    if rejected is not None:  # perhaps the configuration is of yesterday
        handle = ports.tables.find(message.table, fresh=True) or handle
        fitting, rejected = _partition_valid(rows, message, handle)
    target = handle.target()
    region = region_id(table=handle.config.table, spec_id=target.regions.spec_id, values=message.values)
    earlier = None if region == message.region else _earlier(message, handle)
    # The order of a region's messages, and so their sequences, mean something within its own group only.
    if group_id(handle.config.table, message.region) != delivery.group or (region != message.region and not earlier):
        raise _Misfit(Invalid("it names another region than its values and its group", table=message.table))
    if earlier is not None:
        gone = Invalid("the rows are for a region of an earlier division of the table", **earlier.where)
        fitting, rejected = target.schema.stored.empty_table(), RejectedRows(rows=rows, error=gone)
    return _Job(delivery=delivery, message=message, handle=handle, rows=fitting, rejected=rejected, earlier=earlier)


def _earlier(message: Message, handle: TableHandle) -> Region | None:
    """The message's region as one of an earlier division of the table; None if there never was such a one."""
    return next(
        (
            region
            for region in regions(handle.context)
            if (region.id, region.values) == (message.region, message.values) and region.find_head() is not None
        ),
        None,
    )


def _partition_valid(rows: pa.Table, message: Message, handle: TableHandle) -> tuple[pa.Table, RejectedRows | None]:
    return partition_valid(rows, target=handle.target(), values=message.values)


class _RegionBatch:
    """The messages of one region, in order."""

    def __init__(self, jobs: list[_Job], ports: BatchPorts, deadline: float) -> None:
        self._jobs = jobs
        self._ports = ports
        self._deadline = deadline
        self._target = jobs[-1].handle.target()  # by the newest configuration that a message made us read
        self.outcomes: list[MessageResult] = []
        self.entries: list[tuple[str, CommittedEntry]] = []

    def run(self) -> _RegionBatch:
        try:
            while self._jobs:
                self._step()
        except Exception as error:  # noqa: BLE001 - of any kind: the other regions go on
            left = [job.delivery for job in self._jobs]
            self.outcomes += _waiting(left, error, table=self._target.context.uri)
        return self

    def _step(self) -> None:
        """Get rid of the first message, or at least of its misfits, and perhaps of more messages."""
        context = self._target.context
        left = self._deadline - context.clock.monotonic()
        if left <= 0:
            raise _late(context.uri)
        job = self._jobs[0]
        region = job.earlier or region_of(self._target, job.message.values)
        region = replace(region, context=replace(context, budget_seconds=min(left, context.budget_seconds)))
        if job.rejected is not None:
            self._set_aside(region, job.rejected)
        else:
            self._append(region)

    def _set_aside(self, region: Region, rejected: RejectedRows) -> None:
        """Before the entry with the rest of the message, which makes us drop all of it when it comes again."""
        job = self._jobs[0]
        head = region.head()
        if self._is_applied(job, head):  # by another container, which set its misfits aside too
            self._settle(1)
            return
        self._quarantine(job, rejected.rows, rejected.error, head, whole=not job.rows.num_rows)
        self._jobs[0] = replace(job, rejected=None, set_aside=rejected.error)
        if not job.rows.num_rows:
            self._settle(1)

    def _append(self, region: Region) -> None:
        """One entry of as many messages as it takes."""
        batch = self._next_entry()
        drafts: dict[int, Draft] = {}  # by how many messages are not in the log yet

        def next_draft(head: Head) -> Draft | None:
            new = [job for job in batch if not self._is_applied(job, head)]
            if new and len(new) not in drafts:
                rows = pa.concat_tables([conform(job.rows, self._target.schema) for job in new])
                drafts[len(new)] = draft(rows, applied_sequences={self._ports.source: str(new[-1].delivery.sequence)})
            return drafts[len(new)] if new else None

        writer = RegionWriter(region, self._target, owner=self._target.owner, previous_owners=(), depth=1)
        try:
            entry = writer.append_after(next_draft)
        except Invalid as error:
            head = region.head()
            if head.status is not RegionState.SEALED:
                raise  # a newer release's head, or a store that refuses us: not the rows' fault
            if not self._is_applied(batch[0], head):
                self._quarantine(batch[0], batch[0].rows, error, head, whole=True)
                self._jobs[0] = replace(batch[0], set_aside=error)
            self._settle(1)
            return
        if entry is not None:
            self.entries.append((self._target.context.uri, entry))
        self._settle(len(batch))

    def _next_entry(self) -> list[_Job]:
        """Messages up to the size of an entry, or to the first with misfits."""
        batch: list[_Job] = []
        size = 0
        for job in takewhile(lambda job: job.rejected is None, self._jobs):
            size += job.rows.nbytes
            if batch and size > self._target.settings.group_commit_bytes:
                break
            batch.append(job)
        return batch

    def _is_applied(self, job: _Job, head: Head) -> bool:
        return job.delivery.sequence <= head.applied(self._ports.source)

    def _quarantine(self, job: _Job, rows: pa.Table, error: LsmError, head: Head, *, whole: bool) -> None:
        quarantine_rows(
            rows,
            job.message,
            job.delivery,
            error,
            head=head,
            whole=whole,
            nonce=self._ports.tables.ports.ids.nonce(),
            source=self._ports.source,
            inbox=self._ports.inbox,
            dead_letters=self._ports.dead_letters,
        )

    def _settle(self, count: int) -> None:
        for job in self._jobs[:count]:
            self.outcomes.append(MessageResult(delivery=job.delivery, table=job.message.table, rejection=job.set_aside))
        del self._jobs[:count]
