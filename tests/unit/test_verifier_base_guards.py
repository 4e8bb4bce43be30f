"""Each check of a round of the base matters (see `test_verifier_guards`): without it, needed objects are deleted."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from unittest import mock

import pytest

from lancelsm.common.layout import RegionId, round_list
from lancelsm.gc import base
from lancelsm.gc import collect as collection
from lancelsm.gc.lists import GarbageItem, GarbageKind, Round, encode, write_list
from lancelsm.region import config as configs
from tests.simulation.marks import without
from tests.simulation.memory_base import in_place_of_lance
from tests.simulation.removal import Check, check_is_needed
from tests.simulation.whole_table_env import WholeTableEnv

NEWEST = 3  # version of the base


def merged_twice() -> WholeTableEnv:
    table_env = WholeTableEnv()
    with in_place_of_lance(table_env.base):
        for key in range(2):
            table_env.put("writer", {key: True})
            table_env.flush()
            table_env.merge()
    assert table_env.base.newest == NEWEST
    return table_env


def verify_round(table_env: WholeTableEnv, key: str) -> None:
    with in_place_of_lance(table_env.base), mock.patch.object(base, "read_progress", table_env.progress):
        collection.verify(table_env.handle("verifier", faulty=False), [key])


def forged(
    *items: tuple[GarbageKind, str, int],
    floor: int = NEWEST,
    number: int = 1,
    fence: int = 1,
    region: RegionId | None = None,
    change: Callable[[WholeTableEnv], None] = lambda table_env: None,
) -> Callable[[], None]:
    """Forge a round of the base that deletes these items, after `change`. Return a function that verifies it."""
    table_env = merged_twice()
    with in_place_of_lance(table_env.base):
        change(table_env)
    found = Round(
        region=region,
        number=number,
        floor=floor,
        items=tuple(GarbageItem(kind=kind, path=path, number=of, bytes=0, why="a bug") for kind, path, of in items),
        marked=0.0,
        fence=fence,
    )
    context = table_env.context("marker", faulty=False)
    key = round_list(None, number, context.ids.nonce())
    context.objects.create(key, encode(found))
    return partial(verify_round, table_env, key)


def version(number: int) -> tuple[GarbageKind, str, int]:
    return GarbageKind.BASE_VERSION, f"version {number}", number


def hold_older_version(table_env: WholeTableEnv) -> None:
    """Hold a snapshot of the newest version, then commit a newer one."""
    table_env.hold("holder", "held", ttl_seconds=3600.0)
    table_env.put("writer", {7: True})
    table_env.flush()
    table_env.merge()


def overwrite(table_env: WholeTableEnv) -> None:
    """Overwrite the base as another tool does. The configuration still exists, so the table was not dropped."""
    configs.create(table_env.environment.store, table_env.handle("reader").config, uri=table_env.context("reader").uri)
    table_env.base._add("data/first.lance", {})


def named_list() -> Callable[[], None]:
    """The second round deletes the list of the first round, which the catalog names."""
    table_env = merged_twice()
    handle = table_env.handle("committer", faulty=False)
    first = write_list(handle.context, Round(region=None, number=1, floor=1, items=(), marked=0.0, fence=1))
    with in_place_of_lance(table_env.base):
        assert base.commit_base(handle, first.key)
    item = GarbageItem(kind=GarbageKind.LIST, path=first.key, number=1, bytes=0, why="a bug")
    second = write_list(handle.context, Round(region=None, number=2, floor=1, items=(item,), marked=0.0, fence=2))
    return partial(verify_round, table_env, second.key)


def fallen_floor() -> Callable[[], None]:
    """The second round has a lower floor than the first."""
    table_env = merged_twice()
    handle = table_env.handle("committer", faulty=False)
    with in_place_of_lance(table_env.base):
        for number, floor in ((1, 2), (2, 1)):
            found = Round(region=None, number=number, floor=floor, items=(), marked=0.0, fence=number)
            key = write_list(handle.context, found).key
            if number == 1:
                assert base.commit_base(handle, key)
    return partial(verify_round, table_env, key)


def own_list() -> Callable[[], None]:
    """A round deletes its own list."""
    table_env = merged_twice()
    context = table_env.context("marker", faulty=False)
    key = round_list(None, 1, context.ids.nonce())
    item = GarbageItem(kind=GarbageKind.LIST, path=key, number=1, bytes=0, why="a bug")
    context.objects.create(key, encode(Round(region=None, number=1, floor=1, items=(item,), marked=0.0, fence=1)))
    return partial(verify_round, table_env, key)


def a_list(of: int) -> str:
    return f"_lancelsm/gc/{of}-{'0' * 32}.binpb"


LATER_LISTS = (without("verifier keeps lists of later base rounds", instead=""),)

GUARDS: dict[str, Check] = {
    "the number of the round is the next one": Check(
        edits=(without("verified base round is the next one"),),
        forged=partial(forged, number=2),
    ),
    "the round is a round of the base": Check(
        edits=(without("verified round is of the base"),),
        forged=partial(forged, region=RegionId("00000000-0000-4000-8000-000000000000")),
    ),
    "the fence is the next one": Check(
        edits=(without("verified fence is the next one"),),
        forged=partial(forged, fence=0),
    ),
    "the floor does not fall": Check(
        edits=(without("verified base floor does not fall"),),
        forged=fallen_floor,
    ),
    "the floor is an existing version": Check(
        edits=(without("verified base floor is a version"),),
        forged=partial(forged, floor=NEWEST + 1),
    ),
    "the base belongs to the table": Check(
        edits=(without("verified base is of the table"),),
        forged=partial(forged, change=overwrite),
    ),
    "versions from the floor on stay": Check(
        edits=(without("verifier keeps versions from the floor on"),),
        forged=partial(forged, version(2), floor=2),
    ),
    "the path of a version has its number": Check(
        edits=(without("path of a version has its number", instead=""),),
        forged=partial(forged, (GarbageKind.BASE_VERSION, "version 2", 1)),
    ),
    "only files of the base are deleted": Check(
        edits=(without("only files of the base are deleted", instead=""),),
        forged=partial(forged, (GarbageKind.BASE_FILE, "_indices/1/page.lance", 0)),
    ),
    "a file that a version names stays": Check(
        edits=(without("verifier keeps named files"),),
        forged=partial(forged, (GarbageKind.BASE_FILE, "data/first.lance", 0)),
    ),
    "a list is in the directory of lists of the base": Check(
        edits=(without("path of a base list has its round"),),
        forged=partial(forged, (GarbageKind.LIST, "_lancelsm/config.json", 0)),
    ),
    "the path of a list has the number of its round": Check(
        edits=(without("path of a base list has its round"),),
        forged=partial(forged, (GarbageKind.LIST, a_list(1), 0)),
    ),
    "a list of a later round stays": Check(
        edits=LATER_LISTS,
        forged=partial(forged, (GarbageKind.LIST, a_list(4), 4)),
    ),
    "a round does not delete its own list": Check(edits=LATER_LISTS, forged=own_list),
    "the list that the catalog names stays": Check(
        edits=(without("verifier keeps the list in the catalog"),),
        forged=named_list,
    ),
    "a round of the base deletes no object of a region": Check(
        edits=(without("base round has items of the base only", instead=""),),
        forged=partial(forged, (GarbageKind.ENTRY, "_mem_wal/x/wal/1.arrow", 1)),
    ),
    "a pinned version stays": Check(
        edits=(without("verifier keeps pinned versions"),),
        forged=partial(forged, version(NEWEST), floor=NEWEST + 1, change=hold_older_version),
    ),
}


@pytest.mark.one_case
@pytest.mark.parametrize("guard", GUARDS)
def test_a_forged_round_is_refused_by_its_check_and_accepted_without_it(guard: str) -> None:
    check_is_needed(GUARDS[guard])
