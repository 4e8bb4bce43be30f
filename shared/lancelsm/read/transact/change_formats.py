"""Read change events: rows, Debezium's envelope, and records that Debezium's transformation flattened."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Any, Literal

from lancelsm.common.arrow_input import read_whole
from lancelsm.common.error_text import shown
from lancelsm.common.json_text import finite, parse_json
from lancelsm.errors import Invalid
from lancelsm.read.transact import mongodb
from lancelsm.read.transact.change_event import RowChange, Selection
from lancelsm.read.transact.debezium import Opened, as_number, decoded, opened, time_of_source
from lancelsm.record.json_lines import json_objects

Format = Literal["debezium", "flattened", "rows"]
Parse = Callable[[int, Any, Selection], list[RowChange]]
"""Gets the number of an event, the event, and the selection; returns its changes, none for one that is skipped."""

_UNAVAILABLE = "__debezium_unavailable_value"
_TEXTS = frozenset({_UNAVAILABLE, "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="})  # of text and binary
_NESTED = ([_UNAVAILABLE], {_UNAVAILABLE: _UNAVAILABLE})  # of arrays and maps
_DELETED, _OPERATION = "__deleted", "__op"
_OPERATIONS = ("c", "u", "d", "r")


class Refused(Invalid):
    """An event that is no bad row: leaving it out would make the table wrong, so it ends the call."""


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is no JSON, in place of its event."""

    line: str
    reason: str


class JsonEvents(list[Any]):
    """Events whose values are as `json.loads` returns them; for callers of `Table.apply_changes` that parsed JSON."""


def listed_events(events: Any, *, exact: bool) -> tuple[list[Any], bool]:
    """Return events one by one, and whether their values are as `json.loads` returns them.

    Args:
        events: Arrow data, JSON lines in one text or several, one dict, or an iterable of dicts.
        exact: numbers in JSON lines may need more digits than a double has.

    Raises:
        Invalid: it is none of them.
    """
    parse = partial(_of_line, parse_float=Decimal if exact else finite)
    if isinstance(events, str | bytes):
        lines = events.split("\n") if isinstance(events, str) else events.split(b"\n")  # a text may have U+2028
        return [parse(line) for line in lines if line.strip()], True
    if hasattr(events, "__arrow_c_stream__") or hasattr(events, "__arrow_c_array__"):
        rows = read_whole(events)
        if len({*rows.column_names}) < rows.num_columns:
            twice = next(name for name in rows.column_names if rows.column_names.count(name) > 1)
            raise Invalid(f"duplicate column {twice!r}", remedy="Name each column once", field=twice)
        return list(json_objects(rows)), True  # JSON values are read back as the same rows
    if isinstance(events, Mapping):
        return [events], False
    if not isinstance(events, Iterable):
        raise Invalid(
            f"events can't be read from {type(events).__name__}", remedy="Give dicts, JSON lines, or Arrow data"
        )
    given = list(events)
    is_json = isinstance(events, JsonEvents) or any(isinstance(event, str | bytes) for event in given)
    return [parse(event) if isinstance(event, str | bytes) else event for event in given], is_json


def _of_line(line: str | bytes, *, parse_float: Callable[[str], Any]) -> Any:
    try:
        return parse_json(line, parse_float=parse_float)
    except ValueError as error:
        return BadLine(line if isinstance(line, str) else line.decode(errors="replace"), str(error))


def of_rows(number: int, event: Any, selection: Selection) -> list[RowChange]:
    """Read a row. Every row is an upsert; `apply_as_deletes` makes deletes of some."""
    values = _record(event)
    return [selection.change(number, {**values, **_sequence(selection, (values,))})]


def of_flattened(number: int, event: Any, selection: Selection) -> list[RowChange]:
    """Read a record of `ExtractNewRecordState`. A delete has `__deleted` "true"; a tombstone is skipped."""
    message = Opened(value=event) if _is_row(event, selection) else opened(event)
    if message.value is None:
        return []
    values = _record(message.value)
    operation = values.get(_OPERATION)
    if operation in ("t", "m"):
        return _of_no_row(operation, selection)
    if operation not in (None, *_OPERATIONS):
        raise _unknown(operation, _OPERATION)
    row = {name: one for name, one in values.items() if name in selection.kinds or not name.startswith("__")}
    plain = _decoded(row, message, selection)
    added = {name[2:]: value for name, value in values.items() if name.startswith("__")}
    of_source = {name.removeprefix("source_"): value for name, value in added.items() if name.startswith("source_")}
    whole = {**values, **plain} if any(selection.sequence.values()) else None
    sequence = _sequence(selection, (plain, of_source, added), whole=whole)
    if str(values.get(_DELETED, "")).lower() == "true" or operation == "d":
        return [selection.deletion(number, {**_key(message, selection), **plain, **sequence})]
    return [_upsert(number, {**plain, **sequence}, selection)]


def of_debezium(number: int, event: Any, selection: Selection) -> list[RowChange]:
    """Read an event with Debezium's envelope. An update that changes the key is a delete and an upsert."""
    message = opened(event)
    if message.value is None:
        return []  # the tombstone behind a delete
    value = _record(message.value)
    operation = value.get("op")
    if operation in ("t", "m"):
        return _of_no_row(operation, selection)
    if operation not in _OPERATIONS:
        raise _unknown(operation, "op")
    source = _struct(value, "source") or {}
    _check_has_rows(source)
    before, after = (_side(value, name, message, selection) for name in ("before", "after"))
    rows = (after or {}, before or {})
    whole = {**value, "before": before, "after": after} if any(selection.sequence.values()) else None
    sequence = _sequence(selection, (source, *rows), whole=whole)
    if operation == "d":
        return [selection.deletion(number, {**_key(message, selection), **(before or {}), **sequence})]
    if after is None and source.get("connector") == "mongodb":
        fields, kept = mongodb.updated(value.get("updateDescription"), selection.kinds)
        key = {**_key(message, selection), **(before or {})}
        key = {name: key[name] for name in selection.schema.primary_key if name in key}
        return [selection.change(number, {**fields, **key, **sequence}, kept - {*key, *sequence})]
    if after is None:
        raise Invalid(
            f"an event with the op {operation} has no row in after", remedy="Give the row in after", field="after"
        )
    # Null in before may mean that the source left the value out: without REPLICA IDENTITY FULL it has the key alone.
    known = {name: one for name, one in (before or {}).items() if one is not None and not _is_placeholder(one)}
    unchanged = {name: known[name] for name, value in after.items() if _is_placeholder(value) and name in known}
    upsert = _upsert(number, {**after, **unchanged, **sequence}, selection)
    if before is None or not _is_moved(before, after, selection):
        return [upsert]
    if upsert.needed:  # the row of the old key has the value, not the one of the new key
        name = min(upsert.needed)
        raise Invalid(
            f"the event changes the key and has no value of column {name!r}",
            remedy="Send the whole row before the update, in PostgreSQL with REPLICA IDENTITY FULL",
            field=name,
        )
    return [selection.deletion(number, {**before, **sequence}), upsert]


PARSE: Mapping[Format, Parse] = {"rows": of_rows, "flattened": of_flattened, "debezium": of_debezium}


def _is_moved(before: Mapping[str, Any], after: Mapping[str, Any], selection: Selection) -> bool:
    """Return whether an update changes the key; an event without the whole key in both does not tell."""
    key = selection.schema.primary_key
    is_known = all(name in before and name in after for name in key)
    return is_known and any(before[name] != after[name] for name in key)


def _is_row(event: Any, selection: Selection) -> bool:
    """Return whether a record has a column `value` of the table, although it looks like a message of Kafka."""
    if not isinstance(event, Mapping) or "value" not in selection.kinds:
        return False
    return not isinstance(event.get("key"), Mapping) and not isinstance(event.get("value"), Mapping)


def _is_placeholder(value: Any) -> bool:
    if isinstance(value, str):
        return value in _TEXTS
    return isinstance(value, list | dict) and len(value) == 1 and set(map(type, value)) == {str} and value in _NESTED


def _unknown(operation: Any, field: str) -> Invalid:
    remedy = f"Give an event of Debezium: {', '.join(_OPERATIONS)}"
    return Invalid(f"the event has the op {shown(operation)}", remedy=remedy, field=field)


def _of_no_row(operation: str, selection: Selection) -> list[RowChange]:
    if operation == "m":
        return []  # a message of pg_logical_emit_message, which is of no table
    is_ordered = bool(selection.sequence)
    how = "apply_changes(table.scan().to_arrow(), apply_as_deletes='true')" if is_ordered else "delete(where='true')"
    raise Refused(
        "the event empties the source table (op t), which is not supported",
        remedy=f"Delete the rows with table.{how}, then apply the events after this one",
        field="op",
    )


def _record(event: Any) -> Mapping[str, Any]:
    if isinstance(event, BadLine):
        raise Invalid(f"the event is no JSON: {event.reason}", remedy="Give each event as one JSON object")
    if not isinstance(event, Mapping):
        raise Invalid(f"the event is a {type(event).__name__}, not an object", remedy="Give each event as an object")
    if odd := [name for name in event if not isinstance(name, str)]:
        raise Invalid(
            f"the event has a field {shown(odd[0])}, which is no name", remedy="Give fields whose names are text"
        )
    return event


def _check_has_rows(source: Mapping[str, Any]) -> None:
    """Raise `Refused` for an event whose columns are cells: without them all of its rows would be bad ones."""
    if source.get("connector") == "cassandra":
        raise Refused(
            "an event of Cassandra has cells {value, deletion_ts, set}, and no rows",
            remedy="Make rows of the cells that are set, and apply them with format='rows' and column_list",
            field="source",
        )


def _side(value: Mapping[str, Any], name: str, message: Opened, selection: Selection) -> Mapping[str, Any] | None:
    if isinstance(text := value.get(name), str):  # of MongoDB; a field that the document lacks is null
        return {**dict.fromkeys(selection.kinds), **mongodb.document_of(text, selection.kinds, side=name)}
    row = _struct(value, name)
    return None if row is None else _decoded(row, message, selection, side=name)


def _struct(value: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    found = value.get(name)
    if found is not None and not isinstance(found, Mapping):
        raise Invalid(f"{name} is a {type(found).__name__}, not an object", remedy="Check the format", field=name)
    return found


def _key(message: Opened, selection: Selection) -> Mapping[str, Any]:
    """Return the key columns that the key of the message has."""
    if not isinstance(message.key, Mapping):
        return {}
    if mongodb.KEY in selection.schema.primary_key and mongodb.KEY not in message.key:
        return mongodb.key_of(message.key, selection.kinds)
    return decoded(message.key, selection.kinds, fields=message.key_fields)


def _decoded(
    row: Mapping[str, Any], message: Opened, selection: Selection, *, side: str | None = None
) -> dict[str, Any]:
    fields = message.fields if side is None else message.inner_fields(side)
    return decoded(row, selection.kinds, fields=fields)


def _upsert(number: int, values: Mapping[str, Any], selection: Selection) -> RowChange:
    missing = frozenset(name for name, value in values.items() if _is_placeholder(value))
    return selection.change(number, {name: v for name, v in values.items() if name not in missing}, missing)


def _sequence(
    selection: Selection, places: Iterable[Mapping[str, Any]], *, whole: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the values of the columns of the sequence: by their path, or from the first place that has them."""
    places = tuple(places)
    found: dict[str, Any] = {}
    for name, path in selection.sequence.items():
        given = _at(places[0] if whole is None else whole, path) if path else _first(places, name)
        for value in given:
            if value is None:
                raise Invalid(
                    f"the event has null in {name!r}, which orders events",
                    remedy="Give a value of sequence_by in each event",
                    field=name,
                )
            kind = selection.kinds[name]
            found[name] = as_number(time_of_source(path or name, value, kind), kind)
    return found


def _first(places: Iterable[Mapping[str, Any]], name: str) -> Iterator[Any]:
    yield from [place[name] for place in places if name in place][:1]


def _at(event: Mapping[str, Any], path: str) -> list[Any]:
    value: Any = event
    for name in path.split("."):
        if not isinstance(value, Mapping) or name not in value:
            raise Invalid(
                f"the event has no {path}, which sequence_by names",
                remedy="Check sequence_by and the format",
                field=path,
            )
        value = value[name]
    return [value]
