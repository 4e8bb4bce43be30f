"""Snapshots: named, expiring pins of what a table was, as one view of it.

A snapshot is made by the protocol of `pins`, and renewed by its holder before it expires. What it needs stays until it
is dropped or has expired; then the collector removes its record under its witness, and only after that what it kept.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial

from lancelsm.common.layout import NO_GENERATION, Nonce, Position, RegionId, pin_key, snapshots
from lancelsm.dataset.base_table import BaseTable, VersionGone, open_base
from lancelsm.dataset.tags import remove_tag, tag_version, tags
from lancelsm.errors import Contended, Corrupt, Invalid, LsmError, Unavailable
from lancelsm.history import pins
from lancelsm.history.pins import Pin, PinIdentity, RegionPin, pins_of
from lancelsm.objects.open import open_store
from lancelsm.read.view import RegionView, View, mismatch, region_view
from lancelsm.region.catalog import Region, TableContext, regions, with_heads
from lancelsm.region.compare_and_swap import load, newest
from lancelsm.region.handle import TableHandle, check_base
from lancelsm.region.head import Head
from lancelsm.region.lineage import read_lineage, tags_of
from lancelsm.region.manifest import Manifest
from lancelsm.wal.replay import tail

_TRIES = 5
_BEATS = 3  # renewals in one time to live
_REMEDY = "take a new one with a longer time to live, and refresh it while it is read, as Table.holding_snapshot does"


def make_snapshot(handle: TableHandle, name: str, *, ttl_seconds: float | None) -> Pin:
    """Pin the table as it is now: everything acknowledged before is in the snapshot.

    Args:
        name: letters, digits, `-` and `_`.
        ttl_seconds: for how long from its confirmation on, unless it is renewed; None for ever.

    Returns:
        The confirmed pin.

    Raises:
        Invalid: the name is taken, or no name.
        Contended: the collector overtook it again and again; nothing is kept of it.
        Corrupt, Unavailable: as a read; after `Unavailable` it may be there.

    A crash at any line leaves the snapshot, or nothing that can be opened, whose records expire, whatever the time to
    live.
    """
    place, withdraw = partial(_placed, handle), partial(_withdraw, handle)
    return pins.make(handle.context, "snapshot", name, place=place, withdraw=withdraw, ttl_seconds=ttl_seconds)


def renew_snapshot(handle: TableHandle, name: str, *, ttl_seconds: float | None) -> Pin:
    """Let a snapshot live for so long from now on, None for ever.

    Raises:
        Invalid: it has expired and is gone, so that nothing of it can be relied on; or it keeps the files of a clone.
        Contended, Unavailable: it could not be renewed yet.
    """
    pin = find_snapshot(handle.context, name)
    if pin.clone:
        raise _of_clone(handle, pin)
    return _renewed(handle, pin, lambda: pins.expiry(handle.context, ttl_seconds))


def keep_standing(handle: TableHandle, pin: Pin) -> Pin:
    """Make sure that a snapshot stands, against a collector that has found it expired and is about to remove it.

    Whatever a collector deletes from now on, it has read the pins after this began. Raises as `renew_snapshot`.
    """
    return _renewed(handle, pin, None)


def _renewed(handle: TableHandle, pin: Pin, expires: Callable[[], float | None] | None) -> Pin:
    context = handle.context
    for _ in context.budget().attempts():
        found = find_snapshot(context, pin.name)
        if found.nonce != pin.nonce:
            raise _gone(context, pin.name)
        with suppress(Contended):
            return pins.step(context, replace(found, expires=expires() if expires else found.expires))
    raise Contended("others kept changing the snapshot", remedy="Try again", table=context.uri, snapshot=pin.name)


def drop_snapshot(handle: TableHandle, name: str) -> None:
    """End a snapshot, also one that is being made. What it kept is collected by the next round.

    One that keeps the files of a clone ends only where the clone's place is empty or another table's: somebody removed
    the clone by hand. A clone that was moved is not found, and loses its files.

    Raises:
        Invalid: there is none of this name, or it keeps the files of a clone; or the clone's place can't be read.
        Corrupt: what the clone notes of its source is unreadable.
        Contended, Unavailable: it may still be there; drop it again.
    """
    pin = pins.named(handle.context, "snapshot", name)
    if pin is None:
        raise _gone(handle.context, name, wanted=False)
    if pin.clone:
        lineage = read_lineage(open_store(pin.clone, handle.storage_options))
        if lineage is not None and lineage.pin == name:
            raise _of_clone(handle, pin)
        for tag in tags(uri=handle.context.uri, storage_options=handle.storage_options):
            if tag.startswith(tags_of(name)):
                remove_tag(uri=handle.context.uri, tag=tag, storage_options=handle.storage_options)
    forget_snapshot(handle, pin)


def list_snapshots(context: TableContext) -> list[Pin]:
    """Every confirmed snapshot, by name; expired ones that the collector has not removed yet are among them."""
    return [pin for pin in pins_of(context.registry.list(snapshots(context.table))) if pin.confirmed]


def find_snapshot(context: TableContext, name: str) -> Pin:
    """The snapshot of this name.

    Raises:
        Invalid: there is none.
        Corrupt: some of its records are missing.
        Contended: others kept making and dropping it.
    """
    lacking: Nonce | None = None
    for _ in context.budget().attempts():
        pin = next((pin for pin in list_snapshots(context) if pin.name == name), None)
        if pin is None:
            raise _gone(context, name)
        if pin.complete:
            return pin
        # A record that a listing lacks was made during it, perhaps. All were there before the second one; if its own is
        # there after that, none has been removed yet.
        if pin.nonce == lacking and pins.held(context, pin):
            raise Corrupt("records of the snapshot are missing", remedy="Drop it", table=context.uri, snapshot=name)
        lacking = pin.nonce
    raise Contended("the snapshot kept changing", remedy="Try again", table=context.uri, snapshot=name)


@contextmanager
def holding_snapshot(handle: TableHandle, name: str, *, ttl_seconds: float) -> Iterator[Pin]:
    """A snapshot for as long as the context lasts, renewed by a thread; dropped when it ends.

    Raises: as `make_snapshot`; when the context ends also what kept it from being renewed.
    """
    pin = make_snapshot(handle, name, ttl_seconds=ttl_seconds)
    stop, failures = threading.Event(), []

    def beat() -> None:
        while not stop.wait(ttl_seconds / _BEATS):
            try:
                _renewed(handle, pin, lambda: pins.expiry(handle.context, ttl_seconds))
            except (Contended, Unavailable):
                continue  # the next beat comes before it expires
            except LsmError as error:
                failures.append(error)
                return

    thread = threading.Thread(target=beat, daemon=True, name=f"lancelsm-snapshot-{name}")
    thread.start()
    try:
        yield pin
    finally:
        stop.set()
        thread.join()
        with suppress(LsmError):  # it expires by itself
            forget_snapshot(handle, pin)
    if failures:
        raise failures[0]


def snapshot_view(handle: TableHandle, pin: Pin) -> View:
    """The table as the snapshot pins it: the same at every call.

    Raises:
        Invalid: the snapshot was dropped or has expired.
        Corrupt: something that it needs is missing or wrong.
    """
    context = handle.context
    check_standing(context, pin)
    with standing(context, pin):
        base = open_base(uri=context.uri, version=_base_version(pin), storage_options=handle.storage_options)
        check_base(base, handle.config)
        named = {region.id: region for region in regions(context)}
        if lost := sorted(pin.regions.keys() - named.keys()):
            raise Corrupt("the catalog has lost a region", table=context.uri, region=lost[0])
        pinned = [(named[region], needs) for region, needs in sorted(pin.regions.items())]
        return View(base=base, regions=tuple(context.each(lambda pair: _pinned_region(*pair, base), pinned)))


@contextmanager
def standing(context: TableContext, pin: Pin) -> Iterator[None]:
    """Read what a snapshot keeps: where something is missing because the snapshot is gone, say that.

    Raises:
        Invalid: the snapshot was dropped or has expired, and something that it kept could not be read.
    """
    try:
        yield
    except (Corrupt, Invalid, Unavailable) as error:
        if not pins.held(context, pin):
            raise _gone(context, pin.name) from error
        raise


def check_standing(context: TableContext, pin: Pin) -> None:
    """Raise `Invalid` for a snapshot that was dropped or has expired, collected or not yet."""
    if pin.clone:
        raise Invalid(
            "this snapshot keeps files of a clone; it is no view of the table",
            remedy=f"Read the clone: {pin.clone}",
            table=context.uri,
            snapshot=pin.name,
        )
    record = context.registry.read(pin_key(snapshots(context.table), pin.name))
    if record is None or record["nonce"] != pin.nonce:
        raise _gone(context, pin.name)
    if record["expires"] != pins.NEVER and float(record["expires"]) <= context.clock.now():
        raise Invalid(
            "the snapshot has expired",
            remedy=f"Until a collection has removed it: lancelsm snapshot refresh {context.uri} --name {pin.name} "
            f"--ttl 4h. Else {_REMEDY}",
            table=context.uri,
            snapshot=pin.name,
        )


def tag_of(nonce: Nonce) -> str:
    """The tag of the base's version that a pin needs."""
    return f"lancelsm.pin.{nonce}"


def _of_clone(handle: TableHandle, pin: PinIdentity) -> Invalid:
    return Invalid(
        "a clone shares the files that this snapshot keeps",
        remedy=f"It ends with the clone: lancelsm drop {pin.clone}",
        table=handle.context.uri,
        snapshot=pin.name,
    )


def _gone(context: TableContext, name: str, *, wanted: bool = True) -> Invalid:
    """What there is to say of a snapshot that is not there, to whoever wanted it, or wanted it to end."""
    there = f"See lancelsm snapshot list {context.uri}"
    return Invalid(
        "there is no such snapshot, or not any more: it was dropped or has expired then",
        remedy=f"{there}, or {_REMEDY}" if wanted else there,
        table=context.uri,
        snapshot=name,
    )


def _pinned_region(region: Region, needs: RegionPin, base: BaseTable) -> RegionView:
    staged = load(region, needs.manifest_key)
    if staged is None:
        raise Corrupt("the manifest of a snapshot is gone", **region.where, object=needs.manifest_key)
    entries = tail(region, needs, staged.manifest)
    if entries is None:
        raise Corrupt("the log of a snapshot was collected", **region.where, position=needs.first_position)
    return region_view(region, staged.manifest, entries, base)


def _placed(handle: TableHandle, pin: Pin) -> Pin | None:
    """The pin with what it needs of the table as it is now, recorded; None if the base's version was cleaned up."""
    context = handle.context
    base, needs = _state(handle)
    needed = pins.pin_regions(context, pin, needs)
    try:
        tag_version(
            uri=context.uri, version=base.version, tag=tag_of(pin.nonce), storage_options=handle.storage_options
        )
    except VersionGone:
        return None
    return pins.step(context, replace(pin, base_version=base.version, regions=needed))


def _state(handle: TableHandle) -> tuple[BaseTable, Mapping[RegionId, RegionPin]]:
    """Heads with their manifests, then the base, that belong together; raises `Corrupt` as `read.view.take_view`."""
    problem = ""
    for _ in range(_TRIES):
        made = with_heads(handle.context, regions(handle.context))
        named = handle.context.each(lambda pair: newest(*pair), made)
        base = handle.read_base()
        check_base(base, handle.config)
        problem = next(filter(None, (mismatch(manifest, base) for _, manifest in named)), "")
        if not problem:
            return base, {manifest.region: _needs(head, manifest, base) for head, manifest in named}
    raise Corrupt(problem, remedy="Read the table: its error says how to repair it", table=handle.context.uri)


def _needs(head: Head, manifest: Manifest, base: BaseTable) -> RegionPin:
    first = Position(manifest.replay_after + 1)
    return RegionPin(
        first_position=first if first < head.next_position else pins.NO_ENTRY,
        after=base.counters.get(manifest.region, NO_GENERATION),
        through=manifest.newest,
        manifest_key=head.manifest_key,
        manifest_version=manifest.version,
        collector_round=head.collector_round,
        next_position=head.next_position,
        entry_setsum=head.entry_setsum,
    )


def _withdraw(handle: TableHandle, pin: Pin) -> None:
    if pins.abandon(handle.context, pin):
        _remove_tag(handle, pin)


def forget_snapshot(handle: TableHandle, pin: PinIdentity) -> None:
    """Remove the records and the tag of a pin, of whatever state; raises as `history.pins.forget`."""
    pins.forget(handle.context, pin)
    _remove_tag(handle, pin)


def _remove_tag(handle: TableHandle, pin: PinIdentity) -> None:
    if pin.nonce:  # else a collection removes it
        remove_tag(uri=handle.context.uri, tag=tag_of(pin.nonce), storage_options=handle.storage_options)


def _base_version(pin: Pin) -> int:
    assert pin.base_version is not None, "a snapshot pins a version of the base"
    return pin.base_version
