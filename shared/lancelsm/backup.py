"""Backups: the live rows of a table in a place of their own, and new tables made of them.

    {place}/rows/{nonce}/     a Lance dataset of the rows
    {place}/backup.json       what it is a backup of, its schema, key, regions and settings, count and sum of its rows

`backup.json` is written last, after the rows were read back: without it there is no backup. Nothing else is in it: no
indexes, no older versions, no history of changes, no snapshots, no cursors.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa

from lancelsm.admin.clone import Copied, facts_of
from lancelsm.admin.create import begin_base, begin_copy, catalogued, check_free
from lancelsm.common.layout import BACKUP, RESTORED, TableId, table_id
from lancelsm.common.setsum import Setsum
from lancelsm.dataset.base_reads import scan_base
from lancelsm.dataset.copies import read_copy, write_copy
from lancelsm.errors import Corrupt, Invalid, Unavailable
from lancelsm.objects import ObjectStore, put_once
from lancelsm.record.rowsum import row_setsum
from lancelsm.record.schema import TableSchema, declare_primary_key, numbered
from lancelsm.region import config as configs
from lancelsm.region.config import Config
from lancelsm.region.handle import Ports, canonical
from lancelsm.registry.open import default_registry
from lancelsm.routing.spec import parse_regions
from lancelsm.table import Table

FORMAT = 1

_TTL = "1h"  # of the snapshot that a backup holds


@dataclass(frozen=True, slots=True, kw_only=True)
class Backup:
    """What `backup.json` says. `schema` is an Arrow schema as IPC in base64; `taken` is in ISO 8601."""

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

    def table_schema(self) -> TableSchema:
        """The schema of the table that is made of it, with the field ids that it will have."""
        columns = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(self.schema)))
        return TableSchema(columns=columns, primary_key=tuple(self.primary_key))


@dataclass(slots=True)
class _Sum:
    """Count and sum of the rows that pass."""

    schema: pa.Schema
    rows: int = 0
    setsum: Setsum = Setsum.ZERO

    def of(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            self.rows += batch.num_rows
            self.setsum += row_setsum(batch, schema=self.schema)
            yield batch

    def all(self, batches: Iterable[pa.RecordBatch]) -> _Sum:
        for _ in self.of(batches):
            pass
        return self


def back_up(
    table: Table,
    to: str | Path,
    *,
    storage_options: Mapping[str, str] | None = None,
    ports: Ports | None = None,
) -> Copied:
    """Copy every live row of a table to a place that needs nothing of the table any more.

    Args:
        table: as it is now, or at a snapshot.
        to: a path or URL without a table or a backup.

    Raises:
        Invalid: something is there; or the snapshot is gone before it is read.
        Corrupt: something of the table is missing or wrong, or what was written reads back differently.
        Contended, Unavailable: back it up again.

    A crash at any line leaves no backup: files that another backup to the same place passes by.
    """
    if table.at_snapshot is None:
        name = f"backup-{(ports or Ports()).ids.nonce()[:8]}"
        with table.holding_snapshot(name, _TTL) as held:
            return back_up(held, to, storage_options=storage_options, ports=ports)
    ports, place = ports or Ports(), canonical(to)
    store = ports.store(place, storage_options)
    check_free(store, uri=place)
    if store.get(BACKUP) is not None:
        raise _taken(place)
    key = table.config.schema.primary_key
    plain = pa.schema([field.remove_metadata() for field in table.schema])
    schema = numbered(declare_primary_key(plain, key))
    path = f"rows/{ports.ids.nonce()}"
    written = _Sum(schema)
    write_copy(
        uri=f"{place}/{path}",
        columns=plain,
        rows=(_as(plain, batch) for batch in written.of(table.scan())),
        storage_options=storage_options,
    )
    copied = read_copy(uri=f"{place}/{path}", columns=schema, storage_options=storage_options)
    read = _Sum(schema).all(copied)
    if (read.rows, read.setsum) != (written.rows, written.setsum):
        raise Corrupt("the rows read back differ from those written", remedy="Back it up again", table=place)
    spec = table.config.regions
    made = Backup(
        source=table.uri,
        table=table.config.table,
        taken=datetime.fromtimestamp(ports.clock.now(), UTC).isoformat(timespec="milliseconds"),
        owner=table.config.owner,
        primary_key=list(key),
        schema=base64.b64encode(schema.serialize()).decode(),
        regions="" if spec is None else spec.describe(),
        settings=dict(table.config.settings),
        path=path,
        rows=written.rows,
        row_setsum=written.setsum.hex(),
    )
    body = json.dumps(asdict(made), indent=1).encode()
    found = put_once(store, BACKUP, body, attempts=range(2))
    if found is None:
        raise Unavailable("the backup could not be finished", remedy="Back it up to another place", table=place)
    if found != body:
        raise _taken(place)
    return Copied(uri=place, rows=written.rows, source=table.uri)


def restore(
    source: str | Path,
    uri: str | Path,
    *,
    registry: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    ports: Ports | None = None,
) -> Copied:
    """Make a new table of a backup: its id, registry records and regions are new.

    Args:
        registry: the new table's; by default as for a new table.

    Raises:
        Invalid: no finished backup is at `source`, or something is at `uri`.
        Corrupt: the backup is unreadable, or its rows are not those that were backed up.
        Contended, Unavailable: restore it again.

    A crash at any line leaves no table at `uri`; the same call goes on where it stopped.
    """
    ports, place, origin = ports or Ports(), canonical(uri), canonical(source)
    store = ports.store(place, storage_options)
    found = read_backup(ports.store(origin, storage_options), uri=origin)
    check_free(store, uri=place, marker=RESTORED)
    schema = found.table_schema()
    wanted = {
        "table": table_id(ports.ids.nonce()),
        "registry": registry or default_registry(place),
        "source": origin,
        "path": found.path,
    }
    recorded = begin_copy(store, RESTORED, wanted, uri=place, storage_options=storage_options)
    config = Config(
        table=TableId(recorded["table"]),
        registry=recorded["registry"],
        owner=found.owner,
        schema=schema,
        schema_version=1,
        regions=parse_regions(found.regions, schema=schema),
        settings=found.settings,
    )
    assert config.regions is not None, "a parsed spec"
    rows = read_copy(uri=f"{origin}/{found.path}", columns=schema.columns, storage_options=storage_options)
    base = begin_base(
        store,
        place,
        schema,
        facts_of(config),
        config.regions,
        rows=rows,
        marker=RESTORED,
        storage_options=storage_options,
    )
    read = _Sum(schema.columns).all(scan_base(base, columns=schema.names))
    if base.schema != schema or (read.rows, read.setsum.hex()) != (found.rows, found.row_setsum):
        raise Corrupt(
            f"the restored rows are not the {found.rows} that were backed up",
            remedy=f"Restore another backup. What was begun goes by: lancelsm drop {place}",
            table=place,
            object=f"{origin}/{found.path}",
        )
    catalogued(config, store, place, storage_options=storage_options, ports=ports)
    configs.create(store, config, uri=place)
    return Copied(uri=place, rows=found.rows, source=origin)


def read_backup(store: ObjectStore, *, uri: str) -> Backup:
    """What a backup says of itself.

    Raises:
        Invalid: there is none, or it was not finished, or a newer release made it.
        Corrupt: it is unreadable.
    """
    found = store.get(BACKUP)
    if found is None:
        raise Invalid(
            "no finished backup is there",
            remedy="Its making was interrupted, or it is elsewhere: a backup has a backup.json, which is written last",
            table=uri,
        )
    try:
        document = json.loads(found.body)
        if document["format"] > FORMAT:
            raise Invalid("a newer release made this backup", remedy="Install a newer lancelsm", table=uri)
        backup = Backup(**document)
        backup.table_schema()
    except (ValueError, KeyError, TypeError, pa.ArrowException, OSError) as error:
        raise Corrupt(f"the backup is unreadable: {error!r}", table=uri, object=BACKUP) from error
    return backup


def _taken(place: str) -> Invalid:
    return Invalid("a backup is there already", remedy="Choose another place", table=place)


def _as(columns: pa.Schema, batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(batch.columns, schema=columns)
