"""The pipeline stack holds no data: it can be destroyed and deployed again."""

from __future__ import annotations

import pytest

from tests.integration.deployment import Deployment, rows, until


@pytest.mark.rest
def test_a_pipeline_destroyed_and_deployed_again_loses_no_row(deployment: Deployment) -> None:
    # Given rows in the base, in a generation, in the log and in the queue
    table = deployment.table("redeployed", [{"id": 0, "v": 0}])
    table.upsert([{"id": 1, "v": 1}])
    table.flush()
    table.upsert([{"id": 2, "v": 2}])
    application = deployment.output("SparkApplication")
    with deployment.paused():
        deployment.invoke("ingest", {"table": table.uri, "upserts": [{"id": 3, "v": 3}]})

        # When the pipeline stack is destroyed and deployed again
        deployment.make("destroy", "deploy")

    # Then no row is lost, the queued row is applied, and writes continue at the next position
    until(lambda: rows(table), lambda found: 3 in found)
    written = deployment.invoke("writer_flush", {"table": table.uri, "upserts": [{"id": 4, "v": 4}]})
    found = deployment.invoke("query", {"table": table.uri})["rows"]
    assert deployment.output("SparkApplication") != application
    assert {row["id"]: row["v"] for row in found} == {key: key for key in range(5)}
    assert [one["position"] for one in written["entries"]] == [4]
    assert [one.epoch for one in table.status().regions] == [1]
