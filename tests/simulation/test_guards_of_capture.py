"""Each guard of change data capture is needed: without it, its scenario fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lancelsm
from lancelsm.errors import Invalid, Unavailable
from lancelsm.read.transact import source_offsets
from lancelsm.read.transact.change_capture import Applied
from lancelsm.read.transact.change_decision import decide
from lancelsm.region.handle import open_table
from tests.simulation.marks import moved, without
from tests.simulation.removal import with_and_without


def versions(path: Path) -> lancelsm.Table:
    columns = pa.schema([("id", pa.int64()), ("v", pa.int64())])
    return lancelsm.create(path / "table", columns, primary_key="id", regions="bucket(id, 2)")


def event(key: int, v: int) -> dict[str, Any]:
    return {"id": key, "v": v}


def late_event(path: Path) -> None:
    """An event arrives after one with a higher sequence."""
    table = versions(path)
    table.apply_changes([event(1, 5)], sequence_by="v")
    table.apply_changes([event(1, 4)])
    assert table.get([1])["v"].to_pylist() == [5]


def event_below_the_floor(_: Path) -> None:
    """The delete of a key is forgotten, and an event from before it arrives."""
    schema = open_table(versions(_).uri).config.schema
    row = pa.table([[1], [4], [False]], schema=schema.stored)
    floor = pa.table([[0], [5], [False]], schema=schema.stored)
    nothing = [frozenset[str]()]
    found = decide(row, None, schema, sequence=["v"], unchanged=nothing, required=nothing, floor=floor)
    assert (found.rows.num_rows, found.late) == (0, (0,))


def repeated_call(path: Path) -> None:
    """A consumer crashes before the offset of its source moves. It repeats the call after another writer."""
    table = versions(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source_offsets, "move_offset", _fails)
        with pytest.raises(Unavailable):
            table.apply_changes([event(1, 5)], source="s", offset=1)
    table.upsert([event(1, 6)])
    assert table.apply_changes([event(1, 5)], source="s", offset=1) == Applied(skipped=1)
    assert table.get([1])["v"].to_pylist() == [6]


def _fails(*_: object, **__: object) -> None:
    raise Unavailable("the registry does not answer")


def refused_append(path: Path) -> None:
    """The rows of a call can't be appended: its bad rows are kept all the same."""
    table = versions(path)
    table.apply_changes([event(key, 5) for key in range(4)])
    for region in table.list_regions():
        table.seal(region)
    with pytest.raises(Invalid):
        lancelsm.open(table.uri).apply_changes([event(1, 6), {"id": 2}], on_bad_row="dead_letter")
    assert len(list((path / "table" / "_lancelsm" / "dead_letters").iterdir())) == 1


def value_that_no_row_has(path: Path) -> None:
    """An event leaves out a value that no stored row has. It is kept although its region gets an entry."""
    table = lancelsm.create(path / "table", pa.schema([("id", pa.int64()), ("v", pa.string())]), primary_key="id")
    rows = [{"id": 1, "v": "a"}, {"id": 2, "v": "__debezium_unavailable_value"}]
    events = [{"op": "u", "before": None, "after": row, "source": {}} for row in rows]
    assert table.apply_changes(events, format="debezium", on_bad_row="dead_letter").rejected == 1
    assert len(list((path / "table" / "_lancelsm" / "dead_letters").iterdir())) == 1


def region_without_its_part(path: Path) -> None:
    """One region takes its part of a call, and the other one is sealed."""
    table = versions(path)
    table.apply_changes([event(key, 1) for key in range(4)], source="s", offset=1)
    table.seal(table.list_regions()[0])
    with pytest.raises(Invalid):
        table.apply_changes([event(key, 2) for key in range(4)], source="s", offset=2)
    assert table.source_offset("s") == 1


def plain_write(path: Path) -> None:
    """A process that opened the table before its events had an order writes a row of a lower sequence."""
    table = versions(path)
    table.upsert([event(1, 1)])
    opened_before = lancelsm.open(table.uri)
    table.apply_changes([event(1, 5)], sequence_by="v")
    with pytest.raises(Invalid, match="no plain writes"):
        opened_before.upsert([event(1, 4)])


test_scenarios_pass, test_scenarios_fail_without_their_guard = with_and_without(
    {
        "an event below the sequence of its key is late": (
            [without("event below the sequence of its key is late")],
            late_event,
        ),
        "an event below the late floor is late": (
            [without("event below the late floor is late")],
            event_below_the_floor,
        ),
        "bad rows are kept before the others are appended": (
            [without("bad rows are kept before the others are appended")],
            refused_append,
        ),
        "bad rows of a region are kept before its entry": (
            [without("bad rows of a region are kept before its entry")],
            value_that_no_row_has,
        ),
        "an event is applied once": ([without("event is applied once")], repeated_call),
        "a region with ordered events takes no plain writes": (
            [without("region with ordered events takes no plain writes")],
            plain_write,
        ),
        "a region is marked before its first ordered event": (
            [without("region is marked before its first ordered event")],
            plain_write,
        ),
        "the offset moves after all regions": ([moved("offset moves after all regions", -1)], region_without_its_part),
    },
    own=(
        late_event,
        event_below_the_floor,
        refused_append,
        value_that_no_row_has,
        repeated_call,
        region_without_its_part,
        plain_write,
    ),
)
