"""S3 refuses a conditional put with 409 while another is in flight, also where nothing stands then: nobody believes it.

A client meets it by its own repetition, whose first try is still on its way, and then fails: chroma 4888.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import lancelsm
from lancelsm.admin.clone import clone_snapshot
from lancelsm.admin.drop import drop_table
from lancelsm.backup import back_up, restore
from lancelsm.errors import Ambiguous, Contended, Unavailable
from lancelsm.objects import Body, ObjectStore, PreconditionFailed, WriteUnknown, Written
from lancelsm.objects.filesystem import LocalStore
from lancelsm.region.catalog import regions
from lancelsm.region.handle import Ports, open_table
from lancelsm.table import Table
from tests.simulation.faults import FakeClock
from tests.unit.tables import merged, row, rows_of

FIRST = [row(n) for n in range(4)]
ROWS = merged([*FIRST, row(0, "b"), row(4, "b")])


class Conflicts:
    """Ports of a process whose conditional put number `at` is refused where nothing stands, and does nothing."""

    def __init__(self, at: int | None = None) -> None:
        self.at = at
        self.puts = 0
        self.ports = Ports(store=self._store, clock=FakeClock(), parallel=1)

    def _store(self, uri: str, _: Mapping[str, str] | None) -> ObjectStore:
        return ConflictingStore(Path(uri), self)


class ConflictingStore(LocalStore):
    def __init__(self, place: Path, conflicts: Conflicts) -> None:
        super().__init__(place)
        self._conflicts = conflicts

    def create(self, key: str, body: Body) -> Written | PreconditionFailed | WriteUnknown:
        if self.get(key) is not None:
            return PreconditionFailed()
        self._conflicts.puts += 1
        return PreconditionFailed() if self._conflicts.puts - 1 == self._conflicts.at else super().create(key, body)


def create(place: Path, ports: Ports) -> None:
    lancelsm.create(place / "table", FIRST, primary_key="id", registry="object", ports=ports)


def handle(act: Callable[[Table], Any]) -> Callable[[Path, Ports], None]:
    return lambda place, ports: act(lancelsm.open(place / "table", ports=ports))


STEPS: dict[str, Callable[[Path, Ports], Any]] = {
    "create": create,
    "upsert": handle(lambda table: table.upsert([row(0, "b"), row(4, "b")])),
    "claim": handle(lambda table: table.claim(*regions(table._context))),
    "flush": handle(lambda table: table.flush()),
    "snapshot": handle(lambda table: table.snapshot("monday", "1h")),
    "merge": handle(lambda table: table.merge(engine="inprocess")),
    "clone": lambda place, ports: clone_snapshot(
        open_table(place / "table", ports=ports), "monday", place / "clone", ports=ports
    ),
    "back up": handle(lambda table: back_up(table, f"{table.uri}/../backup")),
    "restore": lambda place, ports: restore(place / "backup", place / "restored", ports=ports),
    "collect": handle(lambda table: table.collect(yes=True, interval_seconds=0)),
    "drop": lambda place, ports: drop_table(place / "restored", ports=ports),
}
SHOWS = {"clone": "clone", "restore": "restored"}


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What is there before each step."""
    root = tmp_path_factory.mktemp("states")
    place, found = root / "first", {}
    place.mkdir()
    for number, (name, act) in enumerate(STEPS.items()):
        found[name] = place
        place = shutil.copytree(place, root / str(number))
        act(place, Conflicts().ports)
    return found


@pytest.mark.parametrize("name", STEPS)
def test_chroma_4888_a_put_that_is_refused_where_nothing_stands_is_put_again_or_told(states, tmp_path, name):
    done = Conflicts()
    STEPS[name](shutil.copytree(states[name], tmp_path / "well"), done.ports)
    for at in range(done.puts):
        place = shutil.copytree(states[name], tmp_path / str(at))
        try:
            STEPS[name](place, Conflicts(at).ports)
        except (Contended, Ambiguous, Unavailable):
            STEPS[name](place, Conflicts().ports)

        shown = lancelsm.open(place / SHOWS.get(name, "table"))
        assert rows_of(shown) == (FIRST if name == "create" else ROWS), at
        assert shown.scrub().problems == (), at
    assert done.puts
