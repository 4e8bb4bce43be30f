"""Make a table: base, MemWAL index, registry, regions, configuration, in this order.

The configuration is last and create-if-absent: a table without one isn't there yet, and is finished by the same call.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from lancelsm.common import settings as setting
from lancelsm.common.layout import CLONE, CONFIG, DROPPING, RESTORED, TableId, table_id
from lancelsm.common.setsum import Setsum
from lancelsm.dataset.base_reads import scan_base
from lancelsm.dataset.base_table import BaseFacts, BaseTable, Sharding, create_base, ensure_mem_wal, find_base
from lancelsm.dataset.fields import check_storable
from lancelsm.dataset.scrub_reads import shared_places
from lancelsm.errors import Corrupt, Invalid, Unavailable, error_context
from lancelsm.objects import ObjectStore, put_once
from lancelsm.objects.open import local_path
from lancelsm.record.key import check_primary_key, foreign_to_lance
from lancelsm.record.normalize import inferred, upserts
from lancelsm.record.rowsum import row_setsum
from lancelsm.record.schema import TableSchema, check_names, declare_primary_key, numbered
from lancelsm.region import config as configs
from lancelsm.region.config import Config
from lancelsm.region.handle import DEFAULT_OWNER, Ports, TableHandle, canonical, catalogue_table, table_handle
from lancelsm.region.head import check_owner
from lancelsm.region.markers import decode_marker, read_marker
from lancelsm.registry.open import default_registry
from lancelsm.routing.route import all_values
from lancelsm.routing.spec import RegionSpec, carried_by_lance, parse_regions
from lancelsm.routing.transforms import Transform
from lancelsm.wal.claim import create_region

_COPIES = {CLONE: "clone", RESTORED: "restored table"}  # by the note that is there before anything else of one


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
) -> TableHandle:
    """As `table.create`, for whoever needs no object to read and write by."""
    ports = ports or Ports()
    place = canonical(uri)
    store = ports.store(place, storage_options)
    check_free(store, uri=place)
    kind = registry or default_registry(place)
    with error_context(table=place):  # all that can be refused is, before anything is written
        schema, data = _schema_and_data(data_or_schema, (primary_key,) if isinstance(primary_key, str) else primary_key)
        spec = parse_regions(regions, schema=schema)
        check_owner(owner)
        ports.registry(kind, uri=place, store=store, clock=ports.clock, ids=ports.ids)
        texts = {name: str(value) for name, value in setting.checked(settings or {}).items()}
        rows = None if data is None else upserts(data, schema=schema).select(schema.names)
    wanted = BaseFacts(
        table=table_id(ports.ids.nonce()),
        registry=kind,
        owner=owner,
        regions=configs.regions_text(spec),
    )
    batches = [] if rows is None else rows.to_batches()
    base = begin_base(store, place, schema, wanted, spec, rows=batches, storage_options=storage_options)
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


def check_free(store: ObjectStore, *, uri: str, marker: str = "") -> None:
    """Raise `Invalid` for a place where a table is, or is being dropped, or a copy was begun; or inside a table.

    Args:
        marker: of the copy that the caller makes.
    """
    _check_outside(uri)
    if configs.read(store, uri=uri) is not None:
        raise Invalid("a table exists there already", remedy="Open it, or choose another place", table=uri)
    if store.get(DROPPING) is not None:
        raise Invalid("a table is being dropped there", remedy=f"Finish that: lancelsm drop {uri}", table=uri)
    _check_unbegun(store, uri=uri, marker=marker)


def _check_outside(uri: str) -> None:
    """Raise `Invalid` for a path inside a table: dropping that one may delete what is made there."""
    path = local_path(uri)
    for parent in () if path is None else path.resolve().parents:
        if os.path.exists(parent / CONFIG):  # False where we may not look
            raise Invalid(f"it lies inside the table at {parent}", remedy="Choose another place", table=uri)


def _check_unbegun(store: ObjectStore, *, uri: str, marker: str) -> None:
    """Raise `Invalid` for a place where another copy was begun: what is there is no other table's."""
    for other, what in _COPIES.items():
        if other != marker and store.get(other) is not None:
            raise Invalid(
                f"a {what} was begun there",
                remedy=f"Finish it by the call that began it, or give it up: lancelsm drop {uri}",
                table=uri,
            )


def begin_copy(
    store: ObjectStore,
    marker: str,
    wanted: Mapping[str, str],
    *,
    uri: str,
    storage_options: Mapping[str, str] | None,
) -> Mapping[str, str]:
    """Note of what a copy is made, before anything else of it is; the place is free but for the note.

    Args:
        marker: `common.layout.CLONE` or `common.layout.RESTORED`.
        wanted: what to note: the copy's `table` and `registry`, and its source.

    Returns:
        What is noted: an earlier call's `table`, and the rest as wanted.

    Raises:
        Invalid: something else was begun there.
        Corrupt: what is noted is unreadable.
        Unavailable: make the copy again.
    """
    base = find_base(uri=uri, storage_options=storage_options)
    if base is not None and store.get(marker) is None:  # in this order: a copy's note is older than its base
        raise _begun("another table was begun there", uri)
    found = put_once(store, marker, json.dumps(dict(wanted)).encode(), attempts=range(2))
    if found is None:
        raise Unavailable(f"the {_COPIES[marker]} could not be begun", remedy="Do it again", table=uri)
    recorded = decode_marker(found, marker)
    if {**recorded, "table": wanted["table"]} != wanted:
        raise _begun(f"another {_COPIES[marker]} was begun there", uri)
    return recorded


def begun_copy(store: ObjectStore) -> tuple[TableId, str] | None:
    """Id and registry of the copy that was begun there, whether it is finished or not; raises as `read_marker`."""
    recorded = next(filter(None, (read_marker(store, marker) for marker in _COPIES)), None)
    return None if recorded is None else (TableId(recorded["table"]), recorded["registry"])


def _begun(problem: str, uri: str) -> Invalid:
    return Invalid(problem, remedy=f"Choose another place, or give that up: lancelsm drop {uri}", table=uri)


def catalogued(
    config: Config, store: ObjectStore, place: str, *, storage_options: Mapping[str, str] | None, ports: Ports
) -> TableHandle:
    """A table whose base is made, in its registry with the regions that are known: a no-op where that is done.

    Nobody can open it before its configuration is written.
    """
    table = table_handle(config, store, place, storage_options=storage_options, ports=ports)
    catalogue_table(table)
    if config.regions is not None:
        for values in all_values(config.regions) or []:
            create_region(table.context, spec_id=config.regions.spec_id, values=values, owner=config.owner)
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
    store: ObjectStore,
    place: str,
    schema: TableSchema,
    wanted: BaseFacts,
    spec: RegionSpec,
    *,
    rows: Iterable[pa.RecordBatch],
    marker: str = "",
    storage_options: Mapping[str, str] | None,
) -> BaseTable:
    """The base of a new table, with these rows; or what an earlier, interrupted call for the same table left, finished.

    Args:
        marker: of the copy that the table is, as `begin_copy` wrote it; by default it is none.

    Raises:
        Invalid: another dataset is there, or a table with other rows, schema, region spec, registry or owner was begun.
        Contended: another process is making a table there; the same call finishes it.
    """
    sharding = sharding_of(spec, schema)
    base = find_base(uri=place, storage_options=storage_options)
    _check_unbegun(store, uri=place, marker=marker)  # after the look at the base: a copy's note is older than its base
    if base is not None:
        _check_begun(base, schema, wanted, rows)
        ensure_mem_wal(uri=place, sharding=sharding, storage_options=storage_options)
        return base
    return create_base(
        uri=place,
        columns=schema.columns,
        primary_key=schema.primary_key,
        facts=wanted,
        sharding=sharding,
        rows=rows,
        storage_options=storage_options,
    )


def _check_begun(base: BaseTable, schema: TableSchema, wanted: BaseFacts, rows: Iterable[pa.RecordBatch]) -> None:
    """Raise `Invalid` for a base that an earlier call left, unless all but its id is as wanted now."""
    place = base.uri
    if base.facts is None:
        raise Invalid(
            "a Lance dataset is there that is no table of lancelsm",
            remedy="Choose another place, or bring it in: lancelsm region adopt",
            table=place,
        )
    if shared_places(base):  # its facts may be those of its source still
        raise Invalid(
            "a clone was begun there, and what says of which table is gone",
            remedy="Choose another place, or delete by hand what is there",
            table=place,
        )
    begun = replace(base.facts, table=wanted.table)
    if base.schema != schema or begun != wanted:
        what = "schema" if begun == wanted else "region spec, registry or owner"
        raise _begun(f"a table with another {what} was begun there", place)
    if _sum(scan_base(base, columns=schema.names), schema) != _sum(rows, schema):
        raise _begun("a table with other rows was begun there", place)


def _sum(rows: Iterable[pa.RecordBatch], schema: TableSchema) -> Setsum:
    total = Setsum.ZERO
    for batch in rows:
        total += row_setsum(batch, schema=schema.columns)
    return total


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
