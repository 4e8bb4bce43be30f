"""Test that a layer works. `layers.building` runs this script with only the layer on the path.

Arguments: the layer, the path of a table with an int64 key `id` and a string `v`, and the AWS services whose clients it
must be able to create. A failure ends it with a traceback.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from lancelsm.common import aws
from lancelsm.common.write_result import Committed
from lancelsm.record.normalize import upserts
from lancelsm.region.handle import open_configured
from lancelsm.routing.route import route
from lancelsm.wal.region_writer import RegionWriters

HEAVY = {"numpy", "lance", "pydantic", "pyarrow.dataset", "aws_xray_sdk"}


def write(table: str) -> Committed:
    """Append rows as a writer does, which opens the table by its configuration."""
    target = open_configured(table).target()
    rows = upserts([{"id": 1, "v": "new"}, {"id": 2, "v": "new"}], schema=target.schema)
    return RegionWriters(target, owner=target.owner).append_all(route(rows, target.regions))


def lean(table: str) -> None:
    assert write(table).rows == 2
    loaded = HEAVY & sys.modules.keys()
    assert not loaded, loaded


def lance(table: str) -> None:
    import lancelsm

    write(table)
    opened = lancelsm.open(table)
    opened.flush()
    merged = opened.merge(engine="inprocess")
    assert (merged.generations, merged.rows_upserted) == (1, 2), merged
    found = opened.scan(where="v = 'new'").to_arrow()
    assert sorted(found["id"].to_pylist()) == [1, 2], found


def spark(table: str) -> None:
    import lancelsm.stack.merge_job  # noqa: F401

    lance(table)


TRIALS: dict[str, Callable[[str], None]] = {"lean": lean, "expression": lean, "lance": lance, "spark": spark}


def main(layer: str, table: str, services: Sequence[str]) -> None:
    TRIALS[layer](table)
    for service in services:
        aws.client(service)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
