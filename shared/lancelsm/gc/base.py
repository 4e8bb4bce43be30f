"""Collect the base: old versions, and files that no version names.

A file that no version names may belong to a merge that has not committed yet. So a round first lists the files. Then it
raises `lancelsm.fence` by a commit that changes no data; after that no merge commits files that it wrote before. Then
it deletes the listed files that still no version names. Model: tests/model/merge_redo.py.

Versions below a floor are removed; the table's record in the catalog holds the floor. The sweep sees a pin of a version
below the floor, or the pin is never confirmed. Lance's own clean-up removes the versions, except tagged ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil

from lancelsm.common.clock import shown_time
from lancelsm.common.layout import (
    STATEMENTS,
    Nonce,
    is_round_list,
    round_number,
    round_prefix,
    statement_version,
    table_key,
)
from lancelsm.common.setsum import Setsum
from lancelsm.dataset.base_rows import Base, Preempted, commit
from lancelsm.dataset.base_table import FENCE, BaseTable
from lancelsm.dataset.cleanup import (
    StoredVersion,
    clean_versions,
    link_in_base,
    named_files,
    searched_indexes,
    stored_versions,
)
from lancelsm.dataset.merged_generations import read_markers
from lancelsm.dataset.statement import Stating
from lancelsm.dataset.tags import remove_tag, tags
from lancelsm.errors import Ambiguous, Contended, Corrupt, Invalid, Unavailable
from lancelsm.gc.base_check import read_checked_base
from lancelsm.gc.lists import GarbageItem, GarbageKind, Round, RoundList, find_list
from lancelsm.gc.mark import Kept, MarkedRound, Progress, bounded, passed_lists
from lancelsm.gc.survey import list_objects
from lancelsm.gc.sweep import Sweep, Swept, Waiting, check_paths, delete_all, sweep_nothing
from lancelsm.history.pin_records import Pin
from lancelsm.history.snapshot import tag_of
from lancelsm.objects import Listed
from lancelsm.region.base_checked import Checked, checked_of
from lancelsm.region.handle import TableHandle, check_base
from lancelsm.region.lease import BASE_LEASE, lease
from lancelsm.registry import Fields, Record, SwapApplied, number

_FILE = re.compile(rf"data/[^/]+\.lance|_deletions/[^/]+\.(arrow|bin)|{STATEMENTS}[^/]+\.(binpb|arrow)")
_FILES = ("data/", "_deletions/", STATEMENTS)
_VERSIONS_MIN = 16  # a round deletes this many versions and statements, or a file with rows: it adds a version itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """What the catalog records about collections of the base: the oldest version, the newest round and its list.

    `committed` is when that round was committed, in Unix seconds.
    """

    version: int
    round: int
    key: str
    setsum: Setsum
    committed: int = 0


def read_progress(handle: TableHandle, checked: Checked | None) -> Progress:
    """Read from the newest base which generations of each region it has, and from the checked version which it had.

    Raises:
        Corrupt: the base belongs to another table.
        Unavailable: the store did not answer.
    """
    base = handle.read_base()
    check_base(base, handle.config)
    proved = read_checked_base(handle, checked)
    markers = read_markers(objects=handle.context.objects, version=base.version)
    indexes = searched_indexes(base)
    if markers is not None and markers.maintained is not None:
        indexes &= markers.maintained
    return Progress(
        version=base.version,
        counters=base.counters,
        checked={} if proved is None else proved.counters,
        markers={} if markers is None else markers.merged,
        caught_up={name: {} if markers is None else markers.caught_up.get(name, {}) for name in indexes},
    )


def survey_base(handle: TableHandle, pins: Iterable[Pin]) -> MarkedRound:
    """Decide what a round of the base would delete now. Files of a running merge look like unused files.

    Raises:
        Corrupt, Unavailable: the catalog, the base or the store could not be read.
    """
    context, options = handle.context, handle.storage_options
    listed = [one for prefix in _FILES for one in list_objects(context, prefix) if _FILE.fullmatch(one.key)]
    # Read the base after the listing: the listed files were written before a higher fence is raised.
    base = handle.read_base()  # guard: files are listed before the fence is read
    versions = stored_versions(uri=context.uri, storage_options=options)
    tagged = frozenset(tags(uri=context.uri, storage_options=options).values())
    named = _files_named_by(handle, [one.version for one in versions])
    return mark_base(
        base=base,
        versions=versions,
        tagged=tagged,
        unnamed=[one for one in listed if one.key not in named],
        lists=list_objects(context, round_prefix(None)),
        floor=read_floor(handle),
        pins=pins,
        keep_seconds=handle.settings.keep_versions_seconds,
        now=context.clock.now(),
        link=link_in_base(context.uri),
    )


def mark_base(
    *,
    base: BaseTable,
    versions: Sequence[StoredVersion],
    tagged: frozenset[int],
    unnamed: Iterable[Listed],
    lists: Iterable[Listed],
    floor: Floor,
    pins: Iterable[Pin],
    keep_seconds: float,
    now: float,
    link: str | None = None,
) -> MarkedRound:
    """Decide what one round of the base deletes, without I/O.

    Args:
        unnamed: files that were listed before `base` was read, and that none of `versions` names.
        tagged: versions with a tag, which Lance does not remove.
        link: a symbolic link in the base. No version is removed while there is one.
    """
    young = [one.version for one in versions if one.committed + keep_seconds >= now]
    pinned = _pinned(pins)  # guard: mark keeps pinned versions
    oldest = max(floor.version, min([base.version, *young]))
    items, kept = [], []
    for one in versions:
        path = f"version {one.version}"
        if one.version >= oldest:
            continue
        if one.version in pinned:
            pin = pinned[one.version]
            kept.append(Kept(path=path, kind=GarbageKind.BASE_VERSION, why=f"{pin.kind} {pin.name} needs it"))
        elif one.version in tagged:  # guard: mark keeps tagged versions
            kept.append(Kept(path=path, kind=GarbageKind.BASE_VERSION, why="it is tagged"))
        elif link is not None:
            why = f"Lance would follow the symbolic link {link} and delete what it points to: remove the link"
            kept.append(Kept(path=path, kind=GarbageKind.BASE_VERSION, why=why))
        else:
            why = f"it is older than the versions to keep, which begin at {oldest}"
            items.append(GarbageItem(kind=GarbageKind.BASE_VERSION, path=path, number=one.version, bytes=0, why=why))
    files = [
        GarbageItem(kind=GarbageKind.BASE_FILE, path=one.key, number=0, bytes=one.size, why="no version names it")
        for one in sorted(unnamed, key=lambda found: found.key)
    ]
    passed = passed_lists(lists, newest=floor.round, named=floor.key)
    taken, later = bounded("data", [*passed, *items, *files])
    rows = [one for one in files if not one.path.startswith(STATEMENTS)]
    return MarkedRound(
        round=Round(
            region=None, number=floor.round + 1, floor=oldest, items=tuple(taken), marked=now, fence=base.fence + 1
        ),
        kept=(*kept, *later),
        worthwhile=bool(rows) or len(items) + len(files) - len(rows) >= _VERSIONS_MIN,
    )


def mark_in_base(handle: TableHandle, pins: Iterable[Pin]) -> MarkedRound:
    """Call `survey_base` under the lease of the base; raise `Contended` while another process holds it."""
    with lease(handle.context, BASE_LEASE):
        return survey_base(handle, pins)


def commit_base(handle: TableHandle, key: str) -> bool:
    """Raise the fence of the base, then the floor in the catalog. Return False if another round came first.

    Raises:
        Contended: other processes kept changing the base, or a merge is running.
        Ambiguous: the registry gave no conclusive answer; retry.
        Corrupt: the list, the base or the record of the table is missing, wrong or belongs to something else.
        Unavailable: the store or the registry did not answer; retry.
    """
    context = handle.context
    listed, record_key = find_base_list(handle, key), table_key(context.table)
    if listed is None:
        return False
    if listed.round.region is not None:
        raise Corrupt("the list is that of a region's round, not of the base", table=context.uri, object=key)
    number = listed.round.number
    if read_floor(handle).round < number:
        with lease(context, BASE_LEASE):
            _raise_fence(handle, listed.round.fence)  # guard: fence is raised before files are deleted
    change: Fields = {
        "base_floor": listed.round.floor,
        "base_round": number,
        "base_list": key,
        "base_list_setsum": listed.setsum.hex(),
    }
    for _ in context.budget().attempts():
        record = _record(handle)
        floor = _floor_of(record)
        if floor.key == key:
            return True
        if floor.round != number - 1:  # guard: base round follows the last one
            return False
        expect: Fields = {"base_round": record.get("base_round")}  # guard: base round swaps on the last one
        recorded = {**change, "base_committed": ceil(context.clock.now())}
        if isinstance(context.registry.swap(record_key, expect=expect, change=recorded), SwapApplied):
            return True
    raise Ambiguous("the floor of the base may have been raised", remedy="Retry", table=context.uri)


def confirm_base(handle: TableHandle, key: str) -> Sweep:
    """Check that a round of the base is committed, and return its sweep. Counterpart of `sweep.confirm_region`."""
    floor = read_floor(handle)
    if floor.key != key:
        if (round_number(key) or 0) > floor.round:
            raise Invalid("the round is not committed", remedy="Commit it first", table=handle.context.uri, object=key)
        return sweep_nothing
    tagged = tags(uri=handle.context.uri, storage_options=handle.storage_options)
    return partial(sweep_base, handle, floor, tuple(tagged))


def sweep_base(handle: TableHandle, floor: Floor, tagged: Iterable[str], pins: Sequence[Pin]) -> Swept:
    """Delete what the committed round of the base lists, except what pins need. Idempotent.

    Args:
        tagged: the tags of the base, read before the pins.

    Raises:
        Corrupt: the list is not the committed one, or the base was restored to a version before the round's fence.
        Contended: a version was removed meanwhile.
        Unavailable: see `sweep.sweep_region`.
    """
    context, options = handle.context, handle.storage_options
    listed = find_base_list(handle, floor.key, setsum=floor.setsum)
    if listed is None:
        return sweep_nothing(pins)
    found = listed.round
    paths = [item.path for item in found.items if item.kind is not GarbageKind.BASE_VERSION]
    check_paths(paths, below=(*_FILES, round_prefix(None)), key=floor.key)
    _drop_tags(handle, tagged, pins)
    pinned = _pinned(pins)  # guard: sweep keeps pinned versions
    base = handle.read_base()
    if base.fence < found.fence:  # guard: sweep needs the fence of its round
        raise Corrupt(
            "the base was restored to a version before the fence of this round",
            remedy="Nothing was deleted. Collect again",
            table=context.uri,
            version=base.version,
        )
    versions = [i for i in found.items if i.kind is GarbageKind.BASE_VERSION and i.number not in pinned]
    removed = clean_versions(uri=context.uri, versions=[i.number for i in versions], storage_options=options)
    named = files_in_use(handle, found.items)  # guard: sweep keeps files that versions name
    files = [
        i
        for i in found.items
        if i.kind is GarbageKind.LIST or (i.kind is GarbageKind.BASE_FILE and i.path not in named)
    ]
    delete_all(context, [item.path for item in files])
    return Swept(deleted=removed + len(files), kept=_kept(found, pinned))


def waiting_base(handle: TableHandle, pins: Sequence[Pin]) -> Waiting | None:
    """Return the committed round of the base that waits for its sweep; None if only pinned objects are left of it.

    Also None if the base was restored to a version before the fence: the sweep would refuse the round.
    """
    context, floor = handle.context, read_floor(handle)
    listed = find_base_list(handle, floor.key, setsum=floor.setsum) if floor.key else None
    if listed is None or handle.read_base().fence < listed.round.fence:
        return None
    keys = {one.key for prefix in (*_FILES, round_prefix(None)) for one in list_objects(context, prefix)}
    versions = [one.version for one in _versions(handle)]
    tagged = set(tags(uri=context.uri, storage_options=handle.storage_options).values())
    pinned, present = _pinned(pins), [one for one in listed.round.items if one.path in keys]
    named = _files_named_by(handle, versions if any(one.kind is GarbageKind.BASE_FILE for one in present) else ())
    removable: set[int] = set() if link_in_base(context.uri) else set(versions) - tagged - pinned.keys()
    left = [
        *(item for item in listed.round.items if item.kind is GarbageKind.BASE_VERSION and item.number in removable),
        *(item for item in present if item.path not in named),
    ]
    if not left:
        return None
    kept = _kept(listed.round, pinned)
    since = max(
        floor.committed,  # guard: interval of a base round starts at its commit
        listed.round.marked,
    )
    return Waiting(key=listed.key, since=since, items=tuple(left), kept=kept)


def _pinned(pins: Iterable[Pin]) -> dict[int, Pin]:
    """Return the versions of the base that pins need, each with one of its pins."""
    return {pin.base_version: pin for pin in pins if pin.base_version is not None}


def _kept(found: Round, pinned: Mapping[int, Pin]) -> tuple[Kept, ...]:
    return tuple(
        Kept(path=i.path, kind=i.kind, why=f"{pinned[i.number].kind} {pinned[i.number].name} needs it")
        for i in found.items
        if i.kind is GarbageKind.BASE_VERSION and i.number in pinned
    )


def find_base_list(handle: TableHandle, key: str, *, setsum: Setsum | None = None) -> RoundList | None:
    """Read the list of a round of the base; None if a later round is committed. Raises: see `lists.find_list`."""
    return find_list(handle.context, key, newest=lambda: read_floor(handle).round, setsum=setsum)


def _raise_fence(handle: TableHandle, fence: int) -> None:
    """Commit a version of the base that only raises the fence. Do nothing if the fence is high enough."""
    unanswered: Unavailable | None = None
    for _ in handle.context.budget().attempts():
        base = handle.read_base()
        check_base(base, handle.config)
        if base.fence >= fence:
            return
        metadata = {**base.metadata, FENCE: str(fence)}
        try:
            stating = Stating(objects=handle.context.objects)
            outcome = commit(Base.of(base), changed={}, new=(), metadata=metadata, properties={}, stating=stating)
        except Unavailable as error:
            unanswered = error
            continue
        if not isinstance(outcome, Preempted):
            return
        unanswered = None
    if unanswered is not None:
        raise unanswered
    raise Contended("other processes kept changing the base", table=handle.context.uri)


def _drop_tags(handle: TableHandle, tagged: Iterable[str], pins: Iterable[Pin]) -> None:
    """Remove tags of pins that no longer exist. A pin is recorded before its tag, and tags were listed before pins."""
    held = {tag_of(pin.nonce) for pin in pins}  # guard: tags of pins stay
    prefix = tag_of(Nonce(""))
    for tag in tagged:
        if tag.startswith(prefix) and tag not in held:
            remove_tag(uri=handle.context.uri, tag=tag, storage_options=handle.storage_options)


def _versions(handle: TableHandle) -> tuple[StoredVersion, ...]:
    return stored_versions(uri=handle.context.uri, storage_options=handle.storage_options)


def files_in_use(handle: TableHandle, items: Iterable[GarbageItem]) -> frozenset[str]:
    """Return the files that any existing version names now. Read nothing if no item is a file of the base.

    Raises:
        Contended, Corrupt, Unavailable: see `dataset.cleanup.named_files`.
    """
    if all(item.kind is not GarbageKind.BASE_FILE for item in items):
        return frozenset()
    return _files_named_by(handle, [one.version for one in _versions(handle)])


def _files_named_by(handle: TableHandle, versions: Sequence[int]) -> frozenset[str]:
    """Return the files and statements that these versions name, and the other statements that stay."""

    def named(version: int) -> frozenset[str]:
        return named_files(uri=handle.context.uri, version=version, storage_options=handle.storage_options)

    if not versions:
        return frozenset()
    files = frozenset().union(*handle.context.each(named, versions))
    keys = [one.key for one in handle.context.objects.list(STATEMENTS)]
    checked = checked_of(_record(handle))
    return files | with_manifests(keys, versions) | ({checked.key} if checked else set())


def with_manifests(keys: Iterable[str], versions: Iterable[int]) -> frozenset[str]:
    """Return the statements that have the manifest of one of these versions: the first one above each version."""
    numbers = {key: number for key in keys if (number := statement_version(key)) is not None}
    above = {min((n for n in numbers.values() if n > version), default=0) for version in versions}
    return frozenset(key for key, number in numbers.items() if number in above)


def _record(handle: TableHandle) -> Record:
    context = handle.context
    record = context.registry.read(table_key(context.table))
    if record is None:
        raise Corrupt(
            "the registry does not know the table",
            remedy=context.rebuild_remedy,
            table=context.uri,
        )
    return record


def read_floor(handle: TableHandle) -> Floor:
    """Read the floor from the catalog; raise `Corrupt` if the registry has no record of the table."""
    return _floor_of(_record(handle))


def _floor_of(record: Record) -> Floor:
    setsum, key = str(record.get("base_list_setsum", "")), str(record.get("base_list", ""))
    if key and not is_round_list(key, None):
        raise Corrupt(f"the catalog names a list that is not one of the base: {key}", object=key, field="base_list")
    full = {"base_floor": 0, "base_round": 0, "base_committed": 0, **record}
    try:
        return Floor(
            version=number(full, "base_floor"),
            round=number(full, "base_round"),
            key=key,
            setsum=Setsum.from_hex(setsum) if setsum else Setsum.ZERO,
            committed=int(shown_time(number(full, "base_committed"))),
        )
    except ValueError as error:
        raise Corrupt(f"the record of the table in the catalog is unreadable: {error}") from error
