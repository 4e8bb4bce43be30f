"""Change the details of the MemWAL index of a base: region spec, promise of indexes and region snapshot are in them."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any, cast

import lance
from lance.dataset import Index

from lancelsm.dataset.base_manifest import MEM_WAL_INDEX
from lancelsm.dataset.base_table import BaseTable, open_dataset
from lancelsm.dataset.merged_generations import read_details
from lancelsm.dataset.native import native_errors
from lancelsm.errors import Contended, Corrupt
from lancelsm.generated.lance.table_pb2 import MemWalIndexDetails
from lancelsm.objects import ObjectStore

_DETAILS = "/lance.table.MemWalIndexDetails"


def change_details(base: BaseTable, change: Callable[[MemWalIndexDetails, str], None], *, objects: ObjectStore) -> bool:
    """Commit other details of the MemWAL index on this version of the base. Return False if another commit came first.

    Args:
        change: changes the details; gets the UUID that the index will have.

    Raises:
        Corrupt: the base has no MemWAL index.
        Unavailable: the store did not answer; the details may be committed.
    """
    stored = read_details(objects=objects, version=base.version)
    if stored is None:
        raise Corrupt(
            f"the base has lost its index {MEM_WAL_INDEX}",
            remedy="Restore the base to a version that has it",
            table=base.uri,
            version=base.version,
        )
    identity = str(uuid.uuid5(uuid.UUID(stored.uuid), str(base.version)))
    change(stored.message, identity)
    details = (_DETAILS, stored.message.SerializeToString())
    operation = lance.LanceOperation.CreateIndex(
        new_indices=[_mem_wal_index(identity, base.version, details)],
        removed_indices=[_mem_wal_index(stored.uuid, stored.dataset_version, details)],
    )
    try:
        with native_errors("the details of the MemWAL index can't be changed", table=base.uri):
            dataset = open_dataset(uri=base.uri, version=base.version, storage_options=base.storage_options)
            lance.LanceDataset.commit(dataset, operation, read_version=base.version)
    except Contended:
        return False
    return True


def _mem_wal_index(identity: str, version: int, details: tuple[str, bytes]) -> Index:
    return Index(
        uuid=identity,
        name=MEM_WAL_INDEX,
        fields=[],
        dataset_version=version,
        fragment_ids=cast("Any", set()),
        index_version=0,
        index_details=details,
    )
