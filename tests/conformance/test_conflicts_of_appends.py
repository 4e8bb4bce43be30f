"""An append retries a 409 of a conditional put but not a 412, and trusts neither: it reads the object.

Clients have had both bugs: arrow-rs-object-store 852, opendal 6741, slatedb 766, chroma 4888.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lancelsm.common.clock import SeededIds
from lancelsm.common.layout import Epoch, Position, wal_entry
from lancelsm.objects.cloud import CloudStore
from lancelsm.region.catalog import Region, TableContext
from lancelsm.wal.append import append
from lancelsm.wal.claim import create_region
from lancelsm.wal.entry import decode, encode
from tests.conformance.ministack import options
from tests.conformance.stub import BUCKET, Stub, serving
from tests.simulation.environment import OWNER, TABLE, VALUES, a_nonce, numbers_in, row
from tests.simulation.faults import FakeClock, MemoryRegistry

FIRST = Position(1)


@pytest.fixture
def stub() -> Iterator[Stub]:
    with serving() as stub:
        yield stub


@pytest.fixture
def region(stub: Stub) -> Region:
    clock, ids = FakeClock(), SeededIds(1)
    objects = CloudStore(f"s3://{BUCKET}/t", options(stub.endpoint), clock=clock, ids=ids)
    context = TableContext(
        uri=f"s3://{BUCKET}/t",
        table=TABLE,
        objects=objects,
        registry=MemoryRegistry(),
        clock=clock,
        ids=ids,
        parallel=1,
    )
    return create_region(context, spec_id=1, values=VALUES, owner=OWNER)


def key_of(region: Region, position: Position) -> str:
    return f"t/{wal_entry(region.id, position)}"


def logged(stub: Stub, region: Region) -> list[list[int]]:
    """Return the rows of each committed entry."""
    positions = map(Position, range(1, region.head().next_position))
    return [numbers_in(decode(stub.objects[key_of(region, p)], position=p, key="")) for p in positions]


def test_arrow_rs_object_store_852_after_a_409_the_entry_is_put_again(stub: Stub, region: Region) -> None:
    stub.script["PUT", key_of(region, FIRST)] = [409]

    assert append(region, row(1), owner=OWNER).summary.position == FIRST
    assert stub.count("PUT", key_of(region, FIRST)) == 2
    assert logged(stub, region) == [[1]]


def test_opendal_6741_after_a_412_the_existing_entry_is_committed_first(stub: Stub, region: Region) -> None:
    sibling = encode(row(9), position=FIRST, epoch=Epoch(1), nonce=a_nonce(9)).body
    stub.objects[key_of(region, FIRST)] = sibling

    assert append(region, row(1), owner=OWNER).summary.position == 2
    assert stub.count("PUT", key_of(region, FIRST)) == 1
    assert logged(stub, region) == [[9], [1]]


@pytest.mark.parametrize("event", ["applied 500", "applied drop"])
def test_slatedb_766_a_412_after_a_lost_reply_is_recognised_as_the_own_entry(
    event: str, stub: Stub, region: Region
) -> None:
    stub.script["PUT", key_of(region, FIRST)] = [event]

    assert append(region, row(1), owner=OWNER).summary.position == FIRST
    assert logged(stub, region) == [[1]]
