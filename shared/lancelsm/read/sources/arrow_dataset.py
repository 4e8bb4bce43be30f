"""A table as a dataset of pyarrow, which duckdb and DataFusion read with the columns and filters that they need."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset

from lancelsm.common.extras import needing
from lancelsm.errors import Invalid
from lancelsm.read.peers import duckdb_of
from lancelsm.read.result import Rows
from lancelsm.read.sources.arrow_filters import pushed
from lancelsm.read.sources.sql_filter import filtered_as_sql
from lancelsm.record.schema import unknown_column

if TYPE_CHECKING:  # packages that few processes use
    from datafusion import Table as DataFusionTable
    from duckdb import DuckDBPyConnection, DuckDBPyRelation


class Scannable(Protocol):
    """What a source needs of a table."""

    @property
    def schema(self) -> pa.Schema: ...

    def scan(self, *, columns: Sequence[str] | None, where: str | None, limit: int | None) -> Rows: ...


def plain_schema(table: Scannable) -> pa.Schema:
    """Return the columns without metadata. Raises `Invalid` for an object that is no table of lancelsm."""
    if not (hasattr(table, "schema") and hasattr(table, "scan")):
        raise Invalid(
            f"table is of type {type(table).__name__}", remedy="Give an open table: lancelsm.open(uri)", field="table"
        )
    return pa.schema([field.remove_metadata() for field in table.schema])


class TableScan:
    """One scan that an engine asked for. It reads nothing before the first batch is taken, and can be read again."""

    def __init__(
        self,
        table: Scannable,
        columns: Sequence[str] | None,
        filter: Any,  # noqa: A002 - as pyarrow names it
        *,
        as_sql: bool = False,
    ) -> None:
        self._table = table
        self._as_sql = as_sql
        schema = plain_schema(table)
        self._columns = schema.names if columns is None else _known(columns, schema)
        if filter is not None and not isinstance(filter, pc.Expression):
            raise Invalid(
                f"filter is of type {type(filter).__name__}", remedy="Give an expression of pyarrow", field="filter"
            )
        self._filter = filter
        self.dataset_schema = schema
        self.projected_schema = pa.schema([schema.field(name) for name in self._columns])

    def to_batches(self, limit: int | None = None) -> Iterator[pa.RecordBatch]:
        schema = self.dataset_schema
        condition = pushed(self._filter, schema, as_sql=self._as_sql)
        extra = frozenset() if condition.whole else frozenset(_known(condition.columns, schema))
        # A scan needs a column, also if the engine only counts rows.
        wanted = [name for name in schema.names if name in self._columns or name in extra] or schema.names[:1]
        rows = self._table.scan(columns=wanted, where=condition.where, limit=limit if condition.whole else None)
        left = limit
        for batch in rows.to_batches():
            found = pa.Table.from_batches([batch])
            if not condition.whole:
                found = self._filtered(found)
            if left is not None:
                found = found.slice(0, left)
                left -= found.num_rows
            yield from self._projected(found)
            if left == 0:
                return

    def _filtered(self, rows: pa.Table) -> pa.Table:
        try:
            return filtered_as_sql(rows, self._filter) if self._as_sql else rows.filter(self._filter)
        except pa.ArrowException as cause:
            raise Invalid(
                f"the filter can't be applied: {cause}", remedy="Apply this filter to the result", field="filter"
            ) from cause

    def _projected(self, rows: pa.Table) -> list[pa.RecordBatch]:
        if not self._columns:  # only such a batch keeps its number of rows
            return [pa.RecordBatch.from_struct_array(pa.array([{}] * rows.num_rows, pa.struct([])))]
        batches: list[pa.RecordBatch] = rows.select(self._columns).cast(self.projected_schema).to_batches()
        return batches

    def to_reader(self) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(self.projected_schema, self.to_batches())

    def to_table(self) -> pa.Table:
        return pa.Table.from_batches(self.to_batches(), self.projected_schema)

    def head(self, rows: int) -> pa.Table:
        return pa.Table.from_batches(self.to_batches(limit=rows), self.projected_schema)

    def count_rows(self) -> int:
        return sum(batch.num_rows for batch in self.to_batches())


def _known(columns: Iterable[str], schema: pa.Schema) -> list[str]:
    """Return the names of columns. Raises `Invalid` for one that the table does not have, and for other forms."""
    if isinstance(columns, str | Mapping):
        raise Invalid(
            f"columns is of type {type(columns).__name__}",
            remedy="Give a list of names; compute columns from the rows that are read",
            field="columns",
        )
    names = list(columns)
    for name in names:
        if name not in schema.names:
            raise unknown_column(name, schema.names)
    return names


class _Fragment:
    """The one part of the dataset, as DataFusion asks for it."""

    def __init__(self, table: Scannable) -> None:
        self._table = table

    def scanner(
        self,
        _schema: pa.Schema | None = None,
        *,
        columns: Sequence[str] | None = None,
        filter: Any = None,  # noqa: A002 - as pyarrow names it
        **_: Any,
    ) -> TableScan:
        return TableScan(self._table, columns, filter, as_sql=True)


class ArrowDataset(pyarrow.dataset.Dataset):  # type: ignore[misc]
    """A table as a `pyarrow.dataset.Dataset`. Each read scans the table as it is at that moment."""

    def __init__(self, table: Scannable) -> None:
        plain_schema(table)
        self._table = table

    def __repr__(self) -> str:
        return f"<lancelsm dataset of {self._table!r}>"

    def __reduce__(self) -> Any:
        raise self._unsupported("pickle")

    @property
    def schema(self) -> pa.Schema:
        return plain_schema(self._table)

    def scanner(self, columns: Sequence[str] | None = None, filter: Any = None, **_: Any) -> TableScan:  # noqa: A002
        return TableScan(self._table, columns, filter)

    def get_fragments(self, filter: Any = None) -> Iterator[_Fragment]:  # noqa: A002, ARG002
        return iter([_Fragment(self._table)])

    def to_batches(self, **options: Any) -> Iterator[pa.RecordBatch]:
        return self.scanner(**options).to_batches()

    def to_table(self, **options: Any) -> pa.Table:
        return self.scanner(**options).to_table()

    def head(self, num_rows: int, **options: Any) -> pa.Table:
        return self.scanner(**options).head(num_rows)

    def count_rows(self, **options: Any) -> int:
        return self.scanner(**options).count_rows()

    # The other methods of pyarrow need a dataset of its own below.

    def take(self, *_: Any, **__: Any) -> Any:
        raise self._unsupported("take")

    def filter(self, *_: Any, **__: Any) -> Any:
        raise self._unsupported("filter")

    def join(self, *_: Any, **__: Any) -> Any:
        raise self._unsupported("join")

    def join_asof(self, *_: Any, **__: Any) -> Any:
        raise self._unsupported("join_asof")

    def sort_by(self, *_: Any, **__: Any) -> Any:
        raise self._unsupported("sort_by")

    def replace_schema(self, *_: Any, **__: Any) -> Any:
        raise self._unsupported("replace_schema")

    @property
    def partition_expression(self) -> Any:
        raise self._unsupported("partition_expression")

    def _unsupported(self, name: str) -> Invalid:
        return Invalid(f"a dataset of lancelsm has no {name}", remedy="Read it first, with to_table()")


def arrow_dataset(table: Scannable) -> ArrowDataset:
    """Return a table as a dataset of pyarrow, for every engine that reads such datasets.

    Each read scans the table as it is at that moment, with the columns and the filter that the reader gives. Open the
    table at a snapshot to see the same rows in every read.
    """
    return ArrowDataset(table)


def duckdb_relation(table: Scannable, connection: DuckDBPyConnection | None = None) -> DuckDBPyRelation:
    """Return a table as a relation of duckdb. Each query scans the table as it is at that moment.

    Args:
        connection: a connection of duckdb; by default its default connection.

    Raises:
        Invalid: duckdb is not installed, or lacks the type of a column; or this is no open connection of it.
    """
    dataset = ArrowDataset(table)
    return duckdb_of(dataset, dataset.schema, connection)


def datafusion_table(table: Scannable) -> DataFusionTable:
    """Return a table as a table of DataFusion, for `SessionContext.register_table`.

    Raises:
        Invalid: datafusion is not installed.
    """
    with needing("datafusion"):
        import datafusion

    return datafusion.Table(ArrowDataset(table))
