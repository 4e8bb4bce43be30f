"""Decode values of Kafka Connect's JSON as Debezium writes it, to the form that JSON rows have.

With the envelope {schema, payload}, the schema names the encoding of each value. Without it, a value whose encoding is
not known, such as a number for a timestamp, is refused: it could be in any unit.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import cache
from typing import Any, Final

import pyarrow as pa

from lancelsm.common.error_text import shown
from lancelsm.errors import Invalid

Field = Mapping[str, Any]
"""A field in a schema of Connect: field, type, name, parameters, fields."""

NOT_DECODED: Final = (ValueError, TypeError, KeyError, OverflowError, ArithmeticError)  # what decoders raise
_WHOLE: Final = re.compile(r"-?[0-9]{1,20}")
_MOST_SCALE: Final = 1000  # far more digits than a decimal of Arrow has
_EPOCH: Final = dt.date(1970, 1, 1)
_PER_SECOND: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_UNITS_OF_TIMESTAMPS: Final = {
    "io.debezium.time.Timestamp": "ms",
    "io.debezium.time.MicroTimestamp": "us",
    "io.debezium.time.NanoTimestamp": "ns",
    "org.apache.kafka.connect.data.Timestamp": "ms",
}
_UNITS_OF_SOURCE: Final = {"ts_ms": "ms", "ts_us": "us", "ts_ns": "ns"}
_UNITS_OF_TIMES: Final = {
    "io.debezium.time.Time": "ms",
    "io.debezium.time.MicroTime": "us",
    "io.debezium.time.NanoTime": "ns",
    "org.apache.kafka.connect.data.Time": "ms",
}
_DATES: Final = frozenset({"io.debezium.time.Date", "org.apache.kafka.connect.data.Date"})
# Of time.precision.mode=isostring, and of a time with a zone, which Debezium converts to UTC.
_ISO_TEXTS: Final = tuple(f"io.debezium.time.{name}" for name in ("IsoDate", "IsoTime", "IsoTimestamp", "ZonedTime"))
_DECIMAL, _VARIABLE = "org.apache.kafka.connect.data.Decimal", "io.debezium.data.VariableScaleDecimal"
_DURATION, _NANO_DURATION = "io.debezium.time.MicroDuration", "io.debezium.time.NanoDuration"


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A message of Kafka without its envelopes. `value` is None for a tombstone."""

    value: Any
    key: Any = None
    fields: Sequence[Field] = ()
    key_fields: Sequence[Field] = ()

    def inner_fields(self, name: str) -> Sequence[Field]:
        """Return the fields of a struct in the value; empty if they are not known.

        Raises:
            Invalid: they are not fields.
        """
        return _fields_of(next((one for one in self.fields if one["field"] == name), {}))


def opened(event: Any) -> Opened:
    """Open the envelopes of an event: {"key", "value"} of a message, and {"schema", "payload"} of each.

    Raises:
        Invalid: an envelope is not an object.
    """
    key: Any = None
    key_fields: Sequence[Field] = ()
    if isinstance(event, Mapping) and "value" in event and "op" not in event and set(event) <= _PARTS_OF_MESSAGE:
        key, key_fields = _payload(event.get("key"))
        event = event["value"]
    value, fields = _payload(event)
    return Opened(value=value, key=key, fields=fields, key_fields=key_fields)


_PARTS_OF_MESSAGE: Final = frozenset({"key", "value", "topic", "partition", "offset", "timestamp", "headers"})


def _payload(document: Any) -> tuple[Any, Sequence[Field]]:
    if not isinstance(document, Mapping) or set(document) != {"schema", "payload"}:
        return document, ()
    return document["payload"], _fields_of(document["schema"] or {})


def _fields_of(schema: Any) -> Sequence[Field]:
    fields = schema.get("fields", []) if isinstance(schema, Mapping) else None
    if not isinstance(fields, list) or not all(
        [type(one) is dict and type(one.get("field")) is str for one in fields]  # noqa: C419 - faster
    ):
        raise Invalid(
            "the schema of the event is not one of Kafka Connect",
            remedy="Write the events with Kafka Connect's JSON converter",
            field="schema",
        )
    return fields


def decoded(row: Mapping[str, Any], kinds: Mapping[str, pa.DataType], *, fields: Sequence[Field]) -> dict[str, Any]:
    """Decode the values of a row for columns of these types by name; other values stay.

    Raises:
        Invalid: the encoding of a value is not known, or the value is not one of its encoding.
    """
    encodings = {field["field"]: field for field in fields}
    found = dict(row)
    for name, value in row.items():
        kind, field = kinds.get(name), encodings.get(name)
        has_no_encoding = field is None or field.get("name") is None
        if value is None or kind is None or (has_no_encoding and _is_plain(kind)):
            continue
        try:
            found[name] = _value(value, kind, field)
        except NOT_DECODED as error:
            raise not_decoded(name, value, error) from error
    return found


def not_decoded(name: str, value: object, error: Exception) -> Invalid:
    """Build the error for a value that is not one of its encoding, or does not fit its column."""
    return Invalid(
        f"column {name!r} can't take {shown(value)}: {error}",
        remedy="Check the types of the source and of the table",
        redacted=f"column {name!r} can't take the value of its encoding",
        field=name,
    )


@cache
def _is_plain(kind: pa.DataType) -> bool:
    """Return whether values of a column are the same in every encoding that has no schema."""
    encoded = (
        pa.types.is_integer,
        pa.types.is_boolean,
        pa.types.is_decimal,
        pa.types.is_temporal,
        pa.types.is_list,
        pa.types.is_large_list,
        pa.types.is_fixed_size_list,
        pa.types.is_struct,
    )
    return not any(is_kind(kind) for is_kind in encoded)


def _value(value: Any, kind: pa.DataType, field: Field | None) -> Any:
    if value is None:
        return None
    if hasattr(kind, "value_field") and isinstance(value, list):
        if pa.types.is_floating(kind.value_type):
            return value  # a vector
        items = None if field is None else field.get("items")
        if items is not None and not isinstance(items, Mapping):
            raise TypeError("the schema of its items is not one of Kafka Connect")
        return [_value(one, kind.value_type, items) for one in value]
    if pa.types.is_struct(kind) and isinstance(value, Mapping):
        fields = {one["field"]: one for one in _fields_of(field or {})}
        known = {one.name: one.type for one in kind}
        return {
            name: _value(one, known[name], fields.get(name)) if name in known else one for name, one in value.items()
        }
    return as_number(_plain_value(value, kind, field), kind)


def _plain_value(value: Any, kind: pa.DataType, field: Field | None) -> Any:
    if isinstance(value, dict) and set(value) == {"scale", "value"} and not pa.types.is_nested(kind):
        return _variable_decimal(value, kind, {})
    if field is None:
        return _without_schema(value, kind)
    decode = _DECODE.get(str(field.get("name")))
    return _with_unit(value, kind) if decode is None else decode(value, kind, field)


def as_number(value: Any, kind: pa.DataType) -> Any:
    """Convert digits in text (Oracle's SCN), 0 and 1 for a boolean, a double for a decimal; else return the value."""
    if isinstance(value, str) and pa.types.is_integer(kind) and _WHOLE.fullmatch(value):
        return int(value)
    if type(value) is int and value in (0, 1) and pa.types.is_boolean(kind):
        return bool(value)
    if isinstance(value, float) and pa.types.is_decimal(kind):
        return format(Decimal(repr(value)), "f")  # decimal.handling.mode=double
    return value


def time_of_source(name: str, value: Any, kind: pa.DataType) -> Any:
    """Return a field of `source` such as ts_ms for a column of timestamps; other values stay."""
    unit = _UNITS_OF_SOURCE.get(name.rpartition(".")[2])
    return value if unit is None or type(value) is not int else _timestamp(unit)(value, kind, {})


def timestamp_of(value: int, unit: str, kind: pa.DataType) -> Any:
    """Return a time since 1970 as ISO text for a column of timestamps; else the number."""
    return _timestamp(unit)(value, kind, {})


def _without_schema(value: Any, kind: pa.DataType) -> Any:
    if isinstance(value, int) and not isinstance(value, bool) and pa.types.is_date(kind):
        return _date(value, kind, {})
    if pa.types.is_decimal(kind) and isinstance(value, str):
        try:
            Decimal(value)
        except InvalidOperation:
            raise ValueError("set schemas.enable=true or decimal.handling.mode=string in the connector") from None
    return _with_unit(value, kind)


def _with_unit(value: Any, kind: pa.DataType) -> Any:
    """Return the value; raise `ValueError` for a number in a column of times."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if is_number and (pa.types.is_timestamp(kind) or pa.types.is_time(kind) or pa.types.is_duration(kind)):
        raise ValueError("a number has no unit; set schemas.enable=true in the connector, or send text")
    return value


def _of_utc(value: Any, kind: pa.DataType, _: Field) -> Any:
    """Return text of ISO 8601 without the zone of UTC, which a date, a time or a naive timestamp does not have."""
    has_no_zone = pa.types.is_date(kind) or pa.types.is_time(kind) or (pa.types.is_timestamp(kind) and not kind.tz)
    return value.removesuffix("Z") if isinstance(value, str) and has_no_zone else value


def _date(value: Any, kind: pa.DataType, _: Field) -> Any:
    if pa.types.is_integer(kind):
        return value
    day = (_EPOCH + dt.timedelta(days=_whole(value))).isoformat()
    if pa.types.is_timestamp(kind):
        return f"{day}T00:00:00" + ("Z" if kind.tz else "")
    return day


def _timestamp(unit: str) -> Callable[[Any, pa.DataType, Field], Any]:
    def decode(value: Any, kind: pa.DataType, _: Field) -> Any:
        if pa.types.is_duration(kind):
            raise ValueError("it is a timestamp, not a duration")
        if not pa.types.is_timestamp(kind):
            return value
        seconds, rest = divmod(_whole(value), _PER_SECOND[unit])
        moment = dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(seconds=seconds)
        return moment.strftime("%Y-%m-%dT%H:%M:%S").rjust(19, "0") + _fraction(rest, unit) + ("Z" if kind.tz else "")

    return decode


def _time(unit: str) -> Callable[[Any, pa.DataType, Field], Any]:
    def decode(value: Any, kind: pa.DataType, field: Field) -> Any:
        if pa.types.is_duration(kind):  # MySQL's TIME may be negative, or longer than a day
            return _duration(unit)(value, kind, field)
        if not pa.types.is_time(kind):
            return value
        seconds, rest = divmod(_whole(value), _PER_SECOND[unit])
        hours, minutes = divmod(seconds // 60, 60)
        return f"{hours:02}:{minutes:02}:{seconds % 60:02}{_fraction(rest, unit)}"

    return decode


def _whole(value: Any) -> int:
    """Return a number of days or of a unit; a fraction or a flag is not taken for a number nearby."""
    is_whole = type(value) is int or (isinstance(value, float) and value.is_integer())
    if not is_whole and not (isinstance(value, str) and _WHOLE.fullmatch(value)):
        raise ValueError("it is no whole number")
    return int(value)


def _fraction(rest: int, unit: str) -> str:
    digits = str(rest).zfill(len(str(_PER_SECOND[unit])) - 1).rstrip("0")
    return f".{digits}" if rest else ""


def _connect_decimal(value: Any, kind: pa.DataType, field: Field) -> Any:
    if not isinstance(value, str):
        return value
    found = _decimal(value, int((field.get("parameters") or {})["scale"]))
    if pa.types.is_decimal(kind) and "." in found:
        found = found.rstrip("0").rstrip(".")  # a number of PostgreSQL may have far more zeros than Arrow has digits
    return int(Decimal(found)) if pa.types.is_integer(kind) and Decimal(found) == int(Decimal(found)) else found


def _variable_decimal(value: Any, kind: pa.DataType, _: Field) -> Any:
    scale, digits = int(value["scale"]), value["value"]
    return _connect_decimal(digits, kind, {"parameters": {"scale": scale}})


def _decimal(value: Any, scale: int) -> str:
    try:
        if abs(scale) > _MOST_SCALE:
            raise ValueError(f"its scale is {scale}")
        digits = base64.b64decode(value, validate=True)
        if not digits:
            raise ValueError("it has no bytes")
        unscaled = int.from_bytes(digits, "big", signed=True)
    except binascii.Error as error:
        raise ValueError(f"it is no base64 ({error})") from error
    return format(Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -scale)), "f")


def _duration(unit: str) -> Callable[[Any, pa.DataType, Field], Any]:
    def decode(value: Any, kind: pa.DataType, _: Field) -> Any:
        if not pa.types.is_duration(kind):
            return value
        whole, rest = divmod(_whole(value) * _PER_SECOND[kind.unit], _PER_SECOND[unit])
        if rest:
            raise ValueError(f"the column counts {kind.unit} only")
        return whole

    return decode


_DECODE: Final[Mapping[str, Callable[[Any, pa.DataType, Field], Any]]] = {
    **dict.fromkeys(_DATES, _date),
    **dict.fromkeys(_ISO_TEXTS, _of_utc),
    **{name: _timestamp(unit) for name, unit in _UNITS_OF_TIMESTAMPS.items()},
    **{name: _time(unit) for name, unit in _UNITS_OF_TIMES.items()},
    _DECIMAL: _connect_decimal,
    _VARIABLE: _variable_decimal,
    _DURATION: _duration("us"),
    _NANO_DURATION: _duration("ns"),
}
