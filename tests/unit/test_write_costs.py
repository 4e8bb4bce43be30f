"""What a write costs, in counts: requests to store and registry, copies of the rows, and sums."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pytest

import lancelsm
from lancelsm.common.layout import Epoch, Nonce, Position
from lancelsm.objects import filesystem
from lancelsm.objects.filesystem import LocalStore
from lancelsm.region.handle import Ports
from lancelsm.wal.entry import decode, draft, encode, fence
from tests.simulation.faults import MemoryStore

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("body", pa.string())])
STORED = pa.schema([*SCHEMA, pa.field("_tombstone", pa.bool_(), nullable=False)])
STORED = pa.schema([f.with_metadata({b"lance:field_id": str(i).encode()}) for i, f in enumerate(STORED)])


def rows(*ids):
    return [{"id": number, "body": "x" * 1000} for number in ids]


def stored(count):
    return pa.table([range(count), [f"{number:04}" * 250 for number in range(count)], [False] * count], schema=STORED)


def encoded(drafted, nonce="a"):
    return encode(drafted, position=Position(1), epoch=Epoch(1), nonce=Nonce(nonce * 32))


def allocated(act):
    """Return how many bytes Arrow allocates during a call, and its result."""
    pool = pa.default_memory_pool()
    before = pool.total_bytes_allocated()
    result = act()
    return pool.total_bytes_allocated() - before, result


class Counted(MemoryStore):
    """Counts requests by method."""

    def __init__(self):
        super().__init__()
        self.calls = Counter()

    def get(self, key):
        self.calls["get"] += 1
        return super().get(key)

    def create(self, key, body):
        self.calls["create"] += 1
        return super().create(key, body)

    def replace(self, key, body, *, expect):
        self.calls["replace"] += 1
        return super().replace(key, body, expect=expect)

    def list(self, prefix):
        self.calls["list"] += 1
        return super().list(prefix)

    def during(self, act):
        before = self.calls.copy()
        act()
        return dict(self.calls - before)


@pytest.fixture
def store():
    return Counted()


@pytest.fixture
def table(tmp_path, store):
    return lancelsm.create.on(Ports(store=lambda *_: store))(
        tmp_path / "table", SCHEMA, primary_key="id", registry="object"
    )


def test_an_append_with_a_held_head_is_two_requests(table, store):
    table.upsert(rows(1))
    assert store.during(lambda: table.upsert(rows(2))) == {"create": 1, "replace": 1}
    assert store.during(lambda: table.delete([2])) == {"create": 1, "replace": 1}


def test_the_first_append_of_a_fresh_handle_is_three_requests(table, store):
    table.upsert(rows(1))
    fresh = lancelsm.open.on(Ports(store=lambda *_: store))(table.uri)
    assert store.during(lambda: fresh.upsert(rows(2))) == {"get": 1, "create": 1, "replace": 1}
    assert store.during(lambda: fresh.upsert(rows(3))) == {"create": 1, "replace": 1}
    assert sorted(fresh.scan().to_arrow()["id"].to_pylist()) == [1, 2, 3]


def test_a_head_that_another_handle_changed_is_read_again(table, store):
    table.upsert(rows(1))
    fresh = lancelsm.open.on(Ports(store=lambda *_: store))(table.uri)
    for number in range(2, 6):
        (table if number % 2 else fresh).upsert(rows(number))
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == [1, 2, 3, 4, 5]


def test_the_registry_remembers_a_bounded_number_of_records(tmp_path, store, monkeypatch):
    monkeypatch.setattr("lancelsm.registry.object._REMEMBERED", 2)
    ports = Ports(store=lambda *_: store)
    table = lancelsm.create.on(ports)(
        tmp_path / "table", SCHEMA, primary_key="id", regions="bucket(id, 8)", registry="object"
    )
    table.upsert(rows(*range(40)))
    calls = store.during(lambda: table.upsert(rows(*range(40))))
    assert (calls["create"], calls["replace"]) == (8, 8)
    assert 6 <= calls["get"] <= 8
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == list(range(40))


def test_the_rows_of_a_draft_are_copied_once():
    plain = stored(10_000)
    size, drafted = allocated(lambda: draft(plain))
    more, entry = allocated(lambda: encoded(drafted))
    assert plain.nbytes < size < plain.nbytes * 1.1  # with the sample that decides about compression
    assert more < 10_000
    assert len(entry.body) > plain.nbytes


def test_an_attempt_does_not_change_the_body_of_an_earlier_attempt():
    drafted = draft(stored(3))
    first = encoded(drafted, "a")
    before = bytes(first.body)
    second = encoded(drafted, "b")
    assert bytes(first.body) == before != bytes(second.body)
    for entry in (first, second):
        read = decode(bytes(entry.body), position=Position(1), key="k")
        assert (read.nonce, read.sound, read.table().equals(stored(3))) == (entry.nonce, True, True)


def test_the_body_of_an_entry_cannot_be_changed():
    with pytest.raises(TypeError):
        encoded(draft(stored(3))).body[0] = 0


@pytest.mark.parametrize("length", [1, 3500, 4096, 100_000])
def test_metadata_longer_than_the_free_space_is_encoded_too(length):
    drafted = draft(stored(3), applied_sequences={"q" * length: "12"})
    entry = encoded(drafted)
    read = decode(bytes(entry.body), position=Position(1), key="k")
    assert read.summary.applied_sequences == {"q" * length: "12"}
    assert (read.sound, read.table().equals(stored(3)), entry.summary.bytes) == (True, True, len(entry.body))


def test_a_fence_is_encoded_any_number_of_times():
    drafted = fence()
    assert encoded(drafted).body == encoded(drafted).body != encoded(drafted, "b").body


def test_a_get_sums_an_object_only_for_its_etag(tmp_path, monkeypatch):
    store = LocalStore(tmp_path)
    written = store.create("k", b"content")
    summed = []
    real = filesystem.etag_of
    monkeypatch.setattr(filesystem, "etag_of", lambda body: summed.append(body) or real(body))
    found = store.get("k")
    assert (found.body, summed) == (b"content", [])
    assert (found.etag, found.etag, summed) == (written.etag, written.etag, [b"content"])


def test_opening_a_local_table_reads_no_directory_of_a_generation(tmp_path, monkeypatch):
    table = lancelsm.create(tmp_path / "table", SCHEMA, primary_key="id", regions="bucket(id, 2)")
    table.upsert(rows(*range(10)))
    table.flush()
    read, entries, names_in = [], filesystem._entries, filesystem._names_in
    monkeypatch.setattr(filesystem, "_entries", lambda at, start: read.append(at) or entries(at, start))
    monkeypatch.setattr(filesystem, "_names_in", lambda at: read.append(at) or names_in(at))

    lancelsm.open(tmp_path / "table")

    below = Counter(directory.rpartition("/")[2] for directory in read if "/_mem_wal/" in directory)
    assert below == {"manifest": 2, "wal": 2}
