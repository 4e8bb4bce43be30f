"""The command `sql`: one query of DataFusion over tables by name, each at a snapshot of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain, count
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lancelsm.cli.session import Session, command, pairs

if TYPE_CHECKING:
    import pyarrow as pa

    from lancelsm.errors import LsmError
    from lancelsm.read.result import Rows
    from lancelsm.table import Table

commands = typer.Typer()
_TTL = "15m"


@command(
    commands, "sql", example='lancelsm sql "SELECT state, count(*) FROM orders GROUP BY state" --table orders=./orders'
)
def sql(
    session: Session,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="A SELECT in DataFusion's dialect.")],
    root: Annotated[
        str, typer.Option("--root", metavar="ROOT", help="The directory or URL with the tables, as NAME.lance or NAME.")
    ] = ".",
    tables: Annotated[
        list[str] | None,
        typer.Option("--table", metavar="NAME=URI", help="A table that is elsewhere; repeatable."),
    ] = None,
) -> None:
    """Query tables by name with SQL.

    Each table of the query is read at a snapshot, and all snapshots are taken before the first row is read. So a query
    sees all rows that were acknowledged before it, and each table at one moment, however often the query names it.
    Columns of one name are numbered: the second `id` is `id_2`.

    As JSON: one object per row, as `scan`.
    """
    from lancelsm.cli.output import show_rows

    located = pairs(tables, option="--table", form="NAME=URI")
    with query_rows(session, query, root=root, located=located) as rows:
        show_rows(session, rows, capped=False)


@contextmanager
def query_rows(session: Session, query: str, *, root: str, located: Mapping[str, str]) -> Iterator[Rows]:
    """Yield the rows of a query.

    Raises:
        Invalid: DataFusion is not installed, the query is wrong or no SELECT, or a table is not found.
    """
    from lancelsm.common.extras import needing
    from lancelsm.errors import LsmError
    from lancelsm.read.result import Rows, with_first_batch

    with needing("datafusion", extra="sql"):
        import datafusion

    with ExitStack() as held:
        found = _Tables(session, root=root, located=located)
        context = datafusion.SessionContext()
        context.catalog().register_schema("public", found.provider())
        only_reads = datafusion.SQLOptions().with_allow_ddl(False).with_allow_dml(False).with_allow_statements(False)
        try:
            with session.working("Querying"):
                context.sql_with_options(query, only_reads)  # a plan, which finds the tables
                found.hold(held)
                rows = Rows(with_first_batch(_stream(context.sql_with_options(query, only_reads), found)))
        except LsmError:
            raise
        except Exception as error:
            raise found.failure or _refused(error) from error
        yield rows


def _stream(frame: Any, found: _Tables) -> pa.RecordBatchReader:
    import pyarrow as pa

    stream = pa.RecordBatchReader.from_stream(frame)
    names = distinct(stream.schema.names)
    schema = pa.schema([column.with_name(name) for column, name in zip(stream.schema, names, strict=True)])

    def batches() -> Iterator[pa.RecordBatch]:
        try:
            for batch in stream:
                yield batch.rename_columns(names)
        except Exception as error:
            raise found.failure or _refused(error) from error

    return pa.RecordBatchReader.from_batches(schema, batches())


def distinct(names: Sequence[str]) -> list[str]:
    """Return a name for each column of a result: a repeated one gets a number, such as `id_2`."""
    found: dict[str, None] = {}
    for name in names:
        numbered = (f"{name}_{number}" for number in count(2))
        found[
            next(one for one in chain([name], numbered) if one not in found and (one == name or one not in names))
        ] = None
    return list(found)


class _Tables:
    """The tables that a query names, opened when DataFusion asks for them."""

    def __init__(self, session: Session, *, root: str, located: Mapping[str, str]) -> None:
        self.failure: LsmError | None = None  # DataFusion would keep only its text
        self._session = session
        self._root = root
        self._located = located
        self._open: dict[str, Table] = {}

    def hold(self, stack: ExitStack) -> None:
        """Take a snapshot of every table, and read the tables at these from now on."""
        for name, table in list(self._open.items()):
            nonce = table._handle.context.ids.nonce()[:8]
            self._open[name] = stack.enter_context(table.holding_snapshot(f"sql-{nonce}", _TTL))

    def provider(self) -> Any:
        from datafusion.catalog import SchemaProvider

        tables = self

        class Provider(SchemaProvider):
            @property
            def table_names(self) -> list[str]:  # type: ignore[override] # as DataFusion reads it
                return tables.names()

            def table_exist(self, name: str) -> bool:
                return tables.find(name) is not None

            def table(self, name: str) -> Any:
                return tables.find(name)

        return Provider()

    def names(self) -> list[str]:
        """List the tables that a query can name: those of `--table`, and NAME.lance below the root."""
        from lancelsm.namespace import connect

        return sorted({*self._located, *connect(self._root, storage_options=self._session.storage_options)})

    def find(self, name: str) -> Any:
        """Return a table for DataFusion; None if there is none of this name."""
        from lancelsm.errors import Invalid, LsmError
        from lancelsm.read.sources.arrow_dataset import datafusion_table

        try:
            if name not in self._open:
                self._open[name] = self._opened(name)
            return datafusion_table(_Recorded(self._open[name], self))
        except LsmError as error:
            if not isinstance(error, Invalid):
                self.failure = error
            elif self.failure is None:
                self.failure = _not_found(name, error)
            return None

    def _opened(self, name: str) -> Table:
        if name in self._located:
            return self._session.open(self._located[name])
        from lancelsm.errors import Invalid

        if not is_directory_name(name):
            raise Invalid("it is no name of a directory", remedy="Give --table NAME=URI", field="query")
        try:
            return self._session.open(f"{self._root.rstrip('/') or '/'}/{name}.lance")
        except Invalid:
            return self._session.open(f"{self._root.rstrip('/') or '/'}/{name}")


def is_directory_name(name: str) -> bool:
    """Return whether a table of this name is right below the root, so that no query leaves it."""
    return name not in ("", ".", "..") and not set(name) & set("/\\\0")


class _Recorded:
    """A table whose errors are kept: DataFusion passes on only their text."""

    def __init__(self, table: Table, tables: _Tables) -> None:
        self._table = table
        self._tables = tables

    @property
    def schema(self) -> pa.Schema:
        return self._table.schema

    def scan(self, *, columns: Sequence[str] | None, where: str | None, limit: int | None) -> Rows:
        from lancelsm.errors import LsmError
        from lancelsm.read.result import Rows

        def batches() -> Iterator[pa.RecordBatch]:
            try:
                yield from rows
            except LsmError as error:
                self._tables.failure = error
                raise

        import pyarrow as pa

        try:
            rows = self._table.scan(columns=columns, where=where, limit=limit)
        except LsmError as error:
            self._tables.failure = error
            raise
        return Rows(pa.RecordBatchReader.from_batches(rows.schema, batches()))


def _not_found(name: str, error: LsmError) -> LsmError:
    from lancelsm.errors import Invalid

    return Invalid(
        f"the table {name!r} of the query can't be opened: {error.redacted}",
        remedy=f"Give --root, or --table {name}=URI",
    )


def _refused(error: Exception) -> LsmError:
    from lancelsm.errors import Invalid

    text = " ".join(str(error).split())
    is_write = "not supported: D" in text  # DML or DDL
    remedy = (
        "Only SELECT is possible; lancelsm write, update and delete change rows" if is_write else "Correct the query"
    )
    return Invalid(f"the query failed: {text[:500]}", remedy=remedy, field="query")
