"""Sweep: delete what a committed round lists. Only this module calls `ObjectStore.delete` on the objects of a table.

A sweep checks that the manifest of the round is committed and published, then reads all pins, then deletes. One read of
the pins serves all rounds that were confirmed before it. What a pin needs stays; a later round finds it by its rank. A
sweep that stalls and continues much later only deletes objects that can't be needed any more. So several processes may
sweep, also repeatedly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from lancelsm.common.layout import Generation, Key, cursors, pin_key, region_prefix, round_number, snapshots
from lancelsm.errors import Contended, Corrupt, Invalid, Unavailable
from lancelsm.gc.lists import GarbageItem, GarbageKind, RoundList, find_list
from lancelsm.gc.mark import Kept
from lancelsm.gc.survey import list_objects
from lancelsm.history.cursor import cancel_move
from lancelsm.history.pin_records import Pin, RegionPin, is_of
from lancelsm.history.pins import read_pins
from lancelsm.objects.keys import is_key
from lancelsm.region.catalog import Region, TableContext
from lancelsm.region.compare_and_swap import CommittedManifest, commit, newest
from lancelsm.region.head import Head
from lancelsm.region.manifest import Manifest
from lancelsm.registry import Fields, SwapApplied

BATCH = 1_000  # keys per call


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """What a sweep did: number of deleted items, and what pins kept."""

    deleted: int
    kept: tuple[Kept, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A committed round that is not fully swept: the items that a sweep would delete, and what pins keep.

    `since` is when it was committed, in Unix seconds, by the committer's clock.
    """

    key: str
    since: float
    items: tuple[GarbageItem, ...]
    kept: tuple[Kept, ...]


Sweep = Callable[[Sequence[Pin]], Swept]
"""Deletes what a confirmed round lists, except what these pins need. They must be read after the confirmation."""


def confirm_region(region: Region, key: str) -> Sweep:
    """Check that a round is committed and published. Read the pins for its sweep only after this.

    Returns:
        Its sweep. It deletes nothing if a later round is committed: that one takes the rest.

    Raises:
        Invalid: the round is not committed.
        Corrupt, Unavailable: see `region.compare_and_swap.commit`.
    """
    done = commit(region, lambda manifest: manifest)  # publishes the manifest before anything is deleted
    assert isinstance(done, CommittedManifest)
    if done.manifest.collector_key != key:  # guard: only a committed round is swept
        if (round_number(key) or 0) > done.manifest.collector_round:
            raise Invalid("the round is not committed", remedy="Commit it first", **region.where, object=key)
        return sweep_nothing
    return partial(sweep_region, region, done.head, done.manifest)


def sweep_nothing(_: Sequence[Pin]) -> Swept:
    """Delete nothing: the sweep of a round that other processes have finished."""
    return Swept(deleted=0)


def sweep_region(region: Region, head: Head, manifest: Manifest, pins: Sequence[Pin]) -> Swept:
    """Delete what the list of the round in a published manifest names, except what pins need. Idempotent.

    Args:
        pins: read after the manifest was published.

    Raises:
        Corrupt: the list is not the committed one, or has something that the region needs.
        Unavailable: a store or the registry did not answer; some objects may be deleted. Sweep again.
    """
    context, listed = region.context, _named_list(region, manifest)
    if listed is None:
        return sweep_nothing(pins)
    deletable, kept = _split(  # guard: pins are read after the floors are committed
        region, listed.round.items, head, manifest, pins
    )
    directories = [f"{item.path}/" for item in deletable if item.kind is GarbageKind.GENERATION]
    context.each(partial(delete_below, context), directories)
    delete_all(context, [item.path for item in deletable if item.kind is not GarbageKind.GENERATION])
    return Swept(deleted=len(deletable), kept=tuple(kept))


def waiting_region(region: Region, pins: Sequence[Pin]) -> Waiting | None:
    """Return the committed round that waits for its sweep; None if only objects that pins keep are left of it.

    Raises:
        Corrupt, Unavailable: see `sweep_region`.
    """
    head, manifest = newest(region, region.head())
    listed = _named_list(region, manifest) if manifest.collector_key else None
    if listed is None:
        return None
    deletable, kept = _split(region, listed.round.items, head, manifest, pins)
    prefix = f"{region_prefix(region.id)}/"
    names = [one.key.removeprefix(prefix) for one in list_objects(region.context, prefix)]
    present = {*names, *(name.partition("/")[0] for name in names)}
    left = tuple(item for item in deletable if item.path.removeprefix(prefix) in present)
    # Earlier releases recorded only the time of the mark, not that of the commit.
    since = max(
        manifest.collector_committed,  # guard: interval starts at the commit
        listed.round.marked,  # guard: interval starts at the mark without a commit time
    )
    return Waiting(key=listed.key, since=since, items=left, kept=tuple(kept)) if left else None


def _named_list(region: Region, manifest: Manifest) -> RoundList | None:
    return find_list(
        region.context,
        manifest.collector_key,
        newest=lambda: region.head().collector_round,
        setsum=manifest.collector_setsum,
    )


def expire_pins(context: TableContext, *, skew_seconds: float, removed: list[Pin] | None = None) -> tuple[Pin, ...]:
    """Remove expired pins; return the pins that count.

    An expired pin counts until its record is removed by a compare-and-swap. If its holder renewed it meanwhile, or the
    registry does not answer, it still counts.

    Args:
        removed: the removed pins are added to this list.

    Raises:
        Corrupt, Unavailable: see `history.pins.read_pins`.
    """
    counting: list[Pin] = []
    removed = [] if removed is None else removed
    for pin in read_pins(context):  # guard: unconfirmed pin counts
        if not has_expired(pin, now=context.clock.now(), skew_seconds=skew_seconds):
            counting.append(pin)
            continue
        if pin.replaces is not None:
            try:
                cancel_move(context, pin)
            except (Contended, Unavailable):
                counting.append(pin)  # guard: announcement counts until it is withdrawn
            else:
                removed.append(pin)
            continue
        key = pin_key(pin.partition(context.table), pin.name)
        witness: Fields = {
            "version": pin.version,  # guard: renewed pin is not removed
            "nonce": pin.nonce,
        }
        if not isinstance(  # guard: expired pin counts until it is removed
            context.registry.delete(key, expect=witness), SwapApplied
        ):
            counting.append(pin)
        else:
            removed.append(pin)
    return tuple(counting)


def has_expired(pin: Pin, *, now: float, skew_seconds: float) -> bool:
    return pin.expires is not None and pin.expires + skew_seconds < now  # guard: clocks may differ


def sweep_leftovers(context: TableContext) -> int:
    """Remove the records of regions whose pin is gone; return their number. A new pin writes its own record first."""
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
    # Read again: a listing is not a snapshot, and it may have passed the key of the pin before the pin was created.
    own = context.registry.read(pin_key(key.partition, key.sort.partition("#")[0]))
    if not is_of(own, key):  # guard: leftover has no pin
        context.registry.discard(key)
        return True
    return False


def delete_all(context: TableContext, keys: Sequence[str]) -> None:
    """Delete objects in large batches. After `Unavailable`, some of them may be deleted."""
    for start in range(0, len(keys), BATCH):
        context.objects.delete(keys[start : start + BATCH])


def delete_below(context: TableContext, prefix: str) -> None:
    """Delete all objects with a prefix. If the listing fails, delete what it returned before, then raise."""
    found: list[str] = []
    failed: Unavailable | None = None
    try:
        for line in context.objects.list(prefix):
            found.append(line.key)  # noqa: PERF401 - keep what came before a failure
    except Unavailable as error:
        failed = error
    delete_all(context, found)
    if failed is not None:
        raise failed


def check_paths(paths: Iterable[str], *, below: tuple[str, ...], key: str) -> None:
    """Raise `Corrupt` if the list with this key names a path that is not below one of these prefixes."""
    for path in paths:
        if not path.startswith(below) or not is_key(path):
            raise Corrupt(
                f"the list of a round names a path that is not its own: {path}",
                remedy="Nothing was deleted. lancelsm scrub lists all damage",
                object=key,
                field="items.path",
            )


def _split(
    region: Region, items: Sequence[GarbageItem], head: Head, manifest: Manifest, pins: Sequence[Pin]
) -> tuple[list[GarbageItem], list[Kept]]:
    """Split items into those to delete and those that a pin keeps.

    Raises:
        Corrupt: the committed manifest still needs an item.
    """
    check_paths([item.path for item in items], below=(f"{region_prefix(region.id)}/",), key=manifest.collector_key)
    needs = [(pin, needed) for pin in pins if (needed := pin.of(region.id)) is not None]
    named = {g.path for g in manifest.generations}
    deletable, kept = [], []
    for item in items:
        if _is_needed(item, head, manifest, named):
            raise Corrupt(
                f"the list of round {manifest.collector_round} has an object that the region needs",
                remedy="Nothing was deleted. lancelsm scrub lists all damage",
                **region.where,
                object=item.path,
            )
        holders = [pin for pin, needed in needs if _holds(needed, item)]  # guard: held objects are kept
        if holders:
            kept.append(Kept(path=item.path, kind=item.kind, why=f"{holders[0].kind} {holders[0].name} needs it"))
        else:
            deletable.append(item)
    return deletable, kept


def _is_needed(item: GarbageItem, head: Head, manifest: Manifest, named: set[str]) -> bool:
    match item.kind:
        case GarbageKind.GENERATION:
            return (
                item.path.rpartition("/")[2] in named  # guard: sweep keeps generations of the manifest
                or item.number >= manifest.current_generation  # guard: sweep keeps generations in flight
            )
        case GarbageKind.ENTRY:
            return item.number >= manifest.first_position  # guard: sweep keeps the log
        case GarbageKind.STAGED:
            return (
                item.path == head.manifest_key  # guard: sweep keeps the manifest of the head
                or item.number > head.manifest_version  # guard: sweep keeps manifests in flight
            )
        case GarbageKind.PUBLISHED:
            return item.number >= head.manifest_version  # guard: sweep keeps the newest published manifest
        case GarbageKind.LIST:
            return item.path == manifest.collector_key  # guard: sweep keeps the list of the manifest
    # Items of the base don't belong in the list of a region.
    return True  # guard: sweep of a region keeps the base


def _holds(needs: RegionPin, item: GarbageItem) -> bool:
    match item.kind:
        case GarbageKind.GENERATION:
            return needs.needs(Generation(item.number))  # guard: sweep keeps pinned generations
        case GarbageKind.ENTRY:
            return item.number >= needs.first_position  # guard: sweep keeps pinned entries
        case GarbageKind.STAGED:
            return item.path == needs.manifest_key  # guard: sweep keeps pinned staged manifests
        case GarbageKind.PUBLISHED:
            return item.number == needs.manifest_version  # guard: sweep keeps pinned published manifests
    return False
