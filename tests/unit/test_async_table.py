"""Tables and writers in asyncio: the event loop goes on, and a context gives back what it holds."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path
from typing import Any

import pytest

import lancelsm
from lancelsm.errors import Invalid
from lancelsm.table import Table
from tests.unit.tables import ORDERS, orders


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return orders(tmp_path)


def test_a_writer_works_in_async_code(table: Table) -> None:
    async def write() -> int:
        async with table.writer() as writer:
            done = await asyncio.gather(*(writer.submit_async({**ORDERS[0], "id": number}) for number in range(10, 20)))
        with pytest.raises(Invalid, match="closed"):
            writer.submit(ORDERS[0])
        return sum(one.rows for one in done)

    assert asyncio.run(write()) == 10
    assert table.count_rows() == 14


def test_a_table_works_in_async_code(table: Table) -> None:
    async def use() -> list[Any]:
        async with await lancelsm.open_async(table.uri) as opened:
            await opened.upsert({**ORDERS[0], "id": 9})
            await opened.delete([4])
            counts = await asyncio.gather(opened.count_rows("id > 2"), opened.count(where="id = 4"))
            batches = [batch async for batch in await opened.scan(columns=["id"], order_by="id desc", limit=3)]
            (row,) = (await opened.get([9])).to_pylist()
            rows = await (await opened.scan(where="id = 1")).to_arrow()
            return [*counts, [one for batch in batches for one in batch["id"].to_pylist()], row["id"], rows.num_rows]

    assert asyncio.run(use()) == [2, 0, [9, 3, 2], 9, 1]


def test_open_async_has_the_arguments_of_open() -> None:
    assert (
        inspect.signature(lancelsm.open_async).parameters.keys() == inspect.signature(lancelsm.open).parameters.keys()
    )


def test_the_event_loop_goes_on_while_a_call_runs(table: Table) -> None:
    ticks: list[int] = []

    async def tick() -> None:
        while True:
            ticks.append(1)
            await asyncio.sleep(0)

    async def use() -> int:
        ticking = asyncio.create_task(tick())
        counted = await lancelsm.AsyncTable(table).count()
        ticking.cancel()
        return counted

    assert asyncio.run(use()) == 4
    assert len(ticks) > 2  # of a call in the loop itself: 1


def test_a_version_that_is_open_in_async_code_is_released(table: Table) -> None:
    async def use() -> lancelsm.AsyncTable:
        async with await lancelsm.AsyncTable(table).at(1) as opened:
            assert await opened.count_rows() == 2
        return opened

    opened = asyncio.run(use())
    with pytest.raises(Invalid):
        opened.table.count()


def test_an_error_of_a_write_ends_the_async_context(table: Table) -> None:
    async def write() -> None:
        async with table.writer() as writer:
            table.seal(table.list_regions()[0])
            writer.submit({**ORDERS[0], "total": 1.0})

    with pytest.raises(Invalid, match="sealed"):
        asyncio.run(write())
