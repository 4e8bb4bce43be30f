"""Each check of a round of the base carries weight, as in test_verifier_guards: without it, what is needed may go."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from unittest import mock

import pytest

from lancelsm.common.layout import RegionId, round_list
from lancelsm.gc import base, verify_base
from lancelsm.gc import collect as collection
from lancelsm.gc.lists import Item, Kind, Round, encode, write_list
from lancelsm.region import config as configs
from tests.simulation.memory_base import in_place_of_lance
from tests.simulation.removal import Check, carries_weight
from tests.simulation.whole_lake import WholeLake

VERIFY = verify_base.verify_base
WHY_NOT = verify_base._why_not
NEWEST = 3  # version of the base


def merged_twice() -> WholeLake:
    lake = WholeLake()
    with in_place_of_lance(lake.base):
        for key in range(2):
            lake.put("writer", {key: True})
            lake.flush()
            lake.merge()
    assert lake.base.newest == NEWEST
    return lake


def judged(lake: WholeLake, key: str) -> None:
    with in_place_of_lance(lake.base), mock.patch.object(base, "read_progress", lake.progress):
        collection.verify(lake.opened("verifier", faulty=False), [key])


def forged(
    *items: tuple[Kind, str, int],
    floor: int = NEWEST,
    number: int = 1,
    fence: int = 1,
    region: RegionId | None = None,
    change: Callable[[WholeLake], None] = lambda lake: None,
) -> Callable[[], None]:
    """A round of the base that takes these items, of a lake that was changed."""
    lake = merged_twice()
    with in_place_of_lance(lake.base):
        change(lake)
    found = Round(
        region=region,
        number=number,
        floor=floor,
        items=tuple(Item(kind=kind, path=path, number=of, bytes=0, why="a bug") for kind, path, of in items),
        marked=0.0,
        fence=fence,
    )
    storage = lake.storage("marker", faulty=False)
    key = round_list(None, number, storage.ids.nonce())
    storage.objects.create(key, encode(found))
    return partial(judged, lake, key)


def version(number: int) -> tuple[Kind, str, int]:
    return Kind.BASE_VERSION, f"version {number}", number


def held(lake: WholeLake) -> None:
    """A snapshot of the newest version, which is not the newest any more."""
    lake.hold("holder", "held", ttl_seconds=3600.0)
    lake.put("writer", {7: True})
    lake.flush()
    lake.merge()


def overwritten(lake: WholeLake) -> None:
    """By another tool: the configuration is there, so the table was not dropped."""
    configs.create(lake.world.store, lake.opened("reader").config, uri=lake.storage("reader").uri)
    lake.base._add("data/first.lance", {})


def named_list() -> Callable[[], None]:
    """The second round takes the list of the first, which the catalog names."""
    lake = merged_twice()
    opened = lake.opened("committer", faulty=False)
    first = write_list(opened.storage, Round(region=None, number=1, floor=1, items=(), marked=0.0, fence=1))
    with in_place_of_lance(lake.base):
        assert base.commit_base(opened, first.key)
    item = Item(kind=Kind.LIST, path=first.key, number=1, bytes=0, why="a bug")
    second = write_list(opened.storage, Round(region=None, number=2, floor=1, items=(item,), marked=0.0, fence=2))
    return partial(judged, lake, second.key)


def fallen_floor() -> Callable[[], None]:
    """A round after one with a higher floor."""
    lake = merged_twice()
    opened = lake.opened("committer", faulty=False)
    with in_place_of_lance(lake.base):
        for number, floor in ((1, 2), (2, 1)):
            found = Round(region=None, number=number, floor=floor, items=(), marked=0.0, fence=number)
            key = write_list(opened.storage, found).key
            if number == 1:
                assert base.commit_base(opened, key)
    return partial(judged, lake, key)


def own_list() -> Callable[[], None]:
    """Its list is listed in itself."""
    lake = merged_twice()
    storage = lake.storage("marker", faulty=False)
    key = round_list(None, 1, storage.ids.nonce())
    item = Item(kind=Kind.LIST, path=key, number=1, bytes=0, why="a bug")
    storage.objects.create(key, encode(Round(region=None, number=1, floor=1, items=(item,), marked=0.0, fence=1)))
    return partial(judged, lake, key)


def a_list(of: int) -> str:
    return f"_lancelsm/gc/{of}-{'0' * 32}.binpb"


FLOOR = "if not floor.version <= found.floor <= newest.version:"
NAMED = 're.fullmatch(rf"_lancelsm/gc/{item.number}-[0-9a-f]{{32}}\\.binpb", item.path)'
OVER = ((WHY_NOT, "if item.number > floor.round else", "if False else"),)

GUARDS: dict[str, Check] = {
    "the round is the next one": Check(
        edits=((VERIFY, " or listed.round.number != floor.round + 1", ""),),
        forged=partial(forged, number=2),
    ),
    "the round is the base's": Check(
        edits=((VERIFY, " or listed.round.region is not None:", ":"),),
        forged=partial(forged, region=RegionId("00000000-0000-4000-8000-000000000000")),
    ),
    "the fence is the next one": Check(
        edits=((VERIFY, "if found.fence != newest.fence + 1:", "if False:"),),
        forged=partial(forged, fence=0),
    ),
    "the floor does not fall": Check(
        edits=((VERIFY, FLOOR, "if not found.floor <= newest.version:"),),
        forged=fallen_floor,
    ),
    "the floor is no version that is not there yet": Check(
        edits=((VERIFY, FLOOR, "if not floor.version <= found.floor:"),),
        forged=partial(forged, floor=NEWEST + 1),
    ),
    "the base is the table's": Check(
        edits=((VERIFY, "check_base(newest, opened.config)", "pass"),),
        forged=partial(forged, change=overwritten),
    ),
    "versions from the floor on stay": Check(
        edits=((WHY_NOT, "if item.number >= found.floor:", "if False:"),),
        forged=partial(forged, version(2), floor=2),
    ),
    "a version has its number": Check(
        edits=((WHY_NOT, 'return "" if item.path == f"version {item.number}" else', 'return "" if True else'),),
        forged=partial(forged, (Kind.BASE_VERSION, "version 2", 1)),
    ),
    "of Lance's files those of rows alone go": Check(
        edits=((WHY_NOT, "if _ROWS.fullmatch(item.path) else", "if True else"),),
        forged=partial(forged, (Kind.BASE_FILE, "_indices/1/page.lance", 0)),
    ),
    "a file that a version names stays": Check(
        edits=((VERIFY, "if item.kind is Kind.BASE_FILE and item.path in named:", "if False:"),),
        forged=partial(forged, (Kind.BASE_FILE, "data/first.lance", 0)),
    ),
    "a list lies where lists of the base do": Check(
        edits=((WHY_NOT, f"if not {NAMED}:", "if False:"),),
        forged=partial(forged, (Kind.LIST, "_lancelsm/config.json", 0)),
    ),
    "a list has its round": Check(
        edits=((WHY_NOT, NAMED, 'item.path.startswith("_lancelsm/gc/")'),),
        forged=partial(forged, (Kind.LIST, a_list(1), 0)),
    ),
    "a list's round is over": Check(edits=OVER, forged=partial(forged, (Kind.LIST, a_list(4), 4))),
    "a round leaves its own list": Check(edits=OVER, forged=own_list),
    "the list that the catalog names stays": Check(
        edits=((WHY_NOT, "if item.path == floor.key:", "if False:"),),
        forged=named_list,
    ),
    "what is a region's is none of the base's": Check(
        edits=((WHY_NOT, 'return "it is none of the base\'s"', 'return ""'),),
        forged=partial(forged, (Kind.ENTRY, "_mem_wal/x/wal/1.arrow", 1)),
    ),
    "a pin's version stays": Check(
        edits=((VERIFY, "if pin.base_version in going:", "if False:"),),
        forged=partial(forged, version(NEWEST), floor=NEWEST + 1, change=held),
    ),
}


@pytest.mark.parametrize("guard", GUARDS)
def test_what_one_check_refuses_is_accepted_without_it(guard: str) -> None:
    carries_weight(GUARDS[guard])
