"""Say which state of a table is meant: a snapshot by its name, or a version of the base by its number or its time.

A version shows the rows of the base alone: rows that were not merged yet at its commit are absent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING

from lancelsm.common.clock import iso
from lancelsm.errors import Invalid
from lancelsm.region.handle import TableHandle

if TYPE_CHECKING:  # it loads Lance
    from lancelsm.dataset.cleanup import StoredVersion

At = str | int | datetime
"""The name of a snapshot, the number of a version of the base, or a time with its zone, also as text."""

_MOST = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AtVersion:
    """A version of the base by its number."""

    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AtTime:
    """The version of the base that was the newest one at a time in Unix seconds."""

    time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AtSnapshot:
    """A snapshot by its name."""

    name: str


def parse_at(at: object) -> AtVersion | AtTime | AtSnapshot:
    """Parse an `at`: an integer is a version, a datetime or text with `T` and a zone is a time, other text a snapshot.

    Raises:
        Invalid: it is neither text, an integer from 1 nor a datetime with a zone.
    """
    if isinstance(at, datetime):
        if at.utcoffset() is None:
            raise Invalid(
                f"the time {at.isoformat()} has no zone", remedy="Give one, such as datetime.now(UTC) has", field="at"
            )
        return AtTime(time=at.timestamp())
    if isinstance(at, str):
        time = _time(at)
        return AtSnapshot(name=at) if time is None else AtTime(time=time)
    if isinstance(at, bool) or not isinstance(at, int) or not 0 < at <= _MOST:
        raise Invalid(
            f"at is {at!r}",
            remedy="Give a version of the base, a time such as '2026-11-01T00:00:00Z', or the name of a snapshot",
            field="at",
        )
    return AtVersion(version=at)


def at_of_text(text: str) -> At:
    """Return the `at` that a text stands for where everything is text: digits are a version of the base."""
    return int(text) if _is_number(text) else text


def check_not_at(name: str) -> None:
    """Raise `Invalid` for a name of a snapshot that would be read as a version or as a time."""
    if _is_number(name) or _time(name) is not None:
        raise Invalid(
            f"{name!r} reads as a {'version of the base' if _is_number(name) else 'time'}",
            remedy="Choose a name that begins with a word, such as "
            f"day-{name.lower() if _is_number(name) else name.replace('T', '-')}",
            field="name",
        )


def is_partial_time(name: str) -> bool:
    """Return whether text looks like a time, but lacks `T` or the zone, so that it is taken for a snapshot's name."""
    try:
        datetime.fromisoformat(name)
    except ValueError:
        return False
    return _time(name) is None


def find_version(handle: TableHandle, at: AtVersion | AtTime) -> int:
    """Return the number of the version that is meant; it may not exist any more.

    Raises:
        Invalid: no version is known for this time.
        Contended, Corrupt, Unavailable: see `dataset.cleanup.stored_versions`.
    """
    if isinstance(at, AtVersion):
        return at.version
    from lancelsm.dataset.cleanup import stored_versions  # noqa: PLC0415 - Lance is slow

    context = handle.context
    if at.time > context.clock.now() + handle.settings.skew_allowance_seconds:
        raise Invalid(
            f"{iso(at.time)} is in the future", remedy="Give a time that has passed", table=context.uri, field="at"
        )
    versions = stored_versions(uri=context.uri, storage_options=handle.storage_options)
    found = version_at_time(versions, at.time)
    if found is None:
        raise not_kept(handle, f"no version of the base is known at {iso(at.time)}", kept=versions)
    return found


def version_at_time(versions: Sequence[StoredVersion], time: float) -> int | None:
    """Return the newest version that was committed until a time.

    None if it is unknown: no version was there yet, or the one after it is gone, which may have been committed before
    that time too.

    Args:
        versions: the versions that exist, oldest first. Clocks of writers differ, so times may decrease.
    """
    until = [at for at, one in enumerate(versions) if one.committed <= time]
    if not until:
        return None
    last = until[-1]
    following = versions[last + 1 : last + 2]
    if any(one.version != versions[last].version + 1 for one in following):
        return None
    return versions[last].version


def not_kept(handle: TableHandle, problem: str, *, kept: Sequence[StoredVersion]) -> Invalid:
    """Build the error for a version that does not exist, or of which this is not known."""
    since = _kept_since(kept)
    uri = handle.context.uri
    return Invalid(
        problem,
        remedy=f"All versions from version {since.version} on are there, committed at {iso(since.committed)}: see "
        f"lancelsm history {uri}. The setting keep_versions_seconds ({handle.settings.keep_versions_seconds:.0f} s) "
        "says how long versions are kept. A bucket with versioning may have older ones: lancelsm restore-point",
        table=uri,
        field="at",
    )


def _kept_since(versions: Sequence[StoredVersion]) -> StoredVersion:
    """Return the first version after which none is missing. A table always has a version."""
    gaps = [newer for older, newer in pairwise(versions) if newer.version != older.version + 1]
    return gaps[-1] if gaps else versions[0]


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _time(text: str) -> float | None:
    """Return the time of a text with `T` and a zone; None for other text."""
    if "T" not in text:
        return None
    try:
        time = datetime.fromisoformat(text)
        return None if time.tzinfo is None else time.timestamp()
    except (ValueError, OverflowError):
        return None
