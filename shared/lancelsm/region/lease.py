"""An advisory lock in the registry: it saves two processes from doing the same work, and nothing rests on it.

A holder that stalls past its time and goes on does no harm: what it was going to commit carries its own precondition.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from lancelsm.common.layout import Key, Nonce, lease_key
from lancelsm.errors import Contended, Corrupt, LsmError
from lancelsm.region.catalog import TableContext
from lancelsm.registry import Record, SwapApplied, SwapUnknown, number, text

LEASE_SECONDS = 60.0
_SKEW_SECONDS = 300.0  # a lease that ends later than this after the longest one is of a clock that was wrong


@contextmanager
def lease(context: TableContext, name: str) -> Iterator[None]:
    """Hold the table's lease of this name for as long as the context lasts.

    A thread renews it for work that takes longer than `LEASE_SECONDS`, unless the storage is for one thread
    (`parallel` 1).

    Raises:
        Contended: another process holds it; says for how long still.

    After a crash of the holder others wait at most `LEASE_SECONDS`, and five minutes more if its clock was ahead.
    """
    key = lease_key(context.table, name)
    holder = context.ids.nonce()
    version = _take(context, key, holder, name)
    stop = threading.Event()
    beat = threading.Thread(target=_renew, args=(context, key, holder, version, stop), daemon=True)
    if context.parallel > 1:
        beat.start()
    try:
        yield
    finally:
        stop.set()
        if beat.is_alive():
            beat.join()
        with suppress(LsmError):  # it runs out by itself
            _release(context, key, holder)


def _take(context: TableContext, key: Key, holder: Nonce, name: str) -> int:
    for _ in context.budget().attempts():
        try:
            found = _read(context, key)
        except Corrupt:
            context.registry.discard(key)  # nothing rests on it, and nobody could ever take it
            continue
        left = found.expires - context.clock.now() if found and found.holder else 0.0
        held = 0 < left <= LEASE_SECONDS + _SKEW_SECONDS
        if found and held and found.holder != holder:
            raise Contended(
                f"another process holds the lease {name!r}",
                remedy=f"Wait: it ends by itself, or in {left:.0f} s if its holder has died",
                table=context.uri,
            )
        version = found.version + 1 if found else 1
        change = _record(context, holder, version)
        expect = {"version": version - 1} if found else None
        if not isinstance(context.registry.swap(key, expect=expect, change=change), SwapApplied):
            continue  # lost, or unknown: then the next look recognises the holder
        return version
    raise Contended(f"others kept taking the lease {name!r}", remedy="Retry", table=context.uri)


def _renew(context: TableContext, key: Key, holder: Nonce, version: int, stop: threading.Event) -> None:
    while not stop.wait(LEASE_SECONDS / 3):
        try:
            outcome = context.registry.swap(
                key, expect={"version": version, "holder": holder}, change=_record(context, holder, version + 1)
            )
        except LsmError:
            continue  # the next beat comes before it ends
        if isinstance(outcome, SwapApplied):
            version += 1
        elif not isinstance(outcome, SwapUnknown):
            return  # it ran out and another process took it


def _release(context: TableContext, key: Key, holder: Nonce) -> None:
    found = _read(context, key)
    if found and found.holder == holder:
        change: Record = {"holder": "", "expires": "0", "version": found.version + 1}
        context.registry.swap(key, expect={"version": found.version}, change=change)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lease:
    holder: str  # nobody if empty
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
