"""Sweep: delete. The only module that calls the deletion of stores and registries.

A sweep begins only once the round's manifest is committed and published, then reads all pins, then deletes. One read of
the pins does for many rounds that were confirmed before it. What a pin holds stays: rank alone finds it again in a
later round. A sweep that stalls anywhere and goes on much later deletes what nobody can need any more, so any number
may sweep, and again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from lancelsm.common.layout import Generation, Key, cursors, pin_key, region_prefix, round_number, snapshots
from lancelsm.errors import Contended, Corrupt, Invalid, Unavailable
from lancelsm.gc.lists import GarbageItem, GarbageKind, RoundList, find_list
from lancelsm.gc.mark import Kept
from lancelsm.gc.survey import seen
from lancelsm.history.cursor import withdraw
from lancelsm.history.pins import Pin, RegionPin, is_of, read_pins
from lancelsm.region.catalog import Region, TableContext
from lancelsm.region.compare_and_swap import CommittedManifest, commit, newest
from lancelsm.region.head import Head
from lancelsm.region.manifest import Manifest
from lancelsm.registry import Fields, SwapApplied

BATCH = 1_000  # keys in one call


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """What a sweep did: how many items it deleted, and what pins kept."""

    deleted: int
    kept: tuple[Kept, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A committed round of which a sweep would still delete these items, and what pins keep of it.

    `since` is when it was committed, in Unix seconds by its committer's clock.
    """

    key: str
    since: float
    items: tuple[GarbageItem, ...]
    kept: tuple[Kept, ...]


Sweep = Callable[[Sequence[Pin]], Swept]
"""Deletes what a confirmed round lists, but for what these pins hold. They were read after it was confirmed."""


def confirm_region(region: Region, key: str) -> Sweep:
    """Make sure that a round is committed and published: only then may the pins be read that its sweep goes by.

    Returns:
        Its sweep, which deletes nothing if a later round is committed by now: that one has taken the rest.

    Raises:
        Invalid: the round is not committed.
        Corrupt, Unavailable: as `region.compare_and_swap.commit`.
    """
    done = commit(region, lambda manifest: manifest)  # published before anything of it goes
    assert isinstance(done, CommittedManifest)
    if done.manifest.collector_key != key:
        if (round_number(key) or 0) > done.manifest.collector_round:
            raise Invalid("the round is not committed", remedy="Commit it first", **region.where, object=key)
        return nothing
    return partial(sweep_region, region, done.head, done.manifest)


def nothing(_: Sequence[Pin]) -> Swept:
    """The sweep of a round that others have finished."""
    return Swept(deleted=0)


def sweep_region(region: Region, head: Head, manifest: Manifest, pins: Sequence[Pin]) -> Swept:
    """Delete what the round that a published manifest names lists, but for what pins hold.

    Args:
        pins: as read after the manifest was published.

    Returns:
        Once everything that is not pinned is gone. Repeated, it does what is left to do.

    Raises:
        Corrupt: the list is not the one that was committed, or has something that the region needs.
        Unavailable: a store or the registry did not answer; some of it is deleted. Sweep again.
    """
    context, listed = region.context, _named_list(region, manifest)
    if listed is None:
        return nothing(pins)
    doomed, kept = _divided(region, listed.round.items, head, manifest, pins)
    directories = [f"{item.path}/" for item in doomed if item.kind is GarbageKind.GENERATION]
    context.each(partial(delete_below, context), directories)
    delete_all(context, [item.path for item in doomed if item.kind is not GarbageKind.GENERATION])
    return Swept(deleted=len(doomed), kept=tuple(kept))


def waiting_region(region: Region, pins: Sequence[Pin]) -> Waiting | None:
    """The committed round that waits for its sweep; None if nothing of it is left but what pins keep.

    Raises:
        Corrupt, Unavailable: as `sweep_region`.
    """
    head, manifest = newest(region, region.head())
    listed = _named_list(region, manifest) if manifest.collector_key else None
    if listed is None:
        return None
    doomed, kept = _divided(region, listed.round.items, head, manifest, pins)
    prefix = f"{region_prefix(region.id)}/"
    names = [one.key.removeprefix(prefix) for one in seen(region.context, prefix)]
    there = {*names, *(name.partition("/")[0] for name in names)}
    left = tuple(item for item in doomed if item.path.removeprefix(prefix) in there)
    # A release that did not note the commit left the time of the mark alone.
    since = max(manifest.collector_committed, listed.round.marked)
    return Waiting(key=listed.key, since=since, items=left, kept=tuple(kept)) if left else None


def _named_list(region: Region, manifest: Manifest) -> RoundList | None:
    return find_list(
        region.context,
        manifest.collector_key,
        newest=lambda: region.head().collector_round,
        setsum=manifest.collector_setsum,
    )


def expire_pins(context: TableContext, *, skew_seconds: float, removed: list[Pin] | None = None) -> tuple[Pin, ...]:
    """The pins that count, once the expired ones are removed.

    An expired pin is removed under its witness before it stops counting: if its holder renewed it meanwhile, or nobody
    answers, it counts.

    Args:
        removed: gets those that were removed.

    Raises:
        Corrupt, Unavailable: as `history.pins.read_pins`.
    """
    counting: list[Pin] = []
    removed = [] if removed is None else removed
    for pin in read_pins(context):
        if not has_expired(pin, now=context.clock.now(), skew_seconds=skew_seconds):
            counting.append(pin)
            continue
        if pin.replaces is not None:
            try:
                withdraw(context, pin)
            except (Contended, Unavailable):
                counting.append(pin)
            else:
                removed.append(pin)
            continue
        key = pin_key(pin.partition(context.table), pin.name)
        witness: Fields = {"version": pin.version, "nonce": pin.nonce}
        if not isinstance(context.registry.delete(key, expect=witness), SwapApplied):
            counting.append(pin)
        else:
            removed.append(pin)
    return tuple(counting)


def has_expired(pin: Pin, *, now: float, skew_seconds: float) -> bool:
    return pin.expires is not None and pin.expires + skew_seconds < now


def sweep_leftovers(context: TableContext) -> int:
    """Remove the records of regions whose pin is gone; returns how many. A pin's own record is written first."""
    left: list[Key] = []
    for partition in (snapshots(context.table), cursors(context.table)):
        records = context.registry.list(partition)
        owns = {key.sort: record for key, record in records if "#" not in key.sort}
        for key, _ in records:
            name, inside, _ = key.sort.partition("#")
            if inside and not is_of(owns.get(name), key):
                left.append(key)
    return sum(context.each(partial(_sweep_leftover, context), left))


def _sweep_leftover(context: TableContext, key: Key) -> bool:
    # Once more, since the listing is no moment: its pin may have been begun behind the place where it was.
    own = context.registry.read(pin_key(key.partition, key.sort.partition("#")[0]))
    if not is_of(own, key):
        context.registry.discard(key)
        return True
    return False


def delete_all(context: TableContext, keys: Sequence[str]) -> None:
    """Delete objects, many in one call; raises `Unavailable` after some of them."""
    for start in range(0, len(keys), BATCH):
        context.objects.delete(keys[start : start + BATCH])


def delete_below(context: TableContext, prefix: str) -> None:
    """Delete every object below a prefix. A listing that fails in the middle loses only what it did not show."""
    found: list[str] = []
    failed: Unavailable | None = None
    try:
        for line in context.objects.list(prefix):
            found.append(line.key)  # noqa: PERF401 - what came before a failure counts
    except Unavailable as error:
        failed = error
    delete_all(context, found)
    if failed is not None:
        raise failed


def _divided(
    region: Region, items: Iterable[GarbageItem], head: Head, manifest: Manifest, pins: Sequence[Pin]
) -> tuple[list[GarbageItem], list[Kept]]:
    """What goes and what a pin keeps.

    Raises:
        Corrupt: the committed manifest still needs something.
    """
    needs = [(pin, needed) for pin in pins if (needed := pin.of(region.id)) is not None]
    named = {g.path for g in manifest.generations}
    doomed, kept = [], []
    for item in items:
        if _is_needed(item, head, manifest, named):
            raise Corrupt(
                f"the list of round {manifest.collector_round} has what the region needs",
                remedy="Nothing was deleted. Scrub the region",
                **region.where,
                object=item.path,
            )
        holders = [pin for pin, needed in needs if _holds(needed, item)]
        if holders:
            kept.append(Kept(path=item.path, kind=item.kind, why=f"{holders[0].kind} {holders[0].name} needs it"))
        else:
            doomed.append(item)
    return doomed, kept


def _is_needed(item: GarbageItem, head: Head, manifest: Manifest, named: set[str]) -> bool:
    match item.kind:
        case GarbageKind.GENERATION:
            return item.path.rpartition("/")[2] in named or item.number >= manifest.current_generation
        case GarbageKind.ENTRY:
            return item.number >= manifest.first_position
        case GarbageKind.STAGED:
            return item.path == head.manifest_key or item.number > head.manifest_version
        case GarbageKind.PUBLISHED:
            return item.number >= head.manifest_version
        case GarbageKind.LIST:
            return item.path == manifest.collector_key
    return True  # the base's are not a region's


def _holds(needs: RegionPin, item: GarbageItem) -> bool:
    match item.kind:
        case GarbageKind.GENERATION:
            return needs.needs(Generation(item.number))
        case GarbageKind.ENTRY:
            return item.number >= needs.first_position
        case GarbageKind.STAGED:
            return item.path == needs.manifest_key
        case GarbageKind.PUBLISHED:
            return item.number == needs.manifest_version
    return False
