"""Open a table: read its configuration, connect to its object store and registry.

Writers need only the configuration and never load Lance. Readers and mergers compare it with the base first.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from lancelsm.common import settings as setting
from lancelsm.common.argument_checks import checked
from lancelsm.common.clock import Clock, Ids, SystemClock, SystemIds
from lancelsm.common.formats import check_format
from lancelsm.common.layout import CONFIG, table_key
from lancelsm.errors import Corrupt, Invalid, Unavailable, error_context
from lancelsm.objects import ObjectStore
from lancelsm.objects.hedged import HedgedStore
from lancelsm.objects.location import absolute, local_path
from lancelsm.objects.open import open_store
from lancelsm.record.schema import TableSchema
from lancelsm.region import config as configs
from lancelsm.region.catalog import Directory, TableContext, check_not_dropped
from lancelsm.region.config import Config
from lancelsm.region.lineage import read_lineage
from lancelsm.region.unfinished_change import finish_if_begun
from lancelsm.registry import Record, Registry, SwapUnknown
from lancelsm.registry.open import open_registry
from lancelsm.routing.spec import RegionSpec

if TYPE_CHECKING:
    from lancelsm.dataset.base_table import BaseFacts, BaseTable

DEFAULT_OWNER = "default"
_THREADS = 16


class Overwritten(Corrupt):
    """The base has no table id, or that of another table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """How to create the store, registry, clock and ids of a table. Tests and deployments replace it as a whole.

    Args:
        threads: the maximum number of threads of an operation on a table. None: 16 if the table is in a bucket, where
            requests wait for a network; else one for each core, since more of them only wait for Python's lock.
    """

    store: Callable[[str, Mapping[str, str] | None], ObjectStore] = open_store
    registry: Callable[..., Registry] = open_registry
    clock: Clock = field(default_factory=SystemClock)
    ids: Ids = field(default_factory=SystemIds)
    threads: int | None = None

    def parallel(self, location: str) -> int:
        """Return the maximum number of threads for the table at this location."""
        if self.threads is not None:
            return self.threads
        return _THREADS if local_path(location) is None else min(_THREADS, os.cpu_count() or 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteTarget:
    """The part of a table that a writer needs."""

    context: TableContext
    schema: TableSchema
    regions: RegionSpec
    settings: setting.Settings
    owner: str  # creates regions; all ordinary writers share it
    directory: Directory
    earlier_regions: tuple[RegionSpec, ...] = ()  # before the last reshards, oldest first


@dataclass(frozen=True, slots=True, kw_only=True)
class TableHandle:
    """An open table: its configuration, context and settings."""

    config: Config
    context: TableContext
    settings: setting.Settings
    storage_options: Mapping[str, str] | None

    def read_base(self) -> BaseTable:
        """Open the newest version of the base.

        Raises: the same errors as `dataset.base_table.open_base`, and `Invalid` if the table was dropped.
        """
        from lancelsm.dataset.base_table import find_base, no_dataset  # noqa: PLC0415 - a writer never loads Lance

        base = find_base(uri=self.context.uri, storage_options=self.storage_options)
        if base is None or base.facts is None or base.facts.table != self.config.table:
            check_not_dropped(self.context)
        if base is None:
            raise no_dataset(self.context.uri)
        return base

    def inspect_base(self) -> BaseTable:
        """Read the newest version of the base without Lance if its manifest can be decoded, else as `read_base` does.

        Use it where no rows are read. Lance is loaded once `BaseTable.dataset` is used.

        Raises: the same errors as `read_base`.
        """
        from lancelsm.dataset.newest_base import read_newest_base  # noqa: PLC0415 - a writer never needs it

        context = self.context
        base = read_newest_base(uri=context.uri, objects=context.objects, storage_options=self.storage_options)
        ours = base is not None and base.facts is not None and base.facts.table == self.config.table
        return base if base is not None and ours else self.read_base()

    def read_keyed_base(self) -> BaseTable:
        """Open the newest version of the base, for a read.

        Raises: the same errors as `read_base`, and `Invalid` if another tool changed the key of the base.
        """
        base = self.read_base()
        ours = base.facts is not None and base.facts.table == self.config.table  # else the view raises `Corrupt`
        if (
            ours and base.schema.primary_key != self.config.schema.primary_key  # guard: base of a read has its key
        ):
            raise Invalid(
                f"another tool changed the key of the base to {list(base.schema.primary_key)}",
                remedy="Restore the last version of the base with the key "
                f"{list(self.config.schema.primary_key)}, with Lance",
                table=self.context.uri,
                version=base.version,
            )
        return base

    def following(self, base: BaseTable) -> TableHandle:
        """Return the handle with the region spec of the base, if a reshard gave it a later one."""
        later = None if base.facts is None else configs.later_regions(base.facts.regions, self.config)
        return self if later is None else replace(self, config=self.config.resharded(later))

    def with_columns_of(self, base: BaseTable) -> TableHandle:
        """Return the handle with the columns of this version of the base, if it has newer ones than the handle.

        Raises:
            Corrupt: the base and the configuration disagree about how the columns changed.
        """
        history = base.schema.history
        if history.version <= self.config.schema.version:
            return self
        try:
            schema = self.config.schema.at(history)
        except ValueError as error:
            raise Corrupt(
                f"the columns in the base have another history than those in the configuration: {error}",
                remedy="Correct the configuration: the base is authoritative",
                table=base.uri,
                version=base.version,
                object=CONFIG,
            ) from error
        return replace(self, config=replace(self.config, schema=schema))

    def with_newest_columns(self) -> TableHandle:
        """Return the handle with the columns of the configuration as it is now, without Lance.

        Raises: the same errors as `newest_columns`.
        """
        schema = newest_columns(self.context, self.config.schema)
        return self if schema is self.config.schema else replace(self, config=replace(self.config, schema=schema))

    def target(self) -> WriteTarget:
        """Return the part that writers need; raise `Invalid` if the table has no region spec yet."""
        spec = self.config.regions
        if spec is None:
            raise Invalid(
                "the table was adopted from Lance without a region spec, so it accepts no rows yet",
                remedy=f'Set a region spec: lancelsm region adopt {self.context.uri} --regions "bucket(column, 4)"',
                table=self.context.uri,
            )
        return WriteTarget(
            context=self.context,
            schema=self.config.schema,
            regions=spec,
            settings=self.settings,
            owner=self.config.owner,
            directory=Directory(self.context, spec_id=spec.spec_id),
            earlier_regions=self.config.earlier_regions,
        )


def newest_columns(context: TableContext, known: TableSchema) -> TableSchema:
    """Return the columns of the configuration as it is now; `known` if they are not newer.

    Raises: the same errors as `region.config.read`, and `Invalid` if the table was dropped.
    """
    config = configs.read(context.objects, uri=context.uri)
    if config is None or config.table != context.table:
        check_not_dropped(context)
        raise configs.no_table(context.uri)
    return config.schema if config.schema.version > known.version else known


@checked
def open_table(
    uri: str | Path,
    *,
    settings: Mapping[str, object] | None = None,
    storage_options: Mapping[str, str] | None = None,
    ports: Ports = Ports(),
) -> TableHandle:
    """Read the configuration of a table and compare it with the base. So only the registry that the base names is used.

    Args:
        settings: values by name; they override the environment and the table's own settings.

    Raises:
        Invalid: there is no table at this location, or a newer release created it.
        Corrupt: the configuration is unreadable, or `check_base` finds that it differs from the base.
        Unavailable: the store did not answer.
    """
    return open_with_base(uri, settings=settings, storage_options=storage_options, ports=ports)[0]


def open_with_base(
    uri: str | Path,
    *,
    settings: Mapping[str, object] | None = None,
    storage_options: Mapping[str, str] | None = None,
    ports: Ports = Ports(),
) -> tuple[TableHandle, BaseTable]:
    """Open a table as `open_table` does. Return also the version of the base that was compared with it."""
    table = open_configured(uri, settings=settings, storage_options=storage_options, ports=ports)
    base = table.inspect_base()
    check_base(base, table.config)
    table = table.following(base)
    if base.outside and read_lineage(table.context.objects) is None:
        raise Corrupt(
            f"the base reads files outside of the table, but the table is no clone: {base.outside[0]}",
            remedy="Restore the base to a version without these files",
            table=base.uri,
            version=base.version,
            object=f"{base.uri}/_versions",
        )
    if base.schema.version > table.config.schema.version:
        table = finish_if_begun(table, base)
    return table, base


def open_configured(
    uri: str | Path,
    *,
    settings: Mapping[str, object] | None = None,
    storage_options: Mapping[str, str] | None = None,
    ports: Ports = Ports(),
) -> TableHandle:
    """Open a table from its configuration alone, without Lance: for processes that only write.

    The configuration is not compared with the base here; the next flush compares them before it uses the rows.

    Raises: the same errors as `open_table`, without those of `check_base`.
    """
    location = canonical(uri)
    store = ports.store(location, storage_options)
    config = configs.read(store, uri=location)
    if config is None:
        raise configs.no_table(location)
    return table_handle(config, store, location, settings=settings, storage_options=storage_options, ports=ports)


def check_base(base: BaseTable, config: Config) -> None:
    """Check that the base records the same facts as the configuration.

    Raises: the same errors as `check_table`, and `Corrupt` if the configuration differs from the facts in the base.
    """
    facts = check_table(base, config)
    expected = {"registry": config.registry, "owner": config.owner}
    # An adopted table gets its spec in the base before the configuration, and so does a table that is resharded.
    if config.regions is not None and configs.later_regions(facts.regions, config) is None:
        expected["regions"] = configs.regions_text(config.regions)
    for name, value in expected.items():
        if value != getattr(facts, name):
            raise Corrupt(
                f"the configuration has {value!r}, but the base has {getattr(facts, name)!r}",
                remedy="Correct the configuration: the base is authoritative",
                table=base.uri,
                field=name,
                object=CONFIG,
            )


def check_table(base: BaseTable, config: Config) -> BaseFacts:
    """Check that a version of the base belongs to the table of a configuration, and return its facts.

    An older version may record another region spec than the configuration.

    Raises:
        Invalid: a newer release wrote the base, or its sums are SHA3-256.
        Corrupt: another tool has overwritten the base.
    """
    facts = base.facts
    if facts is None or facts.table != config.table:
        raise Overwritten(
            "the base does not belong to this table: another tool has overwritten it",
            remedy="Restore the base to its last version that has the id of the table",
            table=base.uri,
            version=base.version,
        )
    check_format(facts.format, newest=configs.FORMAT, what="table", table=base.uri)
    return facts


def canonical(uri: str | Path) -> str:
    """Return the canonical form of a location: an absolute path or a URL, without a trailing slash.

    Raises:
        Invalid: it is not a location, or it is the root of the file system.
    """
    path = local_path(uri)
    if path is None:
        return str(uri).rstrip("/")
    found = absolute(path)
    if found == found.parent:
        raise Invalid("the root of the file system is no location of a table", remedy="Give a directory", field="uri")
    return str(found)


def add_table_to_catalog(table: TableHandle) -> None:
    """Add the table to the catalog if it is absent; raise `Unavailable` if the registry did not answer."""
    context = table.context
    record: Record = {"format": configs.FORMAT, "uri": context.uri}  # where it was created; only schedules use it
    for _ in context.budget().attempts():
        if not isinstance(context.registry.swap(table_key(context.table), expect=None, change=record), SwapUnknown):
            return
    raise Unavailable("the table could not be added to the catalog", remedy="Run it again", table=context.uri)


def table_handle(
    config: Config,
    store: ObjectStore,
    location: str,
    *,
    settings: Mapping[str, object] | None = None,
    storage_options: Mapping[str, str] | None,
    ports: Ports,
) -> TableHandle:
    """Build the handle of a table from its configuration."""
    with error_context(table=location):
        resolved = setting.resolve(table=config.settings, arguments=settings)
    context = TableContext(
        uri=location,
        table=config.table,
        objects=_hedged(store, location, percent=resolved.hedged_reads_percent, clock=ports.clock),
        registry=ports.registry(config.registry, uri=location, store=store, clock=ports.clock, ids=ports.ids),
        clock=ports.clock,
        ids=ports.ids,
        budget_seconds=resolved.retry_budget_seconds,
        ordered=bool(config.sequence_by),
        parallel=ports.parallel(location),
    )
    return TableHandle(config=config, context=context, settings=resolved, storage_options=storage_options)


def _hedged(store: ObjectStore, location: str, *, percent: int, clock: Clock) -> ObjectStore:
    """Return the store of a table's context. A disk needs no second request, and the registry sends none."""
    if not percent or local_path(location) is not None:
        return store
    return HedgedStore(store, percent=percent, clock=clock)
