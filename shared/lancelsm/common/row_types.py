"""The types of rows, values and keys that callers give."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import ClassVar, Protocol, TypeAlias
from uuid import UUID


class ArrowStream(Protocol):
    """Tables of pyarrow, frames of polars and pandas, relations of duckdb, `Rows` of lancelsm."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


class ArrowBatch(Protocol):
    """A batch of pyarrow."""

    def __arrow_c_array__(self, requested_schema: object | None = None) -> object: ...


class DataclassRow(Protocol):
    """A row as an instance of a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, object]]


class ModelRow(Protocol):
    """A row as a model of pydantic."""

    def model_dump(self) -> dict[str, object]: ...


class Scalar(Protocol):
    """A scalar of numpy or torch."""

    def item(self) -> object: ...


class ArrowScalar(Protocol):
    """A scalar of pyarrow."""

    def as_py(self) -> object: ...


class Array(Protocol):
    """An array of numpy, or what numpy takes as one."""

    def __array__(self) -> object: ...


class LanceQuery(Protocol):
    """A query object of `lance.query`."""

    def query_type(self) -> object: ...


ArrowLike: TypeAlias = ArrowStream | ArrowBatch | Mapping[str, object] | Iterable[object] | DataclassRow | ModelRow
"""Arrow data, columns by name, rows, or one row. Rows are dicts, dataclasses, named tuples or models of pydantic."""

KeyValue: TypeAlias = bool | int | str | bytes | dt.date | UUID | Enum | PurePath | Scalar | ArrowScalar
"""The value of one key column: a number, text, bytes, a date, a datetime (also of pandas); a UUID for text or binary; a
path for text; an enum member with such a value; or a scalar of numpy or pyarrow."""

KeyRow: TypeAlias = KeyValue | tuple[KeyValue, ...] | Mapping[str, KeyValue]
"""One key: the value of a key of one column, a tuple of values in the order of the primary key, or a dict."""

Keys: TypeAlias = KeyRow | Iterable[KeyRow] | ArrowLike
"""One key or several: a `KeyRow`, a list of these, or the key columns in any form of `ArrowLike`. A tuple is one key of
several columns, or several keys of one."""

_OtherValue: TypeAlias = float | Decimal | dt.time | dt.timedelta | bytearray | memoryview
Value: TypeAlias = KeyValue | _OtherValue | Sequence[object] | Mapping[str, object]
"""A value that is not null: one of a key, a float, a decimal, a time of day, a duration, a list, or a dict for a
struct."""

Vector: TypeAlias = Sequence[float] | Sequence[Sequence[float]] | Array | ArrowBatch | ArrowStream
"""A vector to search for, or several: a list of numbers, an array of numpy or pyarrow, or a list of lists."""
