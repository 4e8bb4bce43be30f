"""The configuration file of a table: its contents, damage to it, and when it disagrees with the base."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lancelsm.common.layout import CONFIG, TableId
from lancelsm.errors import Corrupt, Invalid, LsmWarning, Unavailable
from lancelsm.objects.filesystem import LocalStore
from lancelsm.record.schema import TableSchema, declare_primary_key, numbered
from lancelsm.region import config as configs
from lancelsm.region.config import Config
from lancelsm.routing.spec import parse_regions
from tests.simulation.faults import FAIL_AFTER, FAIL_BEFORE, FaultPlan, FaultyStore, MemoryStore
from tests.unit.tables import create, row, rows_of

COLUMNS = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("at", pa.timestamp("us", "Europe/Berlin")),
        pa.field("tags", pa.list_(pa.struct([("k", pa.string())]))),
        pa.field("kind", pa.dictionary(pa.int8(), pa.string())),
    ]
)
SCHEMA = TableSchema(columns=numbered(declare_primary_key(COLUMNS, ("at", "id"))), primary_key=("at", "id"))
CONFIGURATION = Config(
    table=TableId("55fdc1f0-cea9-499a-8354-c74dee3f45b4"),
    registry="object",
    owner="stack",
    schema=SCHEMA,
    regions=parse_regions("day(at), multi_bucket(id, at, 4), expr(id % 2)", schema=SCHEMA),
    settings={"flush_rows": "7"},
)


@pytest.mark.parametrize(
    "config",
    [CONFIGURATION, replace(CONFIGURATION, regions=None, settings={})],
    ids=["full", "without spec and settings"],
)
def test_a_configuration_survives_encoding_with_field_ids_and_region_spec(config: Config) -> None:
    found = configs.decode(configs.encode(config), uri="t")

    assert found == config
    assert found.schema.columns.equals(config.schema.columns, check_metadata=True)


def test_the_configuration_is_json_that_can_be_read_without_lance() -> None:
    document = json.loads(configs.encode(CONFIGURATION))

    assert document["format"] == 2
    assert document["primary_key"] == ["at", "id"]
    assert (document["table"], document["registry"], document["owner"]) == (CONFIGURATION.table, "object", "stack")
    assert document["settings"] == {"flush_rows": "7"}


def test_a_newer_format_is_refused_before_other_fields_are_read() -> None:
    with pytest.raises(Invalid, match="format 9, this release reads") as raised:
        configs.decode(b'{"format": 9}', uri="t")
    assert raised.value.where["table"] == "t"


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'{"format": 2}', b'{"format": "2"}', b"\xff", b"null"])
def test_an_unreadable_configuration_is_corrupt_and_named(body: bytes) -> None:
    with pytest.raises(Corrupt) as error:
        configs.decode(body, uri="t")
    assert error.value.where == {"table": "t", "object": CONFIG}


def test_every_truncated_configuration_is_corrupt() -> None:
    body = configs.encode(CONFIGURATION)
    for size in range(0, len(body) - 1, 97):
        with pytest.raises(Corrupt):
            configs.decode(body[:size], uri="t")


def test_a_configuration_is_written_once() -> None:
    store = MemoryStore()
    configs.create(store, CONFIGURATION, uri="t")
    configs.create(store, CONFIGURATION, uri="t")  # another process finishes the same create

    with pytest.raises(Invalid, match="a table already exists at this location"):
        configs.create(store, replace(CONFIGURATION, owner="other"), uri="t")
    assert configs.read(store, uri="t") == CONFIGURATION


def test_a_write_with_a_lost_reply_is_recognised_and_a_failed_write_is_unavailable() -> None:
    store = MemoryStore()
    configs.create(FaultyStore(store, FaultPlan.at(0, FAIL_AFTER)), CONFIGURATION, uri="t")
    assert configs.read(store, uri="t") == CONFIGURATION

    nothing = MemoryStore()
    with pytest.raises(Unavailable):
        configs.create(FaultyStore(nothing, FaultPlan.of({0: FAIL_BEFORE, 1: FAIL_BEFORE})), CONFIGURATION, uri="t")
    assert configs.read(nothing, uri="t") is None


def test_a_table_whose_base_has_other_columns_than_its_configuration_is_flushed_but_not_merged(tmp_path: Path) -> None:
    table = create(tmp_path)
    table.upsert([row(1)])
    lance.dataset(table.uri).add_columns(pa.field("x", pa.int64()))
    assert rows_of(table) == [{**row(1), "x": None}]

    with pytest.warns(LsmWarning, match="added column 'x'"):
        table.flush()
    with pytest.raises(Invalid, match="added column 'x'"):
        table.merge(engine="inprocess")

    lance.dataset(table.uri).drop_columns(["x"])
    table.merge(engine="inprocess")
    assert rows_of(table) == [row(1)]


def test_a_configuration_whose_base_was_overwritten_is_corrupt(tmp_path: Path) -> None:
    """Another tool overwrote the base with a dataset of its own."""
    table = create(tmp_path)
    table.upsert([row(1)])
    lance.write_dataset(pa.table({"id": [1], "v": ["a"]}), table.uri, mode="overwrite")

    assert configs.read(LocalStore(Path(table.uri)), uri=table.uri) is not None
    with pytest.raises(Corrupt, match="overwritten"):
        table.scan()
