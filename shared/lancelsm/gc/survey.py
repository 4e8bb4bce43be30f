"""Survey a region before a round: read head, manifest, log, and list the objects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from lancelsm.common.layout import Position, region_prefix, version_hint, wal_entry
from lancelsm.common.setsum import Setsum
from lancelsm.common.settings import Settings
from lancelsm.errors import Contended, Corrupt, Unavailable
from lancelsm.gc.lists import read_list
from lancelsm.gc.mark import EntryFacts, Progress, Survey, log_end, log_objects
from lancelsm.history.pin_records import Pin
from lancelsm.objects import Listed
from lancelsm.region.catalog import Region, TableContext
from lancelsm.region.compare_and_swap import decode_hint, newest
from lancelsm.region.head import Head
from lancelsm.region.manifest import Manifest
from lancelsm.wal.entry import decode


def survey_region(region: Region, *, pins: Sequence[Pin], progress: Progress, settings: Settings) -> Survey:
    """Read everything from which a round of this region is decided.

    Raises:
        Contended: another round was committed meanwhile.
        Corrupt: a committed entry at or above the floor, the manifest, or the list of the last round is missing or
            unreadable.
        Unavailable: a store or the registry did not answer.
    """
    head, manifest = newest(region, region.head())
    with contended_if_overtaken(region, head):
        return _survey(region, head, manifest, pins=pins, progress=progress, settings=settings)


@contextmanager
def contended_if_overtaken(region: Region, head: Head) -> Iterator[None]:
    """Raise `Contended` instead of `Corrupt` if another round was committed since the head was read.

    An object that seems to be missing may have been collected. Only a head that is read later can tell.
    """
    try:
        yield
    except Corrupt as error:
        if region.head().collector_round != head.collector_round:  # guard: overtaken survey is not damage
            raise Contended("another round came first", **region.where) from error
        raise


def _survey(
    region: Region, head: Head, manifest: Manifest, *, pins: Sequence[Pin], progress: Progress, settings: Settings
) -> Survey:
    context = region.context
    listed = list_objects(context, f"{region_prefix(region.id)}/")
    log = log_objects(region.id, listed)
    log_bytes = sum(log.values())
    below = [position for position in log if position < manifest.first_position]
    positions = sorted({*below, *range(manifest.first_position, log_end(manifest, pins))})
    facts = context.each(lambda position: _facts(region, Position(position)), positions)
    entries = dict(zip(map(Position, positions), facts, strict=True))
    _require(region, manifest, entries)
    return Survey(
        head=head,
        manifest=manifest,
        hint=_hint(region),
        pins=pins,
        progress=progress,
        listed=listed,
        entries=entries,
        discarded=discarded(context, manifest),
        log_bytes=log_bytes,
        bytes_max=max(settings.collect_floor_bytes, log_bytes * settings.collect_share_percent // 100),
    )


def list_objects(context: TableContext, prefix: str) -> list[Listed]:
    """List objects. If the listing fails in the middle, return the objects found before that.

    A collection concludes nothing from objects that are not listed. So a listing that always fails does not block it.
    """
    found: list[Listed] = []
    try:
        for line in context.objects.list(prefix):
            found.append(line)  # noqa: PERF402 - keep what came before a failure
    except Unavailable:
        if not found:  # guard: objects of a failed listing count
            raise
    return found


def discarded(context: TableContext, manifest: Manifest) -> Setsum:
    """Return the sum of the entries that earlier rounds took from the log."""
    if not manifest.collector_key:
        return Setsum.ZERO
    return read_list(context, manifest.collector_key, setsum=manifest.collector_setsum).round.discarded


def _facts(region: Region, position: Position) -> EntryFacts | None:
    key = wal_entry(region.id, position)
    found = region.context.objects.get(key)
    if found is None:
        return None
    try:
        entry = decode(found.body, position=position, key=key)
    except Corrupt:
        return None
    return EntryFacts(
        bytes=len(found.body),
        fence=entry.fence and entry.nonce is not None,
        entry_setsum=entry.summary.entry_setsum,
    )


def _require(region: Region, manifest: Manifest, entries: dict[Position, EntryFacts | None]) -> None:
    """Raise `Corrupt` if an entry at or above the floor is missing."""
    for position, entry in entries.items():
        if entry is None and position >= manifest.first_position:
            raise Corrupt(
                "a committed entry is gone or unreadable",
                **region.where,
                position=position,
                object=wal_entry(region.id, position),
            )


def _hint(region: Region) -> int:
    found = region.context.objects.get(version_hint(region.id))
    return 0 if found is None else decode_hint(found.body)
