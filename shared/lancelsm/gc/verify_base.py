"""Verify a round of the base: recompute from storage that it deletes nothing that a version or a pin needs.

As `gc.verify` of a region's. With mark it shares what reads storage: the catalog, the versions that there are, the
files that each of them names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from lancelsm.errors import Contended, Corrupt
from lancelsm.gc.base import Floor, find_base_list, named_now, read_floor
from lancelsm.gc.lists import GarbageItem, GarbageKind, Round
from lancelsm.history.pins import Pin
from lancelsm.region.handle import TableHandle, check_base

_ROWS = re.compile(r"data/[^/]+\.lance|_deletions/[^/]+\.(arrow|bin)")


def verify_base(handle: TableHandle, key: str, *, pins: Iterable[Pin]) -> None:
    """Recompute that a round of the base deletes nothing that a version or a pin needs.

    Args:
        pins: as read after the list was written; the sweep reads them again.

    Raises:
        Corrupt: it does; names the object.
        Contended: another round or a pin came meanwhile.
        Unavailable: store or registry did not answer.
    """
    context = handle.context
    listed, floor = find_base_list(handle, key), read_floor(handle)
    if floor.key == key:
        return
    if listed is None or listed.round.number != floor.round + 1 or listed.round.region is not None:
        raise Contended("another round of the base came first", remedy="Mark a new one", table=context.uri)
    found = listed.round
    newest = handle.read_base()
    check_base(newest, handle.config)
    if found.fence != newest.fence + 1:
        raise Contended(
            "the base has another fence than when it was marked", remedy="Mark a new one", table=context.uri
        )
    if not floor.version <= found.floor <= newest.version:
        what = f"the floor {found.floor} is not between {floor.version} and the newest version {newest.version}"
        raise Corrupt(what, remedy="Nothing was deleted. Mark a new round", table=context.uri, object=key)
    named = named_now(handle, found.items)
    for item in found.items:
        if item.kind is GarbageKind.BASE_FILE and item.path in named:
            raise Contended(f"a merge has committed {item.path}", remedy="Mark a new round", table=context.uri)
        if why := _why_not(item, found, floor):
            raise Corrupt(
                f"round {found.number} of the base would delete {item.path}: {why}",
                remedy="Nothing was deleted. Mark a new round",
                table=context.uri,
                object=item.path,
            )
    going = {item.number for item in found.items if item.kind is GarbageKind.BASE_VERSION}
    for pin in pins:
        if pin.base_version in going:
            what = f"{pin.kind} {pin.name} needs version {pin.base_version} of the base"
            raise Contended(what, remedy="Mark a new round", table=context.uri)


def _why_not(item: GarbageItem, found: Round, floor: Floor) -> str:
    """Why an item may not go, empty if it may: by its kind, name and rank."""
    match item.kind:
        case GarbageKind.BASE_VERSION:
            if item.number >= found.floor:
                return "it is not below the floor"
            return "" if item.path == f"version {item.number}" else f"it is not version {item.number}"
        case GarbageKind.BASE_FILE:
            return "" if _ROWS.fullmatch(item.path) else "it is no file of rows"
        case GarbageKind.LIST:
            if not re.fullmatch(rf"_lancelsm/gc/{item.number}-[0-9a-f]{{32}}\.binpb", item.path):
                return f"it is no list of round {item.number} of the base"
            if item.path == floor.key:
                return "the catalog names it"
            return "its round may still be committed" if item.number > floor.round else ""
    return "it is none of the base's"
