"""The schedule flushes and merges a table after writes, and starts nothing for an idle table."""

from __future__ import annotations

import pytest

from lancelsm.common.clock import SystemClock, SystemIds
from lancelsm.common.layout import TableId
from lancelsm.registry.dynamodb import DynamoRegistry
from lancelsm.table import Table
from tests.integration.deployment import Deployment, rows, until

AT_ONCE = {"flush_rows": 1, "merge_generations": 1}


def marked(deployment: Deployment, table: Table) -> bool:
    """Return whether the index of dirty regions has a region of the table."""
    name = deployment.output("RegistryName").removeprefix("dynamodb:")
    registry = DynamoRegistry(name, client=deployment.client("dynamodb"), clock=SystemClock(), ids=SystemIds())
    return any(table_id == TableId(table.config.table) for table_id, *_ in registry.dirty())


@pytest.mark.rest
def test_a_written_table_is_flushed_and_merged_and_then_nothing_runs(deployment: Deployment) -> None:
    # Given a table without writes
    table = deployment.table("scheduled", [{"id": 0, "v": 0}], settings=AT_ONCE)
    only = {"table": table.uri}  # other tables belong to other tests
    before = deployment.invoke("dispatch", only)

    # When rows arrive through the queue, and the schedule fires until they are merged
    upserts = [{"id": key, "v": 1} for key in range(3)]
    deployment.invoke("ingest", {"table": table.uri, "upserts": upserts})
    until(lambda: marked(deployment, table), lambda found: found)
    flushing = deployment.invoke("dispatch", only)
    until(lambda: table.status().regions[0], lambda region: (region.wal_rows, region.generations) == (0, 1))
    merging = deployment.invoke("dispatch", only)
    again = deployment.invoke("dispatch", only)
    done = deployment.finished(merging["merges"][0])

    # Then each step was started once, the rows are in the base, and nothing more is started
    idle = {"flushed": [], "merges": [], "queued": 0}
    assert before == deployment.invoke("dispatch", only) == idle
    assert flushing == {"flushed": [table.uri], "merges": [], "queued": 0}
    assert (merging["flushed"], len(merging["merges"])) == ([], 1)
    assert again in (idle, merging)
    assert (done["engine"], done["merge"]["rows_upserted"]) == ("inprocess", 3)
    assert not marked(deployment, table)
    assert rows(table) == dict.fromkeys(range(3), 1)
