"""S3 requests of append, flush, merge and get, counted by the server. Heads are objects in the bucket too.

The peer is pylance's own shard writer and readers, with other objects. With a registry in DynamoDB, a swap is one
request to DynamoDB instead of a get and a put of an object.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import lance
import pyarrow as pa
from lance.mem_wal import LsmPointLookupPlanner, LsmScanner, ShardSnapshot

import lancelsm
from benchmarks import tables
from benchmarks.figures import Figure
from benchmarks.s3 import serving
from lancelsm.record.schema import declare_primary_key

_Requests = Callable[[Callable[[], Any]], Counter[str]]
_SHARD = "5f0b2f3e-9a0a-4c4c-8f7e-000000000001"
_BASE, _COUNT, _APPENDS = 20_000, 500, 10
_KEYS = list(range(2, 22, 2))
_GET, _SCAN = "get of 10 keys, 1 generation", "scan, 1 generation"


def run(scale: float) -> Iterator[Figure]:  # noqa: ARG001 - counts do not depend on the scale
    with serving() as server:

        def requests(act: Callable[[], Any]) -> Counter[str]:
            before = Counter(server.requests)
            act()
            return Counter(server.requests) - before

        ours, theirs = _ours(server.options, requests), _pylance(server.options, server.objects, requests)
    for what, counted in ours.items():
        peer = theirs.get(what)
        how = _listed("ours", counted) + ("" if peer is None else "; " + _listed("pylance", peer))
        yield Figure(
            what=what,
            ours=counted.total(),
            unit="requests",
            peer=None if peer is None else peer.total(),
            peer_name="pylance",
            how=how,
            drawn=peer is not None,
        )


def _listed(name: str, counted: Counter[str]) -> str:
    return f"{name} " + ", ".join(f"{count:g} {method}" for method, count in sorted(counted.items()))


def _each(counted: Counter[str], times: int) -> Counter[str]:
    return Counter({method: count / times for method, count in counted.items()})  # type: ignore[arg-type]


def _ours(options: dict[str, str], requests: _Requests) -> dict[str, Counter[str]]:
    uri = "s3://bucket/ours"
    table = lancelsm.create(uri, tables.base_rows(_BASE), primary_key="id", storage_options=options)
    table.upsert(tables.changes(_BASE, _COUNT, seed=1))  # from now on the handle caches the head

    def append() -> None:
        for seed in range(_APPENDS):
            table.upsert(tables.changes(_BASE, _COUNT, seed=2 + seed))

    found = {"append": _each(requests(append), _APPENDS)}
    found["flush"] = requests(table.flush)
    found["open"] = requests(lambda: lancelsm.open(uri, storage_options=options))
    found[_GET] = requests(lambda: table.get(pa.array(_KEYS)))
    found[_SCAN] = requests(lambda: table.scan().to_arrow())
    found["merge"] = requests(lambda: table.merge(engine="inprocess"))
    return found


def _pylance(options: dict[str, str], objects: Mapping[str, bytes], requests: _Requests) -> dict[str, Counter[str]]:
    uri = "s3://bucket/peer"
    declared = declare_primary_key(tables.SCHEMA, ("id",))
    dataset = lance.write_dataset(tables.base_rows(_BASE).cast(declared), uri, schema=declared, storage_options=options)
    dataset.initialize_mem_wal()
    writer = dataset.mem_wal_writer(_SHARD)
    writer.put(tables.changes(_BASE, _COUNT, seed=1).cast(declared))

    def append() -> None:
        for seed in range(_APPENDS):
            writer.put(tables.changes(_BASE, _COUNT, seed=2 + seed).cast(declared))

    found = {"append": _each(requests(append), _APPENDS), "flush": requests(writer.close)}
    (name,) = {key.split("/")[3] for key in objects if key.startswith("peer/") and "_gen_1/" in key}
    snapshot = ShardSnapshot(_SHARD).with_current_generation(2).with_sstable(1, name)

    def lookups() -> None:
        planner = LsmPointLookupPlanner(lance.dataset(uri, storage_options=options), [snapshot])
        for key in _KEYS:
            planner.plan_lookup(pa.array([key])).to_table()

    def scan() -> None:
        LsmScanner.from_snapshots(lance.dataset(uri, storage_options=options), [snapshot]).to_batches()

    def merge() -> None:
        source = lance.dataset(f"{uri}/_mem_wal/{_SHARD}/{name}", storage_options=options)
        base = lance.dataset(uri, storage_options=options)
        upsert = base.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
        upsert.execute(source.scanner(columns=tables.SCHEMA.names).to_reader())

    found[_GET], found[_SCAN], found["merge"] = requests(lookups), requests(scan), requests(merge)
    return found
