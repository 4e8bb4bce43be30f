"""Record which regions take no rows from the queue, so that `ingest` refuses rows for them before they fill the queue.

A FIFO queue searches only its first 120,000 messages for groups that are free. Messages of a stopped region could fill
them and so hold back all other regions.

The record is advisory. It has the form of a lease, whose holder is the kind of the error. It expires, so a region that
recovers takes rows again by itself.
"""

from __future__ import annotations

from contextlib import suppress

from lancelsm.common.layout import Key, RegionId, lease_key
from lancelsm.errors import LsmError, Unavailable
from lancelsm.region.catalog import Region, TableContext
from lancelsm.registry import Record, number, text

RENEWED_SECONDS = 300.0
_REFUSED_SECONDS = 600.0
_LASTING = ("Corrupt", "Fenced", "Invalid", "Internal")
_PAUSES = 2.5  # a pause is up to a quarter longer than planned, and so is the next one


def record_stopped(context: TableContext, region: RegionId, error: Exception, *, pause: float) -> None:
    """Record that messages of a region fail, if the error is of a kind that lasts.

    An error of the registry is ignored: the next delivery records it.

    Args:
        error: why the messages fail. Errors that a retry fixes are not recorded.
        pause: seconds until the messages are delivered again. The record lasts longer.
    """
    kind = error.kind if isinstance(error, LsmError) else "Internal"
    if kind not in _LASTING:
        return
    key, now = _key(context, region), context.clock.now()
    with suppress(LsmError):
        found = context.registry.read(key)
        since = _since(found, now)
        change: Record = {
            "holder": kind,
            "expires": str(now + max(RENEWED_SECONDS, _PAUSES * pause)),
            "since": str(now if since is None else since),
            "version": _version(found) + 1,
        }
        context.registry.swap(key, expect=None if found is None else {}, change=change)


def record_recovered(context: TableContext, region: RegionId) -> None:
    """End the record of a region whose messages were applied again. An error of the registry is ignored."""
    key, now = _key(context, region), context.clock.now()
    with suppress(LsmError):
        found = context.registry.read(key)
        if _since(found, now) is not None:
            change: Record = {"holder": "", "expires": "0", "version": _version(found) + 1}
            context.registry.swap(key, expect={}, change=change)


def stopped_refusal(region: Region) -> Unavailable | None:
    """Return why a region takes no rows now; None if it does, or has failed for less than 10 minutes.

    Raises:
        Unavailable: the registry did not answer.
    """
    context = region.context
    found = context.registry.read(_key(context, region.id))
    since = _since(found, now := context.clock.now())
    if found is None or since is None or now - since < _REFUSED_SECONDS:
        return None
    return Unavailable(
        f"messages of this region have failed for {(now - since) / 60:.0f} minutes: {text(found, 'holder')}",
        remedy="See writer_flush's log and docs/operations/runbooks/oldest-message.md. Send again after the repair",
        **region.where,
    )


def _key(context: TableContext, region: RegionId) -> Key:
    return lease_key(context.table, f"stopped-{region}")


def _since(found: Record | None, now: float) -> float | None:
    """Return since when the messages fail; None if the record has ended or is unreadable."""
    if found is None:
        return None
    try:
        current = bool(text(found, "holder")) and float(text(found, "expires")) > now
        return float(text(found, "since")) if current else None
    except ValueError:
        return None


def _version(found: Record | None) -> int:
    try:
        return 0 if found is None else number(found, "version")
    except ValueError:
        return 0
