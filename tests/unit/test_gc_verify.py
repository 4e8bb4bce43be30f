"""The verifier: each way in which a round can be wrong is refused, with the object named; nothing is repaired."""

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
from lancelsm.gc.lists import Item, Kind, Round, read_list, write_list
from lancelsm.gc.scopes import RegionPlace
from lancelsm.gc.verify import verify_region
from lancelsm.history.pins import read_pins
from lancelsm.objects import Object
from lancelsm.region.compare_and_swap import newest
from lancelsm.wal.entry import encode
from tests.simulation.collecting import Lake, filled
from tests.simulation.world import a_nonce, row


def marked(lake: Lake) -> str:
    with lake.collecting():
        (key,) = collection.mark(lake.opened("marker", faulty=False)).rounds
    return key


def verify(lake: Lake, key: str, **settings: int) -> None:
    region = lake.region("verifier")
    pins = read_pins(region.storage)
    verify_region(region, key, pins=pins, progress=lake.progress(), settings=Settings(**settings))


def rewritten(lake: Lake, change: Callable[[Round], Round]) -> str:
    """The list that mark makes, changed."""
    storage = lake.region("marker").storage
    return write_list(storage, change(read_list(storage, marked(lake)).round)).key


def plus(kind: Kind, path: str, number: int) -> Callable[[Round], Round]:
    item = Item(kind=kind, path=path, number=number, bytes=1, why="a bug")
    return lambda found: replace(found, items=(*found.items, item))


def test_a_round_as_it_was_marked_is_verified_and_again_once_it_is_committed() -> None:
    lake = filled()
    key = marked(lake)
    before = lake.stored()

    verify(lake, key)
    assert lake.stored() == before
    with lake.collecting():
        collection.commit(lake.opened("committer", faulty=False), [key])
    verify(lake, key)


def wrong_items(lake: Lake) -> dict[str, tuple[Kind, str, int]]:
    region = lake.region("x")
    head, manifest = newest(region, region.head())
    last = manifest.generations[-1]
    prefix = f"_mem_wal/{region.id}/"
    return {
        "a generation that the base lacks": (Kind.GENERATION, generation_path(region.id, last.path), last.generation),
        "a generation that a flush may write": (Kind.GENERATION, f"{prefix}00000000_gen_5", 5),
        "an entry that is in no generation": (Kind.ENTRY, wal_entry(region.id, Position(9)), 9),
        "an entry above the head": (Kind.ENTRY, wal_entry(region.id, Position(11)), 11),
        "the manifest that the head names": (Kind.STAGED, head.manifest_key, head.manifest_version),
        "a manifest that may still be committed": (Kind.STAGED, f"{prefix}manifest/staged/6-{'0' * 32}.binpb", 6),
        "the newest published manifest": (Kind.PUBLISHED, published_manifest(region.id, head.manifest_version), 5),
        "a list that may still be committed": (Kind.LIST, f"{prefix}gc/1-{'0' * 32}.binpb", 1),
        "another region's object": (Kind.ENTRY, f"_mem_wal/{'0' * 8}/wal/x.arrow", 1),
        "the configuration": (Kind.STAGED, "_lancelsm/config.json", 1),
        "a path out of the region": (Kind.GENERATION, f"{prefix}../other/00000000_gen_1", 1),
        "an entry under another number": (Kind.ENTRY, wal_entry(region.id, Position(9)), 1),
        "a generation under another number": (Kind.GENERATION, generation_path(region.id, last.path), 1),
        "a file of the base": (Kind.BASE_FILE, f"{prefix}data/x.lance", 0),
    }


@pytest.mark.parametrize("name", wrong_items(filled()))
def test_an_item_that_is_needed_or_is_not_what_it_says_is_refused_by_name(name: str) -> None:
    lake = filled()
    kind, path, number = wrong_items(lake)[name]

    with pytest.raises(Corrupt, match="Nothing was deleted") as error:
        verify(lake, rewritten(lake, plus(kind, path, number)))
    assert error.value.where["object"] == path


@pytest.mark.parametrize("kind", [Kind.GENERATION, Kind.STAGED, Kind.PUBLISHED])
def test_a_round_with_what_a_pin_needs_is_marked_anew(kind: Kind) -> None:
    lake = filled()
    pin = lake.pin("held")
    lake.merge()
    lake.write(100, 101)
    lake.flush()
    lake.merge()
    needs = pin.regions[lake.world.id]
    paths = {
        Kind.GENERATION: (f"_mem_wal/{lake.world.id}/00000000_gen_3", 3),
        Kind.STAGED: (needs.manifest_key, needs.manifest_version),
        Kind.PUBLISHED: (published_manifest(lake.world.id, needs.manifest_version), needs.manifest_version),
    }

    with pytest.raises(Contended, match="snapshot held needs") as error:
        verify(lake, rewritten(lake, plus(kind, *paths[kind])))
    assert error.value.where["object"] == paths[kind][0]


def test_a_generation_from_the_middle_is_refused() -> None:
    lake = filled(merged=4)

    def without_the_oldest(found: Round) -> Round:
        return replace(found, items=tuple(i for i in found.items if (i.kind, i.number) != (Kind.GENERATION, 1)))

    with pytest.raises(Corrupt, match="from the middle"):
        verify(lake, rewritten(lake, without_the_oldest))


@pytest.mark.parametrize("floor", [0, 10, 99])
def test_a_floor_beyond_what_was_folded_is_refused(floor: int) -> None:
    lake = filled()
    with pytest.raises(Corrupt, match="floor"):
        verify(lake, rewritten(lake, lambda found: replace(found, floor=floor, items=())))


def test_a_floor_within_what_was_folded_is_checked_to_the_next_end_of_a_generation() -> None:
    lake = filled()
    sums = [lake.world.log[Position(at)].summary.entry_setsum for at in (1, 2, 3)]

    def lower(found: Round) -> Round:
        return replace(found, floor=4, items=(), discarded=sum(sums, start=Setsum()))

    verify(lake, rewritten(lake, lower))
    damage(lake, 4)
    with pytest.raises(Corrupt, match="through position 4"):
        verify(lake, rewritten(lake, lower))


def test_a_sum_that_is_not_that_of_the_log_is_refused() -> None:
    lake = filled()
    with pytest.raises(Corrupt, match="not what is there"):
        verify(lake, rewritten(lake, lambda found: replace(found, discarded=Setsum.of([b"x"]))))


def damage(lake: Lake, position: int) -> None:
    """Another sound entry where one was committed."""
    key = wal_entry(lake.world.id, Position(position))
    lake.world.store.remove(key)
    other = encode(row(999), position=Position(position), epoch=1, nonce=a_nonce(999))  # type: ignore[arg-type]
    lake.world.store.create(key, other.body)


def flipped(lake: Lake, position: int = 3) -> None:
    key = wal_entry(lake.world.id, Position(position))
    body = bytearray(lake.world.store.get(key).body)  # type: ignore[union-attr]
    body[-20] ^= 1
    lake.world.store.remove(key)
    lake.world.store.create(key, body)


def swapped(lake: Lake) -> None:
    keys = [wal_entry(lake.world.id, Position(at)) for at in (2, 3)]
    bodies = [lake.world.store.get(key).body for key in keys]  # type: ignore[union-attr]
    for key, body in zip(keys, reversed(bodies), strict=True):
        lake.world.store.remove(key)
        lake.world.store.create(key, body)


def doubled(lake: Lake) -> None:
    first, second = (wal_entry(lake.world.id, Position(at)) for at in (2, 3))
    body = lake.world.store.get(first).body  # type: ignore[union-attr]
    lake.world.store.remove(second)
    lake.world.store.create(second, body)


LOSSES: dict[str, tuple[Callable[[Lake], None], int | str]] = {
    "lost": (lambda lake: lake.world.store.remove(wal_entry(lake.world.id, Position(3))), 3),
    "replaced by a sound one": (lambda lake: damage(lake, 3), "1..8"),
    "flipped": (flipped, 3),
    "swapped with its neighbour": (swapped, 2),
    "its neighbour once more": (doubled, 3),
}


@pytest.mark.parametrize("how", LOSSES)
def test_a_committed_entry_that_was_damaged_stops_the_round_before_its_generations_go(how: str) -> None:
    lake = filled()
    key = marked(lake)
    damaged, position = LOSSES[how]
    damaged(lake)
    before = lake.stored()

    with pytest.raises(Corrupt) as error:
        verify(lake, key)
    where = error.value.where
    assert where["position"] == position
    if isinstance(position, int):
        assert where["object"] == wal_entry(lake.world.id, Position(position))
    assert lake.stored() == before
    with pytest.raises(Corrupt):
        lake.collect()


@pytest.mark.parametrize("parallel", [1, 2])
def test_each_entry_is_read_once_several_at_a_time(parallel: int) -> None:
    lake = filled()
    key = marked(lake)
    together, read = Barrier(parallel), list[str]()
    region = lake.region("verifier")
    objects = region.storage.objects

    def get(key: str) -> Object | None:
        if "/wal/" in key:
            read.append(key)
            together.wait(timeout=10)
        return objects.get(key)

    storage = replace(region.storage, objects=SimpleNamespace(get=get, list=objects.list), parallel=parallel)  # type: ignore[arg-type]
    verify_region(replace(region, storage=storage), key, pins=[], progress=lake.progress(), settings=Settings())

    whole = [wal_entry(lake.world.id, Position(at)) for at in range(1, 9)]
    assert (read if parallel == 1 else sorted(read)) == (whole if parallel == 1 else sorted(whole))


@pytest.mark.parametrize("parallel", [1, 4])
def test_of_several_entries_that_are_wrong_the_first_one_is_named(parallel: int) -> None:
    lake = filled()
    key = marked(lake)
    for position in (7, 5, 3):
        flipped(lake, position)
    region = lake.region("verifier")
    region = replace(region, storage=replace(region.storage, parallel=parallel))

    with pytest.raises(Corrupt, match="entry 3 does not have the sum") as error:
        verify_region(region, key, pins=[], progress=lake.progress(), settings=Settings())
    assert error.value.where["position"] == 3


def test_a_base_that_fell_behind_since_mark_is_noticed() -> None:
    lake = filled()
    key = marked(lake)
    lake.counter = Generation(1)

    with pytest.raises(Corrupt, match="lacks it"):
        verify(lake, key)


def test_a_base_that_is_ahead_of_the_head_is_a_lost_registry() -> None:
    lake = filled()
    key = marked(lake)
    lake.counter = Generation(7)

    with pytest.raises(Corrupt, match="registry rebuild"):
        verify(lake, key)


def test_a_round_that_takes_too_much_of_a_large_log_is_refused() -> None:
    lake = filled()
    key = marked(lake)

    with pytest.raises(Invalid, match="collect_share_percent"):
        verify(lake, key, collect_floor_bytes=1000, collect_share_percent=50)
    verify(lake, key, collect_floor_bytes=1000, collect_share_percent=100)


def test_a_log_that_another_collector_swept_since_mark_makes_a_new_round_necessary() -> None:
    lake = filled(flushed=2, merged=2, tail_rows=0)
    opened = lake.opened("collector", faulty=False)
    with lake.collecting():
        first = collection.mark(opened).rounds
        collection.commit(opened, first)
        numbers = range(10, 12)
        lake.write(*numbers)
        lake.flush()
        lake.merge()
        region = lake.region("x")
        standing = sum(found.size for found in region.storage.objects.list(f"_mem_wal/{region.id}/wal/"))
        lake.settings = Settings(collect_floor_bytes=1, collect_share_percent=50)
        survey = RegionPlace(opened=lake.opened("second", faulty=False), region=region)
        second = write_list(region.storage, survey.mark((), lake.progress()).round)
        assert (second.round.number, second.round.standing) == (2, standing)

        collection.sweep(opened, first)
        with pytest.raises(Contended, match="swept meanwhile"):
            collection.verify(lake.opened("second", faulty=False), [second.key])
        again = collection.mark(lake.opened("second", faulty=False))
        collection.verify(lake.opened("second", faulty=False), again.rounds)
    assert again.rounds != (second.key,)


@pytest.mark.parametrize("body", [b'{"version":00}', b'{"version":1 0}', b'{"version":1e999}', b"{}", b""])
def test_a_hint_that_is_no_number_allows_no_published_manifest_and_stops_no_round(body: bytes) -> None:
    lake = filled()
    store, key = lake.world.store, version_hint(lake.world.id)
    store.remove(key)
    store.create(key, body)

    verify(lake, marked(lake))
    path = published_manifest(lake.world.id, Version(1))
    with pytest.raises(Corrupt, match="readers of files may start there"):
        verify(lake, rewritten(lake, plus(Kind.PUBLISHED, path, 1)))


def test_a_pin_of_the_log_that_came_since_mark_makes_a_new_round_necessary() -> None:
    lake = filled()
    key = marked(lake)
    needs = replace(lake.needs(lake.region("x")), first_position=Position(3))
    lake.begin_pin("late", needs)

    with pytest.raises(Contended):
        verify(lake, key)


@pytest.mark.parametrize("key", ["", "_lancelsm/config.json", "_mem_wal/x/gc/nothing"])
def test_what_names_no_round_is_refused(key: str) -> None:
    with pytest.raises(Invalid, match="names no round"):
        verify(filled(), key)
