"""Messages for a region that accepts no writes wait in order. Other regions are not delayed."""

from __future__ import annotations

import time

import pyarrow as pa
import pytest

from lancelsm.common.layout import wal_entry
from lancelsm.record.normalize import upserts
from lancelsm.region.catalog import Region
from lancelsm.routing.route import route
from lancelsm.table import Table
from tests.integration.deployment import Deployment, batch, history, rows, until

COLUMNS = pa.schema([("id", pa.int64()), ("v", pa.int64())])


def send(deployment: Deployment, table: Table, *versions: int, keys: range = range(1)) -> None:
    for version in versions:
        deployment.invoke("ingest", {"table": table.uri, "upserts": [{"id": key, "v": version} for key in keys]})


def region_of(table: Table, key: int) -> Region:
    (routed,) = route(upserts([{"id": key, "v": 0}], schema=table.config.schema), table.config.regions)
    (found,) = [region for region in table.list_regions() if region.values == routed.values]
    return found


def age(attributes: dict[str, str]) -> float:
    """Return the age of a received message in seconds, which the alarm of the queue monitors."""
    return time.time() - int(attributes["SentTimestamp"]) / 1000


def failed(answer: dict[str, list[dict[str, str]]]) -> set[str]:
    return {one["itemIdentifier"] for one in answer["batchItemFailures"]}


@pytest.mark.rest
def test_messages_for_a_fenced_region_wait_until_it_is_given_back(deployment: Deployment) -> None:
    # Given a region that another owner has claimed since the writers last read its head
    table = deployment.table("fenced", COLUMNS)
    send(deployment, table, 1)
    until(lambda: history(table), lambda found: found == {0: [1]})
    deployment.invoke("region_claim", {"table": table.uri, "owner": "other"})

    # When rows are sent
    with deployment.paused():
        send(deployment, table, 2, 3)
        records = deployment.take()
        refused = deployment.invoke("writer_flush", batch(records))
        again = until(deployment.take, lambda found: found)
        refused_again = deployment.invoke("writer_flush", batch(again))
        before = history(table)

    # Then they are delayed, and applied once the region is given back
    deployment.invoke("region_claim", {"table": table.uri})
    until(lambda: history(table), lambda found: found == {0: [1, 2, 3]})
    assert before == {0: [1]}
    assert failed(refused) == failed(refused_again) == {one["messageId"] for one in records}
    assert [one["attributes"]["ApproximateReceiveCount"] for one in again] == ["2", "2"]
    assert until(deployment.waiting, lambda remaining: remaining == 0) == 0


@pytest.mark.rest
def test_messages_of_a_stuck_region_wait_and_other_regions_continue(deployment: Deployment) -> None:
    # Given a region with an unreadable object at its next position
    table = deployment.table("stuck", COLUMNS, regions="bucket(id, 2)")
    keys = range(6)
    stuck = region_of(table, 0)
    ours = {key for key in keys if region_of(table, key).id == stuck.id}
    stuck.context.objects.create(wal_entry(stuck.id, stuck.head().next_position), b"unreadable")

    # When both regions get rows
    send(deployment, table, 1, 2, keys=keys)

    # Then the other region has them, and the messages of the stuck region wait
    others = {key: [1, 2] for key in keys if key not in ours}
    until(lambda: history(table, skip=stuck), lambda found: found == others)
    with deployment.paused():
        waiting = until(deployment.take, lambda found: found)
        corrupt = deployment.invoke("writer_flush", batch(waiting))
    attributes = [one["attributes"] for one in waiting]
    assert len(waiting) == deployment.waiting() == 2
    assert failed(corrupt) == {one["messageId"] for one in waiting}
    assert (int(attributes[0]["ApproximateReceiveCount"]) > 1, age(attributes[0]) > 1) == (True, True)

    # And after a claim of the region they are applied in order
    deployment.invoke("region_claim", {"table": table.uri, "region": stuck.id})
    until(lambda: history(table), lambda found: found == others | {key: [1, 2] for key in ours})
    assert rows(table) == dict.fromkeys(keys, 2)
    assert until(deployment.waiting, lambda remaining: remaining == 0) == 0


@pytest.mark.rest
def test_the_dashboard_shows_which_table_waits(deployment: Deployment) -> None:
    # Given a table with a row in its base, and another one in its log
    table = deployment.table("shown", pa.table({"id": [0], "v": [1]}))
    table.upsert([{"id": 1, "v": 1}])

    # When CloudWatch asks for the panel, and for the report of the table
    listed = deployment.invoke("report", {"widgetContext": {"theme": "dark"}})
    shown = deployment.invoke("report", {"widgetContext": {"theme": "dark"}, "table": table.uri})

    # Then both show what waits
    assert f">{table.uri.rpartition('/')[2]}<" in listed
    for text in ("<b>1</b>row in the base", "<b>1</b>row to flush", "<b>0</b>problems found"):
        assert text in shown
