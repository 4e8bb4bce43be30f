"""Each check of a round of the base carries weight, as in test_verifier_guards: without it, what is needed may go."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from unittest import mock

import pytest

from lancelsm.gc import base
from lancelsm.gc import collect as collection
from lancelsm.gc.lists import Item, Kind, Round, write_list
from tests.simulation.memory_base import in_place_of_lance
from tests.simulation.removal import Check, carries_weight
from tests.simulation.whole_lake import WholeLake

VERIFY = base.verify_base
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
    change: Callable[[WholeLake], None] = lambda lake: None,
) -> Callable[[], None]:
    """A round of the base that takes these items, of a lake that was changed."""
    lake = merged_twice()
    with in_place_of_lance(lake.base):
        change(lake)
    found = Round(
        region=None,
        number=number,
        floor=floor,
        items=tuple(Item(kind=kind, path=path, number=of, bytes=0, why="a bug") for kind, path, of in items),
        marked=0.0,
        fence=9,
    )
    return partial(judged, lake, write_list(lake.storage("marker", faulty=False), found).key)


def version(number: int) -> tuple[Kind, str, int]:
    return Kind.BASE_VERSION, f"version {number}", number


def held(lake: WholeLake) -> None:
    """A snapshot of the newest version, which is not the newest any more."""
    lake.hold("holder", "held", ttl_seconds=3600.0)
    lake.put("writer", {7: True})
    lake.flush()
    lake.merge()


def overwritten(lake: WholeLake) -> None:
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


NOT_A_LIST = "not (item.path.startswith(round_prefix(None)) and item.path != floor.key)"

GUARDS: dict[str, Check] = {
    "the round is the next one": Check(
        edits=((VERIFY, " or listed.round.number != floor.round + 1:", ":"),),
        forged=partial(forged, number=2),
    ),
    "the base is the table's": Check(
        edits=((VERIFY, "check_base(newest, opened.config)", "pass"),),
        forged=partial(forged, change=overwritten),
    ),
    "versions from the floor on stay": Check(
        edits=((VERIFY, "min(found.floor, newest.version)", "newest.version"),),
        forged=partial(forged, version(2), floor=2),
    ),
    "the newest version stays whatever the floor is": Check(
        edits=((VERIFY, "min(found.floor, newest.version)", "found.floor"),),
        forged=partial(forged, version(NEWEST), floor=9),
    ),
    "of Lance's files those of rows alone go": Check(
        edits=((VERIFY, "elif item.kind is Kind.BASE_FILE and not _FILE.fullmatch(item.path):", "elif False:"),),
        forged=partial(forged, (Kind.BASE_FILE, "_indices/1/page.lance", 0)),
    ),
    "a file that a version names stays": Check(
        edits=((VERIFY, "elif item.kind is Kind.BASE_FILE and item.path in named:", "elif False:"),),
        forged=partial(forged, (Kind.BASE_FILE, "data/first.lance", 0)),
    ),
    "a list lies where lists of the base do": Check(
        edits=((VERIFY, NOT_A_LIST, "item.path == floor.key"),),
        forged=partial(forged, (Kind.LIST, "_lancelsm/config.json", 0)),
    ),
    "the list that the catalog names stays": Check(
        edits=((VERIFY, NOT_A_LIST, "not item.path.startswith(round_prefix(None))"),),
        forged=named_list,
    ),
    "what is a region's is none of the base's": Check(
        edits=((VERIFY, "elif item.kind not in (Kind.BASE_VERSION, Kind.BASE_FILE, Kind.LIST):", "elif False:"),),
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
