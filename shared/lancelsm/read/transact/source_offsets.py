"""Remember how far a source of change events was applied.

Each region remembers the offset of its last event in the swap that commits the rows (`region.producers`), so no event
is applied twice. The record of a source moves after all regions have their part: it is never ahead of a region.
"""

from __future__ import annotations

from collections.abc import Sequence

from lancelsm.common.layout import source_key
from lancelsm.errors import Contended, Corrupt, Invalid
from lancelsm.region.catalog import TableContext
from lancelsm.registry import SwapApplied, number

_MOST = 2**63 - 1
_NAME_LENGTH = 200


def producer(source: str) -> str:
    """Return the name under which regions remember a source."""
    return f"source:{source}"


def check_source(source: object) -> None:
    """Raise `Invalid` unless this is the name of a source."""
    if not isinstance(source, str) or not 0 < len(source) <= _NAME_LENGTH:
        raise Invalid("source is not a name", remedy=f"Give 1 to {_NAME_LENGTH} characters", field="source")


def offsets_of(offset: object, events: int) -> list[int]:
    """Return the offset of each event.

    Args:
        offset: of the last event, or a list with one for each event.

    Raises:
        Invalid: an offset is no integer from 1, the list is shorter or longer than the events, or it decreases.
    """
    is_list = isinstance(offset, Sequence) and not isinstance(offset, str | bytes)
    offsets: list[object] = list(offset) if isinstance(offset, Sequence) and is_list else [offset] * events
    if len(offsets) != events:
        raise Invalid(
            f"there are {events} events, but {len(offsets)} offsets",
            remedy="Give one offset for each event, or that of the last event alone",
            field="offset",
        )
    before = 1
    for at, one in enumerate(offsets if is_list else [offset]):
        if not isinstance(one, int) or isinstance(one, bool) or not 0 < one <= _MOST:
            raise Invalid(
                f"the offset {one!r} is not an integer from 1",
                remedy="Number the events, such as by their position plus 1, with one source for each partition",
                field="offset",
            )
        if one < before:
            raise Invalid(
                f"offset {at} is {one}, lower than the one before it",
                remedy="Give the events in the order of their offsets",
                field="offset",
            )
        before = one
    return [one for one in offsets if isinstance(one, int)]


def read_offset(context: TableContext, source: str) -> int | None:
    """Return the offset up to which all events of a source are applied; None for an unknown source.

    Raises:
        Corrupt: the record is unreadable.
        Unavailable: the registry did not answer.
    """
    try:
        record = context.registry.read(source_key(context.table, source))
        return None if record is None else number(record, "offset")
    except (ValueError, Corrupt) as error:
        raise Corrupt(
            f"the record of the source {source!r} is unreadable: {error}",
            remedy="Apply its events again from the start: no event is applied twice",
            table=context.uri,
        ) from error


def usable_offset(context: TableContext, source: str) -> int | None:
    """Return the same as `read_offset`; delete an unreadable record. Regions know which events they have.

    Raises:
        Unavailable: the registry did not answer.
    """
    try:
        return read_offset(context, source)
    except Corrupt:
        context.registry.discard(source_key(context.table, source))
        return None


def move_offset(context: TableContext, source: str, offset: int, *, applied: int | None) -> None:
    """Record that all events of a source up to an offset are applied. A lower one changes nothing.

    Args:
        applied: what `usable_offset` returned before.

    Raises:
        Contended: other processes kept moving it.
        Corrupt, Unavailable: see `read_offset`.
    """
    known = applied
    for _ in context.budget().attempts():
        if known is not None and known >= offset:
            return
        expect = None if known is None else {"offset": known}
        swap = {"offset": offset} if known is not None else {"format": 1, "offset": offset}
        if isinstance(
            context.registry.swap(source_key(context.table, source), expect=expect, change=swap), SwapApplied
        ):
            return
        known = read_offset(context, source)
    raise Contended(
        "other processes kept moving the offset of the source",
        remedy="Apply the same events again: none is applied twice",
        table=context.uri,
        source=source,
    )
