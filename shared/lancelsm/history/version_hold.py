"""Hold a version of the base while an object reads it: a pin that is renewed, and released at the end.

The pin is a snapshot of the version alone, without regions, and expires soon after its process has died. It is created
by the protocol of `history.pins`, so no collection removes the version meanwhile.
"""

from __future__ import annotations

import atexit
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial

from lancelsm.common.layout import pin_key
from lancelsm.common.renewal import Renewal
from lancelsm.dataset.base_table import BaseTable, VersionGone, open_base
from lancelsm.dataset.tags import tag_version
from lancelsm.errors import Invalid, LsmError
from lancelsm.history import pins
from lancelsm.history.at import At, AtSnapshot, find_version, not_kept, parse_at
from lancelsm.history.pin_records import Pin
from lancelsm.history.snapshot import (
    RENEWALS,
    check_readable,
    find_snapshot,
    forget_snapshot,
    renewal_step,
    tag_of,
    undo_snapshot,
    version_name,
)
from lancelsm.region.catalog import TableContext
from lancelsm.region.handle import Overwritten, TableHandle, check_table

HOLD_SECONDS = 900.0


class VersionHold:
    """A pin of a version that lasts until `close`, until `release_soon`, or until the process ends."""

    def __init__(self, handle: TableHandle, pin: Pin) -> None:
        self._handle = handle
        step = renewal_step(handle, pin, ttl_seconds=HOLD_SECONDS)  # if the pin is lost, the next read says so
        self._renewal = Renewal(step, seconds=HOLD_SECONDS / RENEWALS, then=self._release)
        self._closed = False
        self.pin = pin
        atexit.register(self.close)
        self._renewal.start()

    def close(self) -> None:
        """Release the version, and wait until that is done. Idempotent."""
        if not self._closed:
            self._renewal.end()
            self._closed = True

    def release_soon(self) -> None:
        """Release the version soon, in another thread. It takes no lock, so a finaliser may call it."""
        self._renewal.stop()

    def _release(self) -> None:
        with suppress(LsmError):  # it expires by itself
            forget_snapshot(self._handle, self.pin)
            discard_own(self._handle.context, self.pin)
        atexit.unregister(self.close)  # only now: a process that ends waits for this thread


def hold_version(handle: TableHandle, version: int) -> VersionHold:
    """Pin a version of the base until the returned hold is closed.

    Raises: the same errors as `pin_version`.
    """
    name = version_name(version, handle.context.ids.nonce())
    return VersionHold(handle, pin_version(handle, version, name=name, ttl_seconds=HOLD_SECONDS))


@contextmanager
def holding_at(handle: TableHandle, at: At) -> Iterator[Pin]:
    """Yield the pin of a snapshot, or of a version that is held in the `with` block.

    Raises: the same errors as `pin_version` and `find_version`; `Invalid` if the snapshot is not found or has expired.
    """
    wanted = parse_at(at)
    if isinstance(wanted, AtSnapshot):
        pin = find_snapshot(handle.context, wanted.name)
        check_readable(handle.context, pin)
        yield pin
        return
    hold = hold_version(handle, find_version(handle, wanted))
    try:
        yield hold.pin
    finally:
        hold.close()


def discard_own(context: TableContext, pin: Pin) -> None:
    """Delete what a registry keeps of the record of a pin that was removed, and whose name is never used again."""
    context.registry.discard(pin_key(pin.partition(context.table), pin.name))


def pin_version(handle: TableHandle, version: int, *, name: str, ttl_seconds: float) -> Pin:
    """Create a snapshot of a version of the base alone.

    Raises:
        Invalid: there is no such version any more or yet, or it is not of this table. Or the name is taken.
        Contended: collections kept overtaking the pin. It does not exist.
        Corrupt, Unavailable: the base, the store or the registry could not be read. The pin may exist, and expires.
    """
    return pins.create_pin(
        handle.context,
        "snapshot",
        name,
        record_needs=partial(_record_version, handle, version),
        undo=partial(undo_snapshot, handle),
        ttl_seconds=ttl_seconds,
    )


def _record_version(handle: TableHandle, version: int, pin: Pin) -> Pin:
    context, options = handle.context, handle.storage_options
    newest = handle.read_base().version
    if version > newest:
        raise Invalid(
            f"the base has no version {version} yet, its newest one is {newest}",
            remedy=f"See lancelsm history {context.uri}",
            table=context.uri,
            field="at",
        )
    recorded = pins.update_pin(context, replace(pin, base_version=version, regions={}))
    try:
        base = open_base(uri=context.uri, version=version, storage_options=options)
        tag_version(uri=context.uri, version=version, tag=tag_of(pin.nonce), storage_options=options)
    except VersionGone:
        raise _gone(handle, version) from None
    _check_same_table(handle, base)
    if pins.overtaken(context, recorded):
        raise _gone(handle, version)
    if base.ttl is not None:
        return replace(recorded, created=_committed(handle, version))  # rows expire by the time of the version
    return recorded


def _committed(handle: TableHandle, version: int) -> float:
    from lancelsm.dataset.cleanup import stored_versions  # noqa: PLC0415 - Lance is slow

    found = stored_versions(uri=handle.context.uri, storage_options=handle.storage_options)
    return next((one.committed for one in found if one.version == version), handle.context.clock.now())


def _check_same_table(handle: TableHandle, base: BaseTable) -> None:
    what, key = f"version {base.version} of the base", handle.config.schema.primary_key
    try:
        check_table(base, handle.config)
    except Overwritten:
        problem = f"{what} is not of this table: it is from before the table was adopted, or of another tool"
    else:
        if base.schema.primary_key == key:
            return
        problem = f"{what} has the key {list(base.schema.primary_key)}, the table has {list(key)}"
    remedy = f"Choose another version: see lancelsm history {base.uri}"
    raise Invalid(problem, remedy=remedy, table=base.uri, field="at")


def _gone(handle: TableHandle, version: int) -> Invalid:
    """Build the error for a version below the floor of the base: a collection removes it, or has removed it."""
    from lancelsm.dataset.cleanup import stored_versions  # noqa: PLC0415 - Lance is slow

    options = handle.storage_options
    kept = [one for one in stored_versions(uri=handle.context.uri, storage_options=options) if one.version > version]
    by = next((pin.name for pin in pins.read_pins(handle.context) if pin.regions and pin.base_version == version), "")
    if by:
        return Invalid(
            f"version {version} of the base is no longer kept for new readers",
            remedy=f"The snapshot {by} has it: open the table at that snapshot",
            table=handle.context.uri,
            field="at",
        )
    return not_kept(handle, f"version {version} of the base was collected", kept=kept)
