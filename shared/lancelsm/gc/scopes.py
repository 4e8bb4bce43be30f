"""The places of a table that are collected by rounds of their own, each region and the base, with one face for both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from lancelsm.common.layout import MEM_WAL, RegionId, region_key, region_prefix, round_prefix
from lancelsm.errors import Invalid
from lancelsm.gc.commit import commit_round
from lancelsm.gc.mark import MarkedRound, Progress, mark_region
from lancelsm.gc.survey import survey_region
from lancelsm.gc.sweep import Sweep, Waiting, confirm_region, waiting_region
from lancelsm.gc.verify import verify_region
from lancelsm.history.pins import Pin
from lancelsm.region.catalog import Region, region_from_record, regions, with_heads
from lancelsm.region.handle import TableHandle
from lancelsm.region.manifest import Dead


class CollectionScope(Protocol):
    """Where rounds are taken one after the other; each place is worked on by itself."""

    @property
    def path(self) -> str:
        """Where it is, below the table."""

    def waiting(self, pins: Sequence[Pin]) -> Waiting | None:
        """The committed round that waits for its sweep."""

    def look(self, pins: Sequence[Pin], progress: Progress) -> MarkedRound:
        """What a round would delete now."""

    def mark(self, pins: Sequence[Pin], progress: Progress) -> MarkedRound:
        """As `look`, for a round that is to be committed; raises `Contended` while another has the place."""

    def verify(self, key: str, pins: Sequence[Pin], progress: Progress) -> None:
        """Check the round whose list is at a key."""

    def commit(self, key: str) -> bool:
        """Commit it; False if another round came first."""

    def confirm(self, key: str) -> Sweep:
        """Make sure that it is committed; what is returned deletes, given pins that are read after this."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RegionScope:
    """A region."""

    handle: TableHandle
    region: Region

    @property
    def path(self) -> str:
        return region_prefix(self.region.id)

    def waiting(self, pins: Sequence[Pin]) -> Waiting | None:
        return waiting_region(self.region, pins)

    def look(self, pins: Sequence[Pin], progress: Progress) -> MarkedRound:
        survey = survey_region(self.region, pins=pins, progress=progress, settings=self.handle.settings)
        return mark_region(survey, now=self.handle.context.clock.now())

    def mark(self, pins: Sequence[Pin], progress: Progress) -> MarkedRound:
        return self.look(pins, progress)

    def verify(self, key: str, pins: Sequence[Pin], progress: Progress) -> None:
        verify_region(self.region, key, pins=pins, progress=progress, settings=self.handle.settings)

    def commit(self, key: str) -> bool:
        return not isinstance(commit_round(self.region, key), Dead)

    def confirm(self, key: str) -> Sweep:
        return confirm_region(self.region, key)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BaseScope:
    """The base. Lance is loaded when something is done with it."""

    handle: TableHandle

    @property
    def path(self) -> str:
        return "data"

    def waiting(self, pins: Sequence[Pin]) -> Waiting | None:
        from lancelsm.gc.base import waiting_base  # noqa: PLC0415

        return waiting_base(self.handle, pins)

    def look(self, pins: Sequence[Pin], _: Progress) -> MarkedRound:
        from lancelsm.gc.base import survey_base  # noqa: PLC0415

        return survey_base(self.handle, pins)

    def mark(self, pins: Sequence[Pin], _: Progress) -> MarkedRound:
        from lancelsm.gc.base import mark_in_base  # noqa: PLC0415

        return mark_in_base(self.handle, pins)

    def verify(self, key: str, pins: Sequence[Pin], _: Progress) -> None:
        from lancelsm.gc.verify_base import verify_base  # noqa: PLC0415

        verify_base(self.handle, key, pins=pins)

    def commit(self, key: str) -> bool:
        from lancelsm.gc.base import commit_base  # noqa: PLC0415

        return commit_base(self.handle, key)

    def confirm(self, key: str) -> Sweep:
        from lancelsm.gc.base import confirm_base  # noqa: PLC0415

        return confirm_base(self.handle, key)


def all_places(handle: TableHandle) -> list[CollectionScope]:
    """Every region that has a head, and the base."""
    made = [region for region, _ in with_heads(handle.context, regions(handle.context))]
    return [*(_of(handle, region, among=len(made)) for region in made), BaseScope(handle=handle)]


def places_of(handle: TableHandle, rounds: Sequence[str]) -> dict[CollectionScope, str]:
    """The place of each round, by the keys of their lists.

    Raises:
        Invalid: a key names no round of this table.
    """
    found = handle.context.each(lambda key: _place_of(handle, key, among=len(rounds)), rounds)
    return dict(zip(found, rounds, strict=True))


def read_progress(handle: TableHandle) -> Progress:
    """What the newest base has of each region; raises as `base.read_progress`."""
    from lancelsm.gc import base  # noqa: PLC0415

    return base.read_progress(handle)


def _place_of(handle: TableHandle, key: str, *, among: int) -> CollectionScope:
    if key.startswith(round_prefix(None)):
        return BaseScope(handle=handle)
    identity = RegionId(key.removeprefix(f"{MEM_WAL}/").partition("/")[0])
    if key.startswith(round_prefix(identity)):  # one of many: not by a list of all
        record = handle.context.registry.read(region_key(handle.context.table, identity))
        if record is not None:
            return _of(handle, region_from_record(handle.context, identity, record), among=among)
    raise Invalid(
        f"{key!r:.200} names no round of the table",
        remedy="Give what mark returned",
        table=handle.context.uri,
        field="round",
    )


def _of(handle: TableHandle, region: Region, *, among: int) -> RegionScope:
    """A region that is worked on beside others: together they have the threads that one alone would have."""
    context = replace(region.context, parallel=max(1, region.context.parallel // among))
    return RegionScope(handle=handle, region=replace(region, context=context))
