"""Apply a batch of the queue: one entry per region, which records how far the queue is applied.

Messages may be delivered again, in other batches: after a crash, a timeout or a lost reply, and while another container
still works on them. The swap that commits an entry also raises `applied_sequences` of the head to the highest sequence
in the entry. So a later attempt drops what is applied already, at every head that it tries. Model:
tests/model/redelivery.py.

A message that can never be applied is quarantined, and the messages after it are applied. A message that can't be
applied now is delivered again, with all later messages of its region: a blocked region waits and skips nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

import pyarrow as pa

from lancelsm.common.layout import region_id
from lancelsm.common.write_result import CommittedEntry
from lancelsm.errors import Invalid, LsmError, Unavailable
from lancelsm.record.schema import NewerSchema, conform
from lancelsm.region.catalog import OnlyEvents, Region, SealedRegion
from lancelsm.region.handle import TableHandle
from lancelsm.region.head import Head
from lancelsm.region.resharding import newer_target
from lancelsm.stack.delivery.message import Message, decode, group_id, unpacked
from lancelsm.stack.delivery.moved import EMPTY, append_moved, old_region
from lancelsm.stack.delivery.quarantine import quarantine, quarantine_rows
from lancelsm.stack.delivery.queue import Delivery, Queue, pause
from lancelsm.stack.delivery.stopped import record_recovered, record_stopped
from lancelsm.stack.delivery.table_cache import Inbox, Tables
from lancelsm.stack.delivery.validation import RejectedRows, partition_valid
from lancelsm.wal.entry import Draft, draft
from lancelsm.wal.region_writer import RegionWriter, find_or_create_region
from lancelsm.wal.replay import LogEnd


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageResult:
    """The result of one message.

    The message is applied; or quarantined, in part or whole, because of `rejection`; or must be delivered again because
    of `retry`. `bug` is an unexpected exception, set for only one message of a region. `repeated`: an earlier delivery
    has applied it already. `request` is the id of the call of `ingest` that sent it; empty if it is not known.
    """

    delivery: Delivery
    table: str = ""
    rejection: LsmError | None = None
    retry: LsmError | None = None
    bug: Exception | None = None
    repeated: bool = False
    request: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPorts:
    """What a batch needs from outside. `source` is the identity of the queue that the batch came from."""

    tables: Tables
    inbox: Inbox
    dead_letters: Queue
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedEntry:
    """An entry with rows of a batch.

    Args:
        table: its URI.
        requests: the ids of the calls of `ingest` that sent its rows, each once.
    """

    table: str
    entry: CommittedEntry
    requests: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchResult:
    """The results of a batch: one per message, in no order, and the entries with its rows."""

    outcomes: tuple[MessageResult, ...]
    entries: tuple[AppliedEntry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """A checked message: rows to append and rows to quarantine."""

    delivery: Delivery
    message: Message
    handle: TableHandle
    rows: pa.Table
    rejected: RejectedRows | None
    old: Region | None = None  # the message's region, if it belongs to an earlier region spec of the table
    quarantined: LsmError | None = None  # why some of its rows are already on the dead-letter queue


def apply(deliveries: Iterable[Delivery], *, ports: BatchPorts, seconds: float) -> BatchResult:
    """Apply a batch: regions in parallel, each in the order of its messages.

    Args:
        deliveries: messages of several regions and tables, in any order.
        seconds: the time for the whole batch. Messages that are not applied by then are delivered again.

    After a crash at any line nothing is lost or applied twice: unreported messages are delivered again, and those that
    were applied are dropped then. Quarantined rows may be on the dead-letter queue twice.
    """
    clock = ports.tables.ports.clock
    deadline = clock.monotonic() + seconds
    outcomes: list[MessageResult] = []
    jobs: list[list[_Job]] = []
    for group in _groups(deliveries):
        if clock.monotonic() >= deadline:  # a store was slow; the results must still be reported in time
            outcomes += _retry_results(group, _out_of_time())
            continue
        wanted, failed = _check_group(group, ports)
        outcomes += failed
        if wanted:
            jobs.append(wanted)
    entries: list[AppliedEntry] = []
    if jobs:
        each = jobs[0][0].handle.context.each
        for done in each(lambda wanted: _RegionBatch(wanted, ports, deadline).run(), jobs):
            outcomes += done.outcomes
            entries += done.entries
    return BatchResult(outcomes=tuple(outcomes), entries=tuple(entries))


def _out_of_time(table: str | None = None) -> Unavailable:
    return Unavailable("the call ran out of time before these messages", table=table)


def _retry_results(deliveries: Sequence[Delivery], error: Exception, *, table: str = "") -> list[MessageResult]:
    """Return results that deliver messages of one region again. A bug in one region does not stop other regions."""
    if isinstance(error, LsmError):
        return [MessageResult(delivery=one, table=table, retry=error) for one in deliveries]
    unknown_error = Unavailable(f"a bug: {type(error).__name__}", remedy="Report it with the trace in the log")
    first, *rest = _retry_results(deliveries, unknown_error, table=table)
    return [replace(first, bug=error), *rest]


def _groups(deliveries: Iterable[Delivery]) -> list[list[Delivery]]:
    groups: dict[str, dict[int, Delivery]] = {}
    for delivery in deliveries:
        groups.setdefault(delivery.group, {})[delivery.sequence] = delivery
    return [[group[sequence] for sequence in sorted(group)] for group in groups.values()]


def _check_group(group: Sequence[Delivery], ports: BatchPorts) -> tuple[list[_Job], list[MessageResult]]:
    """Check the messages of one group. Return those that can be applied now, and results of the others."""
    jobs: list[_Job] = []
    outcomes: list[MessageResult] = []
    for index, delivery in enumerate(group):
        try:
            try:
                jobs.append(_decode_job(delivery, ports))
            except _Rejected as found:
                quarantine(
                    delivery,
                    found.error,
                    nonce=ports.tables.ports.ids.nonce(),
                    source=ports.source,
                    inbox=ports.inbox,
                    dead_letters=ports.dead_letters,
                )
                outcomes.append(MessageResult(delivery=delivery, rejection=found.error))
        except Exception as error:  # noqa: BLE001 - any error: the other regions continue
            outcomes += _retry_results(group[index:], error)
            break
    return jobs, outcomes


class _Rejected(Exception):
    """A message that can never be applied by any release, with the reason."""

    def __init__(self, error: LsmError) -> None:
        super().__init__(str(error))
        self.error = error


def _decode_job(delivery: Delivery, ports: BatchPorts) -> _Job:
    """Decode a message and check it against its table.

    Raises:
        _Rejected: no row of it can ever be applied.
        LsmError: this can't be decided now.
    """
    try:
        message = decode(delivery.body)
    except Invalid as error:
        raise _Rejected(error) from error
    handle = ports.tables.find(message.table)
    if handle is None:
        raise _Rejected(Invalid("the table is not in this deployment", table=message.table))
    stream = message.rows if message.object is None else ports.inbox.get(message.object)
    if stream is None:
        raise _Rejected(Invalid("the message's object is not in the inbox", table=message.table, object=message.object))
    try:
        rows = unpacked(stream)
    except Invalid as error:
        raise _Rejected(error) from error
    try:
        valid, rejected = _partition_valid(rows, message, handle)
    except NewerSchema as error:
        valid, rejected = rows, RejectedRows(rows=rows, error=Invalid(error.message))
    if rejected is not None or not _is_current(message, handle):  # the cached configuration may be old
        handle = ports.tables.find(message.table, fresh=True) or handle
        valid, rejected = _partition_valid(rows, message, handle)
    old = None
    if not _is_current(message, handle) and (old := old_region(message, handle)) is not None:
        valid, rejected = _partition_valid(rows, message, handle, number=old.number)
    # Sequences order messages only within one group, so a message must be in the group of its region.
    in_its_group = group_id(handle.config.table, message.region) == delivery.group
    if not in_its_group or (old is None and not _is_current(message, handle)):
        raise _Rejected(Invalid("the message's region does not match its values and group", table=message.table))
    return _Job(delivery=delivery, message=message, handle=handle, rows=valid, rejected=rejected, old=old)


def _is_current(message: Message, handle: TableHandle) -> bool:
    """Return whether the region of a message is one of the region spec of the table."""
    spec_id = handle.target().regions.spec_id
    return region_id(table=handle.config.table, spec_id=spec_id, values=message.values) == message.region


def _judged_by(handle: TableHandle, job: _Job) -> _Job:
    """Return the job for a table that may have got another region spec since the message was checked.

    Raises:
        Unavailable: this can't be decided now.
    """
    if job.old is not None or _is_current(job.message, handle):
        return job
    old = old_region(job.message, handle)
    if old is None:
        raise Unavailable("the configuration changed while the messages were read", table=job.message.table)
    return replace(job, handle=handle, old=old)


def _partition_valid(
    rows: pa.Table, message: Message, handle: TableHandle, *, number: int | None = None
) -> tuple[pa.Table, RejectedRows | None]:
    """Split the rows of a message into those that fit and the others.

    Args:
        number: of the region spec of the message's region; that of the table by default.
    """
    target = handle.target()
    spec = target.regions if number is None else handle.config.regions_of(number)
    return partition_valid(rows, target=replace(target, regions=spec or target.regions), values=message.values)


class _RegionBatch:
    """The messages of one region, in order."""

    def __init__(self, jobs: list[_Job], ports: BatchPorts, deadline: float) -> None:
        newest = jobs[-1].handle  # the last job has the newest configuration that was read
        self._jobs = [_judged_by(newest, job) for job in jobs]
        self._last = jobs[-1]
        self._ports = ports
        self._deadline = deadline
        self._target = newest.target()
        self.outcomes: list[MessageResult] = []
        self.entries: list[AppliedEntry] = []

    def run(self) -> _RegionBatch:
        try:
            while self._jobs:
                self._step()
        except Exception as error:  # noqa: BLE001 - any error: the other regions continue
            remaining = [job.delivery for job in self._jobs]
            self.outcomes += _retry_results(remaining, error, table=self._target.context.uri)
            first, context = self._jobs[0], self._target.context
            record_stopped(context, first.message.region, error, pause=pause(first.delivery.receives))
        else:
            if self._last.delivery.receives > 1:
                record_recovered(self._target.context, self._last.message.region)
        return self

    def _step(self) -> None:
        """Settle the first message, or at least quarantine its rejected rows; perhaps settle more messages."""
        context = self._target.context
        seconds_left = self._deadline - context.clock.monotonic()
        if seconds_left <= 0:
            raise _out_of_time(context.uri)
        job = self._jobs[0]
        context = replace(context, budget_seconds=min(seconds_left, context.budget_seconds))
        held: Head | None = None
        try:
            if (region := job.old) is None:
                region, held = find_or_create_region(self._target, job.message.values)
        except SealedRegion as sealed:
            self._route_again(sealed)
            return
        region = replace(region, context=context)
        if job.rejected is not None:
            self._quarantine_rejected(region, job.rejected)
        elif job.old is not None:
            self._move(region)
        else:
            self._append(region, held)

    def _route_again(self, sealed: SealedRegion) -> None:
        """Let the messages of a sealed region go to the new regions of their keys.

        Raises:
            Contended: the table is being resharded: the messages wait.
            SealedRegion: the table was not resharded: `sealed`.
        """
        job = self._jobs[0]
        context = replace(self._target.context, budget_seconds=0.0)
        newer_target(replace(self._target, context=context), sealed)
        handle = self._ports.tables.find(job.message.table, fresh=True)
        old = None if handle is None else old_region(job.message, handle)
        if handle is None or old is None:
            raise sealed
        self._target = handle.target()
        self._jobs = [replace(one, handle=handle, old=old) for one in self._jobs]

    def _move(self, old: Region) -> None:
        """Append the rows of one message to the new regions of their keys, unless its old region has applied it."""
        job, head = self._jobs[0], old.find_head()
        if head is not None and self._is_applied(job, head):  # guard: moved message is judged by its old region
            self._settle(1, repeated=1)
            return
        sequence, target = job.delivery.sequence, replace(self._target, context=old.context)
        rows = self._conformed(job.rows)
        for done in append_moved(rows, old=old, target=target, source=self._ports.source, sequence=sequence):
            if isinstance(done, CommittedEntry):
                requests = (job.message.request,) if job.message.request else ()
                self.entries.append(AppliedEntry(table=target.context.uri, entry=done, requests=requests))
            else:
                self._quarantine(job, done.rows, done.error, head or EMPTY, whole=False)
                self._jobs[0] = replace(self._jobs[0], quarantined=done.error)
        self._settle(1)

    def _quarantine_rejected(self, region: Region, rejected: RejectedRows) -> None:
        """Quarantine rejected rows before the other rows of the message are appended.

        After the entry is committed, a repeated delivery of the message is dropped as a whole.
        """
        job = self._jobs[0]
        head = region.find_head() or EMPTY  # a region of an earlier spec may have none
        if isinstance(head, Head) and self._is_applied(job, head):  # another container quarantined its rejected rows
            self._settle(1, repeated=1)
            return
        self._quarantine(job, rejected.rows, rejected.error, head, whole=not job.rows.num_rows)
        self._jobs[0] = replace(job, rejected=None, quarantined=rejected.error)
        if not job.rows.num_rows:
            self._settle(1)

    def _append(self, region: Region, held: Head | None) -> None:
        """Append one entry with as many messages as fit.

        Args:
            held: a head that was just read.
        """
        batch = self._next_entry()
        drafts: dict[int, Draft] = {}  # by the number of messages that are not in the log yet
        new: list[_Job] = []

        def next_draft(head: Head) -> Draft | None:
            nonlocal new
            new = [job for job in batch if not self._is_applied(job, head)]
            if new and len(new) not in drafts:
                rows = pa.concat_tables([self._conformed(job.rows) for job in new])
                applied = {self._ports.source: str(new[-1].delivery.sequence)}
                drafts[len(new)] = draft(rows, applied_sequences=applied, at=region.context.clock.now())
            return drafts[len(new)] if new else None

        writer = RegionWriter(region, self._target, owner=self._target.owner, previous_owners=(), depth=1, held=held)
        try:
            entry = writer.append_after(next_draft)
        except SealedRegion as sealed:
            try:
                self._route_again(sealed)
            except SealedRegion as error:
                self._quarantine_whole(region, error)
            return
        except OnlyEvents as error:
            self._quarantine_whole(region, error)
            return
        if entry is not None:
            requests = tuple(dict.fromkeys(job.message.request for job in new if job.message.request))
            self.entries.append(AppliedEntry(table=self._target.context.uri, entry=entry, requests=requests))
        self._settle(len(batch), repeated=len(batch) - len(new))

    def _quarantine_whole(self, region: Region, error: Invalid) -> None:
        """Settle the first message of a region that takes no such rows, or was sealed by hand."""
        job, head = self._jobs[0], region.head()
        if not self._is_applied(job, head):
            self._quarantine(job, job.rows, error, head, whole=True)
            self._jobs[0] = replace(job, quarantined=error)
        self._settle(1)

    def _conformed(self, rows: pa.Table) -> pa.Table:
        """Return rows in the newest stored form. They have the form that was current when they were checked."""
        schema = self._target.schema
        return rows if rows.schema.equals(schema.stored, check_metadata=True) else conform(rows, schema)

    def _next_entry(self) -> list[_Job]:
        """Return the next messages, up to the size of an entry or the first message with rejected rows."""
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

    def _quarantine(self, job: _Job, rows: pa.Table, error: LsmError, head: LogEnd, *, whole: bool) -> None:
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

    def _settle(self, count: int, *, repeated: int = 0) -> None:
        """Settle the first messages. The first `repeated` of them were applied by an earlier delivery."""
        for number, job in enumerate(self._jobs[:count]):
            self.outcomes.append(
                MessageResult(
                    delivery=job.delivery,
                    table=job.message.table,
                    rejection=job.quarantined,
                    repeated=number < repeated,
                    request=job.message.request,
                )
            )
        del self._jobs[:count]
