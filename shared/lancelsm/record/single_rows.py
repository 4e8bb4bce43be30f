"""Take single rows quickly, and convert many of them together.

To convert a row takes hundreds of times as long as to check its columns and types. So a row that looks like rows that
were converted before is only checked and copied, and is converted later together with others. All other rows are
converted at once. The form of a row is its Python types, or the schema of an Arrow table.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from itertools import groupby
from typing import Any, Final
from uuid import UUID

import pyarrow as pa

from lancelsm.errors import Invalid
from lancelsm.record.normalize import upserts, upserts_in_order
from lancelsm.record.schema import TableSchema

_PYTHON: Final = -1  # the form of rows of Python values; other forms are numbers of schemas
_MOST_SCHEMAS: Final = 16
_LARGE: Final = 16 << 10
_FIXED_SIZE: Final = 8
_UUID_SIZE: Final = 36  # as text


def _text_size(value: str) -> int:
    return len(value) if value.isascii() else len(value.encode(errors="surrogatepass"))


# Values that nobody can change, so that a reference is a copy.
_IMMUTABLE: Final[dict[type, Callable[[Any], int] | None]] = {
    type(None): None,
    bool: None,
    int: None,
    float: None,
    str: _text_size,
    bytes: len,
    Decimal: None,
    dt.date: None,
    dt.datetime: None,
    dt.time: None,
    dt.timedelta: None,
    UUID: lambda _: _UUID_SIZE,
}


@dataclass(slots=True)  # not frozen, which would take twice as long to create
class SingleRow:
    """A row that is checked and copied, but not converted.

    Args:
        values: in the order of the columns, or a table of one row.
        form: rows of one form can be converted together.
        size: about the number of bytes in Arrow.
        converter: what took the row.
    """

    values: tuple[Any, ...] | pa.Table
    form: int
    size: int
    converter: SingleRows

    @property
    def num_rows(self) -> int:
        return 1


class SingleRows:
    """Take and convert single rows of one table. Thread-safe."""

    def __init__(self, schema: TableSchema) -> None:
        self.schema = self._schema = schema
        self._names = tuple(schema.names)
        self._columns = frozenset(schema.names)
        # The types of values that each column has accepted.
        self._types: tuple[dict[type, Callable[[Any], int] | None], ...] = tuple({} for _ in self._names)
        self._schemas: list[pa.Schema] = []
        self._fixed_size = _FIXED_SIZE * len(self._names)

    def take(self, data: Any) -> SingleRow | pa.Table:
        """Return a single row; or the rows in stored form, if `data` is not one row of a form that is known.

        Raises:
            Invalid: as `upserts`. What depends on more than the columns and types of a single row may be raised by
                `convert` instead.
        """
        if type(data) is list and len(data) == 1:
            data = data[0]
        row = self._of_values(data) if type(data) is dict else self._of_arrow(data)
        if row is not None:
            return row
        rows = upserts(data, schema=self._schema)
        self._learn(data)
        return rows

    def upserts(self, row: SingleRow) -> pa.Table:
        """Convert a row that another object has taken, for the same columns or older ones. Raises `Invalid`."""
        values = row.values
        data = dict(zip(row.converter._names, values, strict=True)) if isinstance(values, tuple) else values
        return upserts(data, schema=self._schema)

    def convert(self, rows: Sequence[SingleRow]) -> Iterator[tuple[Sequence[SingleRow], pa.Table | Invalid]]:
        """Convert rows to stored form. Yield them in order, in groups: with their table, or one row with its error."""
        for form, group in groupby(rows, key=lambda row: row.form):
            yield from self._converted(list(group), self._python_rows if form == _PYTHON else self._arrow_rows)

    def _converted(
        self, rows: Sequence[SingleRow], convert: Callable[[Sequence[Any]], pa.Table]
    ) -> Iterator[tuple[Sequence[SingleRow], pa.Table | Invalid]]:
        try:
            yield rows, convert([row.values for row in rows])
        except (Invalid, pa.ArrowException) as error:  # Arrow's: rows that can't be in one array, such as dictionaries
            if len(rows) == 1:
                yield (
                    rows,
                    error
                    if isinstance(error, Invalid)
                    else Invalid(
                        f"the row can't be converted: {error}", remedy="Give a dict with the columns of the table"
                    ),
                )
                return
            middle = len(rows) // 2
            yield from self._converted(rows[:middle], convert)
            yield from self._converted(rows[middle:], convert)

    def _python_rows(self, rows: Sequence[tuple[Any, ...]]) -> pa.Table:
        return upserts_in_order(dict(zip(self._names, zip(*rows, strict=True), strict=True)), schema=self._schema)

    def _arrow_rows(self, rows: Sequence[pa.Table]) -> pa.Table:
        return upserts_in_order(pa.concat_tables(rows).combine_chunks(), schema=self._schema)

    def _of_values(self, data: dict[Any, Any]) -> SingleRow | None:
        if data.keys() != self._columns:
            return None
        values = tuple([data[name] for name in self._names])
        size = self._fixed_size
        for value, known in zip(values, self._types, strict=True):
            try:
                measure = known[type(value)]
            except KeyError:
                return None
            if measure is not None:
                size += measure(value)
        return SingleRow(values, _PYTHON, size, self)

    def _of_arrow(self, data: Any) -> SingleRow | None:
        if not isinstance(data, pa.Table | pa.RecordBatch) or data.num_rows != 1:
            return None
        form = self._known_form(data.schema)
        if form is None:
            return None
        size = data.get_total_buffer_size()  # of a slice, the size of the whole
        if size > _LARGE:
            size = data.nbytes
        return SingleRow(data if isinstance(data, pa.Table) else pa.Table.from_batches([data]), form, size, self)

    def _known_form(self, schema: pa.Schema) -> int | None:
        # The metadata counts too: with that of pandas, an index is left out.
        for form, known in enumerate(self._schemas):
            if schema.equals(known, check_metadata=True):
                return form
        return None

    def _learn(self, data: Any) -> None:
        """Remember the form of a row that was converted."""
        if type(data) is dict and data.keys() == self._columns:
            for name, known in zip(self._names, self._types, strict=True):
                kind = type(data[name])
                if kind in _IMMUTABLE or _is_number_of_numpy(kind):
                    known[kind] = _IMMUTABLE.get(kind)
                elif issubclass(kind, Enum) and issubclass(kind, str | int):
                    known[kind] = _text_size if issubclass(kind, str) else None
        elif (
            isinstance(data, pa.Table | pa.RecordBatch)
            and len(self._schemas) < _MOST_SCHEMAS
            and self._known_form(data.schema) is None
        ):
            self._schemas.append(data.schema)


def _is_number_of_numpy(kind: type) -> bool:
    return any(
        base.__module__ == "numpy" and base.__name__ in ("number", "bool", "bool_", "datetime64")
        for base in kind.__mro__
    )
