"""Create a table: base, MemWAL index, registry records, regions, indexes, configuration, in this order.

The configuration is written last, if absent. A location without a configuration is not a table yet; the same call
finishes it.
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

from lancelsm.admin.create_indexes import build_indexes, read_indexes
from lancelsm.admin.foreign_files import first_foreign, not_free
from lancelsm.common import settings as setting
from lancelsm.common.layout import CLONE, CONFIG, DROPPING, OWN_DIRECTORIES, RESTORED, TableId, table_id
from lancelsm.common.setsum import Setsum
from lancelsm.dataset.base_reads import scan_base
from lancelsm.dataset.base_table import TTL, BaseFacts, BaseTable, Sharding, create_base, ensure_mem_wal, find_base
from lancelsm.dataset.scrub_reads import shared_directories
from lancelsm.errors import Corrupt, Invalid, Unavailable, error_context
from lancelsm.objects import ObjectStore, put_once
from lancelsm.objects.links import first_link
from lancelsm.objects.location import local_path
from lancelsm.read.transact.change_decision import check_sequence
from lancelsm.record.admission import check_columns, check_depth, declared
from lancelsm.record.key import check_primary_key, unsupported_by_lance
from lancelsm.record.normalize import inferred, upserts
from lancelsm.record.rowsum import row_setsum
from lancelsm.record.schema import TableSchema, check_names, declare_primary_key, numbered
from lancelsm.record.ttl import parse_ttl
from lancelsm.region import config as configs
from lancelsm.region.config import Config, table_exists
from lancelsm.region.handle import (
    DEFAULT_OWNER,
    Ports,
    TableHandle,
    add_table_to_catalog,
    canonical,
    open_table,
    open_with_base,
    table_handle,
)
from lancelsm.region.head import check_owner
from lancelsm.region.markers import decode_marker, read_marker
from lancelsm.registry.open import default_registry
from lancelsm.routing.route import all_values
from lancelsm.routing.spec import RegionSpec, has_mem_wal_index, parse_regions
from lancelsm.routing.transforms import Transform
from lancelsm.wal.claim import create_region

# Names of copies by marker file. The marker file is the first object of a copy.
_COPIES = {CLONE: "clone", RESTORED: "restored or copied table"}


def create_table(
    uri: str | Path,
    data_or_schema: Any,
    *,
    primary_key: str | Sequence[str],
    regions: str | None = None,
    registry: str | None = None,
    owner: str = DEFAULT_OWNER,
    settings: Mapping[str, object] | None = None,
    indexes: Mapping[str, Any] | None = None,
    ttl: str | None = None,
    sequence_by: str | Sequence[str] | None = None,
    storage_options: Mapping[str, str] | None = None,
    ports: Ports | None = None,
    exist_ok: bool = False,
) -> TableHandle:
    """Create a table like `table.create`, but return its handle."""
    ports = ports or Ports()
    location = canonical(uri)
    store = ports.store(location, storage_options)
    key = (primary_key,) if isinstance(primary_key, str) else tuple(primary_key)
    sequence = (sequence_by,) if isinstance(sequence_by, str) else tuple(sequence_by or ())
    if exist_ok and configs.read(store, uri=location) is not None:
        return _open_same(
            location, data_or_schema, key, regions, ttl, sequence, storage_options=storage_options, ports=ports
        )
    check_free(store, uri=location)
    kind = registry or default_registry(location)
    with error_context(table=location):  # check all arguments before anything is written
        schema, data = _schema_and_data(data_or_schema, key)
        spec = parse_regions(regions, schema=schema)
        check_owner(owner)
        ports.registry(kind, uri=location, store=store, clock=ports.clock, ids=ports.ids)
        texts = {name: str(value) for name, value in setting.parse_settings(settings or {}).items()}
        check_sequence(schema, sequence)
        ttl_text = "" if ttl is None else parse_ttl(ttl, schema.columns).text
        wanted_indexes = read_indexes(indexes or {}, schema=schema, uri=location)
        rows = None if data is None else upserts(data, schema=schema).select(schema.names)
    wanted = BaseFacts(
        table=table_id(ports.ids.nonce()),
        registry=kind,
        owner=owner,
        regions=configs.regions_text(spec),
    )
    batches = [] if rows is None else rows.to_batches()
    base = ensure_base(
        store, location, schema, wanted, spec, rows=batches, ttl=ttl_text, storage_options=storage_options
    )
    if base.schema != schema:
        raise Corrupt("Lance gave the columns other field ids than expected", table=location)
    config = Config(
        table=base.facts.table if base.facts else wanted.table,
        registry=kind,
        owner=owner,
        schema=schema,
        regions=spec,
        settings=texts,
        sequence_by=sequence,
    )
    table = register_table(config, store, location, storage_options=storage_options, ports=ports)
    build_indexes(table, wanted_indexes)
    try:
        configs.create(store, config, uri=location)
    except Invalid:  # another process finished the table meanwhile, with other settings
        if not exist_ok:
            raise
        found = open_table(location, storage_options=storage_options, ports=ports)
        _check_same_sequence(found.config, sequence, uri=location)
        return found
    return table


def _open_same(
    location: str,
    data_or_schema: Any,
    primary_key: Sequence[str],
    regions: str | None,
    ttl: str | None,
    sequence: tuple[str, ...],
    *,
    storage_options: Mapping[str, str] | None,
    ports: Ports,
) -> TableHandle:
    """Open a table that has the schema, key and region spec of a call of `create`; raise `Invalid` if it has others.

    Also if the call names another time to live than that of the table, or other columns that order change events.
    """
    with error_context(table=location):
        schema, _ = _schema_and_data(data_or_schema, primary_key)
        spec = parse_regions(regions, schema=schema)
        wanted = None if ttl is None else parse_ttl(ttl, schema.columns)
    found, base = open_with_base(location, storage_options=storage_options, ports=ports)
    check_same(found.config, schema, spec, uri=location)
    if wanted is not None and wanted != base.ttl:
        raise Invalid(
            "a table with another time to live exists there: "
            + ("its rows don't expire" if base.ttl is None else base.ttl.text),
            remedy="Leave out ttl, or change that of the table with set_ttl",
            table=location,
            field="ttl",
        )
    _check_same_sequence(found.config, sequence, uri=location)
    return found


def _check_same_sequence(config: Config, sequence: tuple[str, ...], *, uri: str) -> None:
    """Raise `Invalid` if a call of `create` names columns, and not those that order change events of the table."""
    if sequence and sequence != config.sequence_by:
        raise Invalid(
            f"a table exists there whose change events are ordered by {', '.join(config.sequence_by) or 'nothing'}",
            remedy="Leave out sequence_by; apply_changes takes it if events have no order yet",
            table=uri,
            field="sequence_by",
        )


def check_same(config: Config, schema: TableSchema, spec: RegionSpec, *, uri: str) -> None:
    """Raise `Invalid`, which names the difference, unless a table has these columns, this key and this region spec.

    The columns may lack some that were added to the table, as rows may.
    """
    has, wanted = ([(one.name, one.type, one.nullable) for one in of.columns] for of in (config.schema, schema))
    has = [one for one in has if one[0] in schema.names or one[0] not in config.schema.optional]
    problem = ""
    if has != wanted:
        different = [*(one for one in wanted if one not in has), *(one for one in has if one not in wanted)]
        problem = "its columns are in another order" if not different else f"column {different[0][0]!r} is different"
    elif config.schema.primary_key != schema.primary_key:
        problem = f"its primary key is {', '.join(config.schema.primary_key)}"
    elif config.regions is None or config.regions.describe() != spec.describe():  # ids of columns may have gaps
        problem = f"its region spec is {config.regions.describe() or 'one region' if config.regions else 'not set'}"
    if problem:
        raise Invalid(
            f"a table with another schema, key or region spec exists there: {problem}",
            remedy="Open it with lancelsm.open, or use another location.",
            table=uri,
        )


def check_free(store: ObjectStore, *, uri: str, marker: str = "") -> None:
    """Raise `Invalid` if a table or a begun copy exists at `uri`, a drop is running there, or `uri` is inside a table.

    Also if a directory that a table has is a symbolic link, or has one in it.

    Args:
        marker: the marker file of the copy that the caller creates.
    """
    _check_outside(uri)
    if (link := first_link(uri, OWN_DIRECTORIES)) is not None:
        raise not_free(link, uri=uri)
    if configs.read(store, uri=uri) is not None:
        raise table_exists(uri)
    if store.get(DROPPING) is not None:
        raise Invalid("a table is being dropped there", remedy=f"Finish the drop: lancelsm drop {uri}", table=uri)
    _check_no_other_copy(store, uri=uri, marker=marker)


def _check_outside(uri: str) -> None:
    """Raise `Invalid` for a path inside a table: dropping that table may delete what is created inside it."""
    path = local_path(uri)
    if path is not None and os.path.islink(path) and not os.path.exists(path):
        raise Invalid("the location is a link to nothing", remedy="Create its target, or remove the link", table=uri)
    for parent in () if path is None else Path(os.path.realpath(path)).parents:
        if os.path.exists(parent / CONFIG):  # False if we have no permission to read the directory
            raise Invalid(f"the location is inside the table at {parent}", remedy="Choose another location", table=uri)


def _check_no_other_copy(store: ObjectStore, *, uri: str, marker: str) -> None:
    """Raise `Invalid` if a copy other than `marker` was begun at `uri`: the objects there belong to that copy."""
    for other, what in _COPIES.items():
        if other != marker and store.get(other) is not None:
            raise Invalid(
                f"a {what} was begun there",
                remedy=f"Repeat the call that began it, or remove it: lancelsm drop {uri}",
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
    """Write the marker file of a copy before its other objects. Nothing else may be at the location.

    Args:
        marker: `common.layout.CLONE` or `common.layout.RESTORED`.
        wanted: the content: the copy's `table` and `registry`, and its source.

    Returns:
        The content of the marker file: an earlier call may have chosen `table`; the other values are as wanted.

    Raises:
        Invalid: something else was begun there, or a foreign file is in a directory of the copy.
        Corrupt: the marker file is unreadable.
        Unavailable: create the copy again.
    """
    base = find_base(uri=uri, storage_options=storage_options)
    if store.get(marker) is None:  # in this order: the marker file is written before the base
        if base is not None:
            raise _taken("another table was begun there", uri)
        foreign = first_foreign(store)
        if (
            foreign is not None and store.get(marker) is None  # guard: file of another call for the copy is not foreign
        ):
            raise not_free(foreign, uri=uri)
    found = put_once(store, marker, json.dumps(dict(wanted)).encode(), attempts=range(2))
    if found is None:
        raise Unavailable(f"the {_COPIES[marker]} could not be begun", remedy="Repeat the call", table=uri)
    recorded = decode_marker(found, marker)
    if {**recorded, "table": wanted["table"]} != wanted:
        raise _taken(f"another {_COPIES[marker]} was begun there", uri)
    return recorded


def read_copy_marker(store: ObjectStore) -> tuple[TableId, str] | None:
    """Return id and registry of the copy that was begun at a location, finished or not. Raises like `read_marker`."""
    recorded = next(filter(None, (read_marker(store, marker) for marker in _COPIES)), None)
    return None if recorded is None else (TableId(recorded["table"]), recorded["registry"])


def _taken(problem: str, uri: str) -> Invalid:
    return Invalid(problem, remedy=f"Choose another location, or remove it: lancelsm drop {uri}", table=uri)


def register_table(
    config: Config, store: ObjectStore, location: str, *, storage_options: Mapping[str, str] | None, ports: Ports
) -> TableHandle:
    """Write a table's catalog record and create its known regions. Skip what exists. The base must exist already.

    Nobody can open the table before its configuration is written.
    """
    table = table_handle(config, store, location, storage_options=storage_options, ports=ports)
    add_table_to_catalog(table)
    if config.regions is not None:
        for values in all_values(config.regions) or []:
            spec_id = config.regions.spec_id
            create_region(table.context, spec_id=spec_id, values=values, owner=config.owner, resharding=True)
    return table


def _schema_and_data(data_or_schema: Any, primary_key: Sequence[str]) -> tuple[TableSchema, Any]:
    """Check the schema of a new table. Return it with the field ids that Lance will assign, and the rows, if any."""
    data = None if isinstance(data_or_schema, pa.Schema) else inferred(data_or_schema)
    given = (data_or_schema if data is None else data.schema).remove_metadata()
    check_depth(given)
    columns = declared(given)
    check_names(columns)
    check_primary_key(TableSchema(columns=columns, primary_key=tuple(primary_key)))
    check_columns(columns)
    numbers = numbered(declare_primary_key(columns, tuple(primary_key)))
    schema = TableSchema(columns=numbers, primary_key=tuple(primary_key))
    foreign = unsupported_by_lance(schema)
    if foreign:
        warnings.warn(
            f"Lance's own writer can't flush or filter tables with the key types of {', '.join(foreign)}; lancelsm can",
            stacklevel=4,
        )
    return schema, data


def ensure_base(
    store: ObjectStore,
    location: str,
    schema: TableSchema,
    wanted: BaseFacts,
    spec: RegionSpec,
    *,
    rows: Iterable[pa.RecordBatch],
    marker: str = "",
    ttl: str = "",
    storage_options: Mapping[str, str] | None,
) -> BaseTable:
    """Create the base of a new table with these rows, or finish what an interrupted call for the same table left.

    Args:
        marker: the marker file that `begin_copy` wrote, if the table is a copy.
        ttl: the time to live of the rows; empty for none.

    Raises:
        Invalid: another dataset is there, or a table with other rows, schema, region spec, registry, owner or time to
            live was begun, or a foreign file is in a directory of the table.
        Contended: another process is creating a table there. The same call finishes it.
    """
    sharding = sharding_of(spec, schema)
    base = find_base(uri=location, storage_options=storage_options)
    _check_no_other_copy(store, uri=location, marker=marker)  # after find_base: a copy's marker is older than its base
    if base is None and not marker and (foreign := first_foreign(store)) is not None:
        base = find_base(uri=location, storage_options=storage_options)  # guard: file of another creator is not foreign
        if base is None:
            raise not_free(foreign, uri=location)
    if base is not None:
        _check_same_table(base, schema, wanted, rows, ttl)
        ensure_mem_wal(uri=location, sharding=sharding, storage_options=storage_options)
        return base
    return create_base(
        uri=location,
        columns=schema.columns,
        primary_key=schema.primary_key,
        facts=wanted,
        sharding=sharding,
        rows=rows,
        ttl=ttl,
        storage_options=storage_options,
    )


def _check_same_table(
    base: BaseTable, schema: TableSchema, wanted: BaseFacts, rows: Iterable[pa.RecordBatch], ttl: str
) -> None:
    """Raise `Invalid` unless the base of an earlier call has the wanted facts, schema and rows. The id may differ."""
    location = base.uri
    if base.facts is None:
        raise Invalid(
            "a Lance dataset is there that is not a lancelsm table",
            remedy="Choose another location. If the dataset has a MemWAL index, adopt it: lancelsm region adopt",
            table=location,
        )
    if shared_directories(base):  # its facts may still be those of its source
        raise Invalid(
            "a clone was begun there, but its marker file is gone",
            remedy="Choose another location, or delete the objects there by hand",
            table=location,
        )
    begun = replace(base.facts, table=wanted.table)
    if base.schema != schema or begun != wanted:
        what = "schema" if begun == wanted else "region spec, registry or owner"
        raise _taken(f"a table with another {what} was begun there", location)
    if base.metadata.get(TTL, "") != ttl:
        raise _taken("a table with another time to live was begun there", location)
    if _sum(scan_base(base, columns=schema.names), schema) != _sum(rows, schema):
        raise _taken("a table with other rows was begun there", location)


def _sum(rows: Iterable[pa.RecordBatch], schema: TableSchema) -> Setsum:
    total = Setsum.ZERO
    for batch in rows:
        total += row_setsum(batch, schema=schema.columns)
    return total


def sharding_of(spec: RegionSpec, schema: TableSchema) -> Sharding | None:
    """Return how Lance's own writer would route rows; None if Lance creates no MemWAL index for such a key."""
    if not has_mem_wal_index(schema):
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
