"""A change of the base that takes longer than the retry budget is tried again after a conflict, too."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from lancelsm.admin import change_columns, sync_columns
from lancelsm.compaction import expired, indexes
from lancelsm.compaction.indexes import extend
from lancelsm.dataset.base_rows import Preempted
from lancelsm.errors import Contended
from lancelsm.table import Table
from tests.simulation.faults import FakeClock, FaultPlan
from tests.unit.tables import create, faulty

COLUMNS = pa.schema([("id", pa.int64()), ("n", pa.int32()), ("v", pa.string()), ("at", pa.timestamp("us", "UTC"))])
ROWS = [{"id": key, "n": key, "v": "a", "at": dt.datetime(2020, 1, 1, key, tzinfo=dt.UTC)} for key in range(4)]


def renamed_by_lance(table: Table) -> list[Any]:
    lance.dataset(table.uri).alter_columns({"path": "v", "name": "w"})
    return table.sync_schema()


def indexed(table: Table) -> bool:
    table.create_index("n", kind="BTREE")
    table.upsert(ROWS)
    table.flush()
    table.merge(engine="inprocess")
    return extend(table._handle)


def expired_rows(table: Table) -> bool:
    table.set_ttl("1h on at")
    return expired.remove_expired(table._handle, table._handle.read_base()) == len(ROWS)


def refused() -> None:
    raise Contended("the base changed")


# By change: what does it, the function that commits, and what this returns or raises after a conflict.
CHANGES: dict[str, tuple[Callable[[Table], object], Any, str, Callable[[], object]]] = {
    "widen a column": (lambda table: table.widen_column("n", "int64"), change_columns, "_committed", lambda: None),
    "sync columns": (renamed_by_lance, sync_columns, "write_facts", refused),
    "create an index": (
        lambda table: table.create_index("n", kind="BTREE"),
        indexes,
        "_keep_promise",
        lambda: None,
    ),
    "extend an index": (indexed, indexes, "extend_indexes", refused),
    "remove expired rows": (expired_rows, expired, "commit", lambda: Preempted(reason="an index was built")),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_slow_change_is_tried_again_after_a_conflict(
    change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    act, module, commit, conflict = CHANGES[change]
    clock = FakeClock()
    table = create(tmp_path, COLUMNS, ports=faulty(FaultPlan(), clock=clock))
    table.upsert(ROWS)
    table.flush()
    table.merge(engine="inprocess")
    real, conflicts = getattr(module, commit), 3

    def overtaken(*given: Any, **options: Any) -> Any:
        nonlocal conflicts
        if not conflicts:
            return real(*given, **options)
        conflicts -= 1
        clock.advance(2 * table.settings.retry_budget_seconds)
        return conflict()

    monkeypatch.setattr(module, commit, overtaken)

    assert act(table)
    assert not conflicts
