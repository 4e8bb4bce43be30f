"""Merge one generation into the base in this process, beside pylance's `merge_insert` and the merge of delta-rs.

At scale 1 it merges 500,000 rows into 5 million; four of five replace a row. No base has an index on its key. The peers
read the rows from a separate dataset, or from memory; ours reads them from the generation.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import lance
from deltalake import DeltaTable, write_deltalake

from benchmarks import tables
from benchmarks.figures import Act, Figure, Used, attempt, used


def run(scale: float) -> Iterator[Figure]:
    for kind, share in (("int64", 1.0), ("text", 0.2), ("composite", 0.2)):
        with tempfile.TemporaryDirectory() as directory:
            yield from _merged(Path(directory), kind, int(5_000_000 * scale * share), int(500_000 * scale * share))


def _merged(path: Path, kind: str, base: int, count: int) -> Iterator[Figure]:
    key = list(tables.KEYS[kind])
    table = tables.with_generations(path / "table", base=base, count=count, generations=1, kind=kind)
    peer = tables.plain_copy(table, path / "peer")
    rows = tables.keyed(tables.changes(base, count, seed=100), kind)
    source = lance.write_dataset(rows, str(path / "source"))
    write_deltalake(str(path / "delta"), tables.keyed(tables.base_rows(base), kind))
    delta = DeltaTable(str(path / "delta"))
    condition = " and ".join(f"t.{name} = s.{name}" for name in key)

    def merge_insert() -> None:
        merge = peer.merge_insert(key).when_matched_update_all().when_not_matched_insert_all()
        merge.execute(source.scanner().to_reader())

    def delta_merge() -> None:
        merge = delta.merge(rows, condition, source_alias="s", target_alias="t")
        merge.when_matched_update_all().when_not_matched_insert_all().execute()

    theirs = {"pylance merge_insert": _timed(merge_insert), "delta-rs merge": _timed(delta_merge)}
    with used() as ours:
        table.merge(engine="inprocess")
    assert table.count() == peer.count_rows()
    what = f"merge of {count:,} rows into {base:,}, {kind} key"
    for name, (load, failure) in theirs.items():
        peers = (load.wall, load.cpu) if not failure else (None, None)
        yield Figure(what=what, ours=ours.wall, unit="s", peer=peers[0], peer_name=name, how=failure, drawn=True)
        yield Figure(what=f"{what}, CPU", ours=ours.cpu, unit="s", peer=peers[1], peer_name=name, how=failure)


def _timed(act: Act) -> tuple[Used, str]:
    loads = []

    def timed() -> float:
        with used() as load:
            act()
        loads.append(load)
        return load.wall

    failure = attempt(timed).failure
    return (loads[0] if loads else Used()), failure
