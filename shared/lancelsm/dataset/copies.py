"""Copy a base: as a clone that shares its files, or as a plain dataset of rows for a backup."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import lance
import pyarrow as pa

from lancelsm.dataset.base_manifest import MEM_WAL_INDEX
from lancelsm.dataset.base_rows import Base, Preempted, commit
from lancelsm.dataset.base_table import (
    FENCE,
    MERGED,
    BaseFacts,
    BaseTable,
    Sharding,
    StorageOptions,
    ensure_mem_wal,
    find_base,
    first_version,
    open_base,
    open_dataset,
)
from lancelsm.dataset.deleted_keys import copy_deletes
from lancelsm.dataset.durable import make_durable
from lancelsm.dataset.native import FILE_ROWS, Carried, native_errors, read_errors
from lancelsm.dataset.scan_options import scan_options, scanned
from lancelsm.dataset.statement import NamedFile, StatedFile, Stating, files_of, usable_statement
from lancelsm.errors import Contended, Invalid
from lancelsm.objects.open import open_store
from lancelsm.record.casts import as_schema


def share_base(
    *,
    source: BaseTable,
    to: str,
    facts: BaseFacts,
    sharding: Sharding | None,
    storage_options: StorageOptions = None,
) -> BaseTable:
    """Create the base of another table from one version of `source`, by reference: the files are not copied.

    Lance stores the location of the source in the new dataset; writes to it add files at its own location only. The
    clean-up of the source does not know the clone, so the shared version must be pinned. Counters, fence and markers
    are not copied.

    Raises:
        Invalid: another dataset exists at this location.
        Contended: another process is creating the clone.
        Unavailable: a store did not answer. Retry: steps that are done are recognised.
    """
    base = find_base(uri=to, storage_options=storage_options)
    if base is None:
        with first_version("the base can't be cloned", at=to, table=source.uri):
            source.dataset.shallow_clone(
                to, source.version, storage_options=dict(storage_options) if storage_options else None
            )
        base = open_base(uri=to, storage_options=storage_options)
    if base.facts is None or source.facts is None or base.facts.table not in (source.facts.table, facts.table):
        raise Invalid("another dataset exists at this location", remedy="Choose another location", table=to)
    if base.facts.table != facts.table:
        with native_errors("the clone's MemWAL index can't be removed", table=to):
            # Open the version that was checked: in a newer one another call may have finished the clone.
            dataset = open_dataset(uri=to, version=base.version, storage_options=storage_options)
            if dataset.mem_wal_index_details() is not None:
                dataset.drop_index(MEM_WAL_INDEX)
        base = open_base(uri=to, storage_options=storage_options)
    if base.facts is None or base.facts.table != facts.table:
        store, origin = open_store(to, storage_options), open_store(source.uri, source.storage_options)
        metadata = copy_deletes(source.metadata, origin, base, store)  # guard: clone keeps merged deletes
        own = {name: text for name, text in metadata.items() if not name.startswith(MERGED) and name != FENCE}
        outcome = commit(
            Base.of(base),
            changed={},
            new=(),
            metadata={**own, **facts.metadata()},
            properties={},
            stating=Stating(objects=store, known=_stated_in(source, files_of(base))),
        )
        if isinstance(outcome, Preempted):
            raise Contended("another process committed to the clone first", remedy="Clone it again", table=to)
    ensure_mem_wal(uri=to, sharding=sharding, storage_options=storage_options)
    return open_base(uri=to, storage_options=storage_options)


def _stated_in(source: BaseTable, files: Iterable[NamedFile]) -> dict[str, StatedFile]:
    """Return the lines that the source's statement has for the files of a clone, under the paths of the clone."""
    stated = usable_statement(open_store(source.uri, source.storage_options), source.metadata)
    lines = {} if stated is None else stated.files
    return {
        one.path: replace(line, path=one.path)
        for one in files
        if (line := lines.get(one.path) or lines.get(one.key)) is not None
    }


def write_copy(
    *, uri: str, columns: pa.Schema, rows: Iterable[pa.RecordBatch], storage_options: StorageOptions = None
) -> None:
    """Write rows of these columns, streamed, as a dataset of one version; durable on return.

    Raises:
        Invalid: a dataset exists at this location.
        Unavailable: the store did not answer; the files that were written are not a dataset.
    """
    carried = Carried(rows)
    options = dict(storage_options) if storage_options else None
    with native_errors("the copy can't be written", table=uri, reading=carried):
        reader = pa.RecordBatchReader.from_batches(columns, carried)
        lance.write_dataset(reader, uri, mode="create", max_rows_per_file=FILE_ROWS, storage_options=options)
    make_durable(uri)


def read_copy(*, uri: str, columns: pa.Schema, storage_options: StorageOptions = None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a copy. Raise `Invalid` if there is no copy, else `Corrupt` or `Unavailable`."""
    dataset = open_dataset(uri=uri, version=None, storage_options=storage_options)
    with read_errors("the copy can't be read", table=uri):
        options = scan_options(dataset, columns.names)
        for batch in dataset.scanner(columns=scanned(dataset.schema, columns.names), **options).to_batches():
            yield as_schema(batch, columns)
