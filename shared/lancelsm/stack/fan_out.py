"""Divide the dirty tables of a deployment into chunks. A queue passes them to more invocations of `dispatch`.

So one invocation need not have time for all tables. The queue is not FIFO: a chunk may come twice or late, when its
work was started already.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from lancelsm.common import aws
from lancelsm.common.layout import Key, RegionId, TableId, is_id
from lancelsm.compaction.pace import Pace
from lancelsm.errors import Invalid, LsmError, Unavailable
from lancelsm.registry import Registry

CHUNK_TABLES = 50
_CHUNK_REGIONS = 2000  # of a table; such a list has 80 KB
_BATCH = 10  # messages in one call
_BATCH_BYTES = 200_000
_POSITION = Key(partition="dispatch", sort="position")

DirtyRegions = dict[TableId, tuple[RegionId, ...] | None]
"""Regions whose base may lag behind, by table. None: there are many; look at all regions of the table."""


class DirtyIndex(Protocol):
    """The index of a registry that lists dirty regions."""

    def dirty(self) -> list[tuple[TableId, RegionId, str]]:
        """List regions whose base may lag behind. The list may be late; use it only for schedules."""
        ...


class RunRegistry(Registry, DirtyIndex, Protocol):
    """The registry of a deployment."""


class ChunkQueue(Protocol):
    """Passes chunks of tables to invocations of `dispatch`."""

    def send(self, chunks: Sequence[DirtyRegions]) -> None:
        """Send chunks, at most `_BATCH` in one call. Raises `Unavailable` if some may not have been sent."""
        ...


def read_dirty(index: DirtyIndex) -> DirtyRegions:
    """Read which regions are dirty, in the order of tables."""
    found: dict[TableId, set[RegionId]] = {}
    for table, region, _ in index.dirty():
        found.setdefault(table, set()).add(region)
    return {
        table: tuple(sorted(regions)) if len(regions) <= _CHUNK_REGIONS else None
        for table, regions in sorted(found.items())
    }


def begin_after(dirty: DirtyRegions, last: str) -> DirtyRegions:
    """Return the same tables, those after `last` first."""
    later = {table: regions for table, regions in dirty.items() if table > last}
    return {**later, **dirty}


def chunked(dirty: Mapping[TableId, tuple[RegionId, ...] | None]) -> Iterator[DirtyRegions]:
    """Divide tables into chunks with few tables and regions."""
    chunk: DirtyRegions = {}
    size = 0
    for table, regions in dirty.items():
        count = len(regions or ())
        if chunk and (len(chunk) == CHUNK_TABLES or size + count > _CHUNK_REGIONS):
            yield chunk
            chunk, size = {}, 0
        chunk[table] = regions
        size += count
    if chunk:
        yield chunk


def encode(dirty: DirtyRegions) -> str:
    return json.dumps({"tables": dirty}, separators=(",", ":"))


def decode(body: str) -> DirtyRegions:
    """Decode `encode`. Raises `Invalid` if the text is not a chunk."""
    try:
        tables = json.loads(body)["tables"]
        dirty: DirtyRegions = {
            TableId(table): None if regions is None else tuple(map(RegionId, regions))
            for table, regions in tables.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Invalid("the message is not a chunk of tables", remedy="Delete it from the queue") from error
    if not all(is_id(one) for table, regions in dirty.items() for one in (table, *(regions or ()))):
        raise Invalid("the message has an id that no table or region can have", remedy="Delete it from the queue")
    return dirty


class SqsChunks:
    """Chunks as messages of a standard queue of SQS.

    Raises:
        Invalid: at a call: the queue refuses the messages.
        Unavailable: at a call: no reply, or some messages were not stored. Sending them again does no harm.
    """

    def __init__(self, url: str, *, client: Any = None) -> None:
        self._url = url
        self._client = client

    def send(self, chunks: Sequence[DirtyRegions]) -> None:
        send_bodies(self._url, [encode(chunk) for chunk in chunks], client=self._client)


def send_bodies(url: str, bodies: Sequence[str], *, client: Any = None) -> None:
    """Send messages to a standard queue of SQS, each with one or more tables. Raises the errors of `SqsChunks`."""
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - optional dependency

    client = client or aws.client("sqs")
    for batch in _batches(bodies):
        entries = [{"Id": str(number), "MessageBody": body} for number, body in enumerate(batch)]
        try:
            answer = client.send_message_batch(QueueUrl=url, Entries=entries)
        except (BotoCoreError, ClientError) as error:
            raise aws.translated(error, doing="tables can't be queued", queue=url) from error
        if failed := answer.get("Failed"):
            raise Unavailable(f"the queue refused {len(failed)} chunks of tables: {failed[0].get('Code')}")


def _batches(bodies: Sequence[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    for body in bodies:
        if batch and (len(batch) == _BATCH or sum(map(len, batch)) + len(body) > _BATCH_BYTES):
            yield batch
            batch = []
        batch.append(body)
    if batch:
        yield batch


class LastTable:
    """The table with which the last run ended. Advisory: without it, the next run begins with the first table."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._record: dict[str, Any] | None = None

    def read(self) -> str:
        """Return the last table; empty if the last run served all tables."""
        with suppress(LsmError):
            found = self._registry.read(_POSITION)
            self._record = None if found is None else dict(found)
        return "" if self._record is None else str(self._record.get("after", ""))

    def write(self, last: str) -> None:
        """Record the last table if it has changed. A lost record only changes which tables come first."""
        known = self._record or {}
        if str(known.get("after", "")) != last:
            with suppress(LsmError):
                self._registry.swap(_POSITION, expect=None if self._record is None else {}, change={"after": last})


def start_run(
    registry: RunRegistry, queue: ChunkQueue, *, pace: Pace, at_once: bool = False
) -> tuple[DirtyRegions, int]:
    """Read which tables are dirty, and send all but a few to the queue.

    If the time ends before all are sent, the next run begins with the tables that are left.

    Args:
        at_once: send nothing; the caller serves all tables.

    Returns:
        The tables that the caller serves now, and the number of those that were sent.

    Raises:
        Unavailable: the registry or the queue did not answer.
    """
    dirty = read_dirty(registry)
    if at_once or len(dirty) <= CHUNK_TABLES:
        return dirty, 0
    last_table = LastTable(registry)
    chunks = list(chunked(begin_after(dirty, last_table.read())))
    sent = 0
    last = ""
    for start in range(0, len(chunks), _BATCH):
        if start and not pace.has_time(1, 1):
            last = next(reversed(chunks[start - 1]))
            break
        queue.send(chunks[start : start + _BATCH])
        sent += sum(map(len, chunks[start : start + _BATCH]))
    last_table.write(last)
    return {}, sent
