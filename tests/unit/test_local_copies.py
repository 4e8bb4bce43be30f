"""On an object store, a flush and a merge read each file once, and what they check is what the store holds."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lancelsm
from benchmarks.s3 import Server, serving
from lancelsm.compaction import maintenance
from lancelsm.dataset.base_rows import Base
from lancelsm.errors import Corrupt
from lancelsm.objects import local_copies
from lancelsm.objects.local_copies import LocalCopies
from lancelsm.table import Table

ROWS = pa.table({"id": pa.array(range(200), pa.int64()), "body": [f"body {number}" for number in range(200)]})
NEWER = pa.table({"id": pa.array(range(100, 300), pa.int64()), "body": [f"newer {n}" for n in range(200)]})


class DamagingObjects(dict[str, bytes]):
    """Objects of a store that flips a byte of each data file below a prefix when it is written."""

    prefix = "nothing"

    def __setitem__(self, key: str, body: bytes) -> None:
        if key.startswith(self.prefix) and key.endswith(".lance") and "/data/" in key:
            body = flipped(body)
        super().__setitem__(key, body)


def flipped(body: bytes) -> bytes:
    at = body.index(b"newer 7")
    return body[:at] + b"N" + body[at + 1 :]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    environment = os.environ.copy()
    with serving() as found:
        found.objects = DamagingObjects()
        yield found
    os.environ.clear()
    os.environ |= environment


@pytest.fixture
def objects(server: Server) -> Iterator[DamagingObjects]:
    assert isinstance(server.objects, DamagingObjects)
    yield server.objects
    server.objects.prefix = "nothing"
    server.objects.clear()


@pytest.fixture
def table(server: Server, objects: DamagingObjects) -> Table:
    table = lancelsm.create("s3://bucket/t", ROWS, primary_key="id", storage_options=server.options)
    table.upsert(NEWER)
    return table


def rows(table: Table) -> dict[int, str]:
    found = table.scan().to_arrow()
    return dict(zip(found["id"].to_pylist(), found["body"].to_pylist(), strict=True))


EXPECTED = dict(zip(ROWS["id"].to_pylist(), ROWS["body"].to_pylist(), strict=True)) | dict(
    zip(NEWER["id"].to_pylist(), NEWER["body"].to_pylist(), strict=True)
)


@pytest.mark.rest
def test_a_flush_notices_that_the_store_holds_another_byte_than_was_sent(
    table: Table, objects: DamagingObjects
) -> None:
    objects.prefix = "t/_mem_wal/"
    with pytest.raises(Corrupt, match="rows of the generation differ"):
        table.flush()
    objects.prefix = "nothing"

    assert table.flush()
    assert rows(table) == EXPECTED


@pytest.mark.rest
def test_a_merge_notices_that_a_generation_changed_since_its_flush_and_that_a_new_file_is_wrong(
    table: Table, objects: DamagingObjects
) -> None:
    table.flush()
    version = table.status().base_version
    (generation,) = (key for key in objects if "_gen_1/data/" in key)
    intact = objects[generation]
    objects[generation] = flipped(intact)
    with pytest.raises(Corrupt, match="not those that were flushed"):
        table.merge(engine="inprocess")
    objects[generation] = intact
    objects.prefix = "t/data/"
    with pytest.raises(Corrupt, match="new file of the base is wrong"):
        table.merge(engine="inprocess")
    objects.prefix = "nothing"
    assert table.status().base_version == version

    table.merge(engine="inprocess")
    assert rows(table) == EXPECTED


@pytest.mark.rest
def test_without_room_on_this_machine_generations_are_written_and_read_in_the_store(
    table: Table, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(local_copies.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(LocalCopies.__init__, "__kwdefaults__", {"room": 100})
    monkeypatch.setattr(maintenance, "_STAGED_BYTES", 100)
    table.flush()
    table.merge(engine="inprocess")

    assert rows(table) == EXPECTED
    assert not list(tmp_path.iterdir())


def test_copies_end_with_their_context_and_are_not_sent_to_other_machines(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(local_copies.tempfile, "tempdir", str(tmp_path))
    with LocalCopies("s3://bucket/t", room=3) as copies:
        first, second = copies.begin("first"), copies.begin("second")
        first.add("data/a", b"12")
        first.add("data/a", b"3")
        second.add("data/b", b"4")
        assert second.location is copies.find("second") is None
        assert first.location is not None
        assert Path(first.location, "data/a").read_bytes() == b"123"
        assert copies.find("first") == first.location
        assert pickle.loads(pickle.dumps(copies)) is None
        first.drop()
        third = copies.begin("third")
        third.add("data/c", b"567")
        assert third.location is not None, "a dropped copy makes room"
    assert not list(tmp_path.iterdir())


def test_a_base_is_sent_to_other_machines_without_its_open_dataset() -> None:
    opened: Any = object()
    base = Base(uri="s3://bucket/t", version=3, table="a", storage_options=(("aws_region", "b"),), opened=opened)

    assert base.open() is opened
    sent = pickle.loads(pickle.dumps(base))
    assert (sent, sent.opened) == (base, None)
