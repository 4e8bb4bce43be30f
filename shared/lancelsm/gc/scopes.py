"""The places of a table that are collected by rounds of their own, each region and the base, with one face for both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from lancelsm.common.layout import MEM_WAL, RegionId, region_key, region_prefix, round_prefix
from lancelsm.errors import Invalid
from lancelsm.gc.commit import commit_round
from lancelsm.gc.mark import Marked, Progress, mark_region
from lancelsm.gc.survey import survey_region
from lancelsm.gc.sweep import Sweep, Waiting, confirm_region, waiting_region
from lancelsm.gc.verify import verify_region
from lancelsm.history.pins import Pin
from lancelsm.region.catalog import Region, region_from_record, regions, with_heads
from lancelsm.region.handle import Opened
from lancelsm.region.manifest import Dead


class Place(Protocol):
    """Where rounds are taken one after the other; each place is worked on by itself."""

    @property
    def path(self) -> str:
        """Where it is, below the table."""

    def waiting(self, pins: Sequence[Pin]) -> Waiting | None:
        """The committed round that waits for its sweep."""

    def look(self, pins: Sequence[Pin], progress: Progress) -> Marked:
        """What a round would delete now."""

    def mark(self, pins: Sequence[Pin], progress: Progress) -> Marked:
        """As `look`, for a round that is to be committed; raises `Contended` while another has the place."""

    def verify(self, key: str, pins: Sequence[Pin], progress: Progress) -> None:
        """Check the round whose list is at a key."""

    def commit(self, key: str) -> bool:
        """Commit it; False if another round came first."""

    def confirm(self, key: str) -> Sweep:
        """Make sure that it is committed; what is returned deletes, given pins that are read after this."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RegionPlace:
    """A region."""

    opened: Opened
    region: Region

    @property
    def path(self) -> str:
        return region_prefix(self.region.id)

    def waiting(self, pins: Sequence[Pin]) -> Waiting | None:
        return waiting_region(self.region, pins)

    def look(self, pins: Sequence[Pin], progress: Progress) -> Marked:
        survey = survey_region(self.region, pins=pins, progress=progress, settings=self.opened.settings)
        return mark_region(survey, now=self.opened.storage.clock.now())

    def mark(self, pins: Sequence[Pin], progress: Progress) -> Marked:
        return self.look(pins, progress)

    def verify(self, key: str, pins: Sequence[Pin], progress: Progress) -> None:
        verify_region(self.region, key, pins=pins, progress=progress, settings=self.opened.settings)

    def commit(self, key: str) -> bool:
        return not isinstance(commit_round(self.region, key), Dead)

    def confirm(self, key: str) -> Sweep:
        return confirm_region(self.region, key)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BasePlace:
    """The base. Lance is loaded when something is done with it."""

    opened: Opened

    @property
    def path(self) -> str:
        return "data"

    def waiting(self, pins: Sequence[Pin]) -> Waiting | None:
        from lancelsm.gc.base import waiting_base  # noqa: PLC0415

        return waiting_base(self.opened, pins)

    def look(self, pins: Sequence[Pin], _: Progress) -> Marked:
        from lancelsm.gc.base import survey_base  # noqa: PLC0415

        return survey_base(self.opened, pins)

    def mark(self, pins: Sequence[Pin], _: Progress) -> Marked:
        from lancelsm.gc.base import mark_in_base  # noqa: PLC0415

        return mark_in_base(self.opened, pins)

    def verify(self, key: str, pins: Sequence[Pin], _: Progress) -> None:
        from lancelsm.gc.verify_base import verify_base  # noqa: PLC0415

        verify_base(self.opened, key, pins=pins)

    def commit(self, key: str) -> bool:
        from lancelsm.gc.base import commit_base  # noqa: PLC0415

        return commit_base(self.opened, key)

    def confirm(self, key: str) -> Sweep:
        from lancelsm.gc.base import confirm_base  # noqa: PLC0415

        return confirm_base(self.opened, key)


def all_places(opened: Opened) -> list[Place]:
    """Every region that has a head, and the base."""
    made = [region for region, _ in with_heads(opened.storage, regions(opened.storage))]
    return [*(_of(opened, region, among=len(made)) for region in made), BasePlace(opened=opened)]


def places_of(opened: Opened, rounds: Sequence[str]) -> dict[Place, str]:
    """The place of each round, by the keys of their lists.

    Raises:
        Invalid: a key names no round of this table.
    """
    found = opened.storage.each(lambda key: _place_of(opened, key, among=len(rounds)), rounds)
    return dict(zip(found, rounds, strict=True))


def read_progress(opened: Opened) -> Progress:
    """What the newest base has of each region; raises as `base.read_progress`."""
    from lancelsm.gc import base  # noqa: PLC0415

    return base.read_progress(opened)


def _place_of(opened: Opened, key: str, *, among: int) -> Place:
    if key.startswith(round_prefix(None)):
        return BasePlace(opened=opened)
    identity = RegionId(key.removeprefix(f"{MEM_WAL}/").partition("/")[0])
    if key.startswith(round_prefix(identity)):  # one of many: not by a list of all
        record = opened.storage.registry.read(region_key(opened.storage.table, identity))
        if record is not None:
            return _of(opened, region_from_record(opened.storage, identity, record), among=among)
    raise Invalid(
        f"{key!r:.200} names no round of the table",
        remedy="Give what mark returned",
        table=opened.storage.uri,
        field="round",
    )


def _of(opened: Opened, region: Region, *, among: int) -> RegionPlace:
    """A region that is worked on beside others: together they have the threads that one alone would have."""
    storage = replace(region.storage, parallel=max(1, region.storage.parallel // among))
    return RegionPlace(opened=opened, region=replace(region, storage=storage))
