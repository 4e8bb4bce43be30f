"""Create a table in steps that a crash may interrupt anywhere, and open it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lancelsm
from lancelsm.admin.create import create_table
from lancelsm.common.layout import CONFIG
from lancelsm.dataset.adoption import write_facts
from lancelsm.dataset.base_table import open_base
from lancelsm.errors import Corrupt, Invalid, LsmError, Unavailable
from lancelsm.objects import ObjectStore
from lancelsm.region import config as configs
from lancelsm.region.config import Config
from lancelsm.region.handle import Ports, canonical, open_table
from lancelsm.registry.open import open_registry
from tests.simulation.faults import (
    CRASH_AFTER,
    CRASH_BEFORE,
    DENY,
    FAIL_AFTER,
    FAIL_BEFORE,
    Call,
    Crash,
    Fault,
    FaultPlan,
    late,
)
from tests.unit.tables import COLUMNS, create, faulty, row, rows_of

LOADED = [row(1), row(2)]


def create_with(location: Path, plan: FaultPlan) -> None:
    create_table(location, LOADED, primary_key="id", regions="bucket(id, 2)", ports=faulty(plan))


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state that a crash right after the base leaves. The 15 calls before check that the location is free."""
    location = tmp_path_factory.mktemp("interrupted") / "table"
    with pytest.raises(Crash):
        create_with(location, FaultPlan.at(15, CRASH_BEFORE))
    assert open_base(uri=str(location)).rows == 2
    return location


@pytest.fixture(scope="module")
def calls(interrupted: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Call]:
    """The calls of an undisturbed run that finishes the interrupted one."""
    location = tmp_path_factory.mktemp("calls") / "table"
    shutil.copytree(interrupted, location)
    plan = FaultPlan()
    create_with(location, plan)
    return plan.calls


def is_complete(location: Path) -> bool:
    table = lancelsm.open(location)
    assert len(table.list_regions()) == 2
    table.upsert([row(key, "b") for key in range(2, 8)])
    return rows_of(table) == [row(1), *(row(key, "b") for key in range(2, 8))]


@pytest.mark.one_case
@pytest.mark.parametrize("fault", [CRASH_BEFORE, CRASH_AFTER, DENY, FAIL_BEFORE, FAIL_AFTER, late(2), late(1_000_000)])
def test_the_same_call_finishes_the_creation_of_a_table_that_was_interrupted_anywhere(
    tmp_path: Path, interrupted: Path, calls: list[Call], fault: Fault
) -> None:
    assert [call.key for call in calls[-1:]] == [CONFIG], "the configuration is last"
    for call in calls:
        print(call)
        location = tmp_path / f"{call.index}"
        shutil.copytree(interrupted, location)
        plan = FaultPlan.at(call.index, fault)
        try:
            create_with(location, plan)
            done = True
        except (Crash, LsmError):
            done = False
        plan.land()
        if not (location / CONFIG).exists():
            assert not done
            with pytest.raises(Invalid, match="there is no table at this location"):
                open_table(location)
            create_with(location, FaultPlan())
        else:
            with pytest.raises(Invalid, match="already exists at this location"):
                create_with(location, FaultPlan())
        assert is_complete(location)
        shutil.rmtree(location)


def test_a_crash_before_the_base_leaves_nothing(tmp_path: Path) -> None:
    location = tmp_path / "table"
    with pytest.raises(Crash):
        create_with(location, FaultPlan.at(0, CRASH_AFTER))
    assert not location.exists()

    create_with(location, FaultPlan())
    assert is_complete(location)


@pytest.mark.parametrize(
    "other",
    [
        {"primary_key": "v", "regions": None},
        {"columns": COLUMNS.append(pa.field("x", pa.int8()))},
        {"regions": "bucket(id, 3)"},
        {"registry": "object"},
        {"owner": "stack"},
    ],
)
def test_a_call_with_other_parameters_does_not_finish_an_interrupted_creation(
    tmp_path: Path, interrupted: Path, other: dict[str, Any]
) -> None:
    shutil.copytree(interrupted, tmp_path / "table")

    with pytest.raises(Invalid, match=r"another .* was begun"):
        create(tmp_path, **{"columns": COLUMNS, "regions": "bucket(id, 2)", **other})


def test_an_interrupted_creation_is_finished_with_its_original_table_id(tmp_path: Path, interrupted: Path) -> None:
    facts = open_base(uri=str(interrupted)).facts
    assert facts is not None
    shutil.copytree(interrupted, tmp_path / "table")

    table = create(tmp_path, LOADED, regions="bucket(id, 2)")

    assert table.config.table == facts.table
    assert open_base(uri=table.uri).facts == facts


def test_the_second_of_two_concurrent_creators_gets_invalid(tmp_path: Path) -> None:
    """Two calls create the table at once. The call that writes its configuration second fails."""
    location = tmp_path / "table"

    def other_first(kind: str, **options: Any) -> Any:
        if not (location / CONFIG).exists():
            create(tmp_path, settings={"flush_rows": 7})
        return open_registry(kind, **options)

    with pytest.raises(Invalid, match="exists"):
        create_table(location, COLUMNS, primary_key="id", settings={"flush_rows": 8}, ports=Ports(registry=other_first))

    assert lancelsm.open(location).settings.flush_rows == 7


def test_base_and_configuration_both_name_the_registry(tmp_path: Path) -> None:
    table = create(tmp_path, [row(1)], registry="object")
    table.upsert([row(2)])

    facts = open_base(uri=table.uri).facts
    assert facts is not None
    assert (facts.registry, table.config.registry) == ("object", "object")
    assert not (tmp_path / "table" / "_lancelsm" / "registry.sqlite").exists()
    assert rows_of(lancelsm.open(table.uri)) == [row(1), row(2)]


def test_an_unknown_registry_is_refused_and_nothing_is_created(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="unknown kind of registry: 'nobody'"):
        create(tmp_path, registry="nobody")
    assert not (tmp_path / "table").exists()


def test_ordinary_writers_share_the_owner_of_their_table(tmp_path: Path) -> None:
    table = create(tmp_path, owner="stack")
    table.upsert([row(1)])
    lancelsm.open(table.uri).upsert([row(2)])

    assert [region.owner for region in table.status().regions] == ["stack"]


def test_an_empty_or_too_long_owner_is_refused(tmp_path: Path) -> None:
    for name in ("", "x" * 101):
        with pytest.raises(Invalid, match="is not a valid owner name"):
            create(tmp_path, owner=name)
    assert not (tmp_path / "table").exists()


def change_configuration(location: Path, **fields: Any) -> None:
    path = location / "table" / CONFIG
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("registry", "object"),
        ("owner", "another"),
        ("table", "00000000-0000-4000-8000-000000000000"),
        ("regions", None),
    ],
)
def test_a_configuration_that_the_base_contradicts_is_corrupt(tmp_path: Path, field: str, value: Any) -> None:
    table = create(tmp_path)
    one = create(tmp_path / "other", regions="bucket(id, 2)")
    spec = json.loads(Path(one.uri, CONFIG).read_text())["regions"]
    table.upsert([row(1)])

    change_configuration(tmp_path, **{field: spec if field == "regions" else value})

    with pytest.raises(Corrupt):
        lancelsm.open(table.uri)
    assert not Path(table.uri, "_lancelsm", "registry").exists()


def test_a_flush_refuses_a_base_that_contradicts_the_configuration(tmp_path: Path) -> None:
    table = create(tmp_path)
    table.upsert([row(1)])
    base = open_base(uri=table.uri)
    assert base.facts is not None
    write_facts(base, replace(base.facts, owner="another").metadata())

    with pytest.raises(Corrupt, match="the configuration has 'default', but the base has 'another'"):
        table.flush()


def test_a_base_of_a_newer_release_is_refused_and_the_error_says_what_to_install(tmp_path: Path) -> None:
    table = create(tmp_path)
    base = open_base(uri=table.uri)
    assert base.facts is not None
    write_facts(base, replace(base.facts, format=3).metadata())

    with pytest.raises(Invalid, match=r"format 3.*Install a newer lancelsm"):
        lancelsm.open(table.uri)


def test_a_region_of_new_values_is_created_by_its_first_write(tmp_path: Path) -> None:
    table = create(tmp_path, regions="identity(id)")
    assert table.list_regions() == []
    assert (rows_of(table), table.get([1]).num_rows, table.flush()) == ([], 0, [])

    table.upsert([row(1), row(2)])
    lancelsm.open(table.uri).upsert([row(2, "b"), row(3)])

    assert len(table.list_regions()) == 3
    assert rows_of(table) == [row(1), row(2, "b"), row(3)]
    assert table.get([2, 3, 4]).num_rows == 2


def test_all_spellings_of_a_location_have_one_canonical_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    assert {
        canonical(location) for location in ("a", "a/", f"{tmp_path}/a", tmp_path / "a", f"file://{tmp_path}/a/")
    } == {str(tmp_path / "a")}
    assert canonical("s3://bucket/a/") == "s3://bucket/a"


@pytest.mark.parametrize("location", ["/", "//", "file:///", "/tmp/.."])
def test_the_root_of_the_file_system_is_no_table(location):
    with pytest.raises(Invalid, match="root of the file system"):
        canonical(location)


def test_a_store_that_does_not_answer_is_unavailable_and_not_invalid(tmp_path: Path) -> None:
    create(tmp_path)

    with pytest.raises(Unavailable):
        open_table(tmp_path / "table", ports=faulty(FaultPlan.at(0, FAIL_BEFORE)))


def test_open_and_status_read_each_thing_once(tmp_path: Path) -> None:
    uri, plan = create(tmp_path).uri, FaultPlan()
    table = lancelsm.open.on(faulty(plan))(uri)
    base = ["_versions/", "_versions/18446744073709551613.manifest"]
    plan.calls.clear()

    lancelsm.open.on(faulty(plan))(uri)
    assert [call.key for call in plan.calls if call.port == "objects"] == ["_lancelsm/config.json", *base]

    opened = len(plan.calls)
    table.status()
    read = [call.key for call in plan.calls[opened:] if call.port == "objects" and "/staged/" not in call.key]
    assert read == base


SAME = pa.schema([("id", pa.int64()), ("v", pa.string())])


def test_a_table_that_exists_is_opened_if_that_is_ok_and_it_is_the_same(tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"primary_key": "id", "regions": "bucket(id, 2)", "exist_ok": True}
    created = lancelsm.create(tmp_path / "t", [{"id": 1, "v": "a"}], **arguments, settings={"flush_rows": 7})
    again = lancelsm.create(tmp_path / "t", [{"id": 2, "v": "b"}], **arguments)

    assert again.config == created.config
    assert again.scan().to_arrow().to_pylist() == [{"id": 1, "v": "a"}]
    assert lancelsm.create(tmp_path / "t", SAME, **arguments).config == created.config
    with pytest.raises(Invalid, match="a table already exists"):
        lancelsm.create(tmp_path / "t", SAME, primary_key="id")


@pytest.mark.parametrize(
    ("other", "problem"),
    [
        ({"data_or_schema": pa.schema([("id", pa.int64()), ("v", pa.int64())])}, "column 'v' is different"),
        ({"data_or_schema": pa.schema([("id", pa.int64())])}, "column 'v' is different"),
        ({"data_or_schema": pa.schema([*SAME, ("w", pa.int64())])}, "column 'w' is different"),
        ({"data_or_schema": pa.schema([("id", pa.int64()), pa.field("v", pa.string(), False)])}, "column 'v' is"),
        ({"data_or_schema": pa.schema([SAME.field("v"), SAME.field("id")])}, "its columns are in another order"),
        ({"primary_key": ["id", "v"]}, "column 'v' is different"),
        ({"regions": None}, r"its region spec is bucket\(id, 2\)"),
        ({"primary_key": "absent"}, "absent"),
    ],
)
def test_a_table_that_exists_is_refused_if_it_is_another_one(
    tmp_path: Path, other: dict[str, Any], problem: str
) -> None:
    wanted: dict[str, Any] = {"data_or_schema": SAME, "primary_key": "id", "regions": "bucket(id, 2)"}
    lancelsm.create(tmp_path / "t", **wanted)
    with pytest.raises(Invalid, match=problem):
        lancelsm.create(tmp_path / "t", **{**wanted, **other}, exist_ok=True)


EVENTS: dict[str, Any] = {"data_or_schema": pa.schema([*SAME, ("lsn", pa.int64())]), "primary_key": "id"}


def test_a_new_table_orders_its_change_events_at_once(tmp_path: Path) -> None:
    table = lancelsm.create(tmp_path / "t", **EVENTS, sequence_by="lsn")
    with pytest.raises(Invalid, match="takes no plain writes"):
        table.upsert([{"id": 1, "v": "a", "lsn": 5}])

    table.apply_changes([{"id": 1, "v": "b", "lsn": 5}])
    assert lancelsm.open(tmp_path / "t").apply_changes([{"id": 1, "v": "a", "lsn": 4}]).late == 1
    assert table.to_pylist() == [{"id": 1, "v": "b", "lsn": 5}]
    with pytest.raises(Invalid, match="are ordered by lsn"):
        table.apply_changes([], sequence_by="v")


def test_rows_that_a_table_is_created_with_have_sequences(tmp_path: Path) -> None:
    rows = [{"id": 1, "v": "base", "lsn": 5}]
    table = lancelsm.create(tmp_path / "t", rows, primary_key="id", sequence_by=["lsn"])

    assert table.apply_changes([{"id": 1, "v": "late", "lsn": 4}]).late == 1
    assert table.apply_changes([{"id": 1, "v": "new", "lsn": 6}]).written == 1
    assert table.to_pylist() == [{"id": 1, "v": "new", "lsn": 6}]


def test_a_wrong_order_of_events_creates_no_table(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="sequence_by names 'lns'"):
        lancelsm.create(tmp_path / "t", **EVENTS, sequence_by="lns")

    assert not (tmp_path / "t").exists()


def test_a_table_that_exists_is_opened_if_its_events_have_the_same_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lancelsm.create(tmp_path / "plain", **EVENTS)
    lancelsm.create(tmp_path / "ordered", **EVENTS, sequence_by="lsn")

    assert lancelsm.create(tmp_path / "ordered", **EVENTS, sequence_by="lsn", exist_ok=True).count() == 0
    assert lancelsm.create(tmp_path / "ordered", **EVENTS, exist_ok=True).config.sequence_by == ("lsn",)
    for name, order in (("plain", "nothing"), ("ordered", "lsn")):
        with pytest.raises(Invalid, match=f"whose change events are ordered by {order}"):
            lancelsm.create(tmp_path / name, **EVENTS, sequence_by="v", exist_ok=True)

    finish = configs.create

    def finish_twice(objects: ObjectStore, config: Config, *, uri: str) -> None:
        finish(objects, replace(config, sequence_by=()), uri=uri)
        finish(objects, config, uri=uri)

    monkeypatch.setattr(configs, "create", finish_twice)
    with pytest.raises(Invalid, match="whose change events are ordered by nothing"):
        lancelsm.create(tmp_path / "raced", **EVENTS, sequence_by="lsn", exist_ok=True)


def test_a_table_that_another_process_finishes_meanwhile_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish = configs.create

    def finish_twice(objects: ObjectStore, config: Config, *, uri: str) -> None:
        finish(objects, replace(config, settings={"flush_rows": "9"}), uri=uri)
        finish(objects, config, uri=uri)

    monkeypatch.setattr(configs, "create", finish_twice)
    made = lancelsm.create(tmp_path / "t", SAME, primary_key="id", exist_ok=True)
    assert made.config.settings == {"flush_rows": "9"}
