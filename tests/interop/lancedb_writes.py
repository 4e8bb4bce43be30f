"""Write to tables with the real LanceDB, and with Lance's own writer, as other tools would."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import lance
import lancedb
import pyarrow as pa

import lancelsm
from lancelsm.read.problems import ProblemKind
from lancelsm.table import Table

ROWS = [{"id": key, "v": 0} for key in range(10)]

Row = Mapping[str, Any]


def create(path: Path, *, regions: str | None = None, rows: Any = None, primary_key: Any = "id") -> Table:
    """Create a table that LanceDB can open as `orders`."""
    return lancelsm.create(path / "orders.lance", rows or ROWS, primary_key=primary_key, regions=regions)


def connected(table: Table) -> Any:
    """Open a table with LanceDB."""
    location = Path(table.uri)
    return lancedb.connect(location.parent).open_table(location.stem)


def lancedb_merges(table: Table, *batches: Iterable[Row], close: bool = True) -> Any:
    """Merge rows with LanceDB, row by row, since it takes only rows of one shard at once. It has shards of its own."""
    opened = connected(table)
    key = list(table.config.schema.primary_key)
    for number, row in enumerate(chain(*batches)):
        if number:
            opened.close_lsm_writers()  # it opens a writer of one shard only
        data = pa.Table.from_pylist([row], schema=opened.schema)
        opened.merge_insert(key).when_matched_update_all().when_not_matched_insert_all().execute(data)
    if close:
        opened.close_lsm_writers()
    return opened


def shard_writes(
    table: Table, shard: str, *batches: Iterable[Row], deleted: Iterable[Row] = (), close: bool = True
) -> Any:
    """Write rows, then deletes, to a shard with pylance's writer."""
    dataset = lance.dataset(table.uri)
    writer = dataset.mem_wal_writer(shard)
    for rows in batches:
        writer.put(pa.Table.from_pylist(list(rows), schema=dataset.schema))
    keys = list(deleted)
    if keys:
        names = table.config.schema.primary_key
        writer.delete(pa.Table.from_pylist(keys, schema=pa.schema([dataset.schema.field(name) for name in names])))
    if close:
        writer.close()
    return writer


def seen(table: Table) -> dict[Any, Any]:
    """The value of each key as a scan returns it; a get must agree, and no key may be there twice."""
    key = table.config.schema.primary_key
    rows = table.scan().to_arrow().to_pylist()
    found = {_key(row, key): row["v"] for row in rows}
    assert len(found) == len(rows), f"a key is there twice: {rows}"
    asked = pa.Table.from_pylist([{name: row[name] for name in key} for row in rows], schema=_keys(table))
    got = {_key(row, key): row["v"] for row in table.get(asked).to_pylist()} if rows else {}
    assert got == found, "get and scan agree"
    return found


def _keys(table: Table) -> pa.Schema:
    return pa.schema([field.remove_metadata() for field in table.config.schema.key])


def _key(row: Row, key: tuple[str, ...]) -> Any:
    return row[key[0]] if len(key) == 1 else tuple(row[name] for name in key)


def kinds(table: Table) -> list[ProblemKind]:
    return [problem.kind for problem in table.status().problems]


def change(table: Table, by: Callable[[lance.LanceDataset], object]) -> None:
    """Change the base with Lance itself."""
    by(lance.dataset(table.uri))


def base_keys(table: Table) -> list[Any]:
    """The keys in the base alone."""
    names = list(table.config.schema.primary_key)
    rows = lance.dataset(table.uri).to_table(columns=names).to_pylist()
    return sorted(_key(row, tuple(names)) for row in rows)
