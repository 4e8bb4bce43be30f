"""The documents that the planner, the job and the recorder of one merge exchange."""

from __future__ import annotations

from pathlib import Path

import pytest

from lancelsm.compaction.maintenance import merge_table
from lancelsm.errors import Corrupt, Invalid
from lancelsm.region.handle import TableHandle, open_table
from lancelsm.stack.merge_request import (
    MergeRequest,
    keep_request,
    keep_result,
    plan_request,
    read_request,
    read_result,
)
from lancelsm.stack.steps import execution_prefix
from lancelsm.table import Table
from tests.unit.tables import create, row


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return create(tmp_path, regions="bucket(id, 2)")


def handle(table: Table, **settings: int) -> TableHandle:
    return open_table(table.uri, settings=settings)


def flush_rows(table: Table, *keys: int) -> None:
    table.upsert([row(key) for key in keys])
    table.flush()


def test_without_pending_generations_the_engine_is_none_whatever_was_requested(table: Table) -> None:
    table.upsert([row(1)])

    for engine in ("auto", "inprocess", "spark"):
        request = plan_request(handle(table), execution="one", engine=engine)  # type: ignore[arg-type]
        assert (request.engine, request.regions) == ("none", ())


def test_the_sizes_of_pending_generations_and_base_decide_the_engine(table: Table) -> None:
    flush_rows(table, *range(8))
    table.merge(engine="inprocess")
    flush_rows(table, *range(8))
    flush_rows(table, *range(8))

    small = plan_request(handle(table), execution="one")
    large_delta = plan_request(handle(table, merge_inprocess_delta_rows=16), execution="one")
    heavy_delta = plan_request(handle(table, merge_inprocess_delta_bytes=64), execution="one")
    large_base = plan_request(handle(table, merge_inprocess_base_rows=8), execution="one")

    assert {(span.after, span.through) for span in small.regions} == {(1, 3)}
    assert len(small.regions) == 2
    large = (large_delta, heavy_delta, large_base)
    assert [request.engine for request in (small, *large)] == ["inprocess", "spark", "spark", "spark"]
    assert plan_request(handle(table), execution="one", engine="spark").engine == "spark"


def test_an_unknown_engine_is_refused(table: Table) -> None:
    with pytest.raises(Invalid, match="unknown engine 'rocket'"):
        plan_request(handle(table), execution="one", engine="rocket")  # type: ignore[arg-type]


def test_the_token_identifies_the_pending_work_and_the_execution(table: Table) -> None:
    flush_rows(table, *range(8))
    first = plan_request(handle(table), execution="one")

    assert plan_request(handle(table), execution="one") == first
    assert plan_request(handle(table), execution="two").token != first.token
    flush_rows(table, *range(8))
    assert plan_request(handle(table), execution="one").token != first.token
    assert len(f"{first.token}-99") <= 64
    assert first.token.isalnum()


def test_the_first_plan_of_an_execution_is_kept(table: Table, tmp_path: Path) -> None:
    uri = f"{execution_prefix(str(tmp_path / 'work'), 'one')}/plan.json"
    flush_rows(table, *range(8))
    first = keep_request(plan_request(handle(table), execution="one"), uri)
    flush_rows(table, *range(8))

    again = keep_request(plan_request(handle(table), execution="one"), uri)

    assert first == again == read_request(uri)
    assert MergeRequest.from_json(first.to_json()) == first


def test_an_execution_that_planned_another_table_is_refused(table: Table, tmp_path: Path) -> None:
    uri = f"{execution_prefix(str(tmp_path / 'work'), 'one')}/plan.json"
    keep_request(plan_request(handle(table), execution="one"), uri)
    other = create(tmp_path / "other")

    with pytest.raises(Invalid, match="another table"):
        keep_request(plan_request(handle(other), execution="one"), uri)


def test_the_result_of_a_run_that_merged_is_not_replaced_by_a_later_run_without_work(
    table: Table, tmp_path: Path
) -> None:
    uri = f"{execution_prefix(str(tmp_path / 'work'), 'one')}/result.json"
    flush_rows(table, *range(8))

    first = keep_result(merge_table(handle(table), engine="inprocess"), uri)
    again = keep_result(merge_table(handle(table), engine="inprocess"), uri)

    assert first["rows_upserted"] == 8
    assert first == again == read_result(uri)


@pytest.mark.parametrize("name", ["", "a/b", "..", ".a", "a b", "a" * 81, "ü"])
def test_an_execution_name_that_does_not_fit_into_a_key_is_refused(name: str) -> None:
    with pytest.raises(Invalid) as raised:
        execution_prefix("s3://bucket/work", name)
    assert raised.value.where == {"field": "execution"}


def test_missing_unreadable_and_newer_documents_raise_different_errors(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="plan of the merge was not found"):
        read_request(str(tmp_path / "plan.json"))
    with pytest.raises(Invalid, match="result of the merge was not found"):
        read_result(str(tmp_path / "result.json"))
    for body in (b"{", b"[]", b"{}", b'{"format": 1}', b'{"format": 1, "regions": [{"a": 1}]}'):
        with pytest.raises(Corrupt, match="unreadable"):
            MergeRequest.from_json(body)
    with pytest.raises(Invalid, match="format 2"):
        MergeRequest.from_json(b'{"format": 2}')
