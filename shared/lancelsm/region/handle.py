"""Open a table: which configuration, which registry, which stores.

A writer needs the configuration alone and never loads Lance; whoever reads or folds holds it against the base first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from lancelsm.common import settings as setting
from lancelsm.common.clock import Clock, Ids, SystemClock, SystemIds
from lancelsm.common.layout import CONFIG, table_key
from lancelsm.errors import Corrupt, Invalid, Unavailable, error_context
from lancelsm.objects import ObjectStore
from lancelsm.objects.open import local_path, open_store
from lancelsm.record.schema import TableSchema
from lancelsm.region import config as configs
from lancelsm.region.catalog import Directory, TableContext, check_there
from lancelsm.region.config import Config
from lancelsm.registry import Record, Registry, SwapUnknown
from lancelsm.registry.open import open_registry
from lancelsm.routing.spec import RegionSpec

if TYPE_CHECKING:
    from lancelsm.dataset.base_table import BaseTable

DEFAULT_OWNER = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Makers of the collaborators of a table; replaced as a whole by tests and other deployments."""

    store: Callable[[str, Mapping[str, str] | None], ObjectStore] = open_store
    registry: Callable[..., Registry] = open_registry
    clock: Clock = field(default_factory=SystemClock)
    ids: Ids = field(default_factory=SystemIds)
    parallel: int = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteTarget:
    """What a writer needs to know of its table."""

    context: TableContext
    schema: TableSchema
    regions: RegionSpec
    settings: setting.Settings
    owner: str  # under which regions are created, and which ordinary writers share
    directory: Directory


@dataclass(frozen=True, slots=True, kw_only=True)
class TableHandle:
    """A table's configuration and storage."""

    config: Config
    context: TableContext
    settings: setting.Settings
    storage_options: Mapping[str, str] | None

    def read_base(self) -> BaseTable:
        """The newest version of the base; raises as `dataset.base_table.open_base`, and `Invalid` after a drop."""
        from lancelsm.dataset.base_table import find_base, no_dataset  # noqa: PLC0415 - a writer never loads Lance

        base = find_base(uri=self.context.uri, storage_options=self.storage_options)
        if base is None or base.facts is None or base.facts.table != self.config.table:
            check_there(self.context)
        if base is None:
            raise no_dataset(self.context.uri)
        return base

    def target(self) -> WriteTarget:
        """What writers need; raises `Invalid` while the region of a key is unknown."""
        spec = self.config.regions
        if spec is None:
            raise Invalid(
                "the table was adopted from Lance without a spec that says which region a key is in",
                remedy=f'Set one: lancelsm region adopt {self.context.uri} --regions "bucket(column, 4)"',
                table=self.context.uri,
            )
        return WriteTarget(
            context=self.context,
            schema=self.config.schema,
            regions=spec,
            settings=self.settings,
            owner=self.config.owner,
            directory=Directory(self.context, spec_id=spec.spec_id),
        )


def open_table(
    uri: str | Path,
    *,
    settings: Mapping[str, object] | None = None,
    storage_options: Mapping[str, str] | None = None,
    ports: Ports = Ports(),
) -> TableHandle:
    """Read a table's configuration, and hold it against the base: a registry that the base doesn't name is never used.

    Args:
        settings: by name, instead of the environment's and the table's own.

    Raises:
        Invalid: no table is there, or a newer release made it.
        Corrupt: its configuration is unreadable, or not the base's; as `check_base`.
        Unavailable: the store did not answer.
    """
    table = open_configured(uri, settings=settings, storage_options=storage_options, ports=ports)
    check_base(table.read_base(), table.config)
    return table


def open_configured(
    uri: str | Path,
    *,
    settings: Mapping[str, object] | None = None,
    storage_options: Mapping[str, str] | None = None,
    ports: Ports = Ports(),
) -> TableHandle:
    """As `open_table`, from the configuration alone: for those who only write, without Lance.

    A flush compares the two before it folds what was written.
    """
    place = canonical(uri)
    store = ports.store(place, storage_options)
    config = configs.read(store, uri=place)
    if config is None:
        raise Invalid(
            "no table is there",
            remedy="Make it with lancelsm init, or bring in one that Lance wrote with lancelsm region adopt",
            table=place,
        )
    return table_handle(config, store, place, settings=settings, storage_options=storage_options, ports=ports)


def check_base(base: BaseTable, config: Config) -> None:
    """Whether the base says of its table what the configuration says.

    Raises:
        Invalid: a newer release wrote the base.
        Corrupt: another tool has overwritten the base, or the configuration is not the one that was written with it.
    """
    facts = base.facts
    if facts is None or facts.table != config.table:
        raise Corrupt(
            "the base is not this table's: another tool has overwritten it",
            remedy="Restore the base to its last version with the table's id",
            table=base.uri,
            version=base.version,
        )
    if facts.format > configs.FORMAT:
        raise Invalid(
            f"the table has format {facts.format}, this release reads up to {configs.FORMAT}",
            remedy="Install a newer lancelsm",
            table=base.uri,
        )
    said = {"registry": config.registry, "owner": config.owner}
    if config.regions is not None:  # an adopted table gets its spec in the base first
        said["regions"] = configs.regions_text(config.regions)
    for name, value in said.items():
        if value != getattr(facts, name):
            raise Corrupt(
                f"the configuration says {value!r}, the base {getattr(facts, name)!r}",
                remedy="Correct the configuration: the base decides",
                table=base.uri,
                field=name,
                object=CONFIG,
            )


def canonical(uri: str | Path) -> str:
    """One spelling for a place: an absolute path without a trailing slash, or the URL without one."""
    path = local_path(uri)
    return str(uri).rstrip("/") if path is None else str(path.absolute())


def catalogue_table(table: TableHandle) -> None:
    """Make sure that the registry knows the table; raises `Unavailable` if it gave no answer."""
    context = table.context
    record: Record = {"format": configs.FORMAT, "uri": context.uri}  # where it was made: for schedules, not decisions
    for _ in context.budget().attempts():
        if not isinstance(context.registry.swap(table_key(context.table), expect=None, change=record), SwapUnknown):
            return
    raise Unavailable("the table could not be catalogued", remedy="Run it again", table=context.uri)


def table_handle(
    config: Config,
    store: ObjectStore,
    place: str,
    *,
    settings: Mapping[str, object] | None = None,
    storage_options: Mapping[str, str] | None,
    ports: Ports,
) -> TableHandle:
    """A table of which the configuration is known."""
    with error_context(table=place):
        pace = setting.resolve(table=config.settings, arguments=settings)
    context = TableContext(
        uri=place,
        table=config.table,
        objects=store,
        registry=ports.registry(config.registry, uri=place, store=store, clock=ports.clock, ids=ports.ids),
        clock=ports.clock,
        ids=ports.ids,
        budget_seconds=pace.retry_budget_seconds,
        parallel=ports.parallel,
    )
    return TableHandle(config=config, context=context, settings=pace, storage_options=storage_options)
