"""Orders of events around a compaction of generations. Each must end with all rows, and without a damaged table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import lancelsm
from lancelsm.compaction import compact, maintenance, tasks
from lancelsm.errors import Contended
from lancelsm.gc import collect as collection
from lancelsm.region.compare_and_swap import newest
from lancelsm.region.manifest import Manifest
from lancelsm.table import Table
from tests.unit.tables import Row, create, merged, row, rows_of


def manifest_of(table: Table) -> Manifest:
    (region,) = table.list_regions()
    return newest(region, region.head())[1]


def crowded(path: Path, *, generations: int = 4) -> tuple[Table, list[Row]]:
    """A table with this many generations above the base, of which three are not too many, and its rows.

    Rows of the base are replaced or deleted.
    """
    written = [row(key, "base") for key in range(4)]
    table = create(path, settings={"collect_interval_seconds": 1e-9, "max_generations": 3})
    table.upsert(written)
    table.flush()
    table.merge()
    table.delete([0])
    written = [one for one in written if one["id"]]
    for number in range(generations):
        written += [row(number % 4 + 1, f"{number}"), row(100 + number, "new")]
        table.upsert(written[-2:])
        table.flush()
    return table, merged(written)


@contextmanager
def once_written(event: Callable[[], object]) -> Iterator[None]:
    """Let an event happen once, after a generation was written and read back, and before it is committed."""
    check, left = maintenance.check_generation, [1]

    def checked(**options: Any) -> None:
        check(**options)
        if left:
            left.pop()
            event()

    with mock.patch.object(maintenance, "check_generation", checked):
        yield


def collected(table: Table) -> None:
    """Collect everything that may go, at once."""
    for _ in range(2):
        table.collect(yes=True, interval_seconds=0)


def has_all(table: Table, rows: list[Row]) -> None:
    """Assert that the table has these rows, now, after a collection, and once all generations are in the base."""
    assert rows_of(lancelsm.open(table.uri)) == rows
    collected(table)
    assert rows_of(lancelsm.open(table.uri)) == rows
    assert table.scrub().problems == ()
    table.merge()
    assert rows_of(lancelsm.open(table.uri)) == rows


def round_between_write_and_commit(path: Path) -> None:
    """A round deletes the new directory, which no manifest names, before the compaction commits."""
    table, rows = crowded(path)
    with once_written(lambda: collected(table)):
        assert table.compact() == []
    has_all(table, rows)


def round_during_a_write(path: Path) -> None:
    """A round deletes the new directory before it is read back. That is no error: the compaction is superseded."""
    table, rows = crowded(path)
    write, left = maintenance.write_generation, [1]

    def written(**options: Any) -> Any:
        made = write(**options)
        if left:
            left.pop()
            collected(table)
        return made

    with mock.patch.object(maintenance, "write_generation", written):
        assert table.compact() == []
    has_all(table, rows)


def compaction_between_mark_and_verify(path: Path) -> None:
    """A round lists the new directory, then the compaction commits. The verifier must not call that damage."""
    table, rows = crowded(path)
    rounds: list[str] = []
    with once_written(lambda: rounds.extend(_marked(table))):
        assert table.compact()
    with suppress(Contended):
        assert not collection.verify(lancelsm.open(table.uri)._handle, rounds).rounds
    has_all(table, rows)


def compaction_between_verify_and_commit(path: Path) -> None:
    """A verified round lists the new directory, then the compaction commits. The round must not be committed."""
    table, rows = crowded(path)
    rounds: list[str] = []

    def mark_and_verify() -> None:
        rounds.extend(_marked(table))
        collection.verify(table._handle, rounds)

    with once_written(mark_and_verify):
        assert table.compact()
    with suppress(Contended):
        assert not collection.commit(table._handle, rounds).rounds
    has_all(table, rows)


def another_compaction_of_some_parts(path: Path) -> None:
    """Another process compacts the two oldest parts before the compaction commits."""
    table, rows = crowded(path)

    def other() -> None:
        handle, (region,) = table._handle, table.list_regions()
        manifest = manifest_of(table)
        parts = manifest.generations[-4:-2]
        write = maintenance.writing(handle, handle.read_base())
        assert compact._compact(handle, region, manifest, parts, write)

    with once_written(other):
        assert table.compact() == []
    has_all(table, rows)


def index_between_write_and_commit(path: Path) -> None:
    """An index is created before the compaction commits. Lance's readers miss the rows of a generation without it."""
    table, rows = crowded(path)
    with once_written(lambda: lancelsm.open(table.uri).create_index("v", kind="BTREE")):
        assert table.compact() == []
    assert table.compact()
    (status,) = table.status().indexes
    assert (status.generations_without, status.maintained) == (0, True)
    has_all(table, rows)


def parts_swept_during_a_merge(path: Path) -> None:
    """The generations of a merge are compacted and swept before it reads them: it starts again with the new one."""
    table, rows = crowded(path)
    fold, left = tasks.fold_delta, [1]

    def folded(*arguments: Any) -> Any:
        if left:
            left.pop()
            other = lancelsm.open(table.uri)
            assert other.compact()
            _swept(other)
        return fold(*arguments)

    with mock.patch.object(tasks, "fold_delta", folded):
        assert table.merge().generations == 1
    has_all(table, rows)


def _marked(table: Table) -> list[str]:
    return list(collection.mark(table._handle).rounds)


def _swept(table: Table) -> None:
    """Collect the regions, not the base: its lease is held."""
    with suppress(Contended):
        collected(table)
