"""A table for asyncio: the calls of `Table`, each in a thread, so that the event loop goes on meanwhile."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

import pyarrow as pa

from lancelsm.common.other_names import TABLE, other_name
from lancelsm.history.at import At
from lancelsm.read.result import Rows
from lancelsm.table import Table
from lancelsm.table import open as open_table

if TYPE_CHECKING:  # packages that few processes use
    from pandas import DataFrame
    from polars import DataFrame as PolarsFrame

P = ParamSpec("P")
T = TypeVar("T")


def _in_thread(
    method: Callable[Concatenate[Table, P], T],
) -> Callable[Concatenate[AsyncTable, P], Coroutine[Any, Any, T]]:
    @functools.wraps(method)
    async def call(self: AsyncTable, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.to_thread(method, self.table, *args, **kwargs)

    return call


def _rows_in_thread(
    method: Callable[Concatenate[Table, P], Rows],
) -> Callable[Concatenate[AsyncTable, P], Coroutine[Any, Any, AsyncRows]]:
    @functools.wraps(method)
    async def call(self: AsyncTable, /, *args: P.args, **kwargs: P.kwargs) -> AsyncRows:
        return AsyncRows(await asyncio.to_thread(method, self.table, *args, **kwargs))

    call.__annotations__ = {**call.__annotations__, "return": "AsyncRows"}
    call.__signature__ = inspect.signature(method).replace(return_annotation="AsyncRows")  # type: ignore[attr-defined]
    return call


class AsyncRows:
    """The rows of one read. Iterate over their batches with `async for`, or read them as a whole, once."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    @property
    def schema(self) -> pa.Schema:
        """The columns of the rows."""
        return self._rows.schema

    async def __aiter__(self) -> AsyncIterator[pa.RecordBatch]:
        batches = self._rows.to_batches()
        while (batch := await asyncio.to_thread(next, batches, None)) is not None:
            yield batch

    async def to_arrow(self) -> pa.Table:
        """Read the rows into a table of Arrow."""
        return await asyncio.to_thread(self._rows.to_arrow)

    async def to_pylist(self) -> list[dict[str, Any]]:
        """Read the rows into a list of dicts."""
        return await asyncio.to_thread(self._rows.to_pylist)

    async def to_pandas(self) -> DataFrame:
        """Return a pandas DataFrame. Raise `Invalid` if pandas is not installed."""
        return await asyncio.to_thread(self._rows.to_pandas)

    async def to_polars(self) -> PolarsFrame:
        """Return a polars DataFrame. Raise `Invalid` if polars is not installed."""
        return await asyncio.to_thread(self._rows.to_polars)


class AsyncTable:
    """A table whose calls are awaited; `lancelsm.open_async` returns it. Each call takes and raises what the
    call of `Table` with its name does.

    Cancelling a call does not stop its thread: a write that was cancelled may still be committed. For many small
    writes use `async with table.table.writer() as writer` and `await writer.submit_async(row)`.

    Args:
        table: the table; its other methods are called as they are.
    """

    def __init__(self, table: Table) -> None:
        self.table = table

    if not TYPE_CHECKING:  # type checkers report a name that is missing

        def __getattr__(self, name: str) -> object:
            if not name.startswith("_") and callable(getattr(Table, name, None)):
                raise AttributeError(f"an AsyncTable has no {name!r}. Use asyncio.to_thread(table.table.{name}, ...)")
            if error := other_name("an AsyncTable", name, TABLE):
                raise error
            return object.__getattribute__(self, name)  # raises the error that Python has for it

    def __repr__(self) -> str:
        return f"<lancelsm.AsyncTable of {self.table!r}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.table.close)

    upsert = _in_thread(Table.upsert)
    transact = _in_thread(Table.transact)
    update = _in_thread(Table.update)
    delete = _in_thread(Table.delete)
    apply_changes = _in_thread(Table.apply_changes)
    get = _in_thread(Table.get)
    count = _in_thread(Table.count)
    count_rows = _in_thread(Table.count_rows)
    head = _in_thread(Table.head)
    to_arrow = _in_thread(Table.to_arrow)
    status = _in_thread(Table.status)
    flush = _in_thread(Table.flush)
    merge = _in_thread(Table.merge)

    scan = _rows_in_thread(Table.scan)
    search = _rows_in_thread(Table.search)

    async def at(self, at: At) -> AsyncTable:
        """Return the table at a snapshot, at a version of the base, or at a time. It is read-only.

        Args:
            at: the name of a snapshot, the version of the base as an integer, or a time such as `2026-11-01T00:00:00Z`.

        Raises:
            Invalid: the snapshot or version is not found, has expired or was collected.
            Contended: collections kept overtaking the call. Retry.
            Corrupt: the base or a record of the registry is damaged.
            Unavailable: a store or the registry did not answer.
        """
        return AsyncTable(await asyncio.to_thread(self.table.at, at))


async def open_async(
    uri: str | Path,
    *,
    settings: Mapping[str, object] | None = None,
    storage_options: Mapping[str, str] | None = None,
    owner: str | None = None,
    at: At | None = None,
) -> AsyncTable:
    """Open a table for asyncio, at a path or URL.

    Args:
        settings: values by name for this object only; they override the environment and the table's own settings.
        storage_options: options of the object store, as Lance takes them.
        owner: an owner name for this writer alone; by default the name that ordinary writers of the table share.
        at: the name of a snapshot, a version of the base, or a time such as `2026-11-01T00:00:00Z`: the table is then
            read-only and always shows the same rows.

    Raises:
        Invalid: there is no table at this location, a newer release created it, or the snapshot or version is not
            found.
        Corrupt: the table's configuration is unreadable or contradicts the base.
        Unavailable: a store or the registry did not answer.
    """
    opened = functools.partial(open_table, settings=settings, storage_options=storage_options, owner=owner, at=at)
    return AsyncTable(await asyncio.to_thread(opened, uri))
