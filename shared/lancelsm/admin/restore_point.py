"""Restore a table as of a time, from the versions that its S3 bucket keeps.

S3 has no snapshot of many objects, so each object is copied as of a time. What names an object must never be newer than
that object. So there are three times, half a minute apart, since clocks inside S3 may differ:

    at            objects that are written once: entries, generations, files of the base
    at - 30 s     versions of the base, which name such files
    at - 60 s     manifests of regions, which name generations and are never newer than the base; the configuration

An object that was deleted after `at` - 60 s is copied too: something older may name it. The records of the registry are
not copied. They are derived from the objects, as after the loss of a registry (`admin.rebuild`, whose model is
tests/model/registry_rebuild.py): every entry that is there before the first gap counts as acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import islice

from lancelsm.admin.clone import facts_of
from lancelsm.admin.create import begin_copy, check_free
from lancelsm.admin.rebuild import rebuild
from lancelsm.common.argument_checks import checked
from lancelsm.common.clock import Budget
from lancelsm.common.layout import (
    CLONE,
    CONFIG,
    DROPPING,
    LOCK,
    PRIVATE,
    REGISTRY_OBJECTS,
    RESTORED,
    SQLITE,
    published_version,
    table_key,
)
from lancelsm.common.task_pool import TaskPool
from lancelsm.dataset.adoption import write_facts
from lancelsm.dataset.base_table import DELETES, BaseTable
from lancelsm.dataset.statement import Stating, files_of
from lancelsm.errors import Corrupt, Invalid, LsmError
from lancelsm.history.pins import read_pins
from lancelsm.objects import ObjectStore
from lancelsm.objects.bucket_versions import ObjectVersion, VersionedBucket
from lancelsm.read import reader
from lancelsm.read.view import take_view
from lancelsm.region import config as configs
from lancelsm.region.catalog import regions
from lancelsm.region.config import Config
from lancelsm.region.handle import Ports, TableHandle, canonical, open_table, table_handle

MARGIN_SECONDS = 60.0  # rows that were acknowledged this long before the time are there

_BATCH = 1000
_RETRY_SECONDS = 30.0
_NOT_COPIED = (
    f"{REGISTRY_OBJECTS}/",
    SQLITE,
    LOCK,
    f"{PRIVATE}/tmp/",
    DROPPING,
    RESTORED,
    CONFIG,
    "_refs/tags/lancelsm.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredPoint:
    """A table as of a time: its location, that of its source, the number of its live rows, and of copied objects.

    `lost` has the names of snapshots and cursors that the source has now: the restored table has none. It is None if
    the source can't be opened any more.
    """

    uri: str
    source: str
    rows: int
    objects: int
    lost: tuple[str, ...] | None


@checked
def restore_point(
    source: str,
    uri: str,
    *,
    at: str,
    registry: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    ports: Ports | None = None,
    margin_seconds: float = MARGIN_SECONDS,
) -> RestoredPoint:
    """Create the table that was at a location at a time, at another location. All writers of it must be stopped.

    The new table has the same id. It has every row that was acknowledged a minute before the time; of what was
    acknowledged in the last minute, each region has the first part. Snapshots, cursors and pins of clones are lost.
    Nothing at the source changes. Objects are copied inside S3.

    Args:
        source: the URL of the table in a bucket with versioning, or of its replica. The table may be dropped.
        uri: a URL in S3 where nothing is.
        at: a time with its zone, by the clock of S3, as in `2026-11-28T10:00:00Z`. The bucket must still keep the
            versions of that time.
        registry: the registry of the new table, as in `create`; by default the kind and name of the source's.
        margin_seconds: shorter only in tests.

    Raises:
        Invalid: versioning is off, there was no table at that time, it was a clone, something else is at `uri`, or the
            registry has the records of this table at another location.
        Corrupt: an object is missing or damaged: versions of that time have expired, or the table was damaged.
        Contended, Unavailable: repeat the call.

    After an error or a crash there is no table at `uri`. The same call continues where it stopped.
    """
    ports, source, location = ports or Ports(), canonical(source), canonical(uri)
    times = Times.of(at, margin=timedelta(seconds=margin_seconds))
    if times.objects.timestamp() > ports.clock.now():
        raise Invalid(f"{at} has not come yet", remedy="Give a time in the past", field="at")
    bucket = VersionedBucket(source, budget=lambda: Budget(clock=ports.clock, ids=ports.ids, seconds=_RETRY_SECONDS))
    if not bucket.keeps_versions():
        raise Invalid("the bucket keeps no versions", remedy="Restore a backup: lancelsm restore", table=source)
    store = ports.store(location, storage_options)
    check_free(store, uri=location, marker=RESTORED)
    config = _config_at(bucket, times, source=source)
    wanted = replace(config, registry=registry or config.registry)
    handle = table_handle(wanted, store, location, storage_options=storage_options, ports=ports)
    _check_registry(handle)
    marker = {"table": wanted.table, "registry": wanted.registry, "source": source, "at": at}
    begin_copy(store, RESTORED, marker, uri=location, storage_options=storage_options)
    objects = _copy_all(bucket, chosen(bucket.versions(), times), location, store=store)
    base = handle.read_base()
    _check_files(base, store)
    if base.facts != facts_of(wanted):
        write_facts(base, facts_of(wanted).metadata(), stating=Stating(objects=store))
    rebuild(handle)
    view = take_view(handle.context, lambda: regions(handle.context), handle.read_keyed_base)
    rows = reader.count(view, uri=location)
    configs.create(store, wanted, uri=location)
    return RestoredPoint(uri=location, source=source, rows=rows, objects=objects, lost=_lost(source, storage_options))


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Until when versions of objects count; see the module."""

    objects: datetime
    base: datetime
    regions: datetime

    @classmethod
    def of(cls, at: str, *, margin: timedelta) -> Times:
        """Return the times for a text in ISO 8601 with a zone; raise `Invalid` for another text."""
        try:
            time = datetime.fromisoformat(at)
        except ValueError:
            time = None
        if time is None or time.tzinfo is None:
            raise Invalid(f"{at!r} is not a time with a zone", remedy="Write 2026-11-28T10:00:00Z", field="at")
        return cls(objects=time.astimezone(UTC), base=time - margin / 2, regions=time - margin)

    def until(self, key: str) -> datetime:
        """Return until when versions of this object count."""
        if key == CONFIG or published_version(key) is not None:
            return self.regions
        return self.base if key.startswith("_versions/") else self.objects


def chosen(objects: Iterable[Sequence[ObjectVersion]], times: Times) -> Iterator[ObjectVersion]:
    """Yield the version of each object that the restored table has.

    Args:
        objects: the versions of one object after the other, the newest first.
    """
    for versions in objects:
        key = versions[0].key
        if not key.startswith(_NOT_COPIED) and not key.endswith("version_hint.json"):
            found = version_at(versions, until=times.until(key), deleted_until=times.regions)
            if found is not None:
                yield found


def version_at(versions: Iterable[ObjectVersion], *, until: datetime, deleted_until: datetime) -> ObjectVersion | None:
    """Return the newest version until a time; None if there is none, or if it was deleted before the other time."""
    for version in versions:
        if version.deleted:
            if version.modified <= deleted_until:
                return None
        elif version.modified <= until:
            return version
    return None


def _config_at(bucket: VersionedBucket, times: Times, *, source: str) -> Config:
    """Read the configuration of that time."""
    for versions in bucket.versions(CLONE):
        if version_at(versions, until=times.objects, deleted_until=times.regions):
            raise Invalid(
                "the table is a clone: its base has files of another table",
                remedy="Restore the table from which it was cloned",
                table=source,
            )
    for versions in bucket.versions(CONFIG):
        found = version_at(versions, until=times.regions, deleted_until=times.regions)
        if versions[0].key == CONFIG and found is not None:
            return configs.decode(bucket.read(found), uri=source)
    raise Invalid(
        "there was no table at this location at that time, or the bucket does not keep its versions any more",
        remedy="Check the location, or give a later time",
        table=source,
        field="at",
    )


def _check_registry(handle: TableHandle) -> None:
    """Raise `Invalid` if the registry has the records of this table at another location: they would be replaced."""
    context = handle.context
    record = context.registry.read(table_key(context.table))
    if record is not None and record.get("uri") != context.uri:  # guard: records of the source stay
        raise Invalid(
            f"the registry {handle.config.registry} has the records of this table at {record.get('uri')!r}",
            remedy="Give another registry, such as --registry object, or drop that table first",
            table=context.uri,
            field="registry",
        )


def _copy_all(bucket: VersionedBucket, found: Iterator[ObjectVersion], location: str, *, store: ObjectStore) -> int:
    """Copy versions, except those that an earlier call copied. Return the number of all."""
    there = {listed.key for listed in store.list("")}
    objects = 0
    with TaskPool(16) as pool:
        while batch := list(islice(found, _BATCH)):
            pool.map(lambda one: bucket.copy(one, location), [one for one in batch if one.key not in there])
            objects += len(batch)
    return objects


def _check_files(base: BaseTable, store: ObjectStore) -> None:
    """Raise `Corrupt` if a file that the base names was not copied."""
    there = {listed.key for listed in store.list("")}
    there |= {key.rpartition("/")[0] for key in there}  # an index is named by its directory
    deletes = base.metadata.get(DELETES, "")
    for key in [*(named.key for named in files_of(base)), *([deletes] if deletes else [])]:
        if key not in there:
            raise Corrupt(
                "a file of the base was not copied: the bucket does not keep its version any more",
                remedy="Drop the incomplete table, and restore a later time",
                table=base.uri,
                version=base.version,
                object=key,
            )


def _lost(source: str, storage_options: Mapping[str, str] | None) -> tuple[str, ...] | None:
    """Return the names of the source's snapshots and cursors; None if it can't be opened."""
    try:
        pins = read_pins(open_table(source, storage_options=storage_options).context)
    except LsmError:
        return None
    return tuple(sorted(pin.name for pin in pins))
