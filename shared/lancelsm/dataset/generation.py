"""Read generations, the flushed parts of the log, and find rows in them by key.

A generation is a Lance dataset of one fragment with a bloom filter and a key index, as Lance 14 writes them
(lance-memwal, "Flushed MemTable"). It has a fresh directory name, and nothing reads it before a manifest names it. So
its files may be written in any order, and a crash leaves an orphan. After that a generation never changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import lance
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from lance.file import LanceFileSession

from lancelsm.common.bounded_cache import NOTHING_KEPT, BoundedCache
from lancelsm.common.layout import KEY_FILTER, KEY_INDEX, LANCE_DIRECTORIES, MEM_WAL
from lancelsm.common.read_trace import NO_TRACE, Trace
from lancelsm.common.setsum import Setsum
from lancelsm.dataset.bloom import BYTES, is_filterable, may_contain
from lancelsm.dataset.conditions import Condition
from lancelsm.dataset.fields import StoredField, fitted, stored_fields
from lancelsm.dataset.key_filter import may_have
from lancelsm.dataset.native import read_errors
from lancelsm.dataset.pk_index import find_rows
from lancelsm.dataset.scan_options import scan_options, scanned
from lancelsm.errors import Corrupt, Invalid
from lancelsm.objects.links import check_directories
from lancelsm.record.casts import as_type
from lancelsm.record.key import key_column
from lancelsm.record.rowsum import row_setsum
from lancelsm.record.schema import TOMBSTONE, TableSchema, field_id
from lancelsm.record.schema_history import filled, version_of

BLOOM = "bloom_filter.bin"
_ROW = "_rowid"  # in a dataset of one fragment: the offset of the row, counting masked rows
_ROWS_BY_NUMBER = 1000

StorageOptions = Mapping[str, str] | None


_Stored = Mapping[str, StoredField]


def check_generation(
    *,
    uri: str,
    schema: TableSchema,
    rows: int,
    setsum: Setsum,
    row_bytes: int = 0,
    copy: str | None = None,
    storage_options: StorageOptions = None,
) -> None:
    """Read a generation back and compare it with the rows that should have been written.

    Args:
        row_bytes, copy: see `read_generation`.

    Raises:
        Corrupt: the rows differ. No manifest may name this generation.
        Unavailable: the store did not answer.
    """
    found, total = 0, Setsum.ZERO
    for batch in read_generation(
        uri=uri, schema=schema, row_bytes=row_bytes, small=True, copy=copy, storage_options=storage_options
    ):
        found += batch.num_rows
        total += row_setsum(batch)
    if found != rows:  # guard: flush checks the number of rows
        raise Corrupt(f"the generation has {found} rows, but {rows} were written", object=uri)
    if total != setsum:  # guard: flush checks the sum of rows
        raise Corrupt("the rows of the generation differ from those that were written", object=uri)


def read_generation(
    *,
    uri: str,
    schema: TableSchema,
    columns: Sequence[str] | None = None,
    where: Condition | None = None,
    row_bytes: int = 0,
    small: bool = False,
    copy: str | None = None,
    storage_options: StorageOptions = None,
    trace: Trace = NO_TRACE,
) -> Iterator[pa.RecordBatch]:
    """Read the rows of a generation in stored form: the newest row of each key, with tombstones.

    Args:
        schema: current schema of the table. A column that the generation lacks has its default; a renamed or widened
            one is found by its ids.
        columns: columns to return besides the key and `_tombstone`, in the table's order; all by default.
        where: SQL over the table's columns, used to read less. The result may include rows that don't match, and always
            includes tombstones.
        row_bytes: the mean size of a row in memory, if it is known. It bounds the size of a batch.
        small: see `scan_options`.
        copy: a local directory with the same files, to read instead of those at `uri`.

    Raises:
        Corrupt: the generation is missing or unreadable, or stores a column with another type.
        Invalid: the condition is not valid SQL over the table's columns, or fails on a row.
        Unavailable: the store did not answer.
    """
    wanted = _projection(schema, columns)
    _check_links(uri)
    with read_errors("the generation can't be read", condition=where.text if where else None, object=uri):
        dataset = _open(uri, storage_options, trace, copy)
        given = dataset.schema  # Lance builds it at each access
        stored = stored_fields(dataset.lance_schema, given, schema)
        names = _names(given, stored, wanted)
        scanner = dataset.scanner(
            columns=scanned(given, names),
            filter=_pushed(given, stored, schema, where),
            **scan_options(dataset, names, schema=given, row_bytes=row_bytes, small=small),
        )
        for batch in scanner.to_batches():
            yield _in_stored_form(batch, stored, wanted, schema)


def generation_version(*, uri: str, storage_options: StorageOptions = None) -> int:
    """Return the version of the table's columns that a generation was written under.

    Raises: the same errors as `read_generation`.
    """
    _check_links(uri)
    with read_errors("the generation can't be read", object=uri):
        return version_of(_open(uri, storage_options).schema)


def lookup_generation(
    *,
    uri: str,
    schema: TableSchema,
    keys: pa.Table,
    columns: Sequence[str] | None = None,
    bloom_setsum: Setsum | None = None,
    filtered: bool = False,
    storage_options: StorageOptions = None,
    kept: BoundedCache = NOTHING_KEPT,
    trace: Trace = NO_TRACE,
) -> pa.Table:
    """Read the rows with these keys in stored form, in no order.

    Reads Lance's bloom filter first, then the page bounds of the key index, then the pages that may hold a key, then
    the rows that the index found. Scans a generation without a key index.

    Args:
        keys: a table with the key columns, in the table's types.
        columns: the same as in `read_generation`.
        bloom_setsum: setsum of the bloom filter as it was written; not checked if None.
        filtered: the keys are `possible_keys`, so the bloom filter is not read.
        kept: keeps pages of the key index, and the open dataset.

    Raises:
        Corrupt: for the reasons of `read_generation`; or the bloom filter is not the one that was flushed, so that it
            may exclude existing keys; or the key index points to rows with other keys.
        Invalid, Unavailable: for the reasons of `read_generation`.
    """
    wanted = _projection(schema, columns)
    _check_links(uri)
    keys = keys.select(list(schema.primary_key)).cast(schema.key)
    with read_errors("the generation can't be read", object=uri):
        files = _files(uri, storage_options)
        with read_errors("the bloom filter of the generation can't be read", object=f"{uri}/{BLOOM}"):
            bloom = _bloom(files, trace) if is_filterable(keys.schema) and not filtered else None
        if bloom is not None:
            if bloom_setsum is not None and Setsum.of_item(bloom) != bloom_setsum:
                raise Corrupt(
                    "the bloom filter of a generation is not the one that was flushed",
                    remedy="Delete it: without a filter reads use the key index for every key",
                    object=f"{uri}/{BLOOM}",
                )
            keys = keys.filter(pa.array(may_contain(bloom, keys)))
        if keys.num_rows == 0:
            return wanted.empty_table()
        values = key_column(keys, schema.primary_key)
        with read_errors("the key index of the generation can't be read", object=f"{uri}/{KEY_INDEX}"):
            found = find_rows(files=files, values=values, uri=uri, kept=kept, trace=trace)
        if found is not None and len(found) == 0:
            return wanted.empty_table()
        dataset = kept.get(("generation", uri))
        if dataset is None:
            dataset = _open(uri, storage_options, trace)
        else:
            trace.reads(dataset)
        stored = stored_fields(dataset.lance_schema, dataset.schema, schema)
        if found is None:
            found = _scan_for(dataset, [stored[name].name for name in schema.primary_key], values)
        rows = _take(dataset, stored, wanted, schema, found)
        kept.put(("generation", uri), dataset, size=dataset.session().size_bytes())  # it keeps what it has read
        if not pc.all(pc.is_in(key_column(rows, schema.primary_key), value_set=values), min_count=0).as_py():
            raise Corrupt("the key index of a generation points to rows with other keys", object=f"{uri}/{KEY_INDEX}")
        return rows


def possible_keys(
    *,
    uri: str,
    schema: TableSchema,
    keys: pa.Table,
    filter_blocks: int,
    storage_options: StorageOptions = None,
    kept: BoundedCache = NOTHING_KEPT,
    trace: Trace = NO_TRACE,
) -> pa.Table:
    """Return the keys that a generation may have by its key filter; all of them if the filter was deleted.

    Args:
        keys: a table with the key columns, in the table's types; at least one row.
        filter_blocks: the size of the filter.
        kept: keeps pages of filters.

    Raises:
        Corrupt: a page of the filter is not the one that was flushed, so that it may exclude existing keys.
        Unavailable: the store did not answer.
    """
    _check_links(uri, (KEY_FILTER,))
    keys = keys.select(list(schema.primary_key)).cast(schema.key)
    with read_errors("the key filter of the generation can't be read", object=f"{uri}/{KEY_FILTER}"):
        likely = may_have(_files(uri, storage_options), keys, blocks=filter_blocks, uri=uri, kept=kept, trace=trace)
        return keys.filter(pa.array(likely))


def _open(
    uri: str, storage_options: StorageOptions, trace: Trace = NO_TRACE, copy: str | None = None
) -> lance.LanceDataset:
    """Open the dataset by version; opening the newest version would list the directory."""
    at, options = (uri, dict(storage_options or {})) if copy is None else (copy, {})
    found = lance.dataset(at, version=1, storage_options=options)
    trace.opened("generation.open", found)
    if found.schema.names == [TOMBSTONE]:  # only `generation_writer` creates a first version that has no other column
        found = lance.dataset(at, version=2, storage_options=options)
        trace.opened("generation.open", found)
    for outside in found.base_paths().values():
        raise Corrupt(f"the generation reads files outside of the table: {outside.path}", object=uri)
    return found


def _check_links(uri: str, names: Sequence[str] = (*LANCE_DIRECTORIES, KEY_INDEX)) -> None:
    """Raise `Corrupt` if the directory of a local generation, or one of these names in it, is a symbolic link."""
    table, found, name = uri.rpartition(f"/{MEM_WAL}/")
    check_directories(table or uri, names, below=f"{MEM_WAL}/{name}" if found else "")


def _files(uri: str, storage_options: StorageOptions) -> LanceFileSession:
    return LanceFileSession(uri, storage_options=dict(storage_options or {}))


def _projection(schema: TableSchema, columns: Sequence[str] | None) -> pa.Schema:
    """Return the part of `schema.stored` with these columns, the key and `_tombstone`."""
    if unknown := set(columns or ()) - set(schema.names):
        raise Invalid(f"the table has no column {min(unknown)!r}", field=min(unknown))
    names = set(schema.names if columns is None else [*columns, *schema.primary_key])
    return pa.schema([field for field in schema.stored if field.name in names or field.name == TOMBSTONE])


def _names(given: pa.Schema, stored: _Stored, wanted: pa.Schema) -> list[str]:
    """Return the wanted columns by their names in the generation. Before Lance 9, generations have no `_tombstone`."""
    names = [stored[field.name].name for field in wanted if field.name in stored]
    return [*names, TOMBSTONE] if TOMBSTONE in given.names else names


def _pushed(given: pa.Schema, stored: _Stored, schema: TableSchema, where: Condition | None) -> str | None:
    """Return the filter for Lance's scan; None if the generation has other columns, names or types than the table."""
    if where is None or any(
        field.name not in stored
        or stored[field.name].name != field.name
        or stored[field.name].number != field_id(field)  # it was widened since
        for field in schema.columns
    ):
        return None
    return f"{where.sql} OR {TOMBSTONE}" if TOMBSTONE in given.names else where.sql


def _in_stored_form(batch: pa.RecordBatch, stored: _Stored, wanted: pa.Schema, schema: TableSchema) -> pa.RecordBatch:
    has_tombstones = TOMBSTONE in batch.schema.names
    tombstones = batch.column(TOMBSTONE) if has_tombstones else pa.repeat(pa.scalar(False), batch.num_rows)
    arrays = []
    for field in wanted:
        if field.name == TOMBSTONE:
            arrays.append(tombstones)
        elif field.name in stored:
            held = stored[field.name]
            arrays.append(as_type(fitted(batch.column(held.name), held, field), field.type))
        else:
            arrays.append(filled(schema.history.default(field_id(field)), field.type, tombstones))
    return pa.RecordBatch.from_arrays(arrays, schema=wanted)


def _bloom(files: LanceFileSession, trace: Trace) -> bytes | None:
    trace.request("bloom_filter.read", BYTES)
    try:
        return bytes(files.read_range(BLOOM, 0, BYTES))
    except OSError as cause:
        if "not found" in str(cause).lower():
            return None
        raise


def _take(
    dataset: lance.LanceDataset, stored: _Stored, wanted: pa.Schema, schema: TableSchema, offsets: pa.Array
) -> pa.Table:
    """Read the rows at these offsets that are not masked. For many offsets a scan is faster."""
    given = dataset.schema
    names = _names(given, stored, wanted)
    if len(offsets) <= _ROWS_BY_NUMBER:
        numbers = ", ".join(map(str, offsets.to_pylist()))
        batches = list(dataset.scanner(columns=scanned(given, names), filter=f"{_ROW} IN ({numbers})").to_batches())
    else:
        among = np.sort(offsets.to_numpy(zero_copy_only=False))
        options = scan_options(dataset, names, schema=given)
        every = dataset.scanner(columns=scanned(given, names), with_row_id=True, **options).to_batches()
        batches = [batch.filter(_is_among(batch.column(_ROW), among)) for batch in every]
    return pa.Table.from_batches([_in_stored_form(batch, stored, wanted, schema) for batch in batches], schema=wanted)


def _is_among(numbers: pa.Array, among: npt.NDArray[np.uint64]) -> pa.Array:
    """Return which numbers are among a sorted set. Unlike `is_in`, this does not hash the set for every batch."""
    values = numbers.to_numpy(zero_copy_only=False)
    at = np.minimum(np.searchsorted(among, values), len(among) - 1)
    return pa.array(among[at] == values)


def _scan_for(dataset: lance.LanceDataset, key: list[str], values: pa.Array) -> pa.Array:
    """Find the row offsets of these keys by a scan, for a generation without a key index."""
    rows = dataset.scanner(columns=key, with_row_id=True).to_table()
    among = pc.is_in(key_column(rows, tuple(key)), value_set=values)
    return rows[_ROW].filter(among).combine_chunks()
