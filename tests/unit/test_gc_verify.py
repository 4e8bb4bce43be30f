"""The verifier refuses every wrong round and names the object. It repairs nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from threading import Barrier
from types import SimpleNamespace

import pytest

from lancelsm.common.layout import (
    Generation,
    Position,
    Version,
    generation_path,
    published_manifest,
    version_hint,
    wal_entry,
)
from lancelsm.common.setsum import Setsum
from lancelsm.common.settings import Settings
from lancelsm.errors import Contended, Corrupt, Invalid
from lancelsm.gc import collect as collection
from lancelsm.gc.lists import GarbageItem, GarbageKind, Round, read_list, write_list
from lancelsm.gc.scopes import RegionScope
from lancelsm.gc.verify import verify_region
from lancelsm.history.pins import read_pins
from lancelsm.objects import Object
from lancelsm.region.compare_and_swap import newest
from lancelsm.wal.entry import encode
from tests.simulation.collecting import TableEnv, filled
from tests.simulation.environment import a_nonce, row


def marked(table_env: TableEnv) -> str:
    with table_env.collecting():
        (key,) = collection.mark(table_env.handle("marker", faulty=False)).rounds
    return key


def verify(table_env: TableEnv, key: str, **settings: int) -> None:
    region = table_env.region("verifier")
    pins = read_pins(region.context)
    verify_region(region, key, pins=pins, progress=table_env.progress(), settings=Settings(**settings))


def marked_with_change(table_env: TableEnv, change: Callable[[Round], Round]) -> str:
    """Let mark write its list, then write a changed copy of it and return the key."""
    context = table_env.region("marker").context
    return write_list(context, change(read_list(context, marked(table_env)).round)).key


def with_item(kind: GarbageKind, path: str, number: int) -> Callable[[Round], Round]:
    item = GarbageItem(kind=kind, path=path, number=number, bytes=1, why="a bug")
    return lambda found: replace(found, items=(*found.items, item))


def test_a_marked_round_is_verified_and_again_after_its_commit() -> None:
    table_env = filled()
    key = marked(table_env)
    before = table_env.stored()

    verify(table_env, key)
    assert table_env.stored() == before
    with table_env.collecting():
        collection.commit(table_env.handle("committer", faulty=False), [key])
    verify(table_env, key)


def wrong_items(table_env: TableEnv) -> dict[str, tuple[GarbageKind, str, int]]:
    region = table_env.region("x")
    head, manifest = newest(region, region.head())
    last = manifest.generations[-1]
    prefix = f"_mem_wal/{region.id}/"
    return {
        "a generation that the base lacks": (
            GarbageKind.GENERATION,
            generation_path(region.id, last.path),
            last.generation,
        ),
        "a generation that a flush may write": (GarbageKind.GENERATION, f"{prefix}00000000_gen_5", 5),
        "an entry that is in no generation": (GarbageKind.ENTRY, wal_entry(region.id, Position(9)), 9),
        "an entry above the head": (GarbageKind.ENTRY, wal_entry(region.id, Position(11)), 11),
        "the manifest that the head names": (GarbageKind.STAGED, head.manifest_key, head.manifest_version),
        "a manifest that may still be committed": (
            GarbageKind.STAGED,
            f"{prefix}manifest/staged/6-{'0' * 32}.binpb",
            6,
        ),
        "the newest published manifest": (
            GarbageKind.PUBLISHED,
            published_manifest(region.id, head.manifest_version),
            5,
        ),
        "a list that may still be committed": (GarbageKind.LIST, f"{prefix}gc/1-{'0' * 32}.binpb", 1),
        "another region's object": (GarbageKind.ENTRY, f"_mem_wal/{'0' * 8}/wal/x.arrow", 1),
        "the configuration": (GarbageKind.STAGED, "_lancelsm/config.json", 1),
        "a path out of the region": (GarbageKind.GENERATION, f"{prefix}../other/00000000_gen_1", 1),
        "an entry with a wrong number": (GarbageKind.ENTRY, wal_entry(region.id, Position(9)), 1),
        "a generation with a wrong number": (GarbageKind.GENERATION, generation_path(region.id, last.path), 1),
        "a file of the base": (GarbageKind.BASE_FILE, f"{prefix}data/x.lance", 0),
    }


@pytest.mark.parametrize("name", wrong_items(filled()))
def test_an_item_that_is_needed_or_wrong_is_refused_and_named(name: str) -> None:
    table_env = filled()
    kind, path, number = wrong_items(table_env)[name]

    with pytest.raises(Corrupt, match="Nothing was deleted") as error:
        verify(table_env, marked_with_change(table_env, with_item(kind, path, number)))
    assert error.value.where["object"] == path


@pytest.mark.parametrize("kind", [GarbageKind.GENERATION, GarbageKind.STAGED, GarbageKind.PUBLISHED])
def test_a_round_with_an_object_that_a_pin_needs_must_be_marked_again(kind: GarbageKind) -> None:
    table_env = filled()
    pin = table_env.pin("held")
    table_env.merge()
    table_env.write(100, 101)
    table_env.flush()
    table_env.merge()
    needs = pin.regions[table_env.environment.id]
    paths = {
        GarbageKind.GENERATION: (f"_mem_wal/{table_env.environment.id}/00000000_gen_3", 3),
        GarbageKind.STAGED: (needs.manifest_key, needs.manifest_version),
        GarbageKind.PUBLISHED: (
            published_manifest(table_env.environment.id, needs.manifest_version),
            needs.manifest_version,
        ),
    }

    with pytest.raises(Contended, match="snapshot held needs") as error:
        verify(table_env, marked_with_change(table_env, with_item(kind, *paths[kind])))
    assert error.value.where["object"] == paths[kind][0]


def test_a_round_that_skips_the_oldest_generation_is_refused() -> None:
    table_env = filled(merged=4)

    def without_the_oldest(found: Round) -> Round:
        return replace(found, items=tuple(i for i in found.items if (i.kind, i.number) != (GarbageKind.GENERATION, 1)))

    with pytest.raises(Corrupt, match="before an older one"):
        verify(table_env, marked_with_change(table_env, without_the_oldest))


@pytest.mark.parametrize("floor", [0, 10, 99])
def test_a_floor_beyond_the_flushed_log_is_refused(floor: int) -> None:
    table_env = filled()
    with pytest.raises(Corrupt, match="floor"):
        verify(table_env, marked_with_change(table_env, lambda found: replace(found, floor=floor, items=())))


def test_a_floor_within_a_generation_is_checked_to_the_end_of_that_generation() -> None:
    table_env = filled()
    sums = [table_env.environment.log[Position(at)].summary.entry_setsum for at in (1, 2, 3)]

    def lower(found: Round) -> Round:
        return replace(found, floor=4, items=(), discarded=sum(sums, start=Setsum()))

    verify(table_env, marked_with_change(table_env, lower))
    replace_entry(table_env, 4)
    with pytest.raises(Corrupt, match="through position 4"):
        verify(table_env, marked_with_change(table_env, lower))


def test_a_round_whose_sum_differs_from_the_log_is_refused() -> None:
    table_env = filled()
    with pytest.raises(Corrupt, match="don't have the sum in its list"):
        verify(table_env, marked_with_change(table_env, lambda found: replace(found, discarded=Setsum.of([b"x"]))))


def replace_entry(table_env: TableEnv, position: int) -> None:
    """Replace a committed entry with another sound entry."""
    key = wal_entry(table_env.environment.id, Position(position))
    table_env.environment.store.remove(key)
    other = encode(row(999), position=Position(position), epoch=1, nonce=a_nonce(999))  # type: ignore[arg-type]
    table_env.environment.store.create(key, other.body)


def flip_entry(table_env: TableEnv, position: int = 3) -> None:
    key = wal_entry(table_env.environment.id, Position(position))
    body = bytearray(table_env.environment.store.get(key).body)  # type: ignore[union-attr]
    body[-20] ^= 1
    table_env.environment.store.remove(key)
    table_env.environment.store.create(key, body)


def swap_entries(table_env: TableEnv) -> None:
    keys = [wal_entry(table_env.environment.id, Position(at)) for at in (2, 3)]
    bodies = [table_env.environment.store.get(key).body for key in keys]  # type: ignore[union-attr]
    for key, body in zip(keys, reversed(bodies), strict=True):
        table_env.environment.store.remove(key)
        table_env.environment.store.create(key, body)


def duplicate_entry(table_env: TableEnv) -> None:
    first, second = (wal_entry(table_env.environment.id, Position(at)) for at in (2, 3))
    body = table_env.environment.store.get(first).body  # type: ignore[union-attr]
    table_env.environment.store.remove(second)
    table_env.environment.store.create(second, body)


LOSSES: dict[str, tuple[Callable[[TableEnv], None], int | str]] = {
    "missing": (
        lambda table_env: table_env.environment.store.remove(wal_entry(table_env.environment.id, Position(3))),
        3,
    ),
    "replaced by a sound entry": (lambda table_env: replace_entry(table_env, 3), "1..8"),
    "flipped": (flip_entry, 3),
    "swapped with its neighbour": (swap_entries, 2),
    "replaced by its neighbour": (duplicate_entry, 3),
}


@pytest.mark.parametrize("damage_kind", LOSSES)
def test_a_damaged_entry_stops_the_round_before_its_generations_are_deleted(damage_kind: str) -> None:
    table_env = filled()
    key = marked(table_env)
    damaged, position = LOSSES[damage_kind]
    damaged(table_env)
    before = table_env.stored()

    with pytest.raises(Corrupt) as error:
        verify(table_env, key)
    where = error.value.where
    assert where["position"] == position
    if isinstance(position, int):
        assert where["object"] == wal_entry(table_env.environment.id, Position(position))
    assert table_env.stored() == before
    with pytest.raises(Corrupt):
        table_env.collect()


@pytest.mark.parametrize("parallel", [1, 2])
def test_each_entry_is_read_once_and_in_parallel(parallel: int) -> None:
    table_env = filled()
    key = marked(table_env)
    barrier, read = Barrier(parallel), list[str]()
    region = table_env.region("verifier")
    objects = region.context.objects

    def get(key: str) -> Object | None:
        if "/wal/" in key:
            read.append(key)
            barrier.wait(timeout=10)
        return objects.get(key)

    context = replace(region.context, objects=SimpleNamespace(get=get, list=objects.list), parallel=parallel)  # type: ignore[arg-type]
    verify_region(replace(region, context=context), key, pins=[], progress=table_env.progress(), settings=Settings())

    all_keys = [wal_entry(table_env.environment.id, Position(at)) for at in range(1, 9)]
    assert (read if parallel == 1 else sorted(read)) == (all_keys if parallel == 1 else sorted(all_keys))


@pytest.mark.parametrize("parallel", [1, 4])
def test_the_first_of_several_wrong_entries_is_named(parallel: int) -> None:
    table_env = filled()
    key = marked(table_env)
    for position in (7, 5, 3):
        flip_entry(table_env, position)
    region = table_env.region("verifier")
    region = replace(region, context=replace(region.context, parallel=parallel))

    with pytest.raises(Corrupt, match="entry 3 does not have the sum") as error:
        verify_region(region, key, pins=[], progress=table_env.progress(), settings=Settings())
    assert error.value.where["position"] == 3


def test_a_base_that_was_restored_since_mark_is_corrupt() -> None:
    table_env = filled()
    key = marked(table_env)
    table_env.counter = Generation(1)

    with pytest.raises(Corrupt, match="does not have it"):
        verify(table_env, key)


def test_a_base_ahead_of_the_head_means_a_lost_registry() -> None:
    table_env = filled()
    key = marked(table_env)
    table_env.counter = Generation(7)

    with pytest.raises(Corrupt, match=f"registry rebuild {table_env.region('v').context.uri}"):
        verify(table_env, key)


def test_a_round_that_deletes_too_large_a_share_of_a_large_log_is_refused() -> None:
    table_env = filled()
    key = marked(table_env)

    with pytest.raises(Invalid, match="collect_share_percent"):
        verify(table_env, key, collect_floor_bytes=1000, collect_share_percent=50)
    verify(table_env, key, collect_floor_bytes=1000, collect_share_percent=100)


def test_a_round_must_be_marked_again_if_another_collector_swept_the_log_since() -> None:
    table_env = filled(flushed=2, merged=2, tail_rows=0)
    handle = table_env.handle("collector", faulty=False)
    with table_env.collecting():
        first = collection.mark(handle).rounds
        collection.commit(handle, first)
        numbers = range(10, 12)
        table_env.write(*numbers)
        table_env.flush()
        table_env.merge()
        region = table_env.region("x")
        standing = sum(found.size for found in region.context.objects.list(f"_mem_wal/{region.id}/wal/"))
        table_env.settings = Settings(collect_floor_bytes=1, collect_share_percent=50)
        survey = RegionScope(handle=table_env.handle("second", faulty=False), region=region)
        second = write_list(region.context, survey.mark((), table_env.progress()).round)
        assert (second.round.number, second.round.log_bytes) == (2, standing)

        collection.sweep(handle, first)
        with pytest.raises(Contended, match="swept meanwhile"):
            collection.verify(table_env.handle("second", faulty=False), [second.key])
        again = collection.mark(table_env.handle("second", faulty=False))
        collection.verify(table_env.handle("second", faulty=False), again.rounds)
    assert again.rounds != (second.key,)


@pytest.mark.parametrize("body", [b'{"version":00}', b'{"version":1 0}', b'{"version":1e999}', b"{}", b""])
def test_with_an_unreadable_hint_no_published_manifest_may_be_deleted(body: bytes) -> None:
    table_env = filled()
    store, key = table_env.environment.store, version_hint(table_env.environment.id)
    store.remove(key)
    store.create(key, body)

    verify(table_env, marked(table_env))
    path = published_manifest(table_env.environment.id, Version(1))
    with pytest.raises(Corrupt, match="readers may start there"):
        verify(table_env, marked_with_change(table_env, with_item(GarbageKind.PUBLISHED, path, 1)))


def test_a_round_must_be_marked_again_if_a_pin_of_the_log_began_since() -> None:
    table_env = filled()
    key = marked(table_env)
    needs = replace(table_env.needs(table_env.region("x")), first_position=Position(3))
    table_env.begin_pin("late", needs)

    with pytest.raises(Contended):
        verify(table_env, key)


@pytest.mark.parametrize("key", ["", "_lancelsm/config.json", "_mem_wal/x/gc/nothing"])
def test_a_key_that_names_no_round_is_refused(key: str) -> None:
    with pytest.raises(Invalid, match="is not a round"):
        verify(filled(), key)
