"""Snapshots: named, expiring pins of what a table was, as one view of it.

A snapshot is made by the protocol of `pins`, and renewed by its holder before it expires. What it needs stays until it
is dropped or has expired; then the collector removes its record under its witness, and only after that what it kept.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from lancelsm import pins
from lancelsm.commit import load, newest
from lancelsm.dataset.base_table import BaseTable, open_base
from lancelsm.dataset.tags import remove_tag, tag_version
from lancelsm.errors import Contended, Corrupt, Invalid, LsmError, Unavailable
from lancelsm.layout import Nonce, Position, pin_key, snapshots
from lancelsm.opening import Opened
from lancelsm.pins import Pin, RegionPin, checked_name, pins_of
from lancelsm.region import Region, Storage, regions
from lancelsm.registry import Applied, Fields
from lancelsm.view import RegionView, View, region_view
from lancelsm.wal.replay import tail

_TRIES = 5
_BEATS = 3  # renewals in one time to live


def make_snapshot(opened: Opened, name: str, *, ttl_seconds: float | None) -> Pin:
    """Pin the table as it is now: everything acknowledged before is in the snapshot.

    Args:
        name: letters, digits, `-` and `_`.
        ttl_seconds: for how long, unless it is renewed; None for ever.

    Returns:
        The confirmed pin.

    Raises:
        Invalid: the name is taken, or no name.
        Contended: the collector overtook it again and again; nothing is kept of it.
        Corrupt, Unavailable: as a read.

    A crash at any line leaves nothing that can be opened; its records expire like those of a snapshot.
    """
    checked_name(name)
    storage = opened.storage
    for _ in range(_TRIES):
        pin = _begun(opened, name, ttl_seconds=ttl_seconds)
        try:
            if pins.stands(storage, pin):
                return pins.confirm(storage, pin)
        except BaseException:
            with suppress(LsmError):
                _forget(opened, pin)
            raise
        _forget(opened, pin)
    raise Contended("the collector was faster than the snapshot", remedy="Take it again", table=storage.uri)


def renew_snapshot(opened: Opened, name: str, *, ttl_seconds: float | None) -> Pin:
    """Let a snapshot expire later, or never.

    Raises:
        Invalid: it has expired and is gone; nothing of it can be relied on.
        Contended, Unavailable: it could not be renewed yet.
    """
    storage = opened.storage
    for _ in storage.budget().attempts():
        pin = find_snapshot(storage, name)
        renewed = replace(pin, version=pin.version + 1, expires=_expiry(storage, ttl_seconds))
        key = pin_key(snapshots(storage.table), name)
        witness: Fields = {"version": pin.version, "nonce": pin.nonce}
        if isinstance(storage.registry.swap(key, expect=witness, change=renewed.to_record()), Applied):
            return renewed
    raise Contended("others kept changing the snapshot", remedy="Renew it again", table=storage.uri, snapshot=name)


def drop_snapshot(opened: Opened, name: str) -> None:
    """End a snapshot; raises as `renew_snapshot`. What it kept is collected by the next round."""
    for _ in opened.storage.budget().attempts():
        if _forget(opened, find_snapshot(opened.storage, name)):
            return
    raise Contended("others kept changing the snapshot", remedy="Drop it again", table=opened.storage.uri)


def list_snapshots(storage: Storage) -> list[Pin]:
    """Every confirmed snapshot, by name; expired ones that the collector has not removed yet are among them."""
    return [pin for pin in pins_of(storage.registry.list(snapshots(storage.table))) if pin.confirmed]


def find_snapshot(storage: Storage, name: str) -> Pin:
    """The snapshot of this name; raises `Invalid` if there is none."""
    for pin in list_snapshots(storage):
        if pin.name == name:
            return pin
    raise Invalid(
        "there is no such snapshot: it was dropped or has expired",
        remedy=f"See lancelsm snapshot list {storage.uri}",
        table=storage.uri,
        snapshot=name,
    )


@contextmanager
def held_snapshot(opened: Opened, name: str, *, ttl_seconds: float) -> Iterator[Pin]:
    """A snapshot for as long as the context lasts, renewed by a thread; dropped when it ends.

    Raises: as `make_snapshot`; when the context ends also what kept it from being renewed.
    """
    pin = make_snapshot(opened, name, ttl_seconds=ttl_seconds)
    stop, failures = threading.Event(), []

    def beat() -> None:
        while not stop.wait(ttl_seconds / _BEATS):
            try:
                renew_snapshot(opened, name, ttl_seconds=ttl_seconds)
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
        if not failures:
            drop_snapshot(opened, name)
    if failures:
        raise failures[0]


def snapshot_view(opened: Opened, pin: Pin) -> View:
    """The table as the snapshot pins it: the same at every call.

    Raises:
        Invalid: the snapshot was dropped or has expired, and what it needs is being collected.
        Corrupt: something that it needs is missing or wrong.
    """
    storage = opened.storage
    try:
        base = open_base(uri=storage.uri, version=_base_version(pin), storage_options=opened.storage_options)
        named = {region.id: region for region in regions(storage)}
        pinned = [(named[region], needs) for region, needs in sorted(pin.regions.items())]
        return View(base=base, regions=tuple(storage.each(lambda pair: _pinned_region(*pair, base), pinned)))
    except (Corrupt, Invalid, KeyError):
        find_snapshot(storage, pin.name)  # says so if it is gone
        raise


def tag_of(nonce: Nonce) -> str:
    """The tag of the base's version that a pin needs."""
    return f"lancelsm.pin.{nonce}"


def _pinned_region(region: Region, needs: RegionPin, base: BaseTable) -> RegionView:
    staged = load(region, needs.manifest_key)
    if staged is None:
        raise Corrupt("the manifest of a snapshot is gone", **region.where, object=needs.manifest_key)
    entries = tail(region, needs, staged.manifest)
    if entries is None:
        raise Corrupt("the log of a snapshot was collected", **region.where, position=needs.first_position)
    return region_view(region, staged.manifest, entries, base)


def _begun(opened: Opened, name: str, *, ttl_seconds: float | None) -> Pin:
    """Write the records of a pin of the table as it is now."""
    storage = opened.storage
    pin = Pin(
        kind="snapshot",
        name=name,
        nonce=storage.ids.nonce(),
        version=1,
        created=storage.clock.now(),
        expires=_expiry(storage, ttl_seconds),
        confirmed=False,
        base_version=None,
        regions={},
    )
    pins.begin(storage, pin)
    found = [(region, needs) for region in regions(storage) if (needs := _needs(region)) is not None]
    base = opened.read_base()
    needed = {region.id: replace(needs, after=base.counters.get(region.id, needs.after)) for region, needs in found}
    pinned = pins.pin_regions(storage, pin, needed)
    tag_version(uri=storage.uri, version=base.version, tag=tag_of(pin.nonce), storage_options=opened.storage_options)
    pinning = replace(pin, version=pin.version + 1, base_version=base.version, regions=pinned)
    pins.step(storage, pin, pinning)
    return pinning


def _needs(region: Region) -> RegionPin | None:
    head = region.find_head()
    if head is None:
        return None
    head, manifest = newest(region, head)
    return RegionPin(
        first_position=Position(manifest.replay_after + 1),
        through=manifest.newest,
        manifest_key=head.manifest_key,
        manifest_version=manifest.version,
        collector_round=head.collector_round,
        next_position=head.next_position,
        entry_setsum=head.entry_setsum,
    )


def _forget(opened: Opened, pin: Pin) -> bool:
    """Remove the records and the tag of a pin; whether its record was removed."""
    gone = pins.forget(opened.storage, pin)
    if gone:
        remove_tag(uri=opened.storage.uri, tag=tag_of(pin.nonce), storage_options=opened.storage_options)
    return gone


def _expiry(storage: Storage, ttl_seconds: float | None) -> float | None:
    return None if ttl_seconds is None else storage.clock.now() + ttl_seconds


def _base_version(pin: Pin) -> int:
    assert pin.base_version is not None, "a snapshot pins a version of the base"
    return pin.base_version
