"""Store a snapshot of all regions in the details of the MemWAL index of a base, as Lance 14 lays it out.

It is a Lance file with a row for each region. Up to 100 regions it is in the details themselves, and so in the
manifest of the base; above, it is an object beside the other indexes, named by the UUID of the index. Spec:
lance-memwal, "Region Snapshot Storage".
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
from lance.file import LanceFileReader, LanceFileWriter

from lancelsm.dataset.base_table import BaseTable
from lancelsm.dataset.mem_wal_details import change_details
from lancelsm.dataset.merged_generations import read_details
from lancelsm.dataset.native import native_errors, read_errors
from lancelsm.errors import Corrupt
from lancelsm.generated.lance.table_pb2 import MemWalIndexDetails
from lancelsm.objects import ObjectStore, Written

INLINE_MOST: Final = 100
_VERSION: Final = "2.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSnapshot:
    """The rows of a region snapshot. `taken` is in Unix seconds: the heads were read after it."""

    taken: float
    rows: pa.Table


def write_region_snapshot(base: BaseTable, rows: pa.Table, *, taken: float, objects: ObjectStore) -> bool:
    """Commit a snapshot of the regions on this version of the base. Return False if another commit came first.

    Args:
        rows: one for each region.
        taken: the time before the heads were read, in Unix seconds.

    Raises:
        Corrupt: the base has no MemWAL index.
        Unavailable: the store did not answer; the snapshot may be committed.
    """
    body = _encoded(rows, base.uri)
    refused = []

    def change(message: MemWalIndexDetails, identity: str) -> None:
        message.snapshot_ts_millis = int(taken * 1000)  # rounded down, so that it is not too young
        message.num_shards = max(message.num_shards, rows.num_rows)  # Lance sets it to the number of buckets
        message.ClearField("inline_snapshots")
        if rows.num_rows <= INLINE_MOST:
            message.inline_snapshots = body
        elif not isinstance(objects.create(_key(identity), body), Written):
            refused.append(identity)
            message.snapshot_ts_millis = 0

    return change_details(base, change, objects=objects) and not refused


def read_region_snapshot(base: BaseTable, *, objects: ObjectStore) -> StoredSnapshot | None:
    """Read the newest snapshot of the regions; None if it is missing or damaged, so that readers read the heads.

    Raises:
        Corrupt: the manifest of the base can't be read.
        Unavailable: the store did not answer.
    """
    stored = read_details(objects=objects, version=base.version)
    if stored is None or not stored.message.snapshot_ts_millis:
        return None
    if stored.message.HasField("inline_snapshots"):
        body = stored.message.inline_snapshots
    else:  # another commit may have given the index another UUID
        found = objects.get(_key(stored.uuid))
        if found is None:
            return None
        body = found.body
    try:
        rows = _decoded(body, base.uri)
    except Corrupt:
        return None
    return StoredSnapshot(taken=stored.message.snapshot_ts_millis / 1000, rows=rows)


def _key(identity: str) -> str:
    return f"_indices/{identity}/index.lance"


def _encoded(rows: pa.Table, uri: str) -> bytes:
    with tempfile.TemporaryDirectory() as directory, native_errors("the region snapshot can't be written", table=uri):
        path = Path(directory) / "index.lance"
        with LanceFileWriter(str(path), rows.schema, version=_VERSION) as writer:
            writer.write_batch(rows)
        return path.read_bytes()


def _decoded(body: bytes, uri: str) -> pa.Table:
    with tempfile.TemporaryDirectory() as directory, read_errors("the region snapshot can't be read", table=uri):
        path = Path(directory) / "index.lance"
        path.write_bytes(body)
        found: pa.Table = LanceFileReader(str(path)).read_all().to_table()
        return found
