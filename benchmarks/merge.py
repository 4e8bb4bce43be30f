"""Merge of one generation into the base in this process, compared with pylance's `merge_insert` of the same rows.

At scale 1 it merges 500,000 rows into 5 million; four of five replace a row. Neither base has an index on its key.
pylance reads the rows from a separate dataset, lancelsm from the generation.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import lance

from benchmarks import tables
from benchmarks.figures import Figure, used


def run(scale: float) -> Iterator[Figure]:
    base, count = int(5_000_000 * scale), int(500_000 * scale)
    with tempfile.TemporaryDirectory() as directory:
        here = Path(directory)
        table = tables.with_generations(here / "table", base=base, count=count, generations=1)
        peer = tables.plain_copy(table, here / "peer")
        source = lance.write_dataset(tables.changes(base, count, seed=100), str(here / "source"))
        with used() as theirs:
            merge = peer.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
            merge.execute(source.scanner().to_reader())
        with used() as ours:
            table.merge(engine="inprocess")
        assert table.scan(columns=["id"]).to_arrow().num_rows == peer.count_rows()
    what = f"merge of {count:,} rows into {base:,}"
    how = "pylance merge_insert"
    yield Figure(what=what, ours=ours.wall, unit="s", peer=theirs.wall, how=how)
    yield Figure(what=f"{what}, CPU", ours=ours.cpu, unit="s", peer=theirs.cpu, how=how)
