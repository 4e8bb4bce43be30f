"""Back up the live rows of a table to another location, and create new tables from backups.

    {location}/rows/{nonce}/     a Lance dataset of the rows
    {location}/_lancelsm/files/  sequences of deletes, if change events of the table are ordered
    {location}/backup.json       source table, schema, key, regions and settings; count and setsum of the rows

`backup.json` is written last, after the rows were read back: without it there is no backup. A backup has no indexes, no
older versions, no change history, no snapshots and no cursors.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa

from lancelsm.admin.clone import Copied, facts_of, rows_above_base
from lancelsm.admin.create import begin_copy, check_free, ensure_base, register_table
from lancelsm.common.formats import check_format
from lancelsm.common.json_text import parse_json
from lancelsm.common.layout import BACKUP, RESTORED, TableId, table_id
from lancelsm.dataset.adoption import write_facts
from lancelsm.dataset.base_reads import scan_base
from lancelsm.dataset.base_rows import Base, expired_rows
from lancelsm.dataset.copies import read_copy, write_copy
from lancelsm.dataset.deleted_keys import back_up_deletes, copy_deletes, has_deletes
from lancelsm.dataset.statement import Stating, check_stated, files_of
from lancelsm.errors import Corrupt, Invalid, Unavailable
from lancelsm.objects import ObjectStore, put_once
from lancelsm.read.reader import scan
from lancelsm.read.view import View, take_view
from lancelsm.record.schema import TOMBSTONE, TableSchema, declare_primary_key, numbered
from lancelsm.record.summed_rows import SummedRows
from lancelsm.record.ttl import parse_ttl
from lancelsm.region import config as configs
from lancelsm.region.catalog import regions
from lancelsm.region.config import Config
from lancelsm.region.handle import Ports, TableHandle, canonical
from lancelsm.registry.open import default_registry
from lancelsm.routing.spec import parse_regions

FORMAT = 2

_ROWS = re.compile(r"rows/[0-9a-f]{32}")
_OPTIONAL = ("sequence_by", "ttl", "deletes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Backup:
    """The content of `backup.json`. `schema` is an Arrow IPC schema in base64; `taken` is in ISO 8601."""

    source: str
    table: str
    taken: str
    owner: str
    primary_key: list[str]
    schema: str
    regions: str
    settings: dict[str, str]
    path: str
    rows: int
    row_setsum: str
    format: int = FORMAT
    sequence_by: list[str] = field(default_factory=list)
    ttl: str = ""
    deletes: dict[str, str] = field(default_factory=dict)

    def table_schema(self) -> TableSchema:
        """Return the schema of a table restored from this backup, with the field ids that its base will have."""
        columns = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(self.schema)))
        return TableSchema(columns=columns, primary_key=tuple(self.primary_key))


def back_up_live(handle: TableHandle, to: str, *, seconds: float, ports: Ports) -> Copied:
    """Copy every live row as `lancelsm.backup` does, but without a snapshot: nothing is written to the table.

    The objects that this reads exist for `collect_interval_seconds` after the call. So it takes no longer.

    Args:
        seconds: the most time that the copy may take.

    Raises:
        Invalid: a table or a backup exists at `to`, or the copy needs more time.
        Corrupt, Contended, Unavailable: the same as `lancelsm.backup`.
    """
    context, clock = handle.context, handle.context.clock
    allowed = min(seconds, handle.settings.collect_interval_seconds)
    ends = clock.monotonic() + allowed

    def in_time(rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in rows:
            if clock.monotonic() >= ends:
                raise Invalid(
                    f"the backup needs more than the {allowed:.0f} s that it has",
                    remedy=f"Run this on a machine: lancelsm backup {context.uri} {to}-by-hand",
                    table=context.uri,
                )
            yield batch

    view = take_view(context, lambda: regions(context), handle.read_keyed_base)
    rows = scan(view, uri=context.uri, parallel=context.parallel)
    return back_up_view(handle, view, rows, to, storage_options=None, ports=ports, in_time=in_time)


def back_up_view(
    handle: TableHandle,
    view: View,
    rows: Iterable[pa.RecordBatch],
    to: str | Path,
    *,
    storage_options: Mapping[str, str] | None,
    ports: Ports,
    in_time: Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]] = lambda rows: rows,
) -> Copied:
    """Copy the live rows of a view to another location, read the copy back, then write `backup.json`.

    Args:
        rows: the live rows of the view.
        in_time: passes batches on; it raises an error if the time of the backup is over.

    Errors, and what holds after a crash, are those of `lancelsm.backup`.
    """
    location, config, base = canonical(to), handle.config, view.base
    store = ports.store(location, storage_options)
    check_free(store, uri=location)
    if store.get(BACKUP) is not None:
        raise _already_there(location)
    check_stated(base, handle.context.objects, files_of(base))  # sums of a copy of damaged rows would fit them
    key = config.schema.primary_key
    plain = pa.schema([field.remove_metadata() for field in base.schema.columns])
    schema = numbered(declare_primary_key(plain, key))
    path = f"rows/{ports.ids.nonce()}"
    written = SummedRows(schema)
    write_copy(
        uri=f"{location}/{path}",
        columns=plain,
        rows=(_with_schema(plain, batch) for batch in written.through(in_time(rows))),
        storage_options=storage_options,
    )
    copied = read_copy(uri=f"{location}/{path}", columns=schema, storage_options=storage_options)
    read = SummedRows(schema).add(in_time(copied))
    if read.total != written.total:
        raise Corrupt("the rows read back differ from those written", remedy="Back up again", table=location)
    uri, spec = handle.context.uri, config.regions
    sequence = configs.newest_sequence(handle.context.objects, config, uri=uri)
    deletes: dict[str, str] = {}
    if sequence:
        deleted = _deleted(view, handle, sequence)
        deletes = back_up_deletes(
            base, handle.context.objects, deleted, names=sequence, now=ports.clock.now(), to=store
        )
    backup = Backup(
        source=uri,
        table=config.table,
        taken=datetime.fromtimestamp(ports.clock.now(), UTC).isoformat(timespec="milliseconds"),
        owner=config.owner,
        primary_key=list(key),
        schema=base64.b64encode(schema.serialize()).decode(),
        regions="" if spec is None else spec.describe(),
        settings=dict(config.settings),
        sequence_by=list(sequence),
        deletes=deletes,
        ttl="" if base.ttl is None else base.ttl.text,
        path=path,
        rows=written.rows,
        row_setsum=written.setsum.hex(),
    )
    document = {name: value for name, value in asdict(backup).items() if name not in _OPTIONAL or value}
    body = json.dumps(document, indent=1).encode()
    found = put_once(store, BACKUP, body, attempts=range(2))
    if found is None:
        raise Unavailable("the backup could not be finished", remedy="Back up to another location", table=location)
    if found != body:
        raise _already_there(location)
    return Copied(uri=location, rows=written.rows, source=uri)


def _deleted(view: View, handle: TableHandle, sequence: Sequence[str]) -> Iterator[pa.Table]:
    """Yield the keys and sequences of deletes in a view, the oldest first. Expired rows are among them."""
    schema, expiry = view.base.schema, view.expiry
    if expiry is not None:
        columns = [name for name in schema.names if name in {*schema.primary_key, *sequence}]
        for batch in expired_rows(Base.of(view.base), expiry, view.base, columns):
            yield pa.table(batch).select(columns)
    for rows in rows_above_base(view, handle):
        marked = rows if expiry is None else expiry.as_deletes(rows)
        yield marked.filter(marked[TOMBSTONE])


def restore_backup(
    source: str | Path,
    uri: str | Path,
    *,
    registry: str | None,
    storage_options: Mapping[str, str] | None,
    ports: Ports,
) -> Copied:
    """Create a new table from a backup: `lancelsm.restore` has the contract."""
    location, source_uri = canonical(uri), canonical(source)
    store = ports.store(location, storage_options)
    backup = read_backup(ports.store(source_uri, storage_options), uri=source_uri)
    check_free(store, uri=location, marker=RESTORED)
    schema = backup.table_schema()
    wanted = {
        "table": table_id(ports.ids.nonce()),
        "registry": registry or default_registry(location),
        "source": source_uri,
        "path": backup.path,
    }
    recorded = begin_copy(store, RESTORED, wanted, uri=location, storage_options=storage_options)
    config = Config(
        table=TableId(recorded["table"]),
        registry=recorded["registry"],
        owner=backup.owner,
        schema=schema,
        regions=parse_regions(backup.regions, schema=schema),
        settings=backup.settings,
        sequence_by=tuple(backup.sequence_by),
    )
    assert config.regions is not None, "a parsed spec"
    rows = read_copy(uri=f"{source_uri}/{backup.path}", columns=schema.columns, storage_options=storage_options)
    base = ensure_base(
        store,
        location,
        schema,
        facts_of(config),
        config.regions,
        rows=rows,
        marker=RESTORED,
        ttl=backup.ttl,
        storage_options=storage_options,
    )
    read = SummedRows(schema.columns).add(scan_base(base, columns=schema.names))
    if base.schema != schema or (read.rows, read.setsum.hex()) != (backup.rows, backup.row_setsum):
        raise Corrupt(
            f"the restored rows are not the {backup.rows} that were backed up",
            remedy=f"Remove the incomplete table with lancelsm drop {location}, then restore another backup",
            table=location,
            object=f"{source_uri}/{backup.path}",
        )
    if backup.deletes and not has_deletes(base):
        made = copy_deletes(backup.deletes, ports.store(source_uri, storage_options), base, store)
        write_facts(base, made, stating=Stating(objects=store))  # guard: restored table has the sequences of deletes
    register_table(config, store, location, storage_options=storage_options, ports=ports)
    configs.create(store, config, uri=location)
    return Copied(uri=location, rows=backup.rows, source=source_uri)


def read_backup(store: ObjectStore, *, uri: str) -> Backup:
    """Read `backup.json`.

    Raises:
        Invalid: there is no backup, the backup was not finished, a newer release wrote it, or its sums are SHA3-256.
        Corrupt: the file is unreadable.
    """
    found = store.get(BACKUP)
    if found is None:
        raise Invalid(
            "no finished backup found",
            remedy="Check the location. A backup that was interrupted has no backup.json: back up again",
            table=uri,
        )
    try:
        document = parse_json(found.body)
        remedy = "Restore it with the release that wrote it, export the rows, and load them into a new table"
        check_format(document["format"], newest=FORMAT, what="backup", remedy=remedy, table=uri)
        backup = Backup(**document)
        backup.table_schema()
        if any(type(text) is not str for text in backup.deletes.values()):
            raise TypeError("deletes are no texts by name")
    except (ValueError, KeyError, TypeError, AttributeError, pa.ArrowException, OSError) as error:
        raise Corrupt(f"the backup is unreadable: {error!r}", table=uri, object=BACKUP) from error
    try:
        _ = parse_ttl(backup.ttl, backup.table_schema().columns) if backup.ttl else None
    except Invalid as error:
        what = f"the backup has a time to live that its table can't have: {error.message}"
        raise Corrupt(what, table=uri, object=BACKUP, field="ttl") from error
    if not _ROWS.fullmatch(str(backup.path)):
        what = f"the backup names rows that are not below its own directory: {backup.path!r}"
        raise Corrupt(what, table=uri, object=BACKUP, field="path")
    return backup


def _already_there(location: str) -> Invalid:
    return Invalid("a backup already exists there", remedy="Choose another location", table=location)


def _with_schema(columns: pa.Schema, batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(batch.columns, schema=columns)
