"""Scopes of collection: each region and the base have their own rounds. Both scopes have the same interface."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from lancelsm.common.layout import MEM_WAL, RegionId, is_id, is_round_list, region_key, region_prefix
from lancelsm.errors import Invalid
from lancelsm.gc.commit import commit_round
from lancelsm.gc.mark import MarkedRound, Progress, mark_region
from lancelsm.gc.survey import survey_region
from lancelsm.gc.sweep import Sweep, Waiting, confirm_region, waiting_region
from lancelsm.gc.verify import verify_region
from lancelsm.history.pin_records import Pin
from lancelsm.region.catalog import Region, region_from_record, regions, with_heads
from lancelsm.region.handle import TableHandle
from lancelsm.region.manifest import Superseded


class CollectionScope(Protocol):
    """A part of a table with its own sequence of rounds, independent of other scopes."""

    @property
    def path(self) -> str:
        """The path of the scope, relative to the table."""

    def waiting(self, pins: Sequence[Pin]) -> Waiting | None:
        """Return the committed round that waits for its sweep, or None."""

    def look(self, pins: Sequence[Pin], progress: Progress) -> MarkedRound:
        """Decide what a round would delete now."""

    def mark(self, pins: Sequence[Pin], progress: Progress) -> MarkedRound:
        """Decide a round that will be committed; raise `Contended` while another process works there."""

    def verify(self, key: str, pins: Sequence[Pin], progress: Progress) -> None:
        """Verify the round whose list has this key."""

    def commit(self, key: str) -> bool:
        """Commit the round; return False if another round came first."""

    def confirm(self, key: str) -> Sweep:
        """Check that the round is committed. Return its sweep, to be called with pins that are read afterwards."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RegionScope:
    """The scope of a region."""

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
        return not isinstance(commit_round(self.region, key), Superseded)

    def confirm(self, key: str) -> Sweep:
        return confirm_region(self.region, key)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BaseScope:
    """The scope of the base. Imports Lance only when a step is run."""

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


def all_scopes(handle: TableHandle) -> list[CollectionScope]:
    """Return the scopes of all regions with a head, and of the base."""
    created = [region for region, _ in with_heads(handle.context, regions(handle.context))]
    return [*(_region_scope(handle, region, count=len(created)) for region in created), BaseScope(handle=handle)]


def scopes_of(handle: TableHandle, rounds: Sequence[str]) -> dict[CollectionScope, str]:
    """Return the scopes of rounds, which are given by the keys of their lists.

    Raises:
        Invalid: a key is not that of a round of this table.
    """
    found = handle.context.each(lambda key: _scope_of(handle, key, count=len(rounds)), rounds)
    return dict(zip(found, rounds, strict=True))


def check_progress(handle: TableHandle, *, write: bool) -> Progress:
    """Check the files of the base (`base_check.check_files`), then call `base.read_progress`."""
    from lancelsm.gc import base, base_check  # noqa: PLC0415 - imports Lance only then

    return base.read_progress(handle, base_check.check_files(handle, write=write))


def read_progress(handle: TableHandle) -> Progress:
    """Verify the last check of the base, then call `base.read_progress` with it."""
    from lancelsm.gc import base, verify_base_check  # noqa: PLC0415

    return base.read_progress(handle, verify_base_check.verified_check(handle))


def _scope_of(handle: TableHandle, key: str, *, count: int) -> CollectionScope:
    if is_round_list(key, None):
        return BaseScope(handle=handle)
    identity = RegionId(key.removeprefix(f"{MEM_WAL}/").partition("/")[0])
    if is_id(identity) and is_round_list(key, identity):  # read one record: there may be many regions
        record = handle.context.registry.read(region_key(handle.context.table, identity))
        if record is not None:
            return _region_scope(handle, region_from_record(handle.context, identity, record), count=count)
    raise Invalid(
        f"{key!r:.200} is not a round of the table",
        remedy="Give what mark returned",
        table=handle.context.uri,
        field="round",
    )


def _region_scope(handle: TableHandle, region: Region, *, count: int) -> RegionScope:
    """Return the scope of a region. With several scopes at once, each gets its share of the threads."""
    context = replace(region.context, parallel=max(1, region.context.parallel // count))
    return RegionScope(handle=handle, region=replace(region, context=context))
