"""Create, renew, drop and read snapshots: named pins of one view of a table, usually with an expiry.

A snapshot is created by the protocol of `pins`. Its holder renews it before it expires. The objects that it needs stay
until it is dropped or has expired. After the expiry a collector first removes its record, by a compare-and-swap, and
only then the objects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial

from lancelsm.common.layout import NO_GENERATION, Nonce, Position, RegionId, pin_key, snapshots
from lancelsm.common.renewal import Renewal
from lancelsm.dataset.base_table import BaseTable, VersionGone, open_base
from lancelsm.dataset.tags import remove_tag, tag_version, tags
from lancelsm.errors import Contended, Corrupt, Invalid, LsmError, Unavailable
from lancelsm.history import pin_records, pins
from lancelsm.history.at import check_not_at, is_partial_time
from lancelsm.history.pin_records import Pin, PinIdentity, RegionPin, pins_of
from lancelsm.objects.open import open_store
from lancelsm.read.view import RegionView, View, mismatch, region_view
from lancelsm.region.catalog import Region, TableContext, regions, with_heads
from lancelsm.region.compare_and_swap import load, newest
from lancelsm.region.handle import TableHandle, check_base, check_table
from lancelsm.region.head import Head
from lancelsm.region.lineage import read_lineage, tag_prefix_of
from lancelsm.region.manifest import Manifest
from lancelsm.wal.replay import LogCollected, stream_tail

_TRIES = 5
RESERVED = "lancelsm-"  # names with this prefix are those of lancelsm itself
RENEWALS = 3  # per time to live
_REMEDY = "create a new one with a longer time to live, and refresh it while you read, as Table.holding_snapshot does"


def create_snapshot(handle: TableHandle, name: str, *, ttl_seconds: float | None, keep_log: bool = False) -> Pin:
    """Create a snapshot of the table as it is now. It has all rows that were acknowledged before the call.

    Args:
        name: letters, digits, `-` and `_`.
        ttl_seconds: time to live from the confirmation on, unless the snapshot is renewed; None for no expiry.
        keep_log: also keep every entry that the regions of the snapshot get later.

    Returns:
        The confirmed pin.

    Raises:
        Invalid: the name is taken or not valid, or reads as a version or a time, or is reserved.
        Contended: collections kept overtaking the new snapshot. The snapshot does not exist.
        Corrupt: an object of the table is missing or damaged.
        Unavailable: a store or the registry did not answer. The snapshot may exist.

    After a crash at any line the snapshot either exists, or can't be opened and its records expire.
    """
    check_not_at(name)
    if name.startswith(RESERVED) and not keep_log:  # a restore takes a snapshot of its name for its own
        raise Invalid(f"names that begin with {RESERVED} are reserved", remedy="Choose another name", field="name")
    record_needs, undo = partial(_record_needs, handle, keep_log), partial(undo_snapshot, handle)
    return pins.create_pin(
        handle.context, "snapshot", name, record_needs=record_needs, undo=undo, ttl_seconds=ttl_seconds
    )


def refresh_snapshot(handle: TableHandle, name: str, *, ttl_seconds: float | None) -> Pin:
    """Give a snapshot a new time to live from now on; None for no expiry.

    Raises:
        Invalid: snapshot not found; it may have been dropped or have expired. Or it keeps the files of a clone.
        Contended, Unavailable: the snapshot was not renewed; retry.
    """
    pin = find_snapshot(handle.context, name)
    if pin.clone:
        raise _kept_for_clone(handle, pin)
    return _renewed(handle, pin, lambda: pins.expiry(handle.context, ttl_seconds))


def ensure_kept(handle: TableHandle, pin: Pin) -> Pin:
    """Swap the record of a snapshot, so that a collector which found it expired fails to remove it.

    Everything that collectors delete from now on was decided by pins that they read after the start of this call.
    Raises: the same errors as `refresh_snapshot`.
    """
    return _renewed(handle, pin, None)


def _renewed(handle: TableHandle, pin: Pin, expires: Callable[[], float | None] | None) -> Pin:
    context = handle.context
    for _ in context.budget().attempts():
        found = find_snapshot(context, pin.name)
        if found.nonce != pin.nonce:  # guard: snapshot is renewed by its holder
            raise _not_found(context, pin.name)
        with suppress(Contended):
            return pins.update_pin(  # guard: snapshot is kept by a swap
                context, replace(found, expires=expires() if expires else found.expires)
            )
    raise Contended("other processes kept changing the snapshot", table=context.uri, snapshot=pin.name)


def drop_snapshot(handle: TableHandle, name: str) -> None:
    """Drop a snapshot, also one that is being created. The next collection deletes what it kept.

    A snapshot that keeps the files of a clone can only be dropped if the clone's location is empty or has another
    table, because the clone was deleted by hand. A clone that was moved is not found, and loses its files.

    Raises:
        Invalid: snapshot not found; or it keeps the files of a clone; or the clone's location can't be read.
        Corrupt: the lineage marker file of the clone is unreadable.
        Contended, Unavailable: the snapshot may still exist; drop it again.
    """
    pin = pins.named(handle.context, "snapshot", name)
    if pin is None:
        raise _not_found(handle.context, name, needed=False)
    if pin.clone:
        lineage = read_lineage(open_store(pin.clone, handle.storage_options))
        if lineage is not None and lineage.pin == name:
            raise _kept_for_clone(handle, pin)
        for tag in tags(uri=handle.context.uri, storage_options=handle.storage_options):
            if tag.startswith(tag_prefix_of(name)):
                remove_tag(uri=handle.context.uri, tag=tag, storage_options=handle.storage_options)
    forget_snapshot(handle, pin)


def list_snapshots(context: TableContext) -> list[Pin]:
    """Return all confirmed snapshots, ordered by name, including expired ones that no collector has removed yet."""
    return [pin for pin in pins_of(context.registry.list(snapshots(context.table))) if pin.confirmed]


def find_snapshot(context: TableContext, name: str) -> Pin:
    """Find the snapshot of this name.

    Raises:
        Invalid: snapshot not found.
        Corrupt: some of its records are missing.
        Contended: other processes kept creating and dropping it.
    """
    incomplete: Nonce | None = None
    for _ in context.budget().attempts():
        pin = next((pin for pin in list_snapshots(context) if pin.name == name), None)
        if pin is None:
            raise _not_found(context, name)
        if pin.complete:  # guard: incomplete snapshot is not opened
            return pin
        # Records that are missing in one listing may have been written during it. All were written before the second
        # listing; and if the pin still exists after that, none was removed. So then a record was lost.
        if (
            pin.nonce == incomplete  # guard: incomplete snapshot is listed again
            and pins.held(context, pin)  # guard: missing snapshot is not incomplete
        ):
            raise Corrupt("records of the snapshot are missing", remedy="Drop it", table=context.uri, snapshot=name)
        incomplete = pin.nonce
    raise Contended("the snapshot kept changing", table=context.uri, snapshot=name)


def renewal_step(
    handle: TableHandle, pin: Pin, *, ttl_seconds: float, lost: Callable[[LsmError], object] = lambda _: None
) -> Callable[[], bool]:
    """Return a step for `Renewal`, which gives a snapshot a new time to live. Once the snapshot is lost, it ends that.

    Args:
        lost: gets the error that says why the snapshot is lost.
    """

    def step() -> bool:
        try:
            _renewed(handle, pin, lambda: pins.expiry(handle.context, ttl_seconds))
        except (Contended, Unavailable):
            pass  # the next renewal comes before the expiry
        except LsmError as error:
            lost(error)
            return False
        return True

    return step


@contextmanager
def holding_snapshot(handle: TableHandle, name: str, *, ttl_seconds: float) -> Iterator[Pin]:
    """Hold a snapshot in a `with` block: create it, renew it by a thread, and drop it at the end.

    Raises: the same errors as `create_snapshot`; at the end of the block, the error of a failed renewal.
    """
    pin = create_snapshot(handle, name, ttl_seconds=ttl_seconds)
    failures: list[LsmError] = []
    step = renewal_step(handle, pin, ttl_seconds=ttl_seconds, lost=failures.append)
    renewal = Renewal(step, seconds=ttl_seconds / RENEWALS)

    def end() -> None:
        renewal.end()
        with suppress(LsmError):  # it expires by itself
            forget_snapshot(handle, pin)

    try:
        renewal.start()
        yield pin
    finally:
        try:
            end()
        except KeyboardInterrupt:
            end()
            raise
    if failures:
        raise failures[0]


def snapshot_view(handle: TableHandle, pin: Pin) -> View:
    """Read the view of the table that the snapshot pins. It is the same at every call: rows expire by its creation.

    Raises:
        Invalid: the snapshot was dropped or has expired.
        Corrupt: an object that it needs is missing or wrong.
    """
    check_readable(handle.context, pin)
    with snapshot_errors(handle.context, pin):
        return view_at(handle, pin.pinned_version, pin.regions, now=pin.created)


def view_at(handle: TableHandle, version: int, needed: Mapping[RegionId, RegionPin], *, now: float) -> View:
    """Read the view of a version of the base and of what `state` returned with it. Rows expire by the time `now`.

    Raises:
        Corrupt: an object that it needs is missing or wrong; it may have been collected.
    """
    context = handle.context
    base = open_base(uri=context.uri, version=version, storage_options=handle.storage_options)
    check_table(base, handle.config)
    named = {region.id: region for region in regions(context)}
    if lost := sorted(needed.keys() - named.keys()):
        raise Corrupt("the catalog has lost a region", table=context.uri, region=lost[0])
    pinned = [(named[region], needs) for region, needs in sorted(needed.items())]
    parts = context.each(lambda pair: _pinned_region(*pair, base, of=len(pinned)), pinned)
    return View(base=base, regions=tuple(parts), now=now)


@contextmanager
def snapshot_errors(context: TableContext, pin: Pin) -> Iterator[None]:
    """Translate errors of a block that reads objects of a snapshot, if the snapshot no longer exists.

    Raises:
        Invalid: an object could not be read, and the snapshot was dropped or has expired.
    """
    try:
        yield
    except (Corrupt, Invalid, Unavailable) as error:
        if not pins.held(context, pin):  # guard: missing snapshot is not damage
            raise _missing(context, pin) from error
        raise


def check_readable(context: TableContext, pin: Pin) -> None:
    """Raise `Invalid` if a snapshot was dropped or has expired, even if no collector has removed it yet."""
    if pin.clone:
        raise Invalid(
            "this snapshot only keeps files of a clone, it is not a view of the table",
            remedy=f"Read the clone: {pin.clone}",
            table=context.uri,
            snapshot=pin.name,
        )
    record = context.registry.read(pin_key(snapshots(context.table), pin.name))
    if (
        record is None or record["nonce"] != pin.nonce  # guard: snapshot is read by its holder
    ):
        raise _missing(context, pin)
    if (  # guard: expired snapshot is not read
        record["expires"] != pin_records.NEVER and float(record["expires"]) <= context.clock.now()
    ):
        if _is_of_version(pin):
            raise _missing(context, pin)
        raise Invalid(
            "the snapshot has expired",
            remedy=f"If no collection has removed it yet: lancelsm snapshot refresh {context.uri} --name {pin.name} "
            f"--ttl 4h. Else {_REMEDY}",
            table=context.uri,
            snapshot=pin.name,
        )


def tag_of(nonce: Nonce) -> str:
    """Return the tag of the version of the base that a pin needs."""
    return f"lancelsm.pin.{nonce}"


def _kept_for_clone(handle: TableHandle, pin: PinIdentity) -> Invalid:
    return Invalid(
        "a clone shares the table's files, and this snapshot keeps them",
        remedy=f"Dropping the clone also drops it: lancelsm drop {pin.clone}",
        table=handle.context.uri,
        snapshot=pin.name,
    )


def _missing(context: TableContext, pin: Pin) -> Invalid:
    """Build the error for a pin that its reader had, and that no longer exists."""
    if not _is_of_version(pin):
        return _not_found(context, pin.name)
    return Invalid(
        f"version {pin.base_version} of the base is no longer held: the table was closed, or its process stood still",
        remedy=f"Open it again: lancelsm.open(uri, at={pin.base_version})",
        table=context.uri,
    )


def version_name(version: int, nonce: Nonce) -> str:
    """Return a new name for the pin of a version of the base."""
    return f"version-{version}-{nonce[:12]}"


def _is_of_version(pin: Pin) -> bool:
    """Return whether a pin is that of a version of the base, which no user has named."""
    return not pin.regions and pin.name.startswith(f"version-{pin.base_version}-")


def _not_found(context: TableContext, name: str, *, needed: bool = True) -> Invalid:
    """Build the error for a missing snapshot. `needed`: the caller wants to use it, not to drop it."""
    see = f"See lancelsm snapshot list {context.uri}"
    if needed and is_partial_time(name):
        see = f"A time has T and a zone, such as 2026-11-01T00:00:00Z. {see}"
    return Invalid(
        "snapshot not found; it may have been dropped or have expired",
        remedy=f"{see}, or {_REMEDY}" if needed else see,
        table=context.uri,
        snapshot=name,
    )


def _pinned_region(region: Region, needs: RegionPin, base: BaseTable, *, of: int) -> RegionView:
    staged = load(region, needs.manifest_key)
    if staged is None:
        raise Corrupt("the manifest of a snapshot is gone", **region.where, object=needs.manifest_key)
    entries = stream_tail(region, needs, staged.manifest)
    try:
        return region_view(region, staged.manifest, entries, base, end=needs, of=of)
    except LogCollected as gone:
        message = "the log of a snapshot was collected"
        raise Corrupt(message, **region.where, position=needs.first_position) from gone


def _record_needs(handle: TableHandle, keep_log: bool, pin: Pin) -> Pin | None:
    """Record what the pin needs of the table now, and tag the base; None if that version was cleaned up meanwhile."""
    context = handle.context
    base, needs = state(handle)
    if keep_log:  # guard: snapshot of a restore keeps the later log
        needs = {region: one.with_later_log() for region, one in needs.items()}
    needed = pins.pin_regions(context, pin, needs)  # guard: needs are recorded before the floors are read
    try:
        tag_version(  # guard: version of a snapshot is tagged
            uri=context.uri, version=base.version, tag=tag_of(pin.nonce), storage_options=handle.storage_options
        )
    except VersionGone:
        return None
    return pins.update_pin(context, replace(pin, base_version=base.version, regions=needed))


def state(handle: TableHandle) -> tuple[BaseTable, Mapping[RegionId, RegionPin]]:
    """Read heads with manifests, then the base, until they match. Raises `Corrupt` as `read.view.take_view` does."""
    problem = ""
    for _ in range(_TRIES):
        found = with_heads(handle.context, regions(handle.context))
        named = handle.context.each(lambda pair: newest(*pair), found)
        base = handle.read_base()
        check_base(base, handle.config)
        problem = next(filter(None, (mismatch(manifest, base) for _, manifest in named)), "")
        if not problem:  # guard: base of a snapshot matches its heads
            return base, {manifest.region: _needs(head, manifest, base) for head, manifest in named}
    raise Corrupt(
        problem, remedy="Scan the table: the error of the scan says how to repair it", table=handle.context.uri
    )


def _needs(head: Head, manifest: Manifest, base: BaseTable) -> RegionPin:
    first = Position(manifest.replay_after + 1)
    return RegionPin(
        first_position=first if first < head.next_position else pin_records.NO_ENTRY,
        after=base.counters.get(manifest.region, NO_GENERATION),
        through=manifest.newest,
        manifest_key=head.manifest_key,
        manifest_version=manifest.version,
        collector_round=head.collector_round,
        next_position=head.next_position,
        entry_setsum=head.entry_setsum,
    )


def undo_snapshot(handle: TableHandle, pin: PinIdentity) -> None:
    """Remove the records and the tag of a pin that is not confirmed; raises the same errors as `forget_snapshot`."""
    if pins.abandon(handle.context, pin):
        _remove_tag(handle, pin)


def forget_snapshot(handle: TableHandle, pin: PinIdentity) -> None:
    """Remove the records and the tag of a pin in any state; raises the same errors as `history.pins.forget`."""
    pins.forget(handle.context, pin)
    _remove_tag(handle, pin)


def _remove_tag(handle: TableHandle, pin: PinIdentity) -> None:
    if pin.nonce:  # unknown if the record is damaged; then a collection removes the tag
        remove_tag(uri=handle.context.uri, tag=tag_of(pin.nonce), storage_options=handle.storage_options)
