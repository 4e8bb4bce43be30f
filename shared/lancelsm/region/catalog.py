"""The context of a table, its regions, and the catalog that lists them."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, TypeVar

from lancelsm.common.clock import Budget, Clock, Ids
from lancelsm.common.json_text import parse_json
from lancelsm.common.layout import (
    Generation,
    RegionId,
    RegionValues,
    TableId,
    head_key,
    is_id,
    is_staged_manifest,
    region_id,
    region_key,
    spec_number,
    table_key,
)
from lancelsm.common.task_pool import in_threads
from lancelsm.errors import Corrupt, Fenced, Invalid, error_context
from lancelsm.objects import ObjectStore
from lancelsm.region import config as configs
from lancelsm.region import head as heads
from lancelsm.region.head import Head, RegionState, Swap
from lancelsm.registry import ReadsMany, Record, Registry, SwapApplied, SwapLost, SwapUnknown, Value, number

A = TypeVar("A")
B = TypeVar("B")


class OnlyEvents(Invalid):
    """The table takes only change events, since a sequence orders them."""


class SealedRegion(Invalid):
    """The region accepts no more rows. After a reshard, its keys are in other regions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableContext:
    """The object store and registry of one table, and the clock and ids to work with. Passed to every protocol."""

    uri: str
    table: TableId
    objects: ObjectStore
    registry: Registry
    clock: Clock
    ids: Ids
    budget_seconds: float = 30.0
    ordered: bool = False  # the configuration names columns that order change events
    parallel: int = 16  # maximum number of threads; 1: run in the caller's thread, in order

    @property
    def rebuild_remedy(self) -> str:
        """What to do if the registry does not fit the objects of the table."""
        return f"Stop all writers, then: lancelsm registry rebuild {self.uri}"

    def budget(self) -> Budget:
        """Return the retry budget of an operation that starts now."""
        return Budget(clock=self.clock, ids=self.ids, seconds=self.budget_seconds)

    def each(self, read: Callable[[A], B], items: Collection[A]) -> list[B]:
        """Call `read` for every item, several at a time; return the results in the order of the items."""
        return in_threads(read, items, most=self.parallel)


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """One region of a table.

    Args:
        retired: the newest generation of a sealed region whose rows are all in the base; None if rows may be missing
            there.
    """

    context: TableContext
    id: RegionId
    spec_id: int
    values: RegionValues
    retired: Generation | None = field(default=None, compare=False)

    @property
    def number(self) -> int:
        """The number of the region spec that it belongs to: 1, and one more after each reshard."""
        return spec_number(self.spec_id, self.values)

    @property
    def where(self) -> dict[str, Any]:
        """The fields that errors about this region carry."""
        return {"table": self.context.uri, "region": self.id}

    def find_head(self) -> Head | None:
        """Read the head; None for a region that is in the catalog but whose creation is not finished."""
        with error_context(**self.where):
            record = self.context.registry.read(head_key(self.context.table, self.id))
            return None if record is None else self._decoded(record)

    def decoded_head(self, record: Record | None) -> Head | None:
        """Decode the record of the head; None if there is none."""
        with error_context(**self.where):
            return None if record is None else self._decoded(record)

    def head(self) -> Head:
        """Read the head.

        Raises:
            Corrupt: the region has no head.
            Invalid: the table was dropped.
        """
        head = self.find_head()
        if head is None:
            check_not_dropped(self.context)
            raise self._missing_head()
        return head

    def swap(self, swap: Swap) -> Head | SwapLost | SwapUnknown:
        """Try one swap of the head. Return the new head if it was applied."""
        key = head_key(self.context.table, self.id)
        with error_context(**self.where):
            outcome = self.context.registry.swap(key, expect=swap.expect, change=swap.change)
            return self._decoded(outcome.record) if isinstance(outcome, SwapApplied) else outcome

    def head_after(self, outcome: SwapLost | SwapUnknown) -> Head:
        """Return the head to which a swap lost; after a swap without an answer, read the head.

        Raises:
            Corrupt: the region has no head, or the table was dropped. A drop is not `Invalid` here, because callers
                take `Invalid` as an unknown outcome of the swap.
        """
        if isinstance(outcome, SwapLost) and outcome.record is not None:
            with error_context(**self.where):
                return self._decoded(outcome.record)
        head = self.find_head()
        if head is None:
            try:
                check_not_dropped(self.context)
            except Invalid as gone:
                raise Corrupt(gone.message, remedy=gone.remedy, **self.where) from gone
            raise self._missing_head()
        return head

    def _decoded(self, record: Record) -> Head:
        head = heads.from_record(record)
        if not is_staged_manifest(head.manifest_key, self.id):
            raise Corrupt(
                f"the head names an object that is no staged manifest of this region: {head.manifest_key}",
                remedy=self.context.rebuild_remedy,
                object=head.manifest_key,
                field="manifest_key",
            )
        return head

    def _missing_head(self) -> Corrupt:
        return Corrupt("the region has no head", remedy=self.context.rebuild_remedy, **self.where)


def check_not_dropped(context: TableContext) -> None:
    """Raise `Invalid` if the table was dropped. Callers that miss a part of the table check this before they raise.

    A drop deletes the configuration before any record of the table, and the creation of a table writes its
    configuration last. So a missing or a different configuration proves the drop.
    """
    try:
        config = configs.read(context.objects, uri=context.uri)
    except Corrupt:  # unreadable, but present
        return
    if config is None or config.table != context.table:
        raise Invalid(
            "the table was dropped" if config is None else "the table was dropped and another one was created there",
            remedy="If there is a new table, open it again",
            table=context.uri,
        )


def regions(context: TableContext) -> list[Region]:
    """List every region in the catalog, strongly consistent. Read in this order: catalog, then heads, then the base.

    Raises:
        Corrupt: the registry doesn't know the table, so the registry was lost. A read would miss acknowledged rows.
        Invalid: the table was dropped.
    """
    found = context.registry.list(region_key(context.table, RegionId("")).partition)
    if not found:
        check_known(context)
    return [region_from_record(context, RegionId(key.sort), record) for key, record in found]


def check_known(context: TableContext) -> None:
    """Raise `Corrupt` if the registry does not know the table; `Invalid` if the table was dropped."""
    if context.registry.read(table_key(context.table)) is None:  # guard: lost registry is not empty
        check_not_dropped(context)
        raise Corrupt(
            "the registry does not know the table",
            remedy=context.rebuild_remedy,
            table=context.uri,
        )


def with_heads(context: TableContext, found: Sequence[Region]) -> list[tuple[Region, Head]]:
    """Read the heads of these regions; leave out regions without a head. The order is kept."""
    read = find_heads(context, found)
    return [(region, head) for region, head in zip(found, read, strict=True) if head is not None]


def find_heads(context: TableContext, found: Sequence[Region]) -> list[Head | None]:
    """Read the heads of these regions, in this order; None for a region without a head."""
    return [*chain.from_iterable(context.each(lambda read: read(), head_reads(context, found)))]


def head_reads(context: TableContext, found: Sequence[Region]) -> list[Callable[[], list[Head | None]]]:
    """Return calls that together read the heads of these regions, in this order. They may run at once."""
    registry = context.registry
    if not isinstance(registry, ReadsMany):
        return [lambda region=region: [region.find_head()] for region in found]  # type: ignore[misc]

    def read_all() -> list[Head | None]:
        records = registry.read_all([head_key(context.table, region.id) for region in found])
        return [region.decoded_head(record) for region, record in zip(found, records, strict=True)]

    return [read_all] if found else []


def select_regions(context: TableContext, wanted: str | None) -> list[Region]:
    """Return all regions that have a head, or the one region whose id starts with `wanted`.

    Raises:
        Invalid: no region id starts with `wanted`, or several do.
    """
    found = regions(context)
    if wanted is None:
        return [region for region, _ in with_heads(context, found)]
    return [resolve_region(found, wanted, table=context.uri)]


def resolve_region(found: Iterable[Region], wanted: str, *, table: str) -> Region:
    """Return the region whose id starts with `wanted`; raise `Invalid` if there is no such region, or several."""
    matching = [region for region in found if region.id.startswith(wanted.lower())]
    if len(matching) != 1:
        raise Invalid(
            f"{len(matching)} region ids start with this text" if matching else "region not found",
            remedy=f"See lancelsm region list {table}",
            table=table,
            region=wanted,
        )
    return matching[0]


class Directory:
    """Find regions by their values. Thread-safe.

    The catalog is listed again, once a call, for values that were not seen before.
    """

    def __init__(self, context: TableContext, *, spec_id: int) -> None:
        self._context = context
        self._spec_id = spec_id
        self._regions: dict[RegionValues, Region] = {}

    def within(self, context: TableContext) -> Directory:
        """Return a directory that shares the regions that either one finds, and reads with another context."""
        found = Directory(context, spec_id=self._spec_id)
        found._regions = self._regions
        return found

    def named(self, values: RegionValues) -> Region:
        """Return the region with these values, whether it was created or not."""
        identity = region_id(table=self._context.table, spec_id=self._spec_id, values=values)
        return Region(context=self._context, id=identity, spec_id=self._spec_id, values=values)

    def find(self, values: RegionValues) -> Region | None:
        """Return the region with these values, or None if it was not created yet."""
        return next(iter(self.find_all([values])), None)

    def find_all(self, wanted: Sequence[RegionValues]) -> list[Region]:
        """Return the regions with these values, in this order, without those that were not created yet."""
        if any(values not in self._regions for values in wanted):
            self._regions.update(
                (region.values, region) for region in regions(self._context) if region.spec_id == self._spec_id
            )
        found = (self._regions.get(values) for values in wanted)
        return [replace(region, context=self._context) for region in found if region is not None]


def region_from_record(context: TableContext, region: RegionId, record: Record) -> Region:
    """Decode a catalog record of a region; raise `Corrupt` if it is unreadable."""
    if not is_id(region):
        raise Corrupt(
            f"the catalog has a region whose id is not a UUID: {region!r}",
            remedy="lancelsm writes no such record: remove it from the registry",
            table=context.uri,
            field="region",
        )
    try:
        fields = parse_json(str(record["values"]))
        values = tuple((str(name), None if value is None else bytes.fromhex(value)) for name, value in fields)
        retired = Generation(number(record, "retired")) if "retired" in record else None
        return Region(context=context, id=region, spec_id=int(record["spec_id"]), values=values, retired=retired)
    except (KeyError, ValueError, TypeError) as error:
        raise Corrupt(
            f"the catalog record of the region is unreadable: {error!r}",
            remedy=context.rebuild_remedy,
            table=context.uri,
            region=region,
        ) from error


def catalog_record(region: Region) -> dict[str, Value]:
    """Encode the catalog record of a region; the inverse of `region_from_record`."""
    values = [[name, None if value is None else value.hex()] for name, value in region.values]
    retired: dict[str, Value] = {} if region.retired is None else {"retired": region.retired}
    return {"spec_id": region.spec_id, "values": json.dumps(values, separators=(",", ":")), **retired}


def check_not_stopped(region: Region, head: Head) -> None:
    """Raise `Invalid` if the region takes no rows for now, because another tool changed the base (`region.drift`).

    Args:
        head: a head from an earlier append; if it has the mark, the head is read again.
    """
    if head.stopped and (head := region.head()).stopped:  # guard: stopped region takes no rows
        raise Invalid(
            f"the table takes no rows for now: {head.stopped}",
            remedy=f"See lancelsm doctor {region.context.uri}",
            **region.where,
        )


def check_takes_plain_writes(where: Mapping[str, Any], *, ordered: object) -> None:
    """Raise `OnlyEvents` if a sequence orders the change events of the table or the region.

    A plain write is not compared with the sequences of the rows that it replaces, so it could move a key back.

    Args:
        where: the fields of the error.
        ordered: what says so: columns, a mark of the head, or the configuration; false if it takes plain writes.
    """
    if ordered:  # guard: region with ordered events takes no plain writes
        raise OnlyEvents(
            "the table has sequence_by, which orders its change events, so it takes no plain writes",
            remedy="Use table.apply_changes, lancelsm apply, or the function apply with op changes. It writes rows, "
            "each with its sequence, and with apply_as_deletes='true' it deletes them",
            **where,
        )


def check_writable(region: Region, head: Head, *, owner: str) -> None:
    """Check that this owner may append under this head.

    Raises:
        SealedRegion: the region is sealed.
        Fenced: another owner holds the region.
    """
    if head.status is RegionState.SEALED:  # guard: sealed region takes no rows
        raise SealedRegion(
            "the region is sealed: it accepts no more rows",
            remedy="It stays sealed. To give its keys other regions: "
            f'lancelsm reshard {region.context.uri} "bucket(column, 4)"',
            **region.where,
        )
    if head.owner != owner:  # guard: only the owner appends
        raise Fenced(
            f"the region is held by {head.owner!r} in epoch {head.epoch}, not by {owner!r}",
            remedy=f"Stop this writer, or take over: lancelsm region claim {region.context.uri} --region {region.id}",
            **region.where,
        )
