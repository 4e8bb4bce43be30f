"""Decode the manifest of a version of the base without Lance, for processes that look at a table and read no rows.

Lance decides what a manifest means. So this module decodes only what it is sure of, and everything else is left to
Lance: flags that it does not know, files in other locations, indexes over rows, extension types. Format: Lance 9 to 14;
tests/unit/test_base_manifest.py compares both decoders.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from google.protobuf.message import DecodeError

from lancelsm.generated.lance import table_pb2 as pb
from lancelsm.record.schema import PRIMARY_KEY, TableSchema
from lancelsm.record.schema_history import FIELD_ID, SchemaHistory, history_in

MEM_WAL_INDEX = "__lance_mem_wal"

_FOOTER = 16  # position of the manifest, format version, magic
_KNOWN_FLAGS = 0b1111  # deletion files, stable row ids, file format 2, table configuration
_STORAGE_VERSION = re.compile(r"2\.\d+")
_TOP = -1  # the parent of a column

_PLAIN = {
    "null": pa.null(),
    "bool": pa.bool_(),
    **{f"{sign}int{bits}": getattr(pa, f"{sign}int{bits}")() for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "halffloat": pa.float16(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "large_string": pa.large_string(),
    "binary": pa.binary(),
    "large_binary": pa.large_binary(),
    "date32:day": pa.date32(),
    "date64:ms": pa.date64(),
    **{f"time32:{unit}": pa.time32(unit) for unit in ("s", "ms")},
    **{f"time64:{unit}": pa.time64(unit) for unit in ("us", "ns")},
    **{f"duration:{unit}": pa.duration(unit) for unit in ("s", "ms", "us", "ns")},
}
_TIMESTAMP = re.compile(r"timestamp:(s|ms|us|ns):(.+)")
_DECIMAL = re.compile(r"decimal:(128|256):(\d+):(-?\d+)")
_BINARY = re.compile(r"fixed_size_binary:(\d+)")
_LIST = re.compile(r"fixed_size_list:(.+):(\d+)")
_DICTIONARY = re.compile(r"dict:(\w+):(\w+):false")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragment:
    """One fragment of a base; its rows have the addresses (id, 0) to (id, physical_rows - 1)."""

    id: int
    physical_rows: int
    deleted_rows: int

    @property
    def rows(self) -> int:
        return self.physical_rows - self.deleted_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestFile:
    """A data or deletion file of a version; see `statement.NamedFile`."""

    key: str
    rows: int
    bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseManifest:
    """What a manifest records. The version has no index over rows, and all its files are below the table.

    Args:
        mem_wal_index: the details of the MemWAL index in the form of Lance's `mem_wal_index_details()`.
    """

    version: int
    schema: TableSchema
    metadata: Mapping[str, str]
    fragments: tuple[Fragment, ...]
    files: tuple[ManifestFile, ...]
    data_storage_version: str
    mem_wal_index: Mapping[str, Any] | None


class _UnknownError(ValueError):
    """Only Lance can decode this."""


def decode_manifest(body: bytes) -> BaseManifest | None:
    """Decode a manifest; None if only Lance can decode it, or if it is damaged."""
    try:
        return _decoded(*split_manifest(body))
    except (DecodeError, struct.error, ValueError, pa.ArrowException):
        return None


def split_manifest(body: bytes) -> tuple[pb.Manifest, Sequence[pb.IndexMetadata]]:
    """Return the messages of a manifest. Raises `DecodeError`, `struct.error` or `ValueError` if it is damaged."""
    (position,) = struct.unpack("<q", body[-_FOOTER:-8])
    manifest = pb.Manifest.FromString(_message(body, position))
    if not manifest.HasField("index_section"):
        return manifest, ()
    return manifest, pb.IndexSection.FromString(_message(body, manifest.index_section)).indices


def _message(body: bytes, position: int) -> bytes:
    """Return the length-prefixed message at `position`."""
    (length,) = struct.unpack_from("<I", body, position)
    message = body[position + 4 : position + 4 + length]
    if position < 0 or len(message) != length:
        raise ValueError(f"{length} bytes at {position} exceed the file")
    return message


def _decoded(manifest: pb.Manifest, indexes: Sequence[pb.IndexMetadata]) -> BaseManifest:
    storage = manifest.data_format
    _require(not manifest.reader_feature_flags & ~_KNOWN_FLAGS)
    _require(not manifest.base_paths and not manifest.HasField("branch"))
    _require(storage.file_format == "lance" and _STORAGE_VERSION.fullmatch(storage.version) is not None)
    _require([index.name for index in indexes] in ([], [MEM_WAL_INDEX]))
    details = [pb.MemWalIndexDetails.FromString(index.index_details.value) for index in indexes]
    metadata = {name: value.decode() for name, value in manifest.schema_metadata.items()}
    return BaseManifest(
        version=manifest.version,
        schema=_schema(manifest.fields, history_in(metadata)),
        metadata=metadata,
        fragments=tuple(_fragment(one) for one in manifest.fragments),
        files=tuple(file for one in manifest.fragments for file in _files(one)),
        data_storage_version=storage.version,
        mem_wal_index=_details(details[0]) if details else None,
    )


def _require(known: bool) -> None:
    if not known:
        raise _UnknownError


def _fragment(fragment: pb.DataFragment) -> Fragment:
    _require(fragment.physical_rows > 0)  # older releases did not record it
    return Fragment(
        id=fragment.id, physical_rows=fragment.physical_rows, deleted_rows=fragment.deletion_file.num_deleted_rows
    )


def _files(fragment: pb.DataFragment) -> Iterable[ManifestFile]:
    for file in fragment.files:
        _require(not file.HasField("base_id"))
        yield ManifestFile(key=f"data/{file.path}", rows=fragment.physical_rows, bytes=file.file_size_bytes or None)
    if fragment.HasField("deletion_file"):
        hidden = fragment.deletion_file
        _require(hidden.num_deleted_rows > 0 and not hidden.HasField("base_id"))
        suffix = {pb.DeletionFile.ARROW_ARRAY: "arrow", pb.DeletionFile.BITMAP: "bin"}.get(hidden.file_type)
        _require(suffix is not None)
        key = f"_deletions/{fragment.id}-{hidden.read_version}-{hidden.id}.{suffix}"
        yield ManifestFile(key=key, rows=hidden.num_deleted_rows)


def _details(details: pb.MemWalIndexDetails) -> Mapping[str, Any]:
    return {
        "num_shards": details.num_shards,
        "maintained_indexes": list(details.maintained_indexes),
        "maintain_all_indexes": details.maintain_all_indexes,
        "writer_config_defaults": dict(details.writer_config_defaults),
        "sharding_specs": [
            {
                "spec_id": spec.spec_id,
                "fields": [
                    {
                        "field_id": field.field_id,
                        "source_ids": list(field.source_ids),
                        "transform": field.transform if field.HasField("transform") else None,
                        "expression": field.expression if field.HasField("expression") else None,
                        "result_type": field.result_type,
                        "parameters": dict(field.parameters),
                    }
                    for field in spec.fields
                ],
            }
            for spec in details.sharding_specs
        ],
    }


def _schema(fields: Sequence[pb.Field], history: SchemaHistory) -> TableSchema:
    inner: dict[int, list[pb.Field]] = {}
    for field in fields:
        _require(field.parent_id == _TOP or field.parent_id in inner)
        _require(field.id not in inner)
        inner[field.id] = []
        inner.setdefault(field.parent_id, []).append(field)
    key = {field.unenforced_primary_key_position: field for field in fields if field.unenforced_primary_key}
    # Releases that do not number the columns of a key, or do not store it in the field, have another order.
    _require(sorted(key) == list(range(1, len(key) + 1)))
    _require(all(field.parent_id == _TOP for field in key.values()))
    _require(
        len(key) == sum(field.unenforced_primary_key or PRIMARY_KEY.decode() in field.metadata for field in fields)
    )
    return TableSchema(
        columns=pa.schema([_arrow_field(field, inner) for field in inner.get(_TOP, ())]),
        primary_key=tuple(key[position].name for position in sorted(key)),
        history=history,
    )


def _arrow_field(field: pb.Field, inner: Mapping[int, Sequence[pb.Field]]) -> pa.Field:
    metadata = {name.encode(): value for name, value in field.metadata.items()}
    _require(not field.extension_name and b"ARROW:extension:name" not in metadata)
    kind = _type(field.logical_type, [_arrow_field(one, inner) for one in inner[field.id]])
    return pa.field(field.name, kind, field.nullable, {**metadata, FIELD_ID: str(field.id).encode()})


def _type(name: str, fields: Sequence[pa.Field]) -> pa.DataType:
    """Return the Arrow type of a logical type of Lance."""
    if not fields:
        return _leaf(name)
    if name == "struct":
        return pa.struct(fields)
    _require(len(fields) == 1)
    (only,) = fields
    if name in {"list", "list.struct"}:
        return pa.list_(only)
    if name in {"large_list", "large_list.struct"}:
        return pa.large_list(only)
    _require(name == "map" and pa.types.is_struct(only.type) and only.type.num_fields == 2)
    return pa.map_(only.type.field(0), only.type.field(1))


def _leaf(name: str) -> pa.DataType:
    if name in _PLAIN:
        return _PLAIN[name]
    if found := _TIMESTAMP.fullmatch(name):
        return pa.timestamp(found[1], None if found[2] == "-" else found[2])
    if found := _DECIMAL.fullmatch(name):
        return (pa.decimal128 if found[1] == "128" else pa.decimal256)(int(found[2]), int(found[3]))
    if found := _BINARY.fullmatch(name):
        return pa.binary(int(found[1]))
    if found := _LIST.fullmatch(name):
        return pa.list_(_leaf(found[1]), int(found[2]))
    if (found := _DICTIONARY.fullmatch(name)) and found[1] in _PLAIN and found[2] in _PLAIN:
        return pa.dictionary(_PLAIN[found[2]], _PLAIN[found[1]])
    raise _UnknownError
