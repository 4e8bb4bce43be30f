"""Verify a round of the base: check against storage that it deletes nothing that a version or a pin needs.

See `gc.verify` for regions. It shares with mark the functions that read storage: the catalog, the existing versions,
and the files that each version names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from lancelsm.errors import Contended, Corrupt
from lancelsm.gc.base import Floor, files_in_use, find_base_list, read_floor
from lancelsm.gc.lists import GarbageItem, GarbageKind, Round
from lancelsm.history.pin_records import Pin
from lancelsm.region.handle import TableHandle, check_base

_FILES = re.compile(
    r"data/[^/]+\.lance|_deletions/[^/]+\.(arrow|bin)"
    r"|_lancelsm/files/([0-9]+-[0-9a-f]{32}\.binpb|deletes-[0-9]+-[0-9a-f]{32}\.arrow)"
)


def verify_base(handle: TableHandle, key: str, *, pins: Iterable[Pin]) -> None:
    """Check the round of the base whose list has this key. Return if it may be committed, else raise.

    Args:
        pins: read after the list was written; the sweep reads them again.

    Raises:
        Corrupt: the round deletes something that is needed. The error names the object.
        Contended: another round, a merge or a pin came first.
        Unavailable: the store or the registry did not answer.
    """
    context = handle.context
    listed, floor = find_base_list(handle, key), read_floor(handle)
    if floor.key == key:
        return
    if (
        listed is None
        or listed.round.number != floor.round + 1  # guard: verified base round is the next one
        or listed.round.region is not None  # guard: verified round is of the base
    ):
        raise Contended("another round of the base came first", table=context.uri)
    found = listed.round
    newest = handle.read_base()
    check_base(newest, handle.config)  # guard: verified base is of the table
    if found.fence != newest.fence + 1:  # guard: verified fence is the next one
        raise Contended("the fence of the base changed after the round was marked", table=context.uri)
    if not (
        floor.version  # guard: verified base floor does not fall
        <= found.floor
        <= newest.version  # guard: verified base floor is a version
    ):
        what = f"the floor {found.floor} is not between {floor.version} and the newest version {newest.version}"
        raise Corrupt(what, remedy="Nothing was deleted. Collect again", table=context.uri, object=key)
    named = files_in_use(handle, found.items)
    for item in found.items:
        if item.kind is GarbageKind.BASE_FILE and item.path in named:  # guard: verifier keeps named files
            raise Contended(f"a merge has committed {item.path}", table=context.uri)
        if why := _why_not(item, found, floor):
            raise Corrupt(
                f"round {found.number} of the base would delete {item.path}: {why}",
                remedy="Nothing was deleted. Collect again",
                table=context.uri,
                object=item.path,
            )
    removed = {item.number for item in found.items if item.kind is GarbageKind.BASE_VERSION}
    for pin in pins:  # guard: verifier checks the pins of the base
        if pin.base_version in removed:  # guard: verifier keeps pinned versions
            what = f"{pin.kind} {pin.name} needs version {pin.base_version} of the base"
            raise Contended(what, table=context.uri)


def _why_not(item: GarbageItem, found: Round, floor: Floor) -> str:
    """Return why an item must not be deleted, by its kind, name and rank; empty if it may be."""
    match item.kind:
        case GarbageKind.BASE_VERSION:
            if item.number >= found.floor:  # guard: verifier keeps versions from the floor on
                return "it is not below the floor"
            return (  # guard: path of a version has its number
                "" if item.path == f"version {item.number}" else f"it is not version {item.number}"
            )
        case GarbageKind.BASE_FILE:
            return (  # guard: only files of the base are deleted
                "" if _FILES.fullmatch(item.path) else "it is not a data or deletion file, and not a statement"
            )
        case GarbageKind.LIST:
            if not re.fullmatch(  # guard: path of a base list has its round
                rf"_lancelsm/gc/{item.number}-[0-9a-f]{{32}}\.binpb", item.path
            ):
                return f"it is not a list of round {item.number} of the base"
            if item.path == floor.key:  # guard: verifier keeps the list in the catalog
                return "the catalog names it"
            return (  # guard: verifier keeps lists of later base rounds
                "its round may still be committed" if item.number > floor.round else ""
            )
    return "it does not belong to the base"  # guard: base round has items of the base only
