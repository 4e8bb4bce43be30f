"""Lance claims, replays and flushes regions that lancelsm wrote, and lancelsm reads what Lance writes."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lancelsm.common.clock import SeededIds, SystemClock
from lancelsm.common.layout import (
    Epoch,
    Generation,
    Position,
    RegionId,
    TableId,
    Version,
    bitrev64,
    published_manifest,
    version_hint,
    wal_entry,
)
from lancelsm.objects.filesystem import LocalStore
from lancelsm.record.normalize import deletes, upserts
from lancelsm.record.schema import TableSchema
from lancelsm.region import manifest as manifests
from lancelsm.region import manifest_codec, manifest_invariants
from lancelsm.region.catalog import Region, TableContext
from lancelsm.region.compare_and_swap import commit, load
from lancelsm.region.head import LogTotals
from lancelsm.region.manifest import FlushedGeneration
from lancelsm.region.manifest_codec import written_by_lance
from lancelsm.registry.sqlite import SqliteRegistry
from lancelsm.wal.append import append
from lancelsm.wal.claim import claim, create_region, seal
from lancelsm.wal.entry import Entry, decode, draft
from tests.interop.lance_oracle import by_key, generations, make_table, shard_directory, table_schema

pytestmark = pytest.mark.interop

INTS = pa.schema([pa.field("id", pa.int64()), pa.field("v", pa.utf8())])
TEXTS = pa.schema([pa.field("id", pa.utf8()), pa.field("v", pa.float64())])
WORDS = pa.schema([pa.field("id", pa.int64()), pa.field("v", pa.dictionary(pa.int16(), pa.utf8()))])
PAIRS = pa.schema([pa.field("a", pa.int64()), pa.field("b", pa.utf8()), pa.field("v", pa.list_(pa.int32()))])
SHARD = "5f0b2f3e-9a0a-4c4c-8f7e-0000000000aa"


class Ours:
    """A Lance table with one region of lancelsm, which writes only manifests and the log and never flushes."""

    def __init__(self, uri: Path, columns: pa.Schema, key: tuple[str, ...]) -> None:
        make_table(uri, columns, key)
        self.uri = uri
        self.schema: TableSchema = table_schema(uri)
        registry = SqliteRegistry(uri / "_lancelsm" / "registry.sqlite")
        self.context = TableContext(
            uri=str(uri),
            table=TableId("11111111-1111-4111-8111-111111111111"),
            objects=LocalStore(uri),
            registry=registry,
            clock=SystemClock(),
            ids=SeededIds(1),
        )
        self.region: Region = create_region(self.context, spec_id=0, values=(), owner="default")

    def upsert(self, *rows: dict) -> None:
        append(self.region, draft(upserts(rows, schema=self.schema)), owner="default")

    def delete(self, *keys: dict) -> None:
        append(self.region, draft(deletes(keys, schema=self.schema)), owner="default")

    def read_by_lance(self, then_put: pa.Table | None = None) -> list[dict]:
        """Let Lance claim the region, replay and scan it. It flushes when its writer closes."""
        with lance.dataset(str(self.uri)).mem_wal_writer(self.region.id) as writer:
            if then_put is not None:
                writer.put(then_put)
            rows = by_key(writer.lsm_scanner().to_table(), *self.schema.primary_key)
        return [{name: value for name, value in row.items() if not name.startswith("_")} for row in rows]

    def flushed_by_lance(self) -> list[list[dict]]:
        return [lance.dataset(str(path)).to_table().to_pylist() for path in generations(self.uri, self.region.id)]

    def newest_manifest(self) -> manifests.Manifest:
        version = 1
        while (found := load(self.region, published_manifest(self.region.id, Version(version)))) is not None:
            newest, version = found.manifest, version + 1
        return newest


@pytest.fixture
def ours(tmp_path: Path) -> Ours:
    return Ours(tmp_path / "t", INTS, ("id",))


def test_lance_replays_deletes_with_a_sequence_and_an_entry_that_forgets_a_producer(ours):
    ours.upsert({"id": 1, "v": "a"}, {"id": 2, "v": "b"})
    deleted = deletes([{"id": 1}], schema=ours.schema)
    append(ours.region, draft(deleted.set_column(1, deleted.schema.field("v"), pa.array(["9"]))), owner="default")
    nothing = draft(ours.schema.stored.empty_table(), applied_sequences={"p": "0"}, at=1.0)
    append(ours.region, nothing, owner="default")
    ours.upsert({"id": 3, "v": "c"})

    assert ours.read_by_lance() == [{"id": 2, "v": "b"}, {"id": 3, "v": "c"}]


def test_lance_replays_our_entries_in_order(ours):
    ours.upsert({"id": 1, "v": "a"}, {"id": 2, "v": "b"})
    ours.upsert({"id": 2, "v": "B"}, {"id": 3, "v": None})
    ours.delete({"id": 1})

    assert ours.read_by_lance() == [{"id": 2, "v": "B"}, {"id": 3, "v": None}]


def test_lance_replays_a_compressed_entry(ours):
    values = [f"{number % 9:01000}" for number in range(1500)]
    appended = append(
        ours.region,
        draft(upserts([{"id": n, "v": v} for n, v in enumerate(values)], schema=ours.schema)),
        owner="default",
    )
    (entry,) = ours.uri.glob("_mem_wal/*/wal/*")
    assert 10 * entry.stat().st_size < appended.summary.bytes

    assert ours.read_by_lance(then_put=pa.table({"id": [1500], "v": ["last"]}, schema=ours.schema.columns)) == [
        {"id": number, "v": value} for number, value in enumerate([*values, "last"])
    ]


def test_lance_flushes_our_entries_with_tombstones(ours):
    ours.upsert({"id": 1, "v": "a"}, {"id": 2, "v": "b"})
    ours.delete({"id": 2})
    ours.read_by_lance()

    (flushed,) = ours.flushed_by_lance()
    assert by_key(flushed, "id") == [
        {"id": 1, "v": "a", "_tombstone": False},
        {"id": 2, "v": None, "_tombstone": True},
    ]
    manifest = ours.newest_manifest()
    assert (manifest.epoch, manifest.replay_after, manifest.current_generation) == (2, 3, 2)


@pytest.mark.parametrize(
    ("columns", "key", "rows", "deleted", "remaining"),
    [
        (TEXTS, ("id",), [{"id": "a", "v": 1.5}, {"id": "ä", "v": None}], {"id": "a"}, [{"id": "ä", "v": None}]),
        (
            PAIRS,
            ("a", "b"),
            [{"a": 1, "b": "x", "v": [1, None]}, {"a": 1, "b": "y", "v": None}],
            {"a": 1, "b": "x"},
            [{"a": 1, "b": "y", "v": None}],
        ),
        (
            PAIRS,
            ("b", "a"),
            [{"a": 1, "b": "x", "v": []}, {"a": 2, "b": "x", "v": [3]}],
            {"a": 2, "b": "x"},
            [{"a": 1, "b": "x", "v": []}],
        ),
    ],
    ids=["text key", "composite key", "composite key in another order"],
)
def test_lance_replays_entries_with_other_types_of_keys(tmp_path, columns, key, rows, deleted, remaining):
    ours = Ours(tmp_path / "t", columns, key)
    ours.upsert(*rows)
    ours.delete(deleted)
    more = pa.Table.from_pylist(remaining, schema=lance.dataset(str(ours.uri)).schema)
    assert ours.read_by_lance(more) == remaining
    assert len(ours.flushed_by_lance()) == 1


def test_lance_replays_entries_with_different_dictionaries(tmp_path):
    ours = Ours(tmp_path / "t", WORDS, ("id",))
    ours.upsert({"id": 1, "v": "a"}, {"id": 2, "v": "b"})
    ours.upsert({"id": 2, "v": "c"}, {"id": 3, "v": None})
    assert ours.read_by_lance() == [{"id": 1, "v": "a"}, {"id": 2, "v": "c"}, {"id": 3, "v": None}]


def test_lance_skips_our_fences_and_appends_after_them(ours):
    ours.upsert({"id": 1, "v": "a"})
    claim(ours.region, owner="default")
    ours.upsert({"id": 2, "v": "b"})
    claim(ours.region, owner="default")

    more = pa.table({"id": [3], "v": ["c"]}, schema=ours.schema.columns)
    assert [row["id"] for row in ours.read_by_lance(more)] == [1, 2, 3]
    manifest = ours.newest_manifest()
    assert (manifest.epoch, manifest.replay_after) == (4, 6)  # entries, two fences, Lance's fence, its entry


def test_lance_replays_only_entries_after_the_replay_point(ours):
    # Entries are appended after the end of a flush, one of them with a head that was read before the flush.
    ours.upsert({"id": 1, "v": "flushed"})
    held = append(ours.region, draft(upserts([{"id": 2, "v": "a"}], schema=ours.schema)), owner="default").head
    totals = LogTotals().after([entry(ours, 1).summary])
    commit(
        ours.region,
        lambda m: replace(
            m,
            replay_after=Position(1),
            current_generation=Generation(2),
            entry_setsum=totals.entry_setsum,
            collected_entries=totals.entry_setsum,
            wal_rows=totals.wal_rows,
            wal_bytes=totals.wal_bytes,
        ),
    )
    append(ours.region, draft(upserts([{"id": 3, "v": "b"}], schema=ours.schema)), owner="default", held=held)
    ours.upsert({"id": 2, "v": "A"})

    assert ours.read_by_lance() == [{"id": 2, "v": "A"}, {"id": 3, "v": "b"}]
    assert [path.name[8:] for path in generations(ours.uri, ours.region.id)] == ["_gen_2"]


def test_lance_refuses_a_region_that_lancelsm_sealed(ours):
    ours.upsert({"id": 1, "v": "a"})
    seal(ours.region)
    with pytest.raises(OSError, match=r"(?i)sealed"):
        ours.read_by_lance()


def test_lance_finds_our_newest_manifest_by_the_hint_and_ignores_staged_ones(ours):
    for _ in range(3):
        claim(ours.region, owner="default")
    hint = ours.context.objects.get(version_hint(ours.region.id))
    assert hint.body == b'{"version":4}'
    ours.upsert({"id": 1, "v": "a"})

    assert ours.read_by_lance() == [{"id": 1, "v": "a"}]
    assert ours.newest_manifest().epoch == 5


def test_lance_replays_a_long_log(ours):
    for number in range(40):
        ours.upsert({"id": number % 7, "v": str(number)})
    assert ours.read_by_lance() == [{"id": key, "v": str(max(range(key, 40, 7)))} for key in range(7)]


def entry(ours: Ours, position: int) -> Entry:
    key = wal_entry(ours.region.id, Position(position))
    return decode(ours.context.objects.get(key).body, position=Position(position), key=key)


def test_our_entries_have_the_same_schema_as_lances(tmp_path):
    ours = Ours(tmp_path / "t", PAIRS, ("b", "a"))
    ours.upsert({"a": 1, "b": "x", "v": [1]})
    body = ours.context.objects.get(wal_entry(ours.region.id, Position(1))).body
    with lance.dataset(str(ours.uri)).mem_wal_writer(SHARD) as writer:
        writer.put(pa.table({"a": [1], "b": ["x"], "v": [[1]]}, schema=lance.dataset(str(ours.uri)).schema))
        theirs = wal_files(ours.uri)[0].read_bytes()

    our_schema, their_schema = pa.ipc.open_stream(body).schema, pa.ipc.open_stream(theirs).schema
    stored = entry(ours, 1).table().schema
    assert stored.equals(their_schema.remove_metadata(), check_metadata=True)
    assert our_schema.metadata == {b"writer_epoch": b"1"}
    assert their_schema.metadata == {b"writer_epoch": b"1", b"generation": b"1"}


def wal_files(uri: Path, shard: str = SHARD) -> list[Path]:
    found = (shard_directory(uri, shard) / "wal").iterdir()
    return sorted(found, key=lambda path: int(path.name.partition(".")[0][::-1], 2))


def test_lancelsm_reads_lances_entries(tmp_path):
    uri = tmp_path / "t"
    make_table(uri, INTS, ("id",))
    columns = table_schema(uri).columns
    with lance.dataset(str(uri)).mem_wal_writer(SHARD) as writer:
        writer.put(pa.table({"id": [1, 2], "v": ["a", "b"]}, schema=columns))
        writer.delete(pa.table({"id": pa.array([1], pa.int64())}))
    with lance.dataset(str(uri)).mem_wal_writer(SHARD) as writer:
        writer.put(pa.table({"id": [3], "v": ["c"]}, schema=columns))

    read = [
        decode(path.read_bytes(), position=Position(number), key=path.name)
        for number, path in enumerate(wal_files(uri), 1)
    ]

    assert [path.name for path in wal_files(uri)] == [f"{bitrev64(n)}.arrow" for n in range(1, len(read) + 1)]
    assert all((e.nonce, e.sound, e.row_setsum) == (None, False, None) for e in read)
    rows = [(e.summary.epoch, e.fence, e.table().to_pylist()) for e in read]
    assert (2, True, []) in rows
    assert rows[0] == (1, False, [{"id": 1, "v": "a", "_tombstone": False}, {"id": 2, "v": "b", "_tombstone": False}])
    assert (1, False, [{"id": 1, "v": None, "_tombstone": True}]) in rows
    assert (2, False, [{"id": 3, "v": "c", "_tombstone": False}]) in rows
    assert [e.summary.rows for e in read] == [len(found) for _, _, found in rows]


def test_lancelsm_reads_lances_manifests(tmp_path):
    uri = tmp_path / "t"
    make_table(uri, INTS, ("id",))
    columns = table_schema(uri).columns
    for number in (1, 2):
        with lance.dataset(str(uri)).mem_wal_writer(SHARD) as writer:
            writer.put(pa.table({"id": [number], "v": ["a"]}, schema=columns))

    paths = sorted((shard_directory(uri, SHARD) / "manifest").glob("*.binpb"), key=lambda path: int(path.stem[::-1], 2))
    read = [manifest_codec.decode(path.read_bytes(), key=path.name) for path in paths]

    assert [m.version for m in read] == list(range(1, len(read) + 1))
    assert all(written_by_lance(path.read_bytes()) for path in paths)
    last = read[-1]
    assert (last.region, last.epoch, last.sealed, last.first_position) == (RegionId(SHARD), Epoch(2), False, 1)
    assert [g.generation for g in last.generations] == [1, 2]
    assert all(isinstance(g, FlushedGeneration) and g.folded is None and g.rows == 1 for g in last.generations)
    assert [g.path for g in last.generations] == [path.name for path in generations(uri, SHARD)]
    assert last.replay_after == len(wal_files(uri))
    for older, newer in pairwise(read):
        assert manifest_invariants.violations(older, newer) == []


def test_lance_refuses_unknown_schema_metadata_of_an_entry(ours):
    # So our metadata is stored in the last field. If this test fails, it could be stored in the schema instead.
    ours.upsert({"id": 1, "v": "a"})
    key = wal_entry(ours.region.id, Position(1))
    rows = entry(ours, 1).table()
    path = ours.uri / key
    path.unlink()
    schema = rows.schema.with_metadata({"writer_epoch": "1", "ours": "1"})
    with pa.ipc.new_stream(path, schema) as writer:
        writer.write_table(rows.cast(schema))
    with pytest.raises(OSError, match="schema doesn't match"):
        ours.read_by_lance()


def test_lance_skips_entries_of_flushed_generations_and_refuses_decreasing_numbers(ours):
    # So our entries carry no generation number.
    def put(position: int, generation: int) -> None:
        rows = upserts([{"id": position, "v": "a"}], schema=ours.schema)
        schema = rows.schema.with_metadata({"writer_epoch": "1", "generation": str(generation)})
        path = ours.uri / wal_entry(ours.region.id, Position(position))
        path.parent.mkdir(exist_ok=True)
        with pa.ipc.new_stream(path, schema) as writer:
            writer.write_table(rows.cast(schema))

    put(1, 0)
    put(2, 1)
    assert [row["id"] for row in ours.read_by_lance()] == [2]
    manifest = ours.newest_manifest()
    put(manifest.replay_after + 1, 3)
    put(manifest.replay_after + 2, 2)
    with pytest.raises(OSError, match="generation 2 below the generation 3"):
        ours.read_by_lance()
