"""The region spec of a table: its fields, its text form, its JSON in `config.json`, and Lance's form of it.

    unsharded                       one region (the same as an empty text)
    bucket(a, 4)                    hash of one key column, 1 to 1024 buckets
    multi_bucket(a, b, 8)           hash of several key columns
    identity(a)                     one region per value
    truncate(a, 10)                 one region per multiple of 10, or per 10-character prefix
    year(t), month(t), day(t), hour(t)    one region per calendar part
    expr(abs(a) % 4)                one region per value of a SQL expression over key columns (or col0, col1, ...)

Fields are separated by commas: `bucket(a, 4), day(t)`. A column name that is not a plain word is in double quotes. The
region depends on the key only, so all source columns are key columns (lance-memwal, "Region Spec").
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.types as pt

from lancelsm.common.layout import numbered_field
from lancelsm.errors import Invalid
from lancelsm.record.schema import TableSchema, field_id
from lancelsm.routing import expression
from lancelsm.routing.transforms import Transform
from lancelsm.routing.value import type_name

T = TypeVar("T")

MAX_BUCKETS = 1024
_EXPRESSION = "expr"
_SIZE = {Transform.BUCKET: "num_buckets", Transform.MULTI_BUCKET: "num_buckets", Transform.TRUNCATE: "width"}
_CALENDAR = (Transform.YEAR, Transform.MONTH, Transform.DAY, Transform.HOUR)
_LANCE_TRANSFORMS = (Transform.UNSHARDED, Transform.IDENTITY, Transform.BUCKET)
_CALL = re.compile(r"\s*([A-Za-z_]\w*)\s*\(")
_ARGUMENT = re.compile(r'\s*(?:"((?:[^"]|"")+)"|([^\s",](?:[^",]*[^\s",])?))\s*(,|$)')


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionField:
    """How one region value is computed from key columns. Lance's `ShardingField`.

    Either `transform` or `expression` is set. `size` is the number of buckets or the width, if the transform has one.
    """

    field_id: str
    columns: tuple[str, ...]
    source_ids: tuple[int, ...]
    transform: Transform | None
    expression: str | None
    result_type: str
    size: int | None

    @property
    def parameters(self) -> dict[str, str]:
        """The parameters as Lance writes them: `num_buckets` or `width`, as decimal text."""
        if self.transform is None or self.size is None:
            return {}
        return {_SIZE[self.transform]: str(self.size)}

    def describe(self) -> str:
        """Return the text form of the field."""
        if self.transform is None:
            return f"{_EXPRESSION}({self.expression})"
        if self.transform == Transform.UNSHARDED:
            return str(self.transform)
        arguments = [_quoted(name) for name in self.columns] + ([] if self.size is None else [str(self.size)])
        return f"{self.transform}({', '.join(arguments)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionSpec:
    """How a table's rows map to regions. Lance's `ShardingSpec`.

    `number` rises with each reshard of the table. `spec_id` is the same if Lance's MemWAL index can store the spec (one
    field with `bucket`, `identity` or `unsharded`, on types that Lance hashes), and 0 if only our configuration stores
    it. Then the ids of the fields carry the number, so that two specs of a table never have a region in common
    (`common.layout.spec_number`).
    """

    spec_id: int
    fields: tuple[RegionField, ...]
    number: int = 1

    def describe(self) -> str:
        """Return the text form, which `parse_regions` parses to this spec."""
        return ", ".join(field.describe() for field in self.fields)

    def __str__(self) -> str:
        return self.describe()


def parse_regions(text: str | None, *, schema: TableSchema, number: int = 1) -> RegionSpec:
    """Parse the text form of a region spec. None, an empty text and `unsharded` mean a single region.

    Args:
        number: see `RegionSpec`.

    Raises:
        Invalid: the text is malformed, a transform is unknown, a source column is not a key column or has a type that
            the transform doesn't support, a number of buckets is outside 1..1024, or an expression is refused
            (`expression.analyze`).
    """
    stripped = (text or "").strip()
    if stripped in {"", Transform.UNSHARDED}:
        fields = [_field(Transform.UNSHARDED, columns=(), size=None, schema=schema)]
    else:
        fields = [_parsed(name, arguments_text, schema) for name, arguments_text in _calls(stripped)]
    return _spec(fields, schema, number)


def from_lance(spec: Mapping[str, Any], *, schema: TableSchema) -> RegionSpec:
    """Convert a spec of Lance's MemWAL index, as in `mem_wal_index_details()["sharding_specs"]`.

    Raises `Invalid` for a spec that Lance 14 can't have written.
    """
    names = {field_id(field): field.name for field in schema.columns}
    fields = []
    for found in spec["fields"]:
        try:
            columns = tuple(names[source] for source in found["source_ids"])
            transform = Transform(found["transform"])
            size = found["parameters"].get(_SIZE[transform]) if transform in _SIZE else None
            fields.append(_field(transform, columns=columns, size=None if size is None else int(size), schema=schema))
        except (KeyError, ValueError) as error:
            raise Invalid(
                f"Lance's region spec is not supported: {found}", remedy="Copy the rows to a new table"
            ) from error
    return _spec(fields, schema, max(1, int(spec["spec_id"])))


def to_json(spec: RegionSpec) -> dict[str, Any]:
    """Convert the spec to plain data for `config.json`, with Lance's names."""
    return {
        "spec_id": spec.spec_id,
        **({"number": spec.number} if spec.number > 1 else {}),
        "fields": [
            {
                "field_id": field.field_id,
                "columns": list(field.columns),
                "source_ids": list(field.source_ids),
                "transform": None if field.transform is None else str(field.transform),
                "expression": field.expression,
                "result_type": field.result_type,
                "parameters": field.parameters,
            }
            for field in spec.fields
        ],
    }


def from_json(document: Mapping[str, Any]) -> RegionSpec:
    """Convert data that `to_json` returned to a spec; raise `Invalid` for other data."""
    try:
        return RegionSpec(
            spec_id=int(document["spec_id"]),
            fields=tuple(_field_from_json(field) for field in document["fields"]),
            number=int(document.get("number", 1)),
        )
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise Invalid(
            f"the region spec of the table is not supported: {error!r}", remedy="Install a newer lancelsm"
        ) from error


def _field_from_json(document: Mapping[str, Any]) -> RegionField:
    transform = None if document["transform"] is None else Transform(document["transform"])
    return RegionField(
        field_id=_of_type(str, document["field_id"]),
        columns=tuple(_of_type(str, name) for name in document["columns"]),
        source_ids=tuple(_of_type(int, number) for number in document["source_ids"]),
        transform=transform,
        expression=None if document["expression"] is None else _of_type(str, document["expression"]),
        result_type=_of_type(str, document["result_type"]),
        size=int(document["parameters"][_SIZE[transform]]) if transform in _SIZE else None,
    )


def _of_type(kind: type[T], value: object) -> T:
    """Return a value of JSON; raise `TypeError` if it has another type."""
    if not isinstance(value, kind):
        raise TypeError(f"{value!r} is not of type {kind.__name__}")
    return value


def _calls(text: str) -> Iterator[tuple[str, str]]:
    """Yield name and arguments of each `name(arguments)`, respecting quotes and nested parentheses."""
    start = 0
    while True:
        match = _CALL.match(text, start)
        end = _closing(text, match.end()) if match else None
        if match is None or end is None:
            raise Invalid(
                f"regions {text!r}: no transform at {text[start:]!r}", remedy='Write for example "bucket(a, 4)"'
            )
        yield match[1], text[match.end() : end]
        rest = text[end + 1 :].lstrip()
        if not rest:
            return
        if not rest.startswith(","):
            raise Invalid(
                f"regions {text!r}: expected a comma before {rest!r}",
                remedy="Separate transforms by commas: bucket(a, 4), day(t)",
            )
        start = len(text) - len(rest) + 1


def _closing(text: str, start: int) -> int | None:
    """Return the index of the parenthesis that closes the one before `start`."""
    depth, quote = 1, ""
    for index in range(start, len(text)):
        mark = text[index]
        if quote:
            quote = "" if mark == quote else quote
        elif mark in "'\"":
            quote = mark
        elif mark in "()":
            depth += 1 if mark == "(" else -1
            if depth == 0:
                return index
    return None


def _parsed(name: str, arguments_text: str, schema: TableSchema) -> RegionField:
    if name == _EXPRESSION:
        return _expression(arguments_text.strip(), schema)
    if name not in set(Transform) - {Transform.UNSHARDED}:
        known = ", ".join([*sorted(set(Transform) - {Transform.UNSHARDED}), _EXPRESSION])
        raise Invalid(f"regions: unknown transform {name!r}", remedy=f"Use one of {known}, or unsharded alone")
    transform = Transform(name)
    arguments = _arguments(arguments_text, name)
    size = None
    if transform in _SIZE and arguments:
        last = arguments.pop()
        if not (last.isascii() and last.isdigit()):
            raise Invalid(
                f"regions: the last argument of {name} is its {_SIZE[transform]}, not {last!r}",
                remedy=f"Write for example {name}({', '.join([*arguments, last])}, 16)",
            )
        size = int(last)
    return _field(transform, columns=tuple(arguments), size=size, schema=schema)


def _arguments(arguments_text: str, name: str) -> list[str]:
    arguments, start, more = [], 0, True
    while more:
        match = _ARGUMENT.match(arguments_text, start)
        if match is None:
            raise Invalid(
                f"regions: the arguments of {name} are not a list of columns: {arguments_text!r}",
                remedy="Separate columns by commas: multi_bucket(a, b, 8)",
            )
        arguments.append(match[2] or match[1].replace('""', '"'))
        start, more = match.end(), match[3] == ","
    return arguments


def _field(transform: Transform, *, columns: tuple[str, ...], size: int | None, schema: TableSchema) -> RegionField:
    """Build a valid field. `_spec` gives it its final id."""
    wanted = {Transform.UNSHARDED: 0, Transform.MULTI_BUCKET: max(1, len(columns))}.get(transform, 1)
    if len(columns) != wanted or (transform in _SIZE) != (size is not None):
        raise Invalid(f"regions: {transform} doesn't support these arguments", remedy=f"See {__name__} for the forms")
    largest = (1 << 63) - 1 if transform == Transform.TRUNCATE else MAX_BUCKETS
    if size is not None and not 1 <= size <= largest:
        raise Invalid(f"regions: the {_SIZE[transform]} of {transform} is {size}", remedy=f"Use 1 to {largest}")
    sources = [_source(name, schema) for name in columns]
    for source in sources:
        if not _supports(transform, source.type):
            raise Invalid(
                f"regions: {transform} doesn't support a column of type {source.type}",
                remedy="Choose another column of the key, or identity(column)",
                field=source.name,
            )
    keeps_type = transform in {Transform.IDENTITY, Transform.TRUNCATE}
    return RegionField(
        field_id=str(transform),
        columns=columns,
        source_ids=tuple(field_id(source) for source in sources),
        transform=transform,
        expression=None,
        result_type=type_name(sources[0].type) if keeps_type else "int32",
        size=size,
    )


def _expression(sql: str, schema: TableSchema) -> RegionField:
    columns, kind = expression.analyze(sql, schema.key)
    return RegionField(
        field_id=_EXPRESSION,
        columns=columns,
        source_ids=tuple(field_id(schema.columns.field(name)) for name in columns),
        transform=None,
        expression=sql,
        result_type=type_name(kind),
        size=None,
    )


def _source(name: str, schema: TableSchema) -> pa.Field:
    if name not in schema.primary_key:
        raise Invalid(
            f"regions: {name!r} is not a key column, so one key could be in two regions",
            remedy=f"Use key columns: {', '.join(schema.primary_key)}",
            field=name,
        )
    return schema.columns.field(name)


def _supports(transform: Transform, kind: pa.DataType) -> bool:
    if transform in _CALENDAR:
        return bool(pt.is_date32(kind) or pt.is_timestamp(kind))
    if transform == Transform.TRUNCATE:
        return bool(pt.is_integer(kind) or _is_text(kind) or _is_binary(kind))
    return _hashed_by_lance(kind) or bool(pt.is_date32(kind) or pt.is_timestamp(kind))


def _spec(fields: list[RegionField], schema: TableSchema, number: int) -> RegionSpec:
    """Give the fields their ids: Lance's id if Lance can store the spec, else columns and transform."""
    found = _named(fields, schema)
    if found.spec_id:
        return replace(found, spec_id=number, number=number)
    own = tuple(replace(field, field_id=numbered_field(field.field_id, number)) for field in found.fields)
    return RegionSpec(spec_id=0, fields=own, number=number)


def _named(fields: list[RegionField], schema: TableSchema) -> RegionSpec:
    if len(fields) == 1 and fields[0].transform in _LANCE_TRANSFORMS:
        stored_by_lance = has_mem_wal_index(schema) and all(
            not _is_binary(schema.columns.field(name).type) for name in fields[0].columns
        )
        return RegionSpec(spec_id=int(stored_by_lance), fields=(replace(fields[0], field_id="bucket"),))
    named: list[RegionField] = []
    for field in fields:
        plain = "_".join([*field.columns, field.field_id])
        taken = {other.field_id for other in named}
        names = (plain if number == 1 else f"{plain}_{number}" for number in range(1, len(fields) + 1))
        named.append(replace(field, field_id=next(name for name in names if name not in taken)))
    return RegionSpec(spec_id=0, fields=tuple(named))


def has_mem_wal_index(schema: TableSchema) -> bool:
    """Return whether Lance 14 creates a MemWAL index for a table with such a key."""
    return all(_hashed_by_lance(field.type) for field in schema.key)


def _hashed_by_lance(kind: pa.DataType) -> bool:
    """Return whether Lance 14 supports this type in the primary key of a table with a MemWAL index."""
    return bool(pt.is_boolean(kind) or pt.is_integer(kind)) or _is_text(kind) or _is_binary(kind)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pt.is_string(kind) or pt.is_large_string(kind))


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pt.is_binary(kind) or pt.is_large_binary(kind))


def _quoted(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z_]\w*", name) else '"' + name.replace('"', '""') + '"'
