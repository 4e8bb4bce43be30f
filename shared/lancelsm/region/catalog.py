"""A table's storage and one region of it: the collaborators that every protocol gets, and the catalog of regions."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from lancelsm.common.clock import Budget, Clock, Ids
from lancelsm.common.layout import RegionId, RegionValues, TableId, head_key, region_key, table_key
from lancelsm.errors import Corrupt, Fenced, Invalid, error_context
from lancelsm.objects import ObjectStore
from lancelsm.region import config as configs
from lancelsm.region import head as heads
from lancelsm.region.head import Head, RegionState, Swap
from lancelsm.registry import Record, Registry, SwapApplied, SwapLost, SwapUnknown, Value

A = TypeVar("A")
B = TypeVar("B")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableContext:
    """Where one table lives, and the clock and ids of whoever works on it."""

    uri: str
    table: TableId
    objects: ObjectStore
    registry: Registry
    clock: Clock
    ids: Ids
    budget_seconds: float = 30.0
    parallel: int = 16  # threads at a time; 1: all in the caller's, in order

    def budget(self) -> Budget:
        """The retry budget of one operation that starts now."""
        return Budget(clock=self.clock, ids=self.ids, seconds=self.budget_seconds)

    def each(self, read: Callable[[A], B], items: Collection[A]) -> list[B]:
        """`read` of every item, in the order of the items, several at a time."""
        if min(self.parallel, len(items)) <= 1:
            return [read(item) for item in items]
        with ThreadPoolExecutor(min(self.parallel, len(items))) as pool:
            return list(pool.map(read, items))


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """One region of a table."""

    context: TableContext
    id: RegionId
    spec_id: int
    values: RegionValues

    @property
    def where(self) -> dict[str, Any]:
        """What errors say of it."""
        return {"table": self.context.uri, "region": self.id}

    def find_head(self) -> Head | None:
        """The head as of now; None for a region that is in the catalog but not created to the end."""
        with error_context(**self.where):
            record = self.context.registry.read(head_key(self.context.table, self.id))
            return None if record is None else heads.from_record(record)

    def head(self) -> Head:
        """The head as of now.

        Raises:
            Corrupt: there is none.
            Invalid: the table was dropped.
        """
        head = self.find_head()
        if head is None:
            check_there(self.context)
            raise self._headless()
        return head

    def swap(self, swap: Swap) -> Head | SwapLost | SwapUnknown:
        """Try one step of the head: the new head if it was applied."""
        key = head_key(self.context.table, self.id)
        with error_context(**self.where):
            outcome = self.context.registry.swap(key, expect=swap.expect, change=swap.change)
            return heads.from_record(outcome.record) if isinstance(outcome, SwapApplied) else outcome

    def head_after(self, outcome: SwapLost | SwapUnknown) -> Head:
        """The head that made a swap lose, or as read after no answer.

        Raises:
            Corrupt: there is none; or the table was dropped, which is not `Invalid` here: that says nothing of a swap.
        """
        if isinstance(outcome, SwapLost) and outcome.record is not None:
            with error_context(**self.where):
                return heads.from_record(outcome.record)
        head = self.find_head()
        if head is None:
            try:
                check_there(self.context)
            except Invalid as gone:
                raise Corrupt(gone.message, remedy=gone.remedy, **self.where) from gone
            raise self._headless()
        return head

    def _headless(self) -> Corrupt:
        remedy = "Run `lancelsm registry rebuild` with all writers stopped"
        return Corrupt("the region has no head", remedy=remedy, **self.where)


def check_there(context: TableContext) -> None:
    """Raise `Invalid` if the table is gone from its place: for whoever misses something of it, before saying so.

    A drop takes the configuration away before the first record, and a new table gets one of its own at the end.
    """
    try:
        config = configs.read(context.objects, uri=context.uri)
    except Corrupt:  # it is there
        return
    if config is None or config.table != context.table:
        raise Invalid(
            "the table was dropped" if config is None else "another table was made in its place",
            remedy="Open it again, if one was made there",
            table=context.uri,
        )


def regions(context: TableContext) -> list[Region]:
    """Every region in the catalog, by a strong read. List them before reading heads, and heads before the base.

    Raises:
        Corrupt: the registry doesn't know the table, so it was lost: a read would miss what was acknowledged.
        Invalid: the table was dropped.
    """
    found = context.registry.list(region_key(context.table, RegionId("")).partition)
    if not found and context.registry.read(table_key(context.table)) is None:
        check_there(context)
        raise Corrupt(
            "the registry does not know the table",
            remedy=f"Stop all writers, then: lancelsm registry rebuild {context.uri}",
            table=context.uri,
        )
    return [region_from_record(context, RegionId(key.sort), record) for key, record in found]


def with_heads(context: TableContext, found: Sequence[Region]) -> list[tuple[Region, Head]]:
    """Those of these regions that have a head, with their heads as of now, in the order given."""
    read = context.each(lambda region: region.find_head(), found)
    return [(region, head) for region, head in zip(found, read, strict=True) if head is not None]


def chosen(context: TableContext, wanted: str | None) -> list[Region]:
    """All regions with a head, or the one whose id is or starts with `wanted`.

    Raises:
        Invalid: none does, or several do.
    """
    found = regions(context)
    if wanted is None:
        return [region for region, _ in with_heads(context, found)]
    return [resolve_region(found, wanted, table=context.uri)]


def resolve_region(found: Iterable[Region], wanted: str, *, table: str) -> Region:
    """The one of these whose id is or starts with `wanted`; raises `Invalid` if none does, or several do."""
    matching = [region for region in found if region.id.startswith(wanted.lower())]
    if len(matching) != 1:
        raise Invalid(
            f"{len(matching)} regions start like that" if matching else "there is no such region",
            remedy=f"See lancelsm region list {table}",
            table=table,
            region=wanted,
        )
    return matching[0]


class Directory:
    """Regions by values, for whoever routes rows: the catalog, listed again for values not met before. Thread-safe."""

    def __init__(self, context: TableContext, *, spec_id: int) -> None:
        self._context = context
        self._spec_id = spec_id
        self._regions: dict[RegionValues, Region] = {}

    def find(self, values: RegionValues) -> Region | None:
        """The region with these values as of now, or None if it was not made yet."""
        if values not in self._regions:
            found = {region.values: region for region in regions(self._context) if region.spec_id == self._spec_id}
            self._regions = found
        return self._regions.get(values)


def region_from_record(context: TableContext, region: RegionId, record: Record) -> Region:
    """The region that a catalog record describes; raises `Corrupt` if it is unreadable."""
    try:
        fields = json.loads(str(record["values"]))
        values = tuple((str(name), None if value is None else bytes.fromhex(value)) for name, value in fields)
        return Region(context=context, id=region, spec_id=int(record["spec_id"]), values=values)
    except (KeyError, ValueError, TypeError) as error:
        raise Corrupt(
            f"the catalog's record of the region is unreadable: {error!r}",
            remedy=f"Stop all writers, then: lancelsm registry rebuild {context.uri}",
            table=context.uri,
            region=region,
        ) from error


def catalog_record(region: Region) -> dict[str, Value]:
    """What the catalog says of a region; the inverse of `region_from_record`."""
    values = [[name, None if value is None else value.hex()] for name, value in region.values]
    return {"spec_id": region.spec_id, "values": json.dumps(values, separators=(",", ":"))}


def check_writable(region: Region, head: Head, *, owner: str) -> None:
    """Whether this owner may append under this head.

    Raises:
        Invalid: the region is sealed.
        Fenced: another owner holds it.
    """
    if head.status is RegionState.SEALED:
        raise Invalid(
            "the region is sealed: it takes no more rows",
            remedy="Leave out the rows of this region: it stays sealed",
            **region.where,
        )
    if head.owner != owner:
        raise Fenced(
            f"the region is held by {head.owner!r} in epoch {head.epoch}, not by {owner!r}",
            remedy=f"Stop this writer, or take over: lancelsm region claim {region.context.uri} --region {region.id}",
            **region.where,
        )
