"""Making a table in steps that a crash may end anywhere, and finding it again."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lancelsm
from lancelsm.admin.create import make_table
from lancelsm.common.layout import CONFIG
from lancelsm.dataset.adoption import write_facts
from lancelsm.dataset.base_table import open_base
from lancelsm.errors import Corrupt, Invalid, LsmError, Unavailable
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


def make(place: Path, plan: FaultPlan) -> None:
    make_table(place, LOADED, primary_key="id", regions="bucket(id, 2)", ports=faulty(plan))


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a crash right after the base leaves: six calls look whether the place is free."""
    place = tmp_path_factory.mktemp("begun") / "table"
    with pytest.raises(Crash):
        make(place, FaultPlan.at(6, CRASH_BEFORE))
    assert open_base(uri=str(place)).rows == 2
    return place


@pytest.fixture(scope="module")
def calls(begun: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Call]:
    """Those of an undisturbed run that finishes it."""
    place = tmp_path_factory.mktemp("calls") / "table"
    shutil.copytree(begun, place)
    plan = FaultPlan()
    make(place, plan)
    return plan.calls


def is_whole(place: Path) -> bool:
    table = lancelsm.open(place)
    assert len(table.regions()) == 2
    table.upsert([row(key, "b") for key in range(2, 8)])
    return rows_of(table) == [row(1), *(row(key, "b") for key in range(2, 8))]


@pytest.mark.parametrize("fault", [CRASH_BEFORE, CRASH_AFTER, DENY, FAIL_BEFORE, FAIL_AFTER, late(2), late(1_000_000)])
def test_making_a_table_that_was_interrupted_at_any_call_is_finished_by_the_same_call(
    tmp_path: Path, begun: Path, calls: list[Call], fault: Fault
) -> None:
    assert [call.key for call in calls[-1:]] == [CONFIG], "the configuration is last"
    for call in calls:
        print(call)
        place = tmp_path / f"{call.index}"
        shutil.copytree(begun, place)
        plan = FaultPlan.at(call.index, fault)
        try:
            make(place, plan)
            done = True
        except (Crash, LsmError):
            done = False
        plan.land()
        if not (place / CONFIG).exists():
            assert not done
            with pytest.raises(Invalid, match="no table is there"):
                open_table(place)
            make(place, FaultPlan())
        else:
            with pytest.raises(Invalid, match="exists there already"):
                make(place, FaultPlan())
        assert is_whole(place)
        shutil.rmtree(place)


def test_a_crash_before_the_base_leaves_nothing(tmp_path: Path) -> None:
    place = tmp_path / "table"
    with pytest.raises(Crash):
        make(place, FaultPlan.at(0, CRASH_AFTER))
    assert not place.exists()

    make(place, FaultPlan())
    assert is_whole(place)


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
def test_another_table_does_not_finish_one_that_was_begun(tmp_path: Path, begun: Path, other: dict[str, Any]) -> None:
    shutil.copytree(begun, tmp_path / "table")

    with pytest.raises(Invalid, match=r"another .* was begun"):
        create(tmp_path, **{"columns": COLUMNS, "regions": "bucket(id, 2)", **other})


def test_an_interrupted_call_is_finished_with_the_identity_that_it_began_with(tmp_path: Path, begun: Path) -> None:
    facts = open_base(uri=str(begun)).facts
    assert facts is not None
    shutil.copytree(begun, tmp_path / "table")

    table = create(tmp_path, LOADED, regions="bucket(id, 2)")

    assert table.config.table == facts.table
    assert open_base(uri=table.uri).facts == facts


def test_a_second_maker_with_other_settings_is_told_that_a_table_exists(tmp_path: Path) -> None:
    """Two make it at once: the one whose configuration comes second has lost."""
    place = tmp_path / "table"

    def other_first(kind: str, **options: Any) -> Any:
        if not (place / CONFIG).exists():
            create(tmp_path, settings={"flush_rows": 7})
        return open_registry(kind, **options)

    with pytest.raises(Invalid, match="exists"):
        make_table(place, COLUMNS, primary_key="id", settings={"flush_rows": 8}, ports=Ports(registry=other_first))

    assert lancelsm.open(place).settings.flush_rows == 7


def test_a_registry_is_named_in_the_base_and_in_the_configuration(tmp_path: Path) -> None:
    table = create(tmp_path, [row(1)], registry="object")
    table.upsert([row(2)])

    facts = open_base(uri=table.uri).facts
    assert facts is not None
    assert (facts.registry, table.config.registry) == ("object", "object")
    assert not (tmp_path / "table" / "_lancelsm" / "registry.sqlite").exists()
    assert rows_of(lancelsm.open(table.uri)) == [row(1), row(2)]


def test_a_registry_that_can_t_serve_the_place_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="no registry 'nobody'"):
        create(tmp_path, registry="nobody")
    assert not (tmp_path / "table").exists()


def test_an_owner_is_what_ordinary_writers_share(tmp_path: Path) -> None:
    table = create(tmp_path, owner="stack")
    table.upsert([row(1)])
    lancelsm.open(table.uri).upsert([row(2)])

    assert [region.owner for region in table.status().regions] == ["stack"]


def test_an_owner_has_a_name(tmp_path: Path) -> None:
    for name in ("", "x" * 101):
        with pytest.raises(Invalid, match="is no owner"):
            create(tmp_path, owner=name)
    assert not (tmp_path / "table").exists()


def changed_configuration(place: Path, **fields: Any) -> None:
    path = place / "table" / CONFIG
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

    changed_configuration(tmp_path, **{field: spec if field == "regions" else value})

    with pytest.raises(Corrupt):
        lancelsm.open(table.uri)
    assert not Path(table.uri, "_lancelsm", "registry").exists()


def test_a_base_that_no_longer_says_what_the_configuration_says_is_not_flushed_to(tmp_path: Path) -> None:
    table = create(tmp_path)
    table.upsert([row(1)])
    base = open_base(uri=table.uri)
    assert base.facts is not None
    write_facts(base, replace(base.facts, owner="another").metadata())

    with pytest.raises(Corrupt, match="the configuration says 'default', the base 'another'"):
        table.flush()


def test_a_base_of_a_newer_release_is_refused_with_what_to_install(tmp_path: Path) -> None:
    table = create(tmp_path)
    base = open_base(uri=table.uri)
    assert base.facts is not None
    write_facts(base, replace(base.facts, format=2).metadata())

    with pytest.raises(Invalid, match=r"format 2.*Install a newer lancelsm"):
        lancelsm.open(table.uri)


def test_regions_of_unknown_values_are_made_when_they_are_first_written(tmp_path: Path) -> None:
    table = create(tmp_path, regions="identity(id)")
    assert table.regions() == []
    assert (rows_of(table), table.get([1]).num_rows, table.flush()) == ([], 0, [])

    table.upsert([row(1), row(2)])
    lancelsm.open(table.uri).upsert([row(2, "b"), row(3)])

    assert len(table.regions()) == 3
    assert rows_of(table) == [row(1), row(2, "b"), row(3)]
    assert table.get([2, 3, 4]).num_rows == 2


def test_a_place_has_one_spelling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    assert {canonical(place) for place in ("a", "a/", f"{tmp_path}/a", tmp_path / "a", f"file://{tmp_path}/a/")} == {
        str(tmp_path / "a")
    }
    assert canonical("s3://bucket/a/") == "s3://bucket/a"


def test_a_store_that_does_not_answer_makes_nothing_invalid(tmp_path: Path) -> None:
    create(tmp_path)

    with pytest.raises(Unavailable):
        open_table(tmp_path / "table", ports=faulty(FaultPlan.at(0, FAIL_BEFORE)))
