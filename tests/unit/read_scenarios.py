"""Tables whose levels have rows and tombstones of the same keys."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from lancelsm.common.layout import KEY_FILTER
from lancelsm.errors import Corrupt
from lancelsm.generated.lancelsm.v1.manifest_pb2 import KeyBounds, Manifest
from lancelsm.read import tail, view
from lancelsm.table import Table
from tests.unit.tables import create, generation_paths, row, rows_of

LEVELS = ("base", "generation", "newer generation", "tail")
STATES = list(itertools.product(("absent", "row", "tombstone"), repeat=len(LEVELS)))


def write(table: Table, level: str, *, upsert: list[dict[str, Any]] = (), delete: list[int] = ()) -> None:  # type: ignore[assignment]
    """Write, then flush and merge everything so far to the given level."""
    if upsert:
        table.upsert(upsert)
    if delete:
        table.delete(list(delete))
    if level != "tail":
        table.flush()
    if level == "base":
        table.merge(engine="inprocess")


def newest_level_with_a_key_wins(directory: Path) -> None:
    """One table has a key for every combination of row, tombstone and nothing in four levels."""
    table = create(directory, regions="bucket(id, 2)")
    expected: dict[int, dict[str, Any]] = {}
    for number, name in enumerate(LEVELS):
        states = [(key, state[number]) for key, state in enumerate(STATES)]
        upserted = [row(key, name) for key, state in states if state == "row"]
        deleted = [key for key, state in states if state == "tombstone"]
        write(table, name, upsert=upserted, delete=deleted)
        expected |= {found["id"]: found for found in upserted}
        expected = {key: found for key, found in expected.items() if key not in deleted}

    rows = [expected[key] for key in sorted(expected)]
    assert rows_of(table) == rows
    assert sorted(table.get(list(range(len(STATES)))).to_pylist(), key=lambda found: found["id"]) == rows
    for name in LEVELS:
        matching = [found for found in rows if found["v"] == name]
        assert rows_of(table, where=f"v = '{name}'") == matching, name
        assert rows_of(table, where=f"v = '{name}'", columns=["v", "id"]) == matching, name
        assert table.scan(where=f"v = '{name}'", limit=3).to_arrow().num_rows == min(3, len(matching))
        others = [{"id": found["id"]} for found in rows if found["v"] != name]
        assert rows_of(table, where=f"v <> '{name}'", columns=["id"]) == others


def flipped_key_filter_hides_no_key(directory: Path) -> None:
    """A bit of a key is cleared in the filter of a generation. A lookup must not say that the key is absent."""
    table = create(directory)
    write(table, "generation", upsert=[row(1)])
    (path,) = (found / KEY_FILTER for found in generation_paths(directory))
    body = path.read_bytes()
    path.write_bytes(bytes(32) + body[32:])
    for read in (lambda: table.get([1]), lambda: rows_of(table, where="id = 1")):
        with pytest.raises(Corrupt, match=KEY_FILTER):
            read()


def flipped_key_bounds_hide_no_key(directory: Path) -> None:
    """A bit of the bounds of a generation is flipped in the manifest. A read must not leave out the generation."""
    table = create(directory, [row(1, "old")])
    table.upsert([row(1)])
    table.flush()
    (lower,) = {one.lower for path in _manifests(directory) for one in _key_bounds(path)}
    for path in _manifests(directory):
        path.write_bytes(path.read_bytes().replace(lower, bytes([lower[0] + 2, *lower[1:]])))
    for read in (lambda: table.get([1]), lambda: rows_of(table, where="id = 1")):
        with pytest.raises(Corrupt, match="keys of generation 1"):
            read()


def _manifests(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("manifest/**/*.binpb") if _key_bounds(path)]


def _key_bounds(path: Path) -> list[KeyBounds]:
    return [one for found in Manifest.FromString(path.read_bytes()).generations for one in found.key_bounds]


def older_row_does_not_reappear(directory: Path) -> None:
    """A condition leaves out the newer row of a key, and the older rows of the key stay hidden."""
    table = create(directory)
    writes: Iterable[tuple[str, list[Any]]] = (("old", [1, 2, 3]), ("mid", [1, 2]), ("new", [1]))
    for value, keys in writes:
        table.upsert([row(key, value) for key in keys])
        table.flush() if value != "new" else None
        if value == "old":
            table.merge(engine="inprocess")
    table.delete([3])

    assert rows_of(table, where="v = 'old'") == []
    assert rows_of(table, where="v = 'mid'") == [row(2, "mid")]
    assert rows_of(table, where="v <> 'old'", columns=["id"]) == [{"id": 1}, {"id": 2}]


def entries_replaced_before_they_are_read_again(path: Path) -> None:
    """The entries of a large tail are replaced after the log was proven, by those of another table."""
    table, other = create(path), create(path / "other")
    table.upsert([row(1)])
    other.upsert([row(2)])
    (replaced,), (replacement,) = (list(Path(one.uri).glob("_mem_wal/*/wal/*.arrow")) for one in (table, other))
    read_tail = view.read_tail

    def read_then_replace(*arguments: Any, **options: Any) -> tail.Tail:
        found = read_tail(*arguments, **options)
        replaced.write_bytes(replacement.read_bytes())
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tail, "_HELD_BYTES", 0)
        patch.setattr(view, "read_tail", read_then_replace)
        with pytest.raises(Corrupt):
            rows_of(table)
