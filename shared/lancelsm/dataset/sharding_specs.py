"""Replace the region specs in the MemWAL index of a base, where Lance's readers and writers look for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lancelsm.dataset.base_table import BaseTable
from lancelsm.dataset.mem_wal_details import change_details
from lancelsm.generated.lance.table_pb2 import MemWalIndexDetails
from lancelsm.objects import ObjectStore


def replace_specs(base: BaseTable, specs: Sequence[Mapping[str, Any]], *, regions: int, objects: ObjectStore) -> bool:
    """Commit the region specs of the MemWAL index on this version of the base. Its markers and its promise stay.

    The region snapshot for eventual reads is removed: it lists the regions before.

    Args:
        specs: in the form of `BaseTable.mem_wal_index()["sharding_specs"]`.
        regions: the number of regions, if it is known, else 0.

    Returns:
        False if another commit came first.

    Raises: the same errors as `mem_wal_details.change_details`.
    """

    def change(message: MemWalIndexDetails, _: str) -> None:
        del message.sharding_specs[:]
        for spec in specs:
            added = message.sharding_specs.add(spec_id=spec["spec_id"])
            for field in spec["fields"]:
                added.fields.add(
                    field_id=field["field_id"],
                    source_ids=field["source_ids"],
                    transform=field["transform"],
                    expression=field["expression"],
                    result_type=field["result_type"],
                    parameters=field["parameters"],
                )
        message.num_shards = regions
        message.snapshot_ts_millis = 0
        message.ClearField("inline_snapshots")

    return change_details(base, change, objects=objects)
