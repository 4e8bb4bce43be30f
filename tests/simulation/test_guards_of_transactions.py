"""Each guard of transactions and conditional writes is needed: without it, its scenario fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lancelsm
from lancelsm.common.setsum import Setsum
from lancelsm.errors import Contended, Invalid
from lancelsm.read.transact.read_token import encode_token, point_of
from tests.simulation.marks import without
from tests.simulation.removal import with_and_without


def counters(path: Path) -> lancelsm.Table:
    return lancelsm.create(path / "table", [{"id": 1, "n": 0}, {"id": 2, "n": 0}], primary_key="id")


def faster_writer(path: Path) -> None:
    """Another process increments the row between the read and the append of a transaction."""
    table = counters(path)
    other = lancelsm.open(table.uri)
    rivals = [lambda: other.upsert([{"id": 1, "n": 10}])]

    def fn(current: pa.Table) -> Any:
        if rivals:
            rivals.pop()()
        return [{"id": 1, "n": current["n"][0].as_py() + 1}]

    table.transact([1], fn)
    assert table.get([1])["n"].to_pylist() == [11]


def row_that_was_not_read(path: Path) -> None:
    """The function of a transaction returns a row of another key, which would replace a row that it has not seen."""
    table = counters(path)
    with pytest.raises(Invalid):
        table.transact([1], lambda current: [{"id": 2, "n": 5}, {"id": 1, "n": 5}])
    assert table.get([1])["n"].to_pylist() == [0]


def stale_token(path: Path) -> None:
    """A row is written between a read and the write that depends on it."""
    table = counters(path)
    token = table.get([1], with_token=True).token
    table.upsert([{"id": 1, "n": 5}])
    with pytest.raises(Contended):
        table.upsert([{"id": 1, "n": 1}], if_unchanged=token)


def token_of_another_log(path: Path) -> None:
    """The log was restored from a copy, so the same position has another entry."""
    table = counters(path)
    (region,) = table.list_regions()
    position, _ = point_of(region.head())
    token = encode_token(table.config.table, {region.id: (position, Setsum.of_item(b"other"))})
    with pytest.raises(Contended):
        table.upsert([{"id": 1, "n": 1}], if_unchanged=token)


def token_of_one_region(path: Path) -> None:
    """A write has rows of two regions, and its token is of a read of one of them."""
    rows = [{"id": key, "n": 0} for key in range(4)]
    table = lancelsm.create(path / "table", rows, primary_key="id", regions="bucket(id, 2)")
    token = table.get([0], with_token=True).token
    with pytest.raises((Invalid, KeyError)):
        table.upsert([{**row, "n": 1} for row in rows], if_unchanged=token)
    assert set(table.scan().to_arrow()["n"].to_pylist()) == {0}


test_scenarios_pass, test_scenarios_fail_without_their_guard = with_and_without(
    {
        "the rows of a transaction follow its head": (
            [without("rows of a transaction follow its head")],
            faster_writer,
        ),
        "a transaction writes only keys that it read": (
            [without("transaction writes only keys that it read")],
            row_that_was_not_read,
        ),
        "a row that changed since its token is not replaced": (
            [without("row that changed since its token is not replaced")],
            stale_token,
        ),
        "a token is used with its own log": ([without("token is of this log")], token_of_another_log),
        "a token that lacks a region writes to none": (
            [without("token that lacks a region writes to none")],
            token_of_one_region,
        ),
    },
    own=(faster_writer, row_that_was_not_read, stale_token, token_of_another_log, token_of_one_region),
)
