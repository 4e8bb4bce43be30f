"""Copy the rows of a table to a new one, which may have another primary key, region spec or sequence.

The new table has an id, registry records and regions of its own. Its base has all rows in version 1. It has no indexes,
no change history, no snapshots and no cursors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from lancelsm.admin.clone import Copied, facts_of
from lancelsm.admin.create import begin_copy, check_free, ensure_base, register_table
from lancelsm.common.layout import RESTORED, TableId, table_id
from lancelsm.dataset.base_reads import scan_base
from lancelsm.dataset.statement import check_stated, files_of
from lancelsm.errors import Corrupt, error_context
from lancelsm.history.at import At
from lancelsm.history.snapshot import holding_snapshot, snapshot_errors, snapshot_view
from lancelsm.history.version_hold import holding_at
from lancelsm.read import reader
from lancelsm.read.new_key import check_new_key
from lancelsm.read.transact.change_decision import check_sequence
from lancelsm.read.view import View
from lancelsm.record.key import check_primary_key
from lancelsm.record.schema import TableSchema, declare_primary_key, numbered
from lancelsm.record.summed_rows import SummedRows
from lancelsm.region import config as configs
from lancelsm.region.handle import Ports, TableHandle, canonical
from lancelsm.registry.open import default_registry
from lancelsm.routing.spec import RegionSpec, parse_regions

_TTL_SECONDS = 3600.0  # of the snapshot that is read; it is refreshed meanwhile


def copy_table(
    source: TableHandle,
    to: str | Path,
    *,
    primary_key: str | Sequence[str] | None,
    regions: str | None,
    sequence_by: str | Sequence[str] | None,
    at: At | None,
    registry: str | None,
    storage_options: Mapping[str, str] | None,
    ports: Ports,
) -> Copied:
    """Copy the live rows of a table to a new table: `lancelsm.copy` has the contract."""
    location = canonical(to)
    store = ports.store(location, storage_options)
    with _source_view(source, at) as view, error_context(table=source.context.uri):
        schema, spec = _wanted(source, view, primary_key, regions)
        config = replace(
            source.config,
            registry=registry or default_registry(location),
            schema=schema,
            regions=spec,
            earlier_regions=(),  # the regions of the source are not those of the copy
            sequence_by=_sequence(source, schema, sequence_by),
        )
        check_free(store, uri=location, marker=RESTORED)
        check_stated(view.base, source.context.objects, files_of(view.base))
        if set(schema.primary_key) != set(source.config.schema.primary_key):
            check_new_key(view, schema.primary_key, uri=source.context.uri)
        marker = {
            "table": table_id(ports.ids.nonce()),
            "registry": config.registry,
            "source": source.context.uri,
            "primary_key": ",".join(schema.primary_key),
        }
        recorded = begin_copy(store, RESTORED, marker, uri=location, storage_options=storage_options)
        config = replace(config, table=TableId(recorded["table"]))
        written = SummedRows(schema.columns)
        base = ensure_base(
            store,
            location,
            schema,
            facts_of(config),
            spec,
            rows=written.through(reader.scan(view, uri=source.context.uri)),
            marker=RESTORED,
            ttl="" if view.base.ttl is None else view.base.ttl.text,
            storage_options=storage_options,
        )
    read = SummedRows(schema.columns).add(scan_base(base, columns=schema.names))
    if base.schema != schema or read.total != written.total:
        raise Corrupt(
            f"the {read.rows} copied rows are not the {written.rows} that were read",
            remedy=f"Remove the incomplete table with lancelsm drop {location}, then copy again",
            table=location,
        )
    register_table(config, store, location, storage_options=storage_options, ports=ports)
    configs.create(store, config, uri=location)
    return Copied(uri=location, rows=read.rows, source=source.context.uri)


@contextmanager
def _source_view(source: TableHandle, at: At | None) -> Iterator[View]:
    """Hold what is read from being collected, and yield its view."""
    name = f"copy-{source.context.ids.nonce()[:12]}"
    holding = holding_snapshot(source, name, ttl_seconds=_TTL_SECONDS) if at is None else holding_at(source, at)
    with holding as pin, snapshot_errors(source.context, pin):
        yield snapshot_view(source, pin)


def _wanted(
    source: TableHandle, view: View, primary_key: str | Sequence[str] | None, regions: str | None
) -> tuple[TableSchema, RegionSpec]:
    """Return the schema and the region spec of the new table. Raises `Invalid`."""
    old = source.config.schema.primary_key
    key = old if primary_key is None else (primary_key,) if isinstance(primary_key, str) else tuple(primary_key)
    plain = pa.schema([field.remove_metadata() for field in view.base.schema.columns])
    check_primary_key(TableSchema(columns=plain, primary_key=key))
    schema = TableSchema(columns=numbered(declare_primary_key(plain, key)), primary_key=key)
    kept = source.config.regions.describe() if source.config.regions is not None and key == old else None
    return schema, parse_regions(regions or kept, schema=schema)


def _sequence(source: TableHandle, schema: TableSchema, names: str | Sequence[str] | None) -> tuple[str, ...]:
    if names is None:
        return configs.newest_sequence(source.context.objects, source.config, uri=source.context.uri)
    wanted = (names,) if isinstance(names, str) else tuple(names)
    check_sequence(schema, wanted)
    return wanted
