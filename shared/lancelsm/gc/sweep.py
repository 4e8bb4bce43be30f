"""Sweep: delete. The only module that calls the deletion of stores and registries.

A sweep begins only once the round's manifest is committed and published, then reads all pins, then deletes. What a
pin holds stays: rank alone finds it again in a later round. A sweep that stalls anywhere and goes on much later deletes
what nobody can need any more, so any number may sweep, and again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lancelsm.commit import CommittedManifest, commit
from lancelsm.errors import Corrupt, Invalid, Unavailable
from lancelsm.gc.lists import Item, Kind, find_list
from lancelsm.gc.mark import Kept
from lancelsm.head import Head
from lancelsm.layout import cursors, pin_key, round_number, snapshots
from lancelsm.manifest import Manifest
from lancelsm.pins import Pin, RegionPin, read_pins
from lancelsm.region import Region, Storage
from lancelsm.registry import Applied, Fields

BATCH = 1_000  # keys in one call


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """What a sweep did: how many items it deleted, and what pins kept. `over`: a later round has taken the rest."""

    deleted: int
    kept: tuple[Kept, ...] = ()
    over: bool = False


def sweep_region(region: Region, key: str, *, skew_seconds: float) -> Swept:
    """Delete what a committed round lists, but for what pins hold.

    Args:
        skew_seconds: that clocks may differ; a pin has expired only after that.

    Returns:
        Once everything that is not pinned is gone. Repeated, it does what is left to do.

    Raises:
        Invalid: the round is not committed.
        Corrupt: its list is not the one that was committed, or has something that the region needs.
        Unavailable: a store or the registry did not answer; some of it is deleted. Sweep again.
    """
    storage = region.storage
    done = commit(region, lambda manifest: manifest)  # published before anything of it goes
    assert isinstance(done, CommittedManifest)
    manifest = done.manifest
    if manifest.collector_key != key:
        if (round_number(key) or 0) > manifest.collector_round:
            raise Invalid("the round is not committed", remedy="Commit it first", **region.where, object=key)
        return Swept(deleted=0, over=True)
    listed = find_list(storage, key, newest=lambda: region.head().collector_round, setsum=manifest.collector_setsum)
    if listed is None:
        return Swept(deleted=0, over=True)
    counting = expire_pins(storage, skew_seconds=skew_seconds)
    doomed, kept = _divided(region, listed.round.items, done.head, manifest, counting)
    plain = [item.path for item in doomed if item.kind is not Kind.GENERATION]
    for item in doomed:
        if item.kind is Kind.GENERATION:
            delete_below(storage, f"{item.path}/")
    delete_all(storage, plain)
    return Swept(deleted=len(doomed), kept=tuple(kept))


def expire_pins(storage: Storage, *, skew_seconds: float) -> tuple[Pin, ...]:
    """The pins that count, once the expired ones are removed.

    An expired pin is removed under its witness before it stops counting: if its holder renewed it meanwhile, or nobody
    answers, it counts.

    Raises:
        Corrupt, Unavailable: as `pins.read_pins`.
    """
    counting = []
    for pin in read_pins(storage):
        if not has_expired(pin, now=storage.clock.now(), skew_seconds=skew_seconds):
            counting.append(pin)
            continue
        key = pin_key(pin.partition(storage.table), pin.name)
        witness: Fields = {"version": pin.version, "nonce": pin.nonce}
        if not isinstance(storage.registry.delete(key, expect=witness), Applied):
            counting.append(pin)
    return tuple(counting)


def has_expired(pin: Pin, *, now: float, skew_seconds: float) -> bool:
    return pin.expires is not None and pin.expires + skew_seconds < now


def sweep_leftovers(storage: Storage) -> int:
    """Remove the records of regions whose pin is gone; returns how many. A pin's own record is written first."""
    removed = 0
    for partition in (snapshots(storage.table), cursors(storage.table)):
        records = storage.registry.list(partition)
        nonces = {key.sort: record["nonce"] for key, record in records if "#" not in key.sort}
        for key, record in records:
            name, inside, _ = key.sort.partition("#")
            if not inside or nonces.get(name) == record["nonce"]:
                continue
            # Once more, since the listing is no moment: its pin may have been begun behind the place where it was.
            own = storage.registry.read(pin_key(partition, name))
            if own is None or own["nonce"] != record["nonce"]:
                witness = {"version": record["version"], "nonce": record["nonce"]}
                removed += isinstance(storage.registry.delete(key, expect=witness), Applied)
    return removed


def delete_all(storage: Storage, keys: Sequence[str]) -> None:
    """Delete objects, many in one call; raises `Unavailable` after some of them."""
    for start in range(0, len(keys), BATCH):
        storage.objects.delete(keys[start : start + BATCH])


def delete_below(storage: Storage, prefix: str) -> None:
    """Delete every object below a prefix. A listing that fails in the middle loses only what it did not show."""
    found: list[str] = []
    failed: Unavailable | None = None
    try:
        for line in storage.objects.list(prefix):
            found.append(line.key)  # noqa: PERF401 - what came before a failure counts
    except Unavailable as error:
        failed = error
    delete_all(storage, found)
    if failed is not None:
        raise failed


def _divided(
    region: Region, items: Iterable[Item], head: Head, manifest: Manifest, pins: Sequence[Pin]
) -> tuple[list[Item], list[Kept]]:
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


def _is_needed(item: Item, head: Head, manifest: Manifest, named: set[str]) -> bool:
    match item.kind:
        case Kind.GENERATION:
            return item.path.rpartition("/")[2] in named or item.number >= manifest.current_generation
        case Kind.ENTRY:
            return item.number >= manifest.first_position
        case Kind.STAGED:
            return item.path == head.manifest_key or item.number > head.manifest_version
        case Kind.PUBLISHED:
            return item.number >= head.manifest_version
        case Kind.LIST:
            return item.path == manifest.collector_key
    return True  # the base's are not a region's


def _holds(needs: RegionPin, item: Item) -> bool:
    match item.kind:
        case Kind.GENERATION:
            return needs.after < item.number <= needs.through
        case Kind.ENTRY:
            return item.number >= needs.first_position
        case Kind.STAGED:
            return item.path == needs.manifest_key
        case Kind.PUBLISHED:
            return item.number == needs.manifest_version
    return False
