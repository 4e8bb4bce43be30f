"""A table as of a time has what was acknowledged a margin before, whatever the clocks inside the bucket say."""

from __future__ import annotations

import itertools
import random
import shutil
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lancelsm
from lancelsm.admin import restore_point as module
from lancelsm.admin.restore_point import Times, restore_point, version_at
from lancelsm.objects.bucket_versions import ObjectVersion
from lancelsm.region.handle import Ports
from tests.simulation.faults import MemoryRegistry
from tests.simulation.marks import without
from tests.simulation.removal import Check, check_is_needed

NOON = datetime(2026, 11, 28, 12, tzinfo=UTC)
MARGIN = 0.15  # of the history below, whose steps take some milliseconds each


def line(minute: int, *, deleted: bool = False) -> ObjectVersion:
    return ObjectVersion(key="k", version=str(minute), modified=NOON + timedelta(minutes=minute), deleted=deleted)


@pytest.mark.parametrize(
    ("versions", "found"),
    [
        ([line(0)], "0"),
        ([line(5), line(0)], "0"),
        ([line(2), line(0)], "2"),
        ([line(3)], None),
        ([line(1, deleted=True), line(0)], None),
        ([line(2, deleted=True), line(0)], "0"),  # something older may name it
        ([line(2), line(1, deleted=True), line(0)], "2"),
        ([line(3), line(1, deleted=True), line(0)], None),
        ([], None),
    ],
)
def test_the_version_of_a_time_is_the_newest_that_was_not_deleted_before(
    versions: list[ObjectVersion], found: str | None
) -> None:
    version = version_at(versions, until=NOON + timedelta(minutes=2), deleted_until=NOON + timedelta(minutes=1))

    assert (version and version.version) == found


def test_what_names_an_object_is_older_than_the_object() -> None:
    times = Times.of("2026-11-28T13:00:00+01:00", margin=timedelta(seconds=60))

    region = "_mem_wal/6f1b0a9e-0000-4000-8000-000000000000"
    assert times.until(f"{region}/wal/{'0' * 63}1.arrow") == NOON
    assert times.until("_versions/18446744073709551614.manifest") == NOON - timedelta(seconds=30)
    assert times.until(f"{region}/manifest/{'1' + '0' * 63}.binpb") == NOON - timedelta(seconds=60)
    assert times.until("_lancelsm/config.json") == NOON - timedelta(seconds=60)


class History:
    """The versions of all files of a directory, as a bucket would keep them."""

    def __init__(self, table: Path, kept: Path) -> None:
        self._table, self._kept = table, kept
        self._now: dict[str, int] = {}
        self.lines: dict[str, list[tuple[float, Path | None]]] = {}

    def record(self) -> None:
        """Keep what is new since the last call, with the time of its file; what is gone has the time of now."""
        found = {str(path.relative_to(self._table)): path for path in sorted(self._table.rglob("*")) if path.is_file()}
        stamps = {key: path.stat().st_mtime_ns for key, path in found.items()}
        for key, stamp in stamps.items():
            if self._now.get(key) != stamp:
                copy = self._kept / f"{len(self.lines)}-{stamp}"
                shutil.copyfile(found[key], copy)
                self.lines.setdefault(key, []).append((stamp / 1e9, copy))
        for key in self._now.keys() - stamps.keys():
            self.lines[key].append((time.time(), None))
        self._now = stamps

    def bucket(self, *, skew: Callable[[], float]) -> type:
        """Return a class in place of `VersionedBucket`. Its clocks are wrong by what `skew` returns."""
        lines = {key: [(time + skew(), body) for time, body in found] for key, found in self.lines.items()}

        class Bucket:
            def __init__(self, uri: str, *, budget: object) -> None: ...

            def keeps_versions(self) -> bool:
                return True

            def versions(self, start: str = "") -> Iterator[list[ObjectVersion]]:
                for key in sorted(lines):
                    if key.startswith(start):
                        yield [
                            self._version(key, *one) for one in sorted(lines[key], reverse=True, key=lambda one: one[0])
                        ]

            def read(self, found: ObjectVersion) -> bytes:
                return Path(found.version).read_bytes()

            def copy(self, found: ObjectVersion, to: str) -> None:
                path = Path(to) / found.key
                path.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(found.version, path)

            def _version(self, key: str, modified: float, body: Path | None) -> ObjectVersion:
                return ObjectVersion(
                    key=key, version=str(body), modified=datetime.fromtimestamp(modified, UTC), deleted=body is None
                )

        return Bucket


def test_records_of_a_table_at_another_location_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forged() -> Callable[[], None]:
        registry = MemoryRegistry()
        ports = Ports(registry=lambda *_, **__: registry)
        kept, table, numbers = tmp_path / "kept", tmp_path / "table", itertools.count()
        kept.mkdir()
        lancelsm.create.on(ports)(table, pa.schema([("id", pa.int64())]), primary_key="id").upsert([{"id": 1}])
        history = History(table, kept)
        history.record()
        monkeypatch.setattr(module, "VersionedBucket", history.bucket(skew=lambda: 0))

        def restore() -> None:
            at = datetime.now(UTC).isoformat()
            restore_point(str(table), str(tmp_path / f"to{next(numbers)}"), at=at, ports=ports, margin_seconds=0)

        return restore

    check_is_needed(Check(edits=(without("records of the source stay"),), forged=forged))


@pytest.mark.rest
def test_a_restored_table_is_a_state_of_the_history_that_has_all_acknowledged_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a history of writes, flushes, merges and collections, with its states and times
    kept = tmp_path / "kept"
    kept.mkdir()
    table = lancelsm.create(tmp_path / "table", [{"id": n, "v": 0} for n in range(4)], primary_key="id")
    history, state = History(tmp_path / "table", kept), dict.fromkeys(range(4), 0)
    table.upsert([{"id": 0, "v": 0}])
    history.record()
    states: list[tuple[float, float, dict[int, int]]] = [(0.0, time.time(), dict(state))]
    time.sleep(2 * MARGIN)
    steps: list[Callable[[], Any]] = [table.flush, table.merge, lambda: table.collect(yes=True, interval_seconds=0)]
    for number in range(1, 25):
        begun = time.time()
        table.upsert([{"id": number % 6, "v": number}])
        state[number % 6] = number
        states.append((begun, time.time(), dict(state)))
        history.record()
        steps[number % 3]()
        history.record()
    time.sleep(2 * MARGIN)

    # When the table is restored as of a time right after something was named by a manifest
    moments = [
        modified
        for key, lines in history.lines.items()
        if "/manifest/" in key or key.startswith("_versions/")
        for modified, _ in lines
        if modified > states[1][0]
    ]
    chance = random.Random("skew")
    for number in range(50):
        monkeypatch.setattr(
            module, "VersionedBucket", history.bucket(skew=lambda: chance.uniform(-MARGIN / 4, MARGIN / 4))
        )
        at = chance.choice(moments) + chance.uniform(-MARGIN / 8, MARGIN / 8)
        to = tmp_path / f"restored{number}"
        restored = restore_point(
            str(tmp_path / "table"), str(to), at=datetime.fromtimestamp(at, UTC).isoformat(), margin_seconds=MARGIN
        )

        # Then it is a state that the table had, with everything that was acknowledged a margin before
        found = {row["id"]: row["v"] for row in lancelsm.open(to).scan().to_arrow().to_pylist()}
        acknowledged = max(index for index, (_, ended, _) in enumerate(states) if ended <= at - MARGIN)
        begun = max(index for index, (begun, _, _) in enumerate(states) if begun <= at + MARGIN)
        assert found in [state for _, _, state in states[acknowledged : begun + 1]]
        assert restored.rows == len(found)
