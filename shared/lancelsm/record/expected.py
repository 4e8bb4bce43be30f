"""Say in words which values a type has, for the remedy of an error."""

from __future__ import annotations

import pyarrow as pa

_UNITS = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}


def expected(kind: pa.DataType) -> str:
    """Return what a column of this type accepts, as the object of a sentence."""
    if isinstance(kind, pa.BaseExtensionType):
        return "True or False" if kind == pa.bool8() else expected(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return expected(kind.value_type)
    if pa.types.is_integer(kind):
        signed = pa.types.is_signed_integer(kind)
        most = (1 << (kind.bit_width - signed)) - 1
        return f"integers from {-most - 1 if signed else 0} to {most}"
    if pa.types.is_floating(kind):
        return f"floats in the range of {kind}, or integers that it has exactly"
    if pa.types.is_decimal(kind):
        return f"integers or Decimals of at most {kind.precision} digits, in multiples of 10**{-kind.scale}"
    if pa.types.is_timestamp(kind):
        return f"datetimes {'with' if kind.tz else 'without'} a time zone, in whole {_UNITS[kind.unit]}"
    if pa.types.is_time(kind):
        return f"times of day without a time zone, in whole {_UNITS[kind.unit]}"
    if pa.types.is_duration(kind):
        return f"timedeltas in whole {_UNITS[kind.unit]}"
    if pa.types.is_fixed_size_binary(kind):
        return f"bytes of length {kind.byte_width}"
    return _expected_nested(kind) if pa.types.is_nested(kind) else _expected_flat(kind)


def expected_in_json(kind: pa.DataType) -> str:
    """Return what a column of this type accepts from JSON, as the object of a sentence."""
    if pa.types.is_date(kind):
        return "text like 2026-11-30"
    if pa.types.is_timestamp(kind):
        return f"text like 2026-11-30T12:00:00{'Z' if kind.tz else ''}, in whole {_UNITS[kind.unit]}"
    if pa.types.is_time(kind):
        return f"text like 12:30:00, in whole {_UNITS[kind.unit]}"
    if pa.types.is_duration(kind):
        return f"a whole number of {_UNITS[kind.unit]}"
    if pa.types.is_decimal(kind):
        return f"numbers, or text, of at most {kind.precision} digits, in multiples of 10**{-kind.scale}"
    is_binary = pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)
    return f"{expected(kind)} in base64" if is_binary else expected(kind)


def _expected_nested(kind: pa.DataType) -> str:
    if pa.types.is_struct(kind):
        return f"dicts with the fields {', '.join(field.name for field in kind)}"
    if pa.types.is_map(kind):
        return f"maps from {expected(kind.key_type)} to {expected(kind.item_type)}"
    if pa.types.is_fixed_size_list(kind):
        return f"lists of {kind.list_size} items: {expected(kind.value_type)}"
    return f"lists of {expected(kind.value_type)}"


def _expected_flat(kind: pa.DataType) -> str:
    if pa.types.is_boolean(kind):
        return "True or False"
    if pa.types.is_date(kind):
        return "dates"
    if pa.types.is_null(kind):
        return "None, or use a table with another type"
    return "text in UTF-8" if pa.types.is_string(kind) or pa.types.is_large_string(kind) else "bytes"
