"""Make a table: base, MemWAL index, registry, regions, configuration, in this order.

The configuration is last and create-if-absent: a table without one isn't there yet, and is finished by the same call.
"""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from lancelsm import config as configs
from lancelsm import settings as setting
from lancelsm.claim import create_region
from lancelsm.config import Config
from lancelsm.dataset.base_table import BaseTable, Facts, Sharding, create_base, ensure_mem_wal, find_base
from lancelsm.dataset.fields import check_storable
from lancelsm.errors import Corrupt, Invalid, placed
from lancelsm.head import check_owner
from lancelsm.layout import DROPPING, TableId
from lancelsm.objects import ObjectStore
from lancelsm.opening import DEFAULT_OWNER, Opened, Ports, canonical, catalogue_table, opened
from lancelsm.record.key import check_primary_key, foreign_to_lance
from lancelsm.record.rows import inferred, upserts
from lancelsm.record.schema import TableSchema, check_names, declare_primary_key, numbered
from lancelsm.registry.opening import default_registry
from lancelsm.routing.route import all_values
from lancelsm.routing.spec import RegionSpec, carried_by_lance, parse_regions
from lancelsm.routing.transforms import Transform


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
    ports: Ports | None = None,
) -> Opened:
    """As `table.create`, for whoever needs no object to read and write by."""
    ports = ports or Ports()
    place = canonical(uri)
    store = ports.store(place, storage_options)
    check_free(store, uri=place)
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
    batches = [] if rows is None else rows.to_batches()
    base = begin_base(place, schema, wanted, spec, rows=batches, storage_options=storage_options)
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
    table = catalogued(config, store, place, storage_options=storage_options, ports=ports)
    configs.create(store, config, uri=place)
    return table


def check_free(store: ObjectStore, *, uri: str) -> None:
    """Raise `Invalid` for a place where a table is, or is being dropped."""
    if configs.read(store, uri=uri) is not None:
        raise Invalid("a table exists there already", remedy="Open it, or choose another place", table=uri)
    if store.get(DROPPING) is not None:
        raise Invalid("a table is being dropped there", remedy=f"Finish that: lancelsm drop {uri}", table=uri)


def catalogued(
    config: Config, store: ObjectStore, place: str, *, storage_options: Mapping[str, str] | None, ports: Ports
) -> Opened:
    """A table whose base is made, in its registry with the regions that are known: a no-op where that is done.

    Nobody can open it before its configuration is written.
    """
    table = opened(config, store, place, storage_options=storage_options, ports=ports)
    catalogue_table(table)
    if config.regions is not None:
        for values in all_values(config.regions) or []:
            create_region(table.storage, spec_id=config.regions.spec_id, values=values, owner=config.owner)
    return table


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


def begin_base(
    place: str,
    schema: TableSchema,
    wanted: Facts,
    spec: RegionSpec,
    *,
    rows: Iterable[pa.RecordBatch],
    storage_options: Mapping[str, str] | None,
) -> BaseTable:
    """The base of a new table, with these rows; or what an earlier, interrupted call for the same table left, finished.

    Raises:
        Invalid: another dataset is there, or a table with another schema, region spec, registry or owner was begun.
    """
    sharding = sharding_of(spec, schema)
    return _begun_base(place, schema, wanted, sharding, storage_options) or create_base(
        uri=place,
        columns=schema.columns,
        primary_key=schema.primary_key,
        facts=wanted,
        sharding=sharding,
        rows=rows,
        storage_options=storage_options,
    )


def _begun_base(
    place: str,
    schema: TableSchema,
    wanted: Facts,
    sharding: Sharding | None,
    storage_options: Mapping[str, str] | None,
) -> BaseTable | None:
    """What an earlier call left, finished; all but its id is to be as wanted now."""
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


def sharding_of(spec: RegionSpec, schema: TableSchema) -> Sharding | None:
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
