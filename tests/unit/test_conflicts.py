"""A refused conditional put does not prove that the object exists: each operation retries or raises.

S3 answers 409 while another put of the key is in flight, even if that put then fails. A client sees this when its own
retry meets its first attempt, as Chroma found out.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import lancelsm
from lancelsm.admin.clone import clone_snapshot
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
    """Ports of a process whose conditional put number `at` is refused although no object exists."""

    def __init__(self, at: int | None = None) -> None:
        self.at = at
        self.puts = 0
        self.ports = Ports(store=self._store, clock=FakeClock(), threads=1)

    def _store(self, uri: str, _: Mapping[str, str] | None) -> ObjectStore:
        return ConflictingStore(Path(uri), self)


class ConflictingStore(LocalStore):
    def __init__(self, path: Path, conflicts: Conflicts) -> None:
        super().__init__(path)
        self._conflicts = conflicts

    def create(self, key: str, body: Body) -> Written | PreconditionFailed | WriteUnknown:
        if self.get(key) is not None:
            return PreconditionFailed()
        self._conflicts.puts += 1
        return PreconditionFailed() if self._conflicts.puts - 1 == self._conflicts.at else super().create(key, body)


def create(directory: Path, ports: Ports) -> None:
    lancelsm.create.on(ports)(directory / "table", FIRST, primary_key="id", registry="object")


def with_table(act: Callable[[Table], Any]) -> Callable[[Path, Ports], None]:
    return lambda directory, ports: act(lancelsm.open.on(ports)(directory / "table"))


STEPS: dict[str, Callable[[Path, Ports], Any]] = {
    "create": create,
    "upsert": with_table(lambda table: table.upsert([row(0, "b"), row(4, "b")])),
    "claim": with_table(lambda table: table.claim(*regions(table._context))),
    "flush": with_table(lambda table: table.flush()),
    "snapshot": with_table(lambda table: table.snapshot("monday", "1h")),
    "merge": with_table(lambda table: table.merge(engine="inprocess")),
    "clone": lambda directory, ports: clone_snapshot(
        open_table(directory / "table", ports=ports), "monday", directory / "clone", ports=ports
    ),
    "back up": with_table(lambda table: lancelsm.backup(table, f"{table.uri}/../backup")),
    "restore": lambda directory, ports: lancelsm.restore.on(ports)(directory / "backup", directory / "restored"),
    "collect": with_table(lambda table: table.collect(yes=True, interval_seconds=0)),
    "drop": lambda directory, ports: lancelsm.drop.on(ports)(directory / "restored"),
}
RESULT_TABLES = {"clone": "clone", "restore": "restored"}


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The directory as it is before each step."""
    root = tmp_path_factory.mktemp("states")
    directory, found = root / "first", {}
    directory.mkdir()
    for number, (name, act) in enumerate(STEPS.items()):
        found[name] = directory
        directory = shutil.copytree(directory, root / str(number))
        act(directory, Conflicts().ports)
    return found


@pytest.mark.one_case
@pytest.mark.parametrize("name", STEPS)
def test_a_put_refused_although_no_object_exists_is_retried_or_raised(states, tmp_path, name):
    done = Conflicts()
    STEPS[name](shutil.copytree(states[name], tmp_path / "without conflicts"), done.ports)
    for at in range(done.puts):
        directory = shutil.copytree(states[name], tmp_path / str(at))
        try:
            STEPS[name](directory, Conflicts(at).ports)
        except (Contended, Ambiguous, Unavailable):
            STEPS[name](directory, Conflicts().ports)

        result = lancelsm.open(directory / RESULT_TABLES.get(name, "table"))
        assert rows_of(result) == (FIRST if name == "create" else ROWS), at
        assert result.scrub().problems == (), at
    assert done.puts
