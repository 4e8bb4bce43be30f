"""The forms in which callers give rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Protocol, TypeAlias


class ArrowStream(Protocol):
    """Tables of pyarrow, frames of polars and pandas, relations of duckdb, `Rows` of lancelsm."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


class ArrowBatch(Protocol):
    """A batch of pyarrow."""

    def __arrow_c_array__(self, requested_schema: object | None = None) -> object: ...


class DataclassRow(Protocol):
    """A row as an instance of a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


class ModelRow(Protocol):
    """A row as a model of pydantic."""

    def model_dump(self) -> dict[str, Any]: ...


ArrowLike: TypeAlias = ArrowStream | ArrowBatch | Mapping[str, Any] | Iterable[Any] | DataclassRow | ModelRow
"""Arrow data, columns by name, rows, or one row. Rows are dicts, dataclasses, named tuples or models of pydantic."""
