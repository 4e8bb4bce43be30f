"""Make a table and open it: which configuration, which registry, which stores.

A table is made in the order base, MemWAL index, registry, regions, configuration. The configuration is last and
create-if-absent: a table without one isn't there yet, and is finished by the same call.
"""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from lancelsm import config as configs
from lancelsm import settings as setting
from lancelsm.claim import create_region
from lancelsm.clock import Clock, Ids, SystemClock, SystemIds
from lancelsm.config import Config
from lancelsm.dataset.base_table import BaseTable, Facts, Sharding, create_base, ensure_mem_wal, find_base, open_base
from lancelsm.dataset.fields import check_storable
from lancelsm.errors import Corrupt, Invalid, Unavailable, placed
from lancelsm.head import check_owner
from lancelsm.layout import CONFIG, TableId, table_key
from lancelsm.objects import ObjectStore
from lancelsm.objects.opening import local_path, open_store
from lancelsm.record.key import check_primary_key, foreign_to_lance
from lancelsm.record.rows import inferred, upserts
from lancelsm.record.schema import TableSchema, check_names, declare_primary_key, numbered
from lancelsm.region import Storage
from lancelsm.registry import Registry, Unknown
from lancelsm.registry.opening import default_registry, open_registry
from lancelsm.routing.route import all_values
from lancelsm.routing.spec import RegionSpec, carried_by_lance, parse_regions
from lancelsm.routing.transforms import Transform

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
class Opened:
    """A table's configuration and storage."""

    config: Config
    storage: Storage
    settings: setting.Settings
    storage_options: Mapping[str, str] | None

    def read_base(self) -> BaseTable:
        """The newest version of the base; raises as `dataset.base_table.open_base`."""
        return open_base(uri=self.storage.uri, storage_options=self.storage_options)


def open_table(
    uri: str | Path,
    *,
    settings: Mapping[str, object] | None = None,
    storage_options: Mapping[str, str] | None = None,
    ports: Ports = Ports(),
) -> Opened:
    """Read a table's configuration, and hold it against the base: a registry that the base doesn't name is never used.

    Args:
        settings: by name, instead of the environment's and the table's own.

    Raises:
        Invalid: no table is there, or a newer release made it.
        Corrupt: its configuration is unreadable, or not the base's; as `check_base`.
        Unavailable: the store did not answer.
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
    check_base(open_base(uri=place, storage_options=storage_options), config)
    return opened(config, store, place, settings=settings, storage_options=storage_options, ports=ports)


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


def make_table(
    uri: str | Path,
    data_or_schema: Any,
    *,
    primary_key: str | Sequence[str],
    regions: str | None = None,
    registry: str | None = None,
    owner: str = DEFAULT_OWNER,
    settings: Mapping[str, object] | None = None,
    storage_options: Mapping[str, str] | None = None,
    ports: Ports = Ports(),
) -> Opened:
    """Make a table; data, if given, becomes version 1 of its base.

    Args:
        uri: a path or a URL.
        data_or_schema: an Arrow schema, or rows as `record.rows.upserts` takes them (the last row of a key wins).
        primary_key: its columns, in order.
        regions: the region spec's text (`routing.spec`); None for a single region.
        registry: `sqlite` or `object`; by default the first for paths and the second for URLs.
        owner: the name that ordinary writers share.
        settings: by name, kept in the table's configuration.

    Raises:
        Invalid: a table or another dataset is there, or the schema, key, spec or settings don't fit.
        Unavailable: a store or the registry did not answer. Make it again, which goes on where this stopped.
    """
    place = canonical(uri)
    store = ports.store(place, storage_options)
    if configs.read(store, uri=place) is not None:
        raise Invalid("a table exists there already", remedy="Open it, or choose another place", table=place)
    kind = registry or default_registry(place)
    with placed(table=place):  # all that can be refused is, before anything is written
        schema, data = _schema_and_data(data_or_schema, (primary_key,) if isinstance(primary_key, str) else primary_key)
        spec = parse_regions(regions, schema=schema)
        check_owner(owner)
        ports.registry(kind, uri=place, store=store, clock=ports.clock, ids=ports.ids)
        texts = {name: str(value) for name, value in setting.checked(settings or {}).items()}
        rows = None if data is None else upserts(data, schema=schema).select(schema.names)
    wanted = Facts(
        table=TableId(str(uuid.UUID(hex=ports.ids.nonce(), version=4))),
        registry=kind,
        owner=owner,
        regions=configs.regions_text(spec),
    )
    sharding = _sharding(spec, schema)
    base = _begun_base(place, schema, wanted, sharding, storage_options) or create_base(
        uri=place,
        columns=schema.columns,
        primary_key=schema.primary_key,
        facts=wanted,
        sharding=sharding,
        rows=[] if rows is None else rows.to_batches(),
        storage_options=storage_options,
    )
    if base.schema != schema:
        raise Corrupt("Lance gave the columns other field ids than expected", table=place)
    config = Config(
        table=base.facts.table if base.facts else wanted.table,
        registry=kind,
        owner=owner,
        schema=schema,
        schema_version=1,
        regions=spec,
        settings=texts,
    )
    return _finish(config, store, place, storage_options=storage_options, ports=ports)


def canonical(uri: str | Path) -> str:
    """One spelling for a place: an absolute path without a trailing slash, or the URL without one."""
    path = local_path(uri)
    return str(uri).rstrip("/") if path is None else str(path.absolute())


def _finish(
    config: Config, store: ObjectStore, place: str, *, storage_options: Mapping[str, str] | None, ports: Ports
) -> Opened:
    """Registry, regions, configuration: each a no-op where it is done already."""
    table = opened(config, store, place, storage_options=storage_options, ports=ports)
    catalogue_table(table)
    if config.regions is not None:
        for values in all_values(config.regions) or []:
            create_region(table.storage, spec_id=config.regions.spec_id, values=values, owner=config.owner)
    configs.create(store, config, uri=place)
    return table


def catalogue_table(table: Opened) -> None:
    """Make sure that the registry knows the table; raises `Unavailable` if it gave no answer."""
    storage = table.storage
    record = {"format": configs.FORMAT}
    for _ in storage.budget().attempts():
        if not isinstance(storage.registry.swap(table_key(storage.table), expect=None, change=record), Unknown):
            return
    raise Unavailable("the table could not be catalogued", remedy="Run it again", table=storage.uri)


def opened(
    config: Config,
    store: ObjectStore,
    place: str,
    *,
    settings: Mapping[str, object] | None = None,
    storage_options: Mapping[str, str] | None,
    ports: Ports,
) -> Opened:
    """A table of which the configuration is known."""
    with placed(table=place):
        pace = setting.resolve(table=config.settings, arguments=settings)
    storage = Storage(
        uri=place,
        table=config.table,
        objects=store,
        registry=ports.registry(config.registry, uri=place, store=store, clock=ports.clock, ids=ports.ids),
        clock=ports.clock,
        ids=ports.ids,
        budget_seconds=pace.retry_budget_seconds,
        parallel=ports.parallel,
    )
    return Opened(config=config, storage=storage, settings=pace, storage_options=storage_options)


def _schema_and_data(data_or_schema: Any, primary_key: Sequence[str]) -> tuple[TableSchema, Any]:
    """The checked schema of a new table with the field ids that Lance will give, and the rows if there are any."""
    data = None if isinstance(data_or_schema, pa.Schema) else inferred(data_or_schema)
    columns = (data_or_schema if data is None else data.schema).remove_metadata()
    check_names(columns)
    check_primary_key(TableSchema(columns=columns, primary_key=tuple(primary_key)))
    check_storable(columns)
    declared = declare_primary_key(columns, tuple(primary_key))
    schema = TableSchema(columns=numbered(declared), primary_key=tuple(primary_key))
    foreign = foreign_to_lance(schema)
    if foreign:
        warnings.warn(
            f"Lance's own writer can't flush or filter a table whose key has the types of {', '.join(foreign)}; "
            "lancelsm can",
            stacklevel=4,
        )
    return schema, data


def _begun_base(
    place: str,
    schema: TableSchema,
    wanted: Facts,
    sharding: Sharding | None,
    storage_options: Mapping[str, str] | None,
) -> BaseTable | None:
    """What an earlier, interrupted call for the same table left, finished; all but its id is to be as wanted now."""
    base = find_base(uri=place, storage_options=storage_options)
    if base is None:
        return None
    if base.facts is None:
        raise Invalid(
            "a Lance dataset is there that is no table of lancelsm",
            remedy="Choose another place, or bring it in: lancelsm region adopt",
            table=place,
        )
    begun = replace(base.facts, table=wanted.table)
    if base.schema != schema or begun != wanted:
        what = "schema" if begun == wanted else "region spec, registry or owner"
        raise Invalid(f"a table with another {what} was begun there", remedy="Choose another place", table=place)
    ensure_mem_wal(uri=place, sharding=sharding, storage_options=storage_options)
    return base


def _sharding(spec: RegionSpec, schema: TableSchema) -> Sharding | None:
    """How Lance's own writer would route; None where it makes no MemWAL index for such a key."""
    if not carried_by_lance(schema):
        return None
    if spec.spec_id == 0:
        return Sharding()
    (only,) = spec.fields
    match only.transform:
        case Transform.BUCKET:
            return Sharding(bucket_column=only.columns[0], buckets=only.size)
        case Transform.IDENTITY:
            return Sharding(identity_column=only.columns[0])
        case _:
            return Sharding(unsharded=True)
