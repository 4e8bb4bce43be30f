"""Decode documents of Debezium's connector for MongoDB: text with the extended JSON of MongoDB."""

from __future__ import annotations

import base64
import json
import math
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final

import pyarrow as pa

from lancelsm.common.error_text import shown
from lancelsm.common.json_text import parse_json
from lancelsm.errors import Invalid
from lancelsm.read.transact.debezium import NOT_DECODED, not_decoded, timestamp_of

KEY: Final = "_id"
_FULL: Final = (
    "Set capture.mode to change_streams_update_full, or flatten the events with ExtractNewDocumentState and give "
    "format='flattened'"
)
_UUIDS: Final = ("03", "04", 3, 4)  # subtypes of binary values


def document_of(text: str, kinds: Mapping[str, pa.DataType], *, side: str) -> dict[str, Any]:
    """Return the fields of a document as JSON rows have them, for columns of these types by name.

    Raises:
        Invalid: it is no document, or a value is not one of its encoding.
    """
    found = _parsed(text, side)
    if not isinstance(found, dict):
        raise Invalid(f"{side} has no document, but {shown(found)}", remedy="Check the format", field=side)
    return {name: _value(value, kinds.get(name), name) for name, value in found.items()}


def key_of(key: Mapping[str, Any], kinds: Mapping[str, pa.DataType]) -> dict[str, Any]:
    """Return the key of a document from the key of its message."""
    if not isinstance(text := key.get("id"), str):
        return {}
    return {KEY: _value(_parsed(text, "id"), kinds.get(KEY), KEY)}


def updated(description: Any, kinds: Mapping[str, pa.DataType]) -> tuple[dict[str, Any], frozenset[str]]:
    """Return the fields that an update sets, and the columns that keep their values.

    Raises:
        Invalid: the event does not say what it sets, or it changes a part of a field.
    """
    if not isinstance(description, Mapping) or not isinstance(description.get("updatedFields") or "", str):
        raise Invalid("the update has neither a document in after nor its changes", remedy=_FULL, field="after")
    values = document_of(description.get("updatedFields") or "{}", kinds, side="updatedFields")
    removed = description.get("removedFields") or ()
    truncated = description.get("truncatedArrays") or ()
    names = [*values, *removed] if isinstance(removed, list | tuple) else [removed, None]
    parts = [name for name in names if not isinstance(name, str) or "." in name]
    if parts or truncated:
        part = parts[0] if parts else truncated
        raise Invalid(f"the update changes a part of a field, {shown(part)}", remedy=_FULL, field="updateDescription")
    found = {**dict.fromkeys(removed), **values}
    return found, frozenset(kinds) - frozenset(found)


def _parsed(text: str, side: str) -> Any:
    try:
        return parse_json(text)
    except ValueError as error:
        raise Invalid(f"{side} is no JSON: {error}", remedy="Check the format", field=side) from error


def _value(value: Any, kind: pa.DataType | None, name: str) -> Any:
    if kind is None:
        return value
    try:
        return _decoded(value, kind)
    except NOT_DECODED as error:
        raise not_decoded(name, value, error) from error


def _decoded(value: Any, kind: pa.DataType) -> Any:
    if isinstance(value, dict):
        for mark, decode in _EXTENDED.items():
            if mark in value:
                return decode(value, kind)
    if isinstance(value, dict | list) and (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, dict) and pa.types.is_struct(kind):
        known = {field.name: field.type for field in kind}
        return {name: _decoded(one, known[name]) if name in known else one for name, one in value.items()}
    if isinstance(value, list) and hasattr(kind, "value_field"):
        return [_decoded(one, kind.value_type) for one in value]
    return value


def _date(value: Mapping[str, Any], kind: pa.DataType) -> Any:
    given = value["$date"]
    milliseconds = int(given["$numberLong"]) if isinstance(given, dict) else given
    if not isinstance(milliseconds, int) or pa.types.is_integer(kind):
        return milliseconds
    moment = timestamp_of(milliseconds, "ms", kind if pa.types.is_timestamp(kind) else pa.timestamp("ms", "UTC"))
    return moment[:10] if pa.types.is_date(kind) else moment


def _binary(value: Mapping[str, Any], kind: pa.DataType) -> Any:
    given = value["$binary"]
    text, subtype = (given["base64"], given["subType"]) if isinstance(given, dict) else (given, value.get("$type"))
    if subtype in _UUIDS and not (pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind)):
        return str(uuid.UUID(bytes=base64.b64decode(text, validate=True)))
    return text


def _double(value: Mapping[str, Any], _: pa.DataType) -> Any:
    text = value["$numberDouble"]
    return float(text) if math.isfinite(float(text)) else text


_EXTENDED: Final[Mapping[str, Callable[[Mapping[str, Any], pa.DataType], Any]]] = {
    "$oid": lambda value, _: value["$oid"],
    "$uuid": lambda value, _: value["$uuid"],
    "$numberInt": lambda value, _: int(value["$numberInt"]),
    "$numberLong": lambda value, _: int(value["$numberLong"]),
    "$numberDecimal": lambda value, _: value["$numberDecimal"],
    "$numberDouble": _double,
    "$date": _date,
    "$binary": _binary,
    "$timestamp": lambda value, kind: timestamp_of(value["$timestamp"]["t"], "s", kind),
}
