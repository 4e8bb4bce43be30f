"""Write values as literals of Lance's SQL, exactly. Lance converts few literals to the type of a column itself."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

_UNITS: Final = {"s": "Second", "ms": "Millisecond", "us": "Microsecond", "ns": "Nanosecond"}


def literals(values: pa.Array | pa.ChunkedArray) -> list[str]:
    """Return each value as SQL: of a boolean, number, text, binary or temporal type, and not null."""
    kind = values.type
    if pa.types.is_boolean(kind):
        return ["true" if value else "false" for value in values.to_pylist()]
    if pa.types.is_integer(kind):
        return [_integer(value) for value in values.to_pylist()]
    if pa.types.is_floating(kind):
        name = f"Float{kind.bit_width}"
        return [f"arrow_cast('{value}', '{name}')" for value in values.cast(pa.float64()).to_pylist()]
    if pa.types.is_decimal(kind):
        name = f"Decimal{kind.bit_width}({kind.precision}, {kind.scale})"
        return [f"arrow_cast('{value:f}', '{name}')" for value in values.to_pylist()]
    if pa.types.is_temporal(kind):
        number, name = pa.int32() if kind.bit_width == 32 else pa.int64(), _temporal(kind)
        return [
            f"arrow_cast(arrow_cast('{value}', 'Int{number.bit_width}'), '{name}')"
            for value in values.cast(number).to_pylist()
        ]
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return ["'" + value.replace("'", "''") + "'" for value in values.to_pylist()]
    return [f"X'{value.hex()}'" for value in values.to_pylist()]


def _integer(value: int) -> str:
    # Lance parses the digits before the sign, so the smallest integer would become a float.
    return str(value) if value != -(1 << 63) else f"arrow_cast('{value}', 'Int64')"


def _temporal(kind: pa.DataType) -> str:
    """Return the name of a temporal type in `arrow_cast`."""
    if pa.types.is_date(kind):
        return f"Date{kind.bit_width}"
    if pa.types.is_timestamp(kind):
        zone = "None" if kind.tz is None else f'Some("{kind.tz}")'
        return f"Timestamp({_UNITS[kind.unit]}, {zone})"
    if pa.types.is_time(kind):
        return f"Time{kind.bit_width}({_UNITS[kind.unit]})"
    return f"Duration({_UNITS[kind.unit]})"
