"""Leases: advisory locks in the registry that save two processes from doing the same work. No guarantee needs them.

A holder may stall until its lease has expired, and then continue: its commit still has its own precondition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from lancelsm.common.layout import Key, Nonce, RegionId, lease_key
from lancelsm.common.renewal import Renewal
from lancelsm.errors import Contended, Corrupt, LsmError, Unavailable
from lancelsm.region.catalog import TableContext
from lancelsm.registry import Record, SwapApplied, SwapUnknown, number, text

BASE_LEASE = "base"  # held while the base is merged, optimized, collected, changed or dropped
INDEXES_LEASE = "indexes"  # held while indexes are built, dropped or maintained, and while columns change
RESHARD_LEASE = "reshard"  # held while a reshard seals and merges
COLLECTOR_LEASE = "collector"  # held by the service that collects a table
LEASE_SECONDS = 60.0
_SKEW_SECONDS = 300.0  # a lease that ends later than LEASE_SECONDS plus this was written by a wrong clock


@contextmanager
def lease(context: TableContext, name: str) -> Iterator[Callable[[], bool]]:
    """Context manager that holds the lease of this name.

    Yields a function that reads whether the lease is still held: after a stall, another process may have taken it.

    A thread renews the lease for work that takes longer than `LEASE_SECONDS`, unless the context is single-threaded
    (`parallel` is 1).

    Raises:
        Contended: another process holds the lease. The remedy says when it ends.

    After a crash of the holder, others wait at most `LEASE_SECONDS`, plus up to five minutes if its clock was ahead.
    """
    key = lease_key(context.table, name)
    holder = context.ids.nonce()
    version, taken = 0, True

    def renew() -> bool:
        nonlocal version
        try:
            outcome = context.registry.swap(
                key, expect={"version": version, "holder": holder}, change=_record(context, holder, version + 1)
            )
        except LsmError:
            return True  # the next renewal comes before it expires
        version += isinstance(outcome, SwapApplied)
        return isinstance(outcome, SwapApplied | SwapUnknown)  # else it expired, and another process took it

    def is_ours() -> bool:
        try:
            found = _read(context, key)
        except Corrupt:
            return False
        return found is not None and found.holder == holder and _is_current(found, context)

    renewal = Renewal(renew, seconds=LEASE_SECONDS / 3)

    def end() -> None:
        renewal.end()
        if taken:
            with suppress(LsmError):  # it expires by itself
                _release(context, key, holder, version)

    try:  # an interrupt may come right after the swap, before its outcome is known
        try:
            version = _take(context, key, holder, name)
        except Contended:
            taken = False
            raise
        if context.parallel > 1:
            renewal.start()
        yield is_ours
    finally:
        try:
            end()
        except KeyboardInterrupt:
            end()
            raise


def compaction_lease(region: RegionId) -> str:
    """Return the name of the lease under which a function compacts the generations of a region."""
    return f"compact-{region}"


def flush_lease(region: RegionId) -> str:
    """Return the name of the lease that a function holds while it flushes a region."""
    return f"flush-{region}"


def is_held(context: TableContext, name: str) -> bool:
    """Return whether a process holds the lease of this name. Raises `Unavailable` if the registry did not answer."""
    try:
        return _is_current(_read(context, lease_key(context.table, name)), context)
    except Corrupt:
        return False


def _is_current(found: _Lease | None, context: TableContext) -> bool:
    left = found.expires - context.clock.now() if found and found.holder else 0.0
    return 0 < left <= LEASE_SECONDS + _SKEW_SECONDS


def _take(context: TableContext, key: Key, holder: Nonce, name: str) -> int:
    unknown = ""
    for _ in context.budget().attempts():
        try:
            found = _read(context, key)
        except Corrupt:
            context.registry.discard(key)  # safe, since leases are advisory; else no process could take it again
            continue
        if found and _is_current(found, context) and found.holder != holder:
            left = found.expires - context.clock.now()
            raise Contended(
                f"another process holds the lease {name!r}",
                remedy=f"Wait: its holder releases it, or it expires in {left:.0f} s if the holder has crashed",
                table=context.uri,
            )
        version = found.version + 1 if found else 1
        change = _record(context, holder, version)
        expect = {"version": version - 1} if found else None
        outcome = context.registry.swap(key, expect=expect, change=change)
        if isinstance(outcome, SwapApplied):
            return version
        # Lost or unknown: the next read shows the holder.
        unknown = outcome.cause if isinstance(outcome, SwapUnknown) else ""
    if unknown:
        raise Unavailable(f"the lease {name!r} can't be taken: {unknown}", table=context.uri)
    raise Contended(f"other processes kept taking the lease {name!r}", table=context.uri)


def _release(context: TableContext, key: Key, holder: Nonce, version: int) -> None:
    """Release the lease. `version` is the last one that is known, 0 if none is; the record is read if that is old."""
    if version and _free(context, key, holder, version):
        return
    found = _read(context, key)
    if found and found.holder == holder:
        _free(context, key, holder, found.version)


def _free(context: TableContext, key: Key, holder: Nonce, version: int) -> bool:
    change: Record = {"holder": "", "expires": "0", "version": version + 1}
    outcome = context.registry.swap(key, expect={"version": version, "holder": holder}, change=change)
    return isinstance(outcome, SwapApplied)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lease:
    holder: str  # empty: nobody holds it
    expires: float
    version: int


def _read(context: TableContext, key: Key) -> _Lease | None:
    record = context.registry.read(key)
    if record is None:
        return None
    try:
        holder, expires = text(record, "holder"), float(text(record, "expires"))
        return _Lease(holder=holder, expires=expires, version=number(record, "version"))
    except ValueError as error:
        raise Corrupt(f"the lease is unreadable: {error!r}", table=context.uri) from error


def _record(context: TableContext, holder: Nonce, version: int) -> Record:
    return {"holder": holder, "expires": str(context.clock.now() + LEASE_SECONDS), "version": version}
