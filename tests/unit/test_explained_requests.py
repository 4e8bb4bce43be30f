"""`Table.explain` counts every request that a read sends to an object store, and every byte of an object."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

import lancelsm
from lancelsm.dataset import search_reads
from lancelsm.table import Table
from tests.conformance.ministack import options
from tests.conformance.stub import BUCKET, Stub, serving
from tests.unit.index_tables import COLUMNS, rows, vector

URI = f"s3://{BUCKET}/t"
ROWS = 4_500  # the key index of a generation of these is longer than what Lance reads of its end


@pytest.fixture(scope="module")
def store() -> Iterator[Stub]:
    """A store with a table: rows in the base, in two generations and in the log; two regions; two indexes."""
    with serving() as stub:
        stub.page = 1000
        data = pa.Table.from_pylist(rows(range(300)), schema=COLUMNS)
        table = lancelsm.create(
            URI,
            data,
            primary_key="id",
            regions="bucket(id, 2)",
            registry="object",
            storage_options=options(stub.endpoint),
            indexes={"vec": {"kind": "IVF_FLAT", "num_partitions": 1}, "text": "INVERTED"},
        )
        many = {
            "id": range(ROWS),
            "vec": [vector(n % 9) for n in range(ROWS)],
            "text": ["red amber", "blue"] * (ROWS // 2),
        }
        table.upsert(pa.table(many, schema=COLUMNS))
        table.flush()
        table.upsert(rows(range(20, 25)))
        table.flush()
        table.upsert(rows(range(3)))
        yield stub


def is_counted(stub: Stub, read: Callable[[Table], Any], **arguments: Any) -> list[int]:
    """Compare a read with the explanation of the same read, of a table that was just opened and of a held one."""
    held, explained = (lancelsm.open(URI, storage_options=options(stub.endpoint)) for _ in range(2))
    totals = []
    for _ in range(2):
        search_reads._LENGTHS.clear()
        stub.requests.clear()
        stub.sent = 0
        read(held)
        sent = len(stub.requests), stub.sent
        search_reads._LENGTHS.clear()
        found = explained.explain(**arguments).requests
        assert (sum(one.count for one in found), sum(one.bytes for one in found)) == sent, (found, stub.requests)
        totals.append(sent[0])
    return totals


@pytest.mark.parametrize(
    ("read", "arguments"),
    [
        (lambda table: table.get([1, 22, 299, 4_000]), {"keys": [1, 22, 299, 4_000]}),
        (lambda table: table.scan().to_arrow(), {}),
        (lambda table: table.scan(where="id = 22").to_arrow(), {"where": "id = 22"}),
        (lambda table: table.count(), {"count": True}),
        (lambda table: table.search(vector(3), k=3).to_arrow(), {"vector": vector(3), "k": 3}),
        (lambda table: table.search("red amber", k=3).to_arrow(), {"text": "red amber", "k": 3}),
    ],
    ids=["get", "scan", "where", "count", "vector", "text"],
)
@pytest.mark.rest
def test_the_requests_and_bytes_are_those_that_the_store_sees(
    store: Stub, read: Callable[[Table], Any], arguments: dict[str, Any]
) -> None:
    first, again = is_counted(store, read, **arguments)

    assert first > again  # a held table reads less, and the explanation knows
