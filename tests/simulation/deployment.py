"""A table that receives rows from a queue, all in memory, and reads of its log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from lancelsm.common.clock import Clock, SeededIds
from lancelsm.common.layout import Position, RegionValues, TableId, head_key, region_id, wal_entry
from lancelsm.objects import ObjectStore
from lancelsm.record.normalize import deletes, upserts
from lancelsm.record.schema import TOMBSTONE, TableSchema, declare_primary_key, numbered
from lancelsm.region import config as configs
from lancelsm.region.catalog import Region, SealedRegion, regions
from lancelsm.region.config import Config
from lancelsm.region.handle import Ports, TableHandle, add_table_to_catalog
from lancelsm.region.resharding import begin_resharding, finish_resharding, read_resharding
from lancelsm.registry import Registry
from lancelsm.routing.route import route
from lancelsm.routing.spec import RegionSpec, parse_regions
from lancelsm.stack.delivery.apply import BatchPorts, BatchResult, MessageResult, apply
from lancelsm.stack.delivery.message import Message, dedup_id, encode, group_id, packed
from lancelsm.stack.delivery.queue import Delivery, Outgoing
from lancelsm.stack.delivery.send import SentPart, send
from lancelsm.stack.delivery.table_cache import Inbox, Tables
from lancelsm.wal.claim import create_region, seal
from lancelsm.wal.entry import decode
from tests.simulation.faults import FakeClock, FaultPlan, FaultyRegistry, FaultyStore, MemoryRegistry, MemoryStore
from tests.simulation.fifo import FifoQueue
from tests.simulation.schedule import Schedule, ScheduledRegistry, ScheduledStore

ROOT = "memory://lake/tables"
URI = f"{ROOT}/orders"
TABLE = TableId("22222222-2222-4222-8222-222222222222")
COLUMNS = pa.schema([pa.field("id", pa.int64()), pa.field("v", pa.int64(), nullable=False)])


@dataclass(kw_only=True)
class Deployment:
    """One table, its queue, its dead-letter queue, and any number of containers."""

    schedule: Schedule | None = None
    plan: FaultPlan = field(default_factory=FaultPlan)
    buckets: int = 2
    settings: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.clock: Clock = self.schedule.clock if self.schedule else FakeClock()
        self.store, self.records, self.beside = MemoryStore(), MemoryRegistry(), MemoryStore()
        self.queue = FifoQueue(self.clock)
        self.dead_letters = FifoQueue(self.clock, name="d")
        self.inbox = Inbox(uri="memory://lake/work/inbox", store=self.beside)
        schema = TableSchema(columns=numbered(declare_primary_key(COLUMNS, ["id"])), primary_key=("id",))
        self.config = Config(
            table=TABLE,
            registry="memory",
            owner="stack",
            schema=schema,
            regions=self.spec(schema),
            settings=self.settings,
        )
        configs.create(self.store, self.config, uri=URI)
        self.tables = self.container("test", faulty=False)
        self.handle = self.tables.open(URI)
        add_table_to_catalog(self.handle)

    def spec(self, schema: TableSchema) -> RegionSpec:
        return parse_regions(f"bucket(id, {self.buckets})", schema=schema)

    def container(self, process: str, *, faulty: bool = True) -> Tables:
        """Return the tables of a new container. A crash ends this container only."""
        plan = self.plan if faulty else FaultPlan()

        def store(uri: str, options: object) -> ObjectStore:
            inner: ObjectStore = self.store if uri == URI else MemoryStore()
            return FaultyStore(ScheduledStore(inner, self.schedule) if self.schedule else inner, plan, process=process)

        def registry(kind: str, **_: Any) -> Registry:
            inner = ScheduledRegistry(self.records, self.schedule) if self.schedule else self.records
            return FaultyRegistry(inner, plan, process=process)

        ports = Ports(store=store, registry=registry, clock=self.clock, ids=SeededIds(process), threads=1)
        return Tables(ROOT, ports=ports)

    def begin_reshard(self, buckets: int) -> RegionSpec:
        """Reshard the table up to the seal of its regions, as `admin.reshard` does; it has no base to merge into."""
        context = self.container("reshard", faulty=False).open(URI).context
        number = self.handle.target().regions.number + 1
        spec = parse_regions(f"bucket(id, {buckets})", schema=self.config.schema, number=number)
        begin_resharding(context, spec)
        for region in regions(context):
            with suppress(SealedRegion):
                create_region(
                    context, spec_id=region.spec_id, values=region.values, owner=self.config.owner, resharding=True
                )
            seal(region)
        return spec

    def reshard(self, buckets: int) -> None:
        """Reshard the table. Containers that read its configuration from now on see other regions."""
        spec = self.begin_reshard(buckets)
        context = self.container("reshard", faulty=False).open(URI).context
        configs.change_regions(context.objects, spec, uri=URI, budget=context.budget())
        found = read_resharding(context)
        assert found is not None
        finish_resharding(context, found)

    def resharded(self) -> None:
        """Let the methods of this object use the newest region spec."""
        self.handle = self.container("test again", faulty=False).open(URI)

    # Producers

    def send(self, rows: Sequence[tuple[int, int]], *, sequence: int, **how: Any) -> list[SentPart]:
        """Upsert keys with values through the sender."""
        table = upserts([{"id": key, "v": value} for key, value in rows], schema=self.config.schema)
        return self.send_rows(table, sequence=sequence, **how)

    def send_rows(
        self, rows: pa.Table, *, sequence: int = 0, producer: str = "p", handle: TableHandle | None = None, **how: Any
    ) -> list[SentPart]:
        return send(
            rows,
            handle=handle or self.handle,
            queue=self.queue,
            inbox=self.inbox,
            producer=producer,
            sequence=sequence,
            **{"seconds": 30.0, **how},
        )

    def tombstones(self, *keys: int) -> pa.Table:
        return deletes(list(keys), schema=self.config.schema)

    def stored(self, *rows: tuple[int | None, int | None]) -> pa.Table:
        """Return rows in stored form, without any check."""
        schema = self.config.schema.stored
        columns = [[key for key, _ in rows], [value for _, value in rows], [False] * len(rows)]
        arrays = [pa.array(values, one.type) for values, one in zip(columns, schema, strict=True)]
        return pa.Table.from_arrays(arrays, schema=schema)

    def put(self, *rows: tuple[int | None, int | None], like: int, sequence: int = 0, **message: Any) -> None:
        """Put a message that our sender would never send, to the region of the key `like`."""
        values = self.values(like)
        region = region_id(table=TABLE, spec_id=self.spec_id, values=values)
        template = Message(
            table=URI,
            region=region,
            values=values,
            producer="forger",
            sequence=sequence,
            rows=packed(self.stored(*rows)),
        )
        self.put_text(encode(replace(template, **message)), like=like, dedup=f"{rows} {sequence} {message}")

    def put_text(self, body: str, *, like: int, dedup: str = "text") -> None:
        group = group_id(TABLE, region_id(table=TABLE, spec_id=self.spec_id, values=self.values(like)))
        dedup = dedup_id(producer=dedup, sequence=0, region=region_id(table=TABLE, spec_id=0, values=()), rows=range(0))
        self.queue.send([Outgoing(body=body, group=group, dedup=dedup)])

    @property
    def spec_id(self) -> int:
        return self.handle.target().regions.spec_id

    def values(self, key: int) -> RegionValues:
        (routed,) = route(self.stored((key, 0)), self.handle.target().regions)
        return routed.values

    # Containers

    def ports(self, tables: Tables) -> BatchPorts:
        return BatchPorts(tables=tables, inbox=self.inbox, dead_letters=self.dead_letters, source=self.queue.identity())

    def apply(self, batch: Sequence[Delivery], *, tables: Tables | None = None, seconds: float = 30.0) -> BatchResult:
        return apply(batch, ports=self.ports(tables or self.tables), seconds=seconds)

    def finish(self, batch: Sequence[Delivery], applied: BatchResult) -> None:
        """Handle the answer as Lambda does: delete all messages that did not fail."""
        failed = {outcome.delivery.id for outcome in applied.outcomes if outcome.retry is not None}
        for one in batch:
            if one.id in failed:
                self.queue.postpone([one.receipt], seconds=0)
            else:
                self.queue.delete(one.receipt)

    def deliver(self, most: int = 10, **how: Any) -> list[MessageResult]:
        """Deliver one batch and finish it. Return its outcomes in the order of the queue."""
        batch = self.queue.receive(most)
        applied = self.apply(batch, **how)
        self.finish(batch, applied)
        return sorted(applied.outcomes, key=lambda outcome: outcome.delivery.sequence)

    # Contents

    def list_regions(self) -> list[Region]:
        return regions(self.handle.context)

    def region(self, key: int) -> Region:
        spec_id, values = self.spec_id, self.values(key)
        (found,) = [one for one in self.list_regions() if (one.spec_id, one.values) == (spec_id, values)]
        return found

    def entries(self, region: Region) -> list[list[tuple[int, int | None]]]:
        """Return keys and values of each log entry of a region, without fences. The value of a tombstone is None."""
        record = self.records.read(head_key(TABLE, region.id))
        assert record is not None
        found = []
        for number in range(1, int(record["next_position"])):
            key = wal_entry(region.id, Position(number))
            entry_object = self.store.get(key)
            assert entry_object is not None
            entry = decode(entry_object.body, position=Position(number), key=key)
            if not entry.fence:
                rows = entry.table().to_pylist()
                found.append([(row["id"], None if row[TOMBSTONE] else row["v"]) for row in rows])
        return found

    def log(self) -> dict[int, list[int | None]]:
        """Return all values of each key in the log, in order."""
        values: dict[int, list[int | None]] = {}
        for region in self.list_regions():
            for entry in self.entries(region):
                for key, value in entry:
                    values.setdefault(key, []).append(value)
        return values
