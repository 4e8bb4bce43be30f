"""Decide which change events of one region win, from the newest rows of their keys. Pure, and the same at every call.

The state of a key is its newest row or delete, with its sequence. Events are taken in order. One with a lower sequence
than the state is late and changes nothing; one with the same sequence comes later, so it wins. tests/unit/
test_change_decision.py compares this with a reference in plain Python over whole streams.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from lancelsm.errors import Invalid
from lancelsm.record.casts import as_schema
from lancelsm.record.key import key_column
from lancelsm.record.schema import TOMBSTONE, TableSchema


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """What to append: rows and tombstones in stored form, one per key, in order of their events.

    `late` has the numbers of the rows that lost against a higher sequence, `unfilled` those of rows that leave out a
    value, where no stored row has it.
    """

    rows: pa.Table
    late: tuple[int, ...] = ()
    unfilled: tuple[int, ...] = ()


@dataclass(slots=True)
class _State:
    """The newest row of a key: its number in the table of all rows, -1 without one, and the rank of its sequence."""

    row: int
    rank: int
    live: bool
    changed: bool = False
    taken: dict[str, int] = field(default_factory=dict)  # column -> the row that its value comes from


def decide(
    events: pa.Table,
    current: pa.Table | None,
    schema: TableSchema,
    *,
    sequence: Sequence[str],
    unchanged: Sequence[frozenset[str]],
    required: Sequence[frozenset[str]],
    floor: pa.Table | None = None,
) -> Decided:
    """Return what events change.

    Args:
        events: in stored form, in order; a delete has the key and the sequence.
        current: the newest rows of these keys in stored form, deletes included; None if no event depends on them.
        sequence: the columns that order the events; without one they apply in order.
        unchanged: for each event the columns that keep the value of the row before it.
        required: for each event those of them that need such a row.
        floor: one row with the late floor of the region. An event at or below it whose key has no row is late: a
            newer delete of the key may be among those that merges forgot.
    """
    stored = schema.stored
    before = stored.empty_table() if current is None else as_schema(current, stored)
    rows = pa.concat_tables([before, as_schema(events, stored)])
    ranks, lowest = _ranks(rows, sequence, floor)
    codes = pc.dictionary_encode(key_column(rows, schema.primary_key)).indices.to_pylist()
    deleted = rows.column(TOMBSTONE).to_pylist()
    states: dict[int, _State] = {}
    for row in range(before.num_rows):
        states[codes[row]] = _State(row=row, rank=ranks[row], live=not deleted[row])
    late, unfilled = list[int](), list[int]()
    for number in range(events.num_rows):
        row = before.num_rows + number
        rank = ranks[row]
        state = states.get(codes[row])
        if (
            (state is not None and sequence and rank < state.rank)  # guard: event below the sequence of its key is late
            or (state is None and rank <= lowest)  # guard: event below the late floor is late
        ):
            late.append(number)
            continue
        is_live = state is not None and state.live
        if required[number] and not is_live:
            unfilled.append(number)
            continue
        taken = {}
        if state is not None and is_live:
            taken = {name: state.taken.get(name, state.row) for name in unchanged[number]}
        states[codes[row]] = _State(row=row, rank=rank, live=not deleted[row], changed=True, taken=taken)
    winners = sorted((state for state in states.values() if state.changed), key=lambda state: state.row)
    return Decided(rows=_taken(rows, winners), late=tuple(late), unfilled=tuple(unfilled))


def _taken(rows: pa.Table, winners: Sequence[_State]) -> pa.Table:
    """Return the rows of these states, with the values that they keep from other rows."""
    found = rows.take(pa.array([state.row for state in winners], pa.int64()))
    for name in sorted({name for state in winners for name in state.taken}):
        at = pa.array([state.taken.get(name, state.row) for state in winners], pa.int64())
        index = found.schema.get_field_index(name)
        found = found.set_column(index, found.schema.field(index), rows.column(name).take(at))
    return found.combine_chunks()


def _ranks(rows: pa.Table, sequence: Sequence[str], floor: pa.Table | None) -> tuple[list[int], int]:
    """Return the rank of the sequence of each row, and that of the floor. A null is below every value."""
    if not sequence:
        return [0] * rows.num_rows, -1
    names = list(sequence)
    values = rows.select(names)
    if floor is not None:
        values = pa.concat_tables([values, as_schema(floor.select(names), values.schema)])
    if not values.num_rows:
        return [], -1
    keys = pa.table({f"{at}{part}": made for at, name in enumerate(names) for part, made in _sort_keys(values[name])})
    order = pc.sort_indices(keys, sort_keys=[(name, "ascending") for name in keys.schema.names])
    ordered = values.take(order)
    same = pa.array([True] * (values.num_rows - 1), pa.bool_())
    for name in names:
        column = ordered.column(name).combine_chunks()
        one, other = column.slice(0, len(column) - 1), column.slice(1)
        equal = pc.coalesce(pc.equal(one, other), pc.and_(pc.is_null(one), pc.is_null(other)))
        same = pc.and_(same, equal)
    ranks = [0] * values.num_rows
    rank = 0
    for at, (number, repeats) in enumerate(zip(order.to_pylist(), [True, *same.to_pylist()], strict=True)):
        rank += at > 0 and not repeats
        ranks[number] = rank
    return (ranks, -1) if floor is None or not floor.num_rows else (ranks[:-1], ranks[-1])


def _sort_keys(column: pa.ChunkedArray) -> tuple[tuple[str, pa.ChunkedArray], ...]:
    return ("valid", pc.is_valid(column)), ("value", column)


def check_sequence(schema: TableSchema, sequence: Sequence[str]) -> None:
    """Raise `Invalid` unless Arrow can order these columns."""
    empty = schema.stored.empty_table()
    for name in sequence:
        if name not in schema.names:
            raise Invalid(
                f"sequence_by names {name!r}, which is no column of the table",
                remedy=f"Give one of the columns {', '.join(schema.names)}",
                field=name,
            )
        kind = schema.columns.field(name).type
        try:
            pc.sort_indices(empty.select([name]), sort_keys=[(name, "ascending")])
            pc.equal(empty.column(name), empty.column(name))
            has_order = not pa.types.is_nested(kind)
        except pa.ArrowException:
            has_order = False
        if not has_order:
            raise Invalid(
                f"column {name!r} of type {kind} can't order events",
                remedy="Use a number, text, binary or a time",
                field=name,
            )
