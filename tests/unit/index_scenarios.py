"""Orders of events in which an index is created while a region is flushed or created. The promise is kept in each."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

import lancelsm
from lancelsm.common.layout import region_id
from lancelsm.compaction import indexes as maintained
from lancelsm.compaction import maintenance
from lancelsm.errors import Contended
from lancelsm.region.catalog import Region
from lancelsm.routing.route import route
from lancelsm.table import Table
from lancelsm.wal.claim import add_to_catalog
from tests.unit.index_tables import COLUMNS, check_promise, create, promised, rows


def _index(table: Table) -> None:
    lancelsm.open(table.uri).create_index("vec", kind="IVF_FLAT", num_partitions=1)


def _check(table: Table) -> None:
    assert "vec_idx" in promised(table)
    check_promise(table)


def index_is_created_during_a_flush(path: Path) -> None:
    """The index is created after the generation was written without it, and before its commit."""
    table = create(path)
    table.upsert(rows(range(5), version=1))
    real, left = maintenance.write_generation, [1]

    def slow(**arguments: Any) -> Any:
        made = real(**arguments)
        if left.pop() if left else False:
            _index(table)
        return made

    with mock.patch.object(maintenance, "write_generation", slow):
        table.flush()

    _check(table)


def region_is_created_after_the_index(path: Path) -> None:
    """While a flush lists the regions, the index is created, then a region."""
    table = create(path, regions="identity(id)")
    real = maintenance.regions

    def listed(context: Any) -> list[Region]:
        _index(table)
        table.upsert(rows([3]))
        return real(context)

    with mock.patch.object(maintenance, "regions", listed):
        table.flush()

    _check(table)


def region_gets_its_head_after_the_index(path: Path) -> None:
    """A region is in the catalog without a head. A flush lists it, then the index is created, then the head."""
    table = create(path, regions="identity(id)")
    spec = table.config.regions
    assert spec is not None
    (part,) = route(pa.Table.from_pylist(rows([3]), schema=COLUMNS).cast(table.config.schema.columns), spec)
    context = table._handle.context
    identity = region_id(table=context.table, spec_id=spec.spec_id, values=part.values)
    unfinished = Region(context=context, id=identity, spec_id=spec.spec_id, values=part.values)
    add_to_catalog(unfinished, budget=context.budget())
    real, left = maintenance.writing, [1]

    def writing(*arguments: Any) -> Any:
        write = real(*arguments)
        if left.pop() if left else False:
            _index(table)
            table.upsert(rows([3]))
        return write

    with mock.patch.object(maintenance, "writing", writing):
        table.flush()

    _check(table)


def index_is_dropped_before_a_stalled_maintainer_promises_it(path: Path) -> None:
    """The lease of a maintainer has expired. Another process drops the index and flushes without it."""
    table = create(path)
    real, left = maintained._index_generations, [1]

    def stalled(*arguments: Any) -> Any:
        found = real(*arguments)
        if left.pop() if left else False:
            other = lancelsm.open(table.uri)
            other.drop_index("vec_idx")
            other.upsert(rows(range(5), version=1))
            other.flush()
        return found

    no_lease = mock.patch.object(maintained, "lease", return_value=nullcontext())
    refused = pytest.raises(Contended, match="dropped meanwhile")
    with no_lease, mock.patch.object(maintained, "_index_generations", stalled), refused:
        table.create_index("vec", kind="IVF_FLAT", num_partitions=1)

    assert promised(table) == set()
    check_promise(table)
