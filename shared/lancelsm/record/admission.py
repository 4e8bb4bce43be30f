"""Decide which columns a table can have: those whose values every level, copy and file keeps exactly.

| type | as a column | in a struct, list or map | in a fixed_size_list |
|---|---|---|---|
| fixed width: bool, number, decimal128 and 256, date, time, timestamp, duration, fixed_size_binary | yes | yes | yes |
| text, binary | yes | yes | no |
| dictionary of text, binary, integers or bool; not ordered, with an index of at least 32 bits | yes | yes | no |
| struct, list, large_list, map | yes | yes | no |
| fixed_size_list | yes | yes | yes |
| null; extension types over the first two rows or a fixed_size_list, except arrow.json | yes | no | no |
| all other types | no | no | no |

A new table declares a dictionary with an index below 32 bits with int32, and a view of text, binary or a list as the
plain type (`declared`). A column is nested in at most 62 levels (`check_depth`). A fixed_size_list has at most 15,000
bools, or 1,875 if their number is not a multiple of 8. A field whose metadata makes Lance store it in another form,
such as a blob, is refused too. Files before version 2.2 have fewer types.
`tests/unit/test_values.py` checks all types of this table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from operator import mul
from typing import Final

import pyarrow as pa

from lancelsm.errors import Invalid

OLD_FILE_VERSIONS: Final = frozenset({"legacy", "0.1", "2.0"})

_WITHOUT_NULLS: Final = OLD_FILE_VERSIONS - {"2.0"}
_WITHOUT_MAPS: Final = OLD_FILE_VERSIONS | {"2.1"}
_FIXED: Final = (
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal128,
    pa.types.is_decimal256,
    pa.types.is_date,
    pa.types.is_time,
    pa.types.is_timestamp,
    pa.types.is_duration,
    pa.types.is_fixed_size_binary,
)
_BYTES: Final = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
_DICTIONARY_VALUES: Final = (*_BYTES, pa.types.is_integer, pa.types.is_boolean)
_NESTED: Final = (pa.types.is_struct, pa.types.is_map, pa.types.is_list, pa.types.is_large_list)
_EXTENSION: Final = b"ARROW:extension:name"
_JSON: Final = frozenset({"arrow.json", "lance.json"})
_STORED_OTHERWISE: Final = ("lance-encoding:blob", "lance-encoding:packed", "lance-encoding:structural-encoding")
_NEWER_FILES: Final = "Write the dataset again with data_storage_version 2.2 or newer"
MOST_LEVELS: Final = 62  # Arrow's C interface, by which Lance takes a schema, has 64 with the table and the leaf
_LISTS: Final[dict[Callable[[pa.DataType], bool], Callable[[pa.Field], pa.DataType]]] = {
    pa.types.is_list: pa.list_,
    pa.types.is_large_list: pa.large_list,
    pa.types.is_list_view: pa.list_view,
    pa.types.is_large_list_view: pa.large_list_view,
}
_CHUNK_BYTES: Final = 7_500  # Lance has 8,186 for bools, and pads each level


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a table can't have a column, and what to use instead. `path` names the column or a field inside it."""

    path: str
    why: str
    instead: str


@dataclass(frozen=True, slots=True)
class _Problem:
    path: str
    why: str
    remedy: str = ""  # if no other type helps


def check_columns(columns: pa.Schema, *, file_version: str = "") -> None:
    """Raise `Invalid` for the first column that a table can't have.

    Args:
        file_version: of the files of a base that exists; empty for a new table.
    """
    for column in columns:
        refused = refusal(column, file_version=file_version)
        if refused is not None:
            inside = "" if refused.path == column.name else f", {refused.path!r}"
            what = f"a table can't have column {column.name!r} of type {column.type}{inside}: {refused.why}"
            raise Invalid(what, remedy=refused.instead, field=column.name)


def refusal(column: pa.Field, *, file_version: str = "") -> Refusal | None:
    """Return why a table can't have this column, or None if it can; see `check_columns` for `file_version`."""
    problem = next(_of_column(column, file_version), None)
    if problem is None:
        return None
    return Refusal(path=problem.path, why=problem.why, instead=problem.remedy or f"Use {_nearest(column.type)}")


def check_depth(columns: pa.Schema) -> None:
    """Raise `Invalid` for the first column that is nested too deeply for Lance."""
    for column in columns:
        kinds = [column.type]
        for _ in range(MOST_LEVELS):
            kinds = [kind.field(i).type for kind in map(_storage, kinds) for i in range(kind.num_fields)]
        if any(kind.num_fields for kind in map(_storage, kinds)):
            raise Invalid(
                f"column {column.name!r} is nested in more than {MOST_LEVELS} levels",
                remedy="Store the value as text, or in several columns",
                field=column.name,
            )


def declared(columns: pa.Schema) -> pa.Schema:
    """Return the columns that a new table declares: dictionaries with an index of at least 32 bits, plain types instead
    of views, and maps as Lance names their fields. Values stay equal.

    Lance writes all values of a file into one dictionary, whatever the width of the index, and can't read the file
    if there are more than the index counts.
    """
    return pa.schema([column.with_type(declared_type(column.type)) for column in columns], metadata=columns.metadata)


def is_any(kind: pa.DataType, kinds: Iterable[Callable[[pa.DataType], bool]]) -> bool:
    """Return whether one of the predicates holds for the type."""
    return any(is_kind(kind) for is_kind in kinds)


def children(kind: pa.DataType) -> list[pa.Field]:
    """Return the fields of a nested type: of a struct all, of a list its items, of a map keys and values."""
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    return [kind.field(i) for i in range(kind.num_fields)] if pa.types.is_nested(kind) else []


def with_children(kind: pa.DataType, change: Callable[[pa.Field], pa.Field]) -> pa.DataType:
    """Return a nested type with its fields changed, in the order of `children`; another type unchanged."""
    inner = children(kind)
    if pa.types.is_struct(kind):
        return pa.struct([change(field) for field in inner])
    if pa.types.is_map(kind):
        return pa.map_(*map(change, inner), kind.keys_sorted)
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(change(inner[0]), kind.list_size)
    make = next((make for is_kind, make in _LISTS.items() if is_kind(kind)), None)
    return kind if make is None else make(change(inner[0]))


def declared_type(kind: pa.DataType) -> pa.DataType:
    """Return the type that a new table declares for this one: see `declared`."""
    if pa.types.is_dictionary(kind):
        index = kind.index_type if kind.index_type.bit_width >= 32 else pa.int32()
        return pa.dictionary(index, declared_type(kind.value_type), kind.ordered)
    if pa.types.is_map(kind):
        kind = pa.map_(kind.key_field.with_name("key"), kind.item_field.with_name("value"), kind.keys_sorted)
    return with_children(_without_view(kind), lambda field: field.with_type(declared_type(field.type)))


def _without_view(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_list_view(kind):
        return pa.list_(kind.value_field)
    if pa.types.is_large_list_view(kind):
        return pa.large_list(kind.value_field)
    return {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}.get(kind, kind)


def _of_column(column: pa.Field, file_version: str) -> Iterator[_Problem]:
    kind, path = column.type, column.name
    if file_version in _WITHOUT_NULLS:
        yield _Problem(path, f"files of version {file_version} lose nulls and empty text", _NEWER_FILES)
    elif isinstance(kind, pa.BaseExtensionType):
        yield from _of_metadata(column, path)
        storage = kind.storage_type
        if not (is_any(storage, _FIXED + _BYTES) or pa.types.is_fixed_size_list(storage)):
            yield _Problem(path, f"an extension type over {storage} can't be read")
        yield from _of_type(column.with_type(storage), path, file_version)
    elif pa.types.is_null(kind):
        yield from _of_metadata(column, path)
    else:
        yield from _of_field(column, path, file_version)


def _of_inner(field: pa.Field, path: str, file_version: str) -> Iterator[_Problem]:
    """Problems of a field inside another type."""
    if pa.types.is_null(field.type):
        remedy = "Use the type that its values will have"
        yield _Problem(path, "the type null inside another type can't be read", remedy)
    elif _extension(field):
        remedy = "" if isinstance(field.type, pa.BaseExtensionType) else f"Remove the metadata {_EXTENSION.decode()}"
        yield _Problem(path, "an extension type inside another type can't be read", remedy)
    else:
        yield from _of_field(field, path, file_version)


def _of_field(field: pa.Field, path: str, file_version: str) -> Iterator[_Problem]:
    yield from _of_metadata(field, path)
    yield from _of_type(field, path, file_version)


def _of_metadata(field: pa.Field, path: str) -> Iterator[_Problem]:
    if _extension(field) in _JSON:
        yield _Problem(path, "Lance changes JSON, and can't store all of it", "Use string")
    for key in (key.decode(errors="replace") for key in field.metadata or {}):
        if key.startswith(_STORED_OTHERWISE):
            yield _Problem(path, f"its metadata {key} changes what Lance stores", "Remove the metadata")
    if _extension(field).startswith("lance.blob"):
        yield _Problem(path, "Lance stores a blob outside of its files", "Use large_binary")


def _of_type(field: pa.Field, path: str, file_version: str) -> Iterator[_Problem]:
    kind = field.type
    if is_any(kind, _FIXED + _BYTES):
        return
    if pa.types.is_dictionary(kind):
        yield from _of_dictionary(kind, path)
    elif pa.types.is_fixed_size_list(kind):
        yield from _of_fixed_size_list(kind, path)
    elif is_any(kind, _NESTED):
        if pa.types.is_struct(kind):
            yield from _of_struct(field, path, file_version)
        elif pa.types.is_map(kind):
            yield from _of_map(kind, path, file_version)
        for inner in children(kind):
            yield from _of_inner(inner, f"{path}.{inner.name}", file_version)
    else:
        remedy = (
            "" if _nearest(kind) != kind else "Use a type that Lance has, such as int64, string or a struct of these"
        )
        yield _Problem(path, f"Lance has no type {kind}", remedy)


def _of_struct(field: pa.Field, path: str, file_version: str) -> Iterator[_Problem]:
    names = Counter(inner.name for inner in field.type)
    if not names:
        yield _Problem(path, "Lance can't read a struct without fields", "Give it a field")
    if twice := [name for name, times in names.items() if times > 1]:
        yield _Problem(path, f"it has the field {twice[0]!r} twice", "Give each field its own name")
    if field.nullable and file_version in OLD_FILE_VERSIONS:
        yield _Problem(path, f"files of version {file_version} have no null structs", _NEWER_FILES)


def _of_map(kind: pa.MapType, path: str, file_version: str) -> Iterator[_Problem]:
    if file_version in _WITHOUT_MAPS:
        yield _Problem(path, f"files of version {file_version} have no maps", _NEWER_FILES)
    if kind.keys_sorted:
        yield _Problem(path, "Lance has no maps with sorted keys")


def _of_dictionary(kind: pa.DictionaryType, path: str) -> Iterator[_Problem]:
    if not is_any(kind.value_type, _DICTIONARY_VALUES):
        yield _Problem(path, f"Lance can't store every dictionary of {kind.value_type}")
    if kind.ordered:
        yield _Problem(path, "Lance loses the order of a dictionary")
    if kind.index_type.bit_width < 32:
        yield _Problem(path, f"Lance can't read a file with more values than {kind.index_type} counts")


def _of_fixed_size_list(kind: pa.FixedSizeListType, path: str) -> Iterator[_Problem]:
    sizes, item = [], kind
    while pa.types.is_fixed_size_list(item):
        field = item.value_field
        sizes.append(item.list_size)
        item, path = field.type, f"{path}.{field.name}"
        if not field.nullable:
            yield _Problem(path, "Lance forgets that the items of a fixed_size_list must not be null")
        if _extension(field) and not isinstance(item, pa.BaseExtensionType):
            remedy = f"Remove the metadata {_EXTENSION.decode()}"
            yield _Problem(path, "an extension type inside another type can't be read", remedy)
        yield from _of_metadata(field, path)
    if 0 in sizes:
        yield _Problem(path, "Lance can't read a fixed_size_list of size 0")
    if not is_any(item, _FIXED) or item == pa.binary(0):
        remedy = "Use the type that its values will have" if pa.types.is_null(item) else ""
        yield _Problem(path, f"Lance can't store a fixed_size_list of {item}", remedy)
    if pa.types.is_boolean(item) and _bool_bytes(sizes) > _CHUNK_BYTES:
        why = f"Lance can't store {prod(sizes)} bools in a value: 15,000 at most, or 1,875 if they fill no whole byte"
        yield _Problem(path, why)


def _bool_bytes(sizes: list[int]) -> int:
    """Return the bytes that Lance needs for the fewest values of a fixed_size_list of bools that it stores together."""
    items = list(accumulate(sizes, mul))  # of each level; each has a bit that says whether it is null
    values = 16 if items[-1] % 8 else 2  # so that they end with a whole byte
    return int(values * (items[-1] + sum(items)) // 8)


def _nearest(kind: pa.DataType) -> pa.DataType:
    """Return a type that a table can have and that has room for the same values; the same type if there is none."""
    if isinstance(kind, pa.BaseExtensionType):
        return pa.string() if kind.extension_name in _JSON else _nearest(kind.storage_type)
    if isinstance(kind, pa.Decimal32Type | pa.Decimal64Type):
        return pa.decimal128(kind.precision, kind.scale)
    if pa.types.is_run_end_encoded(kind):
        return _nearest(kind.value_type)
    if pa.types.is_dictionary(kind):
        if not is_any(kind.value_type, _DICTIONARY_VALUES):
            return _nearest(kind.value_type)
        return declared_type(pa.dictionary(kind.index_type, kind.value_type))
    if pa.types.is_fixed_size_list(kind):
        item = kind.value_field.with_nullable(True).with_type(_nearest(kind.value_type))
        fixed = pa.list_(item, kind.list_size)
        return fixed if next(_of_fixed_size_list(fixed, ""), None) is None else pa.list_(item)
    if pa.types.is_map(kind):
        kind = pa.map_(kind.key_field, kind.item_field)
    return with_children(_without_view(kind), lambda field: field.with_type(_nearest(field.type)))


def _extension(field: pa.Field) -> str:
    """Return the name of the extension type of a field; empty if it has none. A process may not know the type."""
    if isinstance(field.type, pa.BaseExtensionType):
        return str(field.type.extension_name)
    name: bytes = (field.metadata or {}).get(_EXTENSION, b"")
    return name.decode(errors="replace")


def _storage(kind: pa.DataType) -> pa.DataType:
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
