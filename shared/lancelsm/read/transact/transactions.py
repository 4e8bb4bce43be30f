"""Run one transaction per region: over the rows of some keys, or over all rows that match a condition."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from lancelsm.common.bounded_cache import BoundedCache
from lancelsm.common.layout import RegionId
from lancelsm.common.write_result import Committed
from lancelsm.dataset.assignments import read_assignments
from lancelsm.dataset.conditions import read_condition
from lancelsm.errors import Invalid
from lancelsm.read import reader
from lancelsm.read.pruning.region_pruning import pruned_view, regions_for
from lancelsm.read.transact.matching_keys import MatchingKeys
from lancelsm.read.transact.read_token import LogPoint, Unchanged, check_covered, check_not_resharded
from lancelsm.read.transact.rows_at_head import RowsAtHead, ViewedRows
from lancelsm.read.transact.transaction import Decide, Decision, Transaction
from lancelsm.read.view import View
from lancelsm.read.view_cache import ListRegions, Select
from lancelsm.record.key import key_column
from lancelsm.record.normalize import upserts
from lancelsm.record.schema import TableSchema, check_known
from lancelsm.region.catalog import Region, SealedRegion
from lancelsm.region.handle import WriteTarget
from lancelsm.region.head import Head
from lancelsm.routing.route import route
from lancelsm.routing.spec import RegionSpec
from lancelsm.wal.entry import Draft
from lancelsm.wal.region_writer import NextDraft

T = TypeVar("T")


class ReadView(Protocol):
    """Reads from a view, and once more from a new view if the first one was collected.

    Args:
        spec: the region spec by which the regions were chosen. If the table has a later one, all regions are read.
    """

    def __call__(
        self,
        read: Callable[[View], T],
        list_regions: ListRegions,
        *,
        spec: RegionSpec | None,
        select: Select | None = None,
    ) -> T: ...


class Append(Protocol):
    """Appends to the regions of these rows what `next_draft` returns. See `RegionWriters.append_all`."""

    def __call__(self, rows: pa.Table, *, next_draft: NextDraft, again: bool = True) -> Committed: ...


class Transactions:
    """The transactions of one open table.

    Args:
        find_target: returns the table with the newest region spec that this process has met.
        schema: the columns of the table.
        kept: keeps pages of key filters.
    """

    def __init__(
        self,
        find_target: Callable[[], WriteTarget],
        *,
        schema: TableSchema,
        read: ReadView,
        append: Append,
        kept: BoundedCache,
    ) -> None:
        self._find_target = find_target
        self.schema = self._schema = schema
        self._uri = find_target().context.uri
        self._read = read
        self._append = append
        self._kept = kept

    @property
    def _target(self) -> WriteTarget:
        return self._find_target()

    def over_keys(
        self,
        given: pa.Table,
        decide: Callable[[pa.Table], Decide],
        *,
        reads_rows: bool = True,
        since: Mapping[RegionId, LogPoint] | None = None,
        atomic: bool = False,
    ) -> Committed:
        """Append what is decided from the live rows of the given keys.

        Args:
            given: rows in stored form, with distinct keys.
            decide: returns the decision for the given rows of one region.
            reads_rows: False: the decision needs no live rows, and gets None.
            since: points in the logs; no given key may have been written after them.
            atomic: raise `Invalid` if the keys are in several regions.

        Raises: the same errors as `Table.transact`.
        """
        begun: list[Transaction] = []
        if atomic and len(route(given, self._target.regions)) > 1:  # before a region is created
            raise _in_several_regions()
        if since is not None:
            target = self._target
            directory, parts = target.directory, route(given, target.regions)
            found = [directory.find(part.values) or directory.named(part.values) for part in parts]
            check_not_resharded(since, found, target)
            check_covered(since, found)  # guard: token that lacks a region writes to none

        def next_draft(region: Region, part: pa.Table) -> Callable[[Head], Draft | Head | None]:
            if atomic and part.num_rows < given.num_rows:  # guard: reshard does not split an atomic transaction
                raise _in_several_regions()
            rows = self._rows_of_keys(region, part) if reads_rows else None
            if since is not None:
                check_not_resharded(since, [region], self._target)
            unchanged = None if since is None else Unchanged(region, self._schema, part, since=since[region.id])
            transaction = Transaction(region, decide(part), rows=rows, unchanged=unchanged)
            begun.append(transaction)  # other threads append those of other regions
            return transaction.draft_after

        done = self._append(given, next_draft=next_draft)
        appended = {entry.region for entry in done.entries}  # without regions that a reshard sealed meanwhile
        return replace(done, skipped=sum(one.skipped for one in begun if not one.is_drafted or one.region in appended))

    def update(self, *, where: str, texts: Mapping[str, str]) -> Committed:
        """Set columns of every row that matches a condition. Arguments and errors are those of `Table.update`."""
        assignments = read_assignments(texts, schema=self._schema, table=self._uri)
        condition = read_condition(where, columns=self._schema.columns, table=self._uri)

        def decide(current: pa.Table) -> Decision:
            return Decision(
                rows=upserts(assignments.applied(current, self._schema, table=self._uri), schema=self._schema)
            )

        def next_draft(region: Region, matching: pa.Table) -> Callable[[Head], Draft | Head | None]:
            _check_is_of(spec, region)
            rows = RowsAtHead(
                region,
                self._schema,
                read_view=lambda: self._matching_rows(region, where, self._schema.names),
                select=lambda live: condition.matching(live, table=self._uri),
                viewed=ViewedRows.of(matching, view, region),
            )
            return Transaction(region, decide, rows=rows).draft_after

        view, rows, spec = self._matching_in_all(where, self._schema.names)
        return self._append(rows, next_draft=next_draft, again=False)

    def delete(self, *, where: str) -> Committed:
        """Delete every row that matches a condition. Arguments and errors are those of `Table.delete`."""
        condition = read_condition(where, columns=self._schema.columns, table=self._uri)
        columns = self._schema.primary_key

        def next_draft(region: Region, keys: pa.Table) -> Callable[[Head], Draft | Head | None]:
            _check_is_of(spec, region)
            return MatchingKeys(
                region,
                self._schema,
                condition,
                ViewedRows.of(keys, view, region),
                read_view=lambda: self._matching_rows(region, where, columns),
            ).delete_after

        view, keys, spec = self._matching_in_all(where, columns)
        return self._append(keys, next_draft=next_draft, again=False)

    def _rows_of_keys(self, region: Region, part: pa.Table) -> RowsAtHead:
        names = self._schema.primary_key
        keys = part.select(list(names))
        own = key_column(keys, names)

        def found(view: View) -> ViewedRows:
            check_known(self._schema, view.base.schema.version)
            rows = reader.get(
                view,
                keys,
                uri=self._uri,
                columns=self._schema.names,
                kept=self._kept,
                parallel=self._target.context.parallel,
            )
            return ViewedRows.of(rows, view, region)

        return RowsAtHead(
            region,
            self._schema,
            read_view=lambda: self._read(found, lambda: [region], spec=None),
            select=lambda live: live.filter(pc.is_in(key_column(live, names), value_set=own)),
        )

    def _matching_in_all(self, where: str, columns: Sequence[str]) -> tuple[View, pa.Table, RegionSpec]:
        """Read the matching rows of all regions, with their view and the region spec that was known before the read."""
        spec = self._target.regions
        list_regions, select = regions_for(where, spec, context=self._target.context, schema=self._schema)
        return self._read(
            lambda view: (view, self._matching(view, where, columns), spec), list_regions, spec=spec, select=select
        )

    def _matching_rows(self, region: Region, where: str, columns: Sequence[str]) -> ViewedRows:
        """Read the matching rows of one region. The base has rows of all regions."""

        def found(view: View) -> ViewedRows:
            rows = self._matching(view, where, columns)
            own = [part.rows for part in route(rows, self._target.regions) if part.values == region.values]
            return ViewedRows.of(own[0] if own else rows.slice(0, 0), view, region)

        return self._read(found, lambda: [region], spec=None)

    def _matching(self, view: View, where: str, columns: Sequence[str]) -> pa.Table:
        check_known(self._schema, view.base.schema.version)  # guard: transaction reads rows under its own columns
        needed = pruned_view(view, where, self._target.regions)
        return reader.scan(needed, uri=self._uri, columns=columns, where=where).read_all()


def _in_several_regions() -> Invalid:
    return Invalid(
        "the keys are in several regions, and a transaction is atomic in one region only",
        remedy="Give keys of one region, or leave out atomic for one transaction per region",
        field="atomic",
    )


def _check_is_of(spec: RegionSpec, region: Region) -> None:
    """Raise `SealedRegion` if the rows of a write were read before a reshard that made this region.

    Their view says nothing of what the old regions got after it.
    """
    if region.number != spec.number:  # guard: rows that were read before a reshard are read again
        raise SealedRegion("the table was resharded since the rows were read", remedy="Retry", **region.where)
