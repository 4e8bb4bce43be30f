"""Messages of the queue whose rows have other columns than the configuration that a container has read."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from lancelsm.record.normalize import upserts
from lancelsm.record.schema import TableSchema
from lancelsm.record.schema_changes import added, dropped
from lancelsm.record.schema_history import SchemaChange, SchemaHistory
from lancelsm.region import config as configs
from lancelsm.wal.entry import decode
from lancelsm.wal.replay import stored_rows
from tests.simulation.deployment import URI, Deployment


def evolved(deployment: Deployment, change: SchemaChange | None) -> TableSchema:
    """Change the columns in the configuration, as `add_column` does after the commit of the base."""
    assert change is not None
    schema = deployment.config.schema
    newer = schema.at(SchemaHistory(changes=(*schema.history.changes, change)))
    found = deployment.store.get(configs.CONFIG)
    assert found is not None
    deployment.config = replace(deployment.config, schema=newer)
    deployment.store.replace(configs.CONFIG, configs.encode(deployment.config), expect=found.etag)
    return newer


def rows_of_log(deployment: Deployment) -> list[dict[str, object]]:
    """The rows of the log of the only region, in the columns of the configuration."""
    (region,) = deployment.list_regions()
    found = deployment.store.list(f"_mem_wal/{region.id}/wal/")
    entries = [decode(deployment.store.get(one.key).body, position=1, key=one.key) for one in found]  # type: ignore[union-attr,arg-type]
    schema = deployment.config.schema
    return [row for entry in entries if entry.summary.rows for row in stored_rows(entry, schema).to_pylist()]


def test_messages_of_older_columns_are_converted_and_never_dead_lettered() -> None:
    deployment = Deployment(buckets=1)
    deployment.send([(6, 1)], sequence=1)
    schema = deployment.config.schema
    newer = evolved(deployment, added(schema, "note", pa.string(), default="d", first_id=9, file_version=""))
    evolved(deployment, dropped(newer, "v", protected={}))

    (outcome,) = deployment.deliver(tables=deployment.container("new", faulty=False))

    assert (outcome.rejection, outcome.retry) == (None, None)
    assert rows_of_log(deployment) == [{"id": 6, "note": "d", "_tombstone": False}]


def test_a_message_of_newer_columns_makes_a_container_read_the_configuration() -> None:
    deployment = Deployment(buckets=1)
    old = deployment.container("old", faulty=False)
    old.open(URI)
    schema = deployment.config.schema
    newer = evolved(deployment, added(schema, "note", pa.string(), default=None, first_id=9, file_version=""))
    deployment.handle = deployment.container("new", faulty=False).open(URI)
    deployment.send_rows(upserts([{"id": 7, "v": 2, "note": "x"}], schema=newer), sequence=1)

    (outcome,) = deployment.deliver(tables=old)

    assert (outcome.rejection, outcome.retry) == (None, None)
    assert rows_of_log(deployment) == [{"id": 7, "v": 2, "note": "x", "_tombstone": False}]
    assert deployment.list_regions()[0].head().schema_version == 2


def test_a_container_converts_rows_for_columns_that_it_does_not_know_yet() -> None:
    deployment = Deployment(buckets=1)
    tables = deployment.container("old", faulty=False)
    tables.open(URI)
    schema = deployment.config.schema
    evolved(deployment, added(schema, "note", pa.string(), default=None, first_id=9, file_version=""))

    handle, rows = tables.converted(
        URI, lambda handle: upserts([{"id": 7, "v": 2, "note": "x"}], schema=handle.config.schema)
    )

    assert handle.config.schema_version == 2
    assert rows.to_pylist() == [{"id": 7, "v": 2, "note": "x", "_tombstone": False}]
